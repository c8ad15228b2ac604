# spans of 4 characters in English prose, scored by a likelihood judge
# GRPO: 3 min on 1 core
# held-out verify: start 0.330, control (its argmax) 0.387 -> 0.554, 0.570, 0.568 (seeds 1, 2, 3)
dataset = 'docstrings'
block_size = 32
blank_kind = 'span'
blank_high = 0.5
batch_size = 32
adv_norm = 'std'
learning_rate = 2e-3
max_iters = 500
eval_interval = 100
log_interval = 10
sample_interval = 100
out_dir = 'out-docstrings'
