"""Scores of completions: a frozen judge, a verifier, your own functions.

A judge is a network of pretrain.py. A causal GPT scores a text by its likelihood: the mean
log-probability of its tokens, in nats. A classifier gives P(label = 1)."""
import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from rollout import equal_pairs, token_stats

# letters: N sequences, k completions of each of B prompts | T tokens

TOKENS_PER_PASS = 4096      # of a judge: all sequences at once could need too much memory


def judge_sequences(judge, sequences, where):
    """Return scores (N,) of sequences (N, T): a classifier's P(label = 1), or the mean of the
    log-probabilities, in nats, of the tokens at where (N, T).

    Equal sequences go through the network once. This saves time, and their scores are equal to the
    last bit. Otherwise adv_norm = 'std' would amplify the rounding errors of equal completions."""
    assert judge.causal or judge.args.get('n_outputs') == 1, (
        "the judge fills blanks: expected a causal network or a classifier")
    # unique[index] equals sequences
    unique, index = torch.unique(sequences, dim=0, return_inverse=True)
    parts = unique.split(1 + TOKENS_PER_PASS // unique.size(1))
    if judge.args.get('n_outputs') == 1:
        return torch.cat([classify(judge, part) for part in parts])[index].sigmoid()
    logp = torch.cat([token_logp(judge, part) for part in parts])[index]        # (N, T)
    return (logp * where).sum(1) / where.sum(1)


def token_logp(judge, sequences):
    """Return the log-probability (N, T) of each token of sequences (N, T); 0 for padding."""
    is_real = sequences != judge.pad_id                                         # (N, T)
    logits = judge.logits(judge(sequences, is_real))                            # (tokens, V)
    logp = -F.cross_entropy(logits, sequences[is_real], reduction='none')
    return logp.new_zeros(sequences.shape).masked_scatter(is_real, logp)


def classify(judge, sequences):
    """Return the logits (N,) of label 1: the mean output of the network over all real tokens."""
    # A classifier is bidirectional: each position sees the whole sequence and gives an output.
    is_real = sequences != judge.pad_id                                         # (N, T)
    logits = judge.logits(judge.trunk(sequences))[..., 0]                       # (N, T)
    return (logits * is_real).sum(1) / is_real.sum(1)


# ---- rewards -------------------------------------------------------------------------------------


class RewardError(Exception):
    """Scorer.score() raises it for whatever a reward raises. The policy has not changed since its
    last step."""


@dataclass
class Scorer:
    """Computes rewards by their names. A field that the rewards do not need can be left out."""
    judge: nn.Module | None = None      # a frozen network
    verify: Callable | None = None      # (prompt, completion, answer) -> a number in [0, 1]
    functions: dict = field(default_factory=dict)       # name: (prompts, completions) -> numbers
    # these can ask for columns of the dataset by name, see wanted()
    reference: nn.Module | None = None  # the frozen start, for the KL in the loss and in the reward
    temperature: float = 1.0            # of the reward 'kl'
    # rewards that need no function
    BUILT_IN = ('judge', 'distinct', 'length', 'kl', 'tokens', 'ended')
    TEXTS = {'prompt', 'completion', 'prompts', 'completions', 'ended'}

    @torch.no_grad()
    def score(self, names, r):
        """Return {name: (B, k)} of the completions of a Rollout. Raise a RewardError that names the
        reward that failed."""
        scores = {}
        texts = functools.cache(r.texts)        # made when first needed
        N = len(r.sequences)
        for name in names:
            try:
                # detach: scores are constants for the loss
                values = torch.as_tensor(self.compute(name, r, texts), device=r.sequences.device,
                                         dtype=torch.get_default_dtype()).detach()
                assert values.shape == (N,) and values.isfinite().all(), (
                    f"expected {N} finite numbers, not these {values.numel()}: "
                    f"{values.tolist()!r:.60}")
            except Exception as e:
                raise RewardError(f"reward '{name}': {type(e).__name__}: {e}") from e
            scores[name] = values.view(-1, r.prompts.k)
        return scores

    def compute(self, name, r, texts):
        """Return one reward of the N completions of a Rollout: N numbers, as a tensor or a list."""
        if name == 'judge':                     # causal: only the completion, not the prompt
            where = r.where if r.causal else r.sequences != self.judge.pad_id
            return judge_sequences(self.judge, r.sequences, where)
        if name == 'distinct':                  # 1 / how often the group has this completion
            return 1 / equal_pairs(r.sequences.unflatten(0, (-1, r.prompts.k))).sum(2).flatten()
        if name == 'length':                    # tokens / T; less is better: a negative weight
            return r.lengths / r.sequences.size(1)
        if name == 'tokens':                    # number of sampled tokens
            return r.lengths
        if name == 'ended':                     # 1 if eos was sampled, 0 if the length ran out
            return r.ended
        if name == 'kl':                        # log policy - log reference, of the completion
            now = token_stats(r, r.model, self.reference, self.temperature)
            return r.sum(now.logp_full - now.logp_ref)
        if name == 'verify':
            return self.verified(texts(), r.prompts.k)
        function = self.functions[name]
        return function(**{name: list(texts()[name]) for name in wanted(function, texts())})

    def goal(self, rewards):
        """Return the name of the number that a run watches: 'verify'; or 'reward', the weighted
        sum, if functions of the user are among the rewards, or if there is no verifier."""
        known = list(self.BUILT_IN + tuple(self.functions))
        if self.verify:
            known.append('verify')
        assert rewards and set(rewards) <= set(known) and len(known) == len(set(known)), (
            f"rewards = {rewards}: expected names among {known}, or of functions in a config file "
            "on the command line, each with a name of its own")
        return 'verify' if self.verify and not rewards.keys() & self.functions.keys() else 'reward'

    def names(self, rewards, has_answers=True):
        """Return the names of all that can be shown of a completion: verify, the rewards, distinct.
        has_answers: False leaves out functions that ask for more than prompt and completion."""
        names = dict.fromkeys(['verify', *rewards, 'distinct'])
        functions = {'verify': self.verify} | self.functions
        return [name for name in names if name in self.BUILT_IN or functions[name] and (
            has_answers or inspect.signature(functions[name]).parameters.keys() <= self.TEXTS)]

    def verified(self, texts, k):
        """Return what verify() says of each completion. It is called once for equal completions of
        a prompt."""
        texts = {{'prompts': 'prompt', 'completions': 'completion'}.get(name, name): values
                 for name, values in texts.items()}
        names = wanted(self.verify, texts)
        known = {}
        values = []
        for n, completion in enumerate(texts['completion']):
            case = (n // k, completion)
            if case not in known:
                known[case] = self.verify(**{name: texts[name][n] for name in names})
            values.append(known[case])
        return values


def wanted(function, known):
    """Return the names that a function wants, as TRL does: those of its parameters that are known,
    or all that are known if it has **kwargs. A parameter without a default must be known."""
    parameters = inspect.signature(function).parameters.values()
    named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    unknown = [p.name for p in named if p.name not in known and p.default is p.empty]
    assert not unknown, f"it asks for {', '.join(unknown)}: expected names among {', '.join(known)}"
    if len(named) < len(parameters):
        return list(known)
    return [p.name for p in named if p.name in known]


def auc(scores, labels):
    """Return P(score of a 1 > score of a 0) + half of the ties, of scores with labels bool, tensors
    of one shape; 0.5 if all labels are equal."""
    gap = scores[labels][:, None] - scores[~labels]         # of every pair of a 1 and a 0
    return (0.5 + 0.5 * gap.sign()).mean().nan_to_num(0.5).item()


# ---- a run in words and numbers ------------------------------------------------------------------


def summary(goal, rewards, means, at_start, training=None):
    """Return the numbers of an evaluation that the console shows. means, at_start: of the last and
    the first evaluation. training: the goal in the last step (P, k)."""
    numbers = {goal: means[goal], 'greedy': means[f'{goal}_greedy'], 'start': at_start[goal],
               'line to beat': at_start[f'{goal}_greedy'],
               'standard error': means['standard_error']}
    if training is not None:
        numbers['training'] = training.mean().item()
    if goal == 'reward':                        # the sum hides which reward rose, and which fell
        numbers |= {name: means[name] for name in ('verify', *rewards) if name in means}
    return numbers


def verdict(goal, rewards, means, at_start, before, training):
    """Return in words whether a run worked; arguments as above. before: the goal at the evaluation
    before the last. Differences of less than two standard errors are noise."""
    now = means[goal]
    start = at_start[goal]
    noise = 2 * math.hypot(means['standard_error'], at_start['standard_error'])
    words = "not better than at the start"
    if now > start + noise:
        words = "better than at the start, but not above the line to beat"
    if now > max(start, at_start[f'{goal}_greedy']) + noise:
        words = "above the line to beat"
    if now > before + noise:
        words += "; still rising: try a larger --max_iters"
    if training is not None:
        noise += 2 * training.mean(1).std() / len(training) ** 0.5
    if training is not None and training.mean() - start > 2 * max(0, now - start) + noise:
        words += "; it has memorised: training prompts gained twice as much as held-out ones"
    if goal == 'reward':
        words += ''.join(f", {name} {at_start[name]:.3f} -> {means[name]:.3f}"
                         for name in dict.fromkeys(['verify', *rewards]) if name in means)
    return f"{goal} {now:.3f}: {words}"
