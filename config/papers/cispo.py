# CISPO, arXiv:2506.13585, 3.1. PPO's clip silences a token whose probability has moved too far, and
# these are often the rare words at which a thought turns. CISPO keeps every token: the ratio
# becomes a plain weight of log p (eq. 4), and only this weight is clipped, from above (eq. 5). No
# KL.
#
#     python train_grpo.py config/grpo_think.py config/papers/cispo.py --batch_size=64 \
#         --mini_batches=4 --epochs=4 --max_iters=6 --warmup_iters=0
#
# verify 46.8 -> 98.7, 98.5, 98.9 %, with PPO's clip 97.5, 97.3, 96.3 % (seeds 1, 2, 3)
# In the log, clip_frac is the share of the tokens whose weight is cut.
#
# Left out: dynamic sampling (dapo.py has it), and the penalty of length.

clip_high = 0.28            # DAPO's; the paper does not give its number
loss_norm = 'token'
kl_beta = 0.0
entropy_coef = 0.0


def policy_loss(stats, rollout):
    ratio = (stats.logp.detach() - rollout.logp_old).exp()
    weight = ratio.clamp(max=1 + clip_high)                                     # eq. 5
    return -weight * rollout.advantage * stats.logp, (ratio > weight).float()   # eq. 4
