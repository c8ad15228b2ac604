"""The generator: a GPT that fills blanks, or writes from left to right; and the script that
pretrains it.

    python model.py config/generator_docstrings.py --max_iters=2000

One class serves as generator, as trunk of a classifier and as likelihood judge. There is no
dropout: sampling and learning must see one and the same network.

From top to bottom: knobs; the network; sampling, where one distribution samples, scores and enters
the ratio; optimizers; checkpoints and the recipes they are made by; the loop of pretraining."""
import ast
import contextlib
import functools
import importlib
import inspect
import math
import os
import pathlib
import shlex
import time
import zipfile
from dataclasses import dataclass

from common import (StopSignal, at_least, autocast, between, clocks, configure, digest_of, fail,
                    init_device, new_file, one_of, tell_if_slow, use_threads)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.dataset import (BLANK_KINDS, Dataset, Prompts, blanks, draws, make_tokenizer,
                          prompts_of_texts, texts, with_draws)

# knobs of pretraining
out = ''                    # checkpoint to write; '': out/generator_<dataset>-<digest of recipe>.pt
dataset = 'arithmetic'      # a folder of data/
mode = 'fill'               # 'fill' blanks | 'causal': left to right
block_size = 10             # T, tokens in a row
n_layer = 3                 # blocks
n_head = 4                  # H, heads per block
n_embd = 64                 # C, channels
positions = 'rotary'        # 'rotary': relative, for prose | 'learned': rows have columns
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
grad_clip = 1.0             # largest gradient norm; 0: off
device = 'auto'             # 'auto' | 'cpu' | 'cuda' | 'mps'
dtype = 'auto'              # products in 'float32' | 'bfloat16' | 'float64' (checks) | 'auto'
compile = torch.cuda.is_available()     # torch.compile the trunk
seed = 1                    # of weights, rows and blanks

POSITIONS = ('rotary', 'learned')
# letters: N rows, k of each of B prompts | T positions | V base ids | C channels | H heads
# D = C / H | M choices, drawn from U distributions | S states


def check_recipe(*, block_size, n_head, n_embd, positions, blank_kind, blank_low, blank_high,
                 blank_span, batch_size, **others):
    """Exits with an error if a knob that model.py and judge.py share has an invalid value."""
    one_of(POSITIONS, positions=positions)
    one_of(BLANK_KINDS, blank_kind=blank_kind)
    at_least(2, block_size=block_size)
    at_least(1, n_head=n_head, batch_size=batch_size, blank_span=blank_span)
    between(0, 1, blank_high=blank_high)
    between(0, blank_high, blank_low=blank_low)
    if n_embd % (2 * n_head) != 0:
        fail(f"n_embd = {n_embd}: expected a multiple of 2 * n_head = {2 * n_head}")


# ---- the network ---------------------------------------------------------------------------------


def rows_at(mask, x):
    """The rows (U, ...) of x (N, ...) where a mask (N,) holds, which lies on the CPU: no GPU is
    waited for."""
    index = mask.nonzero().squeeze(1).to(x.device, non_blocking=True)       # (U,)
    return x.index_select(0, index)


def norm(x):
    """Mean 0 and variance 1 over the channels; no weights."""
    return F.layer_norm(x, x.shape[-1:])


def attention(q, k, v, bias, causal):
    """Softmax attention of q (N, H, S, D) to k, v (N, H, keys, D). bias: added to the scores, None:
    nothing is hidden. causal: the bias is the plain triangle, which a GPU's kernel has built in.

    On a CPU two plain products beat torch's fused kernel, for heads as small as ours."""
    if q.device.type != 'cpu':
        mask = None if causal else bias
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
    scores = k @ (q * q.size(-1) ** -0.5).transpose(-2, -1)         # (N, H, keys, S)
    if bias is not None:
        scores = scores.add_(bias.transpose(-2, -1))
    return scores.softmax(-2).transpose(-2, -1).to(v.dtype) @ v


class KVCache(dict):
    """{block: (keys, values)}, (N, H, length, D) each, of the tokens that a causal model has seen.
    Appending copies them, which costs no more than looking at them does."""

    def append(self, block, k, v):
        """Takes in k, v (N, H, S, D) of the next S tokens; returns all there are."""
        own = (k, v)
        if block in self:
            own = [torch.cat(pair, 2) for pair in zip(self[block], own)]
        self[block] = own
        return own

    def expand(self, copies):
        """Each row becomes `copies` neighbouring rows."""
        for block, kept in self.items():
            self[block] = [x.repeat_interleave(copies, 0) for x in kept]


class Block(nn.Module):
    """x + attention(norm(x)), then x + relu(up(norm(x))) down."""

    def __init__(self, n_layer, n_head, n_embd):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd, bias=False)
        self.up = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.down = nn.Linear(4 * n_embd, n_embd, bias=False)
        # What is added to the residual stream starts small, by the number of such branches.
        small = 0.02 / math.sqrt(2 * n_layer)
        for layer in (self.qkv, self.up):
            nn.init.normal_(layer.weight, std=n_embd ** -0.5)
        for layer in (self.proj, self.down):
            nn.init.normal_(layer.weight, std=small)

    def forward(self, x, cos, sin, bias, causal, cache=None):
        N, S, C = x.shape
        D = C // self.n_head
        qkv = self.qkv(norm(x)).view(N, S, 3, self.n_head, D)
        qk, v = qkv.split((2, 1), 2)                                # (N, S, 2 or 1, H, D)
        v = v[:, :, 0].transpose(1, 2)                              # (N, H, S, D)
        if cos is not None:
            # Rotary positions: of the halves x, y of a head (x cos - y sin, y cos + x sin); the
            # first half of `sin` is stored with its minus.
            qk = (qk * cos).addcmul(qk.roll(D // 2, -1), sin).to(v.dtype)
        q, k = qk.transpose(1, 3).unbind(2)                         # (N, H, S, D) each
        if cache is not None:
            k, v = cache.append(self, k, v)
        y = attention(q, k, v, bias, causal)                        # (N, H, S, D)
        x = x + self.proj(y.transpose(1, 2).reshape(N, S, C))
        return x + self.down(self.up(norm(x)).relu_())


class GPT(nn.Module):
    """Pre-norm transformer without biases. positions: 'rotary', which only a difference of places
    enters, for prose, or 'learned', for rows with columns.

    Inputs are V base ids, mask = V, BOS = V + 1, padding = V + 2; outputs are the V base ids, so no
    function has to ban the others.

    What GRPO needs of a model, so that another one can take this one's place:
      model(tokens, where, copies) -> logits (U, V), float32, that score tokens[n, t] where `where`
          (N, T) holds, row by row. A fill model must not see the tokens there, a causal one nothing
          but what stands to the left. `where` lies on the CPU: no GPU is waited for. Causal: each
          `copies` neighbouring rows agree in all that is left of their first choice, which may be
          computed once; it is a hint.
      causal, device, mask_id, bos_id, pad_id, vocab_size (V), block_size (longest row)
      parameters(), named_parameters(), state_dict(): as of any torch.nn.Module; matrices whose
          names contain 'blocks.' are hidden ones, for Muon
      args: a dict, kept in checkpoints; compiled, trunk(): only if it is to be compiled
    and to write from left to right:
      cache = model.new_cache(), with cache.expand(copies)
      model.next_logits(tokens, cache) -> logits (N, V) of what follows tokens (N, S), which follow
          what the cache holds, and enter it."""

    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd, causal,
                 positions='rotary'):
        super().__init__()
        self.args = {'vocab_size': vocab_size, 'block_size': block_size, 'n_layer': n_layer,
                     'n_head': n_head, 'n_embd': n_embd, 'causal': causal,
                     'positions': positions}
        self.vocab_size = vocab_size
        self.block_size = block_size
        self.causal = causal
        self.mask_id, self.bos_id, self.pad_id = range(vocab_size, vocab_size + 3)
        self.embed = nn.Embedding(vocab_size + 3, n_embd)
        self.blocks = nn.ModuleList(Block(n_layer, n_head, n_embd) for _ in range(n_layer))
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        nn.init.zeros_(self.head.weight)                            # the first guess is uniform
        self.compiled = None                                        # torch.compile(self.trunk)

        if positions == 'learned':
            self.position = nn.Embedding(block_size, n_embd)
            return
        # RoFormer, arXiv:2104.09864: half of a head is turned against the other.
        D = n_embd // n_head
        frequency = 10000.0 ** (-torch.arange(0, D, 2) / D)
        angle = torch.arange(block_size).view(-1, 1, 1, 1) * frequency      # (T, 1, 1, D / 2)
        cos = torch.cat((angle, angle), -1).cos()                           # (T, 1, 1, D)
        sin = torch.cat((-angle, angle), -1).sin()
        self.rotary = nn.Buffer(torch.stack((cos, sin)), persistent=False)

    @property
    def device(self):
        return self.embed.weight.device

    def trunk(self, inputs, cache=None, pad=None):
        """Ids (N, S) -> normalised features (N, S, C). cache: what stands to their left, and takes
        them in (causal); pad: (N, S) bool, positions that nobody looks at (bidirectional)."""
        start = cache[self.blocks[0]][0].size(2) if cache else 0
        stop = start + inputs.size(1)
        bias = None
        if self.causal and stop - start > 1:
            future = torch.full((stop - start, stop), -math.inf, device=self.device)
            bias = future.triu(start + 1)                                   # (S, keys)
        elif pad is not None:
            bias = torch.where(pad, -math.inf, 0.0)[:, None, None]          # (N, 1, 1, S)

        x = self.embed(inputs)                                              # (N, S, C)
        cos = sin = None
        if self.args['positions'] == 'learned':
            x = x + self.position.weight[start:stop]
        else:
            cos, sin = self.rotary[:, start:stop]                           # (S, 1, 1, D) each
        x = norm(x)
        for block in self.blocks:
            x = block(x, cos, sin, bias, self.causal and start == 0, cache)
        return norm(x)

    def features(self, tokens, where=None, copies=1):
        """Features (N, T, C) of rows (N, T), of what a choice of tokens[n, t] may see: all to its
        left (causal), all outside `where` (N, T), which is hidden here (fill). With `where`: (U, C)
        of the positions where it holds."""
        trunk = self.compiled or self.trunk
        if not self.causal:
            inputs = tokens
            if where is not None:
                hidden = where.to(self.device, non_blocking=True)
                inputs = tokens.masked_fill(hidden, self.mask_id)
            x = trunk(inputs, pad=tokens == self.pad_id)                    # (N, T, C)
        else:
            inputs = F.pad(tokens[:, :-1], (1, 0), value=self.bos_id)       # BOS, all but the last
            if copies == 1 or self.compiled:    # a compiled trunk wants rows of one shape
                x = trunk(inputs)                                           # (N, T, C)
            else:
                x = self.of_copies(inputs, first_choice(where) + 1, copies)
        if where is not None:
            x = rows_at(where.flatten(), x.flatten(0, 1))                   # (U, C)
        return x

    def of_copies(self, inputs, n_shared, copies):
        """Features (N, T, C) of inputs (N, T) of which each `copies` neighbouring rows begin with
        the same n_shared ids: these are computed once, then each row goes on alone."""
        cache = self.new_cache()
        shared = self.trunk(inputs[::copies, :n_shared], cache)             # (B, n_shared, C)
        cache.expand(copies)
        own = self.trunk(inputs[:, n_shared:], cache)
        return torch.cat((shared.repeat_interleave(copies, 0), own), 1)

    def logits(self, x):
        """Output layer: features (..., C) -> logits (..., V), float32 at least."""
        return self.head(x).to(torch.promote_types(x.dtype, torch.float32))

    def forward(self, tokens, where=None, copies=1):
        """Logits that score tokens[n, t]: (N, T, V), or (U, V) at where (N, T); see features()."""
        return self.logits(self.features(tokens, where, copies))

    new_cache = KVCache                         # model.new_cache() makes one

    def next_logits(self, tokens, cache):
        """Logits (N, V) of what follows tokens (N, S), which follow what the cache holds."""
        return self.logits(self.trunk(tokens, cache)[:, -1])


def hidden_matrices(network):
    """The parameters that are matrices of blocks: all but embedding, head, and norms."""
    return [p for name, p in network.named_parameters() if 'blocks.' in name and p.ndim == 2]


def freeze(network, dtype):
    """Makes a network one that is not trained: its hidden matrices are cast once, not at every
    product."""
    network.requires_grad_(False)
    for matrix in hidden_matrices(network):
        matrix.data = matrix.to(dtype)


# ---- sampling: one distribution samples, scores, and enters the ratio ----------------------------


def log_probs(logits, temperature=1.0, kept=None):
    """Log-probs (U, V), nats, of softmax(logits / temperature) over the ids kept (U, V) bool."""
    if temperature != 1:                        # with a large V every copy counts
        logits = logits / temperature
    if kept is not None:
        # -1e9 rather than -inf: p is still exactly 0, and p * log p stays 0 instead of NaN
        logits = logits.masked_fill(~kept, -1e9)
    return logits.log_softmax(-1)


def kept_set(logp, top_k=0, top_p=1.0):
    """The ids (U, V) bool that filters leave. top_k: that many of the likeliest, 0 is off; top_p:
    the fewest whose mass reaches it, 1 is off (nucleus sampling, arXiv:1904.09751)."""
    ranked, order = logp.sort(-1, descending=True)
    mass_before = ranked.exp().cumsum(-1) - ranked.exp()
    keep = mass_before < top_p                  # the likeliest always is
    if top_k > 0:
        keep[:, top_k:] = False
    return torch.zeros_like(keep).scatter(-1, order, keep)


def draw(logp, uniforms):
    """Ids (U, k) of log-probs (U, V), by inverse CDF from uniforms (U, k) in [0, 1)."""
    cdf = logp.exp().cumsum_(-1)                                    # (U, V)
    # Strictly inside the CDF, however u * top was rounded: no id of probability 0 is ever drawn.
    top = cdf[:, -1:] * (1 - 2 ** -22)                              # (U, 1), some bits below 1
    ids = torch.searchsorted(cdf, torch.minimum(uniforms * top, top), right=True)
    return ids.clamp(max=logp.size(-1) - 1)     # NaN logits are reported later, by name


def choose(logits, uniforms, temperature=1.0, top_k=0, top_p=1.0, greedy=False):
    """Logits (U, V), uniforms (U, k) -> ids, their log-probs (U, k), and the kept set (U, V) bool,
    None if nothing is filtered. greedy: the likeliest id, k = 1, whatever the uniforms are."""
    kept = None
    if top_k > 0 or top_p < 1:
        kept = kept_set(log_probs(logits, temperature), top_k, top_p)
    logp = log_probs(logits, temperature, kept)                     # (U, V)
    ids = logp.argmax(-1, keepdim=True) if greedy else draw(logp, uniforms)
    return ids, logp.gather(1, ids), kept


@dataclass
class Rollout:
    """k completions of each of B prompts, and every choice that was made on the way to them.

    A choice is an id that one completion took at one position, drawn from one of the distributions
    model(states, where). Here two prompts, 7 _ _ and 2 _ _, k = 2, are filled from left to right in
    two passes. Completions of a prompt that stand in one state share its row and its distributions:
    in the first pass all k do, in the second those of the second prompt, which both took an 8.

        rows      7 4 9   7 5 1   2 8 6   2 8 3           N = 4 completions: owners 0 to 3

                  first pass      second pass
        states    7 _ _   2 _ _   7 4 _   7 5 _   2 8 _   S = 5
        where       x       x         x       x       x   U = 5 distributions: points 0 to 4

        owner     0 1 2 3         0 1 2 3                 M = 8 choices
        position  1 1 1 1         2 2 2 2
        point     0 0 1 1         2 3 4 4
        actions   4 5 8 8         9 1 6 3

    In causal mode the states are the rows, and each choice has a distribution of its own."""
    prompts: Prompts        # B of them
    rows: Tensor            # (N, T) completed; row b * k + j is completion j of prompt b
    states: Tensor          # (S, T) what the policy saw, of all passes; causal: the rows
    where: Tensor           # (S, T) bool, on the CPU: the U places where it gave a distribution
    owner: Tensor           # (M,) which completion a choice belongs to, in [0, N)
    position: Tensor        # (M,) and where in it, in [0, T)
    point: Tensor           # (M,) which distribution it was drawn from, in [0, U)
    actions: Tensor         # (M,) the id taken
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

    def split(self, n):
        """A causal Rollout, whose choices lie row by row, as Rollouts of n prompts each."""
        N = n * self.k
        rows = self.rows.split(N)
        where = self.where.split(N)
        counts = [int(part.sum()) for part in where]                    # of choices
        of_choices = zip(*[
            [None] * len(counts) if values is None else values.split(counts)
            for values in (self.owner, self.position, self.actions, self.logp_old, self.kept)])
        return [Rollout(self.prompts[i * n:(i + 1) * n], rows[i], rows[i], where[i], owner - i * N,
                        position, self.point[:counts[i]], actions, logp_old, kept, causal=True)
                for i, (owner, position, actions, logp_old, kept) in enumerate(of_choices)]


def complete(model, prompts, greedy=False, temperature=1.0, top_k=0, top_p=1.0, n_fill_steps=1,
             fill_order='random', keep_graph=False):
    """k completions of each of B Prompts, one for each of their uniforms; greedy: one, of the
    likeliest ids. Returns a Rollout. This one function completes, in training, evaluation and
    sample.py. keep_graph (fill): keep the logits, to learn from the very passes that chose."""
    k = 1 if greedy else prompts.uniforms.size(2)
    how = {'temperature': temperature, 'top_k': top_k, 'top_p': top_p, 'greedy': greedy}
    if model.causal:
        return write(model, prompts, k, **how)
    with torch.set_grad_enabled(keep_graph):
        return fill(model, prompts, k, n_fill_steps, fill_order, keep_graph, **how)


def fill(model, prompts, k, n_fill_steps, fill_order, keep_graph, **how):
    """Fills the blanks in passes, each of which sees what the passes before it wrote. The blanks of
    a row are ranked; pass t fills those of rank r with r * n_fill_steps // blanks == t.

    fill_order: 'random', one order for all k completions of a prompt | 'left' to right |
    'confident': where the policy, given the state, is surest. The order does not depend on the
    uniforms that sample, so the log-probability of a completion, given its order, is exactly the
    sum of those of its choices.

    A pass asks three things: which states are there, which of their blanks have their turn, and
    who draws from them what. See Rollout for an example. All that is worked out on the CPU, where
    prompts lie, so that a GPU is waited for only to learn what an earlier pass wrote."""
    device = model.device
    key = torch.zeros(prompts.mask.shape)       # (B, T); ties go from left to right
    if fill_order == 'random':
        key = prompts.order
    n_blanks = prompts.mask.sum(1, keepdim=True).clamp(min=1)           # (B, 1)
    uniforms = prompts.uniforms.transpose(1, 2)[:, :k].flatten(0, 1)    # (N, T)

    # At first all completions of a prompt stand in one state.
    prompt = torch.arange(len(prompts))                                 # (S,) of each state
    state_of = prompt_of = prompt.repeat_interleave(k)                  # (N,) of each completion
    states = prompts.tokens.masked_fill(prompts.mask, model.mask_id)    # (S, T)
    rows = states.to(device, non_blocking=True).repeat_interleave(k, 0)     # (N, T)
    passes = []
    n_points = 0
    for t in range(n_fill_steps):
        if t > 0:                               # those in one state, of a prompt, share its row
            seen = torch.cat((prompt_of[:, None], rows.cpu()), 1)
            seen, state_of = seen.unique(dim=0, return_inverse=True)    # (S, 1 + T), (N,)
            prompt = seen[:, 0]
            states = seen[:, 1:]

        # Which of the blanks that are left have their turn? Those that were filled ranked lower.
        left = states == model.mask_id                                  # (S, T)
        keys = key[prompt]                                              # (S, T)
        if fill_order == 'confident':
            look = model(states.to(device, non_blocking=True), left)    # (blanks left, V)
            keys = left.double().masked_scatter(left, -confidence(look))
        n = n_blanks[prompt]                                            # (S, 1)
        rank = n - left.sum(1, keepdim=True) + rank_among(keys, left)
        where = left & (rank * n_fill_steps // n == t)                  # (S, T)
        if not where.any():                     # with few blanks a pass may have nothing to do
            continue

        # Each completion draws from the distributions of its state, with uniforms of its own.
        number = where.flatten().cumsum(0).view_as(where) - 1           # (S, T) row of the logits
        owner, position = where[state_of].nonzero(as_tuple=True)        # (M of this pass,) each
        point = number[state_of[owner], position]                       # (M of this pass,)
        drawn = uniforms.new_zeros(number[-1, -1] + 1, k)               # (U of this pass, k)
        drawn[point, owner % k] = uniforms[owner, position]

        # Ask for those distributions, of the rows that have one, and choose.
        is_chosen = where[left]                                         # of the blanks left
        busy = where.any(1)
        where = where[busy]                     # numbered as before
        states, drawn, owner, position, point = [
            tensor.to(device, non_blocking=True)
            for tensor in (states[busy], drawn, owner, position, point)]
        if fill_order == 'confident':
            logits = rows_at(is_chosen, look)   # of the very same pass
        else:
            logits = model(states, where)                               # (U of this pass, V)
        ids, logp, kept = choose(logits.detach(), drawn, **how)         # (U, k), (U, k), (U, V)
        actions = ids[point, owner % k]
        rows[owner, position] = actions
        passes.append((states, where, owner, position, n_points + point, actions,
                       logp[point, owner % k], kept, logits if keep_graph else None))
        n_points += len(logits)
    joined = [None if parts[0] is None else torch.cat(parts) for parts in zip(*passes)]
    return Rollout(prompts, rows, *joined)


def rank_among(key, among):
    """The rank (S, T) of each position by its key (S, T), lowest first, among those in (S, T)."""
    key = key.double().masked_fill(~among, math.inf)
    return key.argsort(dim=1, stable=True).argsort(dim=1)


def confidence(logits):
    """How sure the model is (U,), on the CPU: the log-probability of the likeliest id, from logits
    (U, V). Of the distribution, not of a sample; rounded, so that places that are equal but for
    rounding go from left to right."""
    return logits.detach().log_softmax(-1).amax(-1).round(decimals=4).cpu().double()


def first_choice(where):
    """The first position, a number, at which any row of where (N, T) chooses."""
    return int(where.int().argmax(1).min())


@torch.no_grad()
def write(model, prompts, k, **how):
    """Writes from left to right, up to *and including* eos, padding after it. Prompts need not be
    equally long, but what follows a blank is blank.

    At each position, from the first blank of all on: every row gets an id; the rows whose blank it
    is keep it, the others what their prompt has there; and a row that has taken eos has no blanks
    any more. So `where` begins as the blanks and ends as what was chosen."""
    device = model.device
    first = first_choice(prompts.mask)
    there = prompts.map(lambda tensor: tensor.to(device, non_blocking=True))
    rows = there.tokens.repeat_interleave(k, 0)                             # (N, T)
    where = there.mask.repeat_interleave(k, 0)                              # (N, T)
    uniforms = there.uniforms.transpose(1, 2)[:, :k].flatten(0, 1)          # (N, T)
    cache = model.new_cache()
    seen = F.pad(there.tokens[:, :first], (1, 0), value=model.bos_id)       # (B, first + 1)
    steps = []                                  # of each position: log-probs (N,), kept (N, V)
    for t in range(first, rows.size(1)):
        logits = model.next_logits(seen, cache)                             # (N, V)
        if t == first:                          # up to here the k completions of a prompt are one
            logits = logits.repeat_interleave(k, 0)
            cache.expand(k)
        ids, logp, kept = choose(logits, uniforms[:, t, None], **how)       # (N, 1) twice, (N, V)
        steps.append((logp[:, 0], kept))
        rows[:, t] = torch.where(where[:, t], ids[:, 0], rows[:, t])
        seen = rows[:, t, None]                                             # (N, 1)
        ended = where[:, t, None] & (seen == prompts.eos)                   # (N, 1)
        rows[:, t + 1:] = rows[:, t + 1:].masked_fill(ended, model.pad_id)
        where[:, t + 1:] &= ~ended
        # Have all ended? To know it a GPU must be waited for, so it is asked seldom.
        is_asked = device.type == 'cpu' or t % 4 == 3
        if is_asked and not where[:, t + 1:].any():
            break

    where = where.cpu()
    owner, position = [index.to(device, non_blocking=True)
                       for index in where.nonzero(as_tuple=True)]           # (M,) each
    point = torch.arange(len(owner), device=device)     # each choice has a distribution of its own
    logp_old, kept = [
        None if parts[0] is None else torch.stack(parts, 1)[owner, position - first]
        for parts in zip(*steps)]                                           # (M,), (M, V)
    return Rollout(prompts, rows, rows, where, owner, position, point, rows[owner, position],
                   logp_old, kept, causal=True)


def complete_texts(model, strings, k=1, seed=0, **how):
    """k completions of each text, a list of lists, by a model of load_gpt(): what complete() does,
    from strings to strings. '_' is a blank; a causal model continues the texts. Raises ValueError.
    """
    prompts = prompts_of_texts(strings, model.tok, model.unit, k, draws(seed, 'texts'),
                               block_size=model.block_size,
                               mode='causal' if model.causal else 'fill')
    rows = complete(model, prompts, **how).rows
    _, completions, _ = texts(model.tok, prompts, rows, model.causal)
    return [completions[i:i + k] for i in range(0, len(completions), k)]


# ---- optimizers ----------------------------------------------------------------------------------


def make_optimizers(model, learning_rate, weight_decay, beta1, beta2, kind='muon'):
    """A list of optimizers. 'muon': Muon (K. Jordan, 2024) for the hidden matrices, AdamW for
    embedding, head and the rest; both move a weight by about learning_rate a step, so that one knob
    serves both. 'adamw': for all."""
    settings = {'lr': learning_rate, 'weight_decay': weight_decay}
    matrices = hidden_matrices(model) if kind == 'muon' else []
    others = [p for p in model.parameters() if p not in set(matrices)]
    optimizers = [torch.optim.AdamW(others, betas=(beta1, beta2), fused=True, **settings)]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, adjust_lr_fn='match_rms_adamw', **settings))
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
            group['lr'] = lr
        optimizer.step()
        optimizer.zero_grad()
    return grad_norm


# ---- checkpoints, and the recipes they are made by -----------------------------------------------


def save_checkpoint(path, **content):
    """Writes a checkpoint, a plain dict, whole or not at all."""
    with new_file(path) as file:
        torch.save(content, file)


@contextlib.contextmanager
def reading(kind, path, make):
    """While a checkpoint is read, and put into a network: what goes wrong is its fault."""
    try:
        yield
    except Exception as e:      # torch, pickle and zipfile raise a dozen kinds, which all mean:
        fail(f"no {kind} that fits at {path}, or a damaged one ({type(e).__name__}); make one "
             f"with: {make}")


def load_checkpoint(path, kind, data=None, make='python model.py', block_size=1, mode=''):
    """A checkpoint, checked before anything is computed; exits with an error if it does not fit.
    kind: 'generator' (a policy is one, too), 'judge', or 'policy', which belongs to its text; make:
    the command that makes one. data: a Dataset with whose vocabulary it shall work."""
    if not os.path.exists(path):
        fail(f"there is no {kind} at {path}; make one with: {make}")
    with reading(kind, path, make):
        if zipfile.ZipFile(path).testzip():             # compares the checksums of its parts
            raise OSError
        checkpoint = torch.load(path, map_location='cpu', weights_only=True)
        found = checkpoint['kind']
        args = checkpoint['model_args']
        weights = checkpoint['model']
        embed = [w.shape for name, w in weights.items() if name.endswith('embed.weight')]
        n_blocks = sum(name.endswith('qkv.weight') for name in weights)
        agrees = 'folder' in args or (
            embed == [(args['vocab_size'] + 3, args['n_embd'])] and n_blocks == args['n_layer']
            and args['n_embd'] % (2 * args['n_head']) == 0 and args['block_size'] < 10 ** 6
            and args['positions'] in POSITIONS)
        if not (agrees and {'config', 'corpus', 'unit', 'vocabulary'} <= checkpoint.keys()):
            raise ValueError
    wrong = ''
    if (found == 'judge') != (kind == 'judge'):
        wrong = f"is a {found}, expected a {kind}"
    elif data and checkpoint['vocabulary'] != data.tok.vocabulary:
        wrong = f"was made for another vocabulary than that of data/{data.name}"
    elif data and kind == 'policy' and checkpoint['corpus'] != data.fingerprint:
        wrong = f"was made for another text than data/{data.name} has"
    elif args['block_size'] < block_size:
        wrong = f"takes rows of {args['block_size']} tokens, block_size is {block_size}"
    elif mode and args['causal'] != (mode == 'causal'):
        wrong = f"is not a {mode} model"
    if wrong:
        fail(f"{path} {wrong}; make one with: {make}")
    return checkpoint


def load_gpt(path, data=None, make='python model.py', block_size=1, mode='', device='cpu'):
    """The GPT of a generator or policy checkpoint; see load_checkpoint(). It has two attributes
    more: tok, its Tokenizer, and unit, of its corpus."""
    if os.path.isdir(path):                     # a model of others
        from extras.pretrained import load
        return load(path, data, block_size, mode, device)
    checkpoint = load_checkpoint(path, 'generator', data, make, block_size, mode)
    network = GPT
    if 'folder' in checkpoint['model_args']:
        from extras.pretrained import Pretrained as network
    with reading('generator', path, make):
        model = network(**checkpoint['model_args'])
        model.load_state_dict(checkpoint['model'])
    model.tok = make_tokenizer(**checkpoint['vocabulary'])
    model.unit = checkpoint['unit']
    use_threads(model.args.get('n_embd', 256))
    return model.to(device)


def recipe_path(config):
    """Where the checkpoint of a recipe, all its knobs, lies. What it is made of is digested in its
    name, so that what is made otherwise has another name: knobs, text, files that knobs name, the
    network's code, and the generator that a classifier learns from."""
    data = Dataset(config['dataset'], prepare=True)
    made_of = [data.fingerprint]
    for part in (norm, attention, Block, GPT, importlib.import_module('judge').Judge):
        made_of.append(ast.unparse(ast.parse(inspect.getsource(part))))     # without comments
    for name, value in config.items():
        if os.path.isfile(str(value)):
            value = pathlib.Path(value).read_bytes()
        if name not in ('out', 'device', 'compile', 'eval_interval'):
            made_of.append([name, value])
    if config.get('kind') == 'classifier' and config['labels'] == '':
        made_of.append(find_generator(config, data))
    name = f"{config.get('kind', 'generator')}_{data.name.replace('/', '_')}"
    return f'out/{name}-{digest_of(made_of)[:8]}.pt'


def find_part(part, path, recipe, data, **run):
    """Path of a part, 'generator' or 'judge', and the command that makes it. path '': where the
    recipe's checkpoint lies; recipe '': config/<part>_<name of the corpus>.py, or that of pairs.
    run: {knob: value}, which hold where the recipe sets no other."""
    script = {'generator': 'model.py', 'judge': 'judge.py'}[part]
    own = f"config/{part}_{data.name.replace('/', '_')}.py"
    if data.answers and not os.path.exists(own):
        own = f'config/{part}_pairs.py'
    module = importlib.import_module(script.removesuffix('.py'))
    run = {'dataset': data.name} | run
    words = [f'--{name}={value}' for name, value in run.items() if hasattr(module, name)]
    words += shlex.split(recipe or own)
    if path:
        words.append(f'--out={path}')
    else:
        config, _ = configure(vars(module) | {}, words, quiet=True)
        path = recipe_path(config)
    return path, shlex.join(['python', script] + words)


def find_generator(config, data):
    """find_part() of the generator whose completions a classifier tells from real rows."""
    return find_part('generator', config['generator_checkpoint'], '', data, mode='fill',
                     block_size=config['block_size'])


# ---- the supervised loop of model.py and judge.py ------------------------------------------------


def fit(model, gpt, data, loss_at, look, config, **content):
    """Minimises loss_at(step), a scalar, over a model's weights, and saves it with this content.
    gpt: the model, or its trunk; look() tells about held-out data; config: all knobs."""
    path = config['out'] or recipe_path(config)     # now: files may change meanwhile
    use_threads(config['n_embd'])
    if config['compile']:
        gpt.compiled = torch.compile(gpt.trunk, dynamic=False)
    peak = config['learning_rate']
    last = config['max_iters']
    interval = config['eval_interval'] or last
    optimizers = make_optimizers(model, peak, config['weight_decay'], config['beta1'],
                                 config['beta2'])
    for step in range(1, last + 1):
        if step <= 2:                           # the first step sets much up, and does not count
            began = clocks()
        loss = loss_at(step)
        loss.backward()
        lr = get_lr(step - 1, peak, peak / 10, config['warmup_iters'], last)
        update(model, optimizers, lr, config['grad_clip'])
        if step == 20:
            tell_if_slow(began, 19)
        looks = step == last or step % interval == 0
        if looks or step % (last // 10 + 1) == 0:
            if not loss.isfinite():
                fail(f"step {step}: loss {loss:g}; nothing was written; lower --learning_rate")
            held_out = f" | {look()}" if looks else ''
            seconds_left = (time.time() - began[0]) / max(1, step - 1) * (last - step)
            print(f"{content['kind']:9} step {step:5} | loss {loss:.4f}{held_out} | "
                  f"{seconds_left:.0f} s left", flush=True)
    save_checkpoint(path, model_args=gpt.args, model=model.state_dict(), config=config,
                    corpus=data.fingerprint, vocabulary=data.tok.vocabulary,
                    unit=data.meta['unit'], **content)
    print(f"saved {path}")


def pretraining_batch(model, data, split, n, rng):
    """The loss of guessing the blanks of rows, nats per blank, or in causal mode nats per token of
    the whole row; the rows (n, T) and their blanks (n, T) bool."""
    tokens, answer = data.batch(split, n, block_size, rng)
    hidden = blanks(tokens, data.tok, rng, blank_kind, blank_low, blank_high, blank_span, answer,
                    model.causal)
    where = tokens != data.tok.pad if model.causal else hidden
    with autocast(model.device, dtype):
        logits = model(tokens.to(model.device), where)                  # (U, V)
        loss = F.cross_entropy(logits, tokens[where].to(model.device))
    return loss, tokens, hidden


@torch.no_grad()
def look_at_fills(model, data):
    """Text: held-out loss, and verify() of sampled completions of fixed blanks."""
    n = 2 * batch_size
    rng = draws(0, 'look')
    loss, tokens, hidden = pretraining_batch(model, data, 'val', n, rng)
    line = f"held-out loss {loss:.4f}"
    if data.verify:
        prompts = with_draws(tokens, hidden, data.tok, 1, rng)
        rows = complete(model, prompts).rows
        found = data.check(*texts(data.tok, prompts, rows, model.causal))
        line += f" | verify {sum(found) / n:.1%}"
    return line


if __name__ == "__main__":
    StopSignal()                                # Ctrl-C ends with one line
    config, _ = configure(globals())
    one_of(('fill', 'causal'), mode=mode)
    check_recipe(**config)
    data = Dataset(dataset)
    data.check_rows(block_size, mode, blank_kind)
    torch_device, note = init_device(device, dtype)
    torch.manual_seed(seed)
    model = GPT(data.tok.base, block_size, n_layer, n_head, n_embd, mode == 'causal', positions)
    model.to(torch_device)

    def loss_at(step):
        rng = draws(seed, 'pretrain', step)
        return pretraining_batch(model, data, 'train', batch_size, rng)[0]

    print(f"{mode} generator of {dataset}, {note}")
    fit(model, model, data, loss_at, functools.partial(look_at_fills, model, data), config,
        kind='generator')
