# spans of 4 characters of Shakespeare, scored by a likelihood judge
# 5 min from nothing on 1 core
# held-out verify: start 0.333, control (its argmax) 0.414 -> 0.665, 0.644, 0.653 (seeds 1, 2, 3)
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
