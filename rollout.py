"""Sampling: a network completes prompts, in one pass, in several passes, or from left to right. A
Rollout keeps the completions and every token that was sampled on the way to them."""
import collections
import os
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from data.dataset import Prompts
from model import first_true

# letters: B prompts, k completions of each: N = B * k sequences | T tokens in a sequence
# V base ids | C channels | M sampled tokens, drawn from U distributions, which S states gave

LOGITS_AT_ONCE = 2 ** 24    # of the policy, when it learns: 67 MB of float32


# An example of a Rollout: two prompts, 7 _ _ and 2 _ _, filled k = 2 times, in two passes, the left
# blank first. In the first pass both completions of a prompt are in one state. In the second so are
# those of the second prompt, because both took an 8.
#
#     sequences          7 4 9   7 5 1   2 8 6   2 8 3           N = 4
#
#                        first pass      second pass
#     states             7 _ _   2 _ _   7 4 _   7 5 _   2 8 _   S = 5
#     where                x       x         x       x       x   U = 5 distributions, 0 to 4
#
#     drawn_from         . 0 2   . 0 3   . 1 4   . 1 4           a dot is -1


@dataclass
class Rollout:
    """k completions of each of B prompts, and how each token came about; the example above has the
    names. `states` are the inputs that the network saw. It gave a distribution at each True
    of `where`: U in all, numbered row by row. `drawn_from` has the number of the distribution that
    each token was drawn from. Completions of a prompt that are equal so far share a state, and so
    its distributions. From left to right it is simpler: the states are the sequences, and each
    token has a distribution of its own."""
    prompts: Prompts            # B of them
    sequences: Tensor           # (N, T); sequence b * k + j is completion j of prompt b
    states: Tensor              # (S, T) inputs of all passes, with blanks where nothing is yet
    where: Tensor               # (S, T) bool: the U places where the network gave a distribution
    drawn_from: Tensor          # (N, T) number of the distribution that a token was drawn from; -1
                                # where none was sampled: in the prompt, and after the end
    logp_sampled: Tensor        # (N, T) log-probability of a token when it was sampled; 0 elsewhere
                                # (only for the log: the ratio takes logp_old)
    kept: Tensor                # (U, V) bool: what top-k and top-p kept; (U, 1) without a filter
    model: nn.Module | None = None      # the network that sampled; the reward 'kl' asks it again
    logp_old: Tensor | None = None      # (N, T) log-probability before the first update; None if
                                # the step has a single update
    x_ref: Tensor | None = None         # (U, C) features of the reference, once they were needed

    def features_of(self, model):
        """Return any model's features (U, C), one row for each distribution of this Rollout."""
        copies = self.prompts.k if model.causal else 1
        return model(self.states, self.where, copies)

    @property
    def is_sampled(self):
        """The places (N, T) where a token was sampled, bool."""
        return self.drawn_from >= 0

    @property
    def n_tokens(self):
        """The number of sampled tokens, M."""
        return int(self.is_sampled.sum())

    @property
    def lengths(self):
        """The number of sampled tokens in each sequence (N,)."""
        return self.is_sampled.sum(1)

    @property
    def ended(self):
        """Whether eos was sampled in each sequence (N,), bool."""
        return (self.is_sampled & (self.sequences == self.prompts.data.tok.eos)).any(1)

    def tokens(self):
        """Return the M sampled tokens in the order of their distributions: sequence, position and
        distribution of each, (M,)."""
        n, t = self.is_sampled.nonzero(as_tuple=True)
        u, order = self.drawn_from[n, t].sort(stable=True)
        return n[order], t[order], u

    def of_prompts(self, chosen):
        """Return the part of this Rollout that belongs to the chosen (B,) prompts."""
        rows = chosen.repeat_interleave(self.prompts.k)                     # (N,), n True
        drawn_from = self.drawn_from[rows]                                      # (n, T)
        numbers = torch.arange(len(self.kept), device=chosen.device)            # (U,)
        used = torch.isin(numbers, drawn_from)
        where = self.where.clone()                                              # (S, T)
        where[self.where] = used                # only used distributions keep their True
        is_state = where.any(1)                                                 # (S,)
        # The new number of a distribution is how many used ones precede it. (logp_old comes later.)
        new_number = used.cumsum(0) - 1                                         # (U,)
        drawn_from = torch.where(drawn_from < 0, -1, new_number[drawn_from])
        return replace(self, prompts=self.prompts[chosen],
                       sequences=self.sequences[rows],
                       states=self.states[is_state],
                       where=where[is_state],
                       drawn_from=drawn_from,
                       logp_sampled=self.logp_sampled[rows],
                       kept=self.kept[used],
                       x_ref=None if self.x_ref is None else self.x_ref[used])

    def cases(self):
        """Return a dict for each sequence: 'prompt', 'completion', 'ended', and columns of the
        dataset."""
        cases = self.prompts.data.cases_of(self.prompts, self.sequences)
        return [{'ended': ended} | case for case, ended in zip(cases, self.ended.tolist())]


# ---- one log_probs() to sample, to score, and in the ratio ---------------------------------------


def log_probs(logits, temperature=1.0, kept=None):
    """Return log-probabilities (U, V) of softmax(logits / temperature), in nats. Ids that are False
    in kept (U, V) have probability 0; None: all ids are kept."""
    logits = logits / temperature
    if kept is not None:
        # -1e9 rather than -inf: p is still exactly 0, and p * log p is 0 instead of NaN
        logits = logits.masked_fill(~kept, -1e9)
    return logits.log_softmax(-1)


def kept_set(logp, top_k=0, top_p=1.0):
    """Return the ids (U, V) bool that the filters keep. top_k: so many of the likeliest, 0: all.
    top_p: of what top_k keeps, the fewest ids with this share of its mass (arXiv:1904.09751)."""
    p, order = logp.exp().sort(-1, descending=True)
    if top_k > 0:
        p[:, top_k:] = 0
    cdf = p.cumsum(-1)
    # An id is kept if the likelier ids together have less than this. What top_k has set to 0 comes
    # after all the mass, so it is never kept.
    keep = cdf - p < top_p * cdf[:, -1:]
    return keep.scatter(-1, order, keep)        # back into the order of the ids


def draw(logp, uniforms):
    """Return ids (U, k) drawn from log-probs (U, V) by inverse CDF, from uniforms (U, k) in [0, 1).
    Unlike torch.multinomial, this gives the same ids for any number of ranks and micro-steps."""
    # The CDF rises from 0 to 1. A uniform u draws the first id whose CDF exceeds u. (The parallel
    # sum of a GPU can fall by a rounding error, and searchsorted must not see that.)
    cdf = logp.exp().cumsum_(-1).cummax(-1).values                  # (U, V)
    # Rounding must not push u * top past the last id that has a probability.
    top = cdf[:, -1:] * (1 - 2e-7)                                  # (U, 1)
    return torch.searchsorted(cdf, uniforms * top, right=True)


def choose(logits, uniforms, temperature=1.0, top_k=0, top_p=1.0, greedy=False):
    """Sample from logits (U, V) with uniforms (U, k). Return ids (U, k), their log-probabilities
    (U, k), and the kept set (U, V) bool, or (U, 1) without a filter. greedy: take the likeliest id.
    """
    logp = log_probs(logits, temperature)                           # (U, V)
    kept = torch.ones_like(logp[:, :1], dtype=torch.bool)           # all ids
    if top_k > 0 or top_p < 1:
        kept = kept_set(logp, top_k, top_p)
        logp = log_probs(logits, temperature, kept)
    assert logp.isfinite().all(), (
        "log-probabilities are not finite, so no checkpoint was overwritten; try a lower "
        "learning_rate")
    if greedy:
        ids = logits.argmax(-1, keepdim=True).expand_as(uniforms)   # (U, k)
    else:
        ids = draw(logp, uniforms)
    return ids, logp.gather(1, ids), kept


# ---- what networks say of sampled tokens ---------------------------------------------------------


class TokenStats(NamedTuple):
    """What a policy, as it is now, and a reference say of the tokens that a Rollout sampled: (N, T)
    each, in nats, 0 where no token was sampled. All are at the temperature that samples."""
    logp: Tensor        # of the policy now, among the ids that top-k and top-p kept when sampling
    logp_full: Tensor   # of the policy now, among all ids
    logp_ref: Tensor    # of the reference, among all ids
    kl: Tensor          # KL(policy || reference) of the token's distribution, unfiltered
    entropy: Tensor     # and its entropy


def exact_kl(logp, logp_ref):
    """Return KL(policy || reference) (U,) in nats, of log-probabilities (U, V)."""
    return (logp.exp() * (logp - logp_ref)).sum(-1)


def stats_of(logits, logits_ref, kept, u, actions, temperature=1.0):
    """Return the five numbers of TokenStats, (M,) each, of the ids `actions` (M,), drawn from the
    distributions u (M,) of logits (U, V). kept: the ids that top-k and top-p keep. logits_ref (U,
    V); None: there is no reference, so the KL is 0."""
    logp_full = log_probs(logits, temperature)                              # (U, V)
    logp = logp_full
    if kept.size(1) > 1:                        # a filter
        logp = log_probs(logits, temperature, kept)
    logp_ref = logp_full.detach()
    entropy = -(logp_full.exp() * logp_full).sum(-1)
    kl = torch.zeros_like(entropy)
    if logits_ref is not None:
        logp_ref = log_probs(logits_ref, temperature)
        kl = exact_kl(logp_full, logp_ref)
    return logp[u, actions], logp_full[u, actions], logp_ref[u, actions], kl[u], entropy[u]


def token_stats(r, policy, reference=None, temperature=1.0):
    """Return the TokenStats of a Rollout, with the policy's gradient. The features of the reference
    never change, so the first call keeps them in r.x_ref.

    U x V logits, and all that is made of them, would be most of the memory of a step. So only a
    part of them exists at a time, and the backward pass makes each part again."""
    x = r.features_of(policy)                                               # (U, C)
    if reference and r.x_ref is None:
        with torch.no_grad():
            r.x_ref = r.features_of(reference)
    x_ref = r.x_ref if reference else x         # without a reference nobody reads it
    # Part i has the distributions from i * size on. Tokens are sorted by their distributions, so
    # those of part i stand together: counts[i] of them.
    n, t, u = r.tokens()                                                    # (M,) each
    size = max(1, LOGITS_AT_ONCE // r.prompts.data.tok.vocab_size)
    counts = torch.bincount(u // size).tolist()

    def part(x, x_ref, kept, u, actions):
        logits_ref = reference.logits(x_ref) if reference else None
        return stats_of(policy.logits(x), logits_ref, kept, u % size, actions, temperature)

    parts = list(zip(x.split(size), x_ref.split(size), r.kept.split(size),
                     u.split(counts), r.sequences[n, t].split(counts)))
    if len(parts) == 1:
        stats = part(*parts[0])
    else:
        parts = [checkpoint(part, *tensors, use_reentrant=False) for tensors in parts]
        stats = map(torch.cat, zip(*parts))
    return TokenStats(*[values.new_zeros(r.sequences.shape).index_put((n, t), values)
                        for values in stats])


# ---- three ways to complete a prompt -------------------------------------------------------------


@torch.no_grad()
def complete(model, prompts, n_fill_steps=1, **sampling):
    """Complete each of B Prompts prompts.k times. Return a Rollout. sampling: temperature, top_k,
    top_p, greedy, see choose()."""
    assert not model.is_classifier, "a classifier cannot generate"
    if model.causal:
        assert model.has_bos or not prompts.blank[:, 0].any(), (
            "without a bos no prompt may be empty")
        assert n_fill_steps == 1 and prompts.data.blank_kind != 'marked', (
            "a causal generator has no passes (n_fill_steps = 1) and no marked blanks")
        # Under autocast, cast the weights once. Their casts are forgotten at the end of this block.
        kind = model.device.type
        with torch.autocast(kind, enabled=torch.is_autocast_enabled(kind), cache_enabled=True):
            return generate(model, prompts, **sampling)
    return fill(model, prompts, n_fill_steps, **sampling)


def fill(model, prompts, n_fill_steps, **sampling):
    """Fill the blanks in n_fill_steps passes. Return a Rollout.

    A pass gives each of its blanks a distribution, and draws from it for all completions at once:
    no blank knows what the others of this pass become. It sees what the passes before it filled.
    The blanks of a prompt have places by prompts.order: 0 for the lowest key, 1 for the next one.
    Pass i fills those with place * n_fill_steps // blanks == i. The order does not depend on the
    samples, so the log-probability of a sequence, given the order, is the sum over its tokens."""
    B, k, T = prompts.uniforms.shape
    # argsort twice gives the places. Positions that are not blank come last: there pass_of is
    # n_fill_steps or more, infinite or NaN, and no pass fills them.
    place = prompts.order.masked_fill(~prompts.blank, T).argsort(1).argsort(1)  # (B, T)
    pass_of = (place * n_fill_steps / prompts.blank.sum(1, keepdim=True)).floor()       # (B, T)
    # partial: the k sequences of each prompt as they are so far, with blank_id in the blanks.
    partial = prompts.tokens.masked_fill(prompts.blank, model.blank_id)         # (B, T)
    partial = partial[:, None].repeat(1, k, 1)                                  # (B, k, T)
    drawn_from = torch.full_like(partial, -1)
    logp_sampled = torch.zeros(partial.shape, dtype=model.dtype, device=model.device)
    passes = []                                 # states, where and kept of each
    n_distributions = 0
    for i in pass_of[prompts.blank].unique():   # in order; passes without any blank are left out
        # Sequences of a prompt that are in the same state use the same distributions, so only the
        # first of them, their leader, goes through the network. In the second pass of the example
        # above Rollout, both sequences of the second prompt are 2 8 _: the first leads. States
        # with nothing to fill in this pass are skipped.
        is_equal = equal_pairs(partial)                                         # (B, k, k)
        # leads: equals no sequence before it
        is_leader = ~is_equal.tril(-1).any(2, keepdim=True)                     # (B, k, 1)
        fill_now = is_leader & (pass_of == i)[:, None]                          # (B, k, T)
        is_state = fill_now.any(2)                                              # (B, k)
        states = partial[is_state]                                              # (S, T)
        where = fill_now[is_state]                                              # (S, T)
        # The prompt, the leader and the position of each distribution. In the example, three:
        # (0, 0, 2) for 7 4 _, (0, 1, 2) for 7 5 _, (1, 0, 2) for 2 8 _.
        b, leader, t = fill_now.nonzero(as_tuple=True)                          # (U,) each
        logits = model.logits(model(states, where))                             # (U, V)
        ids, logp, kept = choose(logits, prompts.uniforms[b, :, t], **sampling)
        # Token by token: distribution u gives completion j the token ids[u, j], if j is in its
        # leader's state. In the example the last distribution serves both sequences of 2 8 _:
        #     u 0 1 2 2    j 0 1 0 1    drawn_from 2 3 4 4, because the first pass had two
        in_state = is_equal[b, leader]                                          # (U, k)
        u, j = in_state.nonzero(as_tuple=True)                                  # (M,) each
        target = b[u], j, t[u]
        partial[target] = ids[u, j]
        drawn_from[target] = n_distributions + u
        logp_sampled[target] = logp[u, j]
        n_distributions += len(ids)
        passes.append((states, where, kept))
    states, where, kept = map(torch.cat, zip(*passes))
    return Rollout(prompts, partial.flatten(0, 1), states, where, drawn_from.flatten(0, 1),
                   logp_sampled.flatten(0, 1), kept, model)


def equal_pairs(groups):
    """Return (B, k, k) bool: which sequences of each group (B, k, T) are equal."""
    return (groups[:, :, None] == groups[:, None]).all(3)


def generate(model, prompts, **sampling):
    """Generate from left to right, up to *and including* eos, with padding after it. Return a
    Rollout. Prompts may differ in length:

        1 2 + 3 = _ _ _ _       Generation starts at the first blank of all, here in the second
        1 + 2 = _ _ _ _ _       sequence. The first sequence keeps its own `=` there.
    """
    k = prompts.k
    column = first = first_true(prompts.blank)
    # Blanks begin as padding. After eos they stay padding.
    sequences = prompts.tokens.masked_fill(prompts.blank, model.pad_id).repeat_interleave(k, 0)
    where = prompts.blank.repeat_interleave(k, 0)           # (N, T): cleared after eos, below
    logp_sampled = torch.zeros(sequences.shape, dtype=model.dtype, device=model.device)
    n_ids = model.pad_id + 1
    kept_at = []                                # (N, V) of each column, or (N, 1)
    # Completions of a prompt that are equal so far share a state, which is a row of the inputs and
    # of the cache. There is no state for those that have ended.
    cache = model.new_cache()
    # (S, first + 1) at first: bos and the prompts; later (S, 1): the last token of each state
    inputs = F.pad(prompts.tokens[:, :first], (1, 0), value=model.bos_id)
    prompt_of = torch.arange(len(prompts), device=model.device)                 # (S,)
    state_of = prompt_of.repeat_interleave(k)                                   # (N,)
    j = torch.arange(k, device=model.device).repeat(len(prompts))       # (N,) which of the k it is
    # each turn writes a column
    while where[:, column:].any():
        logits = model.logits(model.trunk(inputs, cache)[:, -1])                # (S, V)
        ids, logp, kept = choose(logits, prompts.uniforms[prompt_of, :, column], **sampling)
        kept_at.append(kept[state_of])
        now = where[:, column]              # (N,) False: still in the prompt, or after eos
        sequences[now, column] = ids[state_of, j][now]
        logp_sampled[now, column] = logp[state_of, j][now]
        last = sequences[:, column]                                             # (N,)
        ended = now & (last == prompts.data.tok.eos)                            # (N,)
        column += 1
        where[ended, column:] = False
        # A state and the next token make a new state, for those that go on.
        goes_on = where[:, column:].any(1)                                  # (N,)
        # A pair is one number here: with 12 ids, state 3 and token 7 are 43, and 43 // 12, 43 % 12
        # come back. Equal pairs become one.
        keys, index = torch.unique((state_of * n_ids + last)[goes_on], return_inverse=True)
        parent = keys // n_ids
        token = keys % n_ids
        inputs = token[:, None]
        # sequences that have ended point at state 0, but take no token from it
        state_of = torch.zeros_like(state_of)
        state_of[goes_on] = index
        prompt_of = prompt_of[parent]
        # if no state has split or ended, the rows of the cache are right already
        if not parent.equal(torch.arange(len(logits), device=model.device)):
            cache.batch_select_indices(parent)
    # Each sampled token has a distribution of its own, so they are numbered alike.
    kept = torch.stack(kept_at, 1)[where[:, first:column]]                      # (U, V)
    drawn_from = torch.full_like(sequences, -1)
    drawn_from[where] = torch.arange(len(kept), device=model.device)
    return Rollout(prompts, sequences, sequences, where, drawn_from, logp_sampled, kept, model)


# ---- a group for people --------------------------------------------------------------------------


def show_group(label, r, columns, max_rows=6):
    """Print the first group of a Rollout: its prompt, and below it its different completions with
    their counts and their values in columns {name: (P, k)}, sorted by the first column. If there
    are more than max_rows, only the best and the worst are shown. Return its completions as dicts,
    for samples.jsonl."""
    samples = []
    for j, case in enumerate(r.cases()[:r.prompts.k]):
        numbers = {name: values[0, j].item() for name, values in columns.items()}
        samples.append({'prompt': case['prompt'], **numbers, 'completion': case['completion']})
    prompt = samples[0]['prompt']
    counts = collections.Counter(tuple(sample.values())[1:] for sample in samples)
    rows = sorted(counts, reverse=True)         # numbers, and last the completion
    # Blanks in the middle of a long text: leave out the text before them, but for ten characters.
    texts = [prompt] + [row[-1] for row in rows]
    same = len(os.path.commonprefix(texts)) - 10

    def short(text):
        return repr(text if same <= 0 else '...' + text[same:])

    if len(rows) > max_rows:
        del rows[max_rows // 2:-(max_rows // 2)]
    print(label.ljust(9), *[f'{name:>12.12}' for name in columns], ' ', short(prompt))
    for row in rows:
        *numbers, completion = row
        values = [f'{number:12.3f}' for number in numbers]
        print(f'{counts[row]:7} x', *values, ' ', short(completion))
    return samples
