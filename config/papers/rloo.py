# RLOO, arXiv:2402.14740: the mean of the others (2.3), the KL in the reward (eq. 3), no clip (3.2)
# A KL of a file behind it (config/kl/, adaptive_kl.py, grpo.py) takes the place of the one here, in
# the reward

adv_norm = 'none'
clip_low = 1.0              # no clip
clip_high = 1e9
loss_norm = 'constant'
kl_beta = 0.05              # of the KL in the reward; the paper has 0.03 and 0.1
entropy_coef = 0.0

assert globals().setdefault('_others', 'rloo.py') == 'rloo.py', (
    f"{_others} and rloo.py: both have the mean of the others as the baseline, so leave one out")


def advantages(reward, scores, inner=advantages):
    k = reward.size(1)
    return inner(reward, scores) * k / (k - 1)          # reward - mean of the others


def kl_penalty(stats, r):
    return stats.logp - stats.logp_ref                  # eq. 3 has their sum over a text


@torch.no_grad()
def score(r, networks, names, step, split, inner=score):
    """Subtract kl_beta * KL of a text from its reward, in training alone."""
    scores = inner(r, networks, names, step, split)
    if split == 'train':
        stats = token_stats(networks.policy, r, networks.reference)
        kl = r.per_text(kl_penalty(stats, replace(r, logp_old=stats.logp)))     # (N,)
        # gdpo.py, which adds up the rewards by name, needs this one, too.
        scores['KL in reward'] = (kl_beta * kl).cpu().double().view(-1, r.k)
        scores['reward'] -= scores['KL in reward']
    return scores


def learn(networks, optimizers, rollouts, lr, inner=learn):
    """Learn without a KL in the loss."""
    global kl_penalty
    in_reward, kl_penalty = kl_penalty, lambda stats, r: torch.zeros_like(stats.kl)
    numbers = inner(networks, optimizers, rollouts, lr)
    kl_penalty = in_reward
    return numbers
