"""The GPT, in one file: the network, its optimizers and checkpoints.

One class serves as generator and as judge. There is no dropout, because sampling and learning must
see one and the same network."""
import math
import os
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from common import fail, fail_unknown

# letters: N sequences | T tokens in a sequence, L of them in one pass | V base ids | C channels
# H heads | D = C / H | U places where logits are asked for


# ---- the network ---------------------------------------------------------------------------------


def norm(x):
    """Normalize x over the channels, without weights."""
    return F.layer_norm(x, x.shape[-1:])


def attention(q, k, v, mask):
    """Return the attention of q (N, H, L, D) to k, v (N, H, keys, D). mask: added to the scores,
    0 or -inf."""
    # On a CPU two plain products are faster than torch's fused kernel, for heads as small as ours.
    # On a GPU the fused kernel never writes the scores to memory.
    if q.device.type != 'cpu':
        return F.scaled_dot_product_attention(q, k, v, mask)
    scores = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)                 # (N, H, L, keys)
    scores += mask
    return scores.softmax(-1) @ v


class KVCache(dict):
    """{layer: keys and values (2, N, H, length, D)} of tokens that a causal network has seen. Its
    methods have the names of those of transformers.Cache."""

    def update(self, k, v, layer):
        """Append k, v (N, H, L, D) of the next tokens; return those of all tokens so far."""
        kv = torch.stack((k, v))
        if layer in self:
            kv = append(self[layer], kv)
        self[layer] = kv
        return kv

    def batch_select_indices(self, rows):
        """Keep the sequences `rows` (n,), in this order. A sequence may come several times."""
        for layer in self:
            self[layer] = self[layer].index_select(1, rows)


def append(past, new):
    """Return past (..., n, D) and new (..., L, D) behind each other.

    torch.cat would copy all tokens for each new one. So while a network generates, `past` is the
    front of a buffer with free room (torch keeps it as past._base), and most calls only write `new`
    behind it."""
    n = past.size(-2)
    stop = n + new.size(-2)
    if torch.is_grad_enabled():                 # a gradient needs `past` as it is
        return torch.cat((past, new), -2)
    buffer = past._base                         # past is a slice of it
    if buffer is None or buffer.size(-2) < stop:
        buffer = past.new_empty(*past.shape[:-2], 2 * stop, past.size(-1))
        buffer[..., :n, :] = past
    buffer[..., n:stop, :] = new
    return buffer[..., :stop, :]


def linear(n_in, n_out, std):
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(layer.weight, std=std)
    return layer


class Block(nn.Module):
    """x + proj(attention(norm(x))), then x + down(relu(up(norm(x))))."""

    def __init__(self, layer, n_layer, n_head, n_embd):
        super().__init__()
        self.layer = layer                      # its key in a KVCache
        self.n_head = n_head
        # proj and down start small, because the residual stream adds up 2 * n_layer of them.
        small = 0.02 / math.sqrt(2 * n_layer)
        self.qkv = linear(n_embd, 3 * n_embd, n_embd ** -0.5)
        self.proj = linear(n_embd, n_embd, small)
        self.up = linear(n_embd, 4 * n_embd, n_embd ** -0.5)
        self.down = linear(4 * n_embd, n_embd, small)

    def forward(self, x, rotary, mask, cache):
        qkv = self.qkv(norm(x)).unflatten(2, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv                                               # (N, H, L, D) each
        if rotary is not None:
            # Halves a, b of a head become a cos - b sin, b cos + a sin.
            cos, sin = rotary                                       # (L, D) each
            a, b = qkv[:2].chunk(2, -1)                             # of q and of k
            q, k = (qkv[:2] * cos + torch.cat((-b, a), -1) * sin).to(v.dtype)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
        y = attention(q, k, v, mask)                                # (N, H, L, D)
        x = x + self.proj(y.transpose(1, 2).flatten(2))             # (N, L, C) heads side by side
        return x + self.down(self.up(norm(x)).relu_())


class Network(nn.Module):
    """What GRPO asks of a network. A GPT is one, and so is a Pretrained of pretrained.py. They have
      trunk(inputs, cache)      features (N, L, C) of ids (N, L). A position of a causal network
                                sees itself and what stands to its left; earlier tokens may be in
                                the cache, to which new ones are added. bos is its first input
      logits(features)          float32 logits (..., V)
      causal, is_classifier     what it is
      blank_id, bos_id, pad_id  ids behind the V that it can produce
      block_size                tokens of the longest sequence
      args                      plain values, for checkpoints
      hidden_matrices()         weights for Muon; not needed with optimizer = 'adamw'"""
    new_cache = KVCache
    has_bos = True              # False: the first token of a sequence has no probability

    @property
    def device(self):
        return next(self.parameters()).device

    @property
    def dtype(self):
        return next(self.parameters()).dtype

    def forward(self, tokens, where, copies=1):
        """Return features (U, C) at the U places where `where` (N, T) is True, row by row; logits()
        of them predict the token there. A bidirectional network sees these places as blanks, a
        causal one sees what is to the left. copies: sequences come in runs of `copies` (the k
        completions of a prompt), which are equal left of their first True. Left of the first True
        of the batch, a causal network computes only one sequence of each run."""
        if not self.causal:
            return self.trunk(tokens.masked_fill(where, self.blank_id))[where]
        inputs = F.pad(tokens[:, :-1], (1, 0), value=self.bos_id)   # bos, and all but the last
        if copies == 1:
            return self.trunk(inputs)[where]
        # What the copies share goes through the network with gradient, and fills a cache. The cache
        # is repeated, and each copy goes on alone. Inputs are shifted by bos, so the last shared
        # one predicts the first token that `where` asks for; earlier features are dropped.
        n_shared = first_true(where) + 1        # bos, and the shared ids
        cache = self.new_cache()
        rows = torch.arange(len(inputs), device=self.device) // copies      # (N,)
        x = self.trunk(inputs[::copies, :n_shared], cache)[:, -1:].index_select(0, rows)
        if n_shared < inputs.size(1):
            cache.batch_select_indices(rows)
            rest = self.trunk(inputs[:, n_shared:], cache)                  # (N, T - n_shared, C)
            x = torch.cat((x, rest), 1)
        return x[where[:, n_shared - 1:]]


@torch.compiler.disable
def first_true(where):
    """Return the number of the first column of where (N, T) that has a True in any row."""
    return int(where.any(0).nonzero()[0])


class GPT(Network):
    """Pre-norm transformer without biases, bidirectional or causal.

    It reads V base ids, blank_id = V, bos = V + 1 and pad = V + 2. Its output is over the V base
    ids only, so nothing has to forbid the others. positions: 'rotary', for running text |
    'learned', for sequences with columns. A classifier has one output a position."""

    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd, causal, positions='rotary',
                 is_classifier=False):
        super().__init__()
        self.args = {'vocab_size': vocab_size, 'block_size': block_size, 'n_layer': n_layer,
                     'n_head': n_head, 'n_embd': n_embd, 'causal': causal,
                     'positions': positions, 'is_classifier': is_classifier}
        assert n_embd > 0 and n_embd % (2 * n_head) == 0, (
            f"n_embd = {n_embd}, n_head = {n_head}: expected a multiple of 2 * n_head")
        self.block_size = block_size
        self.causal = causal
        self.is_classifier = is_classifier
        self.blank_id, self.bos_id, self.pad_id = range(vocab_size, vocab_size + 3)
        self.embed = nn.Embedding(vocab_size + 3, n_embd)
        self.blocks = nn.ModuleList(Block(i, n_layer, n_head, n_embd) for i in range(n_layer))
        n_outputs = 1 if is_classifier else vocab_size
        self.head = linear(n_embd, n_outputs, 0.0)      # the first guess is uniform
        if positions == 'learned':
            self.position = nn.Embedding(block_size, n_embd)
        # Rotary positions (arXiv:2104.09864) rotate pairs of channels, one from each half of a
        # head, by an angle that is proportional to the position.
        D = n_embd // n_head
        frequencies = 10000.0 ** (-torch.arange(0, D, 2) / D)               # (D / 2,)
        angles = torch.outer(torch.arange(block_size), torch.cat((frequencies, frequencies)))
        self.rotary = nn.Buffer(torch.stack((angles.cos(), angles.sin())), persistent=False)

    def hidden_matrices(self):
        """Return the weights of the blocks, which are all matrices."""
        return list(self.blocks.parameters())

    def trunk(self, inputs, cache=None):
        """Return features (N, L, C) of ids (N, L). cache: the tokens to their left, if causal."""
        start = cache[0].size(3) if cache else 0        # an empty cache is False
        stop = start + inputs.size(1)
        assert stop <= self.block_size, f"{stop} tokens: expected {self.block_size} or less"
        if self.causal:                         # a token sees itself and the tokens to its left
            mask = torch.full((stop - start, stop), -math.inf, device=self.device).triu(start + 1)
        else:                                   # a token sees everything but padding
            mask = torch.where(inputs == self.pad_id, -math.inf, 0.0)[:, None, None]
        x = self.embed(inputs)                                              # (N, L, C)
        rotary = None
        if self.args['positions'] == 'rotary':
            rotary = self.rotary[:, start:stop]                             # (2, L, D)
        else:
            x = x + self.position.weight[start:stop]
        x = norm(x)                             # size 1, as what every layer reads
        for block in self.blocks:
            x = block(x, rotary, mask, cache)
        return norm(x)

    def logits(self, x):
        """Return logits (..., V) of features (..., C), float32 like them, even under autocast."""
        with torch.autocast(x.device.type, enabled=False):
            return self.head(x)

# ---- optimizers ----------------------------------------------------------------------------------


def make_optimizers(model, name, weight_decay, beta2):
    """Return a list of optimizers. 'adamw': for all weights. 'muon': Muon (K. Jordan, 2024) for the
    hidden matrices, AdamW for the rest. match_rms_adamw makes the steps of both about as large.
    optimizer_step() sets their learning rate."""
    # Muon orthogonalizes the update of a matrix. Embedding and output layer are matrices too, but
    # they get AdamW by convention, because their rows belong to single tokens.
    assert name != 'muon' or hasattr(model, 'hidden_matrices'), (
        "optimizer = 'muon': a pretrained network needs 'adamw'")
    matrices = model.hidden_matrices() if name == 'muon' else []
    is_matrix = set(matrices)
    others = [p for p in model.parameters() if p not in is_matrix]
    optimizers = [torch.optim.AdamW(others, betas=(0.9, beta2), fused=True,
                                    weight_decay=weight_decay)]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, adjust_lr_fn='match_rms_adamw',
                                           weight_decay=weight_decay))
    return optimizers


def get_lr(step, peak, floor, warmup, total):
    """Return the learning rate at a step: linear warm-up, then a cosine from peak to floor."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    progress = (step - warmup) / (total - warmup)
    floor = min(floor, peak)
    return floor + 0.5 * (1 + math.cos(math.pi * progress)) * (peak - floor)


def optimizer_step(model, optimizers, lr, grad_clip):
    """Take one step of all optimizers at rate lr. Return the gradient's norm before clipping."""
    # With a limit of infinity nothing is clipped, but the norm is measured all the same.
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), grad_clip or math.inf)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group['lr'] = lr
        # A gradient of 0 (all groups are dead, and no KL) must not move the policy. Muon would step
        # in its old direction, again and again, at full length.
        if grad_norm > 0:
            optimizer.step()
        optimizer.zero_grad()
    return grad_norm


# ---- checkpoints ---------------------------------------------------------------------------------


def checksum(network):
    """Return a number that tells the weights of networks apart."""
    crc = 0
    for name, weight in sorted(network.state_dict().items()):
        crc = zlib.crc32(weight.cpu().contiguous().numpy(), zlib.crc32(name.encode(), crc))
    return crc


def save_checkpoint(path, model, vocabulary, config, **more):
    """Save a network, the vocabulary of its tokenizer and the knobs that made it, under a temporary
    name. Then rename the file: a checkpoint is whole or not there. If the disk is full, or a weight
    is not finite, an older file is unchanged."""
    temporary = Path(f'{path}.{os.getpid()}.tmp')
    temporary.parent.mkdir(parents=True, exist_ok=True)
    assert all(weight.isfinite().all() for weight in model.state_dict().values()), (
        f"the weights are not finite, so {path} was not overwritten; try a lower learning_rate")
    try:
        torch.save({'model_args': model.args, 'model': model.state_dict(), 'config': config,
                    'vocabulary': vocabulary, **more}, temporary)
        temporary.replace(path)
    except (OSError, RuntimeError) as e:        # of a full disk torch makes the latter
        fail(f"{path} cannot be written: {e}")
    finally:
        temporary.unlink(missing_ok=True)       # it is still there if something went wrong


def load_checkpoint(path):
    """Return the dict of a checkpoint, or of the ckpt.pt of a run's folder; for a folder that
    save_pretrained of transformers wrote, a dict with its path."""
    if os.path.exists(f'{path}/ckpt.pt'):
        path = f'{path}/ckpt.pt'
    elif os.path.exists(f'{path}/config.json') and not os.path.exists(f'{path}/log.jsonl'):
        return {'model_args': {'folder': path}, 'vocabulary': path, 'config': {}}
    if not os.path.exists(path):
        fail_unknown('there is no run or checkpoint', path, os.listdir())
    try:
        # weights_only: a checkpoint is somebody's file, and a pickle can run any code
        checkpoint = torch.load(path, map_location='cpu', weights_only=True)
        assert 'model_args' in checkpoint
        return checkpoint
    except Exception as e:                      # pickle, zipfile and torch raise a dozen kinds
        fail(f"{path} is no checkpoint, and no folder that has a ckpt.pt ({type(e).__name__})")


def restore(folder, must_match, model, optimizers):
    """Load the weights of a run, and the moments of its optimizers; weight decay and betas stay as
    they are. Return its checkpoint. must_match: {name: value} that the run must have in common with
    this one."""
    checkpoint = load_checkpoint(folder)
    for name, value in must_match.items():
        assert checkpoint['must_match'].get(name, value) == value, (
            f"a resumed run keeps its {name}; that of {folder} is another one")
    model.load_state_dict(checkpoint['model'])
    for optimizer, saved in zip(optimizers, checkpoint['optimizers']):
        optimizer.load_state_dict(optimizer.state_dict() | {'state': saved['state']})
    return checkpoint
