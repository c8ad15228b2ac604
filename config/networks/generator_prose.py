# fills runs of 4 characters in windows of 32 of the run's text: docstrings, Shakespeare, your own

block_size = 32
blank_span = 4
blank_high = 0.5

n_layer = 4
n_embd = 128

batch_size = 64
learning_rate = 6e-3
max_iters = 700
