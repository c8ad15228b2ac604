"""Draws the log of a run, or of several beside each other, as a PNG in the first one's folder.

    python extras/curves.py out-grpo                        # out-grpo/curves.png
    python extras/curves.py out-grpo out-other              # out-grpo/compare.png"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
from common import fail, new_file, read_json_lines

PANELS = {'eval/reward': 'reward', 'eval/kl': 'KL to the reference, nats a choice',
          'eval/entropy': 'entropy, nats a choice'}


def points(log, key):
    """Steps and values of a key of the log, two lists."""
    lines = [line for line in log if line.get(key) is not None]
    return [line['step'] for line in lines], [line[key] for line in lines]


def draw(figure, logs):
    """Draws logs {folder: lines}: what is true, if they know it, large; the rest small."""
    axes = figure.subplot_mosaic([['large', 'eval/reward'], ['large', 'eval/kl'],
                                  ['large', 'eval/entropy']], width_ratios=[1.7, 1], sharex=True)
    first = next(iter(logs.values()))
    goal = next(name for name in ('verify', 'alone', 'reward') if points(first, f'eval/{name}')[0])
    large = axes['large']
    large.set_title(f'held-out {goal}: samples, and dashed the argmax', loc='left')
    if goal == 'verify':
        large.set_ylim(0, 1)
        large.yaxis.set_major_formatter(lambda value, _: f'{value:.0%}')
    for i, (folder, log) in enumerate(logs.items()):
        color = f'C{i}'
        large.plot(*points(log, f'eval/{goal}'), color=color, lw=1.8, label=folder)
        large.plot(*points(log, f'eval/{goal}_argmax'), '--', color=color, lw=1.2)
        for key in PANELS:
            axes[key].plot(*points(log, key), color=color, lw=1.8)
    steps, values = points(first, f'eval/ref_{goal}_argmax')
    if values:
        large.plot(steps, values, '--', color='0.45', lw=1.8)
        large.annotate("line to beat: the reference at its argmax", (steps[-1], values[-1]),
                       (0, -12), textcoords='offset points', color='0.35', fontsize=9, ha='right')
    if len(logs) > 1:
        large.legend(frameon=False)
    for key, title in PANELS.items():
        axes[key].set_title(title, loc='left', fontsize=10)
    for ax in axes.values():
        ax.spines[['top', 'right']].set_visible(False)
        ax.margins(x=0.02)
    figure.supxlabel('step')


if __name__ == "__main__":
    folders = sys.argv[1:] or ['out-grpo']
    logs = {folder: read_json_lines(f'{folder}/log.jsonl') for folder in folders}
    if not all(any('eval/reward' in line for line in log) for log in logs.values()):
        fail(f"{' '.join(folders)}: a log without an evaluation; let the run go on a little")
    try:
        from matplotlib.figure import Figure
    except ImportError as e:
        fail(f"no curves: {e}; pip install matplotlib")
    figure = Figure(figsize=(10, 4.4), layout='constrained', facecolor='white')
    draw(figure, logs)
    path = f"{folders[0]}/{'curves' if len(folders) == 1 else 'compare'}.png"
    with new_file(path) as file:
        figure.savefig(file, dpi=120)
    print(f"wrote {path}")
