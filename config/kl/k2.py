# k2: its mean is not the KL, but the mean of its gradient is that of KL(policy || reference),
# before the first update of a step. J. Schulman, "Approximating KL divergence", 2020
# Of several files with a KL, as grpo.py, the last one acts


def kl_penalty(stats, r):
    return 0.5 * (stats.logp_ref - stats.logp).square()
