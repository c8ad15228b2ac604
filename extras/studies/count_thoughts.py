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
            swaps = [8 - case['prompt'].count('..') for case in r.cases()]
            thinks = (r.lengths > 2).tolist()       # an answer at once has 2 tokens
            rows = list(zip(swaps, thinks, right))
            no_thought = []                         # of groups of 8
            for start in range(0, len(rows), 8):
                group = rows[start:start + 8]
                is_found = any(thinks and y for _, thinks, y in group)
                no_thought.append(not is_found)
            print(f'{folder}, {label}: groups of 8 without a right thought', mean(no_thought))
            for n in ('all', 1, 2, 4, 8):
                some = [row for row in rows if n in ('all', row[0])]
                thought = [y for _, thinks, y in some if thinks]
                at_once = [y for _, thinks, y in some if not thinks]
                print(f'{n:>4} swaps: thinks', mean([thinks for _, thinks, _ in some]),
                      '| right if it thinks', mean(thought),
                      '| at once', mean(at_once))
