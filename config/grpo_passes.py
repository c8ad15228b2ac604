# the default task in up to five passes, left to right: a blank sees what was filled before it, so
# nothing has to commit to one answer
# held-out verify: start 90.0%, line to beat 95.9% -> 97.8, 98.3, 97.9% (seeds 1, 2, 3);
# distinct@4 0.638 -> 0.611, 0.609, 0.612, pass@4 99.1% -> 99.7, 99.7, 99.7%

n_fill_steps = 5
fill_order = 'left'         # one order to learn; 'random' ends nearly as high

adv_norm = 'none'           # 'std' would blow up small differences among right answers
kl_beta = 0.2               # keeps the variety of the reference
learning_rate = 2e-3
max_iters = 600

out_dir = 'out-passes'
log_interval = 20
eval_interval = 300
eval_prompts = 4096         # pass@4 is near 1, and 512 prompts would blur it
