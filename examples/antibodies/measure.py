"""What did GRPO do to the loops? Print of random loops, of the start's and of the policy's, how
many have which motif, and whether they still look like loops to the network as it was before.

    python -m examples.antibodies.measure out-antibodies WORDS      # those of the run's command"""
import re
import statistics

import torch

import train_grpo as grpo
from dataset import rng_for
from examples.antibodies.free import MOTIFS, _loop_of
from extras.words import words_of
from run.machine import print_line
from sample import open_run

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


def share(pattern, loops):
    """Return the share of loops in which a pattern occurs."""
    return sum(bool(re.search(pattern, loop)) for loop in loops) / len(loops)


def measure(ids, prompts, before):
    """Return {name: number} and the loops of completions ids (N, T), k of each prompt. Only the
    first of each prompt gets a likelihood, that of the network before, because it takes minutes."""
    first = ids[::prompts.k]
    second = ids[1::prompts.k]
    likelihood = pseudo_likelihood(before, first, prompts.blank)
    loops = []
    charges = []
    for case in prompts.data.cases(prompts, ids, range(len(ids))):
        loop = _loop_of(case['prompt'], case['completion'])
        loops.append(loop)
        charges.append(sum(map(loop.count, 'KR')) - sum(map(loop.count, 'DE')))
    numbers = {
        'free of motifs': 1 - share('|'.join(MOTIFS.values()), loops),
        'nats a letter': likelihood.mean(),
        'standard error': likelihood.std() / len(likelihood) ** 0.5,
        'ends as a J gene': share(J_GENE, loops),
        'letters that differ': ((first != second).sum(1) / prompts.blank.sum(1)).mean(),
        'net charge': statistics.mean(charges),
    }
    for motif, pattern in MOTIFS.items():
        numbers[motif] = share(pattern, loops)
    return numbers, loops


def random_loops(prompts, tok):
    """Return ids (N, T) of the prompts, with random letters in the blanks."""
    tokens = prompts.tokens.repeat_interleave(prompts.k, 0)                     # (N, T)
    blank = prompts.blank.repeat_interleave(prompts.k, 0)
    letters = torch.tensor(tok.encode('ACDEFGHIKLMNPQRSTVWY'))
    drawn = rng_for(0, 'random').integers(20, size=blank.shape)
    return torch.where(blank, letters[torch.from_numpy(drawn)], tokens)


if __name__ == "__main__":
    words = words_of(__doc__, 1)
    of_run = [word for word in words if word.startswith('-') or word.endswith('.py')]
    for folder in [word for word in words if word not in of_run]:
        run, networks = open_run(folder, *of_run, "--rewards={'distinct': 1.0}")
        prompts = run.data.prompts('val', 10 ** 6, grpo.group_size, seed=0)     # all of them
        completions = {'random': random_loops(prompts, run.data.tok)}
        for name, network in networks.items():
            completions[name] = grpo.act(network, prompts).sequences
        for name, ids in completions.items():
            numbers, loops = measure(ids, prompts, networks['before'])
            print_line(f'{folder}, {name}', numbers.items())
            print(' ' * 9, *loops[:8 * prompts.k:prompts.k])
