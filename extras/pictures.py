"""Draw a picture of the pages, docs/assets/NAME.png, from runs of these commands:

    python -m extras.pictures step out-step
        # train_grpo.py --rewards="{'verify': 1.0}" --kl_beta=0 --entropy_coef=0 --group_size=6
        # --batch_size=1 --warmup_iters=0 --max_iters=1 --seed=307
    python -m extras.pictures curve out-curve-1 out-curve-2 out-curve-3
        # train_grpo.py config/grpo_config.py --eval_interval=10 --seed=1, 2, 3
    python -m extras.pictures guess out-guess
    python -m extras.pictures orders out-order out-left out-confident out-random
        # config/grpo_order.py, and again with --fill_order=left, confident, random --n_fill_steps=8
    python -m extras.pictures think out-think"""
import collections
import itertools
import json
import math
import statistics
import sys

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

import train_grpo as grpo
from data.guess import LETTERS
from extras.advice import must_be_run, read_lines
from plumbing.configurator import show_error
from sample import open_run

BLUE = '#2f6fb0'
RED = '#c8551b'
matplotlib.rcParams.update({
    'axes.titlelocation': 'left', 'axes.spines.top': False, 'axes.spines.right': False,
    'legend.frameon': False, 'figure.constrained_layout.use': True, 'lines.linewidth': 2,
    'axes.prop_cycle': matplotlib.cycler(color=[BLUE, RED, '#2a9d5c', '0.4'],
                                         linestyle=['-', '--', ':', '-.'])})


def plot(ax, folder, name, title, **how):
    """Draw a number of the evaluations of a run."""
    lines = [line for line in read_lines(f'{folder}/log.jsonl') if name in line]
    steps = [line['step'] for line in lines]
    ax.plot(steps, [line[name] for line in lines], **how)
    ax.set(title=title, xlabel='step')
    ax.set_ylim(0, auto=True)                   # a next curve may be higher


def held_out(folder):
    """Return pairs of 'before' or 'after' and four samples of each held-out prompt. Their tokens
    are the pieces that the policy wrote."""
    task, networks, after, saved = open_run(folder)
    for label, policy in {'before': networks.policy, 'after': after}.items():
        networks.policy = policy
        samples, _, _ = grpo.evaluate(networks, task, saved['step'], n_shown=10 ** 6)   # all
        for sample in samples:
            sample['tokens'] = [piece for piece in sample['pieces'] if len(piece) > 1]
        yield label, samples


def maps(axes, folder, names, places_of, alpha=0.0, **titles):
    """Draw how many completions are at a place (x, y), as the area of a disc, before and after a
    run. places_of(tokens) returns places, names has a letter for each x. Lines of so much alpha
    connect the places of a completion."""
    for ax, (label, samples) in zip(axes, held_out(folder)):
        paths = [places_of(sample['tokens']) for sample in samples]
        counts = collections.Counter(itertools.chain(*paths))
        ax.scatter(*zip(*counts), [600 * n / len(samples) for n in counts.values()], color=BLUE)
        for path in paths:
            ax.plot(*zip(*path), '-', color=BLUE, alpha=alpha, zorder=0)
        right = statistics.mean(sample['scores']['verify'] for sample in samples)
        ax.set(title=f'{label}: {100 * right:.0f} % are right', **titles)
        ax.margins(0.1)
        ax.set_xticks(range(len(names)), names)
        ax.invert_yaxis()


def step(figure, folder):
    """A prompt, its completions, their rewards and advantages, and how likely each is before and
    after a step."""
    samples = [sample for sample in read_lines(f'{folder}/samples.jsonl')
               if 'advantage' in sample['scores']]
    samples.sort(key=lambda sample: sample['scores']['reward'])
    axes = figure.subplots(1, 3, sharey=True, width_ratios=(1, 2, 2))
    names = ('reward', 'advantage', 'probability, %: before (gray) and after the step')
    for ax, name in zip(axes, names):
        ax.set_title(name)
        for y, sample in enumerate(samples):
            color = BLUE if sample['scores']['advantage'] > 0 else RED
            if name in sample['scores']:
                ax.barh(y, sample['scores'][name], 0.4, color=color)
            else:
                logp = [piece[2:] for piece in sample['pieces'] if len(piece) > 1]
                p = [100 * math.exp(sum(column)) for column in zip(*logp)]
                ax.barh((y + 0.2, y - 0.2), p, 0.4, color=('0.75', color))
    texts = [sample['completion'] for sample in samples]
    axes[0].set_yticks(range(len(texts)), texts, family='monospace')
    figure.suptitle(f"{samples[0]['prompt']}     a prompt and {len(texts)} completions", x=0.01,
                    ha='left')


def curve(figure, *folders):
    """True completions of the main job over the steps, of several seeds."""
    figure.set_size_inches(8, 2.8)              # larger letters: it is the first curve of a reader
    ax = figure.subplots()
    title = f'true completions of held-out prompts, {len(folders)} runs'
    styles = {'verify': (BLUE, '-'), 'greedy': (RED, '--'), 'line to beat': ('0.4', ':')}
    for name, (color, style) in styles.items():
        for folder in folders:
            label = name if folder == folders[0] else None
            plot(ax, folder, name, title, label=label, color=color, ls=style, lw=1.2)
    ax.set(ylim=(0, 1), xmargin=0.01)
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.legend(loc='lower right')


def guess(figure, folder):
    """Which letter is guessed at which turn, and how many games are won."""
    *axes, won = figure.subplots(1, 3, width_ratios=(4, 4, 2))
    maps(axes, folder, LETTERS, lambda tokens: [
        (LETTERS.index(text), turn) for turn, (text, _) in enumerate(tokens, 1) if text in LETTERS],
         alpha=0.02, ylabel='guess', yticks=range(1, 5))
    plot(won, folder, 'verify', 'games won')


def orders(figure, *folders):
    """How often each blank was filled at which turn of the first run, and the curves of all."""
    *axes, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.3))
    maps(axes, folders[0], '12345678', lambda tokens: [
        (blank, i) for blank, (_, i) in enumerate(tokens)],
         xlabel='blank, from left to right', ylabel='filled at turn')
    for folder in folders:
        with open(f'{folder}/config.json') as file:
            order = json.load(file)['fill_order']
        plot(right, folder, 'verify', 'right answers to held-out prompts', label=order)
    right.legend(title='fill_order', loc='upper right', bbox_to_anchor=(1, 0.9))


def think(figure, folder):
    """Right answers and tokens over the steps, and tokens by the number of swaps."""
    right, tokens, swaps = figure.subplots(1, 3)
    plot(right, folder, 'verify', 'right answers to held-out prompts')
    plot(tokens, folder, 'eval/tokens', 'tokens of a completion')
    for label, samples in held_out(folder):
        lengths = collections.defaultdict(list)
        for sample in samples:
            lengths[8 - sample['prompt'].count('..')].append(len(sample['tokens']))
        n = sorted(lengths)
        swaps.plot(n, [statistics.mean(lengths[i]) for i in n], marker='o', label=label)
    swaps.set(title='2: it answers at once; 10: it thinks', xlabel='swaps in the prompt',
              ylim=(0, None))
    swaps.legend()


if __name__ == '__main__':
    sys.excepthook = show_error
    pictures = {f.__name__: f for f in (step, curve, guess, orders, think)}
    name, *folders = sys.argv[1:] or ['']
    assert name in pictures and folders, f"expected one of {[*pictures]}, and folders of runs"
    for folder in folders:
        must_be_run(folder)
    figure = Figure(figsize=(12, 3.6))
    pictures[name](figure, *folders)
    # twice as wide as pages of GitHub, for fine screens
    figure.savefig(f'docs/assets/{name}.png', dpi=1760 / figure.get_figwidth())
