# reads the run's text, character by character: docstrings, Shakespeare, your own

kind = 'causal'
block_size = 32

n_layer = 4
n_embd = 128

batch_size = 64
max_iters = 600
