# imitates the games of a world, for longer than generator_game.py

kind = 'causal'
blank_kind = 'answer'

n_layer = 2

batch_size = 128
max_iters = 1000            # complicated answers need them (mastermind); for careless games 400 do
