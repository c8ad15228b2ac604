# knows where the ball is after each swap, if it is told where it was before

positions = 'learned'       # a swap has its column, and so has its thought

n_layer = 2                 # too few to follow eight swaps at once

batch_size = 128
learning_rate = 8e-3
max_iters = 850
