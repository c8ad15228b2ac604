# symmetric: the mean of KL(policy || reference) and KL(reference || policy), half of Jeffreys'
# divergence. The policy keeps what the reference does, and adds nothing that the reference does not
# do


def divergence(logp, logp_ref):
    return 0.5 * ((logp.exp() - logp_ref.exp()) * (logp - logp_ref)).sum(-1)


def kl_penalty(stats, r):           # also behind an estimate
    return stats.kl
