# RLOO (REINFORCE leave-one-out), arXiv:2402.14740. Compare a completion with the mean of the
# others, so that no completion is a part of its own baseline (2.3). The KL is not in the loss but
# in the reward: a text pays for what the reference would not have written (eq. 3). There is no clip
# (3.2).
#
#     python train_grpo.py config/grpo_think.py config/papers/rloo.py --max_iters=25
#
# verify 48.3 -> 95.5, 94.9, 95.3 %, +47.2, +46.6, +47.0 above its line (seeds 1, 2, 3)
# In training, kl_beta times the KL of a text is subtracted from its reward, so mean_reward and
# dead_groups include the KL. The single rewards and the evaluations do not.

adv_norm = 'none'
loss_norm = 'constant'
clip_low, clip_high = 1.0, 1e9      # no clip
kl_beta = 0.05                      # the paper takes 0.03 and 0.1
entropy_coef = 0.0


def advantages(reward, scores, inner=advantages):
    """Compare with the mean of the others. reward - mean of all is (k - 1) / k of that."""
    k = reward.size(1)
    return inner(reward, scores) * k / (k - 1)


@torch.no_grad()
def score(rollout, networks, rewards, step, split, inner=score):
    """In training, subtract kl_beta times an estimate of the KL of each text from its reward."""
    scores = inner(rollout, networks, rewards, step, split)
    if split == 'train':
        stats = token_stats(networks.policy, rollout, networks.reference)
        kl = rollout.per_text((stats.logp - stats.logp_ref).nan_to_num())       # (N,)
        scores['reward'] -= (kl_beta * kl).cpu().double().view(-1, rollout.k)
    return scores


def kl_penalty(stats):
    """Return 0 (M,): there is no KL in the loss."""
    return torch.zeros_like(stats.kl)
