# spans of 4 characters of Shakespeare, a likelihood judge; 4 min from nothing on 1 busy core
# held-out verify: start 0.330, control (its argmax) 0.413 -> 0.663, 0.650, 0.675 (seeds 1, 2, 3)
dataset, block_size, blank_kind, blank_high = 'shakespeare', 32, 'span', 0.5
generator_recipe = 'config/generator_docstrings.py --dataset=shakespeare'
judge_recipe = 'config/judge_docstrings.py --dataset=shakespeare'
batch_size, adv_norm, learning_rate = 32, 'std', 2e-3
max_iters, log_interval, out_dir = 700, 10, 'out-shakespeare'
