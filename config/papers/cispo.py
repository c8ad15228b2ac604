# CISPO, arXiv:2506.13585, 3.1, eq. 4 and 5: the ratio is a weight of log p, clipped from above, so
# every token learns; no KL
# It takes 16 updates of a step: --batch_size=4 --gradient_accumulation_steps=16 --mini_batches=16
# and a learning_rate that is so many times smaller
# It stands before forks.py, and before gspo.py, whose ratio of a text it then weighs
# Left out: dynamic sampling, which dapo.py before it adds, and the penalty of length

clip_high = 0.28            # its number is not in the paper; this is DAPO's
loss_norm = 'token'
kl_beta = 0.0
entropy_coef = 0.0

assert objective is _original['objective'], (
    "cispo.py: its objective() replaces that of a file before it: put it first, or leave one out")


def objective(stats, r):
    ratio = (stats.logp.detach() - r.logp_old).exp()
    weight = ratio.clamp(max=1 + clip_high)                                     # eq. 5
    return -weight * r.advantage * stats.logp, (ratio > weight).float()                 # eq. 4
