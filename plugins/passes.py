"""Fill blanks in several passes: a blank sees what earlier passes have filled. The order is one of
three rules, or learned: then the policy decides in each pass which blanks it fills now.

Example: two completions of the prompt 7 _ _ _, three passes, and a learned order. (A rule would
fill one blank in each pass.) Texts before each pass, and x where it fills a blank:

    turn    texts[0]  now         texts[1]  now         going
     1      7 _ _ _   . . x .     7 _ _ _   . x . x     0 1
     2      7 _ 4 _   . . . .     7 5 _ 1   . . x .     0 1     text 0 waits
     3      7 _ 4 _   . x . x     7 5 3 1               0       the last pass fills what is left
    end     7 8 4 2               7 5 3 1

Texts that are equal are one view. In the table each of the six tokens has a column:

    views          view_in             text_of  0 1 1 1 0 0
    0  7 _ _ _     0 0  turn 1         place    2 1 3 2 1 3
    1  7 _ 4 _     1 2       2         token    4 5 1 3 8 2
    2  7 5 _ 1     1 3       3         turn     1 1 1 2 3 3
    3  7 5 3 1  (no token reads it)    view_of  0 0 0 2 1 1
                                       seen     0 0 0 0 0 0  pass 1
                                                0 0 0 2 1 1       2
                                                0 0 0 2 1 1       3

view_in[turn - 1, j] is the view of texts[j] in a pass. So view_of[m], the view in which token m was
sampled, is view_in[turn[m] - 1, text_of[m]]. `seen` is there in a learned order only: the views in
which the policy decided to wait, or to fill the place of token m; then view_of[m] is repeated.

include() this file in a config, after plugins/hf.py and before files that wrap complete(). It is
executed in the globals of train_grpo.py, and its load_network(), complete() and stats_of() take the
place of the functions there. `inner` is the old function: Python evaluates a default before the
name gets its new meaning."""
import inspect
import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model import unique_rows

# Also from train_grpo.py: CHOICES, LOWEST, MEASURED, Rollout, Stats, Task, sample(), divergence()
assert 'inner' not in inspect.signature(complete).parameters, (
    "include plugins/passes.py before files that wrap complete(), such as config/papers/tis.py")

n_fill_steps = 5            # passes at most
fill_order = 'random'       # 'random'
                            # 'left': from left to right
                            # 'confident': first the blank whose likeliest token is likeliest
                            # 'learned': the policy decides for each blank whether it waits
CHOICES['fill_order'] = ('random', 'left', 'confident', 'learned')
LOWEST['n_fill_steps'] = 1
MEASURED += ('n_fill_steps', 'fill_order')      # an evaluation depends on them

# sizes: N texts, G of them have blanks | T places of a text | C channels | M tokens, n in a pass


class Task(Task):
    kind = 'fill'               # that of plugins/causal.py, if it comes before, is 'causal'


# ---- act -----------------------------------------------------------------------------------------
@torch.no_grad()
def complete(policy, prompts, k, greedy=False):
    """Fill the blanks of B prompts k times, in up to n_fill_steps passes."""
    is_open = prompts.blank.repeat_interleave(k, 0)         # (N, T) places that are still blank
    texts = prompts.tokens.repeat_interleave(k, 0).masked_fill(is_open, policy.blank_id)
    n_blanks = is_open.sum(1, keepdim=True)                                     # (N, 1)
    key = torch.rand(is_open.shape, device=is_open.device)      # (N, T) a rule fills low ones first
    if fill_order == 'left':
        key = torch.ones_like(key).cumsum(1)                    # 1 2 3 ...
    history = []                # texts before each pass
    table = []                  # what each pass fills
    filters = []                # which ids were allowed there
    for turn in range(1, n_fill_steps + 1):
        going = is_open.any(1).nonzero()[:, 0]  # (G,) numbers of the texts that have blanks
        if len(going) == 0:
            break
        history.append(texts.clone())
        # Each pass reads whole texts. That is slow, but no keys and values can be kept: each place
        # sees all others, also those that were filled since. At least equal texts are read once:
        # before[rows][inverse] equals before.
        before = texts[going]                                                   # (G, T)
        rows, inverse = unique_rows(before)
        x = policy.features(before[rows])[inverse]                              # (G, T, C)
        now = is_open[going]                    # (G, T) places that this pass fills
        if fill_order == 'confident':   # `now` and is_open have the same blanks, in the same order
            key[is_open] = -policy.logits(x[now]).log_softmax(-1).amax(-1)
        if fill_order != 'learned':
            now &= is_due(key, is_open, n_blanks, turn)[going]
        elif turn < n_fill_steps:               # the last pass fills what is left
            now = decide(order_scores(policy, x).masked_fill(~now, -torch.inf), greedy)
        i, place = now.nonzero(as_tuple=True)   # (n,) each; i is a row of `going`
        text_of = going[i]
        ids, allowed = sample(policy.logits(x[now]), 1, greedy)                 # (n, 1), (n, V)
        token = ids[:, 0]
        texts[text_of, place] = token
        is_open[text_of, place] = False
        table.append((text_of, place, token, torch.full_like(place, turn)))
        filters.append(allowed)
    text_of, place, token, turn = map(torch.cat, zip(*table))                   # (M,) each
    allowed = None if filters[0] is None else torch.cat(filters)
    history = torch.cat(history)                                                # (passes * N, T)
    rows, inverse = unique_rows(history)
    view_in = inverse.view(-1, len(texts))                                      # (passes, N)
    view_of = view_in[turn - 1, text_of]
    r = Rollout(prompts, k, texts, history[rows], text_of, place, token, view_of, turn, allowed)
    if fill_order != 'learned':
        return r
    # The passes that a token of turn 2 has seen are 1 2 2 2 ...
    passes = torch.arange(1, n_fill_steps + 1, device=turn.device).minimum(turn[:, None])
    return Ordered(**vars(r), seen=view_in[passes - 1, text_of[:, None]])


def is_due(key, is_open, n_blanks, turn):
    """Return which open places (N, T) pass `turn` fills, those with low keys first. n_blanks (N, 1)
    counts the blanks before pass 1: 3 passes fill 5 blanks as 2, 2, 1."""
    n_passes = n_blanks.clamp(1, n_fill_steps)
    # How many wait after this pass: of 5 blanks in 3 passes 3, 1, 0.
    n_wait = n_blanks * (n_passes - turn) // n_passes
    # argsort twice gives each place its rank: keys .5 .9 .1 stand in order 2 0 1, so their ranks
    # are 1 2 0. Places that are not open come first, so that the highest ranks wait.
    rank = key.masked_fill(~is_open, -torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
    return is_open & (rank < rank.size(1) - n_wait)


# ---- a learned order -----------------------------------------------------------------------------
# The scores of an order move so many times as fast as other outputs. A step of AdamW has one size
# for all weights: at a low rate no order was learned in time, and a high rate spoilt the tokens. A
# second rate would be cleaner, but each optimizer would have to know of this plugin.
ORDER_SPEED = 16


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


def decide(scores, greedy):
    """Return which places the policy fills now, of scores (G, T), -inf if a place is not open."""
    if greedy:                                  # what is likely, and at least the likeliest
        return (scores > 0) | (scores == scores.amax(1, keepdim=True))
    # At random, although that is slow (see complete()): an order that is not tried is not learned.
    return torch.rand_like(scores) < scores.sigmoid()


@dataclass
class Ordered(Rollout):
    """A Rollout in a learned order."""
    seen: Tensor | None = None          # (M, n_fill_steps) rows of views
    COLUMNS = (*Rollout.COLUMNS, 'seen')

    def drop_unused_views(self):
        used, seen = self.seen.unique(return_inverse=True)
        # The last view of a token in `seen` is always its view_of.
        return replace(self, views=self.views[used], view_of=seen[:, -1], seen=seen)


def stats_of(policy, x, r, reference=None, x_ref=None, inner=stats_of):
    """Add to the Stats of each token those of its decisions: to wait at its place, and then to fill
    it. The last pass decides nothing."""
    stats = inner(policy, x, r, reference, x_ref)
    if fill_order != 'learned':
        return stats

    def decisions(network, features):
        """Return the log-probabilities to fill and to wait, (M, n_fill_steps - 1, 2)."""
        scores = order_scores(network, features)[r.seen[:, :-1], r.place[:, None]]
        return F.logsigmoid(torch.stack((scores, -scores), -1))

    ours = decisions(policy, x)
    theirs = decisions(reference, x_ref) if reference else ours.detach()
    passes = torch.arange(1, n_fill_steps, device=x.device)
    is_decided = passes <= r.turn[:, None]                      # (M, n_fill_steps - 1)
    is_filled = passes == r.turn[:, None]
    logp, logp_ref = [torch.where(is_filled, z[..., 0], z[..., 1]) for z in (ours, theirs)]
    entropy = -(ours.exp() * ours).sum(-1)
    more = Stats(logp, logp_ref, divergence(ours, theirs), entropy)
    return Stats(*[values + (is_decided * extra).sum(1) for values, extra in zip(stats, more)])
