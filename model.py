"""The generator: a GPT that fills blanks, and the script that pretrains it.

    python model.py config/generator_arithmetic.py
    python model.py config/generator_docstrings.py --max_iters=2000

One class serves as generator (bidirectional: all blanks in one pass; causal: left to right), as
trunk of the judge, and as likelihood judge. No dropout anywhere: sampling and learning must see
the same network. Further down: sampling, optimizers, checkpoints; all scripts share them.
"""
import contextlib
import math
import os
import re
import signal
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from config.configurator import configure, fail
from data.dataset import SPECIALS, Dataset, blanks, draws, texts

# ------------------------------------------------------------------------------------------------
# knobs: pretraining (train_grpo.py has its own)
out = ''                    # checkpoint to write; '' means out/<name of the config file>.pt
dataset = 'arithmetic'      # a folder of data/
mode = 'fill'               # 'fill': bidirectional, all blanks at once | 'causal': left to right
block_size = 10             # T, tokens in a row
n_layer = 3                 # blocks
n_head = 4                  # heads per block
n_embd = 64                 # C, channels
blank_kind = 'random'       # 'random' positions | 'span' | 'suffix' (a completion)
blank_low = 0.2             # smallest share of a row that is blank
blank_high = 0.6            # largest share
blank_span = 4              # length of a run, for 'span'
batch_size = 256            # rows per step
max_iters = 1000            # optimizer steps
eval_interval = 250         # steps between looks at held-out rows
learning_rate = 4e-3        # peak; cosine to a tenth of it
warmup_iters = 50           # steps of linear warm-up
weight_decay = 0.01         # of matrices
beta1 = 0.9                 # AdamW
beta2 = 0.95                # AdamW
grad_clip = 1.0             # largest gradient norm; 0 switches it off
device = 'auto'             # 'auto' | 'cpu' | 'cuda' | 'mps'
dtype = 'auto'              # products in 'float32' | 'bfloat16' | 'float64' (checks) | 'auto'
compile = False             # torch.compile the trunk
seed = 1                    # of weights, rows and blanks
# ------------------------------------------------------------------------------------------------
# letters: B rows | T positions | C channels | H heads | D channels per head | V base vocabulary
# M decision points | k completions per prompt | N = B*k


class Cache:
    """Keys and values of earlier positions, per layer (rows, H, positions, D).

    The first pass, over the common prefix of a group, fills it; grow() then copies that prefix
    for each of the k rows. With a capacity later positions are written in place (sampling, no
    gradients); without one they are joined to the prefix by a copy that gradients pass through.
    """

    def __init__(self):
        self.layers, self.length, self.capacity = [], 0, 0

    def grow(self, copies, capacity=0):
        self.capacity = capacity
        self.layers = [[t.repeat_interleave(copies, 0) for t in kv] for kv in self.layers]
        if capacity:
            more = capacity - self.length
            self.layers = [[F.pad(t, (0, 0, 0, more)) for t in kv] for kv in self.layers]

    def select(self, rows):
        self.layers = [[t[rows] for t in kv] for kv in self.layers]

    def extend(self, i, new):
        """Adds layer i's new (k, v); returns all (k, v) so far. The last layer moves length on."""
        stop = self.length + new[0].size(2)
        if i == len(self.layers):
            self.layers.append(list(new))
        elif self.capacity:
            for old, t in zip(self.layers[i], new):
                old[:, :, self.length:stop] = t
            return [old[:, :, :stop] for old in self.layers[i]]
        else:
            return [torch.cat((old, t), 2) for old, t in zip(self.layers[i], new)]
        return new


def norm(x):
    return F.rms_norm(x, (x.size(-1),))


def attention(q, k, v, bias, causal):
    """Softmax attention (B, H, S, D) over k, v (B, H, keys, D); bias is added to the scores."""
    if q.device.type != 'cpu':
        causal = causal and q.size(2) == k.size(2)      # spares the fused kernel an explicit mask
        return F.scaled_dot_product_attention(q, k, v, None if causal else bias, is_causal=causal)
    # on CPUs plain products beat the fused kernel for small heads
    scores = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)                 # (B, H, S, keys)
    return (scores if bias is None else scores + bias).softmax(-1).to(v.dtype) @ v


class Block(nn.Module):
    def __init__(self, n_layer, n_head, n_embd):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd, bias=False)
        self.up = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.down = nn.Linear(4 * n_embd, n_embd, bias=False)
        for linear in (self.qkv, self.up, self.proj, self.down):
            nn.init.normal_(linear.weight, std=n_embd ** -0.5)
        for linear in (self.proj, self.down):       # residual branches start small
            nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * n_layer))

    def forward(self, x, cos, sin, bias, causal, cache=None, i=0):
        B, S, C = x.shape
        qkv = self.qkv(norm(x)).view(B, S, 3, self.n_head, C // self.n_head).transpose(1, 3)
        qk, v = norm(qkv[:, :, :2]), qkv[:, :, 2]                           # (B, H, 2, S, D)
        a, b = qk.chunk(2, -1)                                              # rotary positions
        q, k = torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(v.dtype).unbind(2)
        if cache is not None:
            k, v = cache.extend(i, (k, v))
        y = attention(q, k, v, bias, causal).transpose(1, 2).reshape(B, S, C)
        x = x + self.proj(y)
        return x + self.down(F.relu(self.up(norm(x))).square())


class GPT(nn.Module):
    """Pre-norm transformer: rotary positions, RMS-normalised queries and keys, no biases.

    vocab_size: V, base vocabulary. The inputs also know mask = V, BOS = V + 1, padding = V + 2;
    the output layer has V rows only, so special ids are never produced and need no banning.
    """

    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd, causal):
        super().__init__()
        if n_embd % (2 * n_head):
            raise ValueError(f"n_embd = {n_embd} must be a multiple of 2 * n_head = {2 * n_head}")
        self.args = dict(vocab_size=vocab_size, block_size=block_size, n_layer=n_layer,
                         n_head=n_head, n_embd=n_embd, causal=causal)
        self.causal, self.block_size = causal, block_size
        self.mask_id, self.bos_id, self.pad_id = range(vocab_size, vocab_size + len(SPECIALS))
        self.embed = nn.Embedding(vocab_size + len(SPECIALS), n_embd)
        self.blocks = nn.ModuleList(Block(n_layer, n_head, n_embd) for _ in range(n_layer))
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        nn.init.normal_(self.embed.weight, std=1.0)
        nn.init.zeros_(self.head.weight)
        D = n_embd // n_head
        angle = torch.arange(block_size)[:, None] * 10000.0 ** (-torch.arange(0, D, 2) / D)
        self.register_buffer('cos', angle.cos(), persistent=False)          # (T, D/2)
        self.register_buffer('sin', angle.sin(), persistent=False)
        future = torch.full((block_size, block_size), float('-inf')).triu(1)
        self.register_buffer('future', future, persistent=False)

    def trunk(self, inputs, cache=None, pad=None):
        """inputs (B, S) ids, continuing the cache -> normalised features (B, S, C)."""
        start = cache.length if cache is not None else 0
        stop = start + inputs.size(1)
        causal = self.causal and inputs.size(1) > 1
        bias = self.future[start:stop, :stop] if causal else None           # (S, stop)
        if pad is not None and (pad.device.type != 'cpu' or pad.any()):
            # a bidirectional model must not look at padding, (B, 1, 1, S)
            bias = torch.zeros_like(pad, dtype=self.cos.dtype).masked_fill(pad, float('-inf'))
            bias = bias[:, None, None]
        x = norm(self.embed(inputs))
        cos, sin = self.cos[start:stop].to(x.dtype), self.sin[start:stop].to(x.dtype)
        for i, block in enumerate(self.blocks):
            x = block(x, cos, sin, bias, causal, cache, i)
        if cache is not None:
            cache.length = stop
        return norm(x)

    def shifted(self, tokens):
        """Inputs of a causal model (B, T): BOS, then all tokens but the last."""
        return torch.cat((torch.full_like(tokens[:, :1], self.bos_id), tokens[:, :-1]), 1)

    def features(self, tokens, where=None, prefix=0, copies=1):
        """tokens (N, T) -> features (N, T, C), or (M, C) at the True positions of where (N, T).

        Features at t are what a choice of tokens[:, t] may depend on: a causal model sees what is
        left of t, a bidirectional one sees everything but the positions in `where`. With copies =
        k > 1, rows come in groups of k that agree on the first `prefix` tokens (causal only):
        that prefix is computed once per group.
        """
        if tokens.size(1) > self.block_size:
            raise ValueError(f"rows of {tokens.size(1)} tokens; this model takes at most "
                             f"block_size = {self.block_size}")
        if not self.causal:
            pad = tokens == self.pad_id
            hidden = tokens if where is None else \
                tokens.masked_fill(where.to(tokens.device, non_blocking=True), self.mask_id)
            x = self.trunk(hidden, pad=pad)
        elif copies == 1 or prefix == 0:
            x = self.trunk(self.shifted(tokens))
        else:
            inputs, cache = self.shifted(tokens), Cache()
            shared = self.trunk(inputs[::copies, :prefix + 1], cache)       # (B, prefix + 1, C)
            cache.grow(copies)
            x = self.trunk(inputs[:, prefix + 1:], cache)                   # (N, T - prefix - 1, C)
            x = torch.cat((shared.repeat_interleave(copies, 0), x), 1)
        if where is None:
            return x
        # an index made from a mask that lives on the CPU keeps the device from waiting
        index = where.flatten().nonzero().squeeze(1).to(x.device, non_blocking=True)
        return x.flatten(0, 1).index_select(0, index)                       # (M, C)

    def forward(self, tokens, where=None, prefix=0, copies=1):
        """Logits that score tokens[n, t]: (N, T, V), or (M, V) for where (N, T); see features."""
        return self.logits(self.features(tokens, where, prefix, copies))

    def logits(self, x):
        """Output layer: features (..., C) -> logits (..., V), at least float32."""
        y = self.head(x)
        return y if y.dtype == torch.float64 else y.float()


# ------------------------------------------------------------------------------------------------
# sampling: one distribution samples, scores, and enters KL and entropy


def log_probs(logits, temperature=1.0, kept=None):
    """Log-probabilities (M, V), in nats, of the policy softmax(logits / temperature).

    kept (M, V) bool: renormalise over these ids only (the set that top_k and top_p left).
    """
    logits = logits / temperature
    # -1e9 rather than -inf: p is still exactly 0, and p * log p stays 0 instead of NaN
    return (logits if kept is None else logits.masked_fill(~kept, -1e9)).log_softmax(-1)


def kept_set(logp, top_k=0, top_p=1.0):
    """The ids (M, V) bool that top-k and nucleus sampling leave, or None for all of them.

    top_k: the k likeliest, 0 is off. top_p in (0, 1]: the fewest ids whose mass reaches top_p
    (Holtzman et al., arXiv:1904.09751).
    """
    if not top_k and top_p >= 1:
        return None
    ranked, order = logp.sort(-1, descending=True)
    p = ranked.exp()
    keep = p.cumsum(-1) - p < top_p
    if top_k:
        keep[:, top_k:] = False
    return torch.zeros_like(keep).scatter(-1, order, keep)


def draw(logp, uniforms=None):
    """Actions (M, k) by inverse CDF from uniforms (M, k) in [0, 1); None: argmax (M, 1)."""
    if uniforms is None:
        return logp.argmax(-1, keepdim=True)
    cdf = logp.exp().cumsum(-1)                                             # (M, V)
    top = cdf[:, -1:] * (1 - 2 ** -22)          # strictly inside, so never an id of probability 0
    return torch.searchsorted(cdf, torch.minimum(uniforms * top, top), right=True)


def act(logits, uniforms=None, temperature=1.0, top_k=0, top_p=1.0):
    """Logits (M, V), uniforms (M, k) -> actions (M, k), their log-probs (M, k), kept or None."""
    logp = log_probs(logits, temperature)
    kept = kept_set(logp, top_k, top_p)
    logp = logp if kept is None else log_probs(logits, temperature, kept)
    actions = draw(logp, uniforms)
    return actions, logp.gather(1, actions), kept


@torch.no_grad()
def complete(model, tokens, mask, uniforms=None, temperature=1.0, top_k=0, top_p=1.0, eos=-1):
    """Fills the blanks of prompts tokens (B, T), mask (B, T) bool; one row per uniform.

    uniforms (B, T, k) in [0, 1); None: the likeliest id everywhere, k = 1. Returns rows (N, T)
    and acted (N, T) bool (where the policy chose; after an end-of-row id: padding, False), then
    logp (N, T), the log-probability of each choice, and kept (N, T, V) bool or None.
    """
    k = 1 if uniforms is None else uniforms.size(2)
    rows, acted = tokens.repeat_interleave(k, 0), mask.repeat_interleave(k, 0)      # (N, T)
    filters = top_k > 0 or top_p < 1
    logp_taken, kept_all = torch.zeros(rows.shape, device=rows.device), None
    if not model.causal:
        u = None if uniforms is None else uniforms[mask]                    # (M, k)
        actions, logp, kept = act(model(tokens, where=mask), u, temperature, top_k, top_p)
        rows, logp_taken = place(tokens, mask, actions), place(tokens * 0.0, mask, logp)
        return rows, acted, logp_taken, kept

    T = tokens.size(1)
    at = torch.arange(T, device=rows.device)
    last = (acted * at).amax(1)                                             # (N,) last blank
    closed = last > (at * ~acted * (rows != model.pad_id)).amax(1)          # nothing given after it
    u = None if uniforms is None else uniforms.transpose(1, 2).flatten(0, 1)        # (N, T)
    first = int(mask.any(0).nonzero()[0])
    cache, live = Cache(), torch.arange(len(rows), device=rows.device)
    x = model.trunk(model.shifted(tokens)[:, :first + 1], cache)[:, -1]     # (B, C)
    x = x.repeat_interleave(k, 0)
    cache.grow(k, T)
    for t in range(first, T):
        logits = model.logits(x)                                            # (live, V)
        actions, logp, kept = act(logits, None if u is None else u[live, t, None],
                                  temperature, top_k, top_p)
        mine = acted[live, t]
        new = torch.where(mine, actions[:, 0], rows[live, t])
        rows[live, t] = new
        logp_taken[live, t] = logp[:, 0].float() * mine
        if filters:
            if kept_all is None:
                kept_all = torch.ones(*rows.shape, logits.size(-1), dtype=torch.bool)
            kept_all[live.cpu(), t] = kept.cpu()
        ended = mine & (new == eos) & closed[live]
        over = live[ended]
        rows[over, t + 1:] = rows[over, t + 1:].masked_fill(acted[over, t + 1:], model.pad_id)
        acted[over, t + 1:] = False
        last[over] = t
        if t + 1 == T:
            break
        if t % 4 == 3 or rows.device.type == 'cpu':       # elsewhere asking costs a wait, so seldom
            going = last[live] > t
            n = int(going.sum())
            if n == 0:
                break
            if n <= 0.9 * len(live):                # copying the cache must pay
                live = live[going]
                cache.select(going)
        x = model.trunk(rows[live, t, None], cache)[:, 0]
    return rows, acted, logp_taken, kept_all


def place(tokens, mask, values):
    """Writes values (M, k) into the blanks of tokens (B, T): rows (N, T), row b*k + j."""
    k = values.size(1)
    rows = tokens[:, None].repeat(1, k, 1)                                  # (B, k, T)
    rows.transpose(1, 2)[mask] = values.to(rows.dtype)
    return rows.flatten(0, 1)


# ------------------------------------------------------------------------------------------------
# machine, optimizers, checkpoints: what all scripts share


def quick_products():
    """Picks torch's float32 matrix product on this CPU by measuring speed and error; says which.

    On AMD processors 'medium' calls another library, 2.4 times faster at the same accuracy; on
    others it may round to bfloat16, and then it is not taken.
    """
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 256, 256, generator=g, dtype=torch.float32)
    exact, found = a.double() @ b.double(), {}
    for precision in ('highest', 'medium'):
        torch.set_float32_matmul_precision(precision)
        error = ((a @ b - exact).norm() / exact.norm()).item()
        times = []
        for _ in range(7):
            start = time.perf_counter()
            a @ b
            times.append(time.perf_counter() - start)
        found[precision] = error, sorted(times)[3]
    (error, slow), (error_fast, fast) = found['highest'], found['medium']
    choice = 'medium' if fast < 0.8 * slow and error_fast < 4 * error else 'highest'
    torch.set_float32_matmul_precision(choice)
    return f"float32 products '{choice}' (error {found[choice][0]:.0e}, {slow / found[choice][1]:.1f} x)"


class Machine:
    """Where a script runs: device, precision of products, rank among how many, printing."""

    def __init__(self, device, dtype, backend=''):
        self.rank, self.world = int(os.environ.get('RANK', 0)), int(os.environ.get('WORLD_SIZE', 1))
        mps = getattr(torch.backends, 'mps', None)
        have = {'cpu': True, 'cuda': torch.cuda.is_available(), 'mps': mps and mps.is_available()}
        if device == 'auto':
            device = 'cuda' if have['cuda'] else 'mps' if have['mps'] else 'cpu'
        self.type = device.partition(':')[0]
        if not have.get(self.type):
            fail(f"--device={device} is not available here; there are "
                 f"{', '.join(d for d in have if have[d])}, or auto")
        if self.type == 'cuda' and self.world > 1:
            device = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(device)
        if dtype not in ('auto', 'float32', 'bfloat16', 'float64'):
            fail(f"--dtype={dtype}: expected auto, float32, bfloat16 or float64")
        if dtype == 'auto':
            dtype = 'bfloat16' if self.type == 'cuda' else 'float32'
        self.device, self.dtype, self.main = torch.device(device), dtype, self.rank == 0
        torch.set_default_dtype(torch.float64 if dtype == 'float64' else torch.float32)
        self.note = f"{device}, {dtype}"
        if self.type == 'cpu':
            self.note += f", {torch.get_num_threads()} threads, {quick_products()}"
        elif self.type == 'cuda':
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        if self.world > 1:
            backend = backend or ('nccl' if self.type == 'cuda' else 'gloo')
            torch.distributed.init_process_group(backend)
            self.note += f", {self.world} ranks by {backend}"

    def autocast(self):
        """Context in which products are bfloat16, if they are to be; softmax stays float32."""
        return torch.autocast(self.type, torch.bfloat16, enabled=self.dtype == 'bfloat16')

    def barrier(self):
        if self.world > 1:
            torch.distributed.barrier()

    def sum(self, tensor):
        """Sum over ranks, in place."""
        if self.world > 1:
            torch.distributed.all_reduce(tensor)
        return tensor


def optimizers(model, learning_rate, weight_decay, beta1, beta2):
    """Muon for the hidden matrices (Jordan, 2024), AdamW for embedding, head and the rest.

    Both move a weight by about learning_rate a step, so one knob serves both.
    """
    hidden = [p for block in model.blocks for p in block.parameters()]
    ids = {id(p) for p in hidden}
    rest = [p for p in model.parameters() if id(p) not in ids]
    fused = rest[0].device.type in ('cpu', 'cuda')
    return [torch.optim.Muon(hidden, lr=learning_rate, weight_decay=weight_decay,
                             adjust_lr_fn='match_rms_adamw'),
            torch.optim.AdamW(rest, lr=learning_rate, betas=(beta1, beta2),
                              weight_decay=weight_decay, fused=fused)]


def scheduled(step, peak, floor, warmup, total):
    """Learning rate at a step: linear warm-up, then a cosine from peak down to floor."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    part = min(1.0, (step - warmup) / max(1, total - warmup))
    return floor + 0.5 * (1 + math.cos(math.pi * part)) * (peak - floor)


def update(model, opts, lr, grad_clip):
    """One step of all optimizers at learning rate lr; returns the gradient norm before clipping."""
    size = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip or float('inf'))
    for opt in opts:
        for group in opt.param_groups:
            group['lr'] = lr
        opt.step()
        opt.zero_grad(set_to_none=True)
    return size


VERSION = 1


def save(path, **content):
    """Writes a checkpoint, a plain dict, under a temporary name and renames it: whole or not."""
    part = f"{path}.tmp"
    try:
        os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
        with open(part, 'wb') as f:
            torch.save({'version': VERSION, **content}, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(part, path)
    except (OSError, RuntimeError) as e:
        fail(f"cannot write {path}: {str(e).splitlines()[0]}; what was there before is untouched")
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)


def load(path, kind, data=None, make=''):
    """Reads a checkpoint of a kind ('generator', 'judge', 'policy'); ends with a sentence if it is
    missing, broken, unsafe, of another kind, or made for another corpus than `data`."""
    if not os.path.isfile(path):
        fail(f"no {kind} checkpoint at {path}; make one with: {make}")
    try:
        ckpt = torch.load(path, map_location='cpu', weights_only=True)
        found = ckpt['kind'], ckpt['version']
    except Exception as e:
        unsafe = 'weights_only' in str(e).lower() or 'unsupported' in str(e).lower()
        why = "holds more than tensors and plain values, so it was not opened" if unsafe else \
            "is damaged or not a checkpoint of this project"
        fail(f"{path} {why} ({type(e).__name__}); make it again with: {make}")
    if found[0] != kind and not (kind == 'generator' and found[0] == 'policy'):
        fail(f"{path} is a {found[0]} checkpoint, expected a {kind}; make one with: {make}")
    if found[1] != VERSION:
        fail(f"{path} has version {found[1]}, expected {VERSION}; make it again with: {make}")
    if data is not None and ckpt['corpus'] != data.fingerprint:
        fail(f"{path} was made for the corpus {ckpt['config'].get('dataset')} ({ckpt['corpus']}), "
             f"data/{data.name} is another one or was prepared anew ({data.fingerprint}); "
             f"make it again with: {make}")
    return ckpt


def load_gpt(path, data, block_size, make, device='cpu', mode=''):
    """The GPT of a generator or policy checkpoint, checked against corpus, mode and row length."""
    ckpt = load(path, 'generator', data, make)
    args = ckpt['model_args']
    if args['block_size'] < block_size:
        fail(f"{path}: its rows have at most {args['block_size']} tokens, block_size is "
             f"{block_size}; make one with: {make} --block_size={block_size}")
    if mode and args['causal'] != (mode == 'causal'):
        fail(f"{path} is a {'causal' if args['causal'] else 'fill'} model, mode is {mode}; "
             f"make one with: {make} --mode={mode}")
    model = GPT(**args)
    model.load_state_dict(ckpt['model'])
    return model.to(device)


def recipe_out(words):
    """Where a recipe, config file and flags, leaves its checkpoint: out/<its name>.pt."""
    stem = [os.path.basename(w).removesuffix('.py') if w.endswith('.py') else w.removeprefix('--')
            for w in words if not w.startswith('--out=')]
    return f"out/{re.sub('[^A-Za-z0-9_.=-]', '_', '-'.join(stem) or 'default')}.pt"


class Progress:
    """A line that overwrites itself on a terminal; in a file, a line every so often."""

    def __init__(self, total, quiet=False):
        self.total, self.start, self.seen = total, time.time(), 0.0
        self.live, self.quiet = sys.stderr.isatty(), quiet

    def __call__(self, step, text):
        now = time.time()
        if self.quiet or now - self.seen < (0.2 if self.live else 10) and step < self.total:
            return
        self.seen, left = now, (now - self.start) / max(1, step) * (self.total - step)
        line = f"step {step}/{self.total} | {text} | {left:.0f} s left"
        print(f"\r{line:<99}" if self.live else line, end='' if self.live else '\n',
              file=sys.stderr, flush=True)
        if self.live and step == self.total:
            print(file=sys.stderr)


def interruptible():
    """SIGTERM ends a script as Ctrl-C does, by an exception."""
    def stop(number, frame):
        raise SystemExit(128 + number)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def fit(model, loss_at, look, config):
    """The supervised loop of model.py and judge.py.

    loss_at(step) -> scalar loss of that step's batch; look() -> text about held-out data.
    """
    c, again = config, ' '.join(['python', *sys.argv])
    opts = optimizers(model, c['learning_rate'], c['weight_decay'], c['beta1'], c['beta2'])
    progress, mean = Progress(c['max_iters']), None
    interruptible()
    try:
        for step in range(c['max_iters']):
            loss = loss_at(step)
            if not math.isfinite(loss.item()):
                fail(f"the loss is {loss.item()} at step {step}; try half the --learning_rate; "
                     "nothing was written")
            mean = loss.item() if mean is None else 0.98 * mean + 0.02 * loss.item()
            loss.backward()
            lr = scheduled(step, c['learning_rate'], c['learning_rate'] / 10, c['warmup_iters'],
                           c['max_iters'])
            update(model, opts, lr, c['grad_clip'])
            progress(step + 1, f"loss {mean:.3f}")
            if (step + 1) % c['eval_interval'] == 0 or step + 1 == c['max_iters']:
                print(f"step {step + 1:5d} | loss {mean:.4f} | {look()}", flush=True)
    except SystemExit as e:
        if e.code in (130, 143):
            print(f"\nstopped at step {step}, nothing was written; again: {again}",
                  file=sys.stderr)
        raise


if __name__ == "__main__":
    config = configure(globals())
    if mode not in ('fill', 'causal'):
        fail(f"--mode={mode}: expected fill or causal")
    out = out or recipe_out(sys.argv[1:])
    data, machine = Dataset(dataset), Machine(device, dtype)
    tok, here = data.tok, machine.device
    torch.manual_seed(seed)
    model = GPT(tok.base, block_size, n_layer, n_head, n_embd, mode == 'causal').to(here)
    print(f"{mode} generator, {sum(p.numel() for p in model.parameters()):,} parameters, "
          f"{dataset}, {machine.note} -> {out}")
    if compile:
        model.trunk = torch.compile(model.trunk, dynamic=False)

    def rows(split, n, rng):
        """Rows (n, T) and what is to be predicted in them: blanks, or every token if causal."""
        tokens = data.batch(split, n, block_size, rng)
        hidden = blanks(tokens, tok, rng, blank_kind, blank_low, blank_high, blank_span)
        return tokens.to(here), hidden, hidden if mode == 'fill' else (tokens != tok.pad)

    def loss_of(tokens, where):
        with machine.autocast():
            logits = model(tokens, where=where)                             # (M, V)
        return F.cross_entropy(logits, tokens[where.to(here)])

    def look():
        """Held-out loss, and verify() of sampled and of best-guess fills; fixed blanks."""
        rng = draws(0, 'look')
        tokens, hidden, where = rows('val', 512, rng)
        u = torch.from_numpy(rng.random((*tokens.shape, 1), dtype='float32')).to(here)
        with torch.no_grad():
            text = f"held-out loss {loss_of(tokens, where).item():.4f}"
        if data.verify:
            for name, uniforms in (('sampled', u), ('best guess', None)):
                filled, *_ = complete(model, tokens, hidden.to(here), uniforms,
                                               eos=tok.eos)
                pairs = texts(tok, tokens, hidden, filled, mode == 'causal')
                text += f" | verify {name} {sum(map(data.verify, *pairs)) / 512:.3f}"
        return text

    fit(model, lambda step: loss_of(*rows('train', batch_size, draws(seed, 'pretrain', step))[::2]),
        look, config)
    save(out, kind='generator', model_args=model.args, model=model.state_dict(), config=config,
         corpus=data.fingerprint)
    print(f"saved {out}")
