# spans of 4 characters in English prose, a likelihood judge; 2.7 min from nothing on 2 cores
# held-out verify: start 31.3%, line to beat 37.2% -> 57.9, 58.9, 58.3% (seeds 1, 2, 3)

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
eval_interval = 250
