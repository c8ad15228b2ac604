"""Scores of completions: a frozen judge, a verifier, your own functions; and printing groups.

A judge is a network of pretrain.py. A causal GPT scores a text by its likelihood: the mean
log-probability of its tokens, in nats. A classifier gives P(label = 1)."""
import collections
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from common import print0
from model import equal_pairs, log_probs

# letters: N sequences, k completions of each of B prompts | T tokens


def judge_sequences(judge, sequences, where):
    """Return scores (N,) of sequences (N, T): a classifier's P(label = 1), or the mean of the
    log-probabilities, in nats, of the tokens at where (N, T).

    Equal sequences go through the network once. This saves time, and their scores are equal to the
    last bit. Otherwise adv_norm = 'std' would amplify the rounding errors of equal completions."""
    assert judge.causal or judge.args.get('n_outputs') == 1, (
        "the judge fills blanks: expected a causal network or a classifier")
    # unique[index] equals sequences
    unique, index = torch.unique(sequences, dim=0, return_inverse=True)
    parts = unique.split(1 + 4096 // unique.size(1))    # all at once could need too much memory
    score = classify if judge.args.get('n_outputs') == 1 else token_logp
    scores = torch.cat([score(judge, part) for part in parts])[index]           # (N,) or (N, T)
    if score is classify:
        return scores.sigmoid()
    return (scores * where).sum(1) / where.sum(1)


def token_logp(judge, sequences):
    """Return the log-probability (N, T) of each token of sequences (N, T); 0 for padding."""
    is_real = sequences != judge.pad_id                                         # (N, T)
    logp = -F.cross_entropy(judge(sequences, is_real), sequences[is_real], reduction='none')
    return logp.new_zeros(sequences.shape).masked_scatter(is_real, logp)


def classify(judge, sequences):
    """Return the logits (N,) of label 1: the mean output of the network over all real tokens."""
    # A classifier is bidirectional: each position sees the whole sequence and gives an output.
    is_real = sequences != judge.pad_id                                         # (N, T)
    logits = judge.logits(judge.trunk(sequences))[..., 0]                       # (N, T)
    return (logits * is_real).sum(1) / is_real.sum(1)


def n_parameters(function):
    """Return how many parameters a function has that need a value."""
    parameters = inspect.signature(function).parameters.values()
    return sum(parameter.default is parameter.empty for parameter in parameters)


@dataclass
class Scorer:
    """Computes rewards by their names. A field that the rewards do not need can be left out."""
    judge: nn.Module | None = None      # a frozen network
    verify: Callable | None = None      # (prompt, completion) -> a number in [0, 1]
    functions: dict = field(default_factory=dict)       # name: (prompts, completions) -> numbers
    # verify and functions can take a third argument, the originals: the dataset's own completions
    policy: nn.Module | None = None     # policy, reference and temperature: for the reward 'kl'
    reference: nn.Module | None = None
    temperature: float = 1.0
    BUILT_IN = ('judge', 'distinct', 'length', 'kl')    # rewards that need no function

    @torch.no_grad()                            # scores are constants for the loss
    def score(self, names, r):
        """Return {name: (B, k)} of the completions of a Rollout."""
        scores = {}
        for name in names:
            values = self.values(name, r)
            try:
                values = torch.as_tensor(values, device=r.sequences.device,
                                         dtype=torch.get_default_dtype())
            except (RuntimeError, TypeError, ValueError) as e:
                raise ValueError(f"reward '{name}': expected numbers, not {values!r:.60}") from e
            N = len(r.sequences)
            assert values.shape == (N,) and values.isfinite().all(), (
                f"reward '{name}': expected {N} finite numbers, not these {values.numel()}: "
                f"{values.tolist()!r:.60}")
            scores[name] = values.view(-1, r.k)
        return scores

    def values(self, name, r):
        """Return one reward of the N completions of a Rollout: N numbers, as a tensor or a list."""
        if name == 'judge':                     # causal: only the completion, not the prompt
            where = r.where if r.causal else r.sequences != r.prompts.tok.pad
            return judge_sequences(self.judge, r.sequences, where)
        if name == 'distinct':                  # 1 / how often the group has this completion
            return 1 / equal_pairs(r.sequences.unflatten(0, (-1, r.k))).sum(2).flatten()
        if name == 'length':                    # the share of the sequence that was sampled: with a
            # negative weight this asks for short completions
            return r.sequence_of.bincount(minlength=len(r.sequences)) / r.sequences.size(1)
        if name == 'kl':                        # log policy - log reference, of the completion
            logp = log_probs(r.logits_of(self.policy), self.temperature)        # (U, V)
            logp_ref = log_probs(r.logits_of(self.reference), self.temperature)
            return r.sum((logp - logp_ref)[r.distribution_of, r.actions])
        # A verifier or a function of the user gets prompts, completions and originals: the first n
        # of these, if it has n parameters without a default.
        function = self.verify if name == 'verify' else self.functions[name]
        n = n_parameters(function)
        assert n in (2, 3), f"{name}(): expected parameters for prompts, completions[, originals]"
        arguments = r.texts()[:n]
        if name == 'verify':                    # called per completion, once for equal arguments
            return list(map(functools.cache(function), *arguments))
        return function(*arguments)

    def goal(self, rewards):
        """Return the goal, the name of the number to watch: 'reward' if a function of the user is
        among the rewards, or if there is no verifier; else 'verify'."""
        assert self.verify or 'verify' not in rewards, "rewards: the dataset has no verify()"
        own_rewards = set(rewards) & set(self.functions)
        if self.functions and not own_rewards:
            print0(f"rewards = {rewards} uses none of your functions: {list(self.functions)}")
        return 'verify' if self.verify and not own_rewards else 'reward'


def auc(scores, labels):
    """Return P(score of a 1 > score of a 0) + half of the ties, of scores with labels bool, tensors
    of one shape; 0.5 if all labels are equal."""
    gap = scores[labels][:, None] - scores[~labels]         # of every pair of a 1 and a 0
    return (0.5 + 0.5 * gap.sign()).mean().nan_to_num(0.5).item()


def verdict(numbers, at_start, training=None):
    """Return in words whether a run worked, by the numbers of its last evaluation. The first number
    is the goal. at_start: the means of the first evaluation. training: the scores (P, k) of the
    latest step, for the same goal. Differences of less than two standard errors are noise."""
    goal = next(iter(numbers))
    now = numbers[goal]
    start = numbers['start']
    line = max(start, numbers['line to beat'])
    noise = 2 * numbers['standard error']
    if now < numbers.get('constant answer', now):
        words = "below always giving the commonest answer"
    elif now > line + noise:
        words = "above the line to beat"
    elif goal == 'verify' and line < 0.05:
        words = ("almost nothing was right at the start, so there was little to learn from; "
                 "pretrain the generator longer, give partial credit, or bring more data")
    elif goal == 'verify' and line > 0.8 and now > start - noise:
        words = "the generator knew the task already; pretrain it for half the steps"
    elif now > start + noise:
        words = "better than at the start, but it may only have grown more certain (line to beat)"
    elif now < start - noise:
        words = "worse than at the start"
    else:
        words = "not better than at the start, within two standard errors"
    if training is not None:
        training_noise = 2 * training.mean(1).std() / len(training) ** 0.5
        if training.mean() - start > 2 * max(0, now - start) + noise + training_noise:
            words += ("; training prompts gained more than twice as much as held-out ones: it has "
                      "memorised; more or other data would help")
    # If the goal is a sum of rewards, one of them can fall while the sum rises.
    parts = [f"{name} {at_start[name]:.3f} -> {numbers[name]:.3f}"
             for name in at_start if name in numbers and name != goal]
    if parts:
        words += f" ({', '.join(parts)})"
    return f"{goal} {now:.3f}: {words}"


def show_groups(label, r, columns, n_groups=3, max_rows=6):
    """Print the first groups of a Rollout: each prompt, and below it its different completions with
    their counts and their values in columns {name: (P, k)}, sorted by the first column, the reward.
    If there are more than max_rows, only the best and the worst are shown. Warn if nearly all
    advantages are 0. Return all completions of the shown groups as dicts, for samples.jsonl."""
    prompts, completions, _ = r.texts()
    numbers = [values.flatten().tolist() for values in columns.values()]
    table = list(zip(prompts, *numbers, completions))[:n_groups * r.k]
    for i in range(0, len(table), r.k):
        print(label.ljust(9), *(f'{name:>12.12}' for name in columns), ' ', repr(prompts[i]))
        counts = collections.Counter(table[i:i + r.k])
        rows = sorted(counts, reverse=True)
        if len(rows) > max_rows:
            del rows[max_rows // 2:-(max_rows // 2)]
        for row in rows:
            print(f'{counts[row]:7} x', *(f'{number:12.3f}' for number in row[1:-1]), ' ',
                  repr(row[-1]))
    if 'advantage' in columns:                  # a training step, with all its groups
        dead = (columns['advantage'] == 0).all(1)                               # (P,)
        share = dead.float().mean()
        if share > 0.9:
            print(f"{share:.0%} of the groups have equal rewards and teach nothing. Their mean "
                  f"reward is {columns['reward'][dead].mean():.3f} (if rewards are 0 or 1: 0 means "
                  "that all are wrong, 1 that all are right already). This is normal at the end of "
                  "a run")
    names = ['prompt', *columns, 'completion']
    return [dict(zip(names, row)) for row in table]
