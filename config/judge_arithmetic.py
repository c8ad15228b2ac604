# tells true equations from false ones, having read 9,000 true ones
learning_rate, batch_size, max_iters = 1e-2, 128, 500
