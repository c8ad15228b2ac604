"""Fill blanks in several passes: a blank sees what earlier passes have filled. (Papers on masked
diffusion models call a pass a denoising step.)

    python train_grpo.py config/grpo_passes.py

Example: two completions of the prompt 7 _ _ _ in three passes, from the left in text 0, and in
another order in text 1. Texts before each pass, and x where the pass fills a blank:

    pass    texts[0]  due         texts[1]  due
     1      7 _ _ _   . x . .     7 _ _ _   . . . x
     2      7 8 _ _   . . x .     7 _ _ 1   . x . .
     3      7 8 4 _   . . . x     7 5 _ 1   . . x .
    end     7 8 4 2               7 5 3 1

The table has a row for each of the six tokens. Its view is its text with blanks wherever its pass,
or a later one, has filled something. Texts that are equal then are one view:

    views          row  text_of  position  token  pass  view_of     filled_in: the pass of each
    0  7 _ _ _      0      0        1        8     1       0        position; 0: given
    1  7 8 _ _      1      1        3        1     1       0
    2  7 _ _ 1      2      0        2        4     2       1            0 1 2 3   of text 0
    3  7 8 4 _      3      1        1        5     2       2            0 2 3 1   of text 1
    4  7 5 _ 1      4      0        3        2     3       3
                    5      1        2        3     3       4

This file is executed in the globals of train_grpo.py. Its Task and complete() replace the ones
there."""
import torch

from plumbing.process import expect
from plumbing.sharing import unique_rows

expect('max_new_tokens' not in globals(), "plugins/passes.py fills blanks, and plugins/causal.py "
       "writes from left to right: leave one out, or the file that includes it")

n_fill_steps = 5            # passes at most
fill_order = 'random'       # 'random': drawn before the first pass
                            # 'left': from left to right
                            # 'confident': first the blank whose likeliest token is likeliest
                            # 'learned': the policy decides which blanks wait (plugins/order.py)

# Shapes in comments: G of the N texts still have blanks. n tokens are filled in a pass.


class Task(Task):
    """A Task for a network that fills, even after plugins/causal.py, whose Task is 'causal'."""
    kind = 'fill'


@torch.no_grad()
def complete(policy, prompts, k, greedy=False):
    """Fill the blanks of B prompts k times, in up to n_fill_steps passes."""
    is_open = prompts.blank.repeat_interleave(k, 0)     # (N, T) positions that are still blank
    texts = prompts.whole.repeat_interleave(k, 0).masked_fill(is_open, policy.blank_id)
    n_blanks = is_open.sum(1, keepdim=True)                                     # (N, 1)
    key = torch.rand(is_open.shape, device=is_open.device)      # (N, T) low ones are filled first
    if fill_order == 'left':
        key = torch.ones_like(key).cumsum(1)                    # 1 2 3 ...
    parts = []                                  # of the table, one for each pass
    for number in range(1, n_fill_steps + 1):
        going = is_open.any(1).nonzero()[:, 0]  # (G,) numbers of the texts that have blanks
        if len(going) == 0:
            break
        # Each pass reads whole texts. That is slow, but no keys and values can be kept: every
        # position sees all others, including those that were filled since. At least equal texts are
        # read once.
        before = texts[going]                                                   # (G, T)
        rows, inverse = unique_rows(before)
        x = policy.features(before[rows])[inverse]                              # (G, T, C)
        due = positions_due(policy, x, is_open[going], key[going], n_blanks[going], number, greedy)
        i, position = due.nonzero(as_tuple=True)        # (n,) each; i is a row of `going`
        text_of = going[i]
        token = sample(policy.logits(x[due]), 1, greedy)                        # (n, 1)
        texts[text_of, position] = token[:, 0]
        is_open[text_of, position] = False
        parts.append((text_of, position, torch.full_like(position, number)))
    text_of, position, pass_of = map(torch.cat, zip(*parts))                    # (M,) each
    pass_at = torch.zeros_like(texts)           # (N, T) the pass of each position; 0: given
    pass_at[text_of, position] = pass_of
    filled_in = pass_at[text_of]                                                # (M, T)
    views = texts[text_of].masked_fill(filled_in >= pass_of[:, None], policy.blank_id)
    rows, view_of = unique_rows(views)
    return Rollout(prompts, k, texts, views[rows], text_of, position, view_of,
                   more={'pass': pass_of, 'filled_in': filled_in})


def positions_due(policy, x, is_open, key, n_blanks, number, greedy):
    """Return which open positions (G, T) of texts with features x pass `number` fills, those with
    low keys first. n_blanks (G, 1) counts the blanks before pass 1: three passes fill five blanks
    as 2, 2, 1."""
    if fill_order == 'confident':
        key[is_open] = -policy.logits(x[is_open]).log_softmax(-1).amax(-1)
    n_passes = n_blanks.clamp(1, n_fill_steps)
    # How many wait after this pass: of 5 blanks in 3 passes 3, 1, 0.
    n_wait = n_blanks * (n_passes - number) // n_passes
    # argsort twice gives each position its rank: keys .5 .9 .1 stand in the order 2 0 1, so their
    # ranks are 1 2 0. Positions that are not open come first, so that the highest ranks wait.
    rank = key.masked_fill(~is_open, -torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
    return is_open & (rank < rank.size(1) - n_wait)


# Last, because they wrap functions of this file and of each other.
include('plugins/order.py')
include('plugins/skip.py')
