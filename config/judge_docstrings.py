# reads English prose, character by character; --dataset=shakespeare: Shakespeare

dataset = 'docstrings'
block_size = 32
blank_kind = 'span'
blank_high = 0.5

n_layer = 4
n_embd = 128

batch_size = 64
max_iters = 600

eval_interval = 200
