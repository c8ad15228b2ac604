# for pairs of prompt and answer: a likelihood of whole rows; dataset and block_size are those of
# the run that needs it

blank_kind = 'answer'

n_layer = 4
n_embd = 128

batch_size = 64
max_iters = 500
