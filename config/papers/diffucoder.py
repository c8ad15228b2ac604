# coupled-GRPO of DiffuCoder, arXiv:2506.20639, 4.3, and its code: two complementary masks beside
# one that covers all; two epochs; the mean of the others is the baseline
# Behind an experiment that fills blanks, such as config/grpo_passes.py, and with the paper's flags:
# --fill_order=confident --epochs=2
# Its share of blanks, uniform in 0.2 to 0.8, is drawn for each batch; here for each sequence
adv_norm = 'rloo'
loss_norm = 'token'
objective, ratio_level = 'ppo', 'token'
clip_low, clip_high = 0.5, 0.5
kl_beta, kl_type = 0.01, 'k3'
entropy_coef = 0.0
likelihood = 'coupled'
