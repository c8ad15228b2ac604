# the default task in up to five passes, left to right: a blank sees what was filled before it, so
# nothing has to commit to one answer; 5.7 min from nothing on 2 cores
# held-out verify: start 0.914, line to beat 0.950 -> 0.974, 0.974, 0.974 (seeds 1, 2, 3);
# distinct@4 0.630 -> 0.614, pass@4 0.991 -> 0.995, 0.995, 0.995

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
