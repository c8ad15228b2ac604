"""The GPT, in one file: the network and its optimizers.

One class serves as generator and as judge. There is no dropout, because sampling and learning must
see one and the same network."""
import collections
import math

import torch
import torch.nn.functional as F
from torch import nn

from run.batching import distinct_rows

# letters: N sequences | T tokens in a sequence, L of them in one pass | V base ids | C channels
# H heads | D = C / H


# ---- the network ---------------------------------------------------------------------------------


def norm(x):
    """Normalize x over the channels, without weights."""
    return F.layer_norm(x, x.shape[-1:])


def attention(q, k, v, mask):
    """Return the attention of q (N, H, L, D) to k, v (N, H, keys, D). mask (L, keys) or
    (N, 1, 1, keys): added to the scores, 0 or (nearly) -inf."""
    # On a CPU torch's fused kernel makes a step of config/grpo_config.py 1.35 times as long as two
    # plain products, and one of config/grpo_think.py 1.2 times: our heads are small.
    # On a GPU the fused kernel never writes the scores to memory.
    if q.device.type != 'cpu':
        return F.scaled_dot_product_attention(q, k, v, mask)
    if mask.dim() == 4:
        mask = mask.expand(-1, q.size(1), 1, -1).flatten(0, 1)              # (N * H, 1, keys)
    scale = q.size(-1) ** -0.5
    scores = torch.baddbmm(mask.to(q.dtype), q.flatten(0, 1), k.flatten(0, 1).mT, alpha=scale)
    return (scores.softmax(-1) @ v.flatten(0, 1)).view_as(q)


class KVCache(dict):
    """{layer: keys and values (2, N, H, length, D)} of tokens that a causal network has seen."""

    def batch_select_indices(self, rows):
        """Keep the sequences `rows` (n,), in this order. A sequence may come several times. (The
        caches of transformers have this method, too.)"""
        for layer in self:
            self[layer] = self[layer].index_select(1, rows)


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
        qkv = qkv.contiguous()                                      # (3, N, H, L, D)
        if rotary is not None:
            # Halves a, b of a head of q and k become a cos - b sin, b cos + a sin.
            cos, sin = rotary                                       # (L, D) each
            a, b = qkv[:2].chunk(2, -1)
            qk = qkv[:2] * cos + torch.cat((-b, a), -1) * sin
            qkv = torch.cat((qk.to(qkv.dtype), qkv[2:]))
        kv = qkv[1:]                                                # (2, N, H, L, D)
        if cache is not None:                   # these go behind those of all tokens so far
            if self.layer in cache:
                kv = torch.cat((cache[self.layer], kv), -2)
            cache[self.layer] = kv
        y = attention(qkv[0], *kv, mask)                            # (N, H, L, D)
        x = x + self.proj(y.transpose(1, 2).flatten(2))             # (N, L, C) heads side by side
        return x + self.down(self.up(norm(x)).relu_())


class Network(nn.Module):
    """What GRPO asks of a network. A GPT is one, and so is a Pretrained of hf.py. They have
      trunk(inputs, cache)      features (N, L, C) of ids (N, L). A position of a causal network
                                sees itself and what stands to its left; earlier tokens may be in
                                the cache, to which new ones are added. bos is its first input
      logits(features)          float32 logits (..., V)
      head                      the linear layer that makes them
      causal, is_classifier     what it is
      blank_id, bos_id, pad_id  ids behind the V that it can produce
      block_size                tokens of the longest sequence
      args                      plain values, for checkpoints
      blocks                    all its weights are matrices, for Muon; 'adamw' needs none"""
    new_cache = KVCache
    has_bos = True              # False: the first token of a sequence has no probability

    @property
    def device(self):
        return next(self.parameters()).device

    @property
    def dtype(self):
        return next(self.parameters()).dtype

    def forward(self, tokens, start=0):
        """Return features (N, T, C) of tokens (N, T); logits() of those at t predict token t. A
        bidirectional network predicts what is blank; a causal one sees what is to the left of t.
        So a causal network shifts its inputs:

            trunk   (bos a b)   predicts a b c
            forward (a b c)     gives trunk bos a b

        start: the first columns of causal sequences hold prompts, see after_prompts(). Padding
        behind the longest sequence is left out, and gets features 0."""
        inputs = tokens
        if self.causal:
            inputs = F.pad(tokens[:, :-1], (1, 0), value=self.bos_id)   # bos, and all but the last
        inputs = inputs[:, :longest(inputs, self.pad_id)]
        if self.causal and start > 0:
            x = self.after_prompts(inputs, start + 1)
        else:
            x = self.trunk(inputs)
        return F.pad(x, (0, 0, 0, tokens.size(1) - x.size(1)))

    def after_prompts(self, inputs, n_shared):
        """Return features (N, L, C) of inputs (N, L), as trunk() does. Many sequences begin with
        the same `n_shared` columns, which are computed only once, with the gradient of all of
        them."""
        # Prompts fill a cache. It is repeated, and each sequence goes on alone.
        first, prompt_of = distinct_rows(inputs[:, :n_shared])
        cache = self.new_cache()
        x = self.trunk(inputs[first, :n_shared], cache).index_select(0, prompt_of)
        if n_shared < inputs.size(1):
            cache.batch_select_indices(prompt_of)
            x = torch.cat((x, self.trunk(inputs[:, n_shared:], cache)), 1)
        return x

    def decide_order(self, n_passes):
        """Add one more output, if there is none yet: a score for each position. In each of n_passes
        but the last, which fills the rest, a blank is filled with probability sigmoid(score). At
        first the scores are a constant, with which a blank is left for the last pass in 3 of 100
        cases. They are 16 times what the linear layer gives, so they learn 16 times as fast as what
        the network knows: at the same speed the order came too slowly, or knowledge was lost."""
        if not hasattr(self, 'order'):
            self.order = nn.Linear(self.head.in_features, 1, device=self.device, dtype=self.dtype)
            nn.init.zeros_(self.order.weight)
            wait = 0.03 ** (1 / (n_passes - 1))         # probability to wait in one pass
            nn.init.constant_(self.order.bias, math.log((1 - wait) / wait) / 16)

    def order_scores(self, x):
        """Return scores (...) of features (..., C), in float32 even under autocast."""
        with torch.autocast(x.device.type, enabled=False):
            return 16 * self.order(x.to(self.order.weight.dtype))[..., 0]


@torch.compiler.disable
def longest(tokens, pad_id):
    """Return the length of the longest of the sequences (N, T), without the padding behind it."""
    return int((tokens != pad_id).any(0).sum())


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
        assert n_embd % (2 * n_head) == 0, (
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
        angles = torch.outer(torch.arange(block_size), frequencies.repeat(2))
        self.rotary = nn.Buffer(torch.stack((angles.cos(), angles.sin())), persistent=False)
        # a token of a causal network sees itself and the tokens to its left
        mask = torch.full((block_size, block_size), -math.inf).triu(1)
        self.mask = nn.Buffer(mask, persistent=False)

    def trunk(self, inputs, cache=None):
        """Return features (N, L, C) of ids (N, L). cache: the tokens to their left, if causal."""
        start = cache[0].size(3) if cache else 0        # an empty cache is False
        stop = start + inputs.size(1)
        assert stop <= self.block_size, f"{stop} tokens: expected {self.block_size} or less"
        mask = self.mask[start:stop, :stop]                                 # (L, stop)
        if not self.causal:                     # a token sees everything but padding
            mask = -1e9 * (inputs == self.pad_id)[:, None, None]
        x = self.embed(inputs)                                              # (N, L, C)
        rotary = self.rotary[:, start:stop]                                 # (2, L, D)
        if hasattr(self, 'position'):           # learned ones
            rotary = None
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


class Muon(torch.optim.Optimizer):
    """Muon (K. Jordan, 2024): each update of a matrix is orthogonalized, and as large as those of
    AdamW are. The numbers are those of torch.optim.Muon with match_rms_adamw, but that takes the
    matrices one by one. This one takes all of the same shape at once: in half of the time with 64
    channels, in the same time with 128, and with a quarter of the operations."""

    def __init__(self, matrices, weight_decay):
        super().__init__(matrices, {'lr': 0.0, 'weight_decay': weight_decay})

    @torch.no_grad()
    def step(self):
        group, = self.param_groups
        by_shape = collections.defaultdict(list)
        for p in group['params']:
            by_shape[tuple(sorted(p.shape))].append(p)
        for shape, matrices in by_shape.items():
            grads = torch.stack([wide(p.grad) for p in matrices])           # (matrices, *shape)
            state = self.state[matrices[0]]
            if not state:
                state['moments'] = torch.zeros_like(grads)
            moments = state['moments'].lerp_(grads, 0.05)
            updates = orthogonalize(grads.lerp(moments, 0.95)).to(grads.dtype)
            if group['weight_decay'] > 0:
                torch._foreach_mul_(matrices, 1 - group['lr'] * group['weight_decay'])
            torch._foreach_add_([wide(p) for p in matrices], updates.unbind(),
                                alpha=-group['lr'] * 0.2 * math.sqrt(max(shape)))


def wide(matrix):
    """Return a view of a matrix that has at least as many columns as rows."""
    return matrix if matrix.size(0) <= matrix.size(1) else matrix.T


def orthogonalize(x):
    """Return wide matrices (n, rows, columns) whose singular values have become about 1: five steps
    of Newton and Schulz, in bfloat16."""
    x = x.bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        a = x @ x.mT
        b = torch.baddbmm(a, a, a, beta=-4.775, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445)
    return x


def make_optimizers(model, name, weight_decay):
    """Return a list of optimizers. 'adamw': for all weights. 'muon': Muon for the hidden matrices,
    AdamW for the rest. optimizer_step() sets their learning rate."""
    # Embedding and output layer are matrices, too, but they get AdamW by convention, because their
    # rows belong to single tokens. (qkv is one matrix here, so queries, keys and values are made
    # orthogonal together.)
    assert name != 'muon' or hasattr(model, 'blocks'), (
        "optimizer = 'muon': a pretrained network needs 'adamw'")
    matrices = list(model.blocks.parameters()) if name == 'muon' else []
    is_matrix = set(matrices)
    others = [p for p in model.parameters() if p not in is_matrix]
    optimizers = [torch.optim.AdamW(others, betas=(0.9, 0.95), fused=True,
                                    weight_decay=weight_decay)]
    if matrices:
        optimizers.append(Muon(matrices, weight_decay))
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
    # A gradient of 0 (all groups are dead, and no KL) must not move the policy. Muon would step in
    # its old direction, again and again, at full length.
    moves = bool(grad_norm > 0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group['lr'] = lr
        if moves:
            optimizer.step()
        optimizer.zero_grad()
    return grad_norm
