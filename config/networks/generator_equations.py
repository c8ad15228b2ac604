# writes 047 after 12+35=; stopped when about 60 % of its answers are right, so that something is
# left to learn from a reward

kind = 'causal'

n_embd = 96

learning_rate = 8e-3
max_iters = 220
