# a classifier of docstrings: 1 unless the text speaks of failure

kind = 'classifier'
dataset = 'failure_labels'
tokenizer = 'docstrings'    # the characters of the generator
block_size = 65             # 64 characters and the end

n_embd = 96

batch_size = 64
max_iters = 500
