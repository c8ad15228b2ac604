"""Draws assets/passes.png from finished runs with different numbers of passes: variety against
truth, an arrow per number of passes from the reference to the policy.

    python extras/passes.py out-passes-1-1 out-passes-1-2 out-passes-2-1 ..."""
from curves import Figure, runs, save

KEYS = ('distinct@4', 'verify', 'pass@4')


def means(lines, start):
    return [sum(line[start + key] for line in lines) / len(lines) for key in KEYS]


if __name__ == "__main__":
    found = {}                                  # {number of passes: last evaluations, one a seed}
    for _, knobs, log in runs():                # a finished run ends with an evaluation
        found.setdefault(knobs['n_fill_steps'], []).append(log[-1])
    figure = Figure(figsize=(7, 4.2), layout='constrained')
    ax = figure.subplots()
    ax.axis((0.2, 0.8, 0.4, 1.0))
    for n, lines in sorted(found.items()):
        # An arrow from the mean reference to the mean policy, and a dot for each seed.
        before = means(lines, 'eval/ref_')
        after = means(lines, 'eval/')
        color = f'C{len(ax.texts) // 2}'
        ax.annotate('', after[:2], before[:2], arrowprops={'arrowstyle': '-|>', 'color': color})
        ax.plot(*before[:2], 'o', color=color, mfc='white')
        for line in lines:
            ax.plot(line['eval/distinct@4'], line['eval/verify'], '.', color=color)
        ax.annotate(f'passes: {n}', before[:2], (8, -4), color=color, textcoords='offset points')
        print(f"{n} passes, {len(lines)} seeds")
        for name, reference, policy in zip(KEYS, before, after):
            print(f"  {name:10} {reference:.3f} -> {policy:.3f}")
    ax.set_xlabel('variety: different completions among four (0.25: always the same one)')
    ax.set_ylabel('held-out equations that are true')
    ax.set_title('from the reference (circle) to the policy (arrow)', loc='left')
    save(figure, 'assets/passes.png')
