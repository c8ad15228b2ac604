"""The GPT, in one file: the network, sampling from it, its optimizers and checkpoints.

One class serves as generator and as judge. There is no dropout, because sampling and learning must
see one and the same network."""
import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import fail
from data.dataset import Prompts, Tokenizer, texts_of

# letters: B prompts, k completions of each: N = B * k sequences | T tokens in a sequence
# V base ids | C channels | H heads | D = C / H | M sampled tokens, from U distributions | S states


# ---- the network ---------------------------------------------------------------------------------


def norm(x):
    """Normalize x over the channels, without weights."""
    return F.layer_norm(x, x.shape[-1:])


def attention(q, k, v, mask):
    """Return the attention of q (N, H, S, D) to k, v (N, H, keys, D). mask: added to the scores,
    0 or -inf."""
    # On a CPU two plain products are faster than torch's fused kernel, for heads as small as ours.
    # On a GPU the fused kernel never writes the scores to memory.
    if q.device.type != 'cpu':
        return F.scaled_dot_product_attention(q, k, v, mask)
    scores = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)                 # (N, H, S, keys)
    scores += mask
    return scores.softmax(-1) @ v


class KVCache(dict):
    """{layer: keys and values (2, N, H, length, D)} of tokens that a causal network has seen."""

    def update(self, k, v, layer):
        """Append k, v (N, H, S, D) of the next tokens; return those of all tokens so far."""
        kv = torch.stack((k, v))
        if layer in self:
            kv = torch.cat((self[layer], kv), 3)
        self[layer] = kv
        return kv

    def batch_repeat_interleave(self, copies):
        """Turn each sequence into `copies` neighbouring sequences."""
        for layer in self:
            self[layer] = self[layer].repeat_interleave(copies, 1)


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
        # These two layers start small, because the residual stream adds up 2 * n_layer of them.
        small = 0.02 / math.sqrt(2 * n_layer)
        self.qkv = linear(n_embd, 3 * n_embd, n_embd ** -0.5)
        self.proj = linear(n_embd, n_embd, small)
        self.up = linear(n_embd, 4 * n_embd, n_embd ** -0.5)
        self.down = linear(4 * n_embd, n_embd, small)

    def forward(self, x, rotary, mask, cache):
        qkv = self.qkv(norm(x)).unflatten(2, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv                                               # (N, H, S, D) each
        if rotary is not None:
            # Halves a, b of a head become a cos - b sin, b cos + a sin. The first half of the
            # table `sin` is negative.
            cos, sin = rotary                                       # (S, D) each
            q, k = (qkv[:2] * cos + qkv[:2].roll(v.size(-1) // 2, -1) * sin).to(v.dtype)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
        y = attention(q, k, v, mask)                                # (N, H, S, D)
        x = x + self.proj(y.transpose(1, 2).flatten(2))             # (N, S, C) heads side by side
        return x + self.down(self.up(norm(x)).relu_())


class GPT(nn.Module):
    """Pre-norm transformer without biases, bidirectional or causal.

    It reads V base ids, mask = V, bos = V + 1 and pad = V + 2. Its output is over the V base ids
    only, so nothing has to forbid the others. positions: 'rotary', for running text | 'learned',
    for sequences with columns. n_outputs: 1 for a classifier; 0: V.

    Another network can take the place of this one. GRPO needs of it:
      model(tokens, where, copies) -> float32 logits (U, V) that score tokens[n, t] at the U places
          where `where` (N, T) is True, sequence by sequence. A fill network must not see the tokens
          there; a causal one may see only what stands to their left. copies: sequences come in runs
          of `copies`, equal up to their first True; this part may be computed once.
      causal, device, mask_id, bos_id, pad_id, block_size (of the longest sequence), and args (plain
          values, for checkpoints)
      hidden_matrices(): the weights for Muon; not needed with optimizer = 'adamw'
    and, if it is causal, to generate token by token:
      cache = model.new_cache(), with cache.batch_repeat_interleave(copies)
      model.next_logits(tokens, cache) -> logits (N, V) of the token after tokens (N, S), which
          continue those in the cache and are appended to it."""

    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd, causal, positions='rotary',
                 n_outputs=0):
        super().__init__()
        self.args = {'vocab_size': vocab_size, 'block_size': block_size, 'n_layer': n_layer,
                     'n_head': n_head, 'n_embd': n_embd, 'causal': causal,
                     'positions': positions, 'n_outputs': n_outputs}
        assert n_embd > 0 and n_embd % (2 * n_head) == 0, (
            f"n_embd = {n_embd}, n_head = {n_head}: expected a multiple of 2 * n_head")
        self.block_size = block_size
        self.causal = causal
        self.mask_id, self.bos_id, self.pad_id = range(vocab_size, vocab_size + 3)
        self.embed = nn.Embedding(vocab_size + 3, n_embd)
        self.blocks = nn.ModuleList(Block(i, n_layer, n_head, n_embd) for i in range(n_layer))
        self.head = linear(n_embd, n_outputs or vocab_size, 0.0)    # the first guess is uniform
        if positions == 'learned':
            self.position = nn.Embedding(block_size, n_embd)
        # Rotary positions (arXiv:2104.09864) rotate pairs of channels, one from each half of a
        # head, by an angle that is proportional to the position.
        D = n_embd // n_head
        frequencies = 10000.0 ** (-torch.arange(0, D, 2) / D)               # (D / 2,)
        angles = torch.outer(torch.arange(block_size), torch.cat((-frequencies, frequencies)))
        self.rotary = nn.Buffer(torch.stack((angles.cos(), angles.sin())), persistent=False)

    @property
    def device(self):
        return self.embed.weight.device

    def hidden_matrices(self):
        """Return the weights of the blocks, which are all matrices."""
        return list(self.blocks.parameters())

    def trunk(self, inputs, cache=None):
        """Return features (N, S, C) of ids (N, S). cache: the tokens to their left, if causal."""
        start = cache[0].size(3) if cache else 0
        stop = start + inputs.size(1)
        assert stop <= self.block_size, f"{stop} tokens: expected {self.block_size} or less"
        if self.causal:                         # a token sees itself and the tokens to its left
            mask = torch.full((stop - start, stop), -math.inf, device=self.device).triu(start + 1)
        else:                                   # a token sees everything but padding
            mask = torch.where(inputs == self.pad_id, -math.inf, 0.0)[:, None, None]
        x = self.embed(inputs)                                              # (N, S, C)
        rotary = None
        if self.args['positions'] == 'rotary':
            rotary = self.rotary[:, start:stop]                             # (2, S, D)
        else:
            x = x + self.position.weight[start:stop]
        x = norm(x)                             # embeddings have size 1, as everywhere below
        for block in self.blocks:
            x = block(x, rotary, mask, cache)
        return norm(x)

    def forward(self, tokens, where, copies=1):
        """Return logits (U, V) for tokens (N, T) at the U places where `where` (N, T) is True."""
        if self.causal:                         # bos, and all tokens but the last
            inputs = F.pad(tokens[:, :-1], (1, 0), value=self.bos_id)
        else:
            inputs = tokens.masked_fill(where, self.mask_id)
        if copies == 1:
            return self.logits(self.trunk(inputs)[where])
        # Each `copies` neighbouring sequences begin with the same ids. These go through the network
        # once, with gradient, and fill a cache. The cache is repeated, and each copy goes on alone.
        n_shared = first_true(where) + 1        # bos, and the shared ids
        cache = KVCache()
        shared = self.trunk(inputs[::copies, :n_shared], cache)             # (B, n_shared, C)
        cache.batch_repeat_interleave(copies)
        rest = self.trunk(inputs[:, n_shared:], cache)                      # (N, T - n_shared, C)
        x = torch.cat((shared.repeat_interleave(copies, 0), rest), 1)       # (N, T, C)
        return self.logits(x[where])

    def logits(self, x):
        """Return logits (..., V) of features (..., C), float32 like them, even under autocast."""
        with torch.autocast(x.device.type, enabled=False):
            return self.head(x)

    new_cache = KVCache

    def next_logits(self, tokens, cache):
        """Return logits (N, V) of the token after tokens (N, S), which continue those in the cache.
        """
        return self.logits(self.trunk(tokens, cache)[:, -1])


@torch.compiler.disable
def first_true(where):
    """Return the number of the first column of where (N, T) that has a True in any row."""
    return int(where.any(0).nonzero()[0])


def equal_pairs(groups):
    """Return (B, k, k) bool: which sequences of each group (B, k, T) are equal."""
    return (groups[:, :, None] == groups[:, None]).all(3)


# ---- sampling: the same distribution is used to sample, to score, and in the ratio ---------------


def log_probs(logits, temperature=1.0, kept=None):
    """Return log-probabilities (U, V) of softmax(logits / temperature), in nats. Ids that are False
    in kept (U, V) have probability 0; None: all ids are kept."""
    logits = logits / temperature
    if kept is not None:
        # -1e9 rather than -inf: p is still exactly 0, and p * log p is 0 instead of NaN
        logits = logits.masked_fill(~kept, -1e9)
    return logits.log_softmax(-1)


def kept_set(logp, top_k=0, top_p=1.0):
    """Return the ids (U, V) bool that the filters keep. top_k: so many of the likeliest, 0: all.
    top_p: of what top_k keeps, the fewest ids with this share of its mass (arXiv:1904.09751)."""
    p, order = logp.exp().sort(-1, descending=True)
    if top_k > 0:
        p[:, top_k:] = 0
    cdf = p.cumsum(-1)
    keep = cdf - p < top_p * cdf[:, -1:]        # an id is kept if the likelier ids have less
    return keep.scatter(-1, order, keep)        # back into the order of the ids


def draw(logp, uniforms):
    """Return ids (U, k) drawn from log-probs (U, V) by inverse CDF, from uniforms (U, k) in [0, 1).
    Unlike torch.multinomial, this gives the same ids for any number of ranks and micro-steps."""
    # The CDF rises from 0 to 1. A uniform u draws the first id at which it exceeds u.
    cdf = logp.exp().cumsum_(-1)                                    # (U, V)
    # Stay strictly inside the CDF, however u * top is rounded: no id of probability 0 is drawn.
    top = cdf[:, -1:] * (1 - 2e-7)                                  # (U, 1)
    return torch.searchsorted(cdf, uniforms * top, right=True)


def choose(logits, uniforms, temperature=1.0, top_k=0, top_p=1.0):
    """Sample from logits (U, V) with uniforms (U, k). Return ids (U, k), and the kept set (U, V)
    bool, None without filters. top_k = 1 is greedy decoding."""
    kept = None
    assert 0 < top_p <= 1 and temperature > 0, (
        f"top_p = {top_p}, temperature = {temperature}: expected 0 < top_p <= 1, temperature > 0")
    if top_k > 0 or top_p < 1:
        kept = kept_set(log_probs(logits, temperature), top_k, top_p)
    logp = log_probs(logits, temperature, kept)                     # (U, V)
    assert logp.isfinite().all(), (
        "log-probabilities are not finite, so nothing was saved; try a lower learning_rate")
    return draw(logp, uniforms), kept


@dataclass
class Rollout:
    """k completions of each of B prompts, and every token that was sampled on the way to them.

    A sampled token is an id that one sequence took at one position, drawn from one of the
    distributions model(states, where). In the example two prompts, 7 _ _ and 2 _ _, k = 2, are
    filled from left to right in two passes. Sequences of a prompt that are in the same state share
    its distributions: in the first pass all k do, in the second both sequences of the second
    prompt, because both took an 8.

        sequences          7 4 9   7 5 1   2 8 6   2 8 3           N = 4, numbers 0 to 3

                           first pass      second pass
        states             7 _ _   2 _ _   7 4 _   7 5 _   2 8 _   S = 5
        where                x       x         x       x       x   U = 5 distributions, 0 to 4

        sequence_of        0 1 2 3         0 1 2 3                 M = 8 sampled tokens
        distribution_of    0 0 1 1         2 3 4 4
        actions            4 5 8 8         9 1 6 3

    In causal mode the states are the sequences, and each token has a distribution of its own."""
    prompts: Prompts            # B of them
    sequences: Tensor           # (N, T); sequence b * k + j is completion j of prompt b
    states: Tensor              # (S, T) inputs of all passes; a fill network masks them at `where`
    where: Tensor               # (S, T) bool: the U places where it gave a distribution
    sequence_of: Tensor         # (M,) the sequence of each sampled token, in [0, N)
    distribution_of: Tensor     # (M,) the distribution that it was drawn from, in [0, U)
    actions: Tensor             # (M,) the sampled id
    kept: Tensor | None         # (U, V) bool: what top-k and top-p kept; None: everything
    causal: bool = False        # True: generated from left to right; the states are the sequences
    logp_old: Tensor | None = None      # (M,) its log-probability before the first update; None if
                                # the step has a single update

    @property
    def k(self):
        return self.prompts.uniforms.size(1)

    def logits_of(self, model):
        """Return any model's logits (U, V), one row for each distribution of this Rollout."""
        return model(self.states, self.where, copies=self.k if self.causal else 1)

    def texts(self):
        """Return prompts, completions and originals, three lists of N strings; see texts_of()."""
        return texts_of(self.prompts, self.sequences, self.causal)

    def sum(self, values):
        """Sum per-token values (M,) over each sequence: (N,)."""
        return values.new_zeros(len(self.sequences)).index_add(0, self.sequence_of, values)


@torch.no_grad()
def complete(model, prompts, n_fill_steps=1, **sampling):
    """Complete each of B Prompts k times, as often as it has uniforms. Return a Rollout. sampling:
    temperature, top_k, top_p, see choose()."""
    assert model.args.get('n_outputs', 0) == 0, "a classifier cannot generate"
    if model.causal:
        assert n_fill_steps == 1, "n_fill_steps: a causal generator has no passes"
        return generate(model, prompts, **sampling)
    if n_fill_steps == 1:
        return fill(model, prompts, **sampling)
    return fill_in_passes(model, prompts, n_fill_steps, **sampling)


def fill(model, prompts, **sampling):
    """Fill all blanks from one forward pass, k times. Return a Rollout.

    The pass gives each blank a distribution, and all k completions are drawn from it. No blank
    knows what the others become."""
    # The U blanks of all prompts, one after the other: the prompt and the position of each.
    prompt, position = prompts.mask.nonzero(as_tuple=True)                      # (U,) each
    logits = model(prompts.tokens, prompts.mask)                                # (U, V)
    ids, kept = choose(logits, prompts.uniforms[prompt, :, position], **sampling)
    # Distribution u gives completion j of its prompt the token ids[u, j].
    k = ids.size(1)
    u, j = torch.ones_like(ids).nonzero(as_tuple=True)                          # (M,) each
    n = prompt[u] * k + j
    t = position[u]
    sequences = prompts.tokens.repeat_interleave(k, 0)                          # (N, T)
    sequences[n, t] = ids.flatten()
    return Rollout(prompts, sequences, prompts.tokens, prompts.mask, n, u, ids.flatten(), kept)


def fill_in_passes(model, prompts, n_fill_steps, **sampling):
    """Fill the blanks in several passes, each of which sees what the passes before it filled.
    Return a Rollout.

    The blanks of a prompt have places by prompts.order: 0 for the lowest key, 1 for the next one.
    Pass i fills those with place * n_fill_steps // blanks == i. The order does not depend on the
    samples, so the log-probability of a sequence, given the order, is the sum over its tokens."""
    _, k, T = prompts.uniforms.shape
    # argsort twice gives the places. Positions that are not blank come last, and no pass fills
    # them: pass_of is n_fill_steps or more there, or NaN in a prompt without blanks.
    place = prompts.order.masked_fill(~prompts.mask, T).argsort(1).argsort(1)   # (B, T)
    pass_of = (place * n_fill_steps / prompts.mask.sum(1, keepdim=True)).floor()        # (B, T)
    partial = prompts.tokens.masked_fill(prompts.mask, model.mask_id)           # (B, T)
    partial = partial[:, None].repeat(1, k, 1)                                  # (B, k, T)
    passes = []
    n_distributions = 0
    for i in range(n_fill_steps):
        # partial: the k sequences of each prompt as they are so far, with mask_id in the blanks.
        # Sequences of a prompt that are in the same state share its distributions, so only the
        # first of them, their leader, goes through the network. States with nothing to fill in
        # this pass are skipped.
        is_equal = equal_pairs(partial)                                         # (B, k, k)
        is_leader = ~is_equal.tril(-1).any(2, keepdim=True)                     # (B, k, 1)
        fill_now = is_leader & (pass_of == i)[:, None]                          # (B, k, T)
        is_state = fill_now.any(2)                                              # (B, k)
        states = partial[is_state]                                              # (S, T)
        where = fill_now[is_state]                                              # (S, T)
        b, leader, t = fill_now.nonzero(as_tuple=True)                          # (U,) each
        ids, kept = choose(model(states, where), prompts.uniforms[b, :, t], **sampling)
        # Distribution u gives completion j the token ids[u, j], if j is in its leader's state.
        u, j = is_equal[b, leader].nonzero(as_tuple=True)                       # (M,) each
        partial[b[u], j, t[u]] = ids[u, j]
        passes.append((states, where, b[u] * k + j, n_distributions + u, ids[u, j], kept))
        n_distributions += len(ids)
    # Each pass is a tuple of tensors. Concatenate the first of all passes, then the second.
    columns = [None if values[0] is None else torch.cat(values) for values in zip(*passes)]
    return Rollout(prompts, partial.flatten(0, 1), *columns)


def generate(model, prompts, **sampling):
    """Generate from left to right, up to *and including* eos, with padding after it. Return a
    Rollout. Prompts may differ in length:

        1 2 + 3 = _ _ _ _       Generation starts at the first blank of all, here in the second
        1 + 2 = _ _ _ _ _       sequence. The first sequence keeps its own `=` there.
    """
    k = prompts.uniforms.size(1)
    column = first = first_true(prompts.mask)
    # Blanks begin as padding. After eos they stay padding.
    sequences = prompts.tokens.masked_fill(prompts.mask, model.pad_id).repeat_interleave(k, 0)
    sampled = prompts.mask.repeat_interleave(k, 0)          # (N, T) will be, unless eos comes first
    kept_at = []                                # of each position (N, V), or None
    cache = model.new_cache()
    inputs = F.pad(prompts.tokens[:, :first], (1, 0), value=model.bos_id)       # (B, first + 1)
    while sampled[:, column:].any():
        logits = model.next_logits(inputs, cache)                               # (N, V)
        if column == first:                     # up to here the k completions of a prompt are equal
            logits = logits.repeat_interleave(k, 0)
            cache.batch_repeat_interleave(k)
        ids, kept = choose(logits, prompts.uniforms[..., column].reshape(-1, 1), **sampling)
        kept_at.append(kept)
        is_sampled = sampled[:, column]         # (N,) False: still in the prompt, or after eos
        sequences[is_sampled, column] = ids[is_sampled, 0]
        inputs = sequences[:, column:column + 1]                                # (N, 1)
        ended = is_sampled & (inputs[:, 0] == prompts.tok.eos)                  # (N,)
        column += 1
        sampled[ended, column:] = False
    n, t = sampled.nonzero(as_tuple=True)                                       # (M,) each
    if kept is not None:
        kept = torch.stack(kept_at, 1)[n, t - first]                            # (M, V)
    return Rollout(prompts, sequences, sequences, sampled, n,
                   torch.arange(len(n), device=model.device), sequences[n, t], kept, causal=True)


# ---- optimizers ----------------------------------------------------------------------------------


def make_optimizers(model, kind, learning_rate, weight_decay, beta1, beta2):
    """Return a list of optimizers. 'adamw': for all weights. 'muon': Muon (K. Jordan, 2024) for the
    hidden matrices, AdamW for the rest. Both move a weight by about learning_rate a step."""
    settings = {'lr': learning_rate, 'weight_decay': weight_decay}
    # Muon orthogonalizes the update of a matrix. Embedding and output layer are matrices too, but
    # their rows belong to single tokens, so AdamW is the better choice for them.
    matrices = model.hidden_matrices() if kind == 'muon' else []
    others = [p for p in model.parameters() if p not in set(matrices)]
    optimizers = [torch.optim.AdamW(others, betas=(beta1, beta2), fused=True, **settings)]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, adjust_lr_fn='match_rms_adamw', **settings))
    return optimizers


def get_lr(step, peak, floor, warmup, total):
    """Return the learning rate at a step: linear warm-up, then a cosine from peak to floor."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    progress = (step - warmup) / (total - warmup)
    floor = min(floor, peak)
    return floor + 0.5 * (1 + math.cos(math.pi * progress)) * (peak - floor)


def update(model, optimizers, lr, grad_clip):
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


def save_checkpoint(path, model, tok, config, **more):
    """Save a network, its tokenizer and the knobs that made it, under a temporary name. Then rename
    the file: a checkpoint is whole or not there. If the disk is full, an older file is unchanged.
    """
    temporary = Path(f'{path}.{os.getpid()}.tmp')
    temporary.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.save({'model_args': model.args, 'model': model.state_dict(), 'config': config,
                    'vocabulary': tok.vocabulary, **more}, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)       # it is still there if something went wrong


def load_checkpoint(path):
    """Return the dict of a checkpoint; of a run's folder, that of its ckpt.pt; of a folder that
    save_pretrained of transformers wrote, one that names it."""
    if os.path.exists(f'{path}/ckpt.pt'):
        path = f'{path}/ckpt.pt'
    elif os.path.exists(f'{path}/config.json'):
        return {'model_args': {'folder': path}, 'vocabulary': path, 'config': {}}
    try:
        # weights_only: a checkpoint is somebody's file, and a pickle can run any code
        return torch.load(path, map_location='cpu', weights_only=True)
    except Exception as e:                      # pickle, zipfile and torch raise a dozen kinds
        fail(f"{path} is no checkpoint, and no folder that has a ckpt.pt ({type(e).__name__})")


def load_network(path, device='cpu'):
    """Return the network of a checkpoint or folder, and its tokenizer; see load_checkpoint()."""
    checkpoint = load_checkpoint(path)
    args = checkpoint['model_args']
    if 'folder' in args:
        from extras.pretrained import Pretrained
        model = Pretrained(**args)
        tok = model.tok
    else:
        model = GPT(**args)
        tok = Tokenizer(**checkpoint['vocabulary'])
    if 'model' in checkpoint:
        model.load_state_dict(checkpoint['model'])
    return model.to(device), tok
