# GDPO, arXiv:2601.05242, eq. 4 to 7: each of several rewards is divided by its own std in the
# group, then their sum by that of the step. So no reward hides behind one that varies more
# It takes four updates of a step: --batch_size=16 --gradient_accumulation_steps=4 --mini_batches=4
# The KL that rloo.py has in the reward joins that sum as it is: its weight is kl_beta
# Left out: a reward that counts only where a harder one is reached (eq. 8)

adv_norm = 'batch'          # of the sum, eq. 6
loss_norm = 'sequence'


def advantages(reward, scores, inner=advantages):
    reward = -scores.get('KL in reward', torch.zeros_like(reward))
    for name, weight in rewards.items():
        x = scores[name]
        A = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-4)     # eq. 4
        reward += weight * A                                                    # eq. 7
    return inner(reward, scores)
