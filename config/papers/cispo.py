# CISPO, arXiv:2506.13585, 3.1: the weight of log p is clipped, so that every token learns
# left out: DAPO's dynamic sampling and penalty of length, and its head in float32 (which is so
# here).
# 16 updates of a step: --mini_batches=16 --gradient_accumulation_steps=16

adv_norm = 'std'
objective = 'cispo'
clip_low, clip_high = 0.2, 0.28     # the lower one is not used; the upper is DAPO's
loss_norm = 'token'
likelihood, draw_prompts = 'trajectory', 'random'
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0
TRL = {'loss_type': 'cispo', 'epsilon_high': lambda: 1 + clip_high}


def cispo(stats, logp_old, A, r):
    ratio = (stats.logp - logp_old).exp()
    clipped = ratio.clamp(max=1 + clip_high)                                    # eq. 5
    pg = -clipped.detach() * A * stats.logp                                           # eq. 4
    return pg, {'clip_frac': ratio > clipped, 'ratio_off': (ratio - 1).abs()}
