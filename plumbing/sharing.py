"""All that saves time, in one place. Each function stands for one plain line, which its docstring
names. A first reader may skip this file.

k completions of a prompt begin alike, and many of them are equal. So beginnings are read once, and
equal texts are scored once. Without this a default step takes 1.2 times as long."""
import functools

import torch
import torch.nn.functional as F

# Shapes in comments: N texts of L tokens, S different ones.


def attention(q, k, v, mask):
    """F.scaled_dot_product_attention(q, k, v, mask): the attention softmax(q k / sqrt(D) + mask) v,
    (N, H, L, D), of queries q (N, H, L, D) to keys and values k, v (N, H, keys, D).

    mask is 0 or -1e9: (L, keys), the same for all texts, or (N, 1, 1, keys), the padding of each.
    On a CPU torch's kernel takes 1.2 to 1.5 times as long for texts as short as ours, and many
    times as long in bfloat16."""
    mask = mask.to(q.dtype)
    if q.device.type != 'cpu':
        return F.scaled_dot_product_attention(q, k, v, mask)
    mask = mask.expand(len(q), q.size(1), -1, -1).flatten(0, 1)                 # (N H, L | 1, keys)
    scores = torch.baddbmm(mask, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=q.size(-1) ** -0.5)
    return (scores.softmax(-1) @ v.flatten(0, 1)).view_as(q)


@functools.cache
def random_numbers(n, device):
    """Return n random integers, always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-2 ** 62, 2 ** 62, (n,), generator=generator).to(device)


def unique_rows(x):
    """Find equal rows of integers x (N, L): x.unique(dim=0, return_inverse=True), but rows are in
    no order, and it takes a twentieth of the time.

    Return rows (S,), the index of one row of each kind, and inverse (N,), the kind of each row:
    x[rows][inverse] equals x."""
    # A hash: equal rows have equal sums with random weights. Two different rows collide with a
    # probability below 2 ** -49 (with the ids of GPT-2).
    sums = (x * random_numbers(x.size(1), x.device)).sum(1)
    kinds, inverse = sums.unique(return_inverse=True)
    rows = torch.empty_like(kinds)
    rows[inverse] = torch.arange(len(x), device=x.device)       # of several equal rows any one
    return rows, inverse


def compute_once(function, network, texts):
    """Return function(network, texts), one row for each of texts (N, L). Equal texts are computed
    once."""
    rows, inverse = unique_rows(texts)
    return function(network, texts[rows])[inverse]


def shared_length(inputs):
    """Return the n that saves most tokens if the first n columns of inputs (N, L) are computed once
    for texts that are equal there: n * (texts - different beginnings). Of 'abcd', 'abce', 'abfg'
    2 columns save 2 * 2 tokens, and 3 columns 3 * 1, so n is 2."""
    # Equal beginnings have equal sums with random weights. Each column is sorted on its own, and
    # then equal sums stand side by side.
    sums = (inputs * random_numbers(inputs.size(1), inputs.device)).cumsum(1).sort(0).values
    n_copies = (sums[1:] == sums[:-1]).sum(0)           # of the first column, the first two, ...
    n_columns = torch.arange(1, 1 + len(n_copies), device=sums.device)
    return 1 + int((n_columns * n_copies).argmax())


def read_beginnings_once(network, inputs):
    """Return network.trunk(inputs, {}) of a causal network, (N, L, C). A beginning that texts
    share, such as a prompt, is read once; backward adds up the gradients of its copies."""
    if inputs.is_cuda and network.head.in_features < 256:
        # shared_length() makes the GPU and the CPU wait for each other. For a small network that
        # costs more than it saves.
        return network.trunk(inputs, {})
    n = shared_length(inputs)
    rows, inverse = unique_rows(inputs[:, :n])
    cache = {}
    x = network.trunk(inputs[rows, :n], cache)[inverse]
    if n == inputs.size(1):
        return x
    cache = {layer: kv[:, inverse] for layer, kv in cache.items()}
    return torch.cat((x, network.trunk(inputs[:, n:], cache)), 1)
