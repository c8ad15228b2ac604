# DAPO, arXiv:2503.14476, 3.1 and 3.3: a higher upper clip, one mean over all tokens, no KL.
# Groups that teach nothing cost only their sampling, see docs/studies.md, g; instead of refilling
# them, take more prompts. (The mean over tokens counts theirs, too, which AdamW and Muon hardly
# see.)
# Instead of its penalty for overlong answers: 'tokens' or 'ended' as a reward
adv_norm = 'std'
loss_norm = 'token'
objective, ratio_level = 'ppo', 'token'
clip_low, clip_high = 0.2, 0.28
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0
likelihood = 'trajectory'
