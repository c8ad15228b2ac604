# forward: KL(reference || policy) of each token's distribution, exact. It is large where the policy
# gives up what the reference does, so the policy keeps all of it; KL(policy || reference), 'exact',
# is large where the policy does what the reference does not. The tokens are the policy's, so it
# teaches a student only where the student comes (GKD, arXiv:2306.13649)

kl_type = 'forward'


def forward(stats, logp_old):
    return stats.forward_kl
