"""Sample from the likeliest ids alone. In each update, log-probabilities are renormalized over the
ids that were allowed when the token was drawn. (The exact KL and the entropy
are over all ids; k1 to k3, and the KL of rloo.py, are over the allowed ones.)

    python train_grpo.py config/grpo_config.py plugins/top.py --top_p=0.95

This file is executed in the globals of train_grpo.py, and wraps sample(), complete() and stats_of()
there. `inner` is the old function."""
import torch

top_k = 0                   # sample from the top_k likeliest ids; 0: from all
top_p = 1.0                 # sample from the fewest ids with this probability; 1: from all

# What each call of sample() in a complete() allowed. The calls come in the order of the table.
_drawn = []


def allowed_of(p):
    """Return which ids (n, V) of probabilities p (n, V) may be drawn: the top_k likeliest, and of
    these the fewest that have at least top_p of their sum."""
    falling, order = p.sort(descending=True)    # the largest first, and their ids
    if top_k:
        falling[:, top_k:] = 0
    allowed = falling > 0
    if top_p < 1:
        # An id stays if the likelier ones have less than top_p of the sum. So the likeliest stays.
        cdf = falling.cumsum(-1)
        allowed &= cdf - falling < top_p * cdf[:, -1:]
    return allowed.scatter(1, order, allowed)   # back in the order of the ids


def sample(logits, k=1, greedy=False, inner=sample):
    """Draw ids, and remember which ones were allowed."""
    allowed = allowed_of(log_probs(logits).exp())
    _drawn.append(allowed.repeat_interleave(k, 0))
    return inner(logits.masked_fill(~allowed, -torch.inf), k, greedy)


def complete(policy, prompts, k, greedy=False, inner=complete):
    """Give the table a column: the ids that were allowed for each token."""
    _drawn.clear()
    rollout = inner(policy, prompts, k, greedy)
    rollout.more['allowed'] = torch.cat(_drawn)         # (M, V)
    return rollout


def stats_of(policy, x, rollout, reference=None, x_ref=None, inner=stats_of):
    """Renormalize log-probabilities: subtract the log of the probability of all allowed ids."""
    def log_mass(network, features):
        """Return the log-probability (M,) that the network gives to all allowed ids."""
        logp = log_probs(network.logits(features))                              # (M, V)
        return logp.masked_fill(~rollout.more['allowed'], -torch.inf).logsumexp(1)

    stats = inner(policy, x, rollout, reference, x_ref)
    if reference:
        stats = stats._replace(logp_ref=stats.logp_ref - log_mass(reference, x_ref))
    return stats._replace(logp=stats.logp - log_mass(policy, x))
