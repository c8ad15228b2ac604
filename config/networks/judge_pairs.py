# reads whole pairs of the run's dataset, prompt and answer

kind = 'causal'

n_layer = 4
n_embd = 128

batch_size = 64
max_iters = 500
