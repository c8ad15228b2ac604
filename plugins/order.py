"""Learn in which order blanks are filled: fill_order = 'learned'. The policy has one more output,
and decides in each pass which blanks it fills now and which ones wait. plugins/passes.py includes
this file.

Example: two completions of the prompt 7 _ _ _, three passes:

    pass    texts[0]  due         texts[1]  due
     1      7 _ _ _   . . x .     7 _ _ _   . x . x
     2      7 _ 4 _   . . . .     7 5 _ 1   . . x .     text 0 waits
     3      7 _ 4 _   . x . x     7 5 3 1               the last pass fills what is left

    views          text_of  0 1 1 1 0 0
    0  7 _ _ _     place    2 1 3 2 1 3
    1  7 _ 4 _     token    4 5 1 3 8 2
    2  7 5 _ 1     pass     1 1 1 2 3 3
                   view_of  0 0 0 2 1 1
                   seen     0 0 0 0 0 0  pass 1
                            0 0 0 2 1 1       2
                            0 0 0 2 1 1       3

`seen` are the views in which the policy decided to wait, or to fill the place of a token. After
that its view_of is repeated. Each decision is a part of what the policy did. So its log-probability
joins that of the token.

This file is executed in the globals of train_grpo.py; `inner` is the old function."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from model import unique_rows

# The scores of an order move so many times as fast as other outputs. A step of AdamW has one size
# for all weights: at a low rate no order was learned in time, and a high rate spoilt the tokens. A
# second rate would be cleaner, but each optimizer would have to know of this plugin.
ORDER_SPEED = 16

# sizes: N texts, G of them have blanks | T places of a text | C channels | M tokens


def load_network(path, device, inner=load_network):
    """Give the network of a learned order one more output: the score of filling a place now, with
    probability sigmoid(score). At first 3 of 100 blanks are left for the last pass."""
    network, saved = inner(path, device)
    if fill_order == 'learned':
        network.order = nn.Linear(network.head.in_features, 1, device=device)
        nn.init.zeros_(network.order.weight)
        wait = 0.03 ** (1 / max(1, n_fill_steps - 1))       # wait ** (n_fill_steps - 1) == 0.03
        nn.init.constant_(network.order.bias, math.log((1 - wait) / wait) / ORDER_SPEED)
        # All weights once more: a checkpoint may have an order, and inner() had no place for it.
        network.load_state_dict(saved['model'], strict=False)
    return network, saved


def order_scores(network, x):
    """Return scores (...) of features (..., C), in float32 also under autocast."""
    with torch.autocast(x.device.type, enabled=False):
        return ORDER_SPEED * network.order(x.to(network.order.weight.dtype))[..., 0]


def places_due(policy, x, is_open, key, n_blanks, number, greedy, inner=places_due):
    """Return which open places (G, T) pass `number` fills, by the scores of the policy."""
    if fill_order != 'learned':
        return inner(policy, x, is_open, key, n_blanks, number, greedy)
    if number == n_fill_steps:                  # the last pass fills what is left
        return is_open
    scores = order_scores(policy, x).masked_fill(~is_open, -torch.inf)                  # (G, T)
    if greedy:                                  # what is likely, and at least the likeliest
        return (scores > 0) | (scores == scores.amax(1, keepdim=True))
    # At random, although equal texts differ then: an order that is not tried is not learned.
    return torch.rand_like(scores) < scores.sigmoid()


def drop_unused_views(r, inner=drop_unused_views):
    """Return r with the views that its tokens have seen in each pass, as more['seen']."""
    if fill_order != 'learned':
        return inner(r)
    numbers = torch.arange(1, n_fill_steps + 1, device=r.place.device)[:, None]
    # A token of pass 2 has seen the views of passes 1 2 2 2 ...
    passes = numbers.minimum(r.more['pass'])                                # (n_fill_steps, M)
    is_blank = r.more['filled_in'] >= passes[..., None]                     # (n_fill_steps, M, T)
    views = r.texts[r.text_of].masked_fill(is_blank, r.prompts.task.tok.blank).flatten(0, 1)
    rows, inverse = unique_rows(views)
    seen = inverse.view_as(passes)              # as drawn above; in the table it is (M, ...)
    return replace(r, views=views[rows], view_of=seen[-1], more=r.more | {'seen': seen.T})


def stats_of(policy, x, r, reference=None, x_ref=None, inner=stats_of):
    """Add to the Stats of each token those of its decisions: to wait at its place, and then to fill
    it. The last pass decides nothing."""
    stats = inner(policy, x, r, reference, x_ref)
    if 'seen' not in r.more:
        return stats

    def decisions(network, features):
        """Return the log-probabilities to fill and to wait, (M, n_fill_steps - 1, 2)."""
        scores = order_scores(network, features)[r.more['seen'][:, :-1], r.place[:, None]]
        return F.logsigmoid(torch.stack((scores, -scores), -1))

    ours = decisions(policy, x)
    theirs = decisions(reference, x_ref) if reference else ours.detach()
    # A token of pass 3 has waited in 1 and 2, and was filled in 3. Then it decides nothing. Below
    # all tensors are (M, n_fill_steps - 1), but for pass_of, which is (M, 1).
    passes, pass_of = torch.arange(1, n_fill_steps, device=x.device), r.more['pass'][:, None]
    logp, logp_ref = [torch.where(passes == pass_of, *z.unbind(-1)) for z in (ours, theirs)]
    entropy = -(ours.exp() * ours).sum(-1)
    extra = Stats(logp, logp_ref, divergence(ours, theirs), entropy)
    return Stats(*[a + ((passes <= pass_of) * b).sum(1) for a, b in zip(stats, extra)])
