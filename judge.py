"""Scores of completions: a frozen judge, a verifier, your own functions.

A judge is a network of pretrain.py. A causal GPT scores a text by its likelihood: the mean
log-probability of its tokens, in nats. A classifier gives P(label = 1)."""
import copy
import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from common import fail_unknown
from rollout import equal_pairs, token_stats

# letters: N sequences, k completions of each of B prompts | T tokens

TOKENS_PER_PASS = 4096      # of a judge, about: all sequences could need too much memory


def judge_sequences(judge, sequences, where):
    """Return scores (N,) of sequences (N, T): a classifier's P(label = 1), or the mean of the
    log-probabilities, in nats, of the tokens at where (N, T).

    Equal sequences go through the network once. This saves time, and their scores are equal to the
    last bit. Otherwise adv_norm = 'std' would amplify the rounding errors of equal completions."""
    assert judge.causal or judge.is_classifier, (
        "the judge fills blanks: expected a causal network or a classifier")
    # unique[index] equals sequences
    unique, index = torch.unique(sequences, dim=0, return_inverse=True)
    parts = unique.split(1 + TOKENS_PER_PASS // unique.size(1))     # at least one sequence a pass
    # A classifier reads whole sequences; a likelihood is that of the tokens that are asked for.
    if judge.is_classifier:
        return torch.cat([classify(judge, part) for part in parts])[index].sigmoid()
    logp = torch.cat([token_logp(judge, part) for part in parts])[index]        # (N, T)
    return (logp * where).sum(1) / where.sum(1)


def token_logp(judge, sequences):
    """Return the log-probability (N, T) of each token of sequences (N, T); 0 for padding."""
    is_real = sequences != judge.pad_id                                         # (N, T)
    is_real[:, 0] &= judge.has_bos              # without one the first token has no probability
    # Only real tokens have logits. Back in their rectangle, padding keeps the 0.
    logits = judge.logits(judge(sequences, is_real))                            # (tokens, V)
    logp = -F.cross_entropy(logits, sequences[is_real], reduction='none')
    return logp.new_zeros(sequences.shape).masked_scatter(is_real, logp)


def classify(judge, sequences):
    """Return the logits (N,) of label 1: the mean output of the network over all real tokens."""
    # A classifier is bidirectional: each position sees the whole sequence and gives an output. It
    # is asked by trunk(), because forward() would hide tokens as blanks.
    is_real = sequences != judge.pad_id                                         # (N, T)
    logits = judge.logits(judge.trunk(sequences))[..., 0]                       # (N, T)
    return (logits * is_real).sum(1) / is_real.sum(1)


# ---- rewards -------------------------------------------------------------------------------------


def judged(scorer, r):
    """What the judge says. A classifier reads whole sequences. A likelihood is that of all tokens,
    or, if the generator is causal, of those of the completion."""
    where = r.is_sampled if r.prompts.data.causal else r.sequences != scorer.judge.pad_id
    return judge_sequences(scorer.judge, r.sequences, where)


def distinct(scorer, r):
    """1 / how often the group has this completion."""
    groups = r.sequences.unflatten(0, (-1, r.prompts.k))                    # (B, k, T)
    return 1 / equal_pairs(groups).sum(2).flatten()


def kl(scorer, r):
    """log policy - log reference of the completion, in nats. Its weight is negative. It is biased
    under top_k and top_p, as the estimators of the KL are."""
    # The mean of this number over completions is the KL. As a loss it is useless, because the mean
    # of its gradient is 0: see k1 in sampled_kl() in train_grpo.py. A reward is only multiplied
    # with the gradient of log p, and the mean of that product is the gradient of the KL.
    now = token_stats(r, r.model, scorer.reference, scorer.temperature)
    return (now.logp_full - now.logp_ref).sum(1)


# The rewards that need no function of yours: (a Scorer, a Rollout) -> N numbers.
BUILT_IN = {
    'judge': judged,
    'distinct': distinct,
    'kl': kl,
    'tokens': lambda scorer, r: r.lengths,      # number of sampled tokens
    'length': lambda scorer, r: r.lengths / r.sequences.size(1),    # share of the row; weight < 0
    'ended': lambda scorer, r: r.ended,         # 1 if eos was sampled, 0 if the length ran out
}
# functions written for TRL call these two columns by their plurals
PLURAL = {'prompt': 'prompts', 'completion': 'completions'}
TEXTS = {*PLURAL, *PLURAL.values(), 'ended'}
# names of other numbers in the log and in printed groups, which a function may not have. It may be
# called `reward`; then the log has only the sum of all rewards by this name.
NUMBERS = ['standard_error', 'judge_auc', 'advantage', 'start', 'greedy', 'training', 'step',
           'prompt', 'completion', 'lowest_reward']


class RewardError(AssertionError):
    """Scorer.score() raises it for whatever a reward raises, group_advantages() for rewards that it
    cannot divide by. Both come before learn(), so this step has changed nothing yet."""


@dataclass
class Scorer:
    """Computes rewards by their names. A field that the rewards do not need can be left out."""
    judge: nn.Module | None = None      # a frozen network
    verify: Callable | None = None      # (prompt, completion, answer) -> 1.0 if right, or less
    functions: dict = field(default_factory=dict)       # name: (prompts, completions) -> numbers
                                # they can ask for columns by name, see call()
    reference: nn.Module | None = None  # the frozen start, for the KL in the loss and in the reward
    temperature: float = 1.0            # of the reward 'kl'

    @torch.no_grad()
    def score(self, names, r):
        """Return {name: (B, k)} of the completions of a Rollout. Raise a RewardError that names the
        reward that failed."""
        scores = {}
        # Text is made when the first reward asks for it: built-in ones read ids.
        cases = functools.cache(r.cases)
        N = len(r.sequences)
        for name in names:
            try:
                # detach: scores are constants for the loss, whatever made them
                values = torch.as_tensor(self.score_one(name, r, cases), device=r.sequences.device,
                                         dtype=torch.get_default_dtype()).detach()
                assert values.shape == (N,), (
                    f"expected a list of {N} numbers, one for each completion, not "
                    f"{values.tolist()!r:.60}")
                bad = ~values.isfinite()
                assert not bad.any(), (
                    f"{cases()[bad.int().argmax()]['completion']!r:.60} got {values[bad][0]}")
            except Exception as e:                      # a function of yours can raise anything
                raise RewardError(f"reward '{name}': {type(e).__name__}: {e}") from e
            scores[name] = values.view(-1, r.prompts.k)
        return scores

    def score_one(self, name, r, cases):
        """Return one reward of the N completions of a Rollout: N numbers, as a tensor or a list."""
        if name in BUILT_IN:
            return BUILT_IN[name](self, r)
        # copies, because a function may change what it gets
        copies = [copy.deepcopy(case) for case in cases()]
        if name == 'verify':                    # one completion at a time
            return [call(self.verify, case) for case in copies]
        # a list for each column; TRL calls two of them `prompts` and `completions`
        columns = {}
        for column in copies[0]:
            columns[PLURAL.get(column, column)] = [case[column] for case in copies]
        values = call(self.functions[name], columns)
        assert values is not None, "it returned None: expected a list of numbers"
        if type(values) is list:                # TRL's functions may return None: does not apply
            values = [0.0 if value is None else float(value) for value in values]
        return values

    def goal(self, rewards):
        """Return the name of the number that a run watches: 'verify'; or 'reward', the weighted
        sum, if functions of the user are among the rewards, or if there is no verifier."""
        return 'verify' if self.verify and not rewards.keys() & self.functions.keys() else 'reward'

    def check(self, rewards):
        """Refuse rewards {name: weight} that do not exist, and names that stand for other numbers.
        """
        known = [*BUILT_IN, *self.functions]
        if self.verify:
            known.append('verify')
        assert rewards, "rewards = {}: expected one or more"
        for name, weight in rewards.items():
            assert type(weight) in (int, float) and math.isfinite(weight), (
                f"rewards = {rewards}: expected a finite number as the weight of '{name}'")
            assert name != 'kl' or weight <= 0, (
                f"rewards: expected a weight of 0 or less for 'kl', not {weight}")
            if name not in known:
                fail_unknown("rewards: expected a built-in one, a function of a config file on the "
                             "command line (add the file that defines it), or 'verify' if the "
                             "dataset has answers or a checker, not", name, known)
        # In the log a function would hide the number that has its name.
        hiding = self.functions.keys() & {'verify', *BUILT_IN, *NUMBERS}
        assert not hiding, f"rewards: other numbers have the names of your functions {hiding}"

    def shown_names(self, rewards, typed_prompt=''):
        """Return the names of all that can be shown of a completion: verify, the rewards, distinct.
        A typed prompt has no answer, so functions that ask for one, or for columns, are left out.
        """
        functions = {'verify': self.verify} | self.functions
        names = dict.fromkeys(['verify', *rewards, 'distinct'])
        if self.verify is None:
            names.pop('verify')
        return [name for name in names if name in BUILT_IN or not typed_prompt
                or not missing_names(functions[name], TEXTS)]


signature = functools.cache(inspect.signature)  # verify() is called for each completion


def missing_names(function, known):
    """Return the parameters without a default that are not known, *args and **kwargs aside."""
    return [name for name, p in signature(function).parameters.items() if name not in known
            and p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def call(function, known):
    """Call a function as TRL does: with those of its parameters that are known {name: value}, or
    with all that is known if it has **kwargs. A parameter without a default must be known."""
    missing = missing_names(function, known)
    assert not missing, f"it asks for {', '.join(missing)}: expected names among {', '.join(known)}"
    parameters = signature(function).parameters
    if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
        known = {name: known[name] for name in known if name in parameters}
    return function(**known)


def auc(scores, labels):
    """Return P(score of a 1 > score of a 0) + half of the ties, of scores with labels bool, tensors
    of one shape; 0.5 if all labels are equal."""
    zeros = scores[~labels].sort().values
    ones = scores[labels]
    below = torch.searchsorted(zeros, ones) + torch.searchsorted(zeros, ones, right=True)
    return (below / (2 * len(zeros))).mean().nan_to_num(0.5).item()
