# RLOO, arXiv:2402.14740: the mean of the others (2.3), the KL in the reward (eq. 3), no clip (3.2)

adv_norm = 'none'
clip_low = 1.0              # no clip
clip_high = 1e9
loss_norm = 'constant'
kl_beta = 0.05              # of the KL in the reward; the paper has 0.03 and 0.1
entropy_coef = 0.0


def advantages(reward, scores, inner=advantages):
    k = reward.size(1)
    return inner(reward, scores) * k / (k - 1)          # reward - mean of the others


@torch.no_grad()
def score(r, networks, names, step, split, inner=score):
    """Subtract kl_beta * log(policy / reference) of a text from its reward, in training alone."""
    scores = inner(r, networks, names, step, split)
    if split == 'train':
        stats = token_stats(networks.policy, r, networks.reference)
        log_ratio = r.per_text(stats.logp - stats.logp_ref)                     # (N,)
        scores['reward'] -= kl_beta * log_ratio.view_as(scores['reward']).cpu()
    return scores


def kl_penalty(stats, r):
    return torch.zeros_like(stats.kl)
