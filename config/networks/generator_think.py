# answers at once in nine of ten cases, because its texts do; else it thinks first

kind = 'causal'
blank_kind = 'answer'       # learn the answers; the prompts are random

n_layer = 2                 # too few to follow eight swaps at once

batch_size = 128
learning_rate = 8e-3
max_iters = 700
