# A classifier of docstrings. The label is 1 unless the text speaks of failure.

include('config/networks/classifier.py')

tokenizer = 'completions'   # the characters of the generator
positions = 'rotary'

n_embd = 96

batch_size = 64
max_iters = 500
