# runs of 4 characters in English prose, a likelihood judge

dataset = 'docstrings'
blank_kind = 'span'
blank_high = 0.5

generator = 'config/generator_prose.py'
judge = 'config/judge_prose.py'

batch_size = 32
max_iters = 500

out_dir = 'out-docstrings'
log_interval = 10
eval_interval = 250
