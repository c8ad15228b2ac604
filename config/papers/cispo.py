# CISPO, arXiv:2506.13585, 3.1: the weight of log p is clipped, so that every token learns
adv_norm = 'std'
loss_norm = 'token'
objective, ratio_level = 'cispo', 'token'
clip_low, clip_high = 0.2, 0.28         # the lower one is not used; the paper tunes the upper
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0
likelihood = 'trajectory'
