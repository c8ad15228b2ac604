# reads docstrings, character by character: sequences of 64

dataset = 'docstrings'
kind = 'causal'
block_size = 64

n_layer = 4
n_embd = 128

batch_size = 64
max_iters = 600
