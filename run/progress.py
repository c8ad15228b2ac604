"""A run for people: how far it has come, in numbers and words, and what a group looks like."""
import collections
import os
from dataclasses import dataclass, field

import numpy as np

from run.machine import print0


@dataclass
class Progress:
    """How far a run has come, by its evaluations. All of them have the same held-out prompts and
    random numbers, so they are compared prompt by prompt: what is a lucky prompt for one is lucky
    for the other, too, and their differences have smaller errors."""
    goal: str                   # the number to watch: 'verify' or 'reward'
    rewards: list               # their names
    means: dict = field(default_factory=dict)       # {step: {name: number}}, as in the log
    samples: dict = field(default_factory=dict)     # {step: the goal of each prompt, a list (P,)}
    notes: list = field(default_factory=list)       # what the first step says of the run's chances
    line: list | None = None    # (P,) the line to beat: the goal at the start, of greedy decoding
                                # or of samples, whichever is better
    prompts: list | None = None     # (P,) a number for each prompt, which equal prompts share

    def add(self, step, evaluation):
        """Add what evaluate() says after so many steps."""
        self.means[step], sampled, greedy, self.prompts = evaluation
        assert max(self.prompts) > 0, (
            "one held-out prompt has no standard error: expected two or more that differ")
        self.samples[step] = sampled
        # A policy that only grows more certain of what it samples ends about at its greedy score.
        # So it has learned something new only above this line.
        if self.line is None:
            self.line = max(sampled, greedy, key=np.mean)

    def expect(self, scores, dead_share, data):
        """Say what can be expected. scores {name: (P, k)}: of the first training prompts;
        dead_share: of groups with equal rewards; data: the Dataset."""
        trained = scores.get(self.goal, scores['reward']).mean(1).tolist()
        right = np.mean(trained)
        start = np.mean(self.samples[0])
        # Training prompts are others than those held out, so the errors of both add up.
        error = sum(np.var(values) / len(values) for values in (trained, self.samples[0])) ** 0.5
        is_checked = self.goal == 'verify'
        is_rewarded = is_checked and 'verify' in self.rewards
        if dead_share > 0.9 and not (is_rewarded and right > 0.5):
            self.notes.append(f"{dead_share:.0%} of the first groups teach nothing, because their "
                              "rewards are equal; if nothing right is sampled, pretrain more, or less "
                              "if the held-out loss rose: pretrain.py --max_iters=N --out=FILE")
        # (where blanks are marked, held-out prompts need not be like those to train on)
        is_alike = data.blank_kind != 'marked'
        if is_rewarded and is_alike and right - start > max(0.25, 2 * error):
            self.notes.append(f"the generator has memorised: {right:.0%} of the samples are right "
                              f"for training prompts and {start:.0%} for held-out ones; "
                              f"{len(data.rows_of['train'])} texts may be too few")
        if is_checked and np.mean(self.line) > 0.95:
            self.notes.append("little is left to learn: the line to beat is "
                              f"{np.mean(self.line):.0%}")
        for note in self.notes:
            print0(note)

    def best_step(self):
        """Return the step of the best evaluation, of equal ones the last. It is chosen on the same
        prompts that it is reported on, so its number is a little too good."""
        return max(self.samples, key=lambda step: (np.mean(self.samples[step]), step))

    def numbers(self):
        """Return pairs (name, number) of the last evaluation, for the console."""
        last = max(self.means)
        means = self.means[last]
        above, error = self.difference(self.samples[last], self.line)
        numbers = [
            (self.goal, np.mean(self.samples[last])),
            ('greedy', means[f'greedy/{self.goal}']),
            ('start', np.mean(self.samples[0])),
            ('line to beat', np.mean(self.line)),
            ('above it', above),
            ('standard error', error),
        ]
        if self.goal == 'reward':               # a sum, which hides its parts
            for name in dict.fromkeys(['verify', *self.rewards]):       # `verify` once
                if f'eval/{name}' in means:
                    numbers.append((name, means[f'eval/{name}']))
        return numbers

    def verdict(self):
        """Return in a sentence whether the run worked. Differences of less than two standard errors
        are noise."""
        values = list(self.samples.values())
        start = values[0]
        before = values[-2:][0]                 # the evaluation before the last, if there is one
        now = values[-1]
        gain, error = self.difference(now, start)
        above, error_above = self.difference(now, self.line)
        if above > 2 * error_above:
            words = f"above the line to beat by {above:.3f} +- {2 * error_above:.3f}"
        elif gain > 2 * error:
            words = f"not above the line to beat, but above the start by {gain:.3f}"
        elif gain < -2 * error:
            words = f"it fell from {np.mean(start):.3f}, {gain:.3f} +- {2 * error:.3f}"
        else:
            words = f"no different from the start, {gain:+.3f} +- {2 * error:.3f}"
        rise, error = self.difference(now, before)
        is_full = self.goal == 'verify' and np.mean(now) > 0.99
        if rise > 2 * error and gain >= 0 and not is_full:
            words += "; still rising, so try a larger --max_iters"
        mean = np.mean(now)
        return '\n'.join([f"{self.goal} {mean:.3f}: {words}", *self.notes])

    def difference(self, a, b):
        """Return the mean of a - b, lists (P,), and its standard error."""
        gaps = np.subtract(a, b)
        # A prompt that is held out several times is one observation, not several: what its gaps
        # have in common must not look as if it had been found again and again. So they are added
        # before they are squared. (If all prompts differ, this is std / sqrt(P).)
        sums = np.bincount(self.prompts, gaps - gaps.mean())
        n = len(sums)
        error = (np.square(sums).sum() * n / (n - 1)) ** 0.5 / len(gaps)
        return gaps.mean(), error


def first_group(micro_step, scores, names, advantages):
    """Return the first group of a micro-step that teaches something, or, if none does, the first
    group. Of the scores it shows those in names."""
    index, r = micro_step
    b = int(advantages[index].any(1).float().argmax())
    return group_of(r, {name: scores[name][index] for name in names}, b,
                    reward=scores['reward'][index], advantage=advantages[index])


def group_of(r, scores, b=0, **more):
    """Return group b of a Rollout of B prompts, a list of dicts: prompt, completion, its `more` (B,
    k), such as advantage=..., and its scores {name: (B, k)}."""
    samples = []
    k = r.prompts.k
    for j, case in enumerate(r.cases()[b * k:(b + 1) * k]):
        sample = {'prompt': case['prompt'], 'completion': case['completion']}
        sample |= {name: values[b, j].item() for name, values in more.items()}
        # apart: a reward can have any name
        sample['scores'] = {name: values[b, j].item() for name, values in scores.items()}
        samples.append(sample)
        if not r.prompts.causal and r.pass_of.max() > 0:
            sample['passes'] = letters_of_passes(r, b * k + j)
    return samples


def show_group(label, samples, max_rows=6):
    """Print a group: its prompt, and below it its different completions, how often each came, and
    their numbers, sorted by the first. If there are more than max_rows completions, only the best
    and the worst are shown. Below a completion of several passes stands the pass of each of its
    letters (of equal rows, that of the first one)."""
    names = [name for name in samples[0]
             if name not in ('prompt', 'completion', 'scores', 'passes')]
    passes = {}                                 # {row: the pass of each letter}
    # Completions with equal texts and numbers are one row: the numbers, and last the text. So rows
    # can be counted and sorted as they are.
    counts = collections.Counter()
    for sample in samples:
        row = tuple([sample[name] for name in names] + list(sample['scores'].values())
                    + [sample['completion']])
        counts[row] += 1
        passes.setdefault(row, sample.get('passes'))
    rows = sorted(counts, reverse=True)
    # Blanks in the middle of a long text: leave out the text before them, but for ten characters.
    prompt = samples[0]['prompt']
    texts = [row[-1] for row in rows]
    same = len(os.path.commonprefix([prompt] + texts)) - 10

    def short(text, cut='...'):
        return text if same <= 0 else cut + text[same:]

    if len(rows) > max_rows:                    # the best and the worst
        del rows[max_rows // 2:-(max_rows // 2)]
    columns = ''.join(f' {name:>12.12}' for name in [*names, *samples[0]['scores']])
    print0(f'{label:9}{columns}   {short(prompt)!r}')
    for row in rows:
        numbers = ''.join(f' {number:12.3f}' for number in row[:-1])
        print0(f'{counts[row]:7} x{numbers}   {short(row[-1])!r}')
        if passes[row]:
            print0(' ' * len(f'{counts[row]:7} x{numbers}    ') + short(passes[row], '   '))


def letters_of_passes(r, j):
    """Return a line with the pass, from 1, of each letter of completion j: 1 to 9, then a to z."""
    line = ''
    for id, i in zip(r.sequences[j].tolist(), r.pass_of[j].tolist()):
        sign = ' 123456789abcdefghijklmnopqrstuvwxyz'[min(i + 1, 35)]
        line += sign * len(r.prompts.tok.decode([id]))
    return line.rstrip()
