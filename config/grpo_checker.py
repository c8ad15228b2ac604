# a checker of your own, and no answers: --dataset=FILE.py, with texts() and verify()
# python train_grpo.py config/grpo_checker.py --dataset=names
# verify: start 18.0 %, line to beat 52.6 %, policy 89.5, 91.5, 91.5 %; seeds 1, 2, 3; 40 s of an
# AMD EPYC, besides pretraining. From starts of 2, 10 and 25 %: docs/data.md

include('plugins/causal.py')

dataset = 'names'           # or a file of yours
rewards = {'verify': 1.0}   # alone first: a common reward beside it would hide a rare one

generator = 'config/networks/generator_checker.py'

group_size = 16             # of 16 samples one is right in 4 of 10 groups, if 3 % are
batch_size = 32

kl_beta = 0.0
entropy_coef = 0.0
learning_rate = 1e-3
max_iters = 300

out_dir = 'out-checker'
eval_interval = 50
