# k1: its mean is KL(policy || reference), and the mean of its gradient is 0. So in the loss it is
# noise; as a reward it is right. J. Schulman, "Approximating KL divergence", 2020


def kl_penalty(stats, r):
    return stats.logp - stats.logp_ref
