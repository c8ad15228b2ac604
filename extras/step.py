"""Draw one step of GRPO: a prompt, its k completions, their rewards, their advantages, and how much
likelier each one is after the step.

    python -m extras.step step.png config/grpo_config.py --rewards="{'verify': 1.0}" \\
        --kl_beta=0 --entropy_coef=0 --group_size=6 --seed=31"""
from matplotlib.figure import Figure

from extras.curves import save
from extras.explain import one_step
from run.command import fail, words_of

GOOD = '#2a7f3f'
BAD = '#b3352c'


def draw(path, words):
    """Draw the first step of a run, with one prompt, into a file."""
    _, r, scores, advantages, before, after, _ = one_step(words)
    reward = scores['reward'][0].tolist()
    advantage = advantages[0].tolist()
    # probabilities (k,) of whole completions, in percent
    p, p_after = [100 * stats.logp.sum(1).exp() for stats in (before, after)]
    order = sorted(range(len(reward)), key=lambda j: (-reward[j], -p[j]))
    figure = Figure(figsize=(9.5, 0.7 + 0.38 * len(reward)))
    ax = figure.subplots()
    ax.set(xlim=(0, 10), ylim=(len(reward) - 0.4, -1.3))
    ax.axis('off')
    middle = (len(reward) - 1) / 2
    middled = {'ha': 'center', 'va': 'center'}
    typed = {'family': 'monospace', 'size': 12, **middled}
    for x, title in ((0.9, 'prompt'), (3.2, 'k = {} completions'), (5, 'reward'),
                     (6.7, 'reward - mean, scaled:\nadvantage'),
                     (9, 'probability, %,\nbefore and after the step')):
        ax.text(x, -0.95, title.format(len(reward)), color='0.35', **middled)
    ax.text(0.9, middle, r.cases()[0]['prompt'], **typed,
            bbox={'boxstyle': 'round', 'facecolor': '0.93', 'edgecolor': 'none'})
    for y, j in enumerate(order):
        color = GOOD if advantage[j] > 0 else BAD
        ax.annotate('', (2.3, y), (1.75, middle), arrowprops={'arrowstyle': '->', 'color': '0.6'})
        ax.text(3.2, y, r.cases()[j]['completion'], **typed)
        ax.text(5, y, f'{reward[j]:g}', size=12, **middled)
        ax.barh(y, advantage[j] / 2, 0.6, left=6.7, color=color)
        ax.text(8.55, y, f'{p[j]:.1f}', ha='right', va='center')
        ax.annotate('', (9.2, y), (8.75, y), arrowprops={'arrowstyle': '->', 'color': color})
        ax.text(9.85, y, f'{p_after[j]:.1f}', ha='right', va='center', color=color)
    ax.plot([6.7, 6.7], [-0.45, len(reward) - 0.55], color='0.6', linewidth=0.8)
    save(figure, path)


if __name__ == "__main__":
    path, *words = words_of(__doc__, 1)
    if not path.endswith('.png'):
        fail("expected FILE.png, and then config files and flags of train_grpo.py")
    draw(path, words)
