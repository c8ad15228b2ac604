"""Estimate log-probabilities of tokens, to compare with papers. Ours are exact, because a Rollout
keeps the views in which its tokens were sampled. Many papers on masked diffusion models keep no
views. They blank positions of the finished text, ask the network for the tokens there, and take a
weighted sum over several such masks (docs/idea.md says what that costs).

Example: after a 7 the policy wrote a 4, token 0, and a 9, token 1. x is blank:

    texts    mask   is_blank   view     weight[0]  weight[1]
    7 4 9     0      . x x     7 _ _       1/2        1/2
              1      . x .     7 _ 9       1/2         0
              2      . . x     7 4 _        0         1/2

    estimate of the 4:  1/2 log p(4 | 7 _ _) + 1/2 log p(4 | 7 _ 9)

A config file that includes this file defines

    masks(sampled, given)   sampled: positions that the policy wrote; given: the rest of the texts,
                            (N, T) bool. Return a list of (is_blank, weight), (N, T) each: a token
                            of texts[n] at position t has weight[n, t]. If all its weights are 0,
                            it does not learn.

The order of filling (plugins/passes.py) must be a rule: the decisions of a learned order have no
masks, so it is refused.

This file is executed in the globals of train_grpo.py. Its Task, updates_of() and token_stats()
replace the ones there; `inner` is the old function."""
import torch

from plumbing.process import expect
from plumbing.sharing import unique_rows

# Shapes in comments: L masks of each text.


class Task(Task):
    """A Task whose blanks are filled in an order that is a rule."""

    def __init__(self, *words):
        super().__init__(*words)
        expect('masks' in globals(), "plugins/masks.py needs a config file with masks()")
        expect(globals().get('fill_order') != 'learned', "fill_order = 'learned': plugins/masks.py "
               "estimates tokens, and no decisions: take another order")


def updates_of(rollouts, inner=updates_of):
    """Draw masks anew in each epoch."""
    updates = []
    for i, update in enumerate(inner(rollouts)):
        # Both sides of a ratio need the same masks. A logp_old that a config file has set has the
        # masks of epoch 0.
        masked = [with_masks(rollout, 0 if rollout.logp_old is not None else i // mini_batches)
                  for rollout in update]
        updates.append([x.select(x.more['weight'].any(1)) for x in masked])
    return updates


def with_masks(rollout, epoch=0):
    """Return a Rollout with its masks, or else with masks of an epoch. Two columns more:
    'is_blank' (M, L, T), the masks of the text of a token, and its 'weight' (M, L) in each."""
    if 'weight' in rollout.more:
        return rollout
    # The seed is a hash of the texts, as Python prints them. Then other ranks, a resumed run, and
    # texts that come back in a later step have the same masks. (1 ms for 1,024 texts.)
    devices.set_seed(seed, epoch, rollout.texts.tolist())
    prompts, texts = rollout.prompts, rollout.texts
    sampled = prompts.blank.repeat_interleave(rollout.k, 0)     # (N, T)
    given = (texts != prompts.task.tok.pad) & ~sampled
    drawn = masks(sampled.cpu(), given.cpu())   # on the CPU, so masks() need not name a device
    is_right = isinstance(drawn, list | tuple) and drawn and all(
        len(pair) == 2 and pair[0].shape == pair[1].shape == sampled.shape for pair in drawn)
    expect(is_right, f"masks() returned {drawn!r:.80}: expected a list of pairs, (is_blank, "
           f"weight), of the shape {tuple(sampled.shape)} each")
    is_blank, weight = [torch.stack(x, 1).to(texts.device) for x in zip(*drawn)]    # (N, L, T) each
    text_of = rollout.text_of
    return replace(rollout, more=rollout.more | {
        'is_blank': is_blank[text_of], 'weight': weight[text_of, :, rollout.position]})


def token_stats(policy, rollout, reference=None, inner=token_stats):
    """Return Stats that are weighted sums over the masks; nan for a token that no mask looks at."""
    rollout = with_masks(rollout)
    is_blank, weights = rollout.more['is_blank'], rollout.more['weight']    # (M, L, T), (M, L)
    texts = rollout.texts[rollout.text_of]                                  # (M, T)
    sums = 0
    for i in range(weights.size(1)):
        views = texts.masked_fill(is_blank[:, i], policy.blank_id)
        rows, view_of = unique_rows(views)
        stats = inner(policy, replace(rollout, views=views[rows], view_of=view_of), reference)
        sums = sums + weights[:, i] * torch.stack(stats)
    return Stats(*sums.masked_fill(~weights.any(1), torch.nan))
