"""Equal rows once, and large tensors a part at a time. This saves time and memory, and changes no
number: it can be trusted unread."""
import functools

import torch
from torch.utils.checkpoint import checkpoint

NUMBERS_AT_ONCE = 2 ** 24   # in the largest tensor of a part, where memory counts: 67 MB of float32


def distinct(numbers, is_used=None):
    """Return first (S,), the places of integers (n,) that differ, one of each kind; and index (n,):
    the kind of each. is_used (n,) bool: those that are not used count as one more kind; None: all
    are."""
    if is_used is not None:
        numbers = numbers.masked_fill(~is_used, -1)
    kinds, index = torch.unique(numbers, return_inverse=True)                   # (S,), (n,)
    places = torch.arange(len(numbers), device=numbers.device)
    last = torch.full_like(kinds, len(numbers))
    return last.scatter_reduce(0, index, places, 'amin'), index


@torch.compiler.disable
def distinct_rows(rows, is_used=None):
    """Return first (S,) and index (n,) as distinct() does, of rows (n, C)."""
    # Equal rows have equal sums of their columns, weighted by random integers; others have them in
    # 1 of 2 ** 64 cases. torch.unique is 16 to 20 times as fast with numbers as with rows.
    sums = (rows * weights_of(rows.size(1), rows.device)).sum(1)                # (n,)
    first, index = distinct(sums, is_used)
    is_equal = (rows[first[index]] == rows).all(1)
    if is_used is not None:
        is_equal |= ~is_used
    assert is_equal.all(), "two different rows have one sum"
    return first, index


@functools.cache
def weights_of(n, device):
    """Return n random integers, always the same."""
    rng = torch.Generator().manual_seed(0)
    return torch.randint(-2 ** 62, 2 ** 62, (n,), generator=rng).to(device)


def in_parts(function, width, *tensors):
    """Return the tensors that function(*tensors) returns, computed from a part of their M rows at a
    time; None stays None. M x width numbers, and all that is made of them, would be most of the
    memory of a step; the backward pass makes each part again."""
    size = NUMBERS_AT_ONCE // width             # no layer has so many outputs
    if len(tensors[0]) <= size:
        return function(*tensors)
    results = []
    for start in range(0, len(tensors[0]), size):
        part = [x if x is None else x[start:start + size] for x in tensors]
        results.append(checkpoint(function, *part, use_reentrant=False))
    return [None if parts[0] is None else torch.cat(parts) for parts in zip(*results)]
