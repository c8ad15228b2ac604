"""Draws the log of a run, or of several beside each other, as a PNG in the first one's folder.

    python extras/curves.py out-grpo                        # out-grpo/curves.png
    python extras/curves.py out-grpo out-other              # out-grpo/compare.png"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
from common import fail, new_file, read_json, read_json_lines
from judge import BUILT_IN

try:
    from matplotlib.figure import Figure
except ImportError as e:
    fail(f"no picture: {e}; pip install matplotlib")

TITLES = {'eval/reward': 'reward', 'eval/kl': 'KL to the reference, nats a choice',
          'eval/entropy': 'entropy, nats a choice'}


def runs():
    """Of each folder on the command line: its name, the knobs of the run, the lines of its log."""
    for folder in sys.argv[1:]:
        knobs = read_json(f'{folder}/config.json', {}, 'python train_grpo.py')
        log = read_json_lines(f'{folder}/log.jsonl')
        if not log:                             # the first line is an evaluation
            fail(f"{folder} has no evaluation yet; let the run go on a little")
        yield folder, knobs, log


def draw(ax, key, log, style, **more):
    """Draws a key of a log, if it has it."""
    lines = [line for line in log if key in line]
    if lines:
        ax.plot([line['step'] for line in lines], [line[key] for line in lines], style, **more)


def save(figure, path):
    with new_file(path) as file:
        figure.savefig(file, dpi=130)
    print(f"wrote {path}")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.argv.append('out-grpo')
    figure = Figure(figsize=(10, 4.4), layout='constrained')
    axes = figure.subplot_mosaic([['goal', key] for key in TITLES], width_ratios=[1.7, 1])
    large = axes.pop('goal')
    for i, (folder, knobs, log) in enumerate(runs()):
        if i == 0:                              # see goal_of() in train_grpo.py
            names = ['verify', 'alone', 'reward']
            if not set(knobs['rewards']) <= set(BUILT_IN):
                names.remove('verify')
            goal = next(name for name in names if f'eval/{name}' in log[0])
            draw(large, f'eval/ref_{goal}_argmax', log, '--', color='0.45',
                 label='line to beat: the reference at its argmax')
        draw(large, f'eval/{goal}', log, f'C{i}', label=folder)
        draw(large, f'eval/{goal}_argmax', log, f'C{i}--', label='its argmax')
        for key, ax in axes.items():
            draw(ax, key, log, f'C{i}')
            ax.set_title(TITLES[key], loc='left')
    if goal == 'verify':
        large.set_ylim(0, 1)
        large.yaxis.set_major_formatter('{x:.0%}')
    large.set_title('held-out ' + goal.replace('alone', 'reward of single completions'), loc='left')
    large.legend(frameon=False)
    figure.supxlabel('step')
    save(figure, f"{sys.argv[1]}/{'curves' if len(sys.argv) == 2 else 'compare'}.png")
