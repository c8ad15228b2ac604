# Plays the game of cups. In nine of ten cases it answers at once, because its texts do. In the
# others it thinks first.

kind = 'causal'
blank_kind = 'answer'       # learn the answers; the prompts are random

n_layer = 2                 # too few to follow eight swaps at once

batch_size = 128
learning_rate = 8e-3
max_iters = 700
