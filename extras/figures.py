"""Draw a picture of the pages from finished runs.

    python -m extras.figures passes out-passes-1 out-passes-2 ...
    python -m extras.figures hacking out-likelihood out-classifier-1e-6 ...
    python -m extras.figures think out-think out-think-cost
    python -m extras.figures antibodies out-antibodies out-antibodies-0.2 ..."""
import collections
import json
import pathlib
import statistics
import sys

import train_grpo as grpo
from extras.curves import Figure, points_of, read_log
from sample import open_run


def passes(figure, *folders):
    """Draw truth against variety: an arrow for each run from the reference to the policy."""
    ax = figure.subplots()
    for folder in folders:
        with open(f'{folder}/config.json', encoding='utf-8') as file:
            n = json.load(file)['n_fill_steps']
        lines = [line for line in read_log(folder) if 'eval/verify' in line]
        ends = [(line['eval/distinct'], line['eval/verify']) for line in (lines[0], lines[-1])]
        ax.annotate('', ends[1], ends[0], arrowprops={'arrowstyle': '-|>', 'color': f'C{n}'})
        ax.plot(*ends[0], 'o', color=f'C{n}', mfc='white')
        ax.annotate(f'passes: {n}', ends[0], (8, -4), color=f'C{n}', textcoords='offset points')
    ax.axis((0.2, 0.8, 0.3, 1.0))
    ax.set_xlabel('variety: distinct completions of four (0.25: always the same one)')
    ax.set_ylabel('held-out equations that are true')


def hacking(figure, *folders):
    """Draw the gain in reward and the share of true equations, a line for each run."""
    reward_ax, verify_ax = figure.subplots(1, 2)
    for i, folder in enumerate(folders):
        style = f'C{i}'
        lines = [line for line in read_log(folder) if 'eval/verify' in line]
        start = lines[0]['eval/reward']
        scale = lines[-1]['eval/reward'] - start        # judges differ in scale
        gains = [line | {'gain': (line['eval/reward'] - start) / scale} for line in lines]
        reward_ax.plot(*points_of(gains, 'step', 'gain'), style)
        verify_ax.plot(*points_of(lines, 'step', 'eval/verify'), style, label=folder)
    reward_ax.set_title('reward gained: 0 at the start, 1 at the end', loc='left')
    verify_ax.set_title('held-out equations that are true', loc='left')
    verify_ax.set_ylim(0, 1)
    figure.supxlabel('step')
    figure.legend(frameon=False, loc='outside right center')


def think(figure, folder, cost_folder):
    """Draw how a run learns to think, and how many tokens each network spends on a prompt."""
    steps_ax, swaps_ax = figure.subplots(1, 2)
    lines = [line for line in read_log(folder) if 'eval/verify' in line]
    steps_ax.plot(*points_of(lines, 'step', 'eval/verify'), 'C0', label='right answers (left axis)')
    steps_ax.axhline(lines[0]['eval/verify_greedy'], color='C0', linestyle='--',
                     label='right at the start, likeliest tokens')
    steps_ax.plot([], [], 'C1', label='tokens (right axis)')
    steps_ax.set_ylim(0, 1.05)
    tokens_ax = steps_ax.twinx()
    tokens_ax.plot(*points_of(lines, 'step', 'eval/tokens'), 'C1')
    tokens_ax.set_ylim(0, 11.5)
    steps_ax.set_title('GRPO: answers become right, and long', loc='left')
    steps_ax.set_xlabel('step')
    steps_ax.set_ylabel('share of right answers', color='C0')
    tokens_ax.set_ylabel('tokens per completion', color='C1')
    steps_ax.legend(frameon=False, loc='lower right')
    colors = iter(('C7', 'C2', 'C3'))           # others than those of the left panel
    for name, labels in ((folder, {'before': 'start', 'after': 'after GRPO'}),
                         (cost_folder, {'after': 'after GRPO, each token costs'})):
        run, networks = open_run(name)
        for network, label in labels.items():
            r = grpo.act(networks[network], run.held_out)
            tokens = collections.defaultdict(list)          # {number of swaps: tokens}
            for case, length in zip(r.cases(), r.lengths.tolist()):
                tokens[8 - case['prompt'].count('..')].append(length)
            points = [(n, statistics.mean(tokens[n])) for n in sorted(tokens)]
            swaps_ax.plot(*zip(*points), 'o-', color=next(colors), label=label)
    for length, y, text in ((2, 1.2, 'answers at once, 2 tokens: "d" and the end'),
                            (10, 10.3, 'thinks, 10 tokens: ":bbdddddd" and the end')):
        swaps_ax.axhline(length, color='0.7', linestyle=':', zorder=0)
        swaps_ax.text(0.8, y, text, color='0.4')
    swaps_ax.set_title('with a cost per token: think less where it is easy', loc='left')
    swaps_ax.set_ylim(0, 11.5)
    swaps_ax.set_xlabel('swaps in the prompt')
    swaps_ax.set_ylabel('tokens per completion')
    swaps_ax.legend(frameon=False, loc='center right')


def antibodies(figure, *folders):
    """Draw motifs of loops before and after the first run, and how natural loops are in all runs.
    extras.antibodies has measured both."""
    motifs_ax, natural_ax = figure.subplots(1, 2)
    measured = [json.loads(pathlib.Path(folder, 'loops.json').read_text()) for folder in folders]
    random, start, after = measured[0].values()
    motifs = list(after['motifs'])
    for shift, label, group in ((-0.2, 'start', start), (0.2, 'after GRPO', after)):
        motifs_ax.barh([place + shift for place in range(len(motifs))],
                       group['motifs'].values(), 0.4, label=label)
    motifs_ax.set_yticks(range(len(motifs)), motifs)
    motifs_ax.invert_yaxis()
    motifs_ax.set_title('share of held-out loops with a motif', loc='left')
    motifs_ax.legend(frameon=False)
    lines = {'random letters': random, 'start': start}
    for folder, run in zip(folders, measured):
        config = json.loads(pathlib.Path(folder, 'config.json').read_text())
        lines[f"kl_beta = {config['kl_beta']}"] = run['after']
    for color, (label, group) in zip(('0.6', 'C0', 'C1', 'C2', 'C3'), lines.items()):
        edges = [x / 2 - 6 for x in range(13)]
        counts = [sum(edge <= value < edge + 0.5 for value in group['likelihood'])
                  for edge in edges]
        natural_ax.plot([edge + 0.25 for edge in edges], counts, 'o-', ms=3, color=color,
                        label=label)
    natural_ax.set_ylim(0, 1.5 * natural_ax.get_ylim()[1])
    natural_ax.set_ylabel(f"number of loops, of {len(start['likelihood'])}")
    natural_ax.set_xlabel('log-likelihood of a loop under the frozen network, nats a letter')
    natural_ax.set_title('how natural the loops are', loc='left')
    natural_ax.legend(frameon=False, loc='upper center', ncols=2)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    name, *folders = sys.argv[1:]
    figure = Figure(figsize=(10.5, 3.9), layout='constrained')
    {'passes': passes, 'hacking': hacking, 'think': think,
     'antibodies': antibodies}[name](figure, *folders)
    figure.savefig(f'assets/{name}.png', dpi=130)
    print(f"wrote assets/{name}.png")
