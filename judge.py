"""The judge: scores completed rows, and the script that trains one. Frozen during GRPO.

    python judge.py config/judge_arithmetic.py
    python judge.py config/judge_docstrings.py --kind=classifier --labels=mine.jsonl

likelihood (default): a causal GPT of the corpus; score = mean log-probability per token, in nats.
classifier: a bidirectional GPT with a pooled head; score = P(label = 1). It learns from JSON lines
{"text": ..., "label": 0..1}, or to tell real rows (1) from what a generator filled (0)."""
import json
from dataclasses import dataclass

from common import autocast, configure, fail, init_device, knobs, one_of

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from data.dataset import Dataset, call_user, draw_prompts, draws, texts_and_originals
from model import (ELSEWHERE, GPT, check_recipe, complete, default_recipe, ensure_checkpoint, fit,
                   load_checkpoint, load_gpt)

# knobs
out = ''                    # checkpoint to write; '' means out/<name of the config file>.pt
dataset = 'arithmetic'      # a folder of data/
kind = 'likelihood'         # 'likelihood' | 'classifier'
labels = ''                 # classifier: JSON lines {"text", "label"}; '': real against generated
generator_checkpoint = ''   # classifier without labels: whose completions are told from real rows
block_size = 10             # T, tokens in a row
n_layer = 3                 # blocks
n_head = 4                  # heads per block
n_embd = 64                 # C, channels
blank_kind = 'random'       # of generated rows: 'random' | 'span': runs | 'suffix' | 'answer'
blank_low = 0.2             # smallest share of a row that is blank
blank_high = 0.6            # largest share
blank_span = 4              # length of a run, for 'span'
batch_size = 256            # rows per step
max_iters = 500             # optimizer steps
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
# letters: N rows, k of each of B prompts | T positions | C channels | V base vocabulary

BUILT_IN = ('judge', 'verify', 'distinct', 'length')     # rewards; others are functions of a config


def check_knobs():
    """Ends with one line if a knob has an invalid value."""
    one_of(('likelihood', 'classifier'), kind=kind)
    check_recipe(**knobs(globals()))
    if labels and kind != 'classifier':
        fail(f"labels = {labels!r}: expected kind = 'classifier'; a likelihood learns from text")


# ---- the network ---------------------------------------------------------------------------------


class Judge(nn.Module):
    """A GPT that scores rows. kind: 'likelihood' (causal trunk) or 'classifier' (pooled head)."""

    def __init__(self, kind, **gpt_args):
        super().__init__()
        self.kind = kind
        self.gpt = GPT(**gpt_args)
        if kind == 'classifier':
            self.gpt.head = nn.Linear(gpt_args['n_embd'], 1)

    def raw(self, tokens):
        """Scores (N,) before the last map: mean log-probability, or the logit of label 1."""
        is_real = tokens != self.gpt.pad_id                                 # (N, T)
        features = self.gpt.features(tokens)                                # (N, T, C)
        features = features.to(self.gpt.head.weight.dtype)
        with torch.autocast(tokens.device.type, enabled=False):     # head and score: float32
            if self.kind == 'classifier':
                pooled = (features * is_real[..., None]).sum(1) / is_real.sum(1, keepdim=True)
                return self.gpt.logits(pooled)[:, 0]                        # (N,)
            logits = self.gpt.logits(features).transpose(1, 2)              # (N, V, T)
            loss = F.cross_entropy(logits, tokens, ignore_index=self.gpt.pad_id, reduction='none')
            return -loss.sum(1) / is_real.sum(1)                            # (N,)

    @torch.inference_mode()
    def score(self, tokens):
        """Scores (N,) float32 of rows (N, T): nats per token (<= 0), or P(label = 1) in [0, 1].
        Equal rows are scored once, and get equal bits."""
        rows = tokens
        if not self.gpt.compiled:               # a compiled trunk wants rows of one number
            rows, which = torch.unique(tokens, dim=0, return_inverse=True)
        scores = torch.cat([self.raw(part) for part in rows.split(self.rows_at_a_time(rows))])
        if not self.gpt.compiled:
            scores = scores[which]
        if self.kind == 'classifier':
            scores = scores.sigmoid()
        return scores.float()

    def rows_at_a_time(self, rows):
        """As many as keep the widest intermediate result within a CPU's cache, or a GPU's memory;
        a compiled trunk fuses operations, and needs less of it."""
        widest = rows.size(1) * max(4 * self.gpt.args['n_embd'], self.gpt.vocab_size)
        numbers = 2 ** 19
        if rows.device.type != 'cpu':
            numbers = 2 ** 28
        elif self.gpt.compiled:
            numbers = 2 ** 21
        return max(1, numbers // widest)


def load_judge(path, data, make, block_size=1, device='cpu'):
    """A frozen judge in eval mode; see load_checkpoint() for what is checked."""
    checkpoint = load_checkpoint(path, 'judge', data, make, block_size)
    judge = Judge(checkpoint['judge_kind'], **checkpoint['model_args'])
    judge.load_state_dict(checkpoint['model'])
    judge.text = checkpoint['config']['dataset']        # the corpus that it was trained on
    return judge.to(device).eval().requires_grad_(False)


# ---- rewards by name -----------------------------------------------------------------------------


@dataclass
class Scorer:
    """Scores completions by the names of rewards: those that are built in, or functions."""
    data: Dataset                   # its tokenizer, and verify() if it has one
    judge: Judge | None = None      # frozen; needed if the reward 'judge' is asked for
    functions: dict | None = None   # {name: (prompts, completions[, originals]) -> a number each}

    def score(self, names, rollout):
        """Scores {name: (B, k) float32} of the completions of a Rollout, each reward apart. A
        reward that needs more than text, such as log-probs, can take it from the Rollout here."""
        rows = rollout.rows                                                 # (N, T)
        B = len(rollout.prompts)
        k = rollout.k
        strings = None
        scores = {}
        for name in names:
            if name == 'judge':
                values = self.judge.score(rows)                             # (N,)
            elif name == 'length':              # the share of the row that the policy wrote
                values = torch.bincount(rollout.owner, minlength=len(rows)) / rows.size(1)
            elif name == 'distinct':            # 1 / how often the group has this completion
                values = 1.0 / copies(rows.view(B, k, -1))                   # (B, k)
            else:
                if strings is None:
                    strings = texts_and_originals(self.data.tok, rollout.prompts, rows,
                                                  rollout.causal)
                if name == 'verify':
                    values = self.data.check(*strings)                      # (N,)
                else:
                    values = call_user(f"reward '{name}'", self.functions[name], *strings)
            values = torch.as_tensor(values, dtype=torch.float32, device=rows.device)
            scores[name] = values.reshape(B, k)
        return scores


def copies(rows):
    """How many of the rows of its group (B, k, T) equal each of them: (B, k)."""
    return (rows[:, :, None] == rows[:, None]).all(3).sum(2)


def auc(scores, labels):
    """P(score of a 1 > score of a 0) + half of the ties, in [0, 1], over all pairs of scores (N,)
    with labels (N,) bool; nan if a class is empty."""
    scores = np.asarray(scores, dtype=np.float64)
    labels = np.asarray(labels, dtype=bool)
    wins = np.heaviside(scores[labels, None] - scores[~labels], 0.5)        # (ones, zeros)
    return wins.mean().item() if wins.size else float('nan')


# ---- training ------------------------------------------------------------------------------------


def read_labels(path, tok, block_size):
    """Rows (N, T) and labels (N,) of a file of JSON lines; long texts are cut to the row."""
    rows = []
    marks = []
    number = 0
    try:
        with open(path, encoding='utf-8-sig') as file:
            for number, line in enumerate(file, 1):
                item = json.loads(line)
                ids = tok.encode(item['text'])[:block_size]
                label = float(item['label'])
                if not 0 <= label <= 1 or not ids:
                    raise ValueError(f"label {label}, {len(ids)} tokens")
                rows.append(ids + [tok.pad] * (block_size - len(ids)))
                marks.append(label)
        if len(set(marks)) < 2 or len(marks) < 20:
            raise ValueError("the file ends too early; expected at least 20 texts, and both labels")
    except (OSError, ValueError, KeyError, TypeError) as e:
        fail(f'{path}, line {number}: {e}; expected JSON lines {{"text": "...", "label": 0..1}}')
    return torch.tensor(rows), torch.tensor(marks)


class LabelledTexts:
    """What a classifier learns from: texts of a file, a tenth of them held out."""

    def __init__(self, path, tok):
        rows, marks = read_labels(path, tok, block_size)
        order = draws(0, 'labels').permutation(len(rows))
        tenth = len(rows) // 10
        self.rows = rows
        self.marks = marks
        self.held_out = order[:tenth]
        self.train = order[tenth:]

    def examples(self, split, n, rng):
        """Rows (n, T) and labels (n,); all there are of those held out."""
        if split == 'val':
            pick = self.held_out
        else:
            pick = self.train[rng.integers(len(self.train), size=n)]
        return self.rows[pick], self.marks[pick]

    def look(self, judge, n):
        rows, marks = self.examples('val', n, None)
        p = judge.score(rows.to(judge.gpt.device)).cpu().numpy()
        label = marks.numpy()
        accuracy = ((p > 0.5) == (label > 0.5)).mean()
        # Expected calibration error: how far off the mean of p is in each of 10 bins of p.
        bins = (10 * p).astype(int).clip(max=9)
        calibration_error = abs(np.bincount(bins, p - label)).sum() / len(p)
        return (f"held-out AUC {auc(p, label > 0.5):.3f}, accuracy {accuracy:.3f}, calibration "
                f"error {calibration_error:.3f} ({len(label)} texts)")


class RealOrFilled:
    """Real rows (1) against the same rows with blanks filled (0): by a generator or, without one,
    by what other rows have there."""

    def __init__(self, data, generator):
        self.data = data
        self.generator = generator

    def pairs(self, split, n, rng):
        """Prompts: n real rows with blanks, and (n, T) these rows as they were filled."""
        prompts = draw_prompts(self.data, split, n, 1, rng, block_size=block_size, mode='fill',
                               blank_kind=blank_kind, blank_low=blank_low, blank_high=blank_high,
                               blank_span=blank_span)
        if self.generator is None:
            others = prompts.tokens.roll(1, 0)
            return prompts, prompts.tokens.where(~prompts.mask, others)
        return prompts, complete(self.generator, prompts).rows.cpu()

    def examples(self, split, n, rng):
        """Rows (n, T) and labels (n,)."""
        prompts, filled = self.pairs(split, n // 2 or 1, rng)
        return torch.cat((prompts.tokens, filled)), torch.tensor([1.0, 0.0]).repeat_interleave(
            len(filled))

    def look(self, judge, n):
        prompts, filled = self.pairs('val', n, draws(0, 'look'))
        real_scores = judge.score(prompts.tokens.to(judge.gpt.device)).tolist()
        filled_scores = judge.score(filled.to(judge.gpt.device)).tolist()
        if self.data.verify:
            strings = texts_and_originals(self.data.tok, prompts, filled, causal=False)
            is_true = self.data.check(*strings)
            if set(is_true) == {0.0, 1.0}:
                return f"AUC {auc(filled_scores, is_true):.4f} of true against false completions"
        found = auc(real_scores + filled_scores, [True] * n + [False] * n)
        return f"AUC {found:.3f} of real rows against completions"


def likelihood_loss(judge, data, rng):
    """Nats per token of a batch of rows."""
    tokens, _ = data.batch('train', batch_size, block_size, rng)
    tokens = tokens.to(judge.gpt.device)                                    # (N, T)
    where = tokens != data.tok.pad
    with autocast(tokens.device, dtype):
        return F.cross_entropy(judge.gpt(tokens, where=where), tokens[where])


def classifier_loss(judge, source, rng):
    """Binary cross-entropy of a batch of rows and labels, in nats."""
    rows, marks = source.examples('train', batch_size, rng)
    device = judge.gpt.device
    with autocast(device, dtype):
        return F.binary_cross_entropy_with_logits(judge.raw(rows.to(device)), marks.to(device))


if __name__ == "__main__":
    config, _ = configure(globals())
    check_knobs()
    data = Dataset(dataset)
    data.check_rows(block_size, 'fill', blank_kind)
    torch_device, note = init_device(device, dtype)

    if labels:
        source = LabelledTexts(labels, data.tok)
    else:
        generator = None
        if generator_checkpoint or kind == 'classifier':
            path, make = ensure_checkpoint(
                generator_checkpoint, 'model.py', default_recipe('generator', data),
                dataset=dataset, mode='fill', block_size=block_size)
            generator = load_gpt(path, data, make, block_size, device=torch_device)
        source = RealOrFilled(data, generator)

    torch.manual_seed(seed)
    try:
        judge = Judge(kind, vocab_size=data.tok.base, block_size=block_size, n_layer=n_layer,
                      n_head=n_head, n_embd=n_embd, causal=kind == 'likelihood')
    except ValueError as e:
        fail(e)
    judge.to(torch_device)

    def loss_at(step):
        rng = draws(seed, 'judge', step)
        if kind == 'likelihood':
            return likelihood_loss(judge, data, rng)
        return classifier_loss(judge, source, rng)

    def look():
        return source.look(judge, min(1024, 2 ** 16 // block_size))

    fit(judge, judge.gpt, loss_at, look, config, f"{kind} judge, {note}", kind='judge',
        judge_kind=kind, corpus=data.fingerprint, vocabulary=data.tok.vocabulary,
        unit=data.meta['unit'])
