"""What did GRPO do to the loops? Print of random loops, of the start's and of the policy's, how
many have which motif, and whether they still look like loops to the network as it was before.

    python -m examples.antibodies.measure out-antibodies"""
import re
import statistics
import sys
from dataclasses import replace

import torch

import train_grpo as grpo
from sample import open_run

# the last two letters of a loop, in the six human J genes: FDY, FDI, FDP, FDS, FDL, MDV, FQH
J_GENE = '(D[YIPSLV]|QH)$'


@torch.no_grad()
def pseudo_likelihood(network, texts, blank):
    """Return for each of N texts (N, T) the mean log-probability, in nats, of the letters that were
    blank (N, T). Each is masked alone: the network sees all others."""
    text, place = blank.nonzero(as_tuple=True)                                  # (M,) each
    logp = []
    for i in torch.arange(len(text)).split(32):
        views = texts[text[i]]                                                  # (32, T)
        at = torch.arange(len(i)), place[i]
        letters = views[at]
        views[at] = network.blank_id
        logits = network.logits(network.features(views)[at])                    # (32, V)
        logp.append(logits.log_softmax(-1)[torch.arange(len(i)), letters])
    total = torch.zeros(len(texts)).index_add(0, text, torch.cat(logp))
    return total / blank.sum(1)


def share(pattern, loops):
    """Return the share of loops in which a pattern occurs."""
    return sum(bool(re.search(pattern, loop)) for loop in loops) / len(loops)


def measure(r, before, k):
    """Return {name: number} and the loops of a Rollout, k completions of each prompt. Only the
    first of each prompt gets a likelihood, that of the network before, because it takes minutes."""
    blank = r.prompts.blank
    first, second = r.texts[::k], r.texts[1::k]
    likelihood = pseudo_likelihood(before, first, blank)
    columns = grpo.columns_of(r)
    loops = list(map(grpo._loop_of, columns['prompt'], columns['completion']))
    charges = [sum(map(loop.count, 'KR')) - sum(map(loop.count, 'DE')) for loop in loops]
    numbers = {
        'free of motifs': 1 - share('|'.join(grpo.MOTIFS.values()), loops),
        'nats a letter': likelihood.mean(),
        'standard error': likelihood.std() / len(likelihood) ** 0.5,
        'ends as a J gene': share(J_GENE, loops),
        'letters that differ': ((first != second).sum(1) / blank.sum(1)).mean(),
        'net charge': statistics.mean(charges),
    }
    for motif, pattern in grpo.MOTIFS.items():
        numbers[motif] = share(pattern, loops)
    return numbers, loops


def random_loops(r):
    """Return the Rollout with random letters in the blanks."""
    letters = torch.tensor(r.prompts.task.tok.encode('ACDEFGHIKLMNPQRSTVWY'))
    texts = r.texts.clone()
    texts[r.text_of, r.place] = letters[torch.randint(20, r.text_of.shape)]
    return replace(r, texts=texts)


if __name__ == '__main__':
    for folder in sys.argv[1:] or ['out-antibodies']:
        task, networks, after, _ = open_run(folder, ['--device=cpu'])
        before, k = networks.policy, grpo.group_size
        torch.manual_seed(0)
        prompts = task.prompts('val', 10 ** 6)              # all of them
        start = grpo.complete(before, prompts, k)
        rollouts = {'random': random_loops(start), 'before': start,
                    'after': grpo.complete(after, prompts, k)}
        for label, r in rollouts.items():
            numbers, loops = measure(r, before, k)
            print(f'{folder}, {label}', *[f'| {name} {x:.3f}' for name, x in numbers.items()])
            print(' ' * 9, *loops[:8 * k:k])
