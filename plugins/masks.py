"""Estimate log-probabilities of tokens, to compare with papers. Ours are exact, because a Rollout
keeps the views in which its tokens were sampled. Many papers on masked diffusion models keep no
views. They blank places of the finished text, ask the network for the tokens there, and take a
weighted sum over several such masks (docs/idea.md says what that costs).

Example: after a 7 the policy wrote a 4, token 0, and a 9, token 1. x is blank:

    texts    mask   is_blank   view     weight[0]  weight[1]
    7 4 9     0      . x x     7 _ _       1/2        1/2
              1      . x .     7 _ 9       1/2         0
              2      . . x     7 4 _        0         1/2

    estimate of the 4:  1/2 log p(4 | 7 _ _) + 1/2 log p(4 | 7 _ 9)

A config that includes this file defines

    masks(sampled, given)   places that the policy wrote, and the rest of the texts, (N, T) bool.
                            Return a list of (is_blank, weight), (N, T) each: a token of texts[n]
                            at place t has weight[n, t]. If all its weights are 0, it does not
                            learn.

The order of filling (plugins/passes.py) must be a rule: decisions of a learned one have no masks.

This file is executed in the globals of train_grpo.py, and its updates_of() and token_stats() take
the place of the functions there. `inner` is the old function."""
import torch

from model import unique_rows

# sizes: N texts of T places | M tokens | L masks of each text


def updates_of(rollouts, inner=updates_of):
    """Draw masks anew in each epoch. learn() computes logp_old in the masks of each update."""
    updates = []
    for i, update in enumerate(inner(rollouts)):
        # Both sides of a ratio need the same masks. A logp_old that a file has set has those of
        # epoch 0.
        masked = [with_masks(r, 0 if r.logp_old is not None else i // mini_batches) for r in update]
        updates.append([r.select(r.more['weight'].any(1)) for r in masked])
    return updates


def with_masks(r, epoch=0):
    """Return r with masks: those that it has, or else those of an epoch. Two columns more:
    'is_blank' (M, L, T), the masks of the text of a token, and its 'weight' (M, L) in each."""
    if 'weight' in r.more:
        return r
    # The seed is a hash of the texts, as Python prints them. Then other ranks, a resumed run, and
    # texts that come back in a later step have the same masks. (1 ms for 1,024 texts.)
    devices.set_seed(seed, epoch, r.texts.tolist())
    sampled = r.prompts.blank.repeat_interleave(r.k, 0)     # also of rows that r has lost
    given = (r.texts != r.prompts.task.tok.pad) & ~sampled
    drawn = masks(sampled.cpu(), given.cpu())   # on the CPU, so masks() need not name a device
    is_blank, weight = [torch.stack(x, 1).to(r.texts.device) for x in zip(*drawn)]  # (N, L, T) each
    return replace(r, more=r.more | {'is_blank': is_blank[r.text_of],
                                     'weight': weight[r.text_of, :, r.place]})


def token_stats(policy, r, reference=None, inner=token_stats):
    """Return Stats that are weighted sums over the masks; nan for a token that no mask looks at."""
    r = with_masks(r)
    sums = 0
    for is_blank, weight in zip(r.more['is_blank'].unbind(1), r.more['weight'].T):  # (M, T), (M,)
        views = r.texts[r.text_of].masked_fill(is_blank, policy.blank_id)       # (M, T)
        rows, view_of = unique_rows(views)
        stats = inner(policy, replace(r, views=views[rows], view_of=view_of), reference)
        sums = sums + weight * torch.stack(stats)
    return Stats(*sums.masked_fill(~r.more['weight'].any(1), torch.nan))
