# a classifier of docstrings: 1 unless the text speaks of failure
kind, labels, dataset = 'classifier', 'data/docstrings/labels.jsonl', 'docstrings'
block_size, n_embd, batch_size, eval_interval = 64, 96, 64, 100
