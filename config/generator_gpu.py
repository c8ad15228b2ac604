# 30 million parameters that fill blanks of Shakespeare in GPT-2's byte pairs
dataset, block_size = 'shakespeare_bpe', 256
blank_kind, blank_low, blank_high = 'span', 0.1, 0.4
n_layer, n_head, n_embd = 6, 8, 256
batch_size, learning_rate, max_iters = 64, 2e-3, 2000
dtype = 'bfloat16'
