# Truncated importance sampling (F. Yao et al., "Your Efficient RL Framework Secretly Brings You
# Off-Policy RL Training", 2025): where the numbers of the sampler are not those of the learner, a
# token weighs as much as it was likelier for the learner, at most 2 (of verl and TRL)
# It stands behind gigpo.py, and behind the plugin that completes: passes.py or causal.py
# Here they differ by rounding, as one token after the other in bfloat16 does; or by an estimate of
# the likelihood: behind d1.py or unigrpo.py, and not diffucoder.py, whose weights do not sum to 1.
# Not for a learned order
# IcePop (arXiv:2510.18855, eq. 1 and 2) gives a weight outside of [0.5, 5] no token: 0, and not 2

_sampled = []               # of each complete() that runs: log-probabilities of its tokens, a list


def sample(logits, k=1, greedy=False, inner=sample):
    ids, allowed = inner(logits, k, greedy)
    assert _sampled, "tis.py: expected it behind the plugin that replaces complete()"
    _sampled[-1].append(log_probs(logits, allowed).gather(1, ids).flatten())
    return ids, allowed


def complete(policy, prompts, k, greedy=False, inner=complete):
    """Write into logp_old what the sampler said. The tokens of a Rollout are in its order."""
    _sampled.append([])
    r = inner(policy, prompts, k, greedy)
    assert type(r) is Rollout, "tis.py: expected fill_order to be a rule, not 'learned'"
    r.logp_old = torch.cat(_sampled.pop())
    return r


def collect(networks, task, step, draw=0, inner=collect):
    """Multiply the advantage of each token by its weight, and let learn() see the learner's
    numbers."""
    rollouts, scores = inner(networks, task, step, draw)
    for r in rollouts:
        assert 'masks' not in globals() or with_masks(r).weight.sum(1).max() <= 1, (
            "tis.py: expected masks whose weights sum to 1, not those of diffucoder.py")
        logp = log_probs_of(networks.policy, r)
        r.advantage = r.advantage * (logp - r.logp_old).exp().clamp(max=2.0)
        r.logp_old = logp
    return rollouts, scores
