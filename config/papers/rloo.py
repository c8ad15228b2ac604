# RLOO, arXiv:2402.14740, 2.3: the mean of the others is the baseline, no clip (3.2), the KL is in
# the reward (eq. 3; add 'kl': -0.05 to the rewards of the experiment; the paper has 0.03 and 0.1)

adv_norm = 'rloo'
objective = 'ppo'
clip_low, clip_high = 1.0, 1e9      # no clip
loss_norm = 'constant'
likelihood, draw_prompts = 'trajectory', 'random'
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0
TRL = {'scale_rewards': 'none', 'reward_weights': lambda: [
    weight * group_size / (group_size - 1) for weight in rewards.values()]}


def rloo(reward, scores):
    """Reward minus the mean of the others, which is (reward - mean) * k / (k - 1). NaN is none."""
    k = (~reward.isnan()).sum(1, keepdim=True, dtype=reward.dtype).clamp(min=2)
    deviation = reward - reward.nanmean(1, keepdim=True)
    share = (k - 1) / k
    return deviation / share
