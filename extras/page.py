"""Show a run, or several side by side, as a page for a browser: out-order/page.html, one file that
needs no network. For a run that goes on, call it again.

    python -m extras.page out-order out-left

A click on a curve chooses a step, and then left and right do. page.html here says how it looks."""
import itertools
import json
import shlex
import sys
from pathlib import Path

if not __package__:
    sys.exit("expected: python -m extras.page FOLDER ...")

import train_grpo as grpo
from extras.advice import advice_for, must_be_run, read_lines
from extras.check import words_or_help
from plumbing.configurator import knobs_of


def thin(items, most):
    """Return at most so many items of a list, or 1 MB, at equal distances, first and last too."""
    size = max([len(json.dumps(item)) for item in items], default=1)
    n = min(len(items), most, max(2, 1_000_000 // size))
    return [items[i * (len(items) - 1) // max(1, n - 1)] for i in range(n)]


def read_run(folder):
    """Return what the page shows of a run."""
    log = read_lines(f'{must_be_run(folder)}/log.jsonl')
    evals = [line for line in log if 'line to beat' in line]
    assert evals, f"{folder} has no evaluation yet"
    config = json.loads(Path(folder, 'config.json').read_text('utf-8'))
    words = config.pop('words')
    groups = {True: [], False: []}              # of steps, of evaluations
    for (_, is_step), samples in itertools.groupby(
            read_lines(f'{folder}/samples.jsonl'),
            key=lambda sample: (sample['step'], 'advantage' in sample['scores'])):
        groups[is_step].append([*samples])
    return {
        'name': folder,
        'command': shlex.join(['python', 'train_grpo.py', *words]),
        'config': config,
        'says': advice_for(folder),
        'evals': thin(evals, 1000),
        'steps': thin([line for line in log if 'ms' in line], 1000),
        'groups': thin(groups[True], 60),
        'held_out': thin(groups[False], 12),
    }


def page_of(folders):
    """Return the page of some runs, as HTML."""
    data = json.dumps({'runs': [*map(read_run, folders)], 'defaults': knobs_of(vars(grpo))})
    # Four digits are enough, browsers cannot read NaN, and no text may end the script.
    data = json.loads(data, parse_float=lambda digits: float(f'{float(digits):.4g}'),
                      parse_constant=lambda name: None)
    text = json.dumps(data, separators=(',', ':')).replace('<', '\\u003c')
    return Path(__file__).with_suffix('.html').read_text('utf-8').replace('DATA', text)


if __name__ == '__main__':
    folders = words_or_help(__doc__) or ['out-grpo']
    path = Path(folders[0], 'page.html')
    path.write_text(page_of(folders), 'utf-8')
    print(f'wrote {path}, {path.stat().st_size // 1000} KB')
