"""The GPT, in one file. One class serves as generator and as judge. It has no dropout, because
sampling and learning must see the same network."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from plumbing.process import expect
from plumbing.sharing import attention, read_beginnings_once

# Shapes in comments: N sequences, T positions in a text, L tokens that one call reads (fewer than T
# with a cache), V ids, C channels, H heads, D = C / H channels of a head.


def norm(x):
    """Normalize x over the channels, without weights."""
    return F.layer_norm(x, x.shape[-1:])


def linear(n_in, n_out, std):
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(layer.weight, std=std)
    return layer


class Block(nn.Module):
    """x + proj(attention(norm(x))), then x + down(relu(up(norm(x))))."""

    def __init__(self, n_layer, n_head, n_embd):
        super().__init__()
        self.n_head = n_head
        small = 0.02 / math.sqrt(2 * n_layer)   # as in GPT-2: x adds up 2 * n_layer outputs
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
        # A cache is {block: its keys and values (2, N, H, tokens before, D)}, at first {}.
        # (torch.cat copies all of them for each token. That is slow for long texts.)
        if cache is not None:
            kv = torch.cat((cache[self], qkv[1:]), -2) if self in cache else qkv[1:]
            cache[self] = kv
            k, v = kv
        y = attention(q, k, v, mask)            # F.scaled_dot_product_attention(), faster on CPUs
        x = x + self.proj(y.transpose(1, 2).flatten(2))                     # heads side by side
        return x + self.down(self.up(norm(x)).relu_())


class Network(nn.Module):
    """A network predicts V ids. It reads three more, blank_id, bos_id (the beginning of a text) and
    pad_id. A subclass has

        kind                    'fill', which sees the whole text | 'causal' | 'classifier'
        args                    of its constructor, a dict, for checkpoints
        block_size              the longest text that it can read
        blank_id bos_id pad_id  numbers
        head                    the output layer, such as nn.Linear
        trunk(inputs, cache)    returns features (N, L, C) of inputs (N, L)
        logits(features)        returns logits (..., V)
    """
    tok = None                  # its Tokenizer; networks.load_network() sets it
    is_bfloat16 = False         # devices.set_precision() sets it

    @property
    def causal(self):
        return self.kind == 'causal'

    @property
    def device(self):
        return next(self.parameters()).device

    def precision(self):
        """Return a context in which matrices are multiplied in bfloat16, if is_bfloat16."""
        return torch.autocast(self.device.type, torch.bfloat16, self.is_bfloat16)

    def features(self, tokens):
        """Return features (N, T, C) of tokens (N, T), padded at the end. Features at position t
        predict token t. (In nanoGPT they predict token t + 1.)

        A causal network reads bos and the tokens before t: its inputs are the tokens, moved by
        one position. Any other network reads all positions; where a 'fill' network is to predict,
        the caller has put blank_id."""
        if not self.causal:
            return self.trunk(tokens)
        length = max(1, int((tokens != self.pad_id).any(0).sum()))          # of the longest text
        inputs = F.pad(tokens[:, :length - 1], (1, 0), value=self.bos_id)   # bos, then tokens
        x = read_beginnings_once(self, inputs)      # self.trunk(inputs, {}), in less time
        return F.pad(x, (0, 0, 0, tokens.size(1) - length))                 # back to T positions


class GPT(Network):
    """Pre-norm transformer without biases. A classifier sees the whole text, like a 'fill' network,
    and uses only the first of its V outputs, the logit of label 1."""

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
        """Return features (N, L, C) of inputs (N, L). With a cache, the inputs of a causal network
        continue what the cache has read, and their keys and values are appended to it."""
        start = next(iter(cache.values())).size(3) if cache else 0      # tokens in the cache
        stop = start + inputs.size(1)
        expect(stop <= self.block_size, f"a text has {stop} tokens or more, and the network can "
               f"read {self.block_size}")
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
        with self.precision():
            for block in self.blocks:
                x = block(x, mask, rotary, cache)
        return norm(x)

    def logits(self, x):
        """Return logits (..., V) of features (..., C)."""
        return self.head(x)
