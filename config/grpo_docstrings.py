# spans of 4 characters in English prose, a likelihood judge; 4 min from nothing on 1 busy core
# held-out verify: start 0.337, control (its argmax) 0.397 -> 0.556, 0.549, 0.548 (seeds 1, 2, 3)

dataset = 'docstrings'
block_size = 32
blank_kind = 'span'
blank_high = 0.5

batch_size = 32

adv_norm = 'std'
learning_rate = 2e-3
max_iters = 500

out_dir = 'out-docstrings'
log_interval = 10
