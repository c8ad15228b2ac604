"""Draw a run of config/grpo_guess.py into docs/assets/guess.png: which letter is guessed at which
turn, before and after the run (in one of fifty games or more); one game; how many games are won.

    python -m extras.studies.pictures guess out-guess"""
import collections
import json
import re
from pathlib import Path

from matplotlib.figure import Figure

import train_grpo as grpo
from data.guess import LETTERS
from sample import open_run

BLUE = '#2f6fb0'
GREEN = '#2a9d5c'


def tree(ax, games):
    """Draw how often each letter is guessed at each turn, as a disc, and which letter comes after
    it, as a line with what the world says in between. games: strings of guesses."""
    for turn in range(4):
        for pair, share in shares(game[turn:turn + 2] for game in games):
            if len(pair) == 2:
                line(ax, turn, *pair, share)
        for letter, share in shares(game[turn:turn + 1] for game in games):
            if letter and share > 0.02:
                disc(ax, turn, letter, share)
    ax.set(xlim=(-0.8, 14.8), ylim=(4, -0.5))
    ax.axis('off')


def shares(strings):
    """Return pairs of a string and its share."""
    counts = collections.Counter(strings)
    return [(string, n / counts.total()) for string, n in counts.items()]


def line(ax, turn, letter, following, share):
    x = LETTERS.index(letter)
    to = LETTERS.index(following)
    alpha = min(1, 0.15 + 8 * share)
    ax.plot([x, to], [turn, turn + 1], color=BLUE, linewidth=9 * share ** 0.8, alpha=alpha,
            zorder=1)
    if share > 0.1:
        said, side = ('<', 'right') if to < x else ('>', 'left')
        ax.text((x + to) / 2, turn + 0.42, said, fontsize=15, weight='bold', color=GREEN,
                ha=side, va='bottom')


def disc(ax, turn, letter, share):
    x = LETTERS.index(letter)
    for color, alpha in (('white', 1), (BLUE, min(1, 0.3 + 5 * share))):
        ax.scatter(x, turn, s=1400 * share ** 0.6, color=color, alpha=alpha, linewidth=0, zorder=2)
    ax.text(x, turn, letter, color='white', fontsize=9 + 8 * share, ha='center',
            va='center_baseline', zorder=3)


def draw(folder):
    figure = Figure(figsize=(12, 3.5), layout='constrained')
    *trees, curve = figure.subplots(1, 3, width_ratios=(4, 4, 2.2))
    won = {}                                    # {step: %}
    for text in Path(folder, 'log.jsonl').read_text().splitlines():
        numbers = json.loads(text)
        if 'eval/verify' in numbers:
            won[numbers['step']] = 100 * numbers['eval/verify']
    curve.plot(*zip(*won.items()), color=GREEN, linewidth=2)
    curve.set(title='games won, %', xlabel='step', ylim=(0, 103))
    curve.spines[['top', 'right']].set_visible(False)
    run, networks = open_run(folder)
    prompts = run.data.prompts('val', grpo.eval_prompts, 32, seed=0)
    ends = (won[0], won[max(won)])
    for ax, (label, network), end in zip(trees, networks.items(), ends):
        cases = grpo.act(network, prompts).cases()
        tree(ax, [re.match(f'[{LETTERS}]{{0,4}}', case['sampled'])[0] for case in cases])
        ax.set_title(f'{label}: {end:.0f} % of the games are won')
        game, *_ = [case['completion'] for case in cases if case['secret'] == 'f']
        turns = '   '.join(re.findall('..?', game))
        ax.text(7, 3.75, f'a game, its secret is f:   {turns}', fontsize=13, color=GREEN,
                ha='center', va='center')
    for turn in range(4):
        trees[0].text(-2.8, turn, f'guess {turn + 1}', color='0.35', va='center')
    figure.savefig('docs/assets/guess.png', dpi=110)
