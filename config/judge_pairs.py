# for pairs of prompt and answer: a likelihood of whole rows; takes dataset and block_size from the
# run that needs it

blank_kind = 'answer'

n_layer = 4
n_embd = 128

batch_size = 64
max_iters = 500
