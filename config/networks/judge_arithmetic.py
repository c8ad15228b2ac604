# tells true equations from false ones, because it has read 9,023 true ones

kind = 'causal'

batch_size = 128
learning_rate = 1e-2
max_iters = 500
