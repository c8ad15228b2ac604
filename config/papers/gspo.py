# GSPO, arXiv:2507.18071, eq. 5 and 7: a text has one ratio, the geometric mean of those of its
# tokens, and a narrow clip (5.1)
# It takes four updates of a step: --batch_size=16 --gradient_accumulation_steps=4 --mini_batches=4
# It stands behind cispo.py, if this is there, too
# LUSPO (arXiv:2602.05261) is this with --loss_norm=constant --clip_low=2e-3 --clip_high=2.5e-3

clip_low = 3e-4
clip_high = 4e-4
loss_norm = 'sequence'

assert not objective.__code__.co_filename.endswith(('dppo.py', 'gmpo.py')), (
    "gspo.py: the objectives of dppo.py and gmpo.py need the ratio of each token: leave one out")


def objective(stats, r, inner=objective):
    length = r.per_text(torch.ones_like(r.advantage))[r.text_of]                              # (M,)
    gap = r.per_text(stats.logp - r.logp_old)[r.text_of] / length                     # eq. 7
    return inner(stats._replace(logp=r.logp_old + gap), r)                      # eq. 5
