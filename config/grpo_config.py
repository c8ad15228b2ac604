# the main job: blanks of equations, scored by a likelihood judge
# 107 s from nothing on 2 cores, then 31 s
# held-out verify: start 0.464, control (its argmax) 0.502 -> 0.938, 0.933, 0.944 (seeds 1, 2, 3)
adv_norm, learning_rate, max_iters, log_interval = 'std', 2e-3, 450, 20
