"""Draw a picture of the pages into docs/assets/: a first step, or what finished runs did.

    python -m extras.studies.pictures step --rewards="{'verify': 1.0}" --kl_beta=0 \\
        --entropy_coef=0 --group_size=6 --seed=31
    python -m extras.studies.pictures think out-think out-think-cost"""
import collections
import copy
import statistics

import torch
from matplotlib.figure import Figure

import train_grpo as grpo
from extras.curves import points_of, save
from model import make_optimizers
from rollout import token_stats
from run.command import words_of
from sample import open_run


def step(figure, *words):
    """A prompt, its k completions, their rewards and advantages, and how likely each is before and
    after one step."""
    run = grpo.set_up([*words, '--batch_size=1', '--gradient_accumulation_steps=1'])
    start = copy.deepcopy(run.policy)
    optimizers = make_optimizers(run.policy, grpo.optimizer, grpo.weight_decay)
    prompts = grpo.get_prompts(run.data, 0)
    micro_steps, scores, advantages = grpo.collect(run.policy, run.scorer, prompts)
    grpo.learn(run.policy, run.scorer.reference, optimizers, micro_steps, advantages,
               grpo.learning_rate, grpo.kl_beta)
    [(_, r)] = micro_steps
    with torch.no_grad():                       # (k,) of whole completions, in percent
        p, p_after = [100 * token_stats(r, network).logp.sum(1).exp()
                      for network in (start, run.policy)]
    k = len(p)
    ax = figure.subplots()
    ax.set(xlim=(0, 10), ylim=(k - 0.4, -1.3))
    ax.axis('off')
    titles = ('prompt', f'k = {k} completions', 'reward', 'reward - mean, scaled:\nadvantage',
              'probability, %,\nbefore and after the step')
    for x, title in zip((0.9, 3.2, 5, 6.7, 9), titles):
        ax.text(x, -0.95, title, color='0.35', ha='center', va='center')
    ax.text(0.9, (k - 1) / 2, r.cases()[0]['prompt'], family='monospace', ha='center', va='center')
    for y, j in enumerate((-scores['reward'][0] - p / 1000).argsort().tolist()):   # best, likeliest
        color = '#2a7f3f' if advantages[0, j] > 0 else '#b3352c'
        ax.annotate('', (2.3, y), (1.75, (k - 1) / 2),
                    arrowprops={'arrowstyle': '->', 'color': '0.6'})
        ax.text(3.2, y, r.cases()[j]['completion'], family='monospace', ha='center', va='center')
        ax.text(5, y, f"{scores['reward'][0, j]:g}", ha='center', va='center')
        ax.barh(y, advantages[0, j] / 2, 0.6, left=6.7, color=color)
        ax.text(9, y, f'{p[j]:.1f}   →   {p_after[j]:.1f}', ha='center', va='center', color=color)


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
            line = f'C{i}o' + {'before': ':', 'after': '-'}[label]
            swaps_ax.plot(*zip(*means.items()), line, label=f'{folder}, {label}')
    steps_ax.set(title='right answers to held-out prompts', xlabel='step', ylim=(0, 1.05))
    swaps_ax.set(title='2 tokens: it answers at once; 10: it thinks first', ylim=(0, 11.5),
                 xlabel='swaps in the prompt', ylabel='tokens per completion')
    steps_ax.legend(loc='lower right')
    swaps_ax.legend(loc='center right')


if __name__ == "__main__":
    name, *words = words_of(__doc__, 2)
    figure = Figure(figsize=(10.5, 3.6))
    {'step': step, 'think': think}[name](figure, *words)
    save(figure, f'docs/assets/{name}.png')
