"""Draw pass@k, the share of held-out prompts of which at least one of k samples is right, for the
start and the policy of one run or more: does GRPO find what the start could not sample?

    python -m extras.passk out-think out-grpo               # out-think/passk.png, and a table

64 samples of each prompt give an unbiased estimate for each k (arXiv:2107.03374, section 2.1)."""
import math
import statistics

import train_grpo as grpo
from extras.curves import Figure, save
from run.command import words_of
from sample import open_run

N = 64                      # samples of each prompt
KS = (1, 2, 4, 8, 16, 32, 64)


def pass_at(k, n_right, n=N):
    """Return pass@k from a list: how many of n samples of each prompt are right."""
    # sets of k samples in which all are wrong
    n_wrong = [math.comb(n - right, k) for right in n_right]
    return 1 - statistics.mean(n_wrong) / math.comb(n, k)


if __name__ == "__main__":
    folders = words_of(__doc__) or ['out-grpo']
    figure = Figure(figsize=(5 * len(folders), 3.8))
    axes = figure.subplots(1, len(folders), sharey=True, squeeze=False)[0]
    print('pass@', *[f'{k:>7}' for k in KS])
    for folder, ax in zip(folders, axes):
        run, networks = open_run(folder, "--rewards={'verify': 1.0}")
        prompts = run.data.prompts('val', grpo.eval_prompts, N, seed=0)
        for label, network in networks.items():
            _, scores = grpo.act_and_score(network, run.scorer, prompts, ['verify'])
            n_right = (scores['verify'] == 1).sum(1).tolist()
            values = [pass_at(k, n_right) for k in KS]
            print(f'{folder}, {label}')
            print('     ', *[f'{value:7.3f}' for value in values])
            ax.plot(KS, values, 'o-', label=label)
        ax.set(xscale='log', xlabel='k, samples of each prompt', ylim=(0, 1.02))
        ax.set_xticks(KS, KS)
        ax.minorticks_off()
        case = prompts.cases(prompts.tokens)[0]
        ax.set_title(f"{grpo.dataset}: {case['prompt']}", parse_math=False)
    axes[0].set_ylabel('pass@k: prompts with a right one')
    axes[0].legend(loc='lower right')
    save(figure, f'{folders[0]}/passk.png')
