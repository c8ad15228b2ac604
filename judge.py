"""Scores of completions: a frozen judge, a verifier, your own functions.

A judge is a network. A causal one scores a text by its likelihood: the mean
log-probability of its tokens, in nats. A classifier gives P(label = 1)."""
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from run.batching import NUMBERS_AT_ONCE, distinct_rows
from run.command import by_name, fail_unknown

# letters: N sequences, k completions of each of B prompts | T tokens


def judge_sequences(judge, sequences, where):
    """Return scores (N,) of sequences (N, T): a classifier's P(label = 1), or the mean of the
    log-probabilities, in nats, of the tokens at where (N, T).

    Equal sequences go through the network once. This saves time, and their scores are equal to the
    last bit. Otherwise adv_norm = 'std' would amplify the rounding errors of equal completions."""
    assert judge.causal or judge.is_classifier, (
        "the judge fills blanks: expected a causal network or a classifier")
    if not judge.has_bos:       # then the first token has no probability, and does not count
        where = where.clone()
        where[:, 0] = False
    first, index = distinct_rows(sequences)
    # A token needs so many numbers at once. At least one sequence is scored at a time.
    width = max(judge.blank_id, 16 * judge.head.in_features)
    parts = sequences[first].split(1 + NUMBERS_AT_ONCE // width // sequences.size(1))
    score = classify if judge.is_classifier else token_logp
    scores = torch.cat([score(judge, part) for part in parts])[index]           # (N,) or (N, T)
    # A classifier reads whole sequences; a likelihood is that of the tokens that are asked for.
    return scores.sigmoid() if judge.is_classifier else (scores * where).sum(1) / where.sum(1)


def token_logp(judge, sequences):
    """Return the log-probability (N, T) of each token of sequences (N, T); 0 for padding."""
    # Only real tokens have logits. Back in their rectangle, padding keeps the 0.
    n, t = (sequences != judge.pad_id).nonzero(as_tuple=True)                   # (tokens,) each
    logits = judge.logits(judge(sequences)[n, t])                               # (tokens, V)
    logp = -F.cross_entropy(logits, sequences[n, t], reduction='none')
    return logp.new_zeros(sequences.shape).index_put((n, t), logp)


def classify(judge, sequences):
    """Return the logits (N,) of label 1: the mean output of the network over all real tokens."""
    # A classifier is bidirectional: each position sees the whole sequence and gives an output.
    is_real = sequences != judge.pad_id                                         # (N, T)
    logits = judge.logits(judge(sequences))[..., 0]                       # (N, T)
    return (logits * is_real).sum(1) / is_real.sum(1)


# ---- rewards -------------------------------------------------------------------------------------


def judged(scorer, r):
    """What the judge says. A classifier reads whole sequences. A likelihood is that of all tokens,
    or, if the generator is causal, of those of the completion."""
    where = r.is_sampled if r.prompts.data.causal else r.sequences != scorer.judge.pad_id
    return judge_sequences(scorer.judge, r.sequences, where)


def distinct(scorer, r):
    """1 / how often the group has this completion."""
    _, index = distinct_rows(r.sequences)                                       # (N,)
    groups = index.view(-1, r.prompts.k)                                       # (B, k)
    return 1 / (groups[:, :, None] == groups[:, None]).sum(2).flatten()


def kl(scorer, r):
    """log policy - log reference of the completion, in nats. Its weight is negative. It is biased
    under top_k and top_p, as the estimators of the KL are."""
    # The mean of this number over completions is the KL. As a loss it is useless, because the mean
    # of its gradient is 0: see config/kl/k1.py. A reward is only multiplied
    # with the gradient of log p, and the mean of that product is the gradient of the KL.
    return (r.stats_old.logp_full - r.stats_old.logp_ref).sum(1)


# The rewards that need no function of yours: (a Scorer, a Rollout) -> N numbers.
BUILT_IN = {
    'judge': judged,
    'distinct': distinct,
    'kl': kl,
    'tokens': lambda scorer, r: r.lengths,      # number of sampled tokens
    # that filled the blanks (from left to right each token is one); weight < 0
    'passes': lambda scorer, r: r.lengths if r.prompts.data.causal else r.pass_of.amax(1) + 1,
    'length': lambda scorer, r: r.lengths / r.sequences.size(1),    # share of the row; weight < 0
    # 1 if the policy or a world ended it, 0 if the length ran out
    'ended': lambda scorer, r: r.ended,
    # 1 if it has characters that only the world writes in the texts
    'forged': lambda scorer, r: (r.is_sampled & torch.isin(
        r.sequences, torch.tensor(r.prompts.data.world_ids, device=r.sequences.device))).any(1),
    # how often the policy began to write: after its prompt, and after each word of a world
    'turns': lambda scorer, r: (r.is_sampled & ~F.pad(r.is_sampled[:, :-1], (1, 0))).sum(1),
}
LARGEST = torch.finfo(torch.float32).max        # of finite numbers
# functions of the user, which score many completions at once, call these columns by their plurals
PLURAL = {'prompt': 'prompts', 'completion': 'completions', 'text': 'texts'}


@dataclass
class Scorer:
    """Computes rewards by their names. A field that the rewards do not need can be left out."""
    judge: nn.Module | None = None      # a frozen network
    verify: Callable | None = None      # one completion, by names such as `text` and `answer` ->
                                # 1.0 if it is right, or less; or None
    functions: dict = field(default_factory=dict)       # name: (prompts, completions, texts, ...)
                                # -> a number for each, or None; they get the columns that they
                                # name
    reference: nn.Module | None = None  # the frozen start, for the KL in the loss and in the reward

    @torch.no_grad()
    def score(self, names, r):
        """Return {name: (B, k)} of the completions of a Rollout; NaN is a missing value, where a
        function has returned None. An error names the reward and, if it is known, the completion.
        """
        # Text is made when the first reward asks for it: built-in ones read ids.
        cases = functools.cache(r.cases)
        scores = {}
        for name in names:
            numbers = None                      # of the completions so far; the next one can fail
            try:
                values = self.score_one(name, r, cases)
                numbers = []
                for value in values:
                    # (a text is no number, though float() takes it)
                    is_number = hasattr(value, '__float__') and abs(float(value)) <= LARGEST
                    assert value is None or is_number, (
                        f"expected None or a finite number, not {value!r:.60}")
                    numbers.append(math.nan if value is None else float(value))
            except BaseException as e:          # a function of yours can raise anything
                of = ''
                if numbers is not None:
                    case = cases()[len(numbers)]
                    of = f" of {case['completion']!r:.60}, prompt {case['prompt']!r:.60}"
                raise AssertionError(f"reward '{name}'{of}: {e!r:.300}") from e
            scores[name] = torch.tensor(numbers, device=r.sequences.device).view(-1, r.prompts.k)
        return scores

    def score_one(self, name, r, cases):
        """Return one reward of the N completions of a Rollout: N numbers."""
        if name in BUILT_IN:
            return BUILT_IN[name](self, r).tolist()
        if name == 'verify':
            return map(by_name(self.verify), cases())      # one completion at a time
        lists = {column: [case[column] for case in cases()] for column in cases()[0]}
        lists |= {plural: lists.pop(column) for column, plural in PLURAL.items()}
        values = by_name(self.functions[name])(lists)
        if hasattr(values, 'tolist'):           # a tensor, or an array of numpy
            values = values.tolist()
        assert type(values) in (list, tuple), (
            f"expected a list of numbers, not {values!r:.80}; has it a `return`?")
        assert len(values) == len(cases()), (
            f"expected {len(cases())} numbers, one for each completion, not {len(values)}")
        return values

    def goal(self, rewards):
        """Return the name of the number that a run watches: 'verify'; or 'reward', the weighted
        sum, if functions of the user are among the rewards, or if there is no verifier."""
        return 'verify' if self.verify and not rewards.keys() & self.functions.keys() else 'reward'


def check_rewards(rewards, verify, functions):
    """Refuse rewards {name: weight} that nobody can compute."""
    # the log and the printed groups have other columns of these names
    known = [name for name in (*BUILT_IN, *functions) if name not in ('reward', 'advantage')]
    if verify:                                  # the dataset has answers or a checker
        known.append('verify')
    assert rewards, "rewards = {}: expected one or more"
    for name, weight in rewards.items():
        if known.count(name) != 1:
            fail_unknown(f'rewards: expected some of {known}, each with one meaning, not', name,
                         known)
        assert type(weight) in (int, float) and abs(weight) < 1e9, (
            f"rewards: expected a number as the weight of {name}, not {weight!r}")
