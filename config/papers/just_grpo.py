# JustGRPO, arXiv:2601.15165: a masked model that is trained from left to right, one blank a pass,
# so its likelihood is exact; it sees the blanks that are left. One update a step, no KL
# Behind an experiment that fills blanks, such as config/grpo_passes.py, and with the paper's flags:
# --fill_order=left --n_fill_steps=99
adv_norm = 'std'
loss_norm = 'constant'
objective, ratio_level = 'ppo', 'token'
clip_low, clip_high = 0.2, 0.2      # with one update no clip acts
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0
likelihood = 'trajectory'
