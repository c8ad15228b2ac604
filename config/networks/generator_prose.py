# fills runs of 4 characters in windows of 32 of the run's text: docstrings, Shakespeare, your own

blank_kind = 'answer'

n_layer = 4
n_embd = 128
# seeds 1, 2, 3: held-out loss 2.51, 2.42, 2.43; with 'learned' 3.01, 3.04, 3.05
positions = 'rotary'

batch_size = 64
learning_rate = 6e-3
max_iters = 700
