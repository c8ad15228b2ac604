# spans of 4 characters of Shakespeare, a likelihood judge
# held-out verify: start 31.1%, line to beat 40.6% -> 61.0% (seed 1)

dataset = 'shakespeare'
block_size = 32
blank_kind = 'span'
blank_high = 0.5

generator_recipe = 'config/generator_docstrings.py --dataset=shakespeare'
judge_recipe = 'config/judge_docstrings.py --dataset=shakespeare'

batch_size = 32

adv_norm = 'std'
learning_rate = 2e-3
max_iters = 700

out_dir = 'out-shakespeare'
log_interval = 10
