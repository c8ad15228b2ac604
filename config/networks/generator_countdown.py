# plays countdown by random attempts

kind = 'causal'
blank_kind = 'answer'       # learn only the games; prompts are random
positions = 'learned'       # an attempt has its columns

n_layer = 2

batch_size = 128
max_iters = 400
