# symmetric: the mean of KL(policy || reference) and KL(reference || policy), half of Jeffreys'
# divergence. It keeps what the reference does, and adds nothing that the reference does not do

kl_type = 'symmetric'


def symmetric(stats, logp_old):
    return 0.5 * (stats.kl + stats.forward_kl)
