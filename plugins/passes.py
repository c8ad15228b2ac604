"""Fill blanks in several passes: a blank sees what the passes before filled. The order is fixed, or
learned: then the policy decides in each pass which blanks it fills now. include() this in a
config. (What is not imported here is of train_grpo.py; inner is the function that is replaced.)"""
import math

import torch.nn.functional as F
from torch import nn

from model import distinct

n_fill_steps = 5
fill_order = 'random'       # 'random' | 'left' to right | most 'confident' first | 'learned'
CHOICES['fill_order'] = ('random', 'left', 'confident', 'learned')
LOWEST['n_fill_steps'] = 1

ORDER_SPEED = 16            # times what the layer of the order gives


def load_network(path, device, inner=load_network):
    """Give a network one more output, the score of filling a place now: it is filled with
    probability sigmoid(score). At first the scores are a constant, with which 3 of 100 blanks are
    left for the last pass. They learn ORDER_SPEED times as fast as what the network knows: at the
    same speed the order came too slowly, or knowledge was lost."""
    network, tok, saved = inner(path, device)
    if fill_order == 'learned':
        assert n_fill_steps > 1, "a learned order decides nothing in one pass: n_fill_steps > 1"
        network.order = nn.Linear(network.head.in_features, 1, device=device)
        nn.init.zeros_(network.order.weight)
        wait = 0.03 ** (1 / (n_fill_steps - 1))             # probability to wait in one pass
        nn.init.constant_(network.order.bias, math.log((1 - wait) / wait) / ORDER_SPEED)
        for name in ('weight', 'bias'):
            if f'order.{name}' in saved['model']:
                getattr(network.order, name).data.copy_(saved['model'][f'order.{name}'])
    return network, tok, saved


def order_scores(network, x):
    """Return scores (...) of features (..., C), in float32 also under autocast."""
    with torch.autocast(x.device.type, enabled=False):
        return ORDER_SPEED * network.order(x.to(network.order.weight.dtype))[..., 0]


@dataclass
class Passes(Rollout):
    """A Rollout with the D decisions of a learned order, as columns (D,): of which text, about
    which blank, in which view, and whether it was filled now or not yet."""
    decided_n: Tensor | None = None     # (a field without a default cannot follow others)
    decided_t: Tensor | None = None
    decided_view: Tensor | None = None
    is_now: Tensor | None = None
    tables = Rollout.tables + [('decided_n', 'decided_view', 'decided_t', 'is_now')]


@torch.no_grad()
def complete(policy, prompts, k, greedy=False):
    """Fill the blanks of B prompts k times, in up to n_fill_steps passes."""
    assert not policy.causal, "this generator writes from left to right: not plugins/passes.py"
    is_open = prompts.blank.repeat_interleave(k, 0)                             # (N, T)
    sequences = prompts.tokens.repeat_interleave(k, 0).masked_fill(is_open, policy.blank_id)
    n_blanks = is_open.sum(1, keepdim=True)                                     # (N, 1)
    n_passes = n_blanks.clamp(1, n_fill_steps)  # that a text needs
    key = torch.rand(is_open.shape, device=is_open.device)      # low keys are filled first
    if fill_order == 'left':
        key = key.sort(1).values
    views, table, decisions, all_kept = [], [], [], []
    n_seen = 0                                  # views of earlier passes
    for i in range(n_fill_steps):
        # Texts with blanks go on. What they look like now goes through the network once.
        alive = is_open.any(1).nonzero()[:, 0]                                  # (A,)
        if len(alive) == 0:
            break
        example, view = distinct(sequences[alive])                              # (S,), (A,)
        views.append(sequences[alive[example]])
        x = policy(views[-1])                                                   # (S, T, C)
        left = is_open[alive]                                                   # (A, T)
        now = left
        if i == n_fill_steps - 1:
            pass                                # the last pass fills the rest
        elif fill_order == 'learned':
            scores = order_scores(policy, x)[view].masked_fill(~left, -torch.inf)
            now = torch.rand_like(scores) < scores.sigmoid()
            if greedy:                          # what is likely, and at least the likeliest
                now = left & ((scores > 0) | (scores == scores.amax(1, keepdim=True)))
            a, t = left.nonzero(as_tuple=True)
            decisions.append(torch.stack((alive[a], t, n_seen + view[a], now[a, t])))
        else:
            keys = key[alive]
            if fill_order == 'confident':       # before an id is drawn: no draw is thrown away
                keys = -policy.logits(x).log_softmax(-1).amax(-1)[view]
            # argsort twice gives each place its rank: keys .5 .9 .1 stand in order 2 0 1, so their
            # ranks are 1 2 0.
            rank = keys.masked_fill(~left, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
            # The last ones stay open: of 5 blanks in 3 passes 3 are left, then 1, then 0.
            n_left = (n_passes - 1 - i).clamp(min=0) * n_blanks // n_passes     # (N, 1)
            now = left & (rank < left.sum(1, keepdim=True) - n_left[alive])
        a, t = now.nonzero(as_tuple=True)
        n = alive[a]
        ids, kept = sample(policy.logits(x[view[a], t]), 1, greedy)
        sequences[n, t] = ids[:, 0]
        is_open[n, t] = False
        table.append(torch.stack((n, t, ids[:, 0], n_seen + view[a])))
        all_kept.append(kept)
        n_seen += len(example)
    views = torch.cat(views)
    example, same = distinct(views)             # a text that waits sees the same view again
    n, t, id, view = torch.cat(table, 1)
    kept = None if all_kept[0] is None else torch.cat(all_kept)
    r = Rollout(prompts, sequences, views[example], n, t, id, same[view], kept)
    if not decisions:
        return r
    n, t, view, is_now = torch.cat(decisions, 1)
    return Passes(**vars(r), decided_n=n, decided_t=t, decided_view=same[view],
                  is_now=is_now.bool())


def stats_of(policy, x, r, reference=None, x_ref=None, inner=stats_of):
    """Add the decisions of a learned order to the tokens that they are about."""
    stats = inner(policy, x, r, reference, x_ref)
    if not isinstance(r, Passes):
        return stats
    row = torch.empty_like(r.sequences)         # of the table; here a place is sampled once
    row[r.n, r.t] = torch.arange(len(r.n), device=x.device)
    row = row[r.decided_n, r.decided_t]                                         # (D,)

    def log_p(network, x):                      # (D, 2): to wait, to fill it now
        scores = order_scores(network, x[r.decided_view, r.decided_t])
        return torch.stack((F.logsigmoid(-scores), F.logsigmoid(scores)), 1)

    logp = log_p(policy, x)
    logp_ref = log_p(reference, x_ref) if reference else logp.detach()
    index = r.is_now.long()[:, None]
    more = (logp.gather(1, index)[:, 0], logp_ref.gather(1, index)[:, 0],
            divergence(logp, logp_ref), -(logp.exp() * logp).sum(1))
    return Stats(*[values.index_add(0, row, extra) for values, extra in zip(stats, more)])
