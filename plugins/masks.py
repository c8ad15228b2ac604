"""Estimate log-probabilities of tokens, to compare with papers. Ours are exact, because a Rollout
keeps the views in which its tokens were sampled. Many papers on masked diffusion models keep no
views. They blank places of the finished text, ask the network for the tokens there, and take a
weighted sum over several such masks (docs/masked-diffusion.md says what that costs).

Example: after a 7 the policy wrote a 4, token 0, and a 9, token 1. x is blank:

    texts    mask   is_blank   view     weight[0]  weight[1]
    7 4 9     0      . x x     7 _ _       1/2        1/2
              1      . x .     7 _ 9       1/2         0
              2      . . x     7 4 _        0         1/2

    estimate of the 4:  1/2 log p(4 | 7 _ _) + 1/2 log p(4 | 7 _ 9)

include() this file in a config that defines

    masks(sampled, given)   places that the policy wrote, and the rest of the texts, (N, T) bool.
                            Return a list of (is_blank, weight), (N, T) each: a token of texts[n]
                            at place t has weight[n, t]. If all its weights are 0, it does not
                            learn. (A Masked Rollout has these as rows of its table, (M, L).)

The order of filling (plugins/passes.py) must be a rule: a learned one is refused.

This file is executed in the globals of train_grpo.py, and its updates_of(), token_stats() and
log_probs_of() take the place of the functions there. `inner` is the old function."""
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model import unique_rows

# Also from train_grpo.py: Rollout, Stats, devices, and the knobs seed and mini_batches
# sizes: N texts of T places | M tokens | L masks of each text


@dataclass
class Masked(Rollout):
    """A Rollout with masks."""
    is_blank: Tensor | None = None      # (L, N, T) bool
    weight: Tensor | None = None        # (M, L) of each token in each mask
    # select() takes rows, tokens, of COLUMNS. So is_blank, whose rows are masks, is not in it.
    COLUMNS = (*Rollout.COLUMNS, 'weight')


def updates_of(rollouts, inner=updates_of):
    """Draw masks anew in each epoch. learn() computes logp_old in the masks of each update."""
    updates = []
    for i, update in enumerate(inner(rollouts)):
        epoch = i // mini_batches
        # Both sides of a ratio need the same masks. A file that has set logp_old already, as
        # config/papers/replay.py does, called log_probs_of(), which draws the masks of epoch 0.
        masked = [with_masks(r, epoch if r.logp_old is None else 0) for r in update]
        updates.append([r.select(r.weight.any(1)) for r in masked])
    return updates


def with_masks(r, epoch=0):
    """Return r with masks: those that it has, or else those of an epoch."""
    if isinstance(r, Masked):
        return r
    assert not hasattr(r, 'seen'), (
        "fill_order = 'learned': plugins/masks.py estimates no decisions; expected another order")
    # The seed is a hash of the texts, as Python prints them. Then other ranks, a resumed run, and
    # texts that come back in a later step have the same masks. (1 ms for 1,024 texts.)
    devices.set_seed(seed, epoch, r.texts.tolist())
    sampled = torch.zeros_like(r.texts, dtype=bool)
    sampled[r.text_of, r.place] = True
    given = (r.texts != r.prompts.task.tok.pad) & ~sampled
    drawn = masks(sampled.cpu(), given.cpu())   # on the CPU, so masks() need not name a device
    assert drawn and all(isinstance(x, Tensor) and x.shape == sampled.shape for pair in drawn
                         for x in pair), (
        f"masks() returned {drawn!r:.80}: expected a list of (is_blank, weight), (N, T) each")
    is_blank, weight = [torch.stack(x).to(r.texts.device) for x in zip(*drawn)]     # (L, N, T) each
    return Masked(**vars(r), is_blank=is_blank, weight=weight[:, r.text_of, r.place].T)


def token_stats(policy, r, reference=None, inner=token_stats):
    """Return Stats that are weighted sums over the masks."""
    r = with_masks(r)
    sums = 0
    for is_blank, weight in zip(r.is_blank, r.weight.T):
        views = r.texts.masked_fill(is_blank, policy.blank_id)                  # (N, T)
        rows, inverse = unique_rows(views)
        stats = inner(policy, replace(r, views=views[rows], view_of=inverse[r.text_of]), reference)
        sums = sums + weight * torch.stack(stats)
    return Stats(*sums)


def log_probs_of(policy, r, inner=log_probs_of):
    """Return the estimates (M,); nan for a token that no mask looks at."""
    r = with_masks(r)
    return inner(policy, r).masked_fill(~r.weight.any(1), torch.nan)
