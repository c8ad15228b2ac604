"""The judge: scores completed rows, and the script that trains one. Frozen during GRPO.

    python judge.py config/judge_arithmetic.py
    python judge.py config/judge_docstrings.py --kind=classifier --labels=mine.jsonl

likelihood (default): a causal GPT of the corpus; score = mean log-probability per token, in nats.
classifier: a bidirectional GPT with a pooled head; score = P(label = 1). Labels come from a file
of JSON lines {"text": ..., "label": 0..1}, or: 1 for real rows, 0 for what a generator filled."""
import json
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from config.configurator import check, configure, fail
from data.dataset import Dataset, blanks, draws, texts
from model import GPT, RULES, Machine, complete, fit, load, load_gpt, made, save

# ------------------------------------------------------------------------------------------------
# knobs
out = ''                    # checkpoint to write; '' means out/<name of the config file>.pt
kind = 'likelihood'         # 'likelihood' | 'classifier'
labels = ''                 # classifier: JSON lines {"text", "label"}; '': real against generated
generator_checkpoint = ''   # classifier without labels: whose completions are told from real rows
dataset = 'arithmetic'      # a folder of data/
block_size = 10             # T, tokens in a row
n_layer = 3                 # blocks
n_head = 4                  # heads per block
n_embd = 64                 # C, channels
blank_kind = 'random'       # 'random' positions | 'span' | 'suffix', for completions to judge
blank_low = 0.2             # smallest share of a row that is blank
blank_high = 0.6            # largest share
blank_span = 4              # length of a run, for 'span'
batch_size = 256            # rows per step
max_iters = 500             # optimizer steps
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
seed = 1                    # of weights and rows
# ------------------------------------------------------------------------------------------------
# letters: N rows | T positions | C channels | V base vocabulary

class Judge(nn.Module):
    """A GPT that scores rows. kind: 'likelihood' (causal trunk) or 'classifier' (pooled head)."""
    def __init__(self, kind, **gpt_args):
        super().__init__()
        self.kind, self.gpt = kind, GPT(**gpt_args)
        self.blocks = self.gpt.blocks
        if kind == 'classifier':
            self.gpt.head = nn.Linear(gpt_args['n_embd'], 1)

    def raw(self, tokens):
        """Scores (N,) before the last map: mean log-probability, or the logit of label 1."""
        real = tokens != self.gpt.pad_id                                    # (N, T)
        features = self.gpt.features(tokens).to(self.gpt.head.weight.dtype)
        with torch.autocast(tokens.device.type, enabled=False):     # head and score: float32
            if self.kind == 'classifier':
                pooled = (features * real[..., None]).sum(1) / real.sum(1, keepdim=True)
                return self.gpt.logits(pooled)[:, 0]
            logits = self.gpt.logits(features).transpose(1, 2)              # (N, V, T)
            loss = F.cross_entropy(logits, tokens, ignore_index=self.gpt.pad_id, reduction='none')
            return -loss.sum(1) / real.sum(1)

    @torch.inference_mode()
    def score(self, tokens, mask=None, chunk=0):
        """Scores (N,) float32 of rows (N, T): nats per token (<= 0), or P(label = 1) in [0, 1].
        mask (N, T), where the policy chose, is not needed by these two kinds. Equal rows are
        scored once, so they get the same bits; chunk: rows at a time (0: what fits a cache)."""
        rows, back = tokens, slice(None)
        if not self.gpt.compiled:               # which wants one shape
            rows, back = torch.unique(tokens, dim=0, return_inverse=True)
        wide = rows.size(1) * max(4 * self.gpt.args['n_embd'], self.gpt.args['vocab_size'])
        chunk = chunk or max(1, (2 ** 19 if rows.device.type == 'cpu' else 2 ** 28) // wide)
        raw = torch.cat([self.raw(part) for part in rows.split(chunk)])[back]
        return (raw.sigmoid() if self.kind == 'classifier' else raw).float()

def load_judge(path, data, make, block_size=1, device='cpu'):
    """A frozen judge in eval mode; see load() for what is checked."""
    ckpt = load(path, 'judge', data, make, block_size)
    judge = Judge(ckpt['judge_kind'], **ckpt['model_args'])
    judge.load_state_dict(ckpt['model'])
    return judge.to(device).eval().requires_grad_(False)

# ------------------------------------------------------------------------------------------------
# rewards, by name: judge, verify, distinct, length, or functions of a config file
BUILT_IN = ('judge', 'verify', 'distinct', 'length')

def reward_scores(names, batch, data, causal, judge=None, functions=None, chunk=0):
    """Scores (len(names), B, k) of completions, each reward apart.
    batch: prompts tokens, mask (B, T); rows (N, T); where (B or N, T), what the policy chose.
    distinct: 1 / how often the group has this completion; length: the share of the row that the
    policy wrote. Ends with one line if a function misbehaves."""
    rows, B, found, pairs = batch['rows'], len(batch['tokens']), [], None
    for name in names:
        if name == 'judge':
            values = judge.score(rows, batch['where'], chunk)
        elif name == 'length':
            share = batch['where'].to(rows.device).sum(1).view(B, -1) / rows.size(1)
            values = share.expand(B, len(rows) // B)
        elif name == 'distinct':
            values = 1.0 / copies(rows.view(B, -1, rows.size(1)))
        else:
            pairs = pairs or texts(data.tok, batch['tokens'], batch['mask'], rows, causal)
            function = each(data.verify) if name == 'verify' else functions[name]
            values = called(name, function, *pairs)
        found.append(torch.as_tensor(values, dtype=torch.float32, device=rows.device).view(B, -1))
    return torch.stack(found)

def copies(rows):
    """How many of the rows of its group (B, k, T) equal each of them: (B, k)."""
    code = torch.from_numpy(draws(0, 'code').integers(2 ** 60, size=rows.size(2))).to(rows.device)
    code = (rows * code).sum(2)                 # equal rows have equal sums, others hardly ever
    return (code[:, :, None] == code[:, None]).sum(2)

def each(verify):
    """verify(prompt, completion) for lists, equal pairs once."""
    def values(prompts, completions):
        known = {pair: verify(*pair) for pair in set(zip(prompts, completions))}
        return [known[pair] for pair in zip(prompts, completions)]
    return values

def called(name, function, prompts, completions):
    """A reward function's values, one number per completion, or one line and the end."""
    try:
        values = [float(value) for value in function(prompts, completions)]
    except Exception as e:
        fail(f"reward '{name}' raised {type(e).__name__}: {e}; its first prompt: {prompts[0]!r}")
    if len(values) != len(prompts):
        fail(f"reward '{name}' gave {len(values)} numbers for {len(prompts)} completions; its "
             f"first prompt: {prompts[0]!r}")
    return values

def auc(scores, labels):
    """P(score of a 1 > score of a 0) + half of the ties, in [0, 1]; nan if a class is empty.
    The Mann-Whitney statistic, from the ranks of scores (N,) with labels (N,) bool."""
    scores, labels = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=bool)
    values, back, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[back]                     # mean rank of ties
    n1, n0 = labels.sum(), (~labels).sum()
    wins = rank[labels].sum() - n1 * (n1 + 1) / 2                           # over all n1 * n0 pairs
    return float(wins / (n1 * n0)) if n1 and n0 else float('nan')

def read_labels(path, tok, block_size):
    """Rows (N, T) and labels (N,) of a file of JSON lines; long texts are cut to the row."""
    rows, found, line = [], [], 0
    try:
        with open(path, encoding='utf-8') as f:
            for line, text in enumerate(f, 1):
                item = json.loads(text)
                ids = tok.encode(item['text'])[:block_size]
                rows.append(ids + [tok.pad] * (block_size - len(ids)))
                found.append(float(item['label']))
                if not 0 <= found[-1] <= 1 or not ids:
                    raise ValueError(f"label {found[-1]}, {len(ids)} tokens")
    except OSError as e:
        fail(f"--labels={path}: {e.strerror}; expected JSON lines " '{"text": ..., "label": 0..1}')
    except (ValueError, KeyError, TypeError) as e:
        fail(f'{path}, line {line}: {e}; expected {{"text": "...", "label": 0..1}}')
    if len(set(found)) < 2 or len(found) < 20:
        fail(f"{path}: {len(found)} texts with {len(set(found))} different labels; expected at "
             "least 20 texts and both labels")
    return torch.tensor(rows), torch.tensor(found)

if __name__ == "__main__":
    config = configure(globals())
    check({**RULES, "kind in ('likelihood', 'classifier')": '',
           "kind == 'classifier' or not labels": "a likelihood learns from text alone"}, config)
    out = out or made('', '', ' '.join(sys.argv[1:]))[0]
    data, machine = Dataset(dataset), Machine(device, dtype)
    tok, here, generator = data.tok, machine.device, None
    if generator_checkpoint or (kind == 'classifier' and not labels):
        path, make = made(generator_checkpoint, 'model.py', f'config/generator_{dataset}.py')
        generator = load_gpt(path, data, make, block_size, device=here)
    if labels:
        rows, marks = read_labels(labels, tok, block_size)
        order = torch.from_numpy(draws(0, 'labels').permutation(len(rows)))
        order, held_out = order[len(rows) // 10:], order[:len(rows) // 10]
    torch.manual_seed(seed)
    judge = Judge(kind, vocab_size=tok.base, block_size=block_size, n_layer=n_layer, n_head=n_head,
                  n_embd=n_embd, causal=kind == 'likelihood').to(here)
    print(f"{kind} judge, {sum(p.numel() for p in judge.parameters()):,} parameters, {dataset}, "
          f"{machine.note} -> {out}")
    if compile:
        judge.gpt.compiled = torch.compile(judge.gpt.trunk, dynamic=False)

    def pairs(split, n, rng):
        """n real rows, and the same with their blanks filled: by the generator, or, without one,
        with what other real rows have in these places (each symbol likely, the whole often not)."""
        tokens = data.batch(split, n, block_size, rng)
        mask = blanks(tokens, tok, rng, blank_kind, blank_low, blank_high, blank_span)
        if generator is None:
            return tokens, torch.where(mask, tokens.roll(1, 0), tokens), mask
        u = torch.from_numpy(rng.random((*tokens.shape, 1), dtype='float32')).to(here)
        return tokens, complete(generator, tokens.to(here), mask.to(here), u, eos=tok.eos)[0], mask

    def loss_at(step):
        """Loss of one batch: nats per token, or binary cross-entropy."""
        rng = draws(seed, 'judge', step)
        if labels:
            pick = order[torch.from_numpy(rng.integers(len(order), size=batch_size))]
            tokens, targets = rows[pick], marks[pick]
        elif kind == 'classifier':
            true, false, _ = pairs('train', batch_size // 2, rng)
            tokens = torch.cat((true.to(here), false))
            targets = torch.cat((torch.ones(len(true)), torch.zeros(len(false))))
        else:
            tokens = data.batch('train', batch_size, block_size, rng)
        tokens = tokens.to(here)
        with machine.autocast():
            if kind == 'likelihood':
                where = tokens != tok.pad
                return F.cross_entropy(judge.gpt(tokens, where=where), tokens[where])
            return F.binary_cross_entropy_with_logits(judge.raw(tokens), targets.to(here))

    def look():
        """How well the judge separates, on held-out data."""
        if labels:
            p, y = judge.score(rows[held_out].to(here)).cpu().numpy(), marks[held_out].numpy()
            bins = np.minimum((p * 10).astype(int), 9)      # expected calibration error, 10 bins
            ece = sum(abs(p[bins == b].sum() - y[bins == b].sum()) for b in range(10)) / len(p)
            return (f"held-out accuracy {((p > 0.5) == (y > 0.5)).mean():.3f}, AUC "
                    f"{auc(p, y > 0.5):.3f}, calibration error {ece:.3f} (share of 1: "
                    f"{y.mean():.3f}, {len(y)} texts)")
        n = min(1024, 2 ** 16 // block_size)
        true, false, mask = pairs('val', n, draws(0, 'look'))
        scores = judge.score(torch.cat((true.to(here), false.to(here)))).cpu()
        checks = [*map(data.verify, *texts(tok, true, mask, false, False))] if data.verify else []
        if set(checks) == {0.0, 1.0}:
            return f"AUC {auc(scores[n:], checks):.4f} of true against false completions"
        return f"AUC {auc(scores, np.arange(2 * n) < n):.3f} of real rows against completions"

    fit(judge, loss_at, look, config)
    save(out, kind='judge', judge_kind=kind, model_args=judge.gpt.args, config=config,
         model=judge.state_dict(), corpus=data.fingerprint)
    print(f"saved {out}")
