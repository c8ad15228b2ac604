"""Watch a group of each shown step: how likely was each token before the update, and how likely is
it after? The page of a run and docs/assets/ show that. The group of step 0 is printed, too.

Samples in samples.jsonl get 'pieces', a list for each token: its text; if it was sampled, its pass
(0: from left to right); and in the watched group its log-probabilities before and after, which are
missing for a token that no mask of an estimate looks at.

This file is executed in the globals of train_grpo.py; `inner` is the old function."""
import math

import torch

_shown = []                 # (policy, group, log-probabilities before, scores) of a shown step


def collect(networks, task, step, inner=collect):
    rollouts, scores = inner(networks, task, step)
    if step % log_interval == 0:
        group = first_group_that_learns(rollouts[0])
        _shown[:] = [(networks.policy, group, log_probs_of(networks.policy, group), scores)]
    return rollouts, scores


class RunFolder(RunFolder):
    def log(self, step, *numbers):
        super().log(step, *numbers)
        for policy, group, before, scores in _shown:
            group.more['logp'] = torch.stack((before, log_probs_of(policy, group)), 1)  # (M, 2)
            samples = samples_of(group, columns_of(group), scores)
            self.append('samples.jsonl', step, samples)
            if step == 0:
                report.print_group(samples, ['reward', 'advantage'], '')
        _shown.clear()


def first_group_that_learns(r):
    """Return a Rollout of the first group that has an advantage, or of the first group."""
    group = r.text_of // r.k                                                    # (M,)
    learns = group[r.advantage != 0]
    return r.select(group == (learns if len(learns) else group).amin())


def samples_of(r, columns, scores, inner=samples_of):
    samples, task = inner(r, columns, scores), r.prompts.task
    passes = r.more.get('pass', torch.full_like(r.place, task.kind == 'fill'))
    logp = r.more.get('logp', torch.empty(0, 0))
    numbers = {(n, place): [*filter(math.isfinite, x)] for n, place, *x in zip(
        r.text_of.tolist(), r.place.tolist(), passes.tolist(), *logp.T.tolist())}
    for n, sample in zip(r.text_of.unique().tolist(), samples):
        sample['pieces'] = [[task.tok.show([id]), *numbers.get((n, place), [])]
                            for place, id in enumerate(r.texts[n].tolist()) if id != task.tok.pad]
    return samples
