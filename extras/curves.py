"""Draw the log of a run, or of several in one picture, as a PNG in the first run's folder.

    python -m extras.curves out-grpo                        # out-grpo/curves.png
    python -m extras.curves out-grpo out-other              # out-grpo/compare.png

extras.compare draws several seeds of a variant as one line with a band."""
import contextlib
import json
import os
import sys
from pathlib import Path

from common import fail

try:
    from matplotlib.figure import Figure
except ImportError:
    fail("no picture without matplotlib: pip install matplotlib")

TITLES = {'eval/reward': 'reward, held-out prompts',
          'eval/verify': 'right answers, held-out prompts',
          'eval/tokens': 'tokens per held-out completion',
          'kl': 'KL to the reference, nats per token', 'entropy': 'entropy, nats per token'}


def read_log(folder):
    """Return a run's log in the order of steps: the last training line and the last evaluation line
    of each step. A resumed run repeats the steps after its last checkpoint."""
    if not os.path.exists(f'{folder}/log.jsonl'):
        fail(f"there is no run in {folder}")
    lines = {}
    with open(f'{folder}/log.jsonl', encoding='utf-8') as file:
        for text in file:
            with contextlib.suppress(ValueError):       # the last line of a run that was killed
                line = json.loads(text)
                lines[line['step'], 'loss' in line] = line
    return [lines[key] for key in sorted(lines)]


def draw(ax, lines, name, *style, **more):
    """Plot one quantity of a log against the step."""
    points = [(line['step'], line[name]) for line in lines if name in line]
    if points:                                  # this run may not have it
        ax.plot(*zip(*points), *style, **more)


if __name__ == "__main__":
    folders = sys.argv[1:] or ['out-grpo']
    logs = {folder: read_log(folder) for folder in folders}
    if not all(logs.values()):
        fail(f"a log is empty: {logs}")
    first = logs[folders[0]][0]                 # the evaluation at step 0
    # The large picture is the number that the run watches.
    config = json.loads(Path(folders[0], 'config.json').read_text())
    goal = f"eval/{config['goal']}"
    small = [name for name in TITLES if name != goal and (name in first or 'eval' not in name)]
    if not any(line.get('eval/ended') for line in logs[folders[0]]):    # blanks: tokens are given
        small.remove('eval/tokens')
    if not any(line.get('kl') for line in logs[folders[0]]):    # there was no reference
        small.remove('kl')
    if config['goal'] == 'reward':              # a sum: each of its parts
        parts = [f'eval/{name}' for name in config['rewards']]
        small += [name for name in parts if name not in [goal, 'eval/verify', *small]]
    figure = Figure(figsize=(10, 4.4), layout='constrained')
    axes = figure.subplot_mosaic([[goal, name] for name in small], width_ratios=[1.7, 1])
    axes[goal].axhline(first[f'{goal}_greedy'], color='0.45', linestyle='--',
                       label='line to beat: the start with greedy decoding')
    for i, (folder, lines) in enumerate(logs.items()):
        draw(axes[goal], lines, goal, f'C{i}', label=f'{folder}: samples')
        draw(axes[goal], lines, f'{goal}_greedy', f'C{i}:', label=f'{folder}: greedy')
        for name in small:
            draw(axes[name], lines, name, f'C{i}')
    for name, ax in axes.items():
        ax.set_title(TITLES.get(name, name.removeprefix('eval/')), loc='left')
    axes[goal].legend(frameon=False)
    figure.supxlabel('step')
    path = f"{folders[0]}/{'curves' if len(folders) == 1 else 'compare'}.png"
    figure.savefig(path, dpi=130)
    print(f"wrote {path}")
