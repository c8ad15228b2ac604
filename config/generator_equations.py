# writes 047 after 12+35=, left to right; stopped when about half of its answers are right

mode = 'causal'
blank_kind = 'answer'

n_embd = 96

learning_rate = 8e-3
max_iters = 220
