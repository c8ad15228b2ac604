"""The generator: a GPT that fills blanks, and the script that pretrains it.

    python model.py config/generator_docstrings.py --max_iters=2000

One class serves as generator (bidirectional: fills all blanks in one pass; causal: writes from left
to right), as trunk of a classifier and as likelihood judge. There is no dropout: sampling and
learning must see one and the same network."""
import functools
import math
import os
import pathlib
import pickle
import re
import runpy
import sys
import time
from dataclasses import dataclass

from common import (HOME, at_least, autocast, between, configure, digest_of, fail, init_device,
                    is_main, knobs, new_file, one_of, run_script)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.dataset import (BLANK_KINDS, Dataset, Prompts, Tokenizer, blanks, draws,
                          prompts_of_texts, texts, texts_and_originals)

# knobs of pretraining
out = ''                    # checkpoint to write; '' means out/<name of the config file>.pt
dataset = 'arithmetic'      # a folder of data/
mode = 'fill'               # 'fill': bidirectional, all blanks at once | 'causal': left to right
block_size = 10             # T, tokens in a row
n_layer = 3                 # blocks
n_head = 4                  # H, heads per block
n_embd = 64                 # C, channels
blank_kind = 'random'       # 'random' positions | 'span': runs | 'suffix' | 'answer' of a pair
blank_low = 0.2             # smallest share of a row that is blank
blank_high = 0.6            # largest share
blank_span = 4              # length of a run, for 'span'
batch_size = 256            # rows per step
max_iters = 1000            # optimizer steps
eval_interval = 250         # steps between looks at held-out rows; 0: at the end only
learning_rate = 4e-3        # peak; cosine to a tenth of it
warmup_iters = 50           # steps of linear warm-up
weight_decay = 0.01         # of all weights
beta1 = 0.9                 # AdamW
beta2 = 0.95                # AdamW
grad_clip = 1.0             # largest gradient norm; 0 switches it off
device = 'auto'             # 'auto' | 'cpu' | 'cuda' | 'mps'
dtype = 'auto'              # products in 'float32' | 'bfloat16' | 'float64' (checks) | 'auto'
compile = torch.cuda.is_available()     # torch.compile the trunk
seed = 1                    # of weights, rows and blanks
# letters: N rows, k of each of B prompts | T positions | V base ids | C channels | H heads
# D = C / H | M decisions, c choices at each, from U distributions

# What others call these knobs, and those of judge.py.
ELSEWHERE = {
    'learning_rate': 'lr',
    'max_iters': 'max_steps',
    'block_size': 'seq_len max_length',
    'n_embd': 'd_model hidden_size',
    'n_layer': 'n_layers',
    'n_head': 'n_heads',
    'out': 'output',
}


def check_knobs():
    """Ends with one line if a knob has an invalid value."""
    one_of(('fill', 'causal'), mode=mode)
    check_recipe(**knobs(globals()))


def check_recipe(*, block_size, n_layer, n_head, n_embd, blank_kind, blank_low, blank_high,
                 blank_span, batch_size, max_iters, eval_interval, learning_rate, warmup_iters,
                 weight_decay, beta1, beta2, grad_clip, dtype, seed, **others):
    """The same for the knobs that model.py and judge.py share."""
    one_of(BLANK_KINDS, blank_kind=blank_kind)
    one_of(('auto', 'float32', 'bfloat16', 'float64'), dtype=dtype)
    at_least(2, block_size=block_size)
    at_least(1, n_layer=n_layer, n_head=n_head, n_embd=n_embd, blank_span=blank_span,
             batch_size=batch_size, max_iters=max_iters)
    at_least(0, eval_interval=eval_interval, learning_rate=learning_rate, seed=seed,
             warmup_iters=warmup_iters, weight_decay=weight_decay, grad_clip=grad_clip)
    between(0, blank_high, blank_low=blank_low)
    between(0, 1, blank_high=blank_high)
    between(0, 0.9999, beta1=beta1, beta2=beta2)


# ---- the network ---------------------------------------------------------------------------------


def norm(x):
    """Root mean square 1 over the channels; no weights."""
    return F.rms_norm(x, x.shape[-1:])


def attention(q, k, v, bias, causal):
    """Softmax attention of q (N, H, S, D) to k, v (N, H, keys, D). bias: added to the scores, None:
    nothing is hidden. causal: the bias is the plain triangle, which a GPU's kernel has built in.

    On a CPU two plain products beat torch's fused kernel, for heads as small as ours."""
    if q.device.type != 'cpu':
        return F.scaled_dot_product_attention(q, k, v, None if causal else bias, is_causal=causal)
    scores = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)         # (N, H, S, keys)
    if bias is not None:
        scores = scores.add_(bias.to(scores.dtype))
    return scores.softmax(-1).to(v.dtype) @ v


class KVCache:
    """Keys and values of the tokens that a causal model has seen: of each block two tensors
    (N, H, width, D). The first `length` positions are in use, the rest is room for more."""

    def __init__(self, n_layer):
        self.keys = [None] * n_layer
        self.values = [None] * n_layer
        self.length = 0

    @property
    def width(self):
        return 0 if self.keys[0] is None else self.keys[0].size(2)

    def append(self, layer, k, v):
        """Writes k, v (N, H, S, D) of the next S tokens; returns all, room included: a product with
        a slice of them would copy it first. GPT.trunk() advances `length` after the last block."""
        if self.keys[layer] is None:
            self.keys[layer] = k
            self.values[layer] = v
        else:
            stop = self.length + k.size(2)
            self.keys[layer][:, :, self.length:stop] = k            # gradients pass through this
            self.values[layer][:, :, self.length:stop] = v
        return self.keys[layer], self.values[layer]

    def change(self, function):
        self.keys = [function(t) for t in self.keys]
        self.values = [function(t) for t in self.values]

    def reserve(self, more):
        """Room for `more` tokens behind what is there."""
        self.change(lambda t: F.pad(t, (0, 0, 0, more)))

    def expand(self, copies):
        """Each row becomes `copies` neighbouring rows."""
        self.change(lambda t: t.repeat_interleave(copies, 0))

    def select(self, rows):
        """Only these rows, (N,) bool, go on."""
        self.change(lambda t: t[rows])


class Block(nn.Module):
    """x + attention(norm(x)), then x + relu(up(norm(x)))^2 down."""

    def __init__(self, n_layer, n_head, n_embd):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd, bias=False)
        self.up = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.down = nn.Linear(4 * n_embd, n_embd, bias=False)
        # What is added to the residual stream starts small, by the number of such branches.
        small = 0.02 / math.sqrt(2 * n_layer)
        nn.init.normal_(self.qkv.weight, std=n_embd ** -0.5)
        nn.init.normal_(self.up.weight, std=n_embd ** -0.5)
        nn.init.normal_(self.proj.weight, std=small)
        nn.init.normal_(self.down.weight, std=small)

    def forward(self, x, cos, sin, bias, causal, cache=None, layer=0):
        N, S, C = x.shape
        D = C // self.n_head
        qkv = self.qkv(norm(x)).view(N, S, 3, self.n_head, D)
        v = qkv[:, :, 2].transpose(1, 2)                            # (N, H, S, D)
        qk = norm(qkv[:, :, :2].to(cos.dtype))                      # (N, S, 2, H, D)
        # Rotary positions: of the halves x, y of a head (x cos - y sin, y cos + x sin); the first
        # half of `sin` is stored with its minus.
        qk = (qk * cos).addcmul(qk.roll(D // 2, -1), sin)           # (N, S, 2, H, D)
        q, k = qk.to(v.dtype).transpose(1, 3).unbind(2)             # (N, H, S, D) each
        if cache is not None:
            k, v = cache.append(layer, k, v)
        y = attention(q, k, v, bias, causal)                        # (N, H, S, D)
        x = x + self.proj(y.transpose(1, 2).reshape(N, S, C))
        return x + self.down(self.up(norm(x)).relu_().square())


class GPT(nn.Module):
    """Pre-norm transformer: rotary positions, RMS-normalised queries and keys, no biases.

    Inputs are V base ids, mask = V, BOS = V + 1, padding = V + 2; outputs are the V base ids, so no
    function has to ban the others.

    What GRPO needs of a model, so that another one can take this one's place:
      model(tokens, where, prefix, copies) -> logits (M, V), float32, that score tokens[n, t] where
          `where` (N, T) holds, row by row. A fill model must not see the tokens there, a causal one
          nothing but what stands to the left. Causal: each `copies` neighbouring rows agree in
          their first `prefix` tokens, which may be computed once; it is a hint.
      causal, device, mask_id, bos_id, pad_id, vocab_size (V), block_size (longest row)
      parameters(), named_parameters(), state_dict(): as of any torch.nn.Module; names that contain
          'blocks.' are hidden matrices, for Muon
      args: a dict, kept in checkpoints; text: name of its corpus; compiled, trunk(): only if it is
          to be compiled
    and to write from left to right:
      cache = model.new_cache(), with cache.expand(copies), cache.select(rows), cache.reserve(more)
      model.next_logits(tokens, cache) -> logits (N, V) of what follows tokens (N, S), which follow
          what the cache holds, and enter it."""

    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd, causal):
        super().__init__()
        if n_embd % (2 * n_head):
            raise ValueError(f"n_embd = {n_embd}: expected a multiple of 2 * n_head = {2 * n_head}")
        self.args = {'vocab_size': vocab_size, 'block_size': block_size, 'n_layer': n_layer,
                     'n_head': n_head, 'n_embd': n_embd, 'causal': causal}
        self.vocab_size = vocab_size
        self.block_size = block_size
        self.causal = causal
        self.mask_id = vocab_size
        self.bos_id = vocab_size + 1
        self.pad_id = vocab_size + 2
        self.embed = nn.Embedding(vocab_size + 3, n_embd)
        self.blocks = nn.ModuleList(Block(n_layer, n_head, n_embd) for _ in range(n_layer))
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        nn.init.zeros_(self.head.weight)                            # the first guess is uniform
        self.compiled = None                                        # torch.compile(self.trunk)

        # Rotary positions (RoFormer, arXiv:2104.09864): half of a head is turned against the other.
        D = n_embd // n_head
        frequency = 10000.0 ** (-torch.arange(0, D, 2) / D)
        angle = torch.arange(block_size).view(-1, 1, 1, 1) * frequency      # (T, 1, 1, D / 2)
        self.cos = nn.Buffer(torch.cat((angle, angle), -1).cos(), persistent=False)
        self.sin = nn.Buffer(torch.cat((-angle, angle), -1).sin(), persistent=False)
        future = torch.full((block_size, block_size), -math.inf).triu(1)    # (T, T)
        self.future = nn.Buffer(future, persistent=False)

    @property
    def device(self):
        return self.embed.weight.device

    def trunk(self, inputs, cache=None, pad=None):
        """Ids (N, S) -> normalised features (N, S, C). cache: what stands to their left, and takes
        them in (causal); pad: (N, S) bool, positions that nobody looks at (bidirectional)."""
        start = cache.length if cache is not None else 0
        stop = start + inputs.size(1)
        bias = None
        if self.causal:
            width = cache.width if start > 0 else stop
            bias = self.future[start:stop, :width]                          # (S, keys)
        elif pad is not None:
            bias = torch.where(pad, float('-inf'), 0.0)[:, None, None]      # (N, 1, 1, S)

        x = norm(self.embed(inputs))                                        # (N, S, C)
        cos = self.cos[start:stop]
        sin = self.sin[start:stop]
        for layer, block in enumerate(self.blocks):
            x = block(x, cos, sin, bias, self.causal and start == 0, cache, layer)
        if cache is not None:
            cache.length = stop
        return norm(x)

    def features(self, tokens, where=None, copies=1):
        """Features (N, T, C) of rows (N, T), of what a choice of tokens[n, t] may see: all to its
        left (causal), all outside `where` (N, T), which is hidden here (fill). With `where`: (M, C)
        of the positions where it holds. prefix, copies: see above. ValueError: T is too large."""
        T = tokens.size(1)
        if T > self.block_size:
            raise ValueError(f"rows of {T} tokens; block_size is {self.block_size}")
        if self.causal:
            x = self.causal_features(tokens, where, copies)
        else:
            x = self.fill_features(tokens, where)
        if where is None:
            return x
        # A `where` that lies on the CPU spares a GPU the wait for the number of its positions.
        index = where.flatten().nonzero().squeeze(1).to(x.device, non_blocking=True)    # (M,)
        return x.flatten(0, 1).index_select(0, index)                                   # (M, C)

    def fill_features(self, tokens, where):
        inputs = tokens
        if where is not None:
            inputs = tokens.masked_fill(where.to(tokens.device), self.mask_id)
        pad = tokens == self.pad_id                                                     # (N, T)
        # Without padding the attention needs no bias. A GPU would have to be waited for to know.
        if self.compiled is None and tokens.device.type == 'cpu' and not pad.any():
            pad = None
        trunk = self.compiled or self.trunk
        return trunk(inputs, pad=pad)                                                   # (N, T, C)

    def causal_features(self, tokens, where, copies):
        inputs = F.pad(tokens[:, :-1], (1, 0), value=self.bos_id)       # BOS, all but the last
        if copies == 1 or self.compiled:        # a compiled trunk wants rows of one shape
            trunk = self.compiled or self.trunk
            return trunk(inputs)                                                        # (N, T, C)
        # The copies of a prompt share their prefix: it is computed once, then each goes on alone.
        prefix = int(where.int().argmax(1).min())
        cache = self.new_cache()
        shared = self.trunk(inputs[::copies, :prefix + 1], cache)       # (B, prefix + 1, C)
        cache.expand(copies)
        cache.reserve(tokens.size(1) - prefix - 1)
        own = self.trunk(inputs[:, prefix + 1:], cache)
        return torch.cat((shared.repeat_interleave(copies, 0), own), 1)                 # (N, T, C)

    def logits(self, x):
        """Output layer: features (..., C) -> logits (..., V), float32 at least."""
        return self.head(x).to(torch.promote_types(x.dtype, torch.float32))

    def forward(self, tokens, where=None, copies=1):
        """Logits that score tokens[n, t]: (N, T, V), or (M, V) at where (N, T); see features()."""
        return self.logits(self.features(tokens, where, copies))

    def new_cache(self):
        return KVCache(len(self.blocks))

    def next_logits(self, tokens, cache):
        """Logits (N, V) of what follows tokens (N, S), which follow what the cache holds."""
        return self.logits(self.trunk(tokens, cache)[:, -1])


def freeze(network, dtype):
    """Makes a network one that is not trained: its blocks are cast once, not at every product."""
    network.requires_grad_(False)
    for module in network.modules():
        if isinstance(module, Block):
            module.to(dtype)


# ---- sampling: one distribution samples, scores, and enters the ratio ----------------------------


def log_probs(logits, temperature=1.0, kept=None):
    """Log-probs (M, V), nats, of softmax(logits / temperature) over the ids kept (M, V) bool."""
    if temperature != 1:                        # with a large V every copy counts
        logits = logits / temperature
    if kept is not None:
        # -1e9 rather than -inf: p is still exactly 0, and p * log p stays 0 instead of NaN
        logits = logits.masked_fill(~kept, -1e9)
    return logits.log_softmax(-1)


def kept_set(logp, top_k=0, top_p=1.0):
    """The ids (M, V) bool that filters leave. top_k: that many of the likeliest, 0 is off; top_p:
    the fewest whose mass reaches it, 1 is off (nucleus sampling, arXiv:1904.09751)."""
    ranked, order = logp.sort(-1, descending=True)
    mass_before = ranked.exp().cumsum(-1) - ranked.exp()
    keep = mass_before < top_p
    keep[:, 0] = True                           # the likeliest stays, however small top_p is
    if top_k > 0:
        keep[:, top_k:] = False
    return torch.zeros_like(keep).scatter(-1, order, keep)


def draw(logp, uniforms):
    """Actions (M, c) of log-probs (M, V), by inverse CDF from uniforms (M, c) in [0, 1)."""
    cdf = logp.exp().cumsum_(-1)                                    # (M, V)
    # Strictly inside the CDF, however u * top was rounded: no id of probability 0 is ever drawn.
    top = cdf[:, -1:] * (1 - 2 ** -22)                              # (M, 1), some bits below 1
    actions = torch.searchsorted(cdf, torch.minimum(uniforms * top, top), right=True)
    return actions.clamp(max=logp.size(-1) - 1)     # NaN logits are reported later, by name


def choose(logits, uniforms=None, temperature=1.0, top_k=0, top_p=1.0):
    """Logits (M, V), uniforms (M, c), or None: the likeliest id -> actions, their log-probs (M, c),
    and the kept set (M, V) bool, None if nothing is filtered."""
    logp = log_probs(logits, temperature)                           # (M, V)
    kept = None
    if top_k > 0 or top_p < 1:
        kept = kept_set(logp, top_k, top_p)
        logp = log_probs(logits, temperature, kept)
    actions = logp.argmax(-1, keepdim=True) if uniforms is None else draw(logp, uniforms)
    return actions, logp.gather(1, actions), kept


@dataclass
class Rollout:
    """k completions of each of B prompts, and every choice that was made on the way to them.

    A choice is an id drawn from one of the U distributions model(states, where). In fill mode all
    completions of a prompt that stand in one state share its distributions: in the first pass all k
    do, so B rows serve all N = B * k completions. In causal mode each choice has one of its own."""
    prompts: Prompts        # B of them
    rows: Tensor            # (N, T) completed; row b * k + j is completion j of prompt b
    states: Tensor          # (S, T) what the policy saw, of all passes; causal: the rows
    where: Tensor           # (S, T) bool, the U places where it was asked for a distribution
    owner: Tensor           # (M,) which completion a choice belongs to, in [0, N)
    position: Tensor        # (M,) and where in it, in [0, T)
    point: Tensor           # (M,) which distribution it was drawn from, in [0, U)
    actions: Tensor         # (M,) the id chosen
    logp_old: Tensor        # (M,) its log-probability then
    kept: Tensor | None     # (U, V) bool, what top-k and top-p left; None: everything
    logits: Tensor | None = None        # (U, V) with gradient, if the passes that chose also learn
    causal: bool = False    # written from left to right?

    @property
    def k(self):
        return len(self.rows) // len(self.prompts)

    def logits_of(self, model):
        """Logits (U, V) of a model, any, at the choices. In causal mode the completions of a prompt
        agree in all that stands left of their choices, which may be computed once."""
        return model(self.states, self.where, copies=self.k if self.causal else 1)


def complete(model, prompts, greedy=False, temperature=1.0, top_k=0, top_p=1.0, n_fill_steps=1,
             fill_order='random', keep_graph=False, prompts_at_a_time=0):
    """k completions of each of B Prompts, from their uniforms; greedy: one, the likeliest. Returns
    a Rollout. keep_graph (fill): keep the logits, to learn from the passes that chose."""
    how = {'temperature': temperature, 'top_k': top_k, 'top_p': top_p}
    k = 1 if greedy else prompts.uniforms.size(2)
    if model.causal:
        return write(model, prompts, greedy, **how)
    return fill(model, prompts, k, greedy, n_fill_steps, fill_order, keep_graph, **how)


def fill(model, prompts, k, greedy, n_fill_steps, fill_order, keep_graph, **how):
    """Fills blanks in passes, each of which sees what the passes before it wrote. Pass t fills the
    blanks of rank r, by `fill_order`, with r * n_fill_steps // blanks == t.

    The order depends on nothing that is sampled. So the log-probability of a completion, given its
    order, is exactly the sum of those of its choices."""
    device = model.device
    B, T = prompts.tokens.shape
    mask = prompts.mask.to(device)
    if fill_order == 'random' and n_fill_steps > 1:
        key = prompts.order.to(device)                                  # (B, T)
    else:
        key = torch.arange(T, device=device).expand(B, T)
    turn = turns(key, mask, n_fill_steps)                               # (B, T)
    prompt_of = torch.arange(B, device=device).repeat_interleave(k)     # (N,)
    rows = prompts.tokens.to(device).masked_fill(mask, model.mask_id)[prompt_of]        # (N, T)
    if not greedy:                                                      # (N, T), one each
        uniforms = prompts.uniforms.to(device).transpose(1, 2).flatten(0, 1)

    passes = []
    n_points = 0
    for t in range(n_fill_steps):
        # Completions of a prompt that stand in the same state share a look, as at first all k do.
        if t == 0:
            prompt, states, state_of = torch.arange(B, device=device), rows[::k].clone(), prompt_of
        else:
            seen = torch.cat((prompt_of[:, None], rows), 1)
            seen, state_of = seen.unique(dim=0, return_inverse=True)    # (S, 1 + T), (N,)
            prompt, states = seen[:, 0], seen[:, 1:]
        where = turn[prompt] == t                                       # (S, T)
        if not where.any():
            continue
        with torch.set_grad_enabled(keep_graph and torch.is_grad_enabled()):
            logits = model(states, where)                               # (U of this pass, V)

        # Each completion draws from the distributions of its state, with uniforms of its own.
        number = where.flatten().cumsum(0).view_as(where) - 1           # (S, T) row of the logits
        owner, position = where[state_of].nonzero(as_tuple=True)        # (M of this pass,) each
        point = number[state_of[owner], position]
        drawn = None
        if not greedy:
            drawn = uniforms.new_zeros(len(logits), k)
            drawn[point, owner % k] = uniforms[owner, position]
        ids, logp, kept = choose(logits.detach(), drawn, **how)         # (U, k), (U, k), (U, V)
        actions = ids[point, owner % k]
        rows[owner, position] = actions
        passes.append((states, where, owner, position, n_points + point, actions,
                       logp[point, owner % k], kept, logits))
        n_points += len(logits)
    joined = [torch.cat(parts) if parts[0] is not None else None for parts in zip(*passes)]
    if not keep_graph:
        joined[-1] = None
    return Rollout(prompts, rows, *joined)


def turns(key, mask, n_fill_steps):
    """The pass (B, T) in which each blank is filled, by rank of its key, lowest first; else -1."""
    key = key.to(torch.float32).masked_fill(~mask, math.inf)
    rank = key.argsort(dim=1, stable=True).argsort(dim=1)
    return torch.where(mask, rank * n_fill_steps // mask.sum(1, keepdim=True).clamp(min=1), -1)


def complete_texts(model, strings, k=1, seed=0, **how):
    """k completions of each text, a list of lists, by a model of load_gpt(): what complete() does,
    from strings to strings. '_' is a blank; a causal model continues the texts. Raises ValueError.
    """
    prompts = prompts_of_texts(strings, model.tok, model.unit, k, draws(seed, 'texts'),
                               block_size=model.block_size,
                               mode='causal' if model.causal else 'fill')
    rows = complete(model, prompts, **how).rows.cpu()
    _, completions = texts(model.tok, prompts.tokens, prompts.mask, rows, model.causal)
    return [completions[i:i + k] for i in range(0, len(completions), k)]


@torch.no_grad()
def write(model, prompts, greedy, **how):
    """complete(), from left to right, up to *and including* eos; padding after it. An eos in a
    blank before text that is given ends nothing. Returns rows, where and log-probs of the choices,
    each (N, T), and if something is filtered kept (N, T, V)."""
    device = model.device
    k = 1 if greedy else prompts.uniforms.size(2)
    first = int(prompts.mask.any(0).nonzero()[0])                   # the first blank of all
    tokens = prompts.tokens.to(device, non_blocking=True)           # (B, T)
    rows = tokens.repeat_interleave(k, 0)                           # (N, T)
    where = prompts.mask.to(device, non_blocking=True).repeat_interleave(k, 0)      # (N, T)
    N, T = rows.shape
    uniforms = None
    if not greedy:
        uniforms = prompts.uniforms.to(device).transpose(1, 2).flatten(0, 1)        # (N, T)
    is_given = ~where & (rows != model.pad_id)                      # (N, T)
    positions = torch.arange(T, device=device)
    last_given = torch.where(is_given, positions, -1).amax(1)       # (N,) -1: nothing is given
    logp = torch.zeros(N, T, device=device)
    kept = None
    if how['top_k'] > 0 or how['top_p'] < 1:
        kept = torch.ones(N, T, model.vocab_size, dtype=torch.bool, device=device)

    # The k completions of a prompt share everything up to the first blank.
    cache = model.new_cache()
    prefix = F.pad(tokens[:, :first], (1, 0), value=model.bos_id)   # (B, first + 1)
    logits = model.next_logits(prefix, cache).repeat_interleave(k, 0)       # (N, V)
    cache.expand(k)
    live = torch.arange(N, device=device)                           # the rows that have not ended
    for t in range(first, T):
        u = None if greedy else uniforms[live, t, None]             # (live, 1)
        actions, chosen_logp, kept_ids = choose(logits, u, **how)
        is_choice = where[live, t]              # else the token is given, or the row has ended
        token = torch.where(is_choice, actions[:, 0], rows[live, t])        # (live,)
        rows[live, t] = token
        logp[live, t] = chosen_logp[:, 0].to(logp.dtype)
        if kept is not None:
            kept[live, t] = kept_ids
        # An eos ends the row, if no given token follows it.
        ended = live[is_choice & (token == prompts.eos) & (last_given[live] < t)]
        rows[ended, t + 1:] = model.pad_id
        where[ended, t + 1:] = False

        if t == T - 1:
            break

        # Rows that have ended leave the batch, once they are a tenth of it: copying the cache has
        # its price. To know how many they are a GPU must be waited for, so it is asked seldom.
        if device.type == 'cpu' or t % 4 == 3:
            goes_on = where[live, t + 1:].any(1)                    # (live,)
            count = int(goes_on.sum())
            if count == 0:
                break
            if count <= 0.9 * len(live):
                live = live[goes_on]
                cache.select(goes_on)

        # The cache holds BOS and the tokens before t; that is t + 1, and the next is written there.
        # It gets room for 33 at a time: room for one would be a copy at every token, and room for
        # all of T would let every token look at places that are still empty.
        if (t - first) % 33 == 0:
            cache.reserve(min(33, model.block_size - t - 1))
        logits = model.next_logits(rows[live, t, None], cache)      # (live, V)
    owner, position = where.nonzero(as_tuple=True)
    point = torch.arange(len(owner), device=device)
    return Rollout(prompts, rows, rows, where, owner, position, point, rows[where], logp[where],
                   None if kept is None else kept[where], causal=True)


# ---- optimizers ----------------------------------------------------------------------------------


def make_optimizers(model, learning_rate, weight_decay, beta1, beta2, kind='muon'):
    """A list of optimizers. 'muon': Muon (K. Jordan, 2024) for the hidden matrices, AdamW for
    embedding, head and the rest; both move a weight by about learning_rate a step, so that one knob
    serves both. 'adamw': for all. A parameter group may have a 'scale', a factor of its rate."""
    hidden = []
    rest = []
    for name, parameter in model.named_parameters():
        if kind == 'muon' and 'blocks.' in name:
            hidden.append(parameter)
        else:
            rest.append(parameter)
    settings = {'lr': learning_rate, 'weight_decay': weight_decay}
    optimizers = []
    if hidden:
        optimizers.append(torch.optim.Muon(hidden, adjust_lr_fn='match_rms_adamw', **settings))
    optimizers.append(torch.optim.AdamW(rest, betas=(beta1, beta2), fused=True, **settings))
    return optimizers


def get_lr(step, peak, floor, warmup, total):
    """Learning rate at a step: linear warm-up, then a cosine from peak down to floor."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return floor + 0.5 * (1 + math.cos(math.pi * progress)) * (peak - floor)


def update(model, optimizers, lr, grad_clip):
    """One step of all optimizers at rate lr; returns the gradient's norm before clipping."""
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), grad_clip or float('inf'))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group['lr'] = lr * group.get('scale', 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return grad_norm


# ---- checkpoints ---------------------------------------------------------------------------------


VERSION = 3             # of the format of checkpoints


def save_checkpoint(path, **content):
    """Writes a checkpoint, a plain dict with a checksum of all that is in it: whole or not."""
    content['version'] = VERSION
    with new_file(path) as file:
        torch.save(content | {'checksum': digest_of(content)}, file)


def load_checkpoint(path, kind, data=None, make='python model.py', block_size=1, mode=''):
    """A checkpoint, checked before anything is computed; ends with one line if it does not fit.
    kind: 'generator' (a policy will do), 'policy', 'judge'; make: the command that makes one.
    data: a Dataset with whose vocabulary it shall work; a policy also belongs to its text."""
    end = f"; make one with: {make}"
    use = f"--out=out/mine.pt, and use it: --{kind}_checkpoint=out/mine.pt"
    if not os.path.isfile(path):
        fail(f"no {kind} at {path}{end}")
    try:
        checkpoint = torch.load(path, map_location='cpu', weights_only=True)
        found = checkpoint['kind']
        version = checkpoint['version']
        checksum = checkpoint.pop('checksum', '')
        corpus = checkpoint['corpus']
        corpus_name = checkpoint['config']['dataset']
        vocabulary = checkpoint.get('vocabulary')       # version 2 had none
        longest = checkpoint['model_args']['block_size']
        causal = checkpoint['model_args']['causal']
    except pickle.UnpicklingError:
        fail(f"{path} is damaged, or holds more than tensors and plain values, so it was not "
             f"opened{end}")
    except Exception as e:
        fail(f"{path} is damaged, or not a checkpoint of these scripts ({type(e).__name__}){end}")

    if found != kind and (kind, found) != ('generator', 'policy'):
        fail(f"{path} is a {found}, expected a {kind}{end}")
    if version != VERSION:
        fail(f"{path} is of version {version}, expected {VERSION}{end}")
    if checksum != digest_of(checkpoint):
        fail(f"{path} is damaged: its checksum does not match{end}")
    if data and vocabulary != data.tok.vocabulary:
        difference = data.tok.difference(Tokenizer(**vocabulary))
        fail(f"{path} was made for the vocabulary of '{corpus_name}', not that of '{data.name}': "
             f"{difference}{end}")
    if data and kind == 'policy' and corpus != data.fingerprint:
        fail(f"{path} was made for the text {corpus_name}-{corpus}, data/ has {data.name}-"
             f"{data.fingerprint}{end}")
    if longest < block_size:
        fail(f"{path} takes rows of {longest} tokens, block_size is {block_size}{end} "
             f"--block_size={block_size} {use}")
    if mode and causal != (mode == 'causal'):
        fail(f"{path} is not a {mode} model{end} --mode={mode} {use}")
    return checkpoint


def load_gpt(path, data=None, make='python model.py', block_size=1, mode='', device='cpu'):
    """The GPT of a generator or policy checkpoint; see load_checkpoint(). It has three
    attributes more: tok, its Tokenizer; text, the name of its corpus; unit, of that corpus."""
    checkpoint = load_checkpoint(path, 'generator', data, make, block_size, mode)
    model = GPT(**checkpoint['model_args'])
    model.load_state_dict(checkpoint['model'])
    model.tok = Tokenizer(**checkpoint['vocabulary'])
    model.text = checkpoint['config']['dataset']
    model.unit = checkpoint['unit']
    return model.to(device)


def default_recipe(part, data):
    """The recipe of a part, 'generator' or 'judge', for a corpus: config/<part>_<name>.py. Pairs
    need none of their own."""
    path = f"config/{part}_{data.name.replace('/', '_')}.py"
    if data.answers and not os.path.exists(path):
        return f'config/{part}_pairs.py'
    return path


def whole_recipe(script, recipe, run):
    """The words that a recipe gives to its script, but for --out, and the knobs that come of them.
    run: {knob: value}, which the recipe takes over from the run where it sets none itself."""
    words = [word for word in recipe.split() if not word.startswith('--out=')]
    namespace = runpy.run_path(f'{HOME}/{script}')
    alone, _ = configure(dict(namespace), words, quiet=True)
    run = {name: value for name, value in run.items() if name in alone}
    config, _ = configure(namespace | run, words, quiet=True)
    for name in run:
        if config[name] != alone[name]:
            words.append(f'--{name}={config[name]}')
    return words, config


def checkpoint_path(script, words):
    """Where the checkpoint of a recipe lies: its words are its name, under out/."""
    names = [os.path.basename(word).removesuffix('.py').removeprefix('--') for word in words
             if not word.startswith('--out=')]
    if not any(word.endswith('.py') for word in words):
        names.insert(0, os.path.basename(script).removesuffix('.py'))
    name = re.sub('[^A-Za-z0-9_.=-]', '_', '-'.join(names))
    if len(name) > 150:                         # file systems take 255 bytes
        name = f'{name[:130]}-{digest_of(name)}'
    return f'out/{name}.pt'


def recipe_digest(config):
    """Stands for all that decides what a checkpoint becomes: the knobs of its script, its text, and
    the contents of the files that its knobs name."""
    made_of = {}
    for name, value in config.items():
        if name in ('out', 'device', 'compile', 'eval_interval'):
            continue
        if type(value) is str and os.path.isfile(value):
            value = pathlib.Path(value).read_bytes()
        made_of[name] = value
    # Without labels, a classifier learns from a generator: by default that of this recipe.
    default_generator = pathlib.Path(f"config/generator_{config['dataset']}.py")
    if config.get('kind') == 'classifier' and default_generator.is_file():
        made_of['generator'] = default_generator.read_bytes()
    return digest_of(made_of, Dataset(config['dataset'], prepare=True).fingerprint)


def ensure_checkpoint(path, script, recipe, why='', **run):
    """The path of a part of a run, and the command that makes it. '' is where the recipe's
    checkpoint lies; if it is missing there, the script makes it now, visibly. One that was made
    from something else, under the same name, is left alone: the new one gets a name of its own.
    why: is printed before. run: knobs such as dataset, where the recipe does not set them."""
    words = recipe.split()
    if path == '' or os.path.isfile(words[0]):          # a part that is there needs no recipe
        words, config = whole_recipe(script, recipe, run)
    command = ['python', script] + words
    own_path = checkpoint_path(script, words)
    if path == '':
        made_of = recipe_digest(config)
        path = own_path
        if os.path.exists(path) and read_made_of(path) not in (made_of, None):
            new_path = f"{path.removesuffix('.pt')}-{made_of}.pt"
            if is_main():
                print(f"{path} was made from another recipe or text; this one is {new_path}")
            path = new_path
        if not os.path.exists(path):
            if why:
                print(f"\n{why}")
            run_script(command + [f'--out={path}'])
    if path != own_path:
        command.append(f'--out={path}')
    return path, ' '.join(command)


def read_made_of(path):
    """What a checkpoint says that it was made of; None if it cannot be read, which is told when it
    is loaded."""
    try:
        return torch.load(path, map_location='cpu', weights_only=True, mmap=True)['made_of']
    except Exception:
        return None


# ---- the supervised loop of model.py and judge.py ------------------------------------------------


def fit(model, gpt, loss_at, look, config, title, **content):
    """Minimises loss_at(step), a scalar, over a model's weights, and saves it with this content.
    gpt: the model, or its trunk; look() tells about held-out data; config: all knobs."""
    path = config['out']
    if path == '':
        path = checkpoint_path(sys.argv[0], sys.argv[1:])
    n_weights = sum(p.numel() for p in model.parameters())
    print(f"{title}, {n_weights:,} parameters, {config['dataset']} -> {path}")
    made_of = recipe_digest(config)             # now: files may change while it trains
    if config['compile']:
        gpt.compiled = torch.compile(gpt.trunk, dynamic=False)
    peak = config['learning_rate']
    last = config['max_iters']
    optimizers = make_optimizers(model, peak, config['weight_decay'], config['beta1'],
                                 config['beta2'])
    began = time.time()
    printed = 0.0
    mean = 0.0                                  # of the loss, over about the last 50 steps
    for step in range(1, last + 1):
        loss = loss_at(step)
        mean += (loss.item() - mean) / min(step, 50)
        if not math.isfinite(mean):
            fail(f"step {step}: loss {loss:g}, nothing was written; try --learning_rate={peak / 2}")
        loss.backward()
        lr = get_lr(step - 1, peak, peak / 10, config['warmup_iters'], last)
        update(model, optimizers, lr, config['grad_clip'])

        interval = config['eval_interval']
        is_due = step == last or (interval > 0 and step % interval == 0)
        is_terminal = sys.stdout.isatty()
        if is_due or time.time() - printed > (0.2 if is_terminal else 5.0):     # a sign of life
            printed = time.time()
            seconds_left = (printed - began) / step * (last - step)
            line = f"step {step:5d} | loss {mean:.4f} | "
            if is_due:
                line += f"{look()} | "
            stays = is_due or not is_terminal
            print(f"{line}{seconds_left:.0f} s left", end='\n' if stays else ' \r', flush=True)
    save_checkpoint(path, model_args=gpt.args, model=model.state_dict(), config=config,
                    made_of=made_of, **content)
    print(f"saved {path}")


def pretraining_batch(model, data, split, n, rng):
    """Rows (n, T), their blanks (n, T) bool, and the loss of guessing them: nats per blank, or in
    causal mode nats per token of the whole row."""
    tokens, answer = data.batch(split, n, block_size, rng)
    hidden = blanks(tokens, data.tok, rng, blank_kind, blank_low, blank_high, blank_span, answer,
                    model.causal)
    where = tokens != data.tok.pad if model.causal else hidden
    with autocast(model.device, dtype):
        logits = model(tokens.to(model.device), where=where)            # (M, V)
        loss = F.cross_entropy(logits, tokens[where].to(model.device))
    return tokens, hidden, loss


@torch.no_grad()
def look_at_fills(model, data):
    """Text: held-out loss, and verify() of sampled and of best-guess fills of fixed blanks."""
    n = min(512, 2 ** 15 // block_size)
    rng = draws(0, 'look')
    tokens, mask, loss = pretraining_batch(model, data, 'val', n, rng)
    line = f"held-out loss {loss.item():.4f}"
    if data.verify:
        uniforms = torch.from_numpy(rng.random((*tokens.shape, 1), dtype='float32'))
        prompts = Prompts(tokens, mask, uniforms, data.tok.eos)
        for name, greedy in (('sampled', False), ('best guess', True)):
            rollout = complete(model, prompts, greedy)
            strings = texts_and_originals(data.tok, prompts, rollout.rows, model.causal)
            line += f" | verify {name} {sum(data.check(*strings)) / n:.3f}"
    return line


if __name__ == "__main__":
    config, _ = configure(globals())
    check_knobs()
    data = Dataset(dataset)
    data.check_rows(block_size, mode, blank_kind)
    torch_device, note = init_device(device, dtype)
    torch.manual_seed(seed)
    try:
        model = GPT(data.tok.base, block_size, n_layer, n_head, n_embd, mode == 'causal')
    except ValueError as e:
        fail(e)
    model.to(torch_device)

    def loss_at(step):
        tokens, hidden, loss = pretraining_batch(model, data, 'train', batch_size,
                                                 draws(seed, 'pretrain', step))
        return loss

    fit(model, model, loss_at, functools.partial(look_at_fills, model, data), config,
        f"{mode} generator, {note}", kind='generator', corpus=data.fingerprint,
        vocabulary=data.tok.vocabulary, unit=data.meta['unit'])
