# RLOO, arXiv:2402.14740: the mean of the others (2.3), the KL in the reward (eq. 3), no clip (3.2)
# python train_grpo.py config/grpo_think.py config/papers/rloo.py --max_iters=25
# verify: start and line to beat 47.2 %, policy 96.8, 95.1, 95.6 %; seeds 1, 2, 3, one thread
# mean_reward and dead_groups are of the sum after kl_beta times the KL of a text is taken off. Each
# reward, and an evaluation, are without it. A KL of a file behind this one is in the loss, too

adv_norm, loss_norm = 'none', 'constant'
clip_low, clip_high = 1.0, 1e9                  # no clip
kl_beta, entropy_coef = 0.05, 0.0               # the paper has 0.03 and 0.1

def advantages(reward, scores, inner=advantages):
    k = reward.size(1)
    return inner(reward, scores) * k / (k - 1)          # reward - mean of the others

@torch.no_grad()
def score(r, networks, weights, step, split, inner=score):
    scores = inner(r, networks, weights, step, split)
    if split == 'train':
        stats = token_stats(networks.policy, r, networks.reference)
        kl = r.per_text((stats.logp - stats.logp_ref).nan_to_num())             # (N,)
        scores['reward'] -= (kl_beta * kl).cpu().double().view(-1, r.k)
    return scores

def kl_penalty(stats, r):                       # none in the loss
    return torch.zeros_like(stats.kl)
