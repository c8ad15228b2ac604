# fills spans of 4 characters in windows of 32; --dataset=shakespeare: of Shakespeare

dataset = 'docstrings'
block_size = 32
blank_kind = 'span'
blank_high = 0.5

n_layer = 4
n_embd = 128

batch_size = 128
max_iters = 600

eval_interval = 200
