# tells true equations from false ones, having read 9,000 true ones
learning_rate = 8e-3
max_iters = 400
eval_interval = 200
