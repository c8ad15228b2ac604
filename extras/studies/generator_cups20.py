# answers at once in nine of ten cases, as generator_think does, but a thought has 22 tokens

kind = 'causal'
blank_kind = 'answer'

n_layer = 2

batch_size = 128
learning_rate = 8e-3
max_iters = 600
