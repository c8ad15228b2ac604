"""Draws assets/hacking.png from runs with two kinds of judge and several weights of the KL: what
they were rewarded for, and what is true.

    python extras/hacking.py out-likelihood-1e-6-2 out-likelihood-0.5-2 out-classifier-1e-6-2 ..."""
from curves import Figure, draw, runs, save

if __name__ == "__main__":
    figure = Figure(figsize=(10.5, 3.6), layout='constrained')
    left, right = figure.subplots(1, 2)
    for _, knobs, log in runs():
        judge = 'classifier' if 'classifier' in knobs['judge_recipe'] else 'likelihood'
        how = {'color': {'classifier': 'C3', 'likelihood': 'C0'}[judge],
               'style': '-' if knobs['kl_beta'] < 0.01 else '--' if knobs['kl_beta'] < 0.2 else ':'}
        label = f"{judge}, KL x {knobs['kl_beta']:g}"
        lines = [line for line in log if 'eval/reward' in line]
        for line in lines:
            # Judges differ in scale: 0 is what the start gets, 1 the deviation of rewards there.
            line['gain'] = (line['eval/reward'] - lines[0]['eval/reward']) / log[1]['std_reward']
        draw(left, 'gain', lines, **how)
        draw(right, 'eval/verify', lines, label=label, **how)
        for line in (lines[0], lines[-1]):
            print(f"{label}: step {line['step']}, reward {line['eval/reward']:.3f}, true "
                  f"{line['eval/verify']:.1%}, AUC {line['eval/judge_auc']:.3f}")
    left.set_title('reward gained', loc='left')
    left.set_ylabel('deviations of rewards at the start')
    right.set_title('held-out equations that are true', loc='left')
    right.set_ylim(0, 1)
    right.yaxis.set_major_formatter('{x:.0%}')
    figure.supxlabel('step')
    figure.legend(*right.get_legend_handles_labels(), frameon=False, loc='outside right center')
    save(figure, 'assets/hacking.png')
