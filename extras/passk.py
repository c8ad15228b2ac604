"""Print pass@k, the share of held-out prompts of which at least one of k samples is right, of the
start and of the policy of each run: does GRPO find what the start could not sample?

    python -m extras.passk out-think out-grpo
    python -m extras.passk out-mine mine.py                 # the words of its run, as for sample.py

64 samples of each prompt give an unbiased estimate for each k (arXiv:2107.03374, section 2.1)."""
import math
import statistics

from extras.words import words_of
import train_grpo as grpo
from sample import open_run

N = 64                      # samples of each prompt
KS = (1, 2, 4, 8, 16, 32, 64)


def pass_at(k, n_right, n=N):
    """Return pass@k from a list: how many of n samples of each prompt are right."""
    # sets of k samples in which all are wrong
    n_wrong = [math.comb(n - right, k) for right in n_right]
    return 1 - statistics.mean(n_wrong) / math.comb(n, k)


if __name__ == "__main__":
    print('pass@', *[f'{k:>7}' for k in KS])
    words = words_of(__doc__)
    of_run = [word for word in words if word.startswith('-') or word.endswith('.py')]
    for folder in [word for word in words if word not in of_run] or ['out-grpo']:
        run, networks = open_run(folder, *of_run, "--rewards={'verify': 1.0}")
        prompts = run.data.prompts('val', grpo.eval_prompts, N, seed=0)
        for label, network in networks.items():
            _, scores = grpo.act_and_score(network, run.scorer, prompts, ['verify'])
            n_right = (scores['verify'] == 1).sum(1).tolist()
            print(f'{folder}, {label}')
            print('     ', *[f'{pass_at(k, n_right):7.3f}' for k in KS])
