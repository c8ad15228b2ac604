# blanks of equations, a likelihood judge
# python train_grpo.py config/grpo_config.py
# verify: start 44.6 %, line to beat 44.7 %, policy 94.6 +- 0.9 %; seeds 1 to 5; 33 s of one core,
# besides pretraining

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
