"""Draws assets/idea.png: what one step of GRPO does to one prompt.

    python extras/idea.py"""
from matplotlib.figure import Figure

COMPLETIONS = {'11+36=047': -0.9, '18+30=047': -1.7, '16+32=057': -2.5, '11+35=047': -1.5}
HEADS = {0.09: 'prompt', 0.36: 'completions', 0.6: 'reward', 0.86: 'advantage = reward - mean'}

if __name__ == "__main__":
    ax = Figure(figsize=(11, 3.9), layout='constrained').subplots()
    ax.set_axis_off()
    ax.axis((0, 1.02, 0, 1.02))

    def write(x, y, text, color='#24292f', **more):
        ax.text(x, y, text, ha='center', va='center', color=color, fontsize=13, **more)

    def box(x, y, text, color='#24292f'):
        write(x, y, text, color, family='monospace',
              bbox={'boxstyle': 'round,pad=0.7', 'fc': '#f6f8fa', 'ec': color})

    def arrow(*ends):
        ax.annotate('', *ends, arrowprops={'arrowstyle': '<|-', 'color': '#24292f'})

    for x, text in HEADS.items():
        write(x, 0.98, text)
    box(0.09, 0.5, '1_+3_=__7')
    write(0.09, 0.27, 'the policy fills all\nblanks in one pass,\nk times')
    mean = sum(COMPLETIONS.values()) / len(COMPLETIONS)
    for i, (text, reward) in enumerate(COMPLETIONS.items()):
        y = 0.83 - 0.215 * i
        color = '#1a7f37' if reward > mean else '#b3382c'
        arrow((0.155, 0.5), (0.29, y))
        box(0.36, y, text)
        arrow((0.43, y), (0.565, y))
        write(0.6, y, f'{reward:.1f}')
        arrow((0.64, y), (0.74, y))
        write(0.86, y, f"{reward - mean:+.2f}  {'more' if reward > mean else 'less'} likely", color)
    write(0.497, 0.05, 'judge')
    write(0.69, 0.05, f'mean {mean:.2f}')
    ax.figure.savefig('assets/idea.png', dpi=130)
