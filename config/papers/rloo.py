# RLOO, arXiv:2402.14740: the mean of the others (2.3), the KL in the reward (eq. 3), no clip (3.2)
# python train_grpo.py config/grpo_think.py config/papers/rloo.py --max_iters=25
# verify: start and line to beat 47.2 %, policy 96.8, 95.1, 95.6 %, kl of the last ten steps
# 0.21, 0.20, 0.20; seeds 1, 2, 3, one thread (without its KL 96.0, 96.4, 94.9; 0.26, 0.25, 0.26)
# The log has the KL of a text as mean_log_ratio. mean_reward is the sum, after this KL was taken
# off, so a group of equal rewards is not among dead_groups, and dapo.py keeps it. Evaluations have
# no KL, and their goal is `reward`. --rewards stands before this file: behind it, it takes the KL

rewards = rewards | {'log_ratio': -0.05}        # the paper has 0.03 and 0.1
reference = reference or 'generator'
adv_norm, loss_norm = 'none', 'constant'
clip_low, clip_high = 1.0, 1e9                  # no clip
kl_beta = entropy_coef = 0.0


@torch.no_grad()
def log_ratio(r, networks, split):
    stats = token_stats(networks.policy, r, networks.reference)
    return (split == 'train') * r.per_text(stats.logp - stats.logp_ref)


def advantages(reward, scores, inner=advantages):
    k = reward.size(1)
    return inner(reward, scores) * k / (k - 1)          # reward - mean of the others
