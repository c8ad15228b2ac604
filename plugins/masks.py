"""Estimate log-probabilities of tokens from new views. Many papers on masked diffusion models keep
no view from which a token was sampled. They blank other parts of the finished text, and ask for the
tokens there. include() this file in a config that defines

    masks(sampled, given)       sampled, given: bool (N, T), what the policy wrote, and the rest of
                                the text. Return a list of (is_blank, weight), (N, T) each. An entry
                                makes a view: the text, blank where is_blank. The estimate of a
                                token is the sum over the views of weight * log-probability. A token
                                whose weights are all 0 is not learned.

The order of filling (plugins/passes.py) must be one of the rules, not learned.

This file is executed in the globals of train_grpo.py, and its updates_of(), token_stats() and
log_probs_of() take the place of the functions there. `inner` is the old function."""
from model import unique_rows

# sizes: N texts of T places | M tokens | L masks of each text


@dataclass
class Masked(Rollout):
    """A Rollout with masks."""
    is_blank: Tensor | None = None      # (L, N, T) bool
    weight: Tensor | None = None        # (M, L) of each token in each mask
    COLUMNS = (*Rollout.COLUMNS, 'weight')


def updates_of(rollouts, inner=updates_of):
    """Draw masks anew in each epoch. logp_old is then computed in the masks of each update."""
    updates = []
    for i, update in enumerate(inner(rollouts)):
        masked = []
        for r in update:
            # A logp_old that a collect() of a file has set is of the masks of epoch 0: use them.
            r = with_masks(r, epoch=i // mini_batches if r.logp_old is None else 0)
            masked.append(r.select(r.weight.sum(1) > 0))
        updates.append(masked)
    return updates


def with_masks(r, epoch=0):
    """Return r with the masks that it has, or those of an epoch. They depend on seed, epoch and
    texts alone: other ranks, a resumed run, or a replay of the texts, draw the same masks."""
    if isinstance(r, Masked):
        return r
    devices.set_seed(seed, epoch, r.texts.tolist())
    sampled = torch.zeros(r.texts.shape, dtype=bool)            # on the CPU, where masks() draws
    sampled[r.text_of.cpu(), r.place.cpu()] = True
    given = (r.texts != r.prompts.task.tok.pad).cpu() & ~sampled
    # of all masks, (L, N, T) each
    is_blank, weight = [torch.stack(x).to(r.texts.device) for x in zip(*masks(sampled, given))]
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
    return inner(policy, r).masked_fill(r.weight.sum(1) == 0, torch.nan)
