# TIS (F. Yao, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025): a
# token weighs as it is likelier for learner than sampler, 2 at most. (Not for a learned order.) In
# old.py the reference samples, and the policy learns:
# echo "def collect(n, *x, inner=collect): return inner(type(n)(policy=n.reference), *x)" > old.py
# python train_grpo.py config/grpo_think.py old.py config/papers/tis.py --reference=generator \
#     --max_iters=25
# verify: start, line 47.2 %, policy 91.9, 89.0, 87.4; seeds 1, 2, 3 (without: 86.2, 82.2, 84.8)

_logp = []                  # of each call of sample() in a complete(): of the ids that it drew


def sample(logits, k=1, greedy=False, inner=sample):
    ids = inner(logits, k, greedy)
    if 'top_k' in globals():                    # plugins/top.py draws from some ids only
        logits = logits.masked_fill(~allowed_of(log_probs(logits).exp()), -torch.inf)
    _logp.append(log_probs(logits).gather(1, ids).flatten())
    return ids


def complete(policy, prompts, k, greedy=False, inner=complete):
    """Give the table a column: log p of each token, as the sampler computed it."""
    _logp.clear()
    rollout = inner(policy, prompts, k, greedy)
    rollout.more['logp_sampler'] = torch.cat(_logp)     # (M,)
    return rollout


def policy_loss(stats, rollout, inner=policy_loss):
    """Weigh each token by p of the learner / p of the sampler, at most 2."""
    weight = (rollout.logp_old - rollout.more['logp_sampler']).exp().clamp(max=2.0)     # (M,)
    return inner(stats, replace(rollout, advantage=weight * rollout.advantage))
