"""Estimate the likelihood of a completion. Many papers on masked diffusion models do not keep the
views in which tokens were sampled, and look at the tokens in views with other blanks instead.
include() this file in a config that defines

    masks(sampled, given)       sampled, what the policy wrote, and given, what else is text, are
                                (N, T) bool. Return a list of (is_blank, weight), (N, T) each: the
                                estimate is the weighted sum of what networks say of a token in
                                these views. A token that has no weight in any of them is not
                                learned.

It is executed in the globals of train_grpo.py: a function here takes the place of the function of
its name, which is `inner`."""
from shared import unique_rows


@dataclass
class Masked(Rollout):
    """A Rollout with the masks of its epoch."""
    masks: list | None = None


def draw_masks(r, epoch=0):
    """Return the masks of an epoch. They depend on the texts alone, so any number of ranks, a
    resumed run, and a later step draw the same masks."""
    assert type(r) is Rollout, "plugins/masks.py cannot be used with fill_order = 'learned'"
    assert 'masks' in globals(), "plugins/masks.py needs a file with masks(sampled, given)"
    set_seed(seed, epoch, r.texts.tolist())
    sampled = torch.zeros(r.texts.shape, dtype=bool)            # on the CPU: the same on a GPU
    sampled[r.text.cpu(), r.place.cpu()] = True
    given = (r.texts != r.prompts.task.tok.pad).cpu() & ~sampled
    device = r.texts.device
    return [(is_blank.to(device), weight.to(device)) for is_blank, weight in masks(sampled, given)]


def with_masks(r, epoch):
    """Return a Rollout with the masks of an epoch, and with the tokens that have a weight in
    them."""
    masks = draw_masks(r, epoch)
    return Masked(**vars(r.select(weights_of(r, masks) > 0)), masks=masks)


def weights_of(r, masks):
    """Return the sum of the weights (M,) of each token."""
    return sum(weight[r.text, r.place] for _, weight in masks)


def token_stats(policy, r, reference=None, inner=token_stats):
    """Return weighted sums, also of KL and entropy."""
    texts, row = r.text.unique(return_inverse=True)             # those that have a token
    sums = 0
    for is_blank, weight in r.masks if isinstance(r, Masked) else draw_masks(r):
        views = r.texts.masked_fill(is_blank, policy.blank_id)[texts]
        rows, inverse = unique_rows(views)
        stats = inner(policy, replace(r, views=views[rows], view=inverse[row]), reference)
        sums = sums + weight[r.text, r.place] * torch.stack(stats)
    return Stats(*sums)


def log_probs_of(policy, r, inner=log_probs_of):
    """Return the estimates (M,). Of a token that no mask looks at there is none: nan."""
    masks = r.masks if isinstance(r, Masked) else draw_masks(r)
    return inner(policy, r).masked_fill(weights_of(r, masks) == 0, torch.nan)


def updates_of(rollouts, inner=updates_of):
    """Draw masks anew in each epoch. A ratio compares with the policy before the first update, in
    the same masks."""
    updates = []
    for i, update in enumerate(inner(rollouts)):
        epoch = i // mini_batches
        # If another policy has sampled, its logp_old was measured in the masks of epoch 0.
        updates.append([with_masks(r, epoch if r.logp_old is None else 0) for r in update])
    return updates
