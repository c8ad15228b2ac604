# MaxRL, arXiv:2602.02710, algorithm 1: divided by the mean reward of the group, so a prompt that
# seldom succeeds counts more. One update a step, no KL. For rewards that are not negative, such as
# --rewards='{"verify": 1.0}'. It stands before other files that change advantages()

adv_norm = 'none'
loss_norm = 'constant'
kl_beta = 0.0
entropy_coef = 0.0

assert advantages is _original['advantages'], (
    f"maxrl.py: {advantages.__code__.co_filename} has changed advantages(): leave one of the two "
    "out, or put maxrl.py first, if the other one is not rloo.py or gdpo.py")


def advantages(reward, scores, inner=advantages):
    assert (reward >= 0).all() and 'KL in reward' not in scores, (
        """maxrl.py: expected rewards >= 0, such as --rewards='{"verify": 1.0}', with no KL of """
        f"rloo.py in them, and not divided by gdpo.py; the smallest is {reward.min():g}")
    return inner(reward, scores) / reward.mean(1, keepdim=True).clamp(min=1e-30)    # 0 if all are 0
