"""The judge: scores completed rows, and the script that trains one. Frozen during GRPO.

    python judge.py config/judge_arithmetic.py
    python judge.py config/judge_docstrings.py --kind=classifier --labels=mine.jsonl

likelihood (default): a causal GPT of the corpus; score = mean log-probability per token, in nats.
classifier: a bidirectional GPT with a pooled head; score = P(label = 1). It learns from JSON lines
{"text": ..., "label": 0..1}, or to tell real rows (1) from what a generator filled (0)."""
import functools, json
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F
from config.configurator import configure, fail
from config.run import RULES, Machine, check
from data.dataset import Dataset, draws, prompts, texts
from model import (GPT, batch_size, beta1, beta2, blank_high, blank_kind, blank_low, blank_span,
                   block_size, compile, complete, dataset, device, dtype, eval_interval, fit,
                   grad_clip, learning_rate, load, load_gpt, made, n_embd, n_head, n_layer, out,
                   seed, warmup_iters, weight_decay)

# knobs: these of model.py, where each is explained, and
kind = 'likelihood'         # 'likelihood' | 'classifier'
labels = ''                 # classifier: JSON lines {"text", "label"}; '': real against generated
generator_checkpoint = ''   # classifier without labels: whose completions are told from real rows
max_iters = 500             # optimizer steps
# letters: N rows | T positions | C channels | V base vocabulary

class Judge(nn.Module):
    """A GPT that scores rows. kind: 'likelihood' (causal trunk) or 'classifier' (pooled head)."""
    def __init__(self, kind, **gpt_args):
        super().__init__()
        self.kind, self.gpt = kind, GPT(**gpt_args)
        self.blocks = self.gpt.blocks           # Machine.frozen() asks for them
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
        chunk: rows at a time (0: as fit a cache); mask: not needed. Equal rows get equal bits."""
        rows, back = (tokens, slice(None)) if self.gpt.compiled else \
            torch.unique(tokens, dim=0, return_inverse=True)    # a compiled trunk wants one shape
        wide = rows.size(1) * max(4 * self.gpt.args['n_embd'], self.gpt.args['vocab_size'])
        fits = 2 ** 28 if rows.device.type != 'cpu' else 2 ** 21 if self.gpt.compiled else 2 ** 19
        raw = torch.cat([self.raw(r) for r in rows.split(chunk or max(1, fits // wide))])[back]
        return (raw.sigmoid() if self.kind == 'classifier' else raw).float()

def load_judge(path, data, make, block_size=1, device='cpu'):
    """A frozen judge in eval mode; see load() for what is checked."""
    ckpt = load(path, 'judge', data, make, block_size)
    judge = Judge(ckpt['judge_kind'], **ckpt['model_args'])
    judge.load_state_dict(ckpt['model'])
    return judge.to(device).eval().requires_grad_(False)

BUILT_IN = ('judge', 'verify', 'distinct', 'length')     # rewards; others are functions of a config
def reward_scores(names, batch, data, causal, judge=None, functions=None, chunk=0):
    """Scores (len(names), B, k) of completions, each reward apart.
    batch: prompts tokens, mask (B, T); rows (N, T); where (B or N, T), what the policy chose."""
    rows, B, found, pairs = batch['rows'], len(batch['tokens']), [], None
    functions = {**(functions or {}), 'verify': lambda *p: map(functools.cache(data.verify), *p)}
    for name in names:
        if name == 'judge':
            values = judge.score(rows, batch['where'], chunk)
        elif name == 'length':                  # the share of the row that the policy wrote
            values = batch['where'].sum(1).view(B, -1).expand(B, len(rows) // B) / rows.size(1)
        elif name == 'distinct':                # 1 / how often the group has this completion
            values = 1.0 / copies(rows.view(B, -1, rows.size(1)))
        else:
            pairs = pairs or texts(data.tok, batch['tokens'], batch['mask'], rows, causal)
            values = called(name, functions[name], *pairs)      # verify: equal pairs once
        found.append(torch.as_tensor(values, dtype=torch.float32, device=rows.device).view(B, -1))
    return torch.stack(found)

def copies(rows):
    """How many of the rows of its group (B, k, T) equal each of them: (B, k)."""
    return (rows[:, :, None] == rows[:, None]).all(3).sum(2)

def called(name, function, prompts, completions):
    """A reward function's values, one number per completion, or one line and the end."""
    try:
        values = [*map(float, function(prompts, completions))]
        if len(values) == len(prompts):
            return values
        problem = f"gave {len(values)} numbers for {len(prompts)} completions"
    except Exception as e:
        problem = f"raised {type(e).__name__}: {e}"
    fail(f"reward '{name}' {problem}; its first prompt: {prompts[0]!r}")

def auc(scores, labels):
    """P(score of a 1 > score of a 0) + half of the ties, in [0, 1], over all pairs of scores (N,)
    with labels (N,) bool; nan if a class is empty."""
    scores, labels = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=bool)
    wins = np.heaviside(scores[labels, None] - scores[~labels], 0.5)        # (ones, zeros)
    return wins.mean().item() if wins.size else float('nan')

def read_labels(path, tok, block_size):
    """Rows (N, T) and labels (N,) of a file of JSON lines; long texts are cut to the row."""
    found, line = [], 0
    try:
        for line, text in enumerate(open(path, encoding='utf-8'), 1):
            item = json.loads(text)
            ids, label = tok.encode(item['text'])[:block_size], float(item['label'])
            if not 0 <= label <= 1 or not ids:
                raise ValueError(f"label {label}, {len(ids)} tokens")
            found.append((ids + [tok.pad] * (block_size - len(ids)), label))
        if len({label for _, label in found}) < 2 or len(found) < 20:
            raise ValueError("the end, too early; expected at least 20 texts, and both labels")
    except (OSError, ValueError, KeyError, TypeError) as e:
        fail(f'{path}, line {line}: {e}; expected JSON lines {{"text": "...", "label": 0..1}}')
    return [torch.tensor(part) for part in zip(*found)]

if __name__ == "__main__":
    config = configure(globals())
    check({**RULES, "kind in ('likelihood', 'classifier')": '',
           "kind == 'classifier' or not labels": "a likelihood learns from text alone"}, config)
    data, machine, generator = Dataset(dataset), Machine(device, dtype), None
    tok, here = data.tok, machine.device
    if labels:
        rows, marks = read_labels(labels, tok, block_size)
        held_out, order = np.split(draws(0, 'labels').permutation(len(rows)), [len(rows) // 10])
    elif generator_checkpoint or kind == 'classifier':
        path, make = made(generator_checkpoint, 'model.py', f'config/generator_{dataset}.py')
        generator = load_gpt(path, data, make, block_size, device=here)
    torch.manual_seed(seed)
    judge = Judge(kind, vocab_size=tok.base, block_size=block_size, n_layer=n_layer, n_head=n_head,
                  n_embd=n_embd, causal=kind == 'likelihood').to(here)

    def examples(split, n, rng):
        """Rows (n, T) and labels (n,): of the file; or n / 2 real rows and the same with blanks
        (n / 2, T) filled, without a generator by what other rows have there; and these blanks."""
        if labels:
            pick = held_out if split == 'val' else order[rng.integers(len(order), size=n)]
            return rows[pick], marks[pick], None
        true, mask, u = prompts(data, dict(config, mode='fill', group_size=1), split,
                                n // 2 or 1, rng)       # u: one completion each
        false = complete(generator, *(t.to(here) for t in (true, mask, u)), eos=tok.eos)[0].cpu() \
            if generator else true.where(~mask, true.roll(1, 0))
        return torch.cat((true, false)), torch.tensor([1.0, 0.0]).repeat_interleave(len(true)), mask

    def loss_at(step):
        """Loss of one batch: nats per token, or binary cross-entropy."""
        rng = draws(seed, 'judge', step)
        if kind == 'likelihood':
            tokens = data.batch('train', batch_size, block_size, rng).to(here)
            where = tokens != tok.pad
            with machine.autocast():
                return F.cross_entropy(judge.gpt(tokens, where=where), tokens[where])
        tokens, targets, _ = examples('train', batch_size, rng)
        with machine.autocast():
            return F.binary_cross_entropy_with_logits(judge.raw(tokens.to(here)), targets.to(here))

    def look(n=min(1024, 2 ** 16 // block_size)):
        """How well the judge separates, on held-out data."""
        tokens, targets, mask = examples('val', 2 * n, draws(0, 'look'))
        p, y = judge.score(tokens.to(here)).cpu().numpy(), targets.numpy()
        if labels:      # the calibration error is the expected one, of 10 bins
            off, hit = np.bincount((10 * p).astype(int).clip(max=9), p - y), (p > 0.5) == (y > 0.5)
            return (f"held-out AUC {auc(p, y > 0.5):.3f}, accuracy {hit.mean():.3f}, calibration "
                    f"error {abs(off).sum() / len(p):.3f} ({len(y)} texts)")
        pairs = texts(tok, tokens[:n], mask, tokens[n:], False)
        if data.verify and set(checks := [*map(data.verify, *pairs)]) == {0.0, 1.0}:
            return f"AUC {auc(p[n:], checks):.4f} of true against false completions"
        return f"AUC {auc(p, y):.3f} of real rows against completions"

    fit(judge, loss_at, look, config, f"{kind} judge", machine.note, kind='judge', judge_kind=kind,
        corpus=data.fingerprint)
