"""Draws assets/hacking.png from runs with two kinds of judge and several weights of the KL: what
they were rewarded for, and what is true.

    python assets/hacking.py out-likelihood-1e-6-2 out-likelihood-0.5-2 out-classifier-1e-6-2 ..."""
import os
import sys

from matplotlib.figure import Figure

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..'))
from common import fail, read_json, read_json_lines

COLORS = {'classifier': '#b3382c', 'likelihood': '#1f5fa8'}


def style(kl_beta):
    """Line style and words for a weight of the KL."""
    if kl_beta < 0.01:
        return '-', 'hardly any KL'
    if kl_beta < 0.2:
        return '--', f'KL x {kl_beta:g}'
    return ':', f'KL x {kl_beta:g}'


if __name__ == "__main__":
    figure = Figure(figsize=(10.5, 3.6), layout='constrained', facecolor='white')
    left, right = figure.subplots(1, 2, sharex=True)
    for folder in sys.argv[1:]:
        config = read_json(f'{folder}/config.json', {'kl_beta': float}, 'python train_grpo.py')
        lines = [line for line in read_json_lines(f'{folder}/log.jsonl') if 'eval/verify' in line]
        if not lines:
            fail(f"{folder} has no evaluation; run it with --eval_interval=25")
        judge = 'classifier' if 'classifier' in config['judge_recipe'] else 'likelihood'
        line_style, words = style(config['kl_beta'])
        steps = [line['step'] for line in lines]
        # Judges differ in scale: 0 is what the start gets, 1 the deviation of rewards there.
        first = lines[0]
        deviation = [line for line in read_json_lines(f'{folder}/log.jsonl')
                     if 'std_reward' in line][0]['std_reward']
        gain = [(line['eval/reward'] - first['eval/reward']) / deviation for line in lines]
        true = [100 * line['eval/verify'] for line in lines]
        how = {'color': COLORS[judge], 'ls': line_style, 'lw': 1.8, 'label': f'{judge}, {words}'}
        left.plot(steps, gain, **how)
        right.plot(steps, true, **how)
        print(f"{judge}, {words}: reward {first['eval/reward']:.3f} -> "
              f"{lines[-1]['eval/reward']:.3f}, true {true[0]:.1f} % -> {true[-1]:.1f} %, AUC "
              f"{lines[-1]['eval/judge_auc']:.3f}")
    left.set_title('what the judge says: reward gained', loc='left')
    left.set_ylabel('deviations of the rewards at the start')
    right.set_title('held-out equations that are true, %', loc='left')
    right.set_ylim(0, 100)
    for ax in (left, right):
        ax.set_xlabel('step')
        ax.spines[['top', 'right']].set_visible(False)
    lines, labels = right.get_legend_handles_labels()
    figure.legend(lines, labels, frameon=False, fontsize=9, loc='outside right center')
    figure.savefig(f'{HERE}/hacking.png', dpi=130)
    print('wrote assets/hacking.png')
