# GRPO, arXiv:2402.03300, 4.1, eq. 3 and 4; clip ranges are not given there: those of PPO. One
# update a step (4.2), so no clip acts
# left out: the reference is renewed in each iteration of its outer loop (4.1.4)

adv_norm = 'std'
objective = 'ppo'
clip_low, clip_high = 0.2, 0.2
loss_norm = 'sequence'
likelihood, draw_prompts = 'trajectory', 'random'
kl_beta, kl_type = 0.04, 'k3'
entropy_coef = 0.0
