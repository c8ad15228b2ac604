# GSPO, arXiv:2507.18071, eq. 5 to 7, and 5.1: one ratio for a sequence, and a narrow clip. It acts
# with several updates of a step, there four: --mini_batches=4 --gradient_accumulation_steps=4
# LUSPO (arXiv:2602.05261) is this with --loss_norm=constant --clip_low=2e-3 --clip_high=2.5e-3

adv_norm = 'std'
objective = 'gspo'
clip_low, clip_high = 3e-4, 4e-4
loss_norm = 'sequence'
likelihood, draw_prompts = 'trajectory', 'random'
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0
TRL = {'importance_sampling_level': 'sequence'}


def gspo(stats, logp_old, A, r):
    length = r.lengths.clamp(min=1)[:, None]                                    # (N, 1)
    log_ratio = (stats.logp - logp_old).sum(1, keepdim=True) / length
    ratio = log_ratio.exp().expand_as(logp_old)                                     # eq. 7
    gain = ratio * A
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * A                      # eq. 5
    pg = -torch.min(gain, clipped)
    distance = (ratio - 1).abs()
    return pg, {'clip_frac': clipped < gain, 'ratio_off': distance}
