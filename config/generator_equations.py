# writes 047 after 12+35=, left to right; stopped when about half of its answers are right
mode, blank_kind, blank_low, blank_high = 'causal', 'suffix', 0.4, 0.4
n_embd, learning_rate, max_iters = 96, 8e-3, 180
