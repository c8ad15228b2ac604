# MaxRL, arXiv:2602.02710, algorithm 1: divided by the mean reward, which must not be negative; no
# KL; one update a step

adv_norm = 'maxrl'
objective = 'ppo'
clip_low, clip_high = 0.2, 0.2
loss_norm = 'constant'
likelihood, draw_prompts = 'trajectory', 'random'
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0


def maxrl(reward, scores):
    assert not (reward < 0).any(), f"MaxRL needs rewards >= 0, not {reward[reward < 0]}"
    mean = reward.nanmean(1, keepdim=True)
    return (reward - mean) / mean.clamp(min=1e-30)      # where all are 0, 0
