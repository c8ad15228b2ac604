# the main job: blanks of equations, a likelihood judge; 78 s from nothing on 2 cores, then 20 s
# held-out verify: start 0.467, control (its argmax) 0.479 -> 0.934, 0.932, 0.946 (seeds 1, 2, 3)

adv_norm = 'std'
learning_rate = 2e-3
max_iters = 450

log_interval = 20
