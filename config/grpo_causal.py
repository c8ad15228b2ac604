# 12+35= -> 047, left to right; reward: the verifier; no KL; 1.5 min from nothing on 1 busy core
# held-out verify: start 0.448, control (its argmax) 0.734 -> 0.972, 0.978, 0.977 (seeds 1, 2, 3)
mode, blank_kind, blank_low, blank_high = 'causal', 'suffix', 0.4, 0.4
generator_recipe, rewards, kl_beta = 'config/generator_equations.py', {'verify': 1.0}, 0.0
group_size, batch_size, gradient_accumulation_steps = 8, 32, 2
max_iters, log_interval, out_dir = 700, 20, 'out-causal'
