"""Print what networks do in the game of data/cups.py, in percent of 8 samples of each held-out
prompt. A completion thinks if it is longer than one letter.

    python -m extras.cups out-think out-think-cost          # start and policy of each run
    python -m extras.cups out/generator_think-cups.pt       # a generator alone

none: groups of 8 without a right completion that thinks, so that GRPO cannot learn to think from
them. 1 2 4 8: with so many swaps."""
import sys

import torch

import train_grpo as grpo
from sample import open_run

SWAPS = (1, 2, 4, 8)
NAMES = ('right', 'thinks', 'right if it thinks', 'right if not', 'none',
         *(f'thinks {n}' for n in SWAPS), *(f'tokens {n}' for n in SWAPS))


def play(network, run):
    """Return one number for each of NAMES."""
    prompts = run.data.prompts('val', grpo.eval_prompts, 8, seed=0)
    micro_steps, scores = grpo.act_and_score(network, run.scorer, prompts, ['verify', 'tokens'])
    right = scores['verify'] == 1                                           # (P, 8)
    thinks = scores['tokens'] > 2               # more than a letter and eos
    n_swaps = torch.tensor([8 - case['prompt'].count('..')
                            for _, r in micro_steps for case in r.cases()[::8]])    # (P,)
    parts = [right, thinks, right[thinks], right[~thinks], ~(right & thinks).any(1)]
    parts += [thinks[n_swaps == n] for n in SWAPS]
    parts = [100.0 * part for part in parts] + [scores['tokens'][n_swaps == n] for n in SWAPS]
    return [part.mean().item() for part in parts]


if __name__ == "__main__":
    print(' | '.join(NAMES))
    for path in sys.argv[1:]:
        run, networks = open_run(path, '--blank_kind=answer', "--rewards={'verify': 1.0}")
        for label, network in networks.items():
            numbers = play(network, run)
            print(' | '.join(f'{number:.1f}' for number in numbers), f'| {path}, {label}')
