# GMPO, arXiv:2507.20673, eq. 4 and algorithm 1: the weight of a text is the geometric mean of the
# ratios of its tokens, each of which is clipped, in a wide range; no KL
# It takes eight updates of a step: --batch_size=8 --gradient_accumulation_steps=8 --mini_batches=8
# and a learning_rate that is so many times smaller
# It stands before forks.py

clip_low = 0.4              # of the log ratio
clip_high = 0.4
loss_norm = 'sequence'
kl_beta = 0.0
entropy_coef = 0.0

assert objective is _original['objective'], (
    "gmpo.py: its objective() replaces that of a file before it: put it first, or leave one out")


def objective(stats, r):
    gap = stats.logp - r.logp_old
    clipped = torch.where(r.advantage > 0, gap.clamp(max=clip_high), gap.clamp(min=-clip_low))
    length = r.per_text(torch.ones_like(gap))[r.text_of]                              # (M,)
    ratio = (r.per_text(clipped)[r.text_of] / length).exp()
    return -ratio * r.advantage, (clipped != gap).float()
