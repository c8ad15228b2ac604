"""Draws assets/passes.png from finished runs with different numbers of passes: variety against
truth, an arrow per number of passes from the reference to the policy.

    python assets/passes.py out-passes-1-1 out-passes-1-2 out-passes-2-1 ..."""
import os
import sys

from matplotlib.figure import Figure

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..'))
from common import fail, read_json, read_json_lines


def last_evaluation(folder):
    """Number of passes, and the last evaluation of a run, {key: number}."""
    config = read_json(f'{folder}/config.json', {'n_fill_steps': int}, 'python train_grpo.py')
    lines = [line for line in read_json_lines(f'{folder}/log.jsonl') if 'eval/verify' in line]
    if not lines:
        fail(f"{folder} has no evaluation with verify; run it with --eval_interval=100")
    return config['n_fill_steps'], lines[-1]


def mean(lines, key):
    return sum(line[key] for line in lines) / len(lines)


if __name__ == "__main__":
    runs = {}                                   # {number of passes: evaluations, one a seed}
    for folder in sys.argv[1:]:
        n, line = last_evaluation(folder)
        runs.setdefault(n, []).append(line)

    figure = Figure(figsize=(7, 4.2), layout='constrained')
    ax = figure.subplots()
    print('passes   reference: verify, distinct, pass@4   policy: verify, distinct, pass@4, KL')
    for i, n in enumerate(sorted(runs)):
        lines = runs[n]
        color = f'C{i}'
        start = (mean(lines, 'eval/ref_distinct'), mean(lines, 'eval/ref_verify'))
        end = (mean(lines, 'eval/distinct'), mean(lines, 'eval/verify'))

        # An arrow from the mean reference to the mean policy, and a dot for each seed.
        ax.annotate('', end, start, arrowprops={'arrowstyle': '-|>', 'color': color, 'lw': 1.8})
        ax.plot(*start, 'o', color=color, mfc='white')
        for line in lines:
            ax.plot(line['eval/distinct'], line['eval/verify'], '.', color=color)
        name = '1 pass' if n == 1 else f'{n} passes'
        ax.annotate(name, start, xytext=(8, -4), color=color, textcoords='offset points')

        reference = f"{start[1]:.3f} {start[0]:.2f} {mean(lines, 'eval/ref_pass@4'):.3f}"
        policy = f"{end[1]:.3f} {end[0]:.2f} {mean(lines, 'eval/pass@4'):.3f}"
        kl = mean(lines, 'eval/kl')
        print(f"{n:6}   {reference}   {policy} {kl:.3f}   ({len(lines)} seeds)")
    ax.set_xlabel('variety: different completions among four (0.25: always the same one)')
    ax.set_ylabel('held-out equations that are true')
    ax.set_xlim(0.2, 0.8)
    ax.set_ylim(0.4, 1.0)
    ax.set_title('from the reference (circle) to the policy (arrow)', loc='left')
    ax.spines[['top', 'right']].set_visible(False)
    figure.savefig(f'{HERE}/passes.png', dpi=120)
    print('wrote assets/passes.png')
