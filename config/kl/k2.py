# k2: its mean is not the KL, but the mean of its gradient is that of KL(policy || reference),
# before the first update of a step. J. Schulman, "Approximating KL divergence", 2020

kl_type = 'k2'


def k2(stats, logp_old):
    return 0.5 * (stats.logp_ref - stats.logp_full).square()
