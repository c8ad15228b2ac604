"""Draw a picture from runs of these commands, and write it beside the first run: NAME.png. With a
last word --docs it becomes docs/assets/NAME.png, the picture of the pages. It needs matplotlib,
which is in requirements-dev.txt.

    python -m extras.pictures curve out-curve-1 out-curve-2 out-curve-3
        # train_grpo.py config/grpo_config.py --eval_interval=10 --seed=1, 2, 3
    python -m extras.pictures guess out-guess
        # train_grpo.py config/grpo_guess.py
    python -m extras.pictures orders out-learned out-left out-confident out-random
        # config/grpo_order.py, and again with --fill_order=left, confident, random --n_fill_steps=8
    python -m extras.pictures think out-think
        # train_grpo.py config/grpo_think.py"""
import collections
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, '.')         # for `python extras/pictures.py`

import matplotlib
from matplotlib.figure import Figure

import train_grpo as grpo
from data.guess import LETTERS
from extras.page import read_lines
from plumbing.process import expect
from plumbing.run_folder import config_of
from sample import open_run

BLUE = '#2f6fb0'
RED = '#c8551b'
matplotlib.rcParams.update({
    'axes.titlelocation': 'left', 'axes.spines.top': False, 'axes.spines.right': False,
    'legend.frameon': False, 'figure.constrained_layout.use': True, 'lines.linewidth': 2,
    'axes.prop_cycle': matplotlib.cycler(color=[BLUE, RED, '#2a9d5c', '0.4'],
                                         linestyle=['-', '--', ':', '-.'])})


def plot(ax, folder, name, title, ylabel, **how):
    """Draw a number of the evaluations of a run."""
    lines = [line for line in read_lines(f'{folder}/log.jsonl') if name in line]
    ax.plot([line['step'] for line in lines], [line[name] for line in lines], **how)
    ax.set(title=title, xlabel='step', ylabel=ylabel)
    ax.set_ylim(0, auto=True)                   # a next curve may be higher


def sampled(sample):
    """Return the pieces of a sample that the policy wrote."""
    return [piece for piece in sample['pieces'] if len(piece) > 1]


def held_out(folder):
    """Return pairs of 'before' or 'after' and four samples of each held-out prompt. The run must
    have plugins/watch.py."""
    task, networks, after, _ = open_run(folder, [])
    for label, policy in ('before', networks.policy), ('after', after):
        grpo.devices.set_seed(0)
        prompts = task.prompts('val', grpo.eval_prompts, grpo.blank_low, grpo.blank_high)
        rollout = grpo.complete(policy, prompts, 4)
        scores = grpo.score(rollout, networks, {'verify': 1.0}, 0, 'val')
        yield label, grpo.samples_of(rollout, scores)


def maps(axes, folder, points_of, alpha=0.0, **titles):
    """Draw how many completions are at a point (x, y), as the area of a disc, before and after a
    run. points_of(pieces) returns points. A line of so much alpha connects its points."""
    for ax, (label, samples) in zip(axes, held_out(folder)):
        paths = [points_of(sampled(sample)) for sample in samples]
        counts = collections.Counter(point for path in paths for point in path)
        ax.scatter(*zip(*counts), [600 * n / len(samples) for n in counts.values()], color=BLUE)
        for path in paths:
            ax.plot(*zip(*path), '-', color=BLUE, alpha=alpha, zorder=0)
        right = statistics.mean(sample['scores']['verify'] for sample in samples)
        ax.set(title=f'{label}: {100 * right:.0f} % are right', **titles)
        ax.margins(0.1)
        ax.invert_yaxis()


def curve(figure, *folders):
    """True completions of the main job over the steps, of several seeds."""
    figure.set_size_inches(8, 2.8)              # larger letters: it is the first curve of a reader
    ax = figure.subplots()
    title = f'true completions of held-out prompts, {len(folders)} runs'
    styles = [('verify', BLUE, '-'), ('greedy', RED, '--'), ('line to beat', '0.4', ':')]
    for name, color, style in styles:
        for folder in folders:
            plot(ax, folder, name, title, 'share', color=color, ls=style, lw=1.2)
        ax.lines[-1].set_label(name)            # one of the runs is enough
    ax.set(ylim=(0, 1), xmargin=0.01)
    ax.yaxis.set_major_formatter('{x:.0%}')
    ax.legend(loc='lower right')


def guess(figure, folder):
    """Which letter is guessed at which turn, and how many games are won."""
    *axes, won = figure.subplots(1, 3, width_ratios=(4, 4, 2))

    def points_of(pieces):
        return [(LETTERS.index(text), turn) for turn, (text, _) in enumerate(pieces, 1)
                if text in LETTERS]

    maps(axes, folder, points_of, alpha=0.02, xlabel='letter', ylabel='guess', yticks=range(1, 5),
         xticks=range(len(LETTERS)), xticklabels=LETTERS)
    plot(won, folder, 'verify', 'games won', 'share')


def orders(figure, *folders):
    """How often each blank was filled in which pass of the first run, and the curves of all, which
    get the names of their folders."""
    *axes, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.3))

    def points_of(pieces):
        return [(blank, number) for blank, (_, number) in enumerate(pieces, 1)]

    maps(axes, folders[0], points_of, xlabel='blank, from left to right', ylabel='filled in pass',
         xticks=range(1, 9))
    title = "'left' is right from the start\n(the point: nobody told the policy)"
    for folder in folders:
        label = Path(folder).name.removeprefix('out-')
        plot(right, folder, 'verify', title, 'right answers, share', label=label)
    right.legend(title='fill_order')


def think(figure, folder):
    """Right answers and tokens over the steps, and tokens by the number of swaps."""
    right, tokens, swaps = figure.subplots(1, 3)
    plot(right, folder, 'verify', 'right answers to held-out prompts', 'share')
    plot(tokens, folder, 'eval/tokens', 'length of a completion, mean', 'tokens')
    for label, samples in held_out(folder):
        lengths = {n: [] for n in range(1, 9)}          # of prompts with so many swaps
        for sample in samples:
            lengths[8 - sample['prompt'].count('..')].append(len(sampled(sample)))
        lengths = {n: x for n, x in lengths.items() if x}       # a short evaluation has not all
        means = [*map(statistics.mean, lengths.values())]
        swaps.plot([*lengths], means, marker='o', label=label)
    swaps.set(title='length of a completion:\n2 = answers at once, 10 = thinks first',
              xlabel='swaps in the prompt', ylabel='tokens', ylim=(0, None))
    swaps.legend()


# Pictures of what only runs of one experiment have.
EXPERIMENTS = {'guess': 'config/grpo_guess.py', 'orders': 'config/grpo_order.py',
               'think': 'config/grpo_think.py'}
PICTURES = {draw.__name__: draw for draw in (curve, guess, orders, think)}


def main():
    words = [word for word in sys.argv[1:] if word != '--docs']
    if len(words) < 2 or words[0] not in PICTURES:
        sys.exit(__doc__)
    name, *folders = words
    for folder in folders:
        expect(Path(folder, 'log.jsonl').is_file(), f"{folder} is no folder of a run")
        files = [os.path.normpath(x) for x in config_of(folder)['words']]
        expect(name == 'curve' or EXPERIMENTS[name] in files, (
            f"{folder} is no run of {EXPERIMENTS.get(name)}"))
    figure = Figure(figsize=(12, 3.6))
    PICTURES[name](figure, *folders)
    path = Path('docs/assets' if '--docs' in sys.argv else folders[0], f'{name}.png')
    # twice as wide as pages of GitHub, for fine screens
    figure.savefig(path, dpi=1760 / figure.get_figwidth())
    print(f'wrote {path}')


if __name__ == '__main__':
    main()
