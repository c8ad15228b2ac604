"""The generator: a GPT that fills blanks, and the script that pretrains it.

    python model.py config/generator_docstrings.py --max_iters=2000

One class serves as generator (bidirectional: all blanks in one pass; causal: left to right), trunk
of the judge and likelihood judge. Without dropout: sampling and learning must see one network."""
import math, os, pickle, re, sys, time
import torch, torch.nn as nn, torch.nn.functional as F
from config.configurator import configure, fail
from config.run import RULES, Machine, check, run
from data.dataset import SPECIALS, Dataset, blanks, draws, texts

# knobs of pretraining
out = ''                    # checkpoint to write; '' means out/<name of the config file>.pt
dataset = 'arithmetic'      # a folder of data/
mode = 'fill'               # 'fill': bidirectional, all blanks at once | 'causal': left to right
block_size = 10             # T, tokens in a row
n_layer = 3                 # blocks
n_head = 4                  # H, heads per block
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
FUSED = False   # True: torch's attention also on CPUs, where plain products beat it (small heads)
# letters: T, H, C above | D = C / H | V base ids | B prompts, k rows each: N | M decision points

def norm(x):
    return F.rms_norm(x, x.shape[-1:])

def attention(q, k, v, bias, causal):
    """Softmax attention of q (B, H, S, D) to k, v (B, H, keys, D); causal spares GPUs the bias."""
    if FUSED or q.device.type != 'cpu':
        return F.scaled_dot_product_attention(q, k, v, None if causal else bias, is_causal=causal)
    scores = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)                 # (B, H, S, keys)
    scores = scores if bias is None else scores.add_(bias.to(scores.dtype))
    return scores.softmax(-1).to(v.dtype) @ v

class Block(nn.Module):
    """x + attention(norm(x)), then x + relu(up(norm(x)))^2 down. past: [k, v] of its cache."""
    def __init__(self, n_layer, n_head, n_embd):
        super().__init__()
        self.n_head, big, small = n_head, n_embd ** -0.5, 0.02 / math.sqrt(2 * n_layer)
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd, bias=False)
        self.up = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.down = nn.Linear(4 * n_embd, n_embd, bias=False)
        for linear, std in zip((self.qkv, self.up, self.proj, self.down), (big, big, small, small)):
            nn.init.normal_(linear.weight, std=std)         # residual branches start small

    def forward(self, x, cos, sin, bias, causal, past=None, start=0):
        (B, S, C), H = x.shape, self.n_head
        qkv = self.qkv(norm(x)).view(B, S, 3, H, C // H)
        qk, v = norm(qkv[:, :, :2].to(cos.dtype)), qkv[:, :, 2]             # (B, S, 2, H, D)
        qk = (qk * cos).addcmul(qk.roll(C // H // 2, -1), sin)              # rotary positions
        q, k, v = (t.transpose(1, 2) for t in (*qk.to(v.dtype).unbind(2), v))   # (B, H, S, D)
        if past:
            past[0][:, :, start:start + S], past[1][:, :, start:start + S] = k, v   # gradients pass
            k, v = past                         # with their room: products would copy a slice
        elif past is not None:
            past += k, v
        x = x + self.proj(attention(q, k, v, bias, causal).transpose(1, 2).reshape(B, S, C))
        return x + self.down(self.up(norm(x)).relu_().square())

class GPT(nn.Module):
    """Pre-norm transformer: rotary positions, RMS-normalised queries and keys, no biases. Inputs:
    V base ids, mask = V, BOS = V + 1, padding = V + 2; outputs: the V, so none needs a ban."""
    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd, causal):
        super().__init__()
        if n_embd % (2 * n_head):
            fail(f"n_embd = {n_embd}: expected a multiple of 2 * n_head = {2 * n_head}")
        self.args = dict(vocab_size=vocab_size, block_size=block_size, n_layer=n_layer,
                         n_head=n_head, n_embd=n_embd, causal=causal)
        self.causal, self.block_size, self.compiled, D = causal, block_size, None, n_embd // n_head
        self.mask_id, self.bos_id, self.pad_id = range(vocab_size, vocab_size + len(SPECIALS))
        self.embed = nn.Embedding(vocab_size + len(SPECIALS), n_embd)
        self.blocks = nn.ModuleList(Block(n_layer, n_head, n_embd) for _ in range(n_layer))
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        nn.init.zeros_(self.head.weight)                # the first guess is uniform
        angle = torch.arange(block_size).view(-1, 1, 1, 1) * 10000.0 ** (-torch.arange(0, D, 2) / D)
        self.cos = nn.Buffer(torch.cat((angle, angle), -1).cos(), persistent=False)   # (T, 1, 1, D)
        self.sin = nn.Buffer(torch.cat((-angle, angle), -1).sin(), persistent=False)
        self.future = nn.Buffer(torch.full([block_size] * 2, -math.inf).triu(1), persistent=False)

    def trunk(self, inputs, cache=None, start=0, pad=None):
        """Ids (B, S) at positions from start on -> normalised features (B, S, C). pad: (B, S) bool.
        cache: [k, v] of each block, (B, H, width, D), with room for new ones; or [], to fill."""
        stop, width = start + inputs.size(1), cache[0][0].size(2) if start else inputs.size(1)
        bias = None if pad is None else torch.where(pad, float('-inf'), 0.0)[:, None, None]
        bias = self.future[start:stop, :width] if self.causal else bias     # or (B, 1, 1, S)
        x, cos, sin = norm(self.embed(inputs)), self.cos[start:stop], self.sin[start:stop]
        for block, past in zip(self.blocks, cache or [None] * len(self.blocks)):
            x = block(x, cos, sin, bias, self.causal and not start, past, start)
        return norm(x)

    def features(self, tokens, where=None, prefix=0, copies=1):
        """Features (N, T, C) of rows (N, T), or (M, C) where `where` (N, T) holds, of what a choice
        of tokens[:, t] may see: all to its left (causal), all outside `where`, hidden here (fill).
        copies = k causal rows agree on `prefix` tokens, computed once. ValueError: T is too big."""
        T, here, pad = tokens.size(1), tokens.device, None
        if T > self.block_size:
            raise ValueError(f"rows of {T} tokens; block_size is {self.block_size}")
        if self.causal:                         # BOS, then all tokens but the last
            inputs = F.pad(tokens[:, :-1], (1, 0), value=self.bos_id)
        else:
            inputs = tokens if where is None else tokens.masked_fill(where.to(here), self.mask_id)
            pad = tokens == self.pad_id         # asking a GPU for any() would mean to wait
            pad = pad if self.compiled or here.type != 'cpu' or pad.any() else None
        if self.causal and copies > 1 and not self.compiled:    # a compiled trunk wants one shape
            cache, room = [[] for _ in self.blocks], (0, 0, 0, T - prefix - 1)
            x = self.trunk(inputs[::copies, :prefix + 1], cache).repeat_interleave(copies, 0)
            cache = [[F.pad(t.repeat_interleave(copies, 0), room) for t in kv] for kv in cache]
            x = torch.cat((x, self.trunk(inputs[:, prefix + 1:], cache, prefix + 1)), 1)
        else:
            x = (self.compiled or self.trunk)(inputs, pad=pad)              # (N, T, C)
        if where is None:
            return x
        index = where.flatten().nonzero().squeeze(1).to(x.device, non_blocking=True)
        return x.flatten(0, 1).index_select(0, index)   # (M, C); a where on the CPU: without a wait

    def logits(self, x):
        """Output layer: features (..., C) -> logits (..., V), float32 at least."""
        return self.head(x).to(torch.promote_types(x.dtype, torch.float32))

    def forward(self, tokens, where=None, prefix=0, copies=1):
        """Logits scoring tokens[n, t]: (N, T, V), or (M, V) at where (N, T); see features()."""
        return self.logits(self.features(tokens, where, prefix, copies))

# ---- sampling: one distribution samples, scores, and enters KL and entropy ---------------------
def log_probs(logits, temperature=1.0, kept=None):
    """Log-probs (M, V), nats, of softmax(logits / temperature) over the ids kept (M, V) bool."""
    logits = logits if temperature == 1 else logits / temperature       # V may be large: no copy
    # -1e9 rather than -inf: p is still exactly 0, and p * log p stays 0 instead of NaN
    return (logits if kept is None else logits.masked_fill(~kept, -1e9)).log_softmax(-1)

def kept_set(logp, top_k=0, top_p=1.0):
    """The ids (M, V) bool that filters leave. top_k: that many of the likeliest, 0 is off; top_p:
    the fewest whose mass reaches it, 1 is off (nucleus sampling, arXiv:1904.09751)."""
    ranked, order = logp.sort(-1, descending=True)
    keep = ranked.exp().cumsum(-1) - ranked.exp() < top_p
    keep[:, top_k or keep.size(1):] = False
    return torch.zeros_like(keep).scatter(-1, order, keep)

def draw(logp, uniforms):
    """Actions (M, k) of log-probs (M, V), by inverse CDF from uniforms (M, k) in [0, 1)."""
    cdf = logp.exp().cumsum_(-1)                                            # (M, V)
    top = cdf[:, -1:] * (1 - 2 ** -22)          # strictly inside: no id of probability 0 is drawn
    found = torch.searchsorted(cdf, torch.minimum(uniforms * top, top), right=True)
    return found.clamp(max=logp.size(-1) - 1)   # NaN logits must not crash here: they get a name

def act(logits, uniforms=None, temperature=1.0, top_k=0, top_p=1.0):
    """Logits (M, V), uniforms (M, k) or None (likeliest) -> actions, log-probs (M, k), kept set."""
    logp, kept = log_probs(logits, temperature), None
    if top_k or top_p < 1:
        kept = kept_set(logp, top_k, top_p)
        logp = log_probs(logits, temperature, kept)
    actions = logp.argmax(-1, keepdim=True) if uniforms is None else draw(logp, uniforms)
    return actions, logp.gather(1, actions), kept

def place(tokens, mask, values):
    """Writes values (M, k) into the blanks of tokens (B, T): rows (N, T), row b*k + j."""
    rows = tokens[:, None].repeat(1, values.size(1), 1)                     # (B, k, T)
    at = (i.to(rows.device, non_blocking=True) for i in mask.nonzero(as_tuple=True))   # (M,) each
    rows.transpose(1, 2)[tuple(at)] = values
    return rows.flatten(0, 1)

@torch.no_grad()
def complete(model, tokens, mask, uniforms=None, temperature=1.0, top_k=0, top_p=1.0, eos=-1):
    """Fills blanks of tokens, mask (B, T) k times, by uniforms (B, T, k) in [0, 1), or None: by the
    likeliest ids, once. Returns rows (N, T); acted (N, T) bool, where the policy chose (causal: up
    to eos, then padding); if causal logp (N, T) of choices, if filtered too kept (N, T, V) bool."""
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
    first, room, cache = int(mask.any(0).nonzero()[0]), 33, [[] for _ in model.blocks]
    x = model.trunk(F.pad(tokens[:, :first], (1, 0), value=model.bos_id), cache)[:, -1]     # (B, C)
    x, cache = x.repeat_interleave(k, 0), [[t.repeat_interleave(k, 0) for t in kv] for kv in cache]
    for t in range(first, T):
        actions, logp, kept = act(model.logits(x), None if u is None else u[live, t, None], *how)
        mine = acted[live, t]                   # elsewhere the token is given, or the row has ended
        new = torch.where(mine, actions[:, 0], rows[live, t])
        rows[live, t], taken[live, t] = new, logp[:, 0].to(taken.dtype) * mine
        if kept is not None:
            every[live, t] = kept
        over = live[mine & (new == eos) & (given[live] <= t)]   # nothing that is given follows
        rows[over, t + 1:], acted[over, t + 1:] = model.pad_id, False
        if t % 4 == 3 or t == T - 1 or here.type == 'cpu':      # a GPU waits when asked: seldom
            going = acted[live, t + 1:].any(1)
            if (count := int(going.sum())) == 0:
                break
            if count <= 0.9 * len(live):        # ended rows leave when that pays for the copy
                live, cache = live[going], [[past[going] for past in kv] for kv in cache]
        if (t - first) % room == 0:             # for so many positions at a time
            more = min(room, model.block_size - t - 1)
            cache = [[F.pad(past, (0, 0, 0, more)) for past in kv] for kv in cache]
        x = model.trunk(rows[live, t, None], cache, t + 1)[:, 0]            # (live rows, C)
    return rows, acted, taken, every

# ---- optimizers, checkpoints, and the supervised loop of model.py and judge.py -----------------
def optimizers(model, learning_rate, weight_decay, beta1, beta2, kind='muon'):
    """'muon': Muon (Jordan, 2024) for hidden matrices, AdamW for embedding, head and the rest; both
    move a weight by about learning_rate a step, so one knob serves both. 'adamw': for all."""
    rest, both = dict(model.named_parameters()), {'lr': learning_rate, 'weight_decay': weight_decay}
    body = [rest.pop(name) for name in list(rest) if kind == 'muon' and 'blocks.' in name]
    opts = [torch.optim.AdamW(rest.values(), betas=(beta1, beta2), fused=True, **both)]
    return [torch.optim.Muon(body, adjust_lr_fn='match_rms_adamw', **both), *opts] if body else opts

def scheduled(step, peak, floor, warmup, total):
    """Learning rate at a step: linear warm-up, then a cosine from peak down to floor."""
    part = min(1.0, (step - warmup) / max(1, total - warmup))
    cosine = floor + 0.5 * (1 + math.cos(math.pi * part)) * (peak - floor)
    return peak * (step + 1) / (warmup + 1) if step < warmup else cosine

def update(model, opts, lr, grad_clip):
    """One step of all optimizers at rate lr; returns the gradient's norm before clipping."""
    size = nn.utils.clip_grad_norm_(model.parameters(), grad_clip or float('inf'))
    for opt in opts:
        opt.param_groups[0]['lr'] = lr
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
        found, text, version, args = (ckpt[x] for x in ('kind', 'corpus', 'version', 'model_args'))
        name, T, causal = ckpt['config']['dataset'], args['block_size'], args['causal']
    except pickle.UnpicklingError:
        fail(f"{path} holds more than tensors and plain values, so it was not opened{end}")
    except Exception as e:
        fail(f"{path} is damaged, or no checkpoint of ours ({type(e).__name__}){end}")
    if found != kind and (kind, found) != ('generator', 'policy'):
        fail(f"{path} is a {found}, expected a {kind}{end}")
    if (version, text) != (1, data.fingerprint):
        fail(f"{path} (version {version}, expected 1) was made for the text {name}-{text}, data/ "
             f"has {data.name}-{data.fingerprint}{end}")
    if T < block_size:
        fail(f"{path} takes rows of {T} tokens, block_size is {block_size}{end} --{block_size=}")
    if mode and causal != (mode == 'causal'):
        fail(f"{path} is not a {mode} model{end} --mode={mode}")
    return ckpt

def load_gpt(path, data, make, block_size=1, mode='', device='cpu'):
    """The GPT of a generator or policy checkpoint; see load()."""
    ckpt = load(path, 'generator', data, make, block_size, mode)
    model = GPT(**ckpt['model_args'])
    model.load_state_dict(ckpt['model'])
    return model.to(device)

def made(path, script, recipe):
    """Path, or for '' out/<recipe>.pt, made by script if missing; and the command that makes it."""
    words = [w for w in recipe.split() if not w.startswith('--out=')]
    if not path:
        name = '-'.join(os.path.basename(w).removesuffix('.py').removeprefix('--') for w in words)
        path = f"out/{re.sub('[^A-Za-z0-9_.=-]', '_', name) or 'default'}.pt"
        if script and not os.path.exists(path):
            run(['python', script, *words, f'--out={path}'])
    return path, ' '.join(['python', script, *words])

def fit(model, loss_at, look, c, name, note, **content):
    """Minimises loss_at(step), a scalar, and saves the model with this content. look() tells about
    held-out data; c: the knobs; name, note: what to print of the model and of the machine."""
    path, gpt = c['out'] or made('', '', ' '.join(sys.argv[1:]))[0], getattr(model, 'gpt', model)
    print(f"{name}, {sum(p.numel() for p in model.parameters()):,} parameters, "
          f"{c['dataset']}, {note} -> {path}")
    gpt.compiled = torch.compile(gpt.trunk, dynamic=False) if c['compile'] else None
    peak, last, began, seen, mean = c['learning_rate'], c['max_iters'], time.time(), 0.0, 0.0
    opts = optimizers(model, peak, c['weight_decay'], c['beta1'], c['beta2'])
    for step in range(1, last + 1):
        loss = loss_at(step)
        mean += (loss.item() - mean) / min(step, 50)
        if not math.isfinite(mean):
            fail(f"step {step}: loss {loss:g}, nothing was written; try --learning_rate={peak / 2}")
        loss.backward()
        lr = scheduled(step - 1, peak, peak / 10, c['warmup_iters'], last)
        update(model, opts, lr, c['grad_clip'])
        due = step == last or c['eval_interval'] and step % c['eval_interval'] == 0
        if due or sys.stdout.isatty() and time.time() - seen > 0.2:
            seen = time.time()
            text = f"step {step:5d} | loss {mean:.4f} | " + (f"{look()} | " if due else '')
            text += f"{(seen - began) / step * (last - step):.0f} s left"
            print(text, end='\n' if due else ' \r', flush=True)
    save(path, model_args=gpt.args, model=model.state_dict(), config=c, **content)
    print(f"saved {path}")

if __name__ == "__main__":
    config = configure(globals())
    check({**RULES, "mode in ('fill', 'causal')": ''}, config)
    data, machine, causal = Dataset(dataset), Machine(device, dtype), mode == 'causal'
    tok, here = data.tok, machine.device
    torch.manual_seed(seed)
    model = GPT(tok.base, block_size, n_layer, n_head, n_embd, causal).to(here)

    def tried(split, n, rng):
        """Rows and their blanks (n, T), and the loss: nats per blank, or (causal) per token."""
        tokens = data.batch(split, n, block_size, rng)
        hidden = blanks(tokens, tok, rng, blank_kind, blank_low, blank_high, blank_span)
        where = tokens != tok.pad if causal else hidden
        with machine.autocast():
            loss = F.cross_entropy(model(tokens.to(here), where=where), tokens[where].to(here))
        return tokens, hidden, loss

    @torch.no_grad()
    def look(n=min(512, 2 ** 15 // block_size)):
        """Held-out loss, and verify() of sampled and of best-guess fills of fixed blanks."""
        tokens, hidden, loss = tried('val', n, rng := draws(0, 'look'))
        u, text = torch.from_numpy(rng.random((*tokens.shape, 1), dtype='float32')).to(here), ''
        for name, uniforms in (('sampled', u), ('best guess', None)) if data.verify else ():
            full, *_ = complete(model, tokens.to(here), hidden.to(here), uniforms, eos=tok.eos)
            pairs = texts(tok, tokens, hidden, full, causal)
            text += f" | verify {name} {sum(map(data.verify, *pairs)) / n:.3f}"
        return f"held-out loss {loss.item():.4f}{text}"

    fit(model, lambda i: tried('train', batch_size, draws(seed, 'pretrain', i))[2], look, config,
        f"{mode} generator", machine.note, kind='generator', corpus=data.fingerprint)
