"""Learn in which order blanks are filled: fill_order = 'learned'. The policy has one more output,
and decides in each pass which blanks it fills now and which ones wait. plugins/passes.py includes
this file.

    python train_grpo.py config/grpo_order.py

Example: two completions of the prompt 7 _ _ _, three passes:

    pass    texts[0]  due         texts[1]  due
     1      7 _ _ _   . . x .     7 _ _ _   . x . x
     2      7 _ 4 _   . . . .     7 5 _ 1   . . x .     text 0 waits
     3      7 _ 4 _   . x . x     7 5 3 1               the last pass fills what is left

To wait is a decision, too. So the log-probability of a token is the sum of its own and of the
decisions about its position, and `seen` has the views in which they were made, one for each pass.
After a position is filled, its view is repeated:

    views          row  text_of  position  token  pass  view_of     seen in pass 1 2 3
    0  7 _ _ _      0      0        2        4     1       0             0 0 0
    1  7 _ 4 _      1      1        1        5     1       0             0 0 0
    2  7 5 _ 1      2      1        3        1     1       0             0 0 0
                    3      1        2        3     2       2             0 2 2
                    4      0        1        8     3       1             0 1 1
                    5      0        3        2     3       1             0 1 1

This file is executed in the globals of train_grpo.py; `inner` is the old function."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from plumbing.process import expect
from plumbing.sharing import unique_rows

expect('n_fill_steps' in globals(), "plugins/order.py is a part of plugins/passes.py: take that")

# The scores of an order change ORDER_SPEED times as fast as other outputs. A step of AdamW has one
# size for all weights: at a low rate no order was learned in time, and a high rate spoilt the
# tokens. A second rate would be cleaner, but each optimizer would have to know of this plugin.
ORDER_SPEED = 16


def load_network(path, device, inner=load_network):
    """Give the network of a learned order one more output: the score of filling a position now,
    with probability sigmoid(score). At first 3 of 100 blanks are left for the last pass."""
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
    """Return the scores (...) of features (..., C)."""
    return ORDER_SPEED * network.order(x.to(network.order.weight.dtype))[..., 0]


def positions_due(policy, x, is_open, key, n_blanks, number, greedy, inner=positions_due):
    """Return which open positions (G, T) pass `number` fills, by the scores of the policy."""
    if fill_order != 'learned':
        return inner(policy, x, is_open, key, n_blanks, number, greedy)
    if number == n_fill_steps:                  # the last pass fills what is left
        return is_open
    scores = order_scores(policy, x).masked_fill(~is_open, -torch.inf)                  # (G, T)
    if greedy:                                  # what is likely, and at least the likeliest
        return (scores > 0) | (scores == scores.amax(1, keepdim=True))
    # At random, although equal texts differ then: an order that is not tried is not learned.
    return torch.rand_like(scores) < scores.sigmoid()


def with_seen(rollout):
    """Return a Rollout with the views in which each position was decided about, more['seen']
    (M, n_fill_steps)."""
    pass_of, filled_in = rollout.more['pass'], rollout.more['filled_in']    # (M,), (M, T)
    numbers = torch.arange(1, n_fill_steps + 1, device=pass_of.device)
    passes = numbers.minimum(pass_of[:, None])          # (M, n_fill_steps), of pass 2: 1 2 2 2 ...
    is_blank = filled_in[:, None] >= passes[..., None]                  # (M, n_fill_steps, T)
    texts = rollout.texts[rollout.text_of][:, None]                     # (M, 1, T)
    views = texts.masked_fill(is_blank, rollout.prompts.task.tok.blank).flatten(0, 1)
    rows, inverse = unique_rows(views)
    seen = inverse.view_as(passes)
    return replace(rollout, views=views[rows], view_of=seen[:, -1], more=rollout.more | {
        'seen': seen})


def token_stats(policy, rollout, reference=None, inner=token_stats):
    """Add to the Stats of each token the Stats of its decisions: to wait in some passes, and then
    to be filled. The last pass decides nothing."""
    if fill_order != 'learned':
        return inner(policy, rollout, reference)
    rollout = with_seen(rollout)
    x = policy.features(rollout.views)                                  # (views, T, C)
    x_ref = None
    if reference:
        with torch.no_grad():
            x_ref = reference.features(rollout.views)
    where = rollout.view_of, rollout.position
    stats = stats_of(policy, x[where], rollout, reference, x_ref[where] if reference else None)

    def decisions(network, features):
        """Return the log-probabilities to fill and to wait, (M, n_fill_steps - 1, 2)."""
        at = rollout.more['seen'][:, :-1], rollout.position[:, None]
        scores = order_scores(network, features)[at]
        return F.logsigmoid(torch.stack((scores, -scores), -1))

    # A token of pass 3 has waited in 1 and 2, and was filled in 3. After that nothing is decided
    # about its position. All tensors below are (M, n_fill_steps - 1), except pass_of, (M, 1).
    passes = torch.arange(1, n_fill_steps, device=x.device)
    pass_of = rollout.more['pass'][:, None]
    ours = decisions(policy, x)
    logp = torch.where(passes == pass_of, ours[..., 0], ours[..., 1])
    logp_ref = kl = torch.full_like(logp, torch.nan)            # without a reference
    if reference:
        theirs = decisions(reference, x_ref)
        logp_ref = torch.where(passes == pass_of, theirs[..., 0], theirs[..., 1])
        kl = divergence(ours, theirs)
    entropy = -(ours.exp() * ours).sum(-1)
    is_decided = passes <= pass_of
    return Stats(*[a + b.masked_fill(~is_decided, 0).sum(1)
                   for a, b in zip(stats, (logp, logp_ref, kl, entropy))])
