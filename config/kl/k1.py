# k1: its mean is KL(policy || reference), and the mean of its gradient is 0. So in the loss it is
# noise; as a reward (`kl`) it is right. J. Schulman, "Approximating KL divergence", 2020

kl_type = 'k1'


def k1(stats, logp_old):
    return stats.logp_full - stats.logp_ref
