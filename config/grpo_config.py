# the main job: blanks of equations, a likelihood judge; 33 s from nothing on 2 cores
# held-out verify: start 46.2%, line to beat 46.9% -> 95.4, 94.7, 95.3% (seeds 1, 2, 3)

adv_norm = 'std'
learning_rate = 2e-3
max_iters = 450

log_interval = 20
