# DPPO, arXiv:2602.04879, eq. 11 to 13: a token no longer learns when its probability has moved by
# more than 0.15, not when the ratio has moved by 20 %. A clip of the ratio forbids 0.001 -> 0.002
# and allows 0.99 -> 0.8
# It takes eight updates of a step: --batch_size=8 --gradient_accumulation_steps=8 --mini_batches=8
# and a learning_rate that is so many times smaller
# It stands before forks.py. exp(logp) must be the probability of a token: no learned order, and no
# estimate of the likelihood
# Left out: the divergence of the likeliest ids, instead of that of the sampled one

adv_norm = 'none'
clip_low = 0.15             # of the probability
clip_high = 0.15
loss_norm = 'constant'
kl_beta = 0.0
entropy_coef = 0.0

assert objective is _original['objective'], (
    "dppo.py: its objective() replaces that of a file before it: put it first, or leave one out")


def objective(stats, r):
    assert type(r) is Rollout, (
        f"dppo.py: {type(r).__name__}: exp(logp) must be the probability of a token: expected no "
        "learned order, and no masks")
    logp = stats.logp.detach()
    gap = logp.exp() - r.logp_old.exp()                                         # eq. 13, signed
    is_far = torch.where(r.advantage > 0, gap > clip_high, gap < -clip_low)             # eq. 12
    weight = (logp - r.logp_old).exp().clamp(max=20.0) * ~is_far
    return -weight * r.advantage * stats.logp, is_far.float()           # eq. 11, of ratios up to 20
