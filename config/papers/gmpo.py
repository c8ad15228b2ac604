# GMPO, arXiv:2507.20673, eq. 4 and algorithm 1: one weight for a sequence, the geometric mean of
# its clipped ratios; the clip is one of log ratios, and wide
# eight updates of a step: --mini_batches=8 --gradient_accumulation_steps=8

adv_norm = 'std'
objective = 'gmpo'
clip_low, clip_high = 0.4, 0.4
loss_norm = 'sequence'
likelihood, draw_prompts = 'trajectory', 'random'
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0


def gmpo(stats, logp_old, A, r):
    log_ratio = stats.logp - logp_old
    good = log_ratio.clamp(max=clip_high)
    bad = log_ratio.clamp(min=-clip_low)
    clipped = torch.where(A > 0, good, bad)
    length = r.lengths.clamp(min=1)[:, None]                                    # (N, 1)
    mean = clipped.sum(1, keepdim=True) / length                                # (N, 1)
    pg = (-A * mean.exp()).expand_as(logp_old)
    distance = (log_ratio.exp() - 1).abs()
    return pg, {'clip_frac': clipped != log_ratio, 'ratio_off': distance}
