# TIS, truncated importance sampling (F. Yao, "Your Efficient RL Framework Secretly Brings You
# Off-Policy RL Training", 2025). Large systems sample with one program and learn with another,
# whose probabilities are slightly different. So the tokens come from another policy than the one
# that learns. TIS weighs each token by p of the learner / p of the sampler, truncated at 2.
#
# Here one program does both, so config/off_policy.py makes them differ: the reference samples. The
# second command shows what happens without the weights.
#
#     python train_grpo.py config/grpo_think.py config/off_policy.py config/papers/tis.py \
#         --reference=generator --max_iters=25
#     python train_grpo.py config/grpo_think.py config/off_policy.py --reference=generator \
#         --max_iters=25
#
# verify 48.3 -> 82.3 to 90.2, mean 87.9 %; without tis.py 84.7 to 88.5, mean 86.7 % (seeds 1 to 8).
# The difference, 1.2 +- 0.7, can be chance. (An earlier version had 5 points, with three seeds.)
# Not for fill_order = 'learned', whose decisions are not drawn by sample().

_logp = []                  # log p of the drawn ids, from each call of sample()


def sample(logits, k=1, greedy=False, inner=sample):
    ids = inner(logits, k, greedy)
    if 'top_k' in globals():                    # plugins/top.py draws from some ids only
        logits = logits.masked_fill(~allowed_of(log_probs(logits).exp()), -torch.inf)
    _logp.append(log_probs(logits).gather(1, ids).flatten())
    return ids


def complete(policy, prompts, k, greedy=False, inner=complete):
    """Add a column to the table: log p of each token by the sampler."""
    _logp.clear()
    rollout = inner(policy, prompts, k, greedy)
    rollout.more['logp_sampler'] = torch.cat(_logp)     # (M,)
    return rollout


def policy_loss(stats, rollout, inner=policy_loss):
    """Weigh each token by p of the learner / p of the sampler, truncated at 2."""
    weight = (rollout.logp_old - rollout.more['logp_sampler']).exp().clamp(max=2.0)     # (M,)
    return inner(stats, replace(rollout, advantage=weight * rollout.advantage))
