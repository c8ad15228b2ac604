# Dr. GRPO, arXiv:2503.20783, 3.2: no std, no length of the completion in the loss, no KL
adv_norm = 'none'
loss_norm = 'constant'
objective, ratio_level = 'ppo', 'token'
clip_low, clip_high = 0.2, 0.2
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0
likelihood = 'trajectory'
