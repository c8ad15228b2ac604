"""In which order does a masked model fill its blanks? A picture of a run: how often each blank was
filled in each pass, before and after GRPO, beside the curves of several runs.

    python -m extras.orders out-order                       # out-order/orders.png
    python -m extras.orders out-order left=out-left confident=out-confident
"""
import re

import torch
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

import train_grpo as grpo
from extras.curves import points_of, save
from run.command import words_of
from sample import open_run


def shares_of_passes(network, run):
    """Return (passes, blanks): the share of held-out completions that filled a blank in a pass. The
    blanks of a prompt are numbered from left to right; prompts with fewer blanks are left out."""
    r = grpo.act(network, grpo.held_out_prompts(run.data))
    n_blanks = int(r.lengths.max())
    pass_of = r.pass_of[r.lengths == n_blanks]
    pass_of = pass_of[pass_of >= 0].view(-1, n_blanks)
    passes = torch.arange(grpo.n_fill_steps, device=pass_of.device)[:, None, None]
    return (pass_of == passes).float().mean(1).cpu()


STYLES = {'left': ('left to right, one blank a pass', '--'),
          'confident': ('the surest blank first, one a pass', ':'),
          'random': ('in random order, one blank a pass', '-.'),
          'learned': ('the policy decides: learned', '-')}


def draw(folder, others):
    """Draw the run of a folder, and curves of it and of others, pairs (label, folder)."""
    run, networks = open_run(folder)
    assert grpo.n_fill_steps > 1, f"{folder} fills in one pass; an order needs several"
    figure = Figure(figsize=(11, 3.6))
    axes = figure.subplots(1, 3, width_ratios=(1, 1, 1.3))
    for axis, (label, network) in zip(axes, networks.items()):
        shares = shares_of_passes(network, run)
        # the root makes small shares visible
        image = axis.pcolormesh(shares, cmap='Greys', norm=PowerNorm(0.5, vmin=0, vmax=1))
        axis.invert_yaxis()                     # the first pass is above
        axis.set_xticks(torch.arange(shares.size(1)) + 0.5, range(1, shares.size(1) + 1))
        axis.set_yticks(torch.arange(len(shares)) + 0.5, range(1, len(shares) + 1))
        axis.set(title=f'{label} GRPO', xlabel='blank, from left to right', ylabel='filled in pass')
    figure.colorbar(image, ax=axes[1], label='share of the completions')
    for label, other in [(grpo.fill_order, folder), *others]:
        steps, values = points_of(other, 'step', f'eval/{run.goal}')
        name, style = STYLES.get(label, (label, '-'))
        axes[2].plot(steps, [100 * value for value in values], style, linewidth=2, label=name)
    axes[2].set(title='right answers to held-out prompts, %', xlabel='step', ylim=(0, 102))
    axes[2].legend(fontsize='small', loc='lower right', bbox_to_anchor=(1, 0.26))
    save(figure, f'{folder}/orders.png')


if __name__ == "__main__":
    folder, *others = words_of(__doc__, 1)
    assert all(re.match('[^-].*=', word) for word in others), (
        f"{others}: expected LABEL=FOLDER of each")
    draw(folder, [word.split('=', 1) for word in others])
