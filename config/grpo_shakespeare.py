# shakespeare
dataset = 'shakespeare'
block_size = 32
blank_kind = 'span'
blank_high = 0.5
batch_size = 32
adv_norm = 'std'
learning_rate = 2e-3
max_iters = 700
eval_interval = 100
log_interval = 10
sample_interval = 100
out_dir = 'out-shakespeare'
