# runs of 4 characters in English prose, a likelihood judge
# python train_grpo.py config/grpo_docstrings.py
# verify: start 31.2 %, line to beat 37.5 %, policy 58.5, 57.8, 57.7 %; seeds 1, 2, 3; 384 s of an
# idle Intel Xeon (384 s of CPU time), 140 s of an AMD EPYC, besides pretraining

dataset = 'docstrings'
blank_span = 4
blank_high = 0.5

generator = 'config/networks/generator_prose.py'
judge = 'config/networks/judge_prose.py'

batch_size = 32
kl_beta = 0.05
entropy_coef = 0.0
learning_rate = 2e-3
max_iters = 700

out_dir = 'out-docstrings'
log_interval = 10
eval_interval = 100
