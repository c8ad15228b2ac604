# spans of 4 characters in English prose, a likelihood judge; 4 min from nothing on 1 busy core
# held-out verify: start 0.337, control (its argmax) 0.397 -> 0.556, 0.549, 0.548 (seeds 1, 2, 3)
dataset, block_size, blank_kind, blank_high = 'docstrings', 32, 'span', 0.5
batch_size, adv_norm, learning_rate = 32, 'std', 2e-3
max_iters, log_interval, out_dir = 500, 10, 'out-docstrings'
