# JustGRPO, arXiv:2601.15165, 4.2, and its code: a masked model that is trained from left to right,
# one blank a pass, so its likelihood is exact; it sees the blanks that are left. One update a step,
# no KL
# (Its eq. 8 divides by the length, its code by a constant.)
# behind an experiment that fills blanks, such as config/grpo_passes.py

adv_norm = 'std'
objective = 'ppo'
clip_low, clip_high = 0.2, 0.2      # with one update no clip acts
loss_norm = 'constant'
likelihood, draw_prompts = 'trajectory', 'random'
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0
fill_order = 'left'
n_fill_steps = 99                   # one blank a pass
temperature = 1.0
epochs = 1
