# fills runs of 4 characters in windows of 32 of the run's text: docstrings, Shakespeare, your own

blank_kind = 'answer'

n_layer = 4
n_embd = 128
# docstrings, seed 1, one thread: held-out loss 2.50; with 'learned' 3.00
positions = 'rotary'

batch_size = 64
learning_rate = 6e-3
max_iters = 700
