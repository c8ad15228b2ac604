# DPPO, arXiv:2602.04879, eq. 11 to 13: a token stops to learn when its probability has moved by
# more than 0.15 since it was sampled, not when the ratio has moved by 20 %. A clip of the ratio
# forbids 0.001 -> 0.002 and allows 0.99 -> 0.8. The weight is the ratio, at most 20
# its recipe takes eight updates of a step: --mini_batches=8 --gradient_accumulation_steps=8
# for exact likelihoods and fixed orders: else exp(logp) is no probability of a token

adv_norm = 'none'
objective = 'dppo'
clip_low, clip_high = 0.15, 0.15        # of the probability
loss_norm = 'constant'
likelihood, draw_prompts = 'trajectory', 'random'
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0


def dppo(stats, logp_old, A, r):
    ratio = (stats.logp - r.logp_sampled).exp()
    gap = stats.logp.exp() - r.logp_sampled.exp()                     # eq. 13, with its sign
    is_far = torch.where(A > 0, gap > clip_high, gap < -clip_low)               # eq. 12
    weight = ratio.detach().clamp(max=20.0)                     # so the gradient is that of eq. 11
    pg = -weight * A * stats.logp * ~is_far
    distance = (ratio - 1).abs()
    return pg, {'clip_frac': is_far, 'ratio_off': distance}
