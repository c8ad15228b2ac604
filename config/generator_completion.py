# writes docstrings on, character by character: rows of 64
dataset = 'docstrings'
mode = 'causal'
block_size = 64
n_layer = 4
n_embd = 128
blank_kind = 'suffix'
blank_low = blank_high = 0.5
batch_size = 64
learning_rate = 4e-3
max_iters = 500
eval_interval = 250
