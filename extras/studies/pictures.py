"""Draw a picture of the pages into docs/assets/: a first step, or what finished runs did.

    python -m extras.studies.pictures step --rewards="{'verify': 1.0}" --kl_beta=0 \\
        --entropy_coef=0 --group_size=6 --seed=31
    python -m extras.studies.pictures orders out-order out-left out-confident
    python -m extras.studies.pictures guess out-guess
    python -m extras.studies.pictures page out-order        # needs chromium
    python -m extras.studies.pictures think out-think out-think-cost"""
import collections
import copy
import statistics
import subprocess
from pathlib import Path

import torch
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from extras.words import words_of
import train_grpo as grpo
from extras.compare import save
from extras.page import points_of
from extras.studies import game
from model import make_optimizers
from rollout import token_stats
from sample import open_run


def step(figure, *words):
    """A prompt, its k completions, their rewards and advantages, and how likely each is before and
    after one step."""
    run = grpo.set_up([*words, '--batch_size=1', '--gradient_accumulation_steps=1'])
    start = copy.deepcopy(run.policy)
    optimizers = make_optimizers(run.policy, grpo.optimizer, grpo.weight_decay)
    prompts = grpo.get_prompts(run.data, 0)
    micro_steps, scores, advantages = grpo.collect(run.policy, run.scorer, prompts)
    grpo.learn(run.policy, run.scorer, optimizers, micro_steps, advantages,
               grpo.learning_rate, grpo.kl_beta)
    [(_, r)] = micro_steps
    with torch.no_grad():                       # (k,) of whole completions, in percent
        p = 100 * token_stats(r, start).logp.sum(1).exp()
        p_after = 100 * token_stats(r, run.policy).logp.sum(1).exp()
    k = len(p)
    ax = figure.subplots()
    ax.set(xlim=(0, 10), ylim=(k - 0.4, -1.3))
    ax.axis('off')

    def write(x, y, text, **style):
        ax.text(x, y, text, ha='center', va='center', **style)

    titles = {
        0.9: 'prompt',
        3.2: f'k = {k} completions',
        5: 'reward',
        6.7: 'reward - mean, scaled:\nadvantage',
        9: 'probability, %,\nbefore and after the step',
    }
    for x, title in titles.items():
        write(x, -0.95, title, color='0.35')
    cases = r.cases()
    middle = (k - 1) / 2
    write(0.9, middle, cases[0]['prompt'], family='monospace')
    best_first = (-scores['reward'][0] - p / 1000).argsort().tolist()       # then the likeliest
    for y, j in enumerate(best_first):
        color = '#2a7f3f' if advantages[0, j] > 0 else '#b3352c'
        ax.annotate('', (2.3, y), (1.75, middle), arrowprops={'arrowstyle': '->', 'color': '0.6'})
        write(3.2, y, cases[j]['completion'], family='monospace')
        write(5, y, f"{scores['reward'][0, j]:g}")
        ax.barh(y, advantages[0, j] / 2, 0.6, left=6.7, color=color)
        write(9, y, f'{p[j]:.1f}   →   {p_after[j]:.1f}', color=color)


ORDERS = {
    'left': ('left to right, one blank a pass', '--'),
    'confident': ('the surest blank first, one a pass', ':'),
    'random': ('in random order, one blank a pass', '-.'),
    'learned': ('the policy decides: learned', '-'),
}


def orders(figure, folder, *others):
    """How often each blank was filled in each pass of the first run, before and after it; and the
    curves of all runs."""
    before, after, curves = figure.subplots(1, 3, width_ratios=(1, 1, 1.3))
    run, networks = open_run(folder)
    for ax, (label, network) in zip((before, after), networks.items()):
        r = grpo.act(network, grpo.held_out_prompts(run.data))
        n_blanks = int(r.lengths.max())
        pass_of = r.pass_of[r.lengths == n_blanks]
        pass_of = pass_of[pass_of >= 0].view(-1, n_blanks)
        passes = torch.arange(grpo.n_fill_steps)
        shares = (pass_of == passes[:, None, None]).float().mean(1)         # (passes, blanks)
        # the root makes small shares visible
        image = ax.pcolormesh(shares, cmap='Greys', norm=PowerNorm(0.5, vmin=0, vmax=1))
        ax.invert_yaxis()                       # the first pass is above
        ax.set_xticks(torch.arange(n_blanks) + 0.5, range(1, n_blanks + 1))
        ax.set_yticks(passes + 0.5, range(1, len(passes) + 1))
        ax.set(title=f'{label} GRPO', xlabel='blank, from left to right', ylabel='filled in pass')
    figure.colorbar(image, ax=after, label='share of the completions')
    for folder in (folder, *others):
        open_run(folder)                        # sets the knobs
        label, style = ORDERS[grpo.fill_order]
        steps, values = points_of(folder, 'step', 'eval/verify')
        values = [100 * value for value in values]
        curves.plot(steps, values, style, linewidth=2, label=label)
    curves.set(title='right answers to held-out prompts, %', xlabel='step', ylim=(0, 102))
    curves.legend(fontsize='small', loc='lower right', bbox_to_anchor=(1, 0.26))


def page(path, folder):
    """The page of a run, as a browser shows it."""
    subprocess.run(['chromium', '--headless', '--no-sandbox', '--hide-scrollbars',
                    '--window-size=1280,860', '--virtual-time-budget=3000', f'--screenshot={path}',
                    Path(folder, 'run.html').resolve().as_uri()], check=True)


def think(figure, *folders):
    """How runs of the game of cups learn, and how many tokens their networks spend on a prompt."""
    steps_ax, swaps_ax = figure.subplots(1, 2)
    for i, folder in enumerate(folders):
        steps_ax.plot(*points_of(folder, 'step', 'eval/verify'), label=folder)
        run, networks = open_run(folder)
        for label, network in networks.items():
            r = grpo.act(network, grpo.held_out_prompts(run.data))
            tokens = collections.defaultdict(list)          # {number of swaps: tokens}
            for case, length in zip(r.cases(), r.lengths.tolist()):
                tokens[8 - case['prompt'].count('..')].append(length)
            means = {n: statistics.mean(tokens[n]) for n in sorted(tokens)}
            print(f'{folder}, {label}:', *[f'{mean:.1f}' for mean in means.values()])
            line = {'before': ':', 'after': '-'}[label]
            swaps_ax.plot(*zip(*means.items()), f'C{i}o{line}', label=f'{folder}, {label}')
    steps_ax.set(title='right answers to held-out prompts', xlabel='step', ylim=(0, 1.05))
    steps_ax.legend(loc='lower right')
    swaps_ax.set(title='2 tokens: it answers at once; 10: it thinks first', ylim=(0, 11.5),
                 xlabel='swaps in the prompt', ylabel='tokens per completion')
    swaps_ax.legend(loc='center right')


if __name__ == "__main__":
    name, *words = words_of(__doc__, 2)
    path = f'docs/assets/{name}.png'
    if name == 'page':
        page(path, *words)
    elif name == 'guess':
        game.draw(*words)
    else:
        figure = Figure(figsize=(10.5, 3.6))
        {'step': step, 'orders': orders, 'think': think}[name](figure, *words)
        save(figure, path)
