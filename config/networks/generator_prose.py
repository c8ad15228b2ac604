# Fills runs of 4 characters in windows of 32 characters of running text: docstrings, Shakespeare,
# or a text of yours.

blank_kind = 'answer'

n_layer = 4
n_embd = 128
# held-out loss of docstrings 2.50, with 'learned' 3.00 (seed 1, float32)
positions = 'rotary'

batch_size = 64
learning_rate = 6e-3
max_iters = 700
