"""Print what networks do in the game of data/cups.py, in percent of 8 samples of each held-out
prompt. A completion thinks if it is longer than one letter.

    python -m extras.cups out-think out-think-cost          # start and policy of each run
    python -m extras.cups out/generator_think-*.pt          # a generator alone

none: groups of 8 without a right completion that thinks, so that GRPO cannot learn to think from
them. thinks 1 to tokens 8: with so many swaps."""
import torch

import train_grpo as grpo
from run.command import words_of
from run.machine import print_line
from sample import open_run

SWAPS = (1, 2, 4, 8)


def play(network, run):
    """Return the numbers of a network {name: percent, or tokens}."""
    prompts = run.data.prompts('val', grpo.eval_prompts, 8, seed=0)
    _, scores = grpo.act_and_score(network, run.scorer, prompts, ['verify', 'tokens'])
    right = scores['verify'] == 1                                           # (P, 8)
    thinks = scores['tokens'] > 2               # more than a letter and eos
    n_swaps = []                                # (P,) of each prompt
    for case in prompts.cases(prompts.tokens):
        ball, *swaps = case['prompt'].split()
        n_swaps.append(len(swaps) - case['prompt'].count('..'))
    assert set(n_swaps) & set(SWAPS), "expected prompts of data/cups.py, and a network for them"
    n_swaps = torch.tensor(n_swaps)
    shares = {'right': right, 'thinks': thinks, 'right if it thinks': right[thinks],
              'right if not': right[~thinks], 'none': ~(right & thinks).any(1)}
    for n in SWAPS:
        shares[f'thinks {n}'] = thinks[n_swaps == n]
    numbers = {name: 100 * share.float().mean().item() for name, share in shares.items()}
    for n in SWAPS:
        numbers[f'tokens {n}'] = scores['tokens'][n_swaps == n].mean().item()
    return numbers


if __name__ == "__main__":
    for path in words_of(__doc__, 1):
        run, networks = open_run(path, '--blank_kind=answer', "--rewards={'verify': 1.0}")
        for label, network in networks.items():
            print_line(f'{path}, {label}', play(network, run).items())
