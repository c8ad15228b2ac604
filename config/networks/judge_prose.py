# Reads running text, character by character: docstrings, Shakespeare, or a text of yours.

kind = 'causal'

n_layer = 4
n_embd = 128
positions = 'rotary'

batch_size = 64
max_iters = 600
