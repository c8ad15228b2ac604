"""Draws assets/idea.png: what one step of GRPO does to one prompt.

    python assets/idea.py"""
import os

from matplotlib.figure import Figure

HERE = os.path.dirname(os.path.abspath(__file__))
COMPLETIONS = [('11+36=047', -0.9), ('18+30=047', -1.7), ('16+32=057', -2.5), ('11+35=047', -1.5)]
UP, DOWN, INK = '#1a7f37', '#b3382c', '#24292f'


def box(ax, x, y, text, color=INK, width=0.17, height=0.13, fill='#f6f8fa', mono=True):
    ax.add_patch(PATCH((x - width / 2, y - height / 2), width, height, fc=fill, ec=color, lw=1.4,
                       boxstyle='round,pad=0,rounding_size=0.02'))
    ax.text(x, y, text, ha='center', va='center', color=color, fontsize=13,
            family='monospace' if mono else 'sans-serif')


def arrow(ax, start, end, color=INK):
    ax.annotate('', end, start, arrowprops={'arrowstyle': '-|>', 'color': color, 'lw': 1.5})


def label(ax, x, y, text, color=INK, size=12):
    ax.text(x, y, text, ha='center', va='center', color=color, fontsize=size)


if __name__ == "__main__":
    from matplotlib.patches import FancyBboxPatch as PATCH
    figure = Figure(figsize=(11, 3.9), layout='constrained', facecolor='white')
    ax = figure.subplots()
    ax.set_axis_off()
    ax.set_xlim(0, 1.06)
    ax.set_ylim(0, 1.02)

    for x, text in ((0.09, 'prompt'), (0.36, 'completions'), (0.62, 'reward'),
                    (0.86, 'advantage = reward - mean')):
        label(ax, x, 0.97, text, size=13)
    box(ax, 0.09, 0.5, '1_+3_=__7')
    label(ax, 0.09, 0.34, 'the policy fills all\nblanks in one pass,\nk times', size=11)
    mean = sum(reward for _, reward in COMPLETIONS) / len(COMPLETIONS)
    for i, (text, reward) in enumerate(COMPLETIONS):
        y = 0.83 - 0.215 * i
        advantage = reward - mean
        color = UP if advantage > 0 else DOWN
        arrow(ax, (0.18, 0.5), (0.268, y))
        box(ax, 0.36, y, text)
        arrow(ax, (0.452, y), (0.575, y))
        label(ax, 0.62, y, f'{reward:.1f}')
        arrow(ax, (0.665, y), (0.765, y))
        label(ax, 0.80, y, f'{advantage:+.2f}', color)
        word = 'more likely' if advantage > 0 else 'less likely'
        arrow(ax, (0.865, y - (0.05 if advantage > 0 else -0.05)),
              (0.865, y + (0.05 if advantage > 0 else -0.05)), color)
        label(ax, 0.95, y, word, color)
    label(ax, 0.515, 0.07, 'judge', size=13)
    label(ax, 0.715, 0.07, f'mean {mean:.2f}', size=12)
    figure.savefig(f'{HERE}/idea.png', dpi=130)
    print('wrote assets/idea.png')
