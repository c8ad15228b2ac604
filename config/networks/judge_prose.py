# reads the run's text, character by character: docstrings, Shakespeare, your own

kind = 'causal'

n_layer = 4
n_embd = 128
positions = 'rotary'

batch_size = 64
max_iters = 600
