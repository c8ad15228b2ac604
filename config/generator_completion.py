# writes docstrings on, character by character: rows of 64

dataset = 'docstrings'
mode = 'causal'
block_size = 64
blank_kind = 'suffix'
blank_low = 0.5
blank_high = 0.5

n_layer = 4
n_embd = 128

batch_size = 64
max_iters = 500
