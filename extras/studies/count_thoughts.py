"""Count thoughts in 64 samples of each held-out prompt of runs of the game of cups: how often the
start and the policy think, how often they are right then, and right at once, by number of swaps.

    python -m extras.studies.count_thoughts out-think"""
import statistics
import sys

import train_grpo as grpo
from sample import open_run


def mean(values):
    return f'{100 * statistics.mean(values):5.1f}' if values else '  ---'


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        run, networks = open_run(folder)
        prompts = run.data.prompts('val', grpo.eval_prompts, 64, seed=0)
        for label, network in networks.items():
            r = grpo.act(network, prompts)
            right = run.scorer.score(['verify'], r)['verify'].flatten().tolist()
            # (swaps, thinks, right) of each sample; an answer at once has 2 tokens
            rows = [(8 - case['prompt'].count('..'), n > 2, y)
                    for case, n, y in zip(r.cases(), r.lengths.tolist(), right)]
            groups = zip(*[iter(rows)] * 8)
            print(f'{folder}, {label}: groups of 8 without a right thought',
                  mean([not any(thinks and y for _, thinks, y in group) for group in groups]))
            for swaps in ('all', 1, 2, 4, 8):
                some = [row for row in rows if swaps in ('all', row[0])]
                print(f'{swaps:>4} swaps: thinks', mean([thinks for _, thinks, _ in some]),
                      '| right if it thinks', mean([y for _, thinks, y in some if thinks]),
                      '| at once', mean([y for _, thinks, y in some if not thinks]))
