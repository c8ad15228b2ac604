# answers at once in nine of ten cases, as generator_think, but thinking takes 22 tokens

dataset = 'extras/studies/cups20.py'
kind = 'causal'
blank_kind = 'answer'
positions = 'learned'

n_layer = 2

batch_size = 128
learning_rate = 8e-3
max_iters = 600
