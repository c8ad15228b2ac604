# GSPO, arXiv:2507.18071, eq. 5 to 7, and 5.1: one ratio for a sequence, and a narrow clip
adv_norm = 'std'
loss_norm = 'sequence'
objective, ratio_level = 'ppo', 'sequence'
clip_low, clip_high = 3e-4, 4e-4
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0
likelihood = 'trajectory'
