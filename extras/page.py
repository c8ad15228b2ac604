"""Show a run, or several side by side, as a page for a browser: one file, which needs no network.
For a run that goes on, call it again.

    python -m extras.page out-order                 # out-order/run.html
    python -m extras.page out-order out-left        # out-order/compare.html

The page has the curves of log.jsonl and the completions of samples.jsonl. A cursor goes through all
of them: click on a curve, or press left and right. This file says what is in a page; page.html,
page.css and page.js beside it say how it looks."""
import collections
import functools
import json
import os
import re
from html import escape
from pathlib import Path

from extras.words import words_of
import train_grpo as grpo
from run import advice
from run.command import fail_unknown
from run.samples import rows_of


@functools.cache
def read_lines(path):
    """Return the objects of a file of JSON lines. A line can be damaged, such as the last one of a
    run that was killed, or is writing it: it is named, and left out."""
    lines = []
    for number, text in enumerate(path.read_text('utf-8', 'replace').splitlines(), 1):
        try:
            lines.append(json.loads(text))
        except ValueError:
            print(f"{path}, line {number} is damaged and left out: {text!r:.60}")
    return lines


def read_log(folder):
    """Return the evaluations and the steps of a run's log, two lists of lines."""
    path = Path(folder, 'log.jsonl')
    if not path.exists():
        fail_unknown('expected folders of runs, and no flags, not', folder, os.listdir())
    lines = read_lines(path)
    evals = [line for line in lines if 'loss' not in line]
    assert evals, f"{path} has no evaluation yet"
    return evals, [line for line in lines if 'loss' in line]


def points_of(folder, x, y):
    """Return the values of two numbers of a run's log, such as 'step' and 'kl', in the lines that
    have the second."""
    evals, steps = read_log(folder)
    lines = [line for line in evals + steps if y in line]
    if not lines:
        fail_unknown(f'expected a number of {folder}/log.jsonl (a reward of weight 0 is one, too), '
                     'not', y, {*evals[0], *(steps + evals)[0]})
    return [line[x] for line in lines], [line[y] for line in lines]


def read_run(folder, most):
    """Return what the page needs of a run, see page.js. most: so many groups of steps."""
    evals, steps = read_log(folder)
    groups = collections.defaultdict(list)      # {step: completions of a prompt}
    held_out = collections.defaultdict(list)    # {step: four samples of each prompt}
    path = Path(folder, 'samples.jsonl')
    samples = read_lines(path) if path.exists() else []
    for sample in samples:
        if 'pieces' not in sample:              # of an older version
            continue
        is_training = 'advantage' in sample['scores']
        by_step = groups if is_training else held_out
        by_step[sample['step']].append(sample)
    if not held_out:
        print(f"{path} has no completions: the page has curves only")
    evaluations = []
    for samples in thin([*held_out.values()], max(2, most // 5)):
        starts = range(0, len(samples), 4)
        evaluations.append([group_of(samples[n:n + 4]) for n in starts])
    config = json.loads(Path(folder, 'config.json').read_text('utf-8'))
    entropies = [line['entropy'] for line in steps if line.get('entropy')] or [0.0]
    says = []                                   # the last lines of the console, the verdict first
    if 'above it' in evals[-1]:                 # else the run is of an older version
        says = [*advice.of_the_end(config, evals, (entropies[0], entropies[-1]))][::-1]
    return {
        'name': folder,
        'config': config,
        'says': says,
        'evals': columns_of(evals),
        'steps': columns_of(thin(steps, 1000)),
        'groups': [group_of(samples) for samples in thin([*groups.values()], most)],
        'held_out': evaluations,
    }


def columns_of(lines):
    """Return the numbers of some lines of the log: {name: the number of each line, or None}."""
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: [line.get(name) for line in lines] for name in names}


def group_of(samples):
    """Return a prompt, with the columns of its record, and its completions. Equal ones are one row.
    """
    rows = []
    for row in rows_of(samples):
        # log-probabilities need no more than four decimals
        pieces = json.dumps(row['pieces'])
        pieces = json.loads(pieces, parse_float=lambda text: round(float(text), 4))
        rows.append({'n': row['n'], 'scores': row['scores'], 'pieces': pieces})
    prompt = samples[0]['prompt']
    if samples[0].get('columns'):               # the secret of a game
        prompt += f"   {samples[0]['columns']}"
    return {'step': samples[0]['step'], 'prompt': prompt, 'rows': rows}


def thin(items, most):
    """Return at most so many items of a list, at equal distances, the first and the last too."""
    n = min(len(items), most)
    return [items[i * (len(items) - 1) // max(1, n - 1)] for i in range(n)]


def last_group_of(run):
    """Return the last group of a run as HTML, for browsers without JavaScript."""
    lines = [f"<h2>{escape(run['name'])}</h2>"]
    lines += [f"<p>{escape(line)}</p>" for line in run['says']]
    for group in run['groups'][-1:]:
        lines.append(f"<p>step {group['step']}</p>")
        lines.append(f"<pre>{escape(group['prompt'])}</pre>")
        names = ['', *map(escape, group['rows'][0]['scores']), 'completion']
        lines.append(f"<table><tr><th>{'</th><th>'.join(names)}</th></tr>")
        for row in group['rows']:
            texts = [piece if type(piece) is str else piece[0] for piece in row['pieces']]
            numbers = ['none' if value is None else f'{value:.3f}'
                       for value in row['scores'].values()]
            cells = [f"{row['n']} ×", *numbers, escape(''.join(texts))]
            lines.append(f"<tr><td>{'</td><td>'.join(cells)}</td></tr>")
        lines.append("</table>")
    return '\n'.join(lines)


def page_of(folders, most=60):
    """Return the page of some runs, as HTML. If it is over 2 MB, fewer steps keep a group."""
    runs = [read_run(folder, most) for folder in folders]
    data = json.dumps({'runs': runs, 'defaults': grpo.DEFAULTS}, separators=(',', ':'))
    here = Path(__file__)
    parts = {
        'STYLE': here.with_suffix('.css').read_text('utf-8'),
        'SCRIPT': here.with_suffix('.js').read_text('utf-8'),
        'LAST': '\n'.join(map(last_group_of, runs)),
        'DATA': data.replace('<', '\\u003c'),                   # no text can end the script
    }
    page = here.with_suffix('.html').read_text('utf-8')
    page = re.sub('<!-- ([A-Z]+) -->', lambda match: parts[match[1]], page)
    if len(page) > 2_000_000 and most > 3:
        return page_of(folders, most // 2)
    return page


if __name__ == "__main__":
    folders = words_of(__doc__) or ['out-grpo']
    path = Path(folders[0], 'run.html' if len(folders) == 1 else 'compare.html')
    path.write_text(page_of(folders), 'utf-8')
    print(f"wrote {path}, {path.stat().st_size // 1000} KB")
