# spans of 4 characters in English prose, a likelihood judge; 4 min from nothing on 1 busy core
# held-out verify: start 0.330, line to beat 0.374 -> 0.569 (seed 1)

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
