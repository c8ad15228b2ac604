# a likelihood judge of the same size, for config/grpo_gpu.py
dataset, block_size = 'shakespeare_bpe', 256
blank_kind, blank_low, blank_high = 'span', 0.1, 0.4
n_layer, n_head, n_embd = 6, 8, 256
batch_size, learning_rate, max_iters = 32, 2e-3, 1500
dtype = 'bfloat16'
