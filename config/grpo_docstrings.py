# spans of 4 characters in English prose, scored by a likelihood judge
# GRPO: 3 min on 1 core
# held-out verify: start 0.330, control (its argmax) 0.387 -> 0.554, 0.570, 0.568 (seeds 1, 2, 3)
dataset, block_size = 'docstrings', 32
blank_kind, blank_high = 'span', 0.5
batch_size, adv_norm, learning_rate = 32, 'std', 2e-3
max_iters, log_interval = 500, 10
out_dir = 'out-docstrings'
