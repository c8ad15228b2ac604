# the main job
learning_rate = 2e-3
min_lr = 1e-4
log_interval = 10
