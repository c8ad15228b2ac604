"""Watch a group of each shown step: how likely was each token before the update, and how likely is
it after? The page of a run and docs/assets/ show that. The group of step 0 is printed, too.

Samples in samples.jsonl get 'pieces', a list for each token: its text; if it was sampled, its pass
(0: from left to right); and in the watched group its log-probabilities before and after. They are
missing for a token that no network has looked at.

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
    def log(self, step, numbers, is_shown=True):
        super().log(step, numbers, is_shown)
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
    logp = r.more.get('logp', torch.empty(len(r.place), 0))
    for n, sample in zip(r.text_of.unique().tolist(), samples):
        # From left to right the prompt is left out.
        start = int(r.prompts.start[n // r.k]) if task.kind == 'causal' else 0
        pieces = {place: [task.tok.show([id])] for place, id in enumerate(r.texts[n].tolist())
                  if place >= start and id != task.tok.pad}
        rows = r.text_of == n
        for place, number, numbers in zip(*[x[rows.to(x.device)].tolist()
                                            for x in (r.place, passes, logp)]):
            pieces[place] += [number, *filter(math.isfinite, numbers)]
        sample['pieces'] = [*pieces.values()]
    return samples
