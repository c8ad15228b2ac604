"""Fill blanks in several passes: a blank sees what earlier passes have filled. The order is fixed,
or learned: then the policy decides in each pass which blanks it fills now.

include() this file in a config. It is executed in the globals of train_grpo.py: a function here
takes the place of the function of its name, which is `inner`."""
import math

from torch import nn
from torch.distributions import Bernoulli

from shared import unique_rows

n_fill_steps = 5
fill_order = 'random'       # 'random' | 'left' to right | most 'confident' first | 'learned'
CHOICES['fill_order'] = ('random', 'left', 'confident', 'learned')
LOWEST['n_fill_steps'] = 1
MEASURED += ('n_fill_steps', 'fill_order')

# sizes: N texts, G of them have blanks | T places of a text | S views | M tokens

ORDER_SPEED = 16            # the order learns so many times as fast as the rest


def load_network(path, device, inner=load_network):
    """Give the network of a learned order one more output: the score of filling a place now, with
    probability sigmoid(score). At first all scores are equal, and leave 3 of 100 blanks for the
    last pass. The scores learn ORDER_SPEED times as fast as the rest. At equal speed a low rate
    learned no order in time, and a high rate made the network forget."""
    network, saved = inner(path, device)
    if fill_order == 'learned':
        assert n_fill_steps > 1, "a learned order decides nothing in one pass: n_fill_steps > 1"
        network.order = nn.Linear(network.head.in_features, 1, device=device)
        nn.init.zeros_(network.order.weight)
        wait = 0.03 ** (1 / (n_fill_steps - 1))     # in one pass; 0.03 in all but the last one
        nn.init.constant_(network.order.bias, math.log((1 - wait) / wait) / ORDER_SPEED)
        for name, p in network.order.named_parameters():
            if f'order.{name}' in saved['model']:
                p.data.copy_(saved['model'][f'order.{name}'])
    return network, saved


def order_scores(network, x):
    """Return scores (...) of features (..., C), in float32 also under autocast."""
    with torch.autocast(x.device.type, enabled=False):
        return ORDER_SPEED * network.order(x.to(network.order.weight.dtype))[..., 0]


@dataclass
class Ordered(Rollout):
    """A Rollout in a learned order. In each pass the policy decides for each open blank: wait, or
    fill it. So a filled blank has had turn decisions, in the views seen[:turn]. The last pass fills
    the rest without a decision."""
    seen: Tensor | None = None          # (M, n_fill_steps) number of the view in each pass
    columns = (*Rollout.columns, 'seen')

    def drop_unused_views(self):
        used, seen = self.seen.unique(return_inverse=True)
        view = seen.gather(1, self.turn[:, None] - 1)[:, 0]
        return replace(self, views=self.views[used], view=view, seen=seen)


@torch.no_grad()
def complete(policy, prompts, k, greedy=False):
    """Fill the blanks of B prompts k times, in up to n_fill_steps passes."""
    assert not policy.causal, "this generator writes from left to right: not plugins/passes.py"
    is_open = prompts.blank.repeat_interleave(k, 0)                             # (N, T)
    texts = prompts.tokens.repeat_interleave(k, 0).masked_fill(is_open, policy.blank_id)
    n_blanks = is_open.sum(1, keepdim=True)                                     # (N, 1)
    key = torch.rand(is_open.shape, device=is_open.device)      # low keys are filled first
    if fill_order == 'left':
        key = key.sort(1).values                # increasing keys: from left to right
    views, table, filters = [], [], []
    seen = torch.zeros(len(texts), n_fill_steps, dtype=torch.long, device=key.device)
    n_views = 0
    for turn in range(1, n_fill_steps + 1):
        # Texts with blanks go on. The network reads equal ones once.
        going = is_open.any(1).nonzero()[:, 0]                                  # (G,)
        if len(going) == 0:
            break
        rows, view = unique_rows(texts[going])                                  # (S,), (G,)
        views.append(texts[going[rows]])
        seen[going, turn - 1:] = (n_views + view)[:, None]      # until a later pass overwrites it
        n_views += len(rows)
        x = policy.features(views[-1])                                          # (S, T, C)
        now = chosen_now(policy, x, view, is_open[going], key[going], n_blanks[going], turn, greedy)
        i, place = now.nonzero(as_tuple=True)
        text = going[i]
        token, allowed = sample(policy.logits(x[view[i], place]), 1, greedy)
        texts[text, place] = token[:, 0]
        is_open[text, place] = False
        table.append(torch.stack((text, place, token[:, 0], torch.full_like(text, turn))))
        filters.append(allowed)
    views = torch.cat(views)
    rows, inverse = unique_rows(views)          # a text that waits sees the same view again
    seen = inverse[seen]
    text, place, token, turn = torch.cat(table, 1)
    allowed = None if filters[0] is None else torch.cat(filters)
    r = Rollout(prompts, k, texts, views[rows], text, place, token, seen[text, turn - 1], turn,
                allowed)
    return Ordered(**vars(r), seen=seen[text]) if fill_order == 'learned' else r


def chosen_now(policy, x, view, is_open, key, n_blanks, turn, greedy):
    """Return which of the open places (G, T) of G texts are filled in this pass. x: features
    (S, T, C), of which text g has x[view[g]]. key (G, T): an order, low keys first."""
    if turn == n_fill_steps:
        return is_open
    if fill_order == 'learned':
        scores = order_scores(policy, x)[view].masked_fill(~is_open, -torch.inf)
        if greedy:                              # what is likely, and at least the likeliest
            return is_open & ((scores > 0) | (scores == scores.amax(1, keepdim=True)))
        return torch.rand_like(scores) < scores.sigmoid()
    if fill_order == 'confident':
        # Confidence is that of the distribution, so no token is drawn and thrown away.
        key = -policy.logits(x).log_softmax(-1).amax(-1)[view]
    # argsort twice gives each place its rank: keys .5 .9 .1 stand in order 2 0 1, so their ranks
    # are 1 2 0.
    rank = key.masked_fill(~is_open, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
    # The last ones stay open: of 5 blanks in 3 passes 3 are left, then 1, then 0.
    n_passes = n_blanks.clamp(max=n_fill_steps)                                 # (G, 1)
    n_left = (n_passes - turn).clamp(min=0) * n_blanks // n_passes
    return is_open & (rank < is_open.sum(1, keepdim=True) - n_left)


def stats_of(policy, x, r, reference=None, x_ref=None, inner=stats_of):
    """Add to each number of a token, also to logp, the decisions about its place: to wait, and at
    last to fill it."""
    stats = inner(policy, x, r, reference, x_ref)
    if fill_order != 'learned':
        return stats
    passes = torch.arange(1, n_fill_steps, device=x.device)     # in the last one nothing is decided
    is_decided = passes <= r.turn[:, None]                      # (M, passes)
    is_filled = (passes == r.turn[:, None]).to(stats.logp.dtype)

    def decisions(network, features):
        scores = order_scores(network, features)                # (S, T)
        return Bernoulli(logits=scores[r.seen[:, :-1], r.place[:, None]])

    def both(d):                                # log-probabilities to wait and to fill
        return torch.stack([d.log_prob(torch.full_like(is_filled, y)) for y in (0, 1)], -1)

    ours = decisions(policy, x)
    theirs = decisions(reference, x_ref) if reference else Bernoulli(logits=ours.logits.detach())
    more = Stats(ours.log_prob(is_filled), theirs.log_prob(is_filled),
                 divergence(both(ours), both(theirs)), ours.entropy())      # (M, passes) each
    return Stats(*[values + (is_decided * extra).sum(1) for values, extra in zip(stats, more)])
