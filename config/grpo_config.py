# blanks of equations, a likelihood judge
# python train_grpo.py config/grpo_config.py
# verify: start 44.6 %, line to beat 44.7 %, policy 94.6 +- 0.9 %; seeds 1 to 5. From nothing
# to the end 90 s of an idle Intel Xeon (101 s of CPU time: two networks are made side by side)

dataset = 'arithmetic'
rewards = {'judge': 1.0}

group_size = 16
batch_size = 64

adv_norm = 'std'
entropy_coef = 0.02         # keeps the policy from committing too early
kl_beta = 0.05
optimizer = 'muon'
learning_rate = 4e-3
min_lr = 1e-4
max_iters = 450
