# writes docstrings on, character by character: rows of 64
dataset, block_size, mode = 'docstrings', 64, 'causal'
blank_kind, blank_low, blank_high = 'suffix', 0.5, 0.5
n_layer, n_embd, batch_size, max_iters = 4, 128, 64, 500
