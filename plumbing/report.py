"""What a run says: the numbers of a step and of an evaluation, what they mean, and completions to
read."""
import collections
import time

import torch

from plumbing.devices import N_RANKS, sum_over_ranks
from plumbing.process import say

# sizes: P prompts | k completions of each prompt | M sampled tokens


# ---- numbers -------------------------------------------------------------------------------------
def join(parts):
    """Return scores {name: (P, k)} of those {name: (B, k)} of parts."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def means_of(values, prefix=''):
    """Return {prefix + name: mean} of {name: tensor}, over ranks, whose tensors have one size."""
    return {prefix + name: float(sum_over_ranks(x.mean())) / N_RANKS for name, x in values.items()}


def numbers_of(parts):
    """Return the numbers of an update for the log, over ranks: {'loss': sum} | {name: mean over the
    tokens that learn}. parts: of each micro-step its loss and {name: (M,)}."""
    sums = sum(torch.hstack([loss, loss.new_tensor(len(values['entropy'])),
                             *map(torch.sum, values.values())]) for loss, values in parts)
    loss, n, *totals = sum_over_ranks(sums).tolist()
    return {'loss': loss} | {name: x / n for name, x in zip(parts[0][1], totals) if n > 0}


def numbers_of_step(scores, rewards, began, sampled):
    """Return the means of the scores of a step; the share of groups that teach nothing; and how
    long it took, if it began and had sampled at these times in seconds."""
    means = {f'mean_{name}': scores[name] for name in ('tokens', 'reward', *rewards)}
    means['dead_groups'] = (scores['advantage'] == 0).all(1).double()
    seconds = time.time() - began
    return means_of(means) | {
        'ms': 1000 * seconds, 'time/sampling': (sampled - began) / seconds,
        'time/tokens per second': float(sum_over_ranks(scores['tokens'].sum())) / seconds}


# ---- the claim of a run --------------------------------------------------------------------------
def against_line(scores, greedy, line, rewards):
    """Compare the scores of an evaluation, {name: (P, 4)}, with the line to beat (P,), or begin a
    line. Return the line, and numbers. The goal is 'verify'; or 'reward', if a config file has
    brought a reward, or if there is no verify()."""
    goal = 'verify' if 'verify' in scores and rewards.keys() <= {'judge', 'verify'} else 'reward'
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
        is_right = scores['verify'] == 1                                        # (P, 4)
        numbers[f'eval/pass@{is_right.size(1)}'] = is_right.any(1).double()
    return line, means_of(numbers) | means_of(scores, 'eval/') | means_of(greedy, 'greedy/')


def verdict_of(result):
    """Return what the numbers of against_line() say: is a run better than its line to beat?"""
    above, margin = result['above it'], 2 * result['standard error']
    # The error is 0 if all prompts have changed alike, and then nothing can be told.
    return (f"{'' if above > margin > 0 else 'not '}above the line to beat: {above:+.3f} +- "
            f"{margin:.3f} (docs/run.md says what helps)")


# ---- completions ---------------------------------------------------------------------------------
def samples_of(r, columns, scores):
    """Return the completions of a Rollout that have rows in its table, a dict each."""
    return [{'prompt': columns['prompt'][n], 'completion': columns['completion'][n],
             'scores': {name: x.flatten()[n].item() for name, x in scores.items()}}
            for n in r.text_of.unique().tolist()]


def print_group(samples, names, label):
    """Print the different completions of a prompt with their scores, the best first; of more than
    six the first and last three."""
    count = collections.Counter((*(x['scores'][name] for name in names), x['completion'])
                                for x in samples)
    say(f"{label} {samples[0]['prompt']!r}   ({', '.join(names)})")
    rows = sorted(count.items(), reverse=True)
    for (*scores, text), n in rows[:3] + rows[3:][-3:]:
        say(f'{n:6} x {text!r}   ' + ''.join(f'{x:10.3f}' for x in scores))
