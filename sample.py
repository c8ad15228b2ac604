"""Look at a run: the same prompts before and after GRPO, with scores. Or at a generator alone.

    python sample.py --out_dir=out-grpo --prompt='1_+3_=__7' --k=16
    python sample.py config/mine.py --out_dir=out-mine       # with the rewards that mine.py defines
    python sample.py --checkpoint=out/generator_arithmetic-1a2b3c4d.pt

A run's folder is only read: no code that a checkpoint names is run."""
import os
import sys

from common import StopSignal, autocast, configure, fail, in_words, init_device, read_config_file

import torch

from data.dataset import (Dataset, asks_for, draw_prompts, draws, print_groups,
                          prompts_of_texts)
from judge import Scorer, load_judge
from model import complete, load_checkpoint, load_gpt

# knobs
out_dir = 'out-grpo'        # folder of a run
checkpoint = 'ckpt.pt'      # in it: ckpt.pt, best.pt, ckpt-000100.pt; or a file of its own
prompt = ''                 # one of your own: '_' is a blank; causal: what to continue
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


# ---- prompts: c holds the knobs of the run, {name: value} ----------------------------------------


def own_prompt(data, c):
    """Prompts of the text in --prompt, alone. Its answer nobody knows."""
    try:
        return prompts_of_texts([prompt], data.tok, data.meta['unit'], k or 4, draws(seed, 'eval'),
                                block_size=c['block_size'], mode=c['mode'],
                                max_new_tokens=c['max_new_tokens'])
    except ValueError as e:
        fail(f"prompt: {e}")


def held_out_prompts(data, c):
    """The prompts of the run's evaluation, which are drawn with replacement: here each once."""
    names = ('block_size', 'mode', 'max_new_tokens', 'blank_kind', 'blank_low', 'blank_high',
             'blank_span')
    some = draw_prompts(data, 'val', c['eval_prompts'], k or 4, draws(seed, 'eval'),
                        **{name: c[name] for name in names})
    rows = torch.cat((some.tokens, some.mask), 1).tolist()
    numbers = {tuple(row): i for i, row in enumerate(rows)}
    return some[list(numbers.values())]


# ---- completions, before and after ---------------------------------------------------------------


def completions(model, parts, how, scorer, names, greedy):
    """Scores {name: (B, k)} of what completes Prompts, which come in parts, and 'rows' (B, k, T);
    on the CPU. how: arguments of complete()."""
    found = []
    for some in parts:
        r = complete(model, some, greedy, **how)
        scores = scorer.score(names, r)
        scores['rows'] = r.rows.view(len(some), r.k, -1)
        found.append(scores)
    joined = {}
    for name in found[0]:
        joined[name] = torch.cat([part[name] for part in found]).cpu()
    return joined


def print_passes(label, model, some, how):
    """What stood in the completions of one prompt after each pass, and how often: from the second
    pass on, blanks fit what was written before."""
    r = complete(model, some, **how)
    # In each pass the states of the completions have equally many blanks left, fewer each time.
    state = r.where.nonzero()[r.point.cpu(), 0]                             # (M,)
    left = (r.states == model.mask_id).sum(1)[state.to(model.device)]       # (M,)
    print(f'{label}, pass by pass')
    for number, blanks in enumerate(left.unique().flip(0), 1):
        later = left < blanks                                               # (M,)
        rows = r.rows.clone()                                               # (k, T)
        rows[r.owner[later], r.position[later]] = model.mask_id
        print_groups(model.tok, some, rows, False, f'pass {number}',
                     {'blanks': (rows == model.mask_id).sum(1)}, most=r.k)


def known_scores(c, data, some, functions):
    """Names of the run's rewards, verify and distinct, of those that can be said of some Prompts:
    a function that asks for the answer needs one."""
    of_text = functions | {'verify': data.verify}
    names = []
    for name in c['rewards'] | {'verify': 1.0, 'distinct': 1.0}:
        function = of_text.get(name)
        asks = function and (asks_for('original', function) or asks_for('originals', function))
        if name in ('judge', 'distinct', 'length'):
            names.append(name)
        elif function and not (asks and some.original is None):
            names.append(name)
    return names


if __name__ == "__main__":
    StopSignal()
    flags = [word for word in sys.argv[1:] if word.startswith('-')]
    files = [word for word in sys.argv[1:] if word not in flags]
    for file in files:                          # of a run: its folder
        out_dir = read_config_file(file, DEFAULTS)[0].get('out_dir', out_dir)
    configure(globals(), flags, quiet=True)
    path = f'{out_dir}/{checkpoint}'
    if os.path.isfile(checkpoint):
        path = checkpoint
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
    some = own_prompt(data, c) if prompt else held_out_prompts(data, c)
    names = known_scores(c, data, some, functions)

    found = {}                                  # {(label, greedy): scores, and 'rows'}
    with autocast(torch_device, c['dtype']):
        if len(some) == 1 and how['n_fill_steps'] > 1:
            for label, model in models.items():
                print_passes(label, model, some, how)
        parts = some.split(c['batch_size'])
        for greedy in (False, True):
            for label, model in models.items():
                found[label, greedy] = completions(model, parts, how, scorer, names, greedy)
            # The likeliest completion is one: there is no group to speak about.
            names = [name for name in names if name not in scorer.about_group] or ['length']
    for b in range(len(some))[:num_samples]:
        for label in models:
            scores = found[label, argmax]
            columns = {name: values[b, :k or 1] for name, values in scores.items()}
            if k == 0 and len(columns) > 2:     # one is shown, of a group that is not
                columns.pop('distinct', None)
            rows = columns.pop('rows')                                      # (k, T)
            print_groups(data.tok, some[b:b + 1], rows, c['mode'] == 'causal', label, columns,
                         most=len(rows))
    print(f"mean over {len(some)} prompts; the line to beat is the reference at its argmax:")
    for (label, greedy), scores in found.items():
        scores.pop('rows')
        line = f"{label} at its argmax" if greedy else label
        for name, values in scores.items():
            line += f" | {name} {in_words(name, values.mean())}"
        print(line)
