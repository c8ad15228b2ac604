# k3 times the ratio (DeepSeek-V3.2, arXiv:2512.02556, 3.1; arXiv:2506.09477): mean and gradient are
# those of KL(policy || reference), token by token, after an update, too

kl_type = 'k3_ratio'
TRL = {'use_bias_correction_kl': True}


def k3_ratio(stats, logp_old):
    return (stats.logp - logp_old).exp() * k3(stats.logp_full, stats.logp_ref)
