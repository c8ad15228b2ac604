# DAPO, arXiv:2503.14476, 3.1 and 3.3: a higher upper clip, one mean over all tokens, no KL.
# Not here: dynamic sampling and the soft penalty for overlong answers
adv_norm = 'std'
loss_norm = 'token'
clip_low, clip_high = 0.2, 0.28
kl_beta = 0.0
