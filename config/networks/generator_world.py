# imitates the games of a world

kind = 'causal'
blank_kind = 'answer'
positions = 'learned'       # a turn has its columns

n_layer = 2
n_embd = 64

batch_size = 128
learning_rate = 4e-3
max_iters = 1000            # complicated answers need them (mastermind); for careless games 400 do
