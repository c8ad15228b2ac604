"""A run for people: how far it has come, in numbers and words, and what a group looks like."""
import collections
from dataclasses import dataclass, field

import numpy as np

from run.machine import print0


@dataclass
class Progress:
    """How far a run has come, by its evaluations. All of them have the same held-out prompts and
    random numbers, so they are compared prompt by prompt: what is a lucky prompt for one is lucky
    for the other, too, and their differences have smaller errors."""
    goal: str                   # the number to watch: 'verify' or 'reward'
    means: dict = field(default_factory=dict)       # {step: {name: number}}, as in the log
    line: list | None = None    # (P,) the line to beat: the goal of each prompt at the start, of
                                # greedy decoding or of samples, whichever is better
    now: list | None = None     # (P,) the goal of each prompt in the last evaluation
    prompts: list | None = None     # (P,) texts, equal if prompts and their columns are

    def add(self, step, evaluation):
        """Add what evaluate() says after so many steps."""
        self.means[step], self.now, greedy, self.prompts = evaluation
        # A policy that only grows more certain of what it samples ends about at its greedy score.
        # So it has learned something new only above this line.
        if self.line is None:
            self.line = max(self.now, greedy, key=np.nanmean)

    def expect(self, first, blank_kind):
        """Print what can be expected, if it is not much. first: the numbers of the first step."""
        start = self.means[0]
        if first['dead_groups'] > 0.9:
            print0("nine of ten groups teach nothing, because their rewards are equal; if nothing "
                   "right is sampled, pretrain more (or less, if the held-out loss rose)")
        # (where blanks are marked, held-out prompts need not be like those to train on)
        gap = first.get('mean_verify', 0) - start.get('eval/verify', 0)
        if gap > 0.25 and blank_kind != 'marked':
            print0(f"the generator has memorised: {first['mean_verify']:.0%} of the samples are "
                   "right for training prompts; more texts are needed")
        if self.goal == 'verify' and np.nanmean(self.line) > 0.95:
            print0("little is left to learn: the line to beat is above 95 %")

    def is_best(self):
        """Return whether no evaluation was better than the last one. The best one is chosen on the
        prompts that it is reported on, so its number is a little too good."""
        values = [means[f'eval/{self.goal}'] for means in self.means.values()]
        return values[-1] == max(values)

    def numbers(self, rewards):
        """Return pairs (name, number) of the last evaluation, for the console."""
        *_, means = self.means.values()
        above, error = self.above()
        numbers = [
            (self.goal, np.nanmean(self.now)),
            ('greedy', means.get(f'greedy/{self.goal}', np.nan)),
            ('start', self.means[0][f'eval/{self.goal}']),
            ('line to beat', np.nanmean(self.line)),
            ('above it', above),
            ('standard error', error),
        ]
        if self.goal == 'reward':               # a sum, which hides its parts
            parts = dict.fromkeys(['verify', *rewards])         # `verify` once
            numbers += [(name, means[f'eval/{name}']) for name in parts if f'eval/{name}' in means]
        return numbers

    def verdict(self):
        """Return in a sentence whether the run worked. Less than two standard errors are noise."""
        above, error = self.above()
        words = 'above' if above > 2 * error else 'not above'
        return (f"{self.goal} {np.nanmean(self.now):.3f} is {words} the line to beat: {above:+.3f} "
                f"+- {2 * error:.3f}")

    def above(self):
        """Return by how much the last evaluation is above the line, and the standard error."""
        gaps = np.subtract(self.now, self.line)                                     # (P,)
        is_known = ~np.isnan(gaps)              # of a prompt without a value NaN
        gaps = gaps[is_known]
        names, index = np.unique(np.array(self.prompts)[is_known], return_inverse=True)
        n = len(names)
        assert n > 1, (
            f"{n} of the held-out prompts have a {self.goal} and differ, and one has no standard "
            "error: expected two or more (None is no value)")
        # A prompt that is held out several times is one observation, not several: what its gaps
        # have in common must not look as if it had been found again and again. So they are added
        # before they are squared. (If all prompts differ, this is std / sqrt(P).)
        sums = np.bincount(index, gaps - gaps.mean())                               # (n,)
        return gaps.mean(), (np.square(sums).sum() * n / (n - 1)) ** 0.5 / len(gaps)


def first_group(micro_step, scores, names, advantages):
    """Return the first group of a micro-step that teaches something, or, if none does, the first
    group. Of the scores it has those in names."""
    index, r = micro_step
    b = int(advantages[index].any(1).float().argmax())
    return group_of(r, {name: scores[name][index] for name in names}, b,
                    reward=scores['reward'][index], advantage=advantages[index])


def group_of(r, scores, b=0, **more):
    """Return group b of a Rollout of B prompts, a list of dicts: prompt, completion, its `more` (B,
    k), which is reward=... and advantage=..., and its scores {name: (B, k)}."""
    samples = []
    k = r.prompts.k
    for j, case in enumerate(r.cases()[b * k:(b + 1) * k]):
        sample = {'prompt': case['prompt'], 'completion': case['completion']}
        sample |= {name: number(values[b, j]) for name, values in more.items()}
        # apart: a reward can have any name
        sample['scores'] = {name: number(values[b, j]) for name, values in scores.items()}
        if not r.prompts.causal and r.pass_of.max() > 0:
            sample['passes'] = letters_of_passes(r, b * k + j)
        samples.append(sample)
    return samples


def number(value):
    """Return the number of a tensor; None of NaN, a missing value, which JSON lacks."""
    return None if value.isnan() else value.item()


def show_group(label, samples):
    """Print a group: its prompt, and below it its different completions, how often each came, and
    their numbers, sorted by the first; of more than six the best and the worst. Below a completion
    of several passes stands the pass of each of its letters."""
    counts = collections.Counter()
    for sample in samples:
        numbers = {name: sample[name] for name in ('reward', 'advantage') if name in sample}
        numbers |= sample['scores']
        counts[*numbers.values(), sample['completion'], sample.get('passes', '')] += 1
    rows = sorted(counts, reverse=True, key=lambda row: [(x is not None, x) for x in row])
    del rows[3:-3]
    columns = ''.join(f' {name:>12.12}' for name in numbers)
    print0(f"{label:9}{columns}   {sample['prompt']!r}")
    for row in rows:
        *values, completion, passes = row
        columns = ''.join(f'{"none":>13}' if value is None else f' {value:12.3f}'
                          for value in values)
        print0(f'{counts[row]:7} x{columns}   {completion!r}')
        if passes:
            print0(' ' * (13 + len(columns)) + passes)


def letters_of_passes(r, n):
    """Return a line with the pass, from 1, of each letter of completion n: 1 to 9, then a to z."""
    line = ''
    for id, i in zip(r.sequences[n].tolist(), r.pass_of[n].tolist()):
        sign = ' 123456789abcdefghijklmnopqrstuvwxyz'[min(i + 1, 35)]
        line += sign * len(r.prompts.tok.decode([id]))
    return line.rstrip()
