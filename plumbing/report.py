"""What a run says: the numbers of a step and of an evaluation, what they mean, and completions to
read: for the console, for sample.py, and for the page of a run."""
import collections
import math

import torch
from tqdm import tqdm

from plumbing.configurator import say
from plumbing.devices import N_RANKS, RANK, sum_over_ranks

# What the console shows of the log, besides each of several rewards.
CONSOLE = ('verify', 'reward', 'greedy', 'line to beat', 'above it', 'standard error', 'kl',
           'entropy', 'mean_tokens', 'mean_reward', 'dead_groups', 'ms')
TURNS = '.123456789abcdefghijklmnopqrstuvwxyz'

# sizes: P prompts | k completions of each prompt | N texts of T tokens | M sampled tokens


def bar(items, what):
    """Return items to loop over. A loop that takes long shows a bar, and the time that is left, on
    a terminal, and nothing in a file."""
    return tqdm(items, what, delay=1, leave=False, disable=RANK > 0 or None)


# ---- numbers -------------------------------------------------------------------------------------
def join(parts):
    """Return scores {name: (P, k)} of those {name: (B, k)} of parts."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def numbers_of(parts):
    """Return the numbers of an update for the log, over ranks: {'loss': sum} | {name: mean over the
    tokens that learn}. parts: of each micro-step its loss and {name: (M,)}."""
    sums = 0
    for loss, values in parts:
        table = torch.stack([*values.values()])                                 # (names, M)
        sums = sums + torch.hstack((loss, loss.new_tensor(table.size(1)), table.sum(1)))
    loss, n, *totals = sum_over_ranks(sums).tolist()
    means = {name: x / n for name, x in zip(parts[0][1], totals)} if n > 0 else {}
    return {'loss': loss} | means


def means_of(values, prefix=''):
    """Return {prefix + name: mean} of {name: tensor}, over ranks, whose tensors have one size."""
    return {prefix + name: float(sum_over_ranks(x.mean())) / N_RANKS for name, x in values.items()}


def console_text(numbers, parts=()):
    """Return what the console shows of numbers. parts: names of rewards to show as well."""
    shown = ''
    for name, x in numbers.items():
        part = name.removeprefix('mean_').removeprefix('eval/')
        if name in CONSOLE or part in parts:
            shown += f' | {name} {digits(x)}'
    return shown


def digits(x, sign=''):
    """Return a number as text, with three digits after the point; a tiny one in powers of ten."""
    return f'{x:{sign}.3f}' if abs(x) >= 5e-4 or x == 0 else f'{x:{sign}.1e}'


def means_of_step(scores, rewards):
    """Return the means of the scores of a step, and the share of groups that teach nothing."""
    means = {f'mean_{name}': scores[name] for name in ('tokens', 'reward', *rewards)}
    return means_of(means | {'dead_groups': (scores['advantage'] == 0).all(1).double()})


# ---- the claim of a run --------------------------------------------------------------------------
def against_line(scores, greedy, line, rewards):
    """Compare the scores of an evaluation, {name: (P, 4)}, with the line to beat (P,), or begin a
    line. Return the line, and numbers. The goal is 'verify'; or 'reward', if a config file has
    brought a reward, or if there is no verify()."""
    goal = 'reward'
    if 'verify' in scores and rewards.keys() <= {'judge', 'verify'}:
        goal = 'verify'
    now = scores[goal].mean(1)                                                  # (P,)
    likeliest = greedy[goal].mean(1)
    if line is None:
        # A policy that only samples its favourites more often ends at its greedy score. On the
        # way it can be a few points above it, so a small gain proves little.
        line = max(now, likeliest, key=torch.mean)
    above = now - line          # prompt by prompt, so that hard prompts add nothing to the error
    numbers = {goal: now, 'greedy': likeliest, 'line to beat': line, 'above it': above,
               'standard error': above.std() / len(above) ** 0.5}
    if 'verify' in scores:
        n = scores['verify'].size(1)
        numbers[f'eval/pass@{n}'] = (scores['verify'] == 1).any(1).double()
    return line, means_of(numbers) | means_of(scores, 'eval/') | means_of(greedy, 'greedy/')


def verdict_of(result, n):
    """Return where an evaluation of n prompts stands."""
    goal, score = next(iter(result.items()))    # the first of against_line()
    above = result['above it']
    error = result['standard error']
    if n < 4 or error == 0:
        why = f"{n} prompts are too few, or all have changed alike"
        return f"{goal} {score:.3f}: nothing can be told: {why}"
    margin = (2 + 4 / (n - 1)) * error          # a little more than Student's quantile of 95 %
    where = 'not above' if abs(above) <= margin else 'above' if above > 0 else 'below'
    return (f"{goal} {digits(score)} is {where} the line to beat: {digits(above, '+')} +- "
            f"{digits(margin)}")


# ---- completions ---------------------------------------------------------------------------------
def samples_of(r, columns, scores, logp=None):
    """Return the completions of a Rollout that have rows in its table, a dict each: 'prompt',
    'completion', 'scores' {name: number}, and 'pieces', a list for each token: its text; if it was
    sampled, its turn (0: from left to right); and, if logp (M, 2) is there, its log-probabilities
    before and after the step. They are nan for a token that no network has looked at."""
    if logp is None:
        logp = r.place.new_empty(len(r.place), 0)       # no numbers for each token
    turns = torch.zeros_like(r.place) if r.turn is None else r.turn
    drawn = {}                                  # {(text, place): numbers}
    table = [x.tolist() for x in (r.text_of, r.place, turns, logp)]
    for text, place, turn, numbers in zip(*table):
        drawn[text, place] = [turn, *filter(math.isfinite, numbers)]
    tok = r.prompts.task.tok
    samples = []
    for n in r.text_of.unique().tolist():
        start = 0
        if r.turn is None:                      # from left to right: without the prompt
            start = int(r.prompts.start[n // r.k])
        pieces = []
        for place, id in enumerate(r.texts[n].tolist()):
            if place >= start and id != tok.pad:
                pieces.append([tok.show([id]), *drawn.get((n, place), [])])
        samples.append({
            'prompt': columns['prompt'][n],
            'completion': columns['completion'][n],
            'scores': {name: x.flatten()[n].item() for name, x in scores.items()},
            'pieces': pieces,
        })
    return samples


def first_group_that_learns(r):
    """Return a Rollout of the first group that has an advantage, or of the first group."""
    learns = r.has_advantage()
    chosen = r.group[learns] if learns.any() else r.group
    return r.select(r.group == chosen.sort().values[:1])    # no rows stay none


def print_group(samples, names, label=''):
    """Print the different completions of a prompt and those scores that have these names, the best
    first, and of equal scores the most frequent; of more than six the first and last three. Below a
    text stand the turns in which its blanks were filled (a: 10), if there were several, or dots
    below what the policy wrote, if a world wrote the rest."""
    count = collections.Counter()
    for sample in samples:
        scores = tuple(sample['scores'][name] for name in names)
        count[scores, sample['completion'], turns_below(sample['pieces'])] += 1
    header = ''.join(f'{name:>11.10}' for name in names)
    lines = [f"{label:12}{header}   {samples[0]['prompt']!r}"]
    rows = sorted(count.items(), key=lambda row: (row[0][0], row[1]), reverse=True)
    for (scores, text, turns), n in rows[:3] + rows[3:][-3:]:
        numbers = ''.join(f'{digits(x):>11}' for x in scores)
        begin = f'{n:10} x{numbers}   '
        lines.append(f'{begin}{text!r}')
        if turns:
            lines.append(' ' * len(begin) + ' ' + turns)
    say('\n'.join(lines))


def turns_below(pieces):
    """Return the turns of the pieces of a sample, to stand below its text, or '' if all is one turn
    of the policy."""
    turns = ''
    for text, *numbers in pieces:
        turn = TURNS[min(numbers[0], 35)] if numbers else ' '
        turns += turn * (len(repr(text)) - 2)   # on the screen \n is two characters
    if set(turns) <= {'1', ' '} or set(turns) == {'.'}:
        return ''
    return turns.rstrip()
