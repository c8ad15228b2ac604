"""A Rollout: k completions of each of some prompts, and in which pass each token was sampled. How a
token is sampled, and what networks say of it later, when they learn.

fill.py and write.py make Rollouts: they fill blanks in passes, or write from left to right."""
import functools
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from run.batching import distinct_rows, in_parts
from run.machine import as_numbers

# letters: B prompts, k completions of each: N = B * k sequences | T tokens in a sequence
# V base ids | C channels | M sampled tokens of all sequences | I passes | S different states
# U different places, a place is a position in a state


# ---- prompts: sequences with blanks --------------------------------------------------------------


@dataclass
class Prompts:
    """n prompts, and the random numbers with which each of them is completed k times."""
    tokens: Tensor      # (n, T) ids; in the blanks the original text, if there is one
    blank: Tensor       # (n, T) bool: what is to be filled in
    uniforms: Tensor    # (n, k, T) in [0, 1): completion j takes [:, j]
    order: Tensor       # (n, T) random keys; several passes fill blanks with low keys first
    more_uniforms: Tensor       # (n, k, J, T) in [0, 1): for the decisions of a learned order, J is
                        # its passes but the last; or for the masks of an estimate of the
                        # likelihood, two for each epoch. Never for both. Else J = 0
    row: Tensor         # (n,) numbers of their rows in the dataset
    data: object        # the Dataset, see dataset.py; it can turn ids into text

    def __len__(self):
        return len(self.tokens)

    @property
    def k(self):
        return self.uniforms.size(1)

    @functools.cached_property
    def shown(self):
        """The ids of each prompt, a list, with blank_id where it is blank."""
        return self.tokens.masked_fill(self.blank, self.data.tok.blank_id).tolist()

    def map(self, change):
        """Return the same Prompts with each tensor changed."""
        return replace(self, **{name: change(value) for name, value in vars(self).items()
                                if isinstance(value, Tensor)})

    def to(self, device):
        return self.map(lambda tensor: tensor.to(device))

    def __getitem__(self, index):
        return self.map(lambda tensor: tensor[index])


# ---- rollouts: their completions -----------------------------------------------------------------


# An example of a Rollout: two prompts, 7 _ _ and 2 _ _, completed k = 2 times, in two passes.
#
#     sequences       7 4 9     7 5 1     2 8 6     2 8 3       N = 4
#     pass_of         . 0 1     . 0 1     . 0 1     . 0 1       a dot is -1: this token was given
#
# The states, in which the network saw the sequences before each pass; of these eight S = 5 differ:
#
#     before pass 0   7 _ _     7 _ _     2 _ _     2 _ _       state_of    0 0 1 1
#     before pass 1   7 4 _     7 5 _     2 8 _     2 8 _                   2 3 4 4


@dataclass
class Rollout:
    """k completions of each of B prompts; the example above has the names. Tokens of one pass were
    sampled at once: none of them knew the others."""
    prompts: Prompts            # B of them
    sequences: Tensor           # (N, T); sequence b * k + j is completion j of prompt b
    pass_of: Tensor             # (N, T) in which pass a token was sampled, from 0; -1: it was not,
                                # because it belongs to the prompt, or comes after the end, or the
                                # world said it
    logp_sampled: Tensor        # (N, T) log-probability of a token when it was sampled, plus those
                                # of the decisions when to sample it; 0 elsewhere. (ppo() compares
                                # with logp_old: learn() says why)
    states: Tensor | None = None        # (S, T) the different states in which the network saw them
    state_of: Tensor | None = None      # (I, N) the state of each sequence before each pass. From
                                # left to right a sequence is its own state in all passes, because
                                # a token sees only what is to its left: there is one row
    temperature: float = 1.0    # at which they were sampled, and are learned
    kept: Tensor | None = None  # (M, V) bool: the ids that top-k and top-p kept for each sampled
                                # token, in the order of is_sampled.nonzero(); None: no filter
    start: int = 0              # from left to right: the first column in which one was sampled
    n_decisions: int = 0        # a learned order: passes in which the policy decides what it fills
    epoch: int = 0              # an estimate of the likelihood draws other masks in each epoch
    # what a step computes once, and then uses again
    stats_old: 'TokenStats | None' = None       # of the policy before the first update of a step
    x_ref: dict = field(default_factory=dict)   # {reference: its features (S * T, C) in all states}

    @functools.cached_property
    def is_sampled(self):
        """Where a token was sampled (N, T), bool."""
        return self.pass_of >= 0

    @property
    def lengths(self):
        """The number of sampled tokens in each sequence (N,)."""
        return self.is_sampled.sum(1)

    @functools.cached_property
    def ended(self):
        """Whether each sequence ended (N,), bool: the policy wrote eos, or a world ended it, which
        leaves padding."""
        tok = self.prompts.data.tok
        blank = self.prompts.blank.repeat_interleave(self.prompts.k, 0)         # (N, T)
        has_eos = self.is_sampled & (self.sequences == tok.eos)
        return (has_eos | blank & (self.sequences == tok.pad)).any(1)

    def only(self, chosen):
        """Return this Rollout as if no token but those of the chosen sequences (N,) bool had been
        sampled. What networks say of the others is not computed."""
        others = ~chosen[:, None]                                               # (N, 1)
        kept = self.kept
        if kept is not None:
            kept = kept[chosen[self.is_sampled.nonzero()[:, 0]]]
        stats_old = self.stats_old
        if stats_old:
            stats_old = TokenStats(*[values.masked_fill(others, 0) for values in stats_old])
        # The others are in the state of the first sequence, as if nobody had seen their own.
        state_of = torch.where(chosen, self.state_of, self.state_of[0, 0])
        used, state_of = state_of.unique(return_inverse=True)
        return replace(self, pass_of=self.pass_of.masked_fill(others, -1), kept=kept,
                       logp_sampled=self.logp_sampled.masked_fill(others, 0), stats_old=stats_old,
                       states=self.states[used], state_of=state_of, x_ref={})

    def of_epoch(self, epoch):
        """Return this Rollout as an epoch learns from it, if the likelihood is an estimate."""
        return replace(self, epoch=epoch, stats_old=None, x_ref={})

    def mask_uniforms(self):
        """Return the random numbers of an estimate, in [0, 1): one for each token (N, T), and one
        for each sequence (N, 1)."""
        uniforms = self.prompts.more_uniforms.flatten(0, 1)                     # (N, 2 * epochs, T)
        return uniforms[:, 2 * self.epoch], uniforms[:, 2 * self.epoch + 1, :1]

    def cases(self):
        """Return a dict for each sequence: 'prompt', 'completion', 'text', 'ended', columns of the
        dataset, and 'sampled': the completion without the words of a world."""
        data = self.prompts.data
        cases = data.cases(self.prompts, self.sequences, range(len(self.sequences)))
        sampled = self.sequences.masked_fill(~self.is_sampled, data.tok.pad).tolist()
        write = data.tok.completion_of if data.causal else data.tok.text_of
        for case, ended, ids in zip(cases, self.ended.tolist(), sampled):
            case |= {'ended': ended, 'sampled': write(ids)}
        return cases


# ---- sampling: one log_probs() to sample, to score, and in the ratio -----------------------------


def log_probs(logits, temperature=1.0, kept=None):
    """Return log-probabilities (M, V) of softmax(logits / temperature), in nats. Ids that are False
    in kept (M, V) have probability 0; None: all ids are kept."""
    if temperature != 1.0:
        logits = logits / temperature
    if kept is not None:
        # -1e9 rather than -inf: p is still exactly 0, and p * log p is 0 instead of NaN
        logits = logits.masked_fill(~kept, -1e9)
    return logits.log_softmax(-1)


def kept_set(logp, top_k=0, top_p=1.0):
    """Return the ids (M, V) bool that the filters keep. top_k: so many of the likeliest, 0: all.
    top_p: of what top_k keeps, the fewest ids with this share of its mass (arXiv:1904.09751)."""
    p, order = logp.exp().sort(-1, descending=True)
    if top_k > 0:
        p[:, top_k:] = 0
    cdf = p.cumsum(-1)
    # An id is kept if the likelier ids together have less than this, and if top_k has not set it to
    # 0. (The parallel sum of a GPU can rise by a rounding error behind all the mass.)
    keep = (cdf - p < top_p * cdf[:, -1:]) & (p > 0)
    return keep.scatter(-1, order, keep)        # back into the order of the ids


def draw(logp, uniforms):
    """Return ids (M,) drawn from log-probs (M, V) by inverse CDF, from uniforms (M,) in [0, 1).
    Unlike torch.multinomial, this gives the same ids for any number of ranks and micro-steps."""
    # The CDF rises from 0 to 1. A uniform u draws the first id whose CDF exceeds u. (The parallel
    # sum of a GPU can fall by a rounding error, and searchsorted must not see that.)
    cdf = logp.exp().cumsum_(-1).cummax(-1).values                  # (M, V)
    # Rounding must not push u * top past the last id that has a probability.
    top = cdf[:, -1] * (1 - 2e-7)                                   # (M,)
    ids = torch.searchsorted(cdf, (uniforms * top)[:, None], right=True)[:, 0]
    return ids.clamp(max=logp.size(1) - 1)      # of a policy that is ruined, all are NaN


def choose(logits, uniforms, temperature=1.0, top_k=0, top_p=1.0, greedy=False):
    """Sample from logits (M, V) with uniforms (M,). Return ids (M,), their log-probabilities (M,),
    and the ids that a filter kept (M, V) bool; None: there is no filter. greedy: take the likeliest
    id."""
    logp = log_probs(logits, temperature)                           # (M, V)
    kept = None
    if top_k > 0 or top_p < 1:
        kept = kept_set(logp, top_k, top_p)
        logp = log_probs(logits, temperature, kept)
    ids = logits.argmax(-1) if greedy else draw(logp, uniforms)
    return ids, logp_of(ids, logp), kept


def logp_of(ids, logp):
    """Return the log-probabilities (M,) of ids (M,), from those of all ids (M, V)."""
    return logp.gather(1, ids[:, None])[:, 0]


class Draft:
    """Completions in the making. fill() and write() say which tokens come next, and a Draft samples
    them, until it is a Rollout."""

    def __init__(self, model, prompts, **sampling):
        """sampling: temperature, top_k, top_p and greedy, see choose()."""
        assert not model.is_classifier, "a classifier cannot generate"
        self.model = model
        self.prompts = prompts
        self.sampling = sampling
        # What is to come is a blank; from left to right it is padding, and stays padding after the
        # end.
        to_come = model.pad_id if model.causal else model.blank_id
        sequences = prompts.tokens.masked_fill(prompts.blank, to_come)              # (B, T)
        self.sequences = sequences.repeat_interleave(prompts.k, 0)                  # (N, T)
        self.uniforms = prompts.uniforms.flatten(0, 1)                              # (N, T)
        self.pass_of = torch.full_like(self.sequences, -1)
        self.logp_sampled = self.uniforms.new_zeros(self.sequences.shape, dtype=model.dtype)
        self.kept = []                          # (M, V) of each pass, and where these tokens are

    def sample(self, i, n, t, x):
        """Sample, in pass i, the tokens at positions t (M,), or at position t, of sequences n (M,),
        from their features x (M, C)."""
        def part(x, uniforms):
            return choose(self.model.logits(x), uniforms, **self.sampling)

        # blank_id is V
        ids, logp, kept = in_parts(part, self.model.blank_id, x, self.uniforms[n, t])
        self.sequences[n, t] = ids
        self.pass_of[n, t] = i
        self.logp_sampled[n, t] += logp         # decisions may be there already
        if kept is not None:
            self.kept.append((kept, n * self.sequences.size(1) + t))

    def rollout(self, states, state_of, **more):
        """Return the Rollout, of states (S, T), state_of (I, N) and other fields."""
        as_numbers({'log-probabilities': self.logp_sampled.sum()})      # or the run ends
        if self.kept:                           # into the order of is_sampled.nonzero()
            kept, places = map(torch.cat, zip(*self.kept))
            more['kept'] = kept[places.argsort()]
        temperature = self.sampling.get('temperature', 1.0)
        return Rollout(self.prompts, self.sequences, self.pass_of, self.logp_sampled, states,
                       state_of, temperature, **more)


# ---- likelihoods: what networks say of sampled tokens --------------------------------------------


class TokenStats(NamedTuple):
    """What a policy, as it is now, and a reference say of the tokens that a Rollout sampled: (N, T)
    each, in nats, 0 where no token was sampled. All are at the temperature that samples; decisions
    of a learned order, which are added, have none."""
    logp: Tensor        # of the policy now, among the ids that top-k and top-p kept when sampling
    logp_full: Tensor   # of the policy now, among all ids
    logp_ref: Tensor    # of the reference, among all ids; without a reference that of the policy
    kl: Tensor          # KL(policy || reference) of the token's distribution, unfiltered
    forward_kl: Tensor  # KL(reference || policy)
    entropy: Tensor     # of the policy


def stats_of(logits, row, ids, logits_ref=None, kept=None, temperature=1.0):
    """Return the TokenStats (M,) of ids (M,) that were sampled from these rows (M,) of logits
    (U, V). logits_ref (U, V); None: there is no reference, so the KL is 0. kept (M, V): the
    ids that the filters kept; None: all."""
    logp_full = log_probs(logits, temperature)                              # (U, V)
    logp = logp_of_full = logp_full[row, ids]                               # (M,)
    if kept is not None:
        logp = logp_of(ids, log_probs(logits[row], temperature, kept))
    p = logp_full.exp()
    entropy = -(p * logp_full).sum(-1)                                      # (U,)
    logp_ref = logp_full.detach()
    kl = forward_kl = torch.zeros_like(entropy)
    if logits_ref is not None:
        logp_ref = log_probs(logits_ref, temperature)
        gap = logp_full - logp_ref                                          # (U, V)
        kl = (p * gap).sum(-1)
        forward_kl = -(logp_ref.exp() * gap).sum(-1)
    return TokenStats(logp, logp_of_full, logp_ref[row, ids], kl[row], forward_kl[row],
                      entropy[row])


def token_stats(r, policy, reference=None):
    """Return the TokenStats of a Rollout, with the policy's gradient: each token in the state in
    which it was sampled. This is exact, given the order. (If blanks were filled by 'confident',
    this is all before the first update of a step. Later the policy might choose another order, and
    the ratio leaves that out.)"""
    i = r.pass_of.clamp(0, len(r.state_of) - 1)     # (N, T) rows of state_of; -1 is not looked at
    # in the example this is . 0 2 for the first sequence and . 1 4 for the last
    return stats_in(r.states, r.state_of.T.gather(1, i), r, policy, reference)


def stats_with_blanks(is_blank, r, policy, reference=None):
    """Return the TokenStats of a Rollout whose tokens are seen with other blanks, (N, T) bool, than
    when they were sampled. Many papers on masked diffusion models do not keep the states in which
    tokens were sampled, and estimate the likelihood so: d1.py, diffucoder.py and unigrpo.py in
    config/papers/."""
    assert not policy.causal, "a causal generator has no blanks: expected another likelihood"
    sequences = r.sequences.masked_fill(is_blank, policy.blank_id)
    first, state_of = distinct_rows(sequences, r.is_sampled.any(1))
    return stats_in(sequences[first], state_of[:, None].expand(is_blank.shape),
                    replace(r, x_ref={}), policy, reference)


def stats_in(states, seen_in, r, policy, reference=None):
    """Return the TokenStats of a Rollout whose tokens are seen in states (S, T): seen_in (N, T)
    says in which of them each token is. The features of a reference never change, so they are kept
    in r.x_ref."""
    x = policy(states, r.start).flatten(0, 1)                               # (S * T, C)
    if reference and reference not in r.x_ref:
        with torch.no_grad():
            r.x_ref[reference] = reference(states, r.start).flatten(0, 1)
    x_ref = r.x_ref.get(reference)

    def part(place, ids, kept):
        # Tokens at one place of one state share a row of logits. (A row for each token would make
        # steps of config/grpo_config.py 1.1 times as long, and with the 50,000 ids of GPT-2 this
        # function 30 times as slow.)
        place, row = place.unique(return_inverse=True)                      # (U,), (M,)
        logits = policy.logits(x.index_select(0, place))                    # (U, V)
        logits_ref = reference.logits(x_ref.index_select(0, place)) if reference else None
        return stats_of(logits, row, ids, logits_ref, kept, r.temperature)

    n, t = r.is_sampled.nonzero(as_tuple=True)                              # (M,) each
    place = seen_in[n, t] * states.size(1) + t                              # (M,) as rows of x
    values = in_parts(part, policy.blank_id, place, r.sequences[n, t], r.kept)      # (M,) each
    values = torch.stack([*values], 1)                                      # (M, 6)
    stats = values.new_zeros(*r.sequences.shape, 6).index_put((n, t), values)       # (N, T, 6)
    if r.n_decisions > 0:                       # of a learned order; they are in x, too
        stats = stats + decision_stats(r, policy, x, reference, x_ref)
    return TokenStats(*stats.unbind(2))


def decision_stats(r, policy, x, reference=None, x_ref=None):
    """Return the numbers of TokenStats (N, T, 6) of the decisions of a learned order: of each blank
    the sum over the passes in which it was open. x, x_ref (S * T, C): features of the policy and of
    the reference in the states that sampled."""
    passes = torch.arange(r.n_decisions, device=x.device)[:, None, None]
    is_open = r.pass_of >= passes                                   # (n_decisions, N, T)
    i, n, t = is_open.nonzero(as_tuple=True)                                # (D,) each
    place = r.state_of[i, n] * r.sequences.size(1) + t                      # (D,) as rows of x
    is_now = (r.pass_of[n, t] == i).long()

    def logits(model, x):                       # (D, 2), to wait and to fill it now
        score = model.order_scores(x[place])
        return torch.stack((torch.zeros_like(score), score), 1)

    logits_ref = logits(reference, x_ref) if reference else None
    row = torch.arange(len(n), device=x.device)
    values = torch.stack(stats_of(logits(policy, x), row, is_now, logits_ref), 1)   # (D, 6)
    stats = values.new_zeros(*r.sequences.shape, 6)
    return stats.index_put((n, t), values, accumulate=True)
