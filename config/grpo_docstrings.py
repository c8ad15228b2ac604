# spans of 4 characters in English prose, a likelihood judge; 2.7 min from nothing on 2 cores
# held-out verify: start 33.2%, line to beat 38.7% -> 56.2% (seed 1)

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
