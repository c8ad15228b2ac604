# the main job
learning_rate = 2e-3
max_iters = 700
log_interval = 20
