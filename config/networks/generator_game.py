# Imitates the games of data/guess.py, or the random attempts of data/countdown.py. It learns the
# rules of a game but no strategy, because these games were played at random.

kind = 'causal'
blank_kind = 'answer'       # learn only the games; prompts are random

n_layer = 2

batch_size = 128
max_iters = 400
