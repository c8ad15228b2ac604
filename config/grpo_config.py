# the main job: blanks of equations, scored by a likelihood judge
# 71 s from nothing on 2 cores, then 21 s
# held-out verify: start 0.458, control (its argmax) 0.461 -> 0.939, 0.936, 0.947 (seeds 1, 2, 3)
adv_norm, learning_rate, max_iters, log_interval = 'std', 2e-3, 450, 20
