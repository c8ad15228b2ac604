# GRPO, arXiv:2402.03300, 4.1 and eq. 3; clip ranges are not given there: those of PPO
adv_norm = 'std'
loss_norm = 'sequence'
objective, ratio_level = 'ppo', 'token'
clip_low, clip_high = 0.2, 0.2
kl_beta, kl_type = 0.04, 'k3'
entropy_coef = 0.0
likelihood = 'trajectory'
