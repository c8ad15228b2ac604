"""Draw the log of a run, or of several in one picture, as a PNG in the first run's folder.

    python -m extras.curves out-grpo                        # out-grpo/curves.png
    python -m extras.curves out-grpo out-other              # out-grpo/compare.png"""
import contextlib
import json
import os
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from run.command import fail_unknown, reading, words_of

# of all our pictures
matplotlib.rcParams.update({'axes.titlelocation': 'left', 'legend.frameon': False,
                            'figure.constrained_layout.use': True, 'savefig.dpi': 130})
TITLES = {'eval/reward': 'reward, held-out prompts',
          'eval/verify': 'right answers, held-out prompts',
          'eval/tokens': 'tokens per held-out completion',
          'kl': 'KL to the reference, nats per token', 'entropy': 'entropy, nats per token'}


def read_log(folder):
    """Return a run's log in the order of steps. A resumed run begins again after its last
    checkpoint, so a line takes the place of those that it finds of the same step or of later ones.
    """
    lines = []
    with open(f'{folder}/log.jsonl', encoding='utf-8', errors='replace') as file:
        for text in file:
            # a line that is damaged, such as the last one of a run that was killed
            with contextlib.suppress(ValueError, KeyError, TypeError):
                line = json.loads(text)
                place = place_of(line)
                while lines and place_of(lines[-1]) >= place:
                    lines.pop()
                lines.append(line)
    return lines


def place_of(line):
    """The evaluation of a step comes before its training line, which alone has a loss."""
    return line['step'], 'loss' in line


def read_json(folder, name):
    with reading(f'{folder}/{name}'):
        return json.loads(Path(folder, name).read_text())


def points_of(folder, x, y):
    """Return the values of two numbers of a run's log, such as 'step' and 'kl', in the lines that
    have the second."""
    lines = [line for line in read_log(folder) if y in line]
    return [line[x] for line in lines], [line[y] for line in lines]


def check_goal(folder, goal):
    """Exit if the log of a folder does not have this number."""
    names = set().union(*read_log(folder))
    if goal not in names:
        fail_unknown(f'{folder}/log.jsonl has no', goal, names)


def save(figure, path):
    assert Path(path).parent.is_dir(), f"{path} was not drawn: {Path(path).parent} is no folder"
    figure.savefig(path)
    print(f"wrote {path}")


if __name__ == "__main__":
    folders = words_of(__doc__) or ['out-grpo']
    # The large picture is the number that the run watches.
    for folder in folders:
        if not Path(folder, 'log.jsonl').exists():
            fail_unknown('expected folders of runs, and no flags, not', folder, os.listdir())
    config = read_json(folders[0], 'config.json')
    goal = f"eval/{config['goal']}"
    check_goal(folders[0], goal)
    greedy_goal = f"greedy/{config['goal']}"
    # Small ones: what changes in the first run. (Without a reference there is no KL, and blanks do
    # not become more.)
    names = list(TITLES)
    if len(config['rewards']) > 1:
        names += [f'eval/{name}' for name in config['rewards']]
    small = []
    for name in dict.fromkeys(names):           # each once
        _, values = points_of(folders[0], 'step', name)
        if name != goal and len(set(values)) > 1:
            small.append(name)
    small = small or ['kl']                     # nothing changes in a run of no steps
    figure = Figure(figsize=(10, 4.4))
    axes = figure.subplot_mosaic([[goal, name] for name in small], width_ratios=[1.7, 1])
    _, greedy = points_of(folders[0], 'step', greedy_goal)
    _, sampled = points_of(folders[0], 'step', goal)
    axes[goal].axhline(max(greedy[0], sampled[0]), color='0.45', linestyle='--',
                       label='line to beat: the start, sampled or greedy')
    for i, folder in enumerate(folders):
        axes[goal].plot(*points_of(folder, 'step', goal), f'C{i}', label=f'{folder}: samples')
        axes[goal].plot(*points_of(folder, 'step', greedy_goal), f'C{i}:',
                        label=f'{folder}: greedy')
        for name in small:
            axes[name].plot(*points_of(folder, 'step', name))
    for name, ax in axes.items():
        ax.set_title(TITLES.get(name, name.removeprefix('eval/')))
    axes[goal].legend()
    figure.supxlabel('step')
    save(figure, f"{folders[0]}/{'curves' if len(folders) == 1 else 'compare'}.png")
