"""What did GRPO do to the loops? For random loops, the loops of the start and the loops of the
policy, print how many have which motif, and whether the network of the start still finds them
natural.

    python -m examples.antibodies.measure out-antibodies"""
import re
import sys
from dataclasses import replace
from statistics import fmean

import torch
import torch.nn.functional as F

import train_grpo as grpo
from sample import open_run

# the last two letters of a loop, in the six human J genes: FDY, FDI, FDP, FDS, FDL, MDV, FQH
J_GENE = '(D[YIPSLV]|QH)$'


@torch.no_grad()
def pseudo_likelihood(network, texts, blank):
    """Return the mean log-probability, in nats, of the letters that were blank (N, T), for each of
    N texts (N, T). Each letter is masked alone, so the network sees all others."""
    total = torch.zeros(len(texts))
    for part in blank.nonzero().split(32):
        text, position = part.T                                                 # (32,) each
        views = texts[text]                                                     # (32, T)
        at = torch.arange(len(text)), position
        views[at] = network.blank_id
        logits = network.logits(network.features(views)[at])                    # (32, V)
        total.index_add_(0, text, -F.cross_entropy(logits, texts[text, position], reduction='none'))
    return total / blank.sum(1)


def measure(rollout, before):
    """Return the loops of a Rollout, and {name: number}. The likelihood by the network of the start
    takes minutes, so only the first loop of each prompt gets one."""
    k, texts, blank = rollout.k, rollout.texts, rollout.prompts.blank
    first, second = texts[::k], texts[1::k]                                     # (B, T) each
    likelihood = pseudo_likelihood(before, first, blank)
    columns = rollout.columns
    loops = [*map(grpo._loop_of, columns['prompt'], columns['completion'])]
    numbers = {
        'nats a letter': likelihood.mean(),
        'standard error': likelihood.std() / len(likelihood) ** 0.5,
        'letters that differ': ((first != second).sum(1) / blank.sum(1)).mean(),
        'net charge': fmean(len(re.findall('[KR]', loop)) - len(re.findall('[DE]', loop))
                            for loop in loops)}
    free = f"^(?!.*({'|'.join(grpo.MOTIFS.values())}))"
    patterns = {'free of motifs': free, 'ends as a J gene': J_GENE}
    for name, pattern in (patterns | grpo.MOTIFS).items():
        numbers[name] = fmean(bool(re.search(pattern, loop)) for loop in loops)
    return loops, numbers


def random_loops(rollout):
    """Return the Rollout with random letters in the blanks."""
    letters = torch.tensor(rollout.prompts.task.tok.encode('ACDEFGHIKLMNPQRSTVWY'))
    texts = rollout.texts.clone()
    texts[rollout.text_of, rollout.position] = letters[torch.randint(20, rollout.text_of.shape)]
    return replace(rollout, texts=texts)


if __name__ == '__main__':
    for folder in sys.argv[1:] or ['out-antibodies']:
        task, networks, after, _ = open_run(folder, ['--device=cpu'])
        torch.manual_seed(0)
        prompts = task.prompts('val', 10 ** 6)              # all of them
        start, end = [grpo.complete(policy, prompts, grpo.group_size)
                      for policy in (networks.policy, after)]
        for label, rollout in (
                ('random', random_loops(start)), ('before', start), ('after', end)):
            loops, numbers = measure(rollout, networks.policy)
            print(f'{folder}, {label}', *[f'| {name} {x:.3f}' for name, x in numbers.items()])
            print(' ' * 9, *loops[:8 * rollout.k:rollout.k])
