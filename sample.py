"""Look at a run: the same prompts before and after GRPO, with scores. Or at a generator alone.

    python sample.py --out_dir=out-grpo --prompt='1_+3_=__7' --k=16
    python sample.py config/mine.py --out_dir=out-mine       # with the rewards that mine.py defines
    python sample.py --checkpoint=out/generator_arithmetic-1a2b3c4d.pt

A run's folder is only read: no code that a checkpoint names is run."""
import collections
import os
import sys

from common import StopSignal, at_least, autocast, between, configure, fail, init_device

import numpy as np
import torch

from data.dataset import (Dataset, draw_prompts, draws, n_arguments, print_group, prompts_of_texts,
                          row_text)
from judge import BUILT_IN, Scorer, load_judge
from model import complete, load_checkpoint, load_gpt

# knobs
out_dir = 'out-grpo'        # folder of a run
checkpoint = 'ckpt.pt'      # in it: ckpt.pt, best.pt, ckpt-000100.pt; or a file of its own
prompt = ''                 # one of your own: '_' is a blank; causal: what to continue
answer = ''                 # and its answer, to verify with; '': the one that the corpus has
prompts = ''                # file of prompts of your own, one a line
num_samples = 10            # held-out prompts to show
k = 0                       # > 0: list so many completions of each prompt, with counts
argmax = False              # True: show the likeliest completion; False: sampled ones
temperature = 0.0           # of samples; 0: the run's own, here and in the next three
top_k = 0                   # sample from the k likeliest ids
top_p = 0.0                 # sample from the fewest ids with this mass
n_fill_steps = 0            # passes over a row, of reference and policy
device = 'auto'             # 'auto' | 'cpu' | 'cuda' | 'mps'
seed = 0                    # of prompts, blanks and samples; 0: those of the run's evaluation
# letters: B prompts | k completions of each | T positions

# What a generator that is in no run does not say.
DEFAULTS = {'eval_prompts': 512, 'max_new_tokens': 0, 'temperature': 1.0, 'top_k': 0, 'top_p': 1.0,
            'n_fill_steps': 1, 'fill_order': 'random', 'rewards': {}, 'judge_checkpoint': ''}
OF_PROMPTS = ('block_size', 'mode', 'max_new_tokens')
OF_BLANKS = ('blank_kind', 'blank_low', 'blank_high', 'blank_span')


# ---- prompts: c holds the knobs of the run, {name: value} ----------------------------------------


def own_prompts(data, c):
    """Prompts of the texts in --prompt or --prompts."""
    strings = [prompt]
    try:
        if prompts:
            with open(prompts, encoding='utf-8-sig') as file:
                strings = [line.rstrip('\n') for line in file if line.strip()]
        some = prompts_of_texts(strings, data.tok, data.meta['unit'], k or 4, draws(seed, 'eval'),
                                **{name: c[name] for name in OF_PROMPTS})
        some.original = known_answers(data, some)
    except (OSError, ValueError) as e:
        fail(f"prompts: {e}")
    return some


def known_answers(data, some):
    """The rows (B, T) of these prompts with --answer, or as the corpus has them; None if one of
    them it has not."""
    rows = {}                                   # {ids of a prompt: ids of its row}
    for split, sizes in data.answers.items():
        for row, size in zip(np.split(data.ids[split], data.edges[split][1:-1]), sizes):
            rows[tuple(row[:size])] = row.tolist()
    T = some.tokens.size(1)
    originals = []
    for tokens, mask in zip(some.tokens, some.mask):
        given = tokens[:mask.int().argmax()].tolist()
        row = rows.get(tuple(given))
        if answer:
            row = given + data.tok.encode(answer) + [data.tok.eos]
        if row is None:
            return None
        originals.append((row + [data.tok.pad] * T)[:T])
    return torch.tensor(originals)


def held_out_prompts(data, c):
    """The prompts of the run's evaluation, which are drawn with replacement: here each once."""
    some = draw_prompts(data, 'val', c['eval_prompts'], k or 4, draws(seed, 'eval'),
                        **{name: c[name] for name in OF_PROMPTS + OF_BLANKS})
    rows = torch.cat((some.tokens, some.mask), 1).tolist()
    return some[list({tuple(row): i for i, row in enumerate(rows)}.values())]


# ---- completions, before and after ---------------------------------------------------------------


def completions(model, parts, how, scorer, names, greedy):
    """Rows (B, k, T) that complete Prompts, which come in parts, and scores {name: (B, k)}; on the
    CPU. how: arguments of complete()."""
    rows = []
    scores = {name: [] for name in names}
    for some in parts:
        r = complete(model, some, greedy, **how)
        rows.append(r.rows.view(len(some), r.k, -1).cpu())
        for name, values in scorer.score(names, r).items():
            scores[name].append(values.cpu())
    return torch.cat(rows), {name: torch.cat(values) for name, values in scores.items()}


def print_passes(label, model, some, how):
    """What stood in the completions of one prompt after each pass, and how often: from the second
    pass on, blanks fit what was written before."""
    r = complete(model, some, **how)
    # In each pass the states of the completions have equally many blanks left, fewer each time.
    state = r.where.nonzero()[r.point.cpu(), 0]                             # (M,)
    left = (r.states.cpu() == model.mask_id).sum(1)[state]                  # (M,)
    for number, blanks in enumerate(left.unique().flip(0), 1):
        rows = r.rows.cpu().clone()                                         # (k, T)
        later = left < blanks
        rows[r.owner.cpu()[later], r.position.cpu()[later]] = model.mask_id
        print(f'{label}, after pass {number}')
        for row, count in sorted(collections.Counter(map(tuple, rows.tolist())).items()):
            print(f'{count:7} x   {row_text(model.tok, torch.tensor(row), some.mask[0])}')


def known_scores(c, data, some, functions):
    """Names of the run's rewards, verify and distinct, of those that can be said of some Prompts:
    without an answer there is nothing to verify, for a function that asks for it."""
    by_text = {'verify': data.verify} | functions
    known = {*BUILT_IN, *functions} - {'kl'}
    for name, function in by_text.items():
        n = n_arguments(name, function, one_by_one=name == 'verify')
        if function is None or (some.original is None and n == 3):
            known.remove(name)
    return [name for name in {**c['rewards'], 'verify': 1, 'distinct': 1} if name in known]


if __name__ == "__main__":
    StopSignal()
    flags = [word for word in sys.argv[1:] if word.startswith('-')]
    files = [word for word in sys.argv[1:] if word not in flags]
    configure(globals(), flags, quiet=True)
    at_least(0, k=k, num_samples=num_samples, temperature=temperature, n_fill_steps=n_fill_steps)
    between(0, 1, top_p=top_p)
    path = checkpoint if os.path.isfile(checkpoint) else f'{out_dir}/{checkpoint}'
    make = f"python train_grpo.py config/grpo_config.py --out_dir={out_dir}"
    run = load_checkpoint(path, 'generator', make=make)
    c = DEFAULTS | run['config']
    # A reward that is a function is shown if its file is named here: a folder runs no code.
    _, functions = configure(dict(c), files, quiet=True)
    how = {name: globals().get(name) or c[name]
           for name in ('temperature', 'top_k', 'top_p', 'n_fill_steps', 'fill_order')}

    data = Dataset(c['dataset'])
    torch_device, _ = init_device(device, c['dtype'])
    paths = {'generator': path}
    if run['kind'] == 'policy':
        paths = {'reference': c['generator_checkpoint'], 'policy': path}
    models = {label: load_gpt(path, data, make, c['block_size'], c['mode'], torch_device)
              for label, path in paths.items()}
    judge = None
    if c['judge_checkpoint']:
        judge = load_judge(c['judge_checkpoint'], data, make, c['block_size'], torch_device)
    scorer = Scorer(data, judge, functions)
    if prompt or prompts:
        some = own_prompts(data, c)
        num_samples = len(some)
    else:
        some = held_out_prompts(data, c)
    names = known_scores(c, data, some, functions)

    found = {}                                  # {(label, greedy): (rows, scores)}
    with autocast(torch_device, c['dtype']):
        if len(some) == 1 and how['n_fill_steps'] > 1:
            for label, model in models.items():
                print_passes(label, model, some, how)
        for greedy in (False, True):
            for label, model in models.items():
                found[label, greedy] = completions(model, some.split(c['batch_size']), how, scorer,
                                                   names, greedy)
            # The likeliest completion is one: there is no group to speak about.
            names = [name for name in names if name not in scorer.about_group] or ['length']
    for b in range(len(some))[:num_samples]:
        for label in models:
            rows, scores = found[label, argmax]
            columns = {name: values[b, :k or 1] for name, values in scores.items()}
            print_group(data.tok, some.tokens[b], some.mask[b], rows[b, :k or 1], label, columns,
                        c['mode'] == 'causal', most=k or 1)
    print(f"mean over {len(some)} prompts:")
    for (label, greedy), (_, scores) in found.items():
        line = f"{label} at its argmax" if greedy else label
        for name, values in scores.items():
            share = '.1%' if name in ('verify', 'distinct') else '.3f'
            line += f" | {name} {values.mean():{share}}"
        print(f"{line}{' | the line to beat' if greedy and label == 'reference' else ''}")
