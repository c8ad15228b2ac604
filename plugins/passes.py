"""Fill blanks in several passes: a blank sees what earlier passes have filled. The order is one of
three rules, or learned: then outputs of the network decide in each pass what is filled now.

include() this file in a config. It is executed in the globals of train_grpo.py, and its
load_network(), complete() and stats_of() take the place of the functions there. `inner` is the old
function."""
import math

import torch.nn.functional as F
from torch import nn

from model import unique_rows

n_fill_steps = 5            # passes at most
fill_order = 'random'       # 'random' | 'left' to right | most 'confident' first | 'learned'
CHOICES['fill_order'] = ('random', 'left', 'confident', 'learned')
LOWEST['n_fill_steps'] = 1
MEASURED += ('n_fill_steps', 'fill_order')

# sizes: N texts, G of them have blanks | T places of a text | S views | C channels | M tokens


class Task(Task):
    kind = 'fill'               # also behind plugins/causal.py


# ---- act -----------------------------------------------------------------------------------------
@torch.no_grad()
def complete(policy, prompts, k, greedy=False):
    """Fill the blanks of B prompts k times, in up to n_fill_steps passes. Example: 7 _ _ _, k = 2,
    3 passes, a learned order (other orders never wait; numbers of views are arbitrary):

        turn  history[turn - 1]   seen_in  going  filled now
         1    7 _ _ _   7 _ _ _    0 0     0 1    text 0: place 2; text 1: places 1 and 3
         2    7 _ 4 _   7 5 _ 1    1 2     0 1    text 0 waits; text 1: place 2
         3    7 _ 4 _   7 5 3 1    1 3     0      text 0: 1 and 3, all that is left
        end   7 8 4 2   7 5 3 1

        turn     1 1 1 2 3 3            text_of  0 1 1 1 0 0
        place    2 1 3 2 1 3            token    4 5 1 3 8 2
        view_of  0 0 0 2 1 1            seen     000 000 000 022 011 011
    """
    is_open = prompts.blank.repeat_interleave(k, 0)                             # (N, T)
    texts = prompts.tokens.repeat_interleave(k, 0).masked_fill(is_open, policy.blank_id)
    n_blanks = is_open.sum(1, keepdim=True).clamp(min=1)                        # (N, 1)
    key = torch.rand(is_open.shape, device=is_open.device)      # low keys are filled first
    if fill_order == 'left':
        key = is_open.cumsum(1).float()
    plan = turns_of(key, is_open, n_blanks)     # (N, T) pass of each; for 'random' and 'left'
    history, table, filters = [], [], []
    for turn in range(1, n_fill_steps + 1):
        going = is_open.any(1).nonzero()[:, 0]  # (G,) the texts with blanks
        if len(going) == 0:
            break
        history.append(texts.clone())
        rows, inverse = unique_rows(texts[going])       # the network reads equal texts once
        x = policy.features(texts[going[rows]])                                 # (S, T, C)
        now = is_open[going]                                                    # (G, T)
        if turn < n_fill_steps:                 # the last pass fills what is left
            if fill_order == 'confident':
                # Confidence: the largest probability at a place. Ranks go on after the blanks that
                # are filled, so the surest are due now.
                surest = policy.logits(x).log_softmax(-1).amax(-1)[inverse]     # (G, T)
                now &= turns_of(-surest, now, n_blanks[going]) == turn
            elif fill_order == 'learned':
                scores = order_scores(policy, x)[inverse]                       # (G, T)
                now = decide(scores.masked_fill(~now, -torch.inf), greedy)
            else:
                now &= plan[going] == turn
        i, place = now.nonzero(as_tuple=True)
        text_of = going[i]
        token, allowed = sample(policy.logits(x[inverse[i], place]), 1, greedy)
        texts[text_of, place] = token[:, 0]
        is_open[text_of, place] = False
        table.append(torch.stack((text_of, place, token[:, 0], torch.full_like(place, turn))))
        filters.append(allowed)
    text_of, place, token, turn = torch.cat(table, 1)
    allowed = None if filters[0] is None else torch.cat(filters)
    before = torch.cat(history)                 # (turns * N, T)
    rows, inverse = unique_rows(before)         # equal texts are one view
    seen_in = inverse.view(-1, len(texts))      # (turns, N) row of the views
    view_of = seen_in[turn - 1, text_of]
    r = Rollout(prompts, k, texts, before[rows], text_of, place, token, view_of, turn, allowed)
    if fill_order != 'learned':
        return r
    # seen[m, p] is the view of pass p + 1 until token m is filled, and from there on view_of[m].
    passes = torch.arange(n_fill_steps, device=turn.device).minimum(turn[:, None] - 1)
    return Ordered(**vars(r), seen=seen_in[passes, text_of[:, None]])


def turns_of(key, is_open, n_blanks):
    """Return the pass that fills each open place (G, T), low keys first: 3 passes fill 5 blanks as
    2, 2, 1. Other places get a number without meaning. n_blanks (G, 1): blanks at the start."""
    # argsort twice gives each place its rank: keys .5 .9 .1 stand in order 2 0 1, so their ranks
    # are 1 2 0.
    rank = key.masked_fill(~is_open, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
    n_filled = n_blanks - is_open.sum(1, keepdim=True)
    n_passes = n_blanks.clamp(max=n_fill_steps)
    return 1 + (n_filled + rank) * n_passes // n_blanks


# ---- a learned order -----------------------------------------------------------------------------
ORDER_SPEED = 16            # scores move so many times as fast as other outputs


def load_network(path, device, inner=load_network):
    """Give the network of a learned order one more output: the score of filling a place now, with
    probability sigmoid(score). At first 3 of 100 blanks are left for the last pass. A step of AdamW
    has one size for all weights, so ORDER_SPEED makes scores move faster. Without it a low rate
    learned no order in time, and a high rate spoilt the tokens."""
    network, saved = inner(path, device)
    if fill_order == 'learned':
        network.order = nn.Linear(network.head.in_features, 1, device=device)
        nn.init.zeros_(network.order.weight)
        wait = 0.03 ** (1 / max(1, n_fill_steps - 1))     # so 3 % wait for the last pass
        nn.init.constant_(network.order.bias, math.log((1 - wait) / wait) / ORDER_SPEED)
        network.load_state_dict(saved['model'], strict=False)       # perhaps with an order
    return network, saved


def order_scores(network, x):
    """Return scores (...) of features (..., C), in float32 also under autocast."""
    with torch.autocast(x.device.type, enabled=False):
        return ORDER_SPEED * network.order(x.to(network.order.weight.dtype))[..., 0]


def decide(scores, greedy):
    """Return which places the policy fills now, of scores (G, T), -inf if a place is not open."""
    if greedy:                                  # what is likely, and at least the likeliest
        return (scores > 0) | (scores == scores.amax(1, keepdim=True))
    return torch.rand_like(scores) < scores.sigmoid()


@dataclass
class Ordered(Rollout):
    """A Rollout in a learned order. In each pass but the last one the policy decides for each open
    blank: wait, or fill it. The decisions about token m were made in the views seen[m, :turn[m]].
    From there on, seen[m] repeats view_of[m]."""
    seen: Tensor | None = None          # (M, n_fill_steps) rows of views
    COLUMNS = (*Rollout.COLUMNS, 'seen')

    def drop_unused_views(self):
        used, seen = self.seen.unique(return_inverse=True)
        return replace(self, views=self.views[used], view_of=seen[:, -1], seen=seen)


def stats_of(policy, x, r, reference=None, x_ref=None, inner=stats_of):
    """Add to the Stats of each token those of its decisions: to wait at its place, and then to fill
    it."""
    stats = inner(policy, x, r, reference, x_ref)
    if fill_order != 'learned':
        return stats

    def decisions(network, features):
        """Return the log-probabilities to fill and to wait, (M, n_fill_steps - 1, 2)."""
        scores = order_scores(network, features)[r.seen[:, :-1], r.place[:, None]]
        return F.logsigmoid(torch.stack((scores, -scores), -1))

    ours = decisions(policy, x)
    theirs = decisions(reference, x_ref) if reference else ours.detach()
    passes = torch.arange(1, n_fill_steps, device=x.device)     # in the last one nothing is decided
    is_decided = passes <= r.turn[:, None]                      # (M, n_fill_steps - 1)
    is_filled = passes == r.turn[:, None]
    logp, logp_ref = [torch.where(is_filled, *z.unbind(-1)) for z in (ours, theirs)]
    entropy = -(ours.exp() * ours).sum(-1)
    more = Stats(logp, logp_ref, divergence(ours, theirs), entropy)
    return Stats(*[values + (is_decided * extra).sum(1) for values, extra in zip(stats, more)])
