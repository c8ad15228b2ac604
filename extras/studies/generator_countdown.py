# plays countdown by random attempts; larger than that of config/networks/

kind = 'causal'
blank_kind = 'answer'
positions = 'learned'

n_layer = 3
n_embd = 96

batch_size = 128
max_iters = 600
