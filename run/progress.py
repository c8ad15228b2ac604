"""How far a run has come, in numbers. run/advice.py says what they mean."""
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Progress:
    """How far a run has come, by its evaluations. All of them have the same held-out prompts and
    random numbers, so they are compared prompt by prompt: what is a lucky prompt for one is lucky
    for the other, too, and their differences have smaller errors."""
    goal: str                   # the number to watch: 'verify' or 'reward'
    means: dict = field(default_factory=dict)       # {step: {name: number}}, as the log has them
    line: list | None = None    # (P,) the line to beat: the goal of each prompt at the start, of
                                # greedy decoding or of samples, whichever is better

    def add(self, step, evaluation):
        """Add an Evaluation after so many steps, see train_grpo.py."""
        # A policy that only grows more certain of what it samples ends about at its greedy score.
        # So it has learned something new only above this line.
        if self.line is None:
            is_greedy_better = np.nansum(np.subtract(evaluation.greedy, evaluation.now)) > 0
            self.line = evaluation.greedy if is_greedy_better else evaluation.now
        self.means[step] = evaluation.means | self.above(evaluation)

    def is_best(self):
        """Return whether no evaluation was better than the last one. The best one is chosen on the
        prompts that it is reported on, so its number is a little too good."""
        values = [means[f'eval/{self.goal}'] for means in self.means.values()]
        return values[-1] == max(values)

    def numbers(self, rewards):
        """Return pairs (name, number) of the last evaluation, for the console."""
        *_, means = self.means.values()
        numbers = [(self.goal, means[f'eval/{self.goal}']),
                   ('greedy', means.get(f'greedy/{self.goal}', np.nan)),
                   ('start', self.means[0][f'eval/{self.goal}'])]
        for name in ('line to beat', 'above it', 'standard error'):
            numbers.append((name, means[name]))
        if self.goal == 'reward':               # a sum, which hides its parts
            parts = dict.fromkeys(['verify', *rewards])         # `verify` once
            numbers += [(name, means[f'eval/{name}']) for name in parts if f'eval/{name}' in means]
        return numbers

    def above(self, evaluation):
        """Return the line to beat, by how much an Evaluation is above it, and the standard error of
        that, by their names."""
        gaps = np.subtract(evaluation.now, self.line)                               # (P,)
        is_known = ~np.isnan(gaps)              # of a prompt without a value NaN
        gaps = gaps[is_known]
        names, index = np.unique(np.array(evaluation.prompts)[is_known], return_inverse=True)
        n = len(names)
        assert n > 1, (
            f"expected a {self.goal} for two or more different held-out prompts, because one has "
            f"no standard error; found {n} (None is no value)")
        # A prompt that is held out several times is one observation, not several: what its gaps
        # have in common must not look as if it had been found again and again. So they are added
        # before they are squared. (If all prompts differ, this is std / sqrt(P).)
        sums = np.bincount(index, gaps - gaps.mean())                               # (n,)
        error = (np.square(sums).sum() * n / (n - 1)) ** 0.5 / len(gaps)
        line = np.nanmean(self.line)
        return {'line to beat': float(line), 'above it': float(gaps.mean()),
                'standard error': float(error)}
