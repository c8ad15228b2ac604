# fills spans of 4 characters in windows of 32; --dataset=shakespeare: of Shakespeare
dataset, block_size, blank_kind, blank_high = 'docstrings', 32, 'span', 0.5
n_layer, n_embd, batch_size, max_iters, eval_interval = 4, 128, 128, 600, 200
