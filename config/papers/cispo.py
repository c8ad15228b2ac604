# CISPO, arXiv:2506.13585, 3.1, eq. 4 and 5: the ratio is a weight of log p, clipped from above, so
# every token learns; no KL
# python train_grpo.py config/grpo_think.py config/papers/cispo.py --batch_size=64 \
#     --mini_batches=4 --epochs=4 --max_iters=6 --warmup_iters=0
# verify: start and line to beat 45.8 %, policy 98.9, 99.2, 99.5 %; seeds 1, 2, 3, one thread (with
# PPO's clip, without this file, 96.4, 97.5, 95.8 %)
# clip_frac of the log is the share of the tokens whose weight is cut, and loss is that of log p
# Left out: dynamic sampling, which dapo.py adds, and the penalty of length

clip_high = 0.28            # its number is not in the paper; this is DAPO's
loss_norm = 'token'
kl_beta = 0.0
entropy_coef = 0.0


def policy_loss(stats, rollout):
    ratio = (stats.logp.detach() - rollout.logp_old).exp()
    weight = ratio.clamp(max=1 + clip_high)                                     # eq. 5
    return -weight * rollout.advantage * stats.logp, (ratio > weight).float()   # eq. 4
