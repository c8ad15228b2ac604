# reads Shakespeare, character by character
dataset = 'shakespeare'
block_size = 32
n_layer = 4
n_embd = 128
blank_kind = 'span'
blank_high = 0.5
batch_size = 64
learning_rate = 4e-3
max_iters = 600
eval_interval = 300
