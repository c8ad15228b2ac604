# CISPO, arXiv:2506.13585, 3.1: the weight of log p is clipped, so that every token learns
adv_norm = 'std'
loss_norm = 'token'
objective = 'cispo'
clip_high = 0.28            # the paper tunes it, and gives no number
kl_beta = 0.0
entropy_coef = 0.0
