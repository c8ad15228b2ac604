"""Estimate the likelihood of a completion: look at its tokens in views with other blanks than those
in which they were sampled. Many papers on masked diffusion models do so, because they do not keep
the views. include() this in a config that has

    masks(sampled, given)       what the policy wrote, and what else is text, (N, T) bool each.
                                Return a list of (is_blank, weight), (N, T) each: the estimate is
                                the weighted sum of what networks say of a token in these views. A
                                token that has no weight in any of them is not learned.

(What is not imported here is of train_grpo.py; inner is the function that is replaced.)"""
from dataclasses import replace

from model import distinct


def draw_masks(r, epoch=0):
    """Return the masks of an epoch. They depend on the texts and on nothing that has happened
    before, so any number of ranks, a resumed run, and a later step draw the same ones."""
    assert type(r) is Rollout, "masks say nothing of when a blank is filled: not a learned order"
    torch.manual_seed(hash((seed, epoch, *r.sequences.flatten().tolist())))
    sampled = torch.zeros(r.sequences.shape, dtype=bool)        # on the CPU: the same on a GPU
    sampled[r.n.cpu(), r.t.cpu()] = True
    given = (r.sequences != r.prompts.task.tok.pad).cpu() & ~sampled
    device = r.sequences.device
    return [(is_blank.to(device), weight.to(device)) for is_blank, weight in masks(sampled, given)]


def token_stats(policy, r, reference=None, inner=token_stats):
    """Return weighted sums, also of KL and entropy."""
    texts, row = r.n.unique(return_inverse=True)        # those that learn
    sums = 0
    for is_blank, weight in vars(r).get('masks') or draw_masks(r):
        views = r.sequences.masked_fill(is_blank, policy.blank_id)[texts]
        example, view = distinct(views)
        stats = inner(policy, replace(r, views=views[example], view=view[row]), reference)
        sums = sums + weight[r.n, r.t] * torch.stack(stats)
    return Stats(*sums)


def learn(networks, optimizers, rollouts, lr, inner=learn):
    """Draw masks anew in each epoch. A ratio compares with the policy before the first update, in
    the same masks. If a file has set log-probabilities, because another policy has sampled, the
    ratio is to these, and all epochs have the masks of the first."""
    global epochs, mini_batches
    records = []
    for epoch in range(epochs):
        for r in rollouts:
            drawn = draw_masks(r, epoch if r.logp_old is None else 0)
            is_learned = sum(weight for _, weight in drawn)[r.n, r.t] > 0       # (M,)
            r = copy.copy(r)
            r.masks = drawn                     # of this epoch
            for name in r.tables[0]:
                if getattr(r, name) is not None:
                    setattr(r, name, getattr(r, name)[is_learned])
            records.append(r)
    knobs = epochs, mini_batches
    epochs, mini_batches = 1, epochs * mini_batches     # an epoch has records of its own
    numbers = inner(networks, optimizers, records, lr)
    epochs, mini_batches = knobs
    return numbers
