# the main job: blanks of equations, a likelihood judge
# from nothing 36 s on 2 idle cores: data, generator and judge 20 s, then 450 steps of GRPO
# held-out verify: start 46.2%, line to beat 46.9% -> 95.4, 94.7, 95.3% (seeds 1, 2, 3)

adv_norm = 'std'
learning_rate = 2e-3
max_iters = 450

log_interval = 20
