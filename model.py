"""The GPT, in one file: one class is generator and judge. It has no dropout, because sampling and
learning must see the same network. Its size is that of a laptop, so it has none of the usual tricks
of large networks, but for what stands at the end: what texts share is computed once."""
import functools
import math

import torch
import torch.nn.functional as F
from torch import nn

# sizes: N sequences | T places of a text | L inputs of a call | V ids | C channels
# H heads | D = C / H


def norm(x):
    """Normalize x over the channels, without weights."""
    return F.layer_norm(x, x.shape[-1:])


def linear(n_in, n_out, std):
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(layer.weight, std=std)
    return layer


def attention(q, k, v, mask):
    """Return the attention softmax(q k / sqrt(D) + mask) v, (N, H, L, D), of queries q (N, H, L, D)
    to keys and values k, v (N, H, keys, D). mask is 0 or -1e9: (L, keys), the same for all texts,
    or (N, 1, 1, keys), the padding of each text."""
    if q.device.type != 'cpu':
        return F.scaled_dot_product_attention(q, k, v, mask.to(q.dtype))
    # Two ways for one formula is ugly. But in bfloat16 torch's fused kernel is slow on a CPU: with
    # it a default step takes 1.5 times as long. (In float32 there is no difference.)
    mask = mask.to(q.dtype).expand(len(q), q.size(1), -1, -1).flatten(0, 1)     # (N H, L | 1, keys)
    scores = torch.baddbmm(mask, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=q.size(-1) ** -0.5)
    return (scores.softmax(-1) @ v.flatten(0, 1)).view_as(q)


class Block(nn.Module):
    """x + proj(attention(norm(x))), then x + down(relu(up(norm(x))))."""

    def __init__(self, n_layer, n_head, n_embd):
        super().__init__()
        self.n_head = n_head
        small = 0.02 / math.sqrt(2 * n_layer)   # the residual stream adds up 2 * n_layer outputs
        self.qkv = linear(n_embd, 3 * n_embd, n_embd ** -0.5)
        self.proj = linear(n_embd, n_embd, small)
        self.up = linear(n_embd, 4 * n_embd, n_embd ** -0.5)
        self.down = linear(4 * n_embd, n_embd, small)

    def forward(self, x, mask, rotary, cache):
        qkv = self.qkv(norm(x)).unflatten(2, (3, self.n_head, -1))          # (N, L, 3, H, D)
        qkv = qkv.permute(2, 0, 3, 1, 4)                                    # (3, N, H, L, D)
        if rotary is not None:
            # Turn each head of q and k: its halves a, b become a cos - b sin, b cos + a sin.
            cos, sin = rotary                                               # (L, D) each
            a, b = qkv[:2].chunk(2, -1)
            qk = qkv[:2] * cos + torch.cat((-b, a), -1) * sin
            # cos and sin are float32, so under autocast q and k have become float32, too.
            qkv = torch.cat((qk.to(qkv.dtype), qkv[2:]))
        q, k, v = qkv                                                       # (N, H, L, D) each
        # A cache is {block: keys and values (2, N, H, tokens before, D)}; a new one is empty.
        # torch.cat copies them all for each token: slow for long texts, and short to say.
        if cache is not None:
            kv = torch.cat((cache[self], qkv[1:]), -2) if self in cache else qkv[1:]
            cache[self] = kv
            k, v = kv
        y = attention(q, k, v, mask)
        x = x + self.proj(y.transpose(1, 2).flatten(2))                     # heads side by side
        return x + self.down(self.up(norm(x)).relu_())


class Network(nn.Module):
    """A network predicts V ids. It reads three more, blank_id, bos_id (the beginning of a text) and
    pad_id. A subclass has

        kind                    'fill', which sees all of a text | 'causal' | 'classifier'
        args                    of its constructor, a dict, for checkpoints
        block_size              the longest text that it can read
        blank_id bos_id pad_id  numbers
        head                    the output layer, such as nn.Linear
        trunk(inputs, cache)    returns features (N, L, C) of inputs (N, L)
        logits(features)        returns logits (..., V)
    """
    tok = None                  # its Tokenizer; networks.load_network() sets it

    @property
    def causal(self):
        return self.kind == 'causal'

    @property
    def device(self):
        return next(self.parameters()).device

    def features(self, tokens):
        """Return features (N, T, C) of tokens (N, T), padded at the end. Features at t predict
        token t (in nanoGPT t + 1): a causal network reads bos and the tokens before t. Others read
        all tokens, so the caller puts blank_id where a 'fill' network is to predict."""
        if not self.causal:
            return self.trunk(tokens)
        # Padding stands at the end, so these are the columns of the longest text.
        length = max(1, int((tokens != self.pad_id).any(0).sum()))
        inputs = F.pad(tokens[:, :length - 1], (1, 0), value=self.bos_id)
        if inputs.is_cuda and self.head.in_features < 256:
            # A GPU waits for the CPU here, so a second call would cost more than it saves.
            x = self.trunk(inputs, {})
        else:
            x = features_of_inputs(self.trunk, inputs)  # trunk(inputs), but shared prefixes once
        return F.pad(x, (0, 0, 0, tokens.size(1) - length))


class GPT(Network):
    """Pre-norm transformer without biases. A classifier sees all of a text, too. It keeps its V
    logits and uses the first one: how likely label 1 is."""

    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd, kind, positions='learned'):
        super().__init__()
        self.args = {'vocab_size': vocab_size, 'block_size': block_size, 'n_layer': n_layer,
                     'n_head': n_head, 'n_embd': n_embd, 'kind': kind, 'positions': positions}
        self.kind = kind
        self.block_size = block_size
        self.blank_id, self.bos_id, self.pad_id = range(vocab_size, vocab_size + 3)
        self.embed = nn.Embedding(vocab_size + 3, n_embd)
        if positions == 'learned':
            self.position = nn.Embedding(block_size, n_embd)
        else:
            # 'rotary' (arXiv:2104.09864): turn pairs of channels by an angle that is proportional
            # to the position, so that a head sees distances.
            D = n_embd // n_head
            speeds = (1e4 ** (-torch.arange(0, D, 2) / D)).repeat(2)            # (D,)
            angles = torch.outer(torch.arange(block_size), speeds)              # (T, D)
            self.rotary = nn.Buffer(torch.stack((angles.cos(), angles.sin())), persistent=False)
        self.blocks = nn.ModuleList(Block(n_layer, n_head, n_embd) for _ in range(n_layer))
        self.head = linear(n_embd, vocab_size, 0.0)         # the first guess is uniform
        # An input of a causal network sees itself and the inputs before it.
        mask = torch.full((block_size, block_size), -1e9).triu(1)
        self.mask = nn.Buffer(mask, persistent=False)

    def trunk(self, inputs, cache=None):
        """Return features (N, L, C) of inputs (N, L). If there is a cache, a causal network reads
        on after it, and appends keys and values of these inputs."""
        start = next(iter(cache.values())).size(3) if cache else 0      # tokens in the cache
        stop = start + inputs.size(1)
        assert stop <= self.block_size, (
            "a text is longer than the network can read")
        if self.causal:
            mask = self.mask[start:stop, :stop]
        else:                                   # padding is hidden
            mask = -1e9 * (inputs == self.pad_id)[:, None, None]
        x, rotary = self.embed(inputs), None
        if self.args['positions'] == 'learned':
            x = x + self.position.weight[start:stop]
        else:
            rotary = self.rotary[:, start:stop]                             # (2, L, D)
        x = norm(x)
        for block in self.blocks:
            x = block(x, mask, rotary, cache)
        return norm(x)

    def logits(self, x):
        """Return logits (..., V) of features (..., C), in float32 also under autocast."""
        with torch.autocast(x.device.type, enabled=False):
            return self.head(x)


# ---- what texts share is computed once -----------------------------------------------------------
# k completions of a prompt begin alike, and many are equal. This is bookkeeping, and no algorithm:
# skip it at first. Without it a default step takes 1.2 times as long.
# sizes: N texts of L tokens | S different ones
@functools.cache
def random_numbers(n, device):
    """Return n random integers, always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-2 ** 62, 2 ** 62, (n,), generator=generator).to(device)


def unique_rows(x):
    """Find equal rows of integers x (N, L). Return rows (S,), the index of one row of each kind,
    and inverse (N,), the kind of each row: x[rows][inverse] equals x. Kinds are in no order."""
    # A hash: equal rows have equal sums with random weights, and different rows have different
    # sums, but for 1 in 2 ** 49 (with the ids of GPT-2). torch.unique is many times as fast for
    # numbers as for rows.
    sums = (x * random_numbers(x.size(1), x.device)).sum(1)
    kinds, inverse = sums.unique(return_inverse=True)
    rows = torch.empty_like(kinds)
    rows[inverse] = torch.arange(len(x), device=x.device)       # of several equal rows any one
    return rows, inverse


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
