"""Fill blanks in several passes: a blank sees what earlier passes have filled.

Example: two completions of the prompt 7 _ _ _ in three passes, from the left in text 0, and in
another order in text 1. Texts before each pass, and x where the pass fills a blank:

    pass    texts[0]  due         texts[1]  due
     1      7 _ _ _   . x . .     7 _ _ _   . . . x
     2      7 8 _ _   . . x .     7 _ _ 1   . x . .
     3      7 8 4 _   . . . x     7 5 _ 1   . . x .
    end     7 8 4 2               7 5 3 1

Texts that are equal are one view. In the table each of the six tokens has a column:

    views          view_in             text_of  0 1 0 1 0 1
    0  7 _ _ _     0 0  pass 1         place    1 3 2 1 3 2
    1  7 8 _ _     1 2       2         token    8 1 4 5 2 3
    2  7 _ _ 1     3 4       3         pass     1 1 2 2 3 3
    3  7 8 4 _                         view_of  0 0 1 2 3 4
    4  7 5 _ 1

view_in[pass - 1, j] is the view of texts[j] in a pass. So view_of[m], the view in which token m was
sampled, is view_in[pass[m] - 1, text_of[m]].

This file is executed in the globals of train_grpo.py, and its complete() takes the place of the
function there."""
import torch

from model import unique_rows

n_fill_steps = 5            # passes at most
fill_order = 'random'       # 'random'
                            # 'left': from left to right
                            # 'confident': first the blank whose likeliest token is likeliest
                            # 'learned': the policy decides which blanks wait (plugins/order.py)

# sizes: N texts, G of them have blanks | T places of a text | C channels | M tokens, n in a pass


class Task(Task):
    kind = 'fill'               # that of plugins/causal.py, if it is there, is 'causal'


@torch.no_grad()
def complete(policy, prompts, k, greedy=False):
    """Fill the blanks of B prompts k times, in up to n_fill_steps passes."""
    is_open = prompts.blank.repeat_interleave(k, 0)         # (N, T) places that are still blank
    texts = prompts.tokens.repeat_interleave(k, 0).masked_fill(is_open, policy.blank_id)
    n_blanks = is_open.sum(1, keepdim=True)                                     # (N, 1)
    key = torch.rand(is_open.shape, device=is_open.device)      # (N, T) low ones are filled first
    if fill_order == 'left':
        key = torch.ones_like(key).cumsum(1)                    # 1 2 3 ...
    history = []                # texts before each pass
    table = []                  # what each pass fills
    for number in range(1, n_fill_steps + 1):
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
        due = places_due(policy, x, is_open[going], key[going], n_blanks[going], number, greedy)
        i, place = due.nonzero(as_tuple=True)   # (n,) each; i is a row of `going`
        text_of = going[i]
        token = sample(policy.logits(x[due]), 1, greedy)[:, 0]                  # (n,)
        texts[text_of, place] = token
        is_open[text_of, place] = False
        table.append((text_of, place, token, torch.full_like(place, number)))
    return rollout_of(prompts, k, texts, torch.cat(history), *map(torch.cat, zip(*table)))


def places_due(policy, x, is_open, key, n_blanks, number, greedy):
    """Return which open places (G, T) of texts with features x pass `number` fills, those with low
    keys first. n_blanks (G, 1) counts the blanks before pass 1: 3 passes fill 5 blanks as 2, 2, 1.
    """
    if fill_order == 'confident':
        key[is_open] = -policy.logits(x[is_open]).log_softmax(-1).amax(-1)
    n_passes = n_blanks.clamp(1, n_fill_steps)
    # How many wait after this pass: of 5 blanks in 3 passes 3, 1, 0.
    n_wait = n_blanks * (n_passes - number) // n_passes
    # argsort twice gives each place its rank: keys .5 .9 .1 stand in order 2 0 1, so their ranks
    # are 1 2 0. Places that are not open come first, so that the highest ranks wait.
    rank = key.masked_fill(~is_open, -torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
    return is_open & (rank < rank.size(1) - n_wait)


def rollout_of(prompts, k, texts, history, text_of, place, token, number):
    """Return the Rollout of texts (N, T) whose M tokens were filled in passes `number` (M,).
    history (passes * N, T): the texts before each pass."""
    rows, inverse = unique_rows(history)
    view_in = inverse.view(-1, len(texts))                                      # (passes, N)
    return Rollout(prompts, k, texts, history[rows], text_of, place, token,
                   view_in[number - 1, text_of], more={'pass': number})


include('plugins/order.py')
