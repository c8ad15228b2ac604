"""Sample from the likeliest ids alone. The log-probability of a token is that among the ids that
were allowed when it was drawn, in each update. (KL and entropy are over all ids.)

    python train_grpo.py config/grpo_config.py plugins/top.py --top_p=0.95

This file is executed in the globals of train_grpo.py, and wraps sample(), complete() and stats_of()
there. `inner` is the old function."""
import torch

top_k = 0                   # sample from the top_k likeliest ids; 0: from all
top_p = 1.0                 # sample from the fewest ids with this probability; 1: from all

_drawn = []                 # of each call of sample() in a complete() which ids it allowed; such
                            # calls come in the order of the table


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
    allowed = allowed_of(log_probs(logits).exp())
    _drawn.append(allowed.repeat_interleave(k, 0))
    return inner(logits.masked_fill(~allowed, -torch.inf), k, greedy)


def complete(policy, prompts, k, greedy=False, inner=complete):
    _drawn.clear()
    r = inner(policy, prompts, k, greedy)
    r.more['allowed'] = torch.cat(_drawn)       # (M, V)
    return r


def stats_of(policy, x, r, reference=None, x_ref=None, inner=stats_of):
    def log_mass(network, features):
        """Return the log-probability (M,) that the network gives to all allowed ids."""
        logp = log_probs(network.logits(features[r.view_of, r.place]))          # (M, V)
        return logp.masked_fill(~r.more['allowed'], -torch.inf).logsumexp(1)

    stats = inner(policy, x, r, reference, x_ref)
    if reference:
        stats = stats._replace(logp_ref=stats.logp_ref - log_mass(reference, x_ref))
    return stats._replace(logp=stats.logp - log_mass(policy, x))
