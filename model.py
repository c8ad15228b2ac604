"""The generator: a GPT that fills blanks, and the script that pretrains it.

    python model.py config/generator_arithmetic.py
    python model.py config/generator_docstrings.py --max_iters=2000

One class serves as generator (bidirectional: all blanks in one pass; causal: left to right), trunk
of the judge and likelihood judge. Without dropout: sampling and learning must see one network."""
import math
import os
import re
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from config.configurator import configure, fail
from config.run import RULES, Machine, check, run
from data.dataset import SPECIALS, Dataset, blanks, draws, texts

# knobs of pretraining
out = ''                    # checkpoint to write; '' means out/<name of the config file>.pt
dataset = 'arithmetic'      # a folder of data/
mode = 'fill'               # 'fill': bidirectional, all blanks at once | 'causal': left to right
block_size = 10             # T, tokens in a row
n_layer = 3                 # blocks
n_head = 4                  # heads per block
n_embd = 64                 # C, channels
blank_kind = 'random'       # 'random' positions | 'span': runs | 'suffix': a completion
blank_low = 0.2             # smallest share of a row that is blank
blank_high = 0.6            # largest share
blank_span = 4              # length of a run, for 'span'
batch_size = 256            # rows per step
max_iters = 1000            # optimizer steps
eval_interval = 250         # steps between looks at held-out rows
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
# letters: B rows | T positions | C channels | H heads | D channels per head | V base vocabulary
# M decision points | k completions per prompt | N = B*k rows

class Cache:
    """Keys and values of earlier positions, [k, v] per layer, each (rows, H, positions, D). Later
    ones are written into tensors that grow by `room` positions more than are needed at once."""
    def __init__(self, room=0):
        self.layers, self.length, self.room = [], 0, room

    def apply(self, change):
        self.layers = [[change(t) for t in kv] for kv in self.layers]

    def reserve(self, stop, most):
        """Makes room for positions up to stop <= most; returns how many there are to attend to."""
        have = self.layers[0][0].size(2) if self.layers else stop
        more = min(stop - have + self.room, most - have) if have < stop else 0
        if more:            # whole tensors are handed to products, which would copy slices of them
            self.apply(lambda t: F.pad(t, (0, 0, 0, more)))
        return have + more

    def extend(self, layer, new):
        """Takes a layer's new (k, v) and returns all its (k, v) so far; gradients pass through."""
        if layer == len(self.layers):
            self.layers.append(new)
        for past, t in zip(self.layers[layer], new) if self.length else ():
            past[:, :, self.length:self.length + t.size(2)] = t
        return self.layers[layer]

def norm(x):
    return F.rms_norm(x, x.shape[-1:])

FUSED = False   # True: torch's attention also on CPUs, where plain products beat it (small heads)

def attention(q, k, v, bias, causal):
    """Softmax attention of q (B, H, S, D) over k, v (B, H, keys, D); bias is added to scores."""
    if FUSED or q.device.type != 'cpu':
        causal = causal and q.size(2) == k.size(2)      # spares the kernel an explicit mask
        return F.scaled_dot_product_attention(q, k, v, None if causal else bias, is_causal=causal)
    scores = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)                 # (B, H, S, keys)
    scores = scores if bias is None else scores.add_(bias.to(scores.dtype))
    return scores.softmax(-1).to(v.dtype) @ v

class Block(nn.Module):
    """x + attention(norm(x)), then x + relu(up(norm(x)))^2 down."""
    def __init__(self, n_layer, n_head, n_embd):
        super().__init__()
        self.n_head, small = n_head, 0.02 / math.sqrt(2 * n_layer)
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd, bias=False)
        self.up = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.down = nn.Linear(4 * n_embd, n_embd, bias=False)
        for linear in (self.qkv, self.up, self.proj, self.down):
            branch = linear in (self.proj, self.down)       # residual branches start small
            nn.init.normal_(linear.weight, std=small if branch else n_embd ** -0.5)

    def forward(self, x, cos, sin, bias, causal, cache=None, layer=0):
        (B, S, C), H = x.shape, self.n_head
        qkv = self.qkv(norm(x)).view(B, S, 3, H, C // H)
        qk, v = norm(qkv[:, :, :2].to(cos.dtype)), qkv[:, :, 2]             # (B, S, 2, H, D)
        qk = (qk * cos).addcmul(qk.roll(C // H // 2, -1), sin)              # rotary positions
        q, k, v = (t.transpose(1, 2) for t in (*qk.to(v.dtype).unbind(2), v))   # (B, H, S, D)
        if cache:
            k, v = cache.extend(layer, (k, v))
        x = x + self.proj(attention(q, k, v, bias, causal).transpose(1, 2).reshape(B, S, C))
        return x + self.down(self.up(norm(x)).relu_().square())

class GPT(nn.Module):
    """Pre-norm transformer: rotary positions, RMS-normalised queries and keys, no biases.
    vocab_size: V, the base vocabulary. Inputs may also be mask = V, BOS = V + 1, padding = V + 2;
    the output layer has V rows only, so special ids are never produced and need no banning."""
    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd, causal):
        super().__init__()
        if n_embd % (2 * n_head):
            fail(f"n_embd = {n_embd}: expected a multiple of 2 * n_head = {2 * n_head}")
        self.args = dict(vocab_size=vocab_size, block_size=block_size, n_layer=n_layer,
                         n_head=n_head, n_embd=n_embd, causal=causal)
        self.causal, self.block_size = causal, block_size
        self.compiled = None        # a compiled trunk, for passes over whole rows of one shape
        self.mask_id, self.bos_id, self.pad_id = range(vocab_size, vocab_size + len(SPECIALS))
        self.embed = nn.Embedding(vocab_size + len(SPECIALS), n_embd)
        self.blocks = nn.ModuleList(Block(n_layer, n_head, n_embd) for _ in range(n_layer))
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        nn.init.zeros_(self.head.weight)                # the first guess is uniform
        D = n_embd // n_head
        angle = torch.arange(block_size)[:, None] * 10000.0 ** (-torch.arange(0, D, 2) / D)
        cos, sin = angle.cos(), angle.sin()                                 # (T, D/2)
        for name, value in {'cos': torch.cat((cos, cos), 1)[:, None, None],     # (T, 1, 1, D)
                            'sin': torch.cat((-sin, sin), 1)[:, None, None],
                            'future': torch.full([block_size] * 2, float('-inf')).triu(1)}.items():
            self.register_buffer(name, value, persistent=False)

    def trunk(self, inputs, cache=None, pad=None):
        """Ids (B, S), continuing the cache -> normalised features (B, S, C). pad: (B, S) bool."""
        start = cache.length if cache else 0
        stop = start + inputs.size(1)
        width = cache.reserve(stop, self.block_size) if cache else stop     # keys to look at
        bias = self.future[start:stop, :width] if self.causal else None     # (S, width)
        if pad is not None:                     # nobody looks at padding, (B, 1, 1, S)
            bias = torch.where(pad, float('-inf'), 0.0)[:, None, None]
        x = norm(self.embed(inputs))
        for i, block in enumerate(self.blocks):
            x = block(x, self.cos[start:stop], self.sin[start:stop], bias, self.causal, cache, i)
        if cache:
            cache.length = stop
        return norm(x)

    def shifted(self, tokens):
        """Inputs (B, T) of a causal model: BOS, then all tokens but the last."""
        return F.pad(tokens[:, :-1], (1, 0), value=self.bos_id)

    def features(self, tokens, where=None, prefix=0, copies=1):
        """Rows (N, T) -> features (N, T, C), or (M, C) at the True positions of where (N, T), of
        what a choice of tokens[:, t] may look at: all to its left (causal), or all but the
        positions in `where`, which are hidden here (fill). copies = k > 1, causal: groups of k rows
        agree on their first `prefix` tokens, computed once. Raises ValueError for too long rows."""
        if tokens.size(1) > self.block_size:
            raise ValueError(f"rows of {tokens.size(1)} tokens; block_size is {self.block_size}")
        whole = self.compiled or self.trunk     # a compiled one wants one shape
        if not self.causal:
            pad = tokens == self.pad_id
            if where is not None:
                tokens = tokens.masked_fill(where.to(tokens.device), self.mask_id)
            if tokens.device.type == 'cpu' and not self.compiled and not pad.any():
                pad = None                      # a GPU would wait for the answer
            x = whole(tokens, pad=pad)
        elif copies == 1 or self.compiled:
            x = whole(self.shifted(tokens))
        else:
            inputs, cache = self.shifted(tokens), Cache()
            shared = self.trunk(inputs[::copies, :prefix + 1], cache)       # (B, prefix + 1, C)
            cache.apply(lambda t: t.repeat_interleave(copies, 0))
            x = self.trunk(inputs[:, prefix + 1:], cache)                   # (N, T - prefix - 1, C)
            x = torch.cat((shared.repeat_interleave(copies, 0), x), 1)
        if where is None:
            return x
        # a mask that lives on the CPU gives an index without making the device wait
        index = where.flatten().nonzero().squeeze(1).to(x.device, non_blocking=True)
        return x.flatten(0, 1).index_select(0, index)                       # (M, C)

    def logits(self, x):
        """Output layer: features (..., C) -> logits (..., V), float32 at least."""
        y = self.head(x)
        return y if y.dtype == torch.float64 else y.float()

    def forward(self, tokens, where=None, prefix=0, copies=1):
        """Logits scoring tokens[n, t]: (N, T, V), or (M, V) at where (N, T); see features()."""
        return self.logits(self.features(tokens, where, prefix, copies))

# ------------------------------------------------------------------------------------------------
# sampling: one distribution samples, scores, and enters KL and entropy

def log_probs(logits, temperature=1.0, kept=None):
    """Log-probabilities (M, V), in nats, of softmax(logits / temperature), over the ids in kept
    (M, V) bool if that is given."""
    logits = logits if temperature == 1 else logits / temperature       # V may be large: no copy
    # -1e9 rather than -inf: p is still exactly 0, and p * log p stays 0 instead of NaN
    return (logits if kept is None else logits.masked_fill(~kept, -1e9)).log_softmax(-1)

def kept_set(logp, top_k=0, top_p=1.0):
    """The ids (M, V) bool that filters leave, or None for all. top_k: that many of the likeliest,
    0 is off; top_p: the fewest whose mass reaches it (nucleus sampling, arXiv:1904.09751)."""
    if not top_k and top_p >= 1:
        return None
    ranked, order = logp.sort(-1, descending=True)
    keep = ranked.exp().cumsum(-1) - ranked.exp() < top_p
    keep[:, top_k or keep.size(1):] = False
    return torch.zeros_like(keep).scatter(-1, order, keep)

def draw(logp, uniforms=None):
    """Actions (M, k) by inverse CDF from uniforms (M, k) in [0, 1); None: the likeliest (M, 1)."""
    if uniforms is None:
        return logp.argmax(-1, keepdim=True)
    cdf = logp.exp().cumsum_(-1)                                            # (M, V)
    top = cdf[:, -1:] * (1 - 2 ** -22)          # strictly inside: no id of probability 0 is drawn
    found = torch.searchsorted(cdf, torch.minimum(uniforms * top, top), right=True)
    return found.clamp(max=logp.size(-1) - 1)   # NaN logits must not crash here: they get a name

def act(logits, uniforms=None, temperature=1.0, top_k=0, top_p=1.0):
    """Logits (M, V), uniforms (M, k) -> actions (M, k), their log-probs (M, k), kept set."""
    logp = log_probs(logits, temperature)
    kept = kept_set(logp, top_k, top_p)
    logp = logp if kept is None else log_probs(logits, temperature, kept)
    actions = draw(logp, uniforms)
    return actions, logp.gather(1, actions), kept

def place(tokens, mask, values):
    """Writes values (M, k) into the blanks of tokens (B, T): rows (N, T), row b*k + j."""
    rows = tokens[:, None].repeat(1, values.size(1), 1)                     # (B, k, T)
    at = (i.to(rows.device, non_blocking=True) for i in mask.nonzero(as_tuple=True))   # (M,) each
    rows.transpose(1, 2)[tuple(at)] = values
    return rows.flatten(0, 1)

@torch.no_grad()
def complete(model, tokens, mask, uniforms=None, temperature=1.0, top_k=0, top_p=1.0, eos=-1):
    """Fills the blanks of prompts tokens (B, T), mask (B, T) bool, k times.
    uniforms (B, T, k) in [0, 1); None: the likeliest id everywhere, k = 1. Returns rows (N, T)
    and acted (N, T) bool, where the policy chose (a causal row ends with its end-of-row id: then
    padding, False); logp (N, T) of the choices (causal); kept (N, T, V) bool (causal), or None."""
    k, how = 1 if uniforms is None else uniforms.size(2), (temperature, top_k, top_p)
    rows, acted = tokens.repeat_interleave(k, 0), mask.repeat_interleave(k, 0)      # (N, T)
    if not model.causal:
        u = None if uniforms is None else uniforms[mask]                    # (M, k)
        return place(tokens, mask, act(model(tokens, where=mask), u, *how)[0]), acted, None, None
    (N, T), V, here = rows.shape, model.head.out_features, rows.device
    u = None if uniforms is None else uniforms.transpose(1, 2).flatten(0, 1)        # (N, T)
    given = (torch.arange(1, T + 1, device=here) * (~acted & (rows != model.pad_id))).amax(1)
    taken, live = torch.zeros(N, T, device=here), torch.arange(N, device=here)  # rows not ended
    every = torch.ones(N, T, V, dtype=torch.bool, device=here) if top_k or top_p < 1 else None
    first, cache = int(mask.any(0).nonzero()[0]), Cache(room=32)
    x = model.trunk(model.shifted(tokens)[:, :first + 1], cache)[:, -1].repeat_interleave(k, 0)
    cache.apply(lambda t: t.repeat_interleave(k, 0))
    for t in range(first, T):
        if t > first:
            x = model.trunk(rows[live, t - 1, None], cache)[:, 0]           # (live rows, C)
        actions, logp, kept = act(model.logits(x), None if u is None else u[live, t, None], *how)
        mine = acted[live, t]                   # elsewhere the token is given, or the row has ended
        new = torch.where(mine, actions[:, 0], rows[live, t])
        rows[live, t], taken[live, t] = new, logp[:, 0].float() * mine
        if kept is not None:
            every[live, t] = kept
        over = live[mine & (new == eos) & (given[live] <= t)]   # nothing that is given follows
        rows[over, t + 1:], acted[over, t + 1:] = model.pad_id, False
        if t % 4 == 3 or here.type == 'cpu':    # on a GPU, asking costs a wait: seldom
            going = acted[live, t + 1:].any(1)
            count = int(going.sum())
            if count == 0:
                break
            if count <= 0.9 * len(live):        # ended rows leave when that pays for the copy
                live = live[going]
                cache.apply(lambda past: past[going])
    return rows, acted, taken, every

# ------------------------------------------------------------------------------------------------
# optimizers, checkpoints, and the supervised loop of model.py and judge.py

def optimizers(model, learning_rate, weight_decay, beta1, beta2, kind='muon'):
    """'muon': Muon (Jordan, 2024) for the hidden matrices, AdamW for embedding, head and the rest,
    both moving a weight by about learning_rate a step, so one knob serves both. 'adamw': for all."""
    groups, both = ([], []), {'lr': learning_rate, 'weight_decay': weight_decay}
    for name, p in model.named_parameters():
        groups[kind == 'muon' and 'blocks.' in name].append(p)
    adamw = torch.optim.AdamW(groups[0], betas=(beta1, beta2), fused=True, **both)
    return [torch.optim.Muon(groups[1], adjust_lr_fn='match_rms_adamw', **both), adamw] \
        if groups[1] else [adamw]

def scheduled(step, peak, floor, warmup, total):
    """Learning rate at a step: linear warm-up, then a cosine from peak down to floor."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    part = min(1.0, (step - warmup) / max(1, total - warmup))
    return floor + 0.5 * (1 + math.cos(math.pi * part)) * (peak - floor)

def update(model, opts, lr, grad_clip):
    """One step of all optimizers at rate lr; returns the gradient's norm before clipping."""
    size = nn.utils.clip_grad_norm_(model.parameters(), grad_clip or float('inf'))
    for opt in opts:
        for group in opt.param_groups:
            group['lr'] = lr
        opt.step()
        opt.zero_grad()
    return size

def save(path, **content):
    """Writes a checkpoint, a plain dict, under a temporary name and renames it: whole or not."""
    part = f'{path}.tmp'
    try:
        os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
        with open(part, 'wb') as f:
            torch.save({'version': 1, **content}, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(part, path)
    except (OSError, RuntimeError) as e:
        fail(f"cannot write {path}: {str(e).splitlines()[0]}; what stood there before is whole")
    finally:
        if os.path.exists(part):
            os.unlink(part)

def load(path, kind, data, make, block_size=1, mode=''):
    """A checkpoint, checked before anything is computed; one line and the end if it does not fit.
    kind: 'generator' (a policy will do), 'policy', 'judge'; make: the command that makes one."""
    end = f"; make one with: {make}"
    if not os.path.isfile(path):
        fail(f"no {kind} at {path}{end}")
    try:
        ckpt = torch.load(path, map_location='cpu', weights_only=True)
        args, found, text = ckpt['model_args'], ckpt['kind'], (ckpt['version'], ckpt['corpus'])
        name = f"{ckpt['config']['dataset']}-{ckpt['corpus']}"
    except Exception as e:
        unsafe = re.search('WeightsUnpickler|Unsupported|weights_only', str(e))
        why = "holds more than tensors and plain values, so it was not opened" if unsafe else \
            "is damaged, or no checkpoint of ours"
        fail(f"{path} {why} ({type(e).__name__}){end}")
    for wrong, why, flag in (
            (found != kind and (kind, found) != ('generator', 'policy'),
             f"is a {found}, expected a {kind}", ''),
            (text != (1, data.fingerprint), f"(version {text[0]}, expected 1) was made for the "
             f"text {name}, data/ has {data.name}-{data.fingerprint}", ''),
            (args['block_size'] < block_size, f"takes rows of {args['block_size']} tokens, "
             f"block_size is {block_size}", f" --block_size={block_size}"),
            (mode and args['causal'] != (mode == 'causal'),
             f"is not a {mode} model", f" --mode={mode}")):
        if wrong:
            fail(f"{path} {why}{end}{flag}")
    return ckpt

def load_gpt(path, data, make, block_size=1, mode='', device='cpu'):
    """The GPT of a generator or policy checkpoint; see load()."""
    ckpt = load(path, 'generator', data, make, block_size, mode)
    model = GPT(**ckpt['model_args'])
    model.load_state_dict(ckpt['model'])
    return model.to(device)

def made(path, script, recipe):
    """A checkpoint's path and the command that makes it. Path '' stands for out/<recipe>.pt: if
    that is missing, the script makes it, in sight of the user."""
    words = [w for w in recipe.split() if not w.startswith('--out=')]
    command = ['python', script, *words]
    if not path:
        name = '-'.join(os.path.basename(w).removesuffix('.py').removeprefix('--') for w in words)
        path = f"out/{re.sub('[^A-Za-z0-9_.=-]', '_', name) or 'default'}.pt"
        if script and not os.path.exists(path):
            run([*command, f'--out={path}'])
    return path, ' '.join(command)

def fit(model, loss_at, look, c):
    """Minimises loss_at(step), a scalar; look() tells about held-out data; c: the knobs."""
    peak, last, began, seen, mean = c['learning_rate'], c['max_iters'], time.time(), 0.0, 0.0
    opts = optimizers(model, peak, c['weight_decay'], c['beta1'], c['beta2'])
    for step in range(1, last + 1):
        loss = loss_at(step)
        mean += (loss.item() - mean) / min(step, 50)
        if not math.isfinite(mean):
            fail(f"the loss is {loss.item()} at step {step}, nothing was written; try "
                 f"--learning_rate={peak / 2}")
        loss.backward()
        lr = scheduled(step - 1, peak, peak / 10, c['warmup_iters'], last)
        update(model, opts, lr, c['grad_clip'])
        due = step == last or c['eval_interval'] and step % c['eval_interval'] == 0
        if due or sys.stdout.isatty() and time.time() - seen > 0.2:
            seen = time.time()
            text = f"step {step:5d} | loss {mean:.4f} | " + (f"{look()} | " if due else '')
            text += f"{(seen - began) / step * (last - step):.0f} s left"
            print(text, end='\n' if due else ' \r', flush=True)

if __name__ == "__main__":
    config = configure(globals())
    check({**RULES, "mode in ('fill', 'causal')": ''}, config)
    out = out or made('', '', ' '.join(sys.argv[1:]))[0]
    data, machine, causal = Dataset(dataset), Machine(device, dtype), mode == 'causal'
    torch.manual_seed(seed)
    here = machine.device
    model = GPT(data.tok.base, block_size, n_layer, n_head, n_embd, causal).to(here)
    print(f"{mode} generator, {sum(p.numel() for p in model.parameters()):,} parameters, "
          f"{dataset}, {machine.note} -> {out}")
    model.compiled = torch.compile(model.trunk, dynamic=False) if compile else None

    def rows(split, n, rng):
        """Rows (n, T), their blanks (n, T), and what is to be predicted: these, or everything."""
        tokens = data.batch(split, n, block_size, rng)
        hidden = blanks(tokens, data.tok, rng, blank_kind, blank_low, blank_high, blank_span)
        return tokens.to(here), hidden, tokens != data.tok.pad if causal else hidden

    def loss_of(tokens, hidden, where):
        """Mean cross-entropy in nats per predicted token."""
        with machine.autocast():
            return F.cross_entropy(model(tokens, where=where), tokens[where.to(here)])

    @torch.no_grad()
    def look(n=min(512, 2 ** 15 // block_size)):
        """Held-out loss, and verify() of sampled and of best-guess fills of fixed blanks."""
        rng = draws(0, 'look')
        tokens, hidden, where = rows('val', n, rng)
        u = torch.from_numpy(rng.random((*tokens.shape, 1), dtype='float32')).to(here)
        text = f"held-out loss {loss_of(tokens, hidden, where).item():.4f}"
        for name, uniforms in (('sampled', u), ('best guess', None)) if data.verify else ():
            full, *_ = complete(model, tokens, hidden.to(here), uniforms, eos=data.tok.eos)
            pairs = texts(data.tok, tokens, hidden, full, causal)
            text += f" | verify {name} {sum(map(data.verify, *pairs)) / n:.3f}"
        return text

    fit(model, lambda step: loss_of(*rows('train', batch_size, draws(seed, 'pretrain', step))),
        look, config)
    save(out, kind='generator', model_args=model.args, model=model.state_dict(), config=config,
         corpus=data.fingerprint)
    print(f"saved {out}")
