# tells true equations from false ones, having read 9,000 true ones
learning_rate, max_iters, eval_interval = 8e-3, 400, 200
