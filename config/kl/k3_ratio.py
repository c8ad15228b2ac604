# k3 times the ratio (DeepSeek-V3.2, arXiv:2512.02556, 3.1; arXiv:2506.09477): mean and gradient are
# those of KL(policy || reference), token by token, after an update, too


def kl_penalty(stats, r):
    # This is ratio * (exp(gap) - 1 - gap). The first product does not depend on the policy.
    ratio = (stats.logp - r.logp_old).exp()
    constant = (stats.logp_ref - r.logp_old).clamp(max=20.0).exp()
    return constant - ratio * (1 + stats.logp_ref - stats.logp)
