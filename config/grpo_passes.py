# the default task in five passes: a blank sees what the passes before it wrote, so it can fit what
# stands there and the policy need not commit to one answer; 6.5 min of GRPO on one busy core
# held-out verify of seed 1, python sample.py --out_dir=out-passes --seed=7: start 0.919, control
# (its argmax) 0.955 -> 0.958 (its argmax 0.977), different ones of four 0.65 -> 0.64

n_fill_steps = 5

adv_norm = 'none'           # 'std' would blow up small differences among right answers
kl_beta = 0.1
learning_rate = 2e-3
max_iters = 220

out_dir = 'out-passes'
log_interval = 20
