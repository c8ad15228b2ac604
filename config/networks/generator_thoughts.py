# Knows where the ball is after a swap if it sees where the ball was before. It has read texts with
# any of their thoughts blank, so it has no favourite order.

blank_kind = 'answer'

n_layer = 2                 # too few to follow eight swaps at once

batch_size = 128
learning_rate = 8e-3
max_iters = 1600
