# k3: an estimate from the sampled ids (GRPO, arXiv:2402.03300, eq. 4; J. Schulman, "Approximating
# KL divergence", 2020). Its mean is KL(policy || reference), after top_k and top_p; the mean of its
# gradient is that of KL(reference || policy). Of several files with a KL, as grpo.py, the last acts


def kl_penalty(stats, r):
    gap = (stats.logp_ref - stats.logp).clamp(max=20.0)     # finite where the policy gives up an id
    return gap.expm1() - gap
