# runs of 4 characters of Shakespeare, a likelihood judge

dataset = 'shakespeare'
blank_kind = 'span'
blank_high = 0.5

generator = 'config/generator_prose.py'
judge = 'config/judge_prose.py'

batch_size = 32
max_iters = 700

out_dir = 'out-shakespeare'
log_interval = 10
