"""Watch a group of each shown step: how likely was each token before the update, and how likely is
it after? The page of a run and docs/assets/ show that. The group of step 0 is printed, too.

Samples in samples.jsonl get 'pieces', a list for each token: its text; if it was sampled, its pass
(0: from left to right); and in the watched group its log-probabilities before and after, which are
missing for a token that no mask of an estimate looks at.

This file is executed in the globals of train_grpo.py; `inner` is the old function."""
import math

import torch

_shown = []                 # (policy, group, log-probabilities before, scores) of a shown step


def collect(networks, task, step, *more, inner=collect):
    """Remember a group of a step that is shown."""
    rollouts, scores = inner(networks, task, step, *more)
    if step % log_interval == 0:
        group = first_group_that_learns(rollouts[0])
        _shown[:] = [(networks.policy, group, log_probs_of(networks.policy, group), scores)]
    return rollouts, scores


class RunFolder(RunFolder):
    """A folder whose samples have the group of each shown step."""

    def log(self, step, *more):
        super().log(step, *more)
        for policy, group, before, scores in _shown:
            group.more['logp'] = torch.stack((before, log_probs_of(policy, group)), 1)  # (M, 2)
            samples = samples_of(group, scores)
            self.append('samples.jsonl', step, samples)
            if step == 0:
                report.print_group(samples, ['reward', 'advantage'], '')
        _shown.clear()


def first_group_that_learns(rollout):
    """Return a Rollout of the first group that has an advantage, or of the first group."""
    group = rollout.text_of // rollout.k                                        # (M,)
    learns = group[rollout.advantage != 0]
    return rollout.select(group == (learns if len(learns) else group).amin())


def samples_of(rollout, scores, inner=samples_of):
    """Add 'pieces' to the samples."""
    samples, task = inner(rollout, scores), rollout.prompts.task
    passes = rollout.more.get('pass', torch.full_like(rollout.position, task.kind == 'fill'))
    logp = rollout.more.get('logp', torch.empty(len(passes), 0))                # (M, 0) or (M, 2)
    numbers = {}                                # {(text, position): [pass, log p, log p]}
    for n, position, number, pair in zip(rollout.text_of.tolist(), rollout.position.tolist(),
                                         passes.tolist(), logp.tolist()):
        numbers[n, position] = [number, *filter(math.isfinite, pair)]
    for n, sample in zip(rollout.text_of.unique().tolist(), samples):
        sample['pieces'] = [[task.tok.show([id]), *numbers.get((n, position), [])]
                            for position, id in enumerate(rollout.texts[n].tolist())
                            if id != task.tok.pad]
    return samples
