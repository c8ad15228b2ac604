"""What a run says: the metrics of a step and of an evaluation, what they mean, and completions to
read."""
import collections
import time

import torch

from plumbing.devices import N_RANKS, sum_over_ranks
from plumbing.process import Stopped, bar, say, stop

# Shapes in comments: P prompts, k completions of each, M sampled tokens.


# ---- metrics -------------------------------------------------------------------------------------
def concat(parts):
    """Put the scores {name: (B, k)} of micro-steps together, {name: (P, k)}."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def means_of(values, prefix=''):
    """Return {prefix + name: mean} of {name: tensor}, over ranks, whose tensors have one size."""
    return {prefix + name: float(sum_over_ranks(x.mean())) / N_RANKS for name, x in values.items()}


def metrics_of_tokens(loss, stats, rollout, is_clipped):
    """Return the loss of a micro-step, and {name: (M,)} of its tokens."""
    return loss.detach(), {
        'entropy': stats.entropy.detach(), 'kl': stats.kl.detach(),
        'kl_old': rollout.logp_old - stats.logp.detach(), 'clip_frac': is_clipped.float()}


def metrics_of_update(parts):
    """Return the metrics of an update, over ranks: the sum of the losses of its micro-steps, and
    means over tokens. A token whose number is nan was not read, and does not count."""
    losses, metrics = zip(*parts)
    tokens = {name: torch.cat([x[name] for x in metrics]) for name in metrics[0]}
    is_read = ~tokens['entropy'].isnan()                                        # (M,)
    sums = [sum(losses)]
    for x in tokens.values():
        known = x[is_read & ~x.isnan()]         # kl is nan without a reference
        sums += [known.sum(), known.new_tensor(len(known))]
    loss, *sums = sum_over_ranks(torch.stack(sums)).tolist()
    pairs = zip(tokens, sums[::2], sums[1::2])
    return {'loss': loss} | {name: total / n for name, total, n in pairs if n > 0}


def metrics_of_step(scores, rewards, began, sampled):
    """Return the means of the scores of a step; the share of groups that teach nothing; and how
    long it took, if it began and had sampled at these times, in seconds."""
    means = {f'mean_{name}': scores[name] for name in ('reward', *rewards)}
    means['dead_groups'] = (scores['advantage'] == 0).all(1).double()
    means['mean_tokens'] = scores['tokens']
    seconds = max(time.time() - began, 1e-9)            # a clock can be set back
    return means_of(means) | {
        'ms': 1000 * seconds, 'time/sampling': (sampled - began) / seconds,
        'time/tokens per second': float(sum_over_ranks(scores['tokens'].sum())) / seconds}


# ---- the claim of a run --------------------------------------------------------------------------
def against_line(scores, greedy, line, rewards):
    """Compare the scores of an evaluation, {name: (P, 4)}, with the line to beat (P,). The first
    evaluation, whose line is None, sets it. Return the line, and metrics. They are about 'verify';
    or about 'reward', if a config file has brought a reward, or if there is no verify()."""
    goal = 'verify' if 'verify' in scores and rewards.keys() <= {'judge', 'verify'} else 'reward'
    now = scores[goal].mean(1)                                                  # (P,)
    likeliest = greedy[goal].mean(1)
    if line is None or len(line) != len(now):           # held-out records came or went since
        # A policy that only samples its favourites more often ends at its greedy score. On the
        # way it can be a few points above it, so a small gain proves little.
        line = max(now, likeliest, key=torch.mean)
    above = now - line          # prompt by prompt, so that hard prompts add nothing to the error
    metrics = {goal: now, 'greedy': likeliest, 'line to beat': line, 'above it': above,
               'standard error': above.std() / len(above) ** 0.5}
    if 'verify' in scores:
        is_right = scores['verify'] == 1                                        # (P, 4)
        metrics[f'eval/pass@{is_right.size(1)}'] = is_right.any(1).double()
    return line, means_of(metrics) | means_of(scores, 'eval/') | means_of(greedy, 'greedy/')


def verdict_of(result, step):
    """Say what the metrics of against_line() mean: is a run better than its line to beat at this
    step?"""
    above, margin = result['above it'], 2 * result['standard error']
    # The error is 0 if all prompts have changed alike, and then nothing can be told.
    if above > margin > 0:
        return f"above the line to beat at step {step}: {above:+.3f} +- {margin:.3f}"
    return (f"not above the line to beat at step {step}: {above:+.3f} +- {margin:.3f} "
            "(docs/run.md says what helps)")


# ---- an evaluation -------------------------------------------------------------------------------
def progress(items, label):
    """Yield the items of an evaluation, with a bar. If the run is asked to stop, raise Stopped."""
    for item in bar(items, label):
        if stop.listens and sum_over_ranks(int(stop.is_asked)) > 0:
            raise Stopped
        yield item


# ---- completions ---------------------------------------------------------------------------------
def samples_of(rollout, scores):
    """Return the completions of a Rollout that have rows in its table, a dict each."""
    columns = rollout.columns
    return [{'prompt': columns['prompt'][n], 'completion': columns['completion'][n],
             'scores': {name: x.flatten()[n].item() for name, x in scores.items()}}
            for n in rollout.text_of.unique().tolist()]


def print_group(samples, names, label):
    """Print the different completions of a prompt with their scores, the best first; of more than
    six the three best and the three worst."""
    count = collections.Counter((*(x['scores'][name] for name in names), x['completion'])
                                for x in samples)
    header = f"   ({', '.join(names)})" if names else ''
    say(f"{label} {samples[0]['prompt']!r}{header}")
    rows = sorted(count.items(), reverse=True)
    for i, ((*scores, text), n) in enumerate(rows):
        if i < 3 or i >= len(rows) - 3:
            say(f'{n:6} x {text!r}   ' + ''.join(f'{x:10.3f}' for x in scores))
        elif i == 3:
            say('     ...')
