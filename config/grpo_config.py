# the main job: blanks of equations, a likelihood judge; 78 s from nothing on 2 cores, then 20 s
# held-out verify: start 0.464, line to beat 0.480 -> 0.956, 0.945, 0.941 (seeds 1, 2, 3)

adv_norm = 'std'
learning_rate = 2e-3
max_iters = 450

log_interval = 20
