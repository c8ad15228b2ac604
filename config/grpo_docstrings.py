# spans of 4 characters in English prose, a likelihood judge
# from nothing 2.4 min on 2 idle cores: data, generator and judge 1 min, then 500 steps of GRPO
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
