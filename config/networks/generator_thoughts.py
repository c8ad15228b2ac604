# knows where the ball is after each swap, if it is told where it was before

blank_kind = 'answer'

n_layer = 2                 # too few to follow eight swaps at once

batch_size = 128
learning_rate = 8e-3
max_iters = 1600
