# a likelihood judge of the same size, for config/grpo_gpu.py
dataset = 'shakespeare_bpe'
block_size = 256
n_layer = 6
n_head = 8
n_embd = 256
blank_kind = 'span'
blank_low = 0.1
blank_high = 0.4
batch_size = 32
learning_rate = 2e-3
max_iters = 1500
compile = True
dtype = 'bfloat16'
