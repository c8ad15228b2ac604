"""Look at a run: the same prompts before and after GRPO, with scores. Or at a generator alone.

    python sample.py --out_dir=out-grpo --prompt='1_+3_=__7' --k=16
    python sample.py config/mine.py --out_dir=out-mine       # with the rewards that mine.py defines
    python sample.py --checkpoint=out/generator_arithmetic-1a2b3c4d.pt

A run's folder is only read: no code that a checkpoint names is run."""
import collections
import os
import sys

from common import StopSignal, at_least, autocast, between, configure, fail, init_device

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
k = 0                       # > 0: list so many completions of one prompt, with counts
argmax = False              # True: show the likeliest completion; False: sampled ones
temperature = 0.0           # of samples; 0: the run's own, here and in the next three
top_k = 0                   # sample from the k likeliest ids
top_p = 0.0                 # sample from the fewest ids with this mass
n_fill_steps = 0            # passes over a row, of reference and policy
device = 'auto'             # 'auto' | 'cpu' | 'cuda' | 'mps'
seed = 0                    # of prompts, blanks and samples; 0: those of the run's evaluation
# letters: B prompts | k completions of each | T positions


# ---- prompts -------------------------------------------------------------------------------------


def own_prompts(data, c, how_many):
    """Prompts of the texts in --prompt or --prompts; None if neither is given."""
    strings = [prompt] if prompt else []
    if prompts:
        try:
            with open(prompts, encoding='utf-8-sig') as file:
                strings = [line.rstrip('\n') for line in file if line.strip()]
        except (OSError, UnicodeDecodeError) as e:
            fail(f"{prompts}: {getattr(e, 'strerror', None) or e}; expected a text file, one "
                 "prompt a line")
    if not strings:
        return None
    try:
        found = prompts_of_texts(strings, data.tok, data.meta['unit'], how_many,
                                 draws(seed, 'eval'), block_size=c['block_size'], mode=c['mode'],
                                 max_new_tokens=c.get('max_new_tokens', 0))
    except ValueError as e:
        fail(f"prompt {e}")
    if data.answers:
        found.original = known_answers(data, found, c['block_size'])
    return found


def known_answers(data, some, T):
    """The rows (B, T) that the corpus has for these prompts, or --answer; None if one has none."""
    rows = {}                                   # {ids of a prompt: ids of its row}
    for split, ids in data.ids.items():
        for start, stop, size in zip(data.edges[split], data.edges[split][1:], data.answers[split]):
            rows[tuple(ids[start:start + size].tolist())] = ids[start:stop].tolist()
    originals = []
    for tokens, mask in zip(some.tokens, some.mask):
        given = tokens[:int(mask.int().argmax())].tolist()
        row = rows.get(tuple(given))
        if answer:
            row = given + data.tok.encode(answer) + [data.tok.eos]
        if row is None:
            return None
        originals.append((row + [data.tok.pad] * T)[:T])
    return torch.tensor(originals)


def held_out_prompts(data, c, how_many):
    """The prompts of the run's evaluation, each once."""
    names = ('block_size', 'mode', 'blank_kind', 'blank_low', 'blank_high', 'blank_span')
    found = draw_prompts(data, 'val', c.get('eval_prompts', 512), how_many, draws(seed, 'eval'),
                         max_new_tokens=c.get('max_new_tokens', 0),
                         **{name: c[name] for name in names})
    first = {}                                  # {row and blanks: number of the first such prompt}
    for i, row in enumerate(torch.cat((found.tokens, found.mask), 1).tolist()):
        first.setdefault(tuple(row), i)
    return found[list(first.values())]


# ---- completions, before and after ---------------------------------------------------------------


def complete_and_score(model, some, greedy, c, scorer, names):
    """Completions (B, k, T) of some Prompts, on the CPU, and their scores {name: (B, k)}."""
    rows = []
    scores = {name: [] for name in names}
    for few in some.split(c['batch_size']):
        with autocast(model.device, c['dtype']):
            r = complete(model, few, greedy, **sampling_knobs(c))
            found = scorer.score(names, r)
        rows.append(r.rows.view(len(few), -1, c['block_size']).cpu())
        for name in names:
            scores[name].append(found[name].cpu())
    return torch.cat(rows), {name: torch.cat(values) for name, values in scores.items()}


def sampling_knobs(c):
    """Arguments of complete(): what was asked for here, or the knobs of the run."""
    return {'temperature': temperature or c.get('temperature', 1.0),
            'top_k': top_k or c.get('top_k', 0), 'top_p': top_p or c.get('top_p', 1.0),
            'n_fill_steps': n_fill_steps or c.get('n_fill_steps', 1),
            'fill_order': c.get('fill_order', 'random')}


def print_passes(label, model, some, c, tok):
    """What stood in the completions of one prompt after each pass, and how often: from the second
    pass on, blanks fit what was written before."""
    r = complete(model, some, **sampling_knobs(c))
    # In each pass the states of the completions have equally many blanks left, fewer each time.
    state = r.where.nonzero()[r.point.cpu(), 0]                             # (M,)
    left = (r.states.cpu()[state] == model.mask_id).sum(1)                  # (M,)
    for number, blanks in enumerate(sorted(set(left.tolist()), reverse=True), 1):
        rows = r.rows.cpu().clone()                                         # (k, T)
        later = left < blanks
        rows[r.owner.cpu()[later], r.position.cpu()[later]] = model.mask_id
        print(f'{label}, after pass {number}')
        for row, count in sorted(collections.Counter(map(tuple, rows.tolist())).items()):
            print(f'{count:7} x   {row_text(tok, torch.tensor(row), some.mask[0])}')


def compare(models, some, greedy, c, scorer, names, shown):
    """Prints the first `shown` of some Prompts with their completions by each of the models {label:
    GPT}, from the same random numbers, and the mean scores over all."""
    if greedy:
        names = [name for name in names if name not in scorer.about_group]
    found = {label: complete_and_score(model, some, greedy, c, scorer, names)
             for label, model in models.items()}
    for b in range(min(shown, len(some))):
        for label, (rows, scores) in found.items():
            columns = {name: values[b, :k or 1] for name, values in scores.items()}
            print_group(scorer.data.tok, some.tokens[b], some.mask[b], rows[b, :k or 1], label,
                        columns or {'': torch.zeros(k or 1)}, c['mode'] == 'causal')
    how = 'at their argmax' if greedy else 'sampled'
    means = [f"{name} " + ' -> '.join(f"{scores[name].mean():.3f}" for _, scores in found.values())
             for name in names]
    print(f"{' -> '.join(found)}, {how}, mean over {len(some)} prompt(s):   {'   '.join(means)}")


if __name__ == "__main__":
    StopSignal()
    files = [word for word in sys.argv[1:] if not word.startswith('-')]
    configure(globals(), [word for word in sys.argv[1:] if word.startswith('-')], quiet=True)
    at_least(0, k=k, num_samples=num_samples, temperature=temperature, n_fill_steps=n_fill_steps)
    between(0, 1, top_p=top_p)
    path = checkpoint if os.path.isfile(checkpoint) else f'{out_dir}/{checkpoint}'
    make = f"python train_grpo.py config/grpo_config.py --out_dir={out_dir}"
    run = load_checkpoint(path, 'generator', make=make)
    c = run['config']
    data = Dataset(c['dataset'])
    torch_device, _ = init_device(device, c['dtype'])
    ask = (c['block_size'], c['mode'], torch_device)
    judge = None
    if run['kind'] == 'policy':
        reference = c['generator_checkpoint']
        models = {'reference': load_gpt(reference, data, make, *ask),
                  'policy': load_gpt(path, data, make, *ask)}
        if c['judge_checkpoint']:
            judge = load_judge(c['judge_checkpoint'], data, make, c['block_size'], torch_device)
    else:
        models = {'generator': load_gpt(path, data, make, *ask)}

    # A reward that is a function is shown if its file is named here: a folder runs no code.
    _, functions = configure(dict(c), files, quiet=True)
    scorer = Scorer(data, judge, functions)
    names = [name for name in c.get('rewards', ()) if name != 'kl'
             and (name in functions or name in BUILT_IN)]
    how_many = max(k, c.get('group_size', 4), 4)
    some = own_prompts(data, c, how_many)
    is_own = some is not None
    if not is_own:
        some = held_out_prompts(data, c, how_many)
    if k > 0:
        some = some[:1]
    names += [name for name in ('verify', 'distinct') if name not in names]
    needs_answer = data.verify and n_arguments('verify()', data.verify, one_by_one=True) == 3
    if data.verify is None or (is_own and needs_answer and some.original is None):
        names.remove('verify')                  # there is nothing to verify with
    some = some.for_k(k or 4)
    if len(some) == 1 and sampling_knobs(c)['n_fill_steps'] > 1:
        for label, model in models.items():
            print_passes(label, model, some, c, data.tok)
    for greedy in (False, True):
        shown = 0
        if greedy == argmax:
            shown = len(some) if is_own else num_samples
        compare(models, some, greedy, c, scorer, names, shown)
