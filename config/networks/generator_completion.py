# writes docstrings on, character by character: 32 after 32

dataset = 'completions'
kind = 'causal'

n_layer = 4
n_embd = 128
positions = 'rotary'

batch_size = 64
max_iters = 500
