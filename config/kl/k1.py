# k1: its mean is KL(policy || reference), after top_k and top_p, and the mean of its gradient is 0.
# So in the loss it is noise; as a reward it is right. J. Schulman, "Approximating KL ...", 2020
# Of several files with a KL, as grpo.py, the last one acts


def kl_penalty(stats, r):
    return stats.logp - stats.logp_ref
