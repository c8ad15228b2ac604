# forward: KL(reference || policy) of each place, exact. It is large where the policy gives up what
# the reference does, so the policy keeps all of it. The tokens are the policy's (arXiv:2306.13649)
# It is the kl of the log. Of several files with a KL, as grpo.py, the last one acts in the loss


def divergence(logp, logp_ref):
    # The sum of p - p_ref is 0. With it, the gradient of equal distributions is exactly 0.
    return (logp_ref.exp() * (logp_ref - logp - 1) + logp.exp()).sum(-1)


def kl_penalty(stats, r):           # also behind an estimate
    return stats.kl
