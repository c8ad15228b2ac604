# a classifier of docstrings: 1 unless the text speaks of failure
kind = 'classifier'
labels = 'data/docstrings/labels.jsonl'
dataset = 'docstrings'
block_size = 64
n_layer = 3
n_embd = 96
batch_size = 64
learning_rate = 4e-3
max_iters = 500
eval_interval = 100
