"""The judge: scores completed rows, and the script that trains one. Frozen during GRPO.

    python judge.py config/judge_arithmetic.py
    python judge.py config/judge_docstrings.py --kind=classifier --labels=mine.jsonl

likelihood (default): a causal GPT of the corpus; score = mean log-probability per token, in nats.
classifier: a bidirectional GPT with a pooled head; score = P(label = 1). It learns from JSON lines
{"text": ..., "label": 0..1}, or to tell real rows (1) from what a generator filled (0)."""
import functools
from dataclasses import dataclass

from common import (StopSignal, autocast, configure, fail, init_device, is_main, one_of,
                    read_lines, run_missing)

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from data.dataset import Dataset, call_user, draw_prompts, draws, texts
from model import (GPT, check_recipe, complete, find_generator, fit, load_checkpoint, load_gpt,
                   reading)

# knobs
out = ''                    # checkpoint to write; '': out/<kind>_<dataset>-<digest of recipe>.pt
dataset = 'arithmetic'      # a folder of data/
kind = 'likelihood'         # 'likelihood' | 'classifier'
labels = ''                 # classifier: JSON lines {"text", "label"}; '': real against generated
generator_checkpoint = ''   # classifier without labels: whose completions are told from real rows
block_size = 10             # T, tokens in a row
n_layer = 3                 # blocks
n_head = 4                  # heads per block
n_embd = 64                 # C, channels
positions = 'rotary'        # 'rotary': relative, for prose | 'learned': rows have columns
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

BUILT_IN = ('judge', 'verify', 'distinct', 'length', 'kl')      # rewards; others: of a config file


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
        which = slice(None)
        if not self.gpt.compiled:               # a compiled trunk wants rows of one number
            rows, which = torch.unique(tokens, dim=0, return_inverse=True)
        # As many at a time as keep the widest intermediate result in a CPU's cache, or a GPU's
        # memory; a compiled trunk fuses operations, and needs less of it.
        widest = rows.size(1) * max(4 * self.gpt.args['n_embd'], self.gpt.vocab_size)
        numbers = 2 ** 28
        if rows.device.type == 'cpu' and not self.gpt.compiled:
            numbers = 2 ** 19
        scores = torch.cat([self.raw(few) for few in rows.split(max(1, numbers // widest))])
        scores = scores[which]
        if self.kind == 'classifier':
            scores = scores.sigmoid()
        return scores.float()


def load_judge(path, data, make='python judge.py', block_size=1, device='cpu'):
    """The judge of a checkpoint, frozen; see load_checkpoint() for what is checked."""
    checkpoint = load_checkpoint(path, 'judge', data, make, block_size)
    with reading('judge', path, make):
        judge = Judge(checkpoint['judge_kind'], **checkpoint['model_args'])
        judge.load_state_dict(checkpoint['model'])
    return judge.to(device).requires_grad_(False)


# ---- rewards by name -----------------------------------------------------------------------------


def check_rewards(rewards, functions):
    """Exits with an error if rewards {name: weight} ask for what is neither built in nor among the
    functions {name: function} of config files."""
    both = set(BUILT_IN).intersection(functions)
    if both:
        fail(f"config files define {both}, the name of a built-in reward; give it another one")
    known = [*BUILT_IN, *functions]
    wrong = [name for name, weight in rewards.items()
             if name not in known or type(weight) not in (int, float)]
    if wrong or not rewards:
        fail(f"rewards = {rewards}: expected a number for each of some of {', '.join(known)}; "
             "config files can define more")
    unused = functions.keys() - rewards.keys()
    if unused and is_main():
        print(f"warning: {', '.join(sorted(unused))}: defined, but not among the rewards; helpers "
              "begin with _")


@dataclass
class Scorer:
    """Scores completions by the names of rewards: those that are built in, or functions."""
    data: Dataset                   # its tokenizer, and verify() if it has one
    judge: Judge | None = None      # frozen; needed if the reward 'judge' is asked for
    functions: dict | None = None   # {name: (prompts, completions[, originals]) -> a number each}

    @property
    def about_group(self):
        """Names of the rewards that compare the completions of a prompt, and so say nothing of a
        single one: 'distinct', and functions with an attribute about_group."""
        marked = {name for name, function in (self.functions or {}).items()
                  if getattr(function, 'about_group', False)}
        return {'distinct'} | marked

    def score(self, names, rollout):
        """Scores {name: (B, k) float32} of the completions of a Rollout, each reward apart. A
        reward that needs more than text, such as log-probs, can take it from the Rollout here."""
        rows = rollout.rows                                                 # (N, T)
        B = len(rollout.prompts)
        strings = functools.cache(
            lambda: texts(self.data.tok, rollout.prompts, rows, rollout.causal))
        scores = {}
        for name in names:
            if name == 'judge':
                values = self.judge.score(rows)                             # (N,)
            elif name == 'length':              # the share of the row that the policy wrote
                values = rollout.owner.bincount(minlength=len(rows)) / rows.size(1)
            elif name == 'distinct':            # 1 / how often the group has this completion
                groups = rows.view(B, rollout.k, -1)                        # (B, k, T)
                values = 1 / (groups[:, :, None] == groups[:, None]).all(3).sum(2)      # (B, k)
            elif name == 'verify':
                values = self.data.check(*strings())                        # (N,)
            else:
                values = call_user(f"reward '{name}'", self.functions[name], *strings())
            values = torch.as_tensor(values, dtype=torch.float32)   # numbers of text: on the CPU
            for n in (~values.flatten().isfinite()).nonzero():
                fail(f"reward '{name}' is not finite for the prompt {strings()[0][n]!r}; no "
                     "checkpoint was overwritten; look at that reward, or lower --learning_rate")
            scores[name] = values.to(rows.device, non_blocking=True).view(B, rollout.k)
        return scores


def auc(scores, labels):
    """P(score of a 1 > score of a 0) + half of the ties, in [0, 1], over all pairs of scores (N,)
    with labels (N,) bool; 0.5 if a class is empty."""
    scores = np.asarray(scores, dtype=np.float64)
    labels = np.asarray(labels, dtype=bool)
    wins = np.heaviside(scores[labels, None] - scores[~labels], 0.5)        # (ones, zeros)
    return wins.mean().item() if wins.size else 0.5


# ---- training ------------------------------------------------------------------------------------


def read_labels(path, tok):
    """Rows (n, T) and labels (n,) of a file of JSON lines; long texts are cut to the row."""
    def example(text, label):
        ids = tok.encode(text)[:block_size]
        if not (ids and 0 <= label <= 1):
            raise ValueError(f"label {label}, {len(ids)} tokens")
        return ids + [tok.pad] * (block_size - len(ids)), float(label)

    examples = read_lines(path, example, '{"text": "...", "label": 0..1}')
    if len(examples) < 20 or len({label for _, label in examples}) < 2:
        fail(f"{path}: {len(examples)} texts; expected at least 20, and both labels")
    rows, marks = zip(*examples)
    return torch.tensor(rows), torch.tensor(marks)


def labelled_examples(rows, marks, split, n, rng):
    """n of the rows (n, T) of a file and their labels (n,); of those held out, a tenth, all."""
    order = draws(0, 'labels').permutation(len(rows))
    tenth = len(rows) // 10
    pick = order[:tenth]
    if split == 'train':
        pick = order[tenth:][rng.integers(len(rows) - tenth, size=n)]
    return rows[pick], marks[pick]


def real_or_filled(data, generator, split, n, rng):
    """Rows (n, T) and labels (n,): half of them real (1), then the same with their blanks filled
    (0): by a generator or, without one, by what other rows have there."""
    prompts = draw_prompts(data, split, n // 2, 1, rng, block_size=block_size, mode='fill',
                           blank_kind=blank_kind, blank_low=blank_low, blank_high=blank_high,
                           blank_span=blank_span)
    if generator is None:
        filled = prompts.tokens.where(~prompts.mask, prompts.tokens.roll(1, 0))
    else:
        filled = complete(generator, prompts).rows.cpu()
    return torch.cat((prompts.tokens, filled)), torch.tensor([1.0, 0.0]).repeat_interleave(n // 2)


def likelihood_loss(judge, data, rng):
    """Nats per token of a batch of rows."""
    tokens, _ = data.batch('train', batch_size, block_size, rng)            # (N, T)
    where = tokens != data.tok.pad
    with autocast(judge.gpt.device, dtype):
        logits = judge.gpt(tokens.to(judge.gpt.device), where)              # (U, V)
        return F.cross_entropy(logits, tokens[where].to(judge.gpt.device))


def classifier_loss(judge, rows, marks):
    """Binary cross-entropy of rows (N, T) and labels (N,), in nats."""
    device = judge.gpt.device
    with autocast(device, dtype):
        return F.binary_cross_entropy_with_logits(judge.raw(rows.to(device)), marks.to(device))


if __name__ == "__main__":
    StopSignal()                                # Ctrl-C ends with one line
    config, _ = configure(globals())
    one_of(('likelihood', 'classifier'), kind=kind)
    check_recipe(**config)
    if labels and kind != 'classifier':
        fail(f"labels = {labels!r}: expected kind = 'classifier'; a likelihood learns from text")
    data = Dataset(dataset)
    data.check_rows(block_size, 'fill', blank_kind)
    torch_device, note = init_device(device, dtype)
    generator = None
    if kind == 'classifier' and labels == '':
        path, make = find_generator(config, data)
        if generator_checkpoint == '':
            run_missing({path: make})
        generator = load_gpt(path, data, make, block_size, device=torch_device)
    examples = functools.partial(real_or_filled, data, generator)
    if labels:
        examples = functools.partial(labelled_examples, *read_labels(labels, data.tok))

    torch.manual_seed(seed)
    judge = Judge(kind, vocab_size=data.tok.base, block_size=block_size, n_layer=n_layer,
                  n_head=n_head, n_embd=n_embd, causal=kind == 'likelihood', positions=positions)
    judge.to(torch_device)

    def loss_at(step):
        rng = draws(seed, 'judge', step)
        if kind == 'likelihood':
            return likelihood_loss(judge, data, rng)
        return classifier_loss(judge, *examples('train', batch_size, rng))

    def look():
        """Text: how well the judge tells held-out rows with label 1 from those with 0."""
        rows, marks = examples('val', min(2048, 2 ** 17 // block_size), draws(0, 'look'))
        scores = judge.score(rows.to(torch_device)).cpu()
        return f"held-out AUC {auc(scores, marks > 0.5):.4f} of {len(marks)} rows"

    print(f"{kind} judge of {dataset}, {note}")
    fit(judge, judge.gpt, data, loss_at, look, config, kind='judge', judge_kind=kind)
