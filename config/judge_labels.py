# a classifier of docstrings: 1 unless the text speaks of failure
kind, labels = 'classifier', 'data/docstrings/labels.jsonl'
dataset, block_size = 'docstrings', 64
n_embd, batch_size, eval_interval = 96, 64, 100
