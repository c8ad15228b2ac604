# MaxRL, arXiv:2602.02710, algorithm 1: divided by the mean reward of the group, so a prompt that
# seldom succeeds counts more. One update a step, no KL. For rewards that are not negative, such as
# --rewards='{"verify": 1.0}'

adv_norm = 'none'
loss_norm = 'constant'
kl_beta = 0.0
entropy_coef = 0.0


def advantages(reward, scores, inner=advantages):
    assert (reward >= 0).all(), f"MaxRL: expected rewards >= 0, not {reward.min()}"
    return inner(reward, scores) / reward.mean(1, keepdim=True).clamp(min=1e-30)    # 0 if all are 0
