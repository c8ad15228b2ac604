"""Draw a picture of the pages from finished runs.

    python -m extras.figures passes out-passes-1 out-passes-2 ...
    python -m extras.figures hacking out-likelihood out-classifier-1e-6 ...
    python -m extras.figures think out-think out-think-cost"""
import collections
import statistics

import train_grpo as grpo
from extras.curves import Figure, points_of, read_json, save
from run.command import words_of
from sample import open_run


def passes(figure, *folders):
    """Draw truth against variety: an arrow for each run from the reference to the policy."""
    ax = figure.subplots()
    for folder in folders:
        n = read_json(folder, 'config.json')['n_fill_steps']
        start, *_, end = zip(*points_of(folder, 'eval/distinct', 'eval/verify'))
        ax.annotate('', end, start, arrowprops={'arrowstyle': '-|>', 'color': f'C{n}'})
        ax.plot(*start, 'o', color=f'C{n}', mfc='white')
        ax.annotate(f'passes: {n}', start, (8, -4), color=f'C{n}', textcoords='offset points')
    ax.axis((0.2, 0.8, 0.3, 1.0))
    ax.set_xlabel('variety: distinct completions of four (0.25: always the same one)')
    ax.set_ylabel('held-out equations that are true')


def hacking(figure, *folders):
    """Draw the gain in reward and the share of true equations, a line for each run."""
    reward_ax, verify_ax = figure.subplots(1, 2)
    for folder in folders:
        steps, rewards = points_of(folder, 'step', 'eval/reward')
        start, *_, end = rewards
        gains = [(reward - start) / (end - start) for reward in rewards]    # judges differ in scale
        reward_ax.plot(steps, gains)
        verify_ax.plot(*points_of(folder, 'step', 'eval/verify'), label=folder)
    reward_ax.set_title('reward gained: 0 at the start, 1 at the end')
    verify_ax.set(title='held-out equations that are true', ylim=(0, 1))
    figure.supxlabel('step')
    figure.legend(loc='outside right center')


def think(figure, folder, cost_folder):
    """Draw how a run learns to think, and how many tokens each network spends on a prompt."""
    steps_ax, swaps_ax = figure.subplots(1, 2)
    steps_ax.plot(*points_of(folder, 'step', 'eval/verify'), label='right answers (left axis)')
    _, greedy = points_of(folder, 'step', 'greedy/verify')
    steps_ax.axhline(greedy[0], linestyle='--', label='right at the start, likeliest tokens')
    steps_ax.plot([], [], 'C1', label='tokens (right axis)')
    steps_ax.set(title='GRPO: answers become right, and long', xlabel='step', ylim=(0, 1.05))
    steps_ax.set_ylabel('share of right answers', color='C0')
    steps_ax.legend(loc='lower right')
    tokens_ax = steps_ax.twinx()
    tokens_ax.plot(*points_of(folder, 'step', 'eval/tokens'), 'C1')
    tokens_ax.set_ylim(0, 11.5)
    tokens_ax.set_ylabel('tokens per completion', color='C1')
    _, cost_networks = open_run(cost_folder)
    run, networks = open_run(folder)            # the last one opened says how to sample
    # other colors than those of the left panel
    for network, color, label in (
            (networks['before'], 'C7', 'start'),
            (networks['after'], 'C2', 'after GRPO'),
            (cost_networks['after'], 'C3', 'after GRPO, each token costs')):
        r = grpo.act(network, grpo.held_out_prompts(run.data))
        tokens = collections.defaultdict(list)              # {number of swaps: tokens}
        for case, length in zip(r.cases(), r.lengths.tolist()):
            tokens[8 - case['prompt'].count('..')].append(length)
        points = [(n, statistics.mean(tokens[n])) for n in sorted(tokens)]
        swaps_ax.plot(*zip(*points), 'o-', color=color, label=label)
    for length, y, text in ((2, 1.2, 'answers at once, 2 tokens: "d" and the end'),
                            (10, 10.3, 'thinks, 10 tokens: ":bbdddddd" and the end')):
        swaps_ax.axhline(length, color='0.7', linestyle=':', zorder=0)
        swaps_ax.text(0.8, y, text, color='0.4')
    swaps_ax.set(title='with a cost per token: think less where it is easy', ylim=(0, 11.5),
                 xlabel='swaps in the prompt', ylabel='tokens per completion')
    swaps_ax.legend(loc='center right')


if __name__ == "__main__":
    name, *folders = words_of(__doc__, 2)
    figure = Figure(figsize=(10.5, 3.9))
    {'passes': passes, 'hacking': hacking, 'think': think}[name](figure, *folders)
    save(figure, f'docs/assets/{name}.png')
