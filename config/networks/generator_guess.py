# guesses letters that may still be right, because its games do; it prefers none of them

kind = 'causal'
blank_kind = 'answer'
positions = 'learned'       # a turn has its column

n_layer = 2
n_embd = 64

batch_size = 128
learning_rate = 4e-3
max_iters = 400
