# RLOO, arXiv:2402.14740: the mean of the others is the baseline, no clip, the KL is in the reward
# (add 'kl': -0.05 to the rewards of the experiment)
adv_norm = 'rloo'
loss_norm = 'constant'
objective, ratio_level = 'ppo', 'token'
clip_low, clip_high = 1.0, 1e9
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0
likelihood = 'trajectory'
