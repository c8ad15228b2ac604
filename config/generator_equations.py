# writes 047 after 12+35=, left to right; stopped when about half of its answers are right
mode = 'causal'
n_embd = 96
blank_kind = 'suffix'
blank_low = blank_high = 0.4
learning_rate = 8e-3
max_iters = 180
