# MaxRL, arXiv:2602.02710, algorithm 1: divided by the mean reward of the group, so a prompt that
# seldom succeeds counts more. One update a step, no KL. For rewards that are not negative, such as
# --rewards='{"verify": 1.0}'. It stands before other files that change advantages()

adv_norm = 'none'
loss_norm = 'constant'
kl_beta = 0.0
entropy_coef = 0.0

assert advantages is _original['advantages'], (
    "maxrl.py: a file before it has changed advantages(): put maxrl.py first, or leave one out")


def advantages(reward, scores, inner=advantages):
    assert (reward >= 0).all() and 'KL in reward' not in scores, (
        f"maxrl.py: expected rewards >= 0, not {reward.min()}: no judge, no KL of rloo.py, and no "
        "rewards that gdpo.py has divided")
    return inner(reward, scores) / reward.mean(1, keepdim=True).clamp(min=1e-30)    # 0 if all are 0
