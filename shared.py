"""Compute once what several texts share: the same numbers, sooner. Skip this file at first."""
import functools

import torch

# sizes: N texts of L tokens | S different ones


@functools.cache
def random_numbers(n, device):
    """Return n random integers, always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-2 ** 62, 2 ** 62, (n,), generator=generator).to(device)


def unique_rows(x):
    """Find equal rows of integers x (N, L). Return rows (S,), the index of one row of each kind,
    and inverse (N,), the kind of each row: x[rows][inverse] equals x. Kinds are in no order."""
    # Equal rows have equal sums with random weights, and different rows have different sums, except
    # for 1 in 2 ** 60. torch.unique is many times as fast for numbers as for rows.
    sums = (x * random_numbers(x.size(1), x.device)).sum(1)
    kinds, inverse = sums.unique(return_inverse=True)
    numbers = torch.arange(len(x), device=x.device)
    rows = torch.empty_like(kinds)
    rows[inverse] = numbers                     # of several equal rows any one
    return rows, inverse


def shared_length(inputs):
    """Return the n that saves most tokens if the first n columns of inputs (N, L) are computed once
    for texts that are equal there: n * (texts - different beginnings). Of a b c d, a b c e, a b f g
    2 columns save 2 * 2 tokens, and 3 columns 3 * 1, so n is 2."""
    # Equal beginnings have equal sums with random weights. Sorted, they stand side by side.
    sums = (inputs * random_numbers(inputs.size(1), inputs.device)).cumsum(1)
    sums = sums.sort(0).values
    n_copies = (sums[1:] == sums[:-1]).sum(0)           # of the first column, the first two, ...
    n_columns = torch.arange(1, 1 + len(n_copies), device=sums.device)
    return 1 + int((n_columns * n_copies).argmax())


def features_of_inputs(trunk, inputs):
    """Return trunk(inputs) of a causal network, (N, L, C). The trunk computes beginnings that texts
    share, such as prompts, once. Their gradient is the sum over all copies."""
    n = shared_length(inputs)
    rows, inverse = unique_rows(inputs[:, :n])
    cache = {}
    x = trunk(inputs[rows, :n], cache)[inverse]
    if n == inputs.size(1):
        return x
    cache = {layer: kv[:, inverse] for layer, kv in cache.items()}
    return torch.cat((x, trunk(inputs[:, n:], cache)), 1)
