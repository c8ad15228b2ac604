# writes the answers of the run's pairs; stopped early, so that something is left to learn from a
# reward

kind = 'causal'

batch_size = 64
max_iters = 130
