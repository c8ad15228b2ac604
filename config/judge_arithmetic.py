# tells true equations from false ones, having read 9,000 true ones

positions = 'learned'

batch_size = 128
learning_rate = 1e-2
max_iters = 500
