"""Equal rows once, and large tensors a part at a time. This saves time and memory, and changes no
number: it can be trusted unread."""
import torch
from torch.utils.checkpoint import checkpoint

NUMBERS_AT_ONCE = 2 ** 24   # in the largest tensor of a part, where memory counts: 67 MB of float32


@torch.compiler.disable
def distinct_rows(x, is_used=None):
    """Return first (S,), the places of S rows of x.flatten(0, -2) (n, C), which are all that differ
    among those that are used; and index (...): which of these S each row of x (..., C) is. The index
    of a row that is not used means nothing. is_used (...) bool; None: all are."""
    rows = x.flatten(0, -2)                                                     # (n, C)
    places = torch.arange(len(rows), device=x.device)
    # Equal rows have equal sums of their columns, weighted by random integers; others have them in
    # 1 of 2 ** 64 cases. torch.unique is 16 to 20 times as fast with numbers as with rows.
    rng = torch.Generator().manual_seed(0)
    weights = torch.randint(-2 ** 62, 2 ** 62, x.shape[-1:], generator=rng)
    sums = (rows * weights.to(x.device)).sum(1)                                 # (n,)
    if is_used is not None:                     # the others count as copies of the first used one
        used = is_used.flatten()
        sums = sums.where(used, sums[used.int().argmax()])
        places = places.where(used, len(rows))
    distinct, index = torch.unique(sums, return_inverse=True)
    last = torch.full_like(distinct, len(rows) - 1)
    first = last.scatter_reduce(0, index, places, 'amin')                       # (S,)
    copies = rows[first[index]]                                                 # (n, C)
    is_equal = (copies == rows).all(1)
    if is_used is not None:
        is_equal |= ~used
    assert is_equal.all(), "two different rows have one sum"
    return first, index.view(x.shape[:-1])


def in_parts(function, width, *tensors):
    """Return the tensors that function(*tensors) returns, computed from a part of their M rows at a
    time. M x width numbers, and all that is made of them, would be most of the memory of a step; the
    backward pass makes each part again."""
    size = max(1, NUMBERS_AT_ONCE // width)
    if len(tensors[0]) <= size:
        return function(*tensors)
    results = []
    for start in range(0, len(tensors[0]), size):
        part = [x[start:start + size] for x in tensors]
        results.append(checkpoint(function, *part, use_reentrant=False))
    return [torch.cat(parts) for parts in zip(*results)]
