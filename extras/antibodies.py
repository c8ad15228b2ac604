"""What did GRPO do to the loops of config/grpo_antibodies.py? For each run: how many loops have
which motif, and do they still look like loops to the network as it was before?

    python -m extras.antibodies out-antibodies              # writes loops.json there
    python -m extras.figures antibodies out-antibodies      # docs/assets/antibodies.png"""
import json
import re
import runpy
import statistics

import torch

import train_grpo as grpo
from dataset import rng_for
from extras.curves import read_log
from run.command import words_of
from run.machine import print_line
from sample import open_run

CONFIG = runpy.run_path('config/grpo_antibodies.py')
MOTIFS = CONFIG['MOTIFS']
# the last two letters of a loop, in the six human J genes: FDY, FDI, FDP, FDS, FDL, MDV, FQH
J_GENE = '(D[YIPSLV]|QH)$'


@torch.no_grad()
def pseudo_likelihood(network, sequences, blank):
    """Return for each of N sequences (N, T) the mean log-probability, in nats, of the letters that
    were blank (N, T). Each is masked alone: the network sees all others."""
    n, t = blank.nonzero(as_tuple=True)                                         # (M,) each
    logp = []
    for i in torch.arange(len(n)).split(32):
        states = sequences[n[i]]                                                # (32, T)
        at = torch.arange(len(i)), t[i]
        letters = states[at]
        states[at] = network.blank_id
        logits = network.logits(network(states)[at])                            # (32, V)
        logp.append(logits.log_softmax(-1)[torch.arange(len(i)), letters])
    total = torch.zeros(len(sequences)).index_add(0, n, torch.cat(logp))
    return total / blank.sum(1)


def measure(folder, names):
    """Return {name: what is measured} of random loops, of the start's, and of those of the policy
    of a run: k for each held-out prompt. Only the first of them gets a likelihood, to save time."""
    run, networks = open_run(folder, "--rewards={'distinct': 1.0}")
    k = grpo.group_size
    prompts = run.data.prompts('val', 10 ** 6, k, seed=0)
    blank = prompts.blank.repeat_interleave(k, 0)                               # (N, T)
    letters = torch.tensor(run.data.tok.encode('ACDEFGHIKLMNPQRSTVWY'))
    measured = {}
    for name in names:
        if name == 'random':
            drawn = torch.from_numpy(rng_for(0, name).integers(20, size=blank.shape))
            ids = torch.where(blank, letters[drawn], prompts.tokens.repeat_interleave(k, 0))
        else:
            ids = grpo.act(networks[name], prompts).sequences               # (N, T)
        loops = [CONFIG['_loop_of'](case['prompt'], case['completion'])
                 for case in prompts.cases(ids)]
        likelihood = pseudo_likelihood(networks['before'], ids[::k], prompts.blank)
        differ = (ids[::k] != ids[1::k]).sum(1) / prompts.blank.sum(1)
        numbers = {'free of motifs': 1 - share('|'.join(MOTIFS.values()), loops),
                   'nats a letter': likelihood.mean().item(),
                   'standard error': (likelihood.std() / len(likelihood) ** 0.5).item(),
                   'ends as a J gene': share(J_GENE, loops),
                   'letters that differ': differ.mean().item(),
                   'net charge': statistics.mean(
                       sum(map(loop.count, 'KR')) - sum(map(loop.count, 'DE')) for loop in loops)}
        motifs = {motif: share(pattern, loops) for motif, pattern in MOTIFS.items()}
        measured[name] = {'numbers': numbers, 'motifs': motifs, 'loops': loops[::k],
                          'likelihood': likelihood.tolist()}
    return measured


def share(pattern, loops):
    """Return the share of loops in which a pattern occurs."""
    return sum(bool(re.search(pattern, loop)) for loop in loops) / len(loops)


if __name__ == "__main__":
    names = ['random', 'before', 'after']       # the first two are the same in all runs
    for folder in words_of(__doc__, 1):
        last = {}                               # value of each number of the log
        for line in read_log(folder):
            last |= line
        assert 'eval/free' in last, f"{folder} is no run of config/grpo_antibodies.py"
        print_line(folder, [(name, last[name]) for name in (
            'eval/free', 'greedy/free', 'eval/distinct', 'kl', 'entropy')])
        measured = measure(folder, names)
        with open(f'{folder}/loops.json', 'w') as file:
            json.dump(measured, file)
        for name, about in measured.items():
            print_line(name, about['numbers'].items())
            print_line('motifs', about['motifs'].items())
            print(' ' * 9, *about['loops'][:8])
        names = ['after']
