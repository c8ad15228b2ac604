# Dr. GRPO, arXiv:2503.20783, 3.2: no std, no length of the completion in the loss, no KL
# its experiments take eight updates of a step: --mini_batches=8 --gradient_accumulation_steps=8

adv_norm = 'none'
objective = 'ppo'
clip_low, clip_high = 0.2, 0.2
loss_norm = 'constant'
likelihood, draw_prompts = 'trajectory', 'random'
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0
