# MaxRL, arXiv:2602.02710: divided by the mean reward, which must not be negative; no KL
adv_norm = 'mean'
loss_norm = 'constant'
objective, ratio_level = 'ppo', 'token'
clip_low, clip_high = 0.2, 0.2
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0
likelihood = 'trajectory'
