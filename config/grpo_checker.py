# a checker of your own, and no answers: --dataset=FILE.py, with texts() and verify()
# python train_grpo.py config/grpo_checker.py
# verify: start 15.9 to 21.6 %, line to beat 45.6 to 54.7 %,
# policy 92.9 to 94.9 % (docs/results.md: three generators, two precisions, two seeds)

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
