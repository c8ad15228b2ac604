# forward: KL(reference || policy) of each place, exact. It is large where the policy gives up what
# the reference does, so the policy keeps all of it; KL(policy || reference) is large where the
# policy does what the reference does not. The tokens are the policy's (GKD, arXiv:2306.13649)


def divergence(logp, logp_ref):
    return (logp_ref.exp() * (logp_ref - logp)).sum(-1)
