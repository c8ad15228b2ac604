# a classifier of docstrings: 1 unless the text speaks of failure

kind = 'classifier'
dataset = 'docstrings'
labels = 'data/docstrings/labels.jsonl'
block_size = 64

n_embd = 96

batch_size = 64

eval_interval = 100
