"""Sampling: a network completes prompts, in one pass, in several passes, or from left to right. A
Rollout keeps the completions, and in which pass each token was sampled."""
import inspect
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from model import NUMBERS_AT_ONCE

# letters: B prompts, k completions of each: N = B * k sequences | T tokens in a sequence
# V base ids | C channels | M sampled tokens of all sequences | I passes | S different states
# U different places, a place is a position in a state: sequences in one state share its places


# ---- prompts: sequences with blanks --------------------------------------------------------------


@dataclass
class Prompts:
    """n prompts, and the random numbers with which each of them is completed k times."""
    tokens: Tensor      # (n, T) ids; in the blanks the original text, if there is one
    blank: Tensor       # (n, T) bool: what is to be filled in
    uniforms: Tensor    # (n, k, T) in [0, 1): completion j takes [:, j]
    order: Tensor       # (n, T) random keys; several passes fill blanks with low keys first
    order_uniforms: Tensor      # (n, k, J, T) in [0, 1): for the decisions of a learned order in
                        # all passes but the last; other orders have J = 0
    mask_uniforms: Tensor       # (n, k, J, T) in [0, 1): two for each epoch, for the masks of an
                        # estimate of the likelihood; without one J = 0
    row: Tensor         # (n,) numbers of their rows in the dataset
    examples: list      # of all rows of the dataset
    tok: object         # the Tokenizer, see dataset.py
    causal: bool        # prompts are continued from left to right; else blanks are filled
    reply: object = None        # a function: what the world says, see let_the_world_reply()

    def __len__(self):
        return len(self.tokens)

    @property
    def k(self):
        return self.uniforms.size(1)

    def map(self, change):
        """Return the same Prompts with each tensor changed."""
        return replace(self, **{name: change(value) for name, value in vars(self).items()
                                if isinstance(value, Tensor)})

    def to(self, device):
        return self.map(lambda tensor: tensor.to(device))

    def __getitem__(self, index):
        return self.map(lambda tensor: tensor[index])

    def cases(self, sequences):
        """Return a list of N dicts, one for each of the completions (N, T) of these prompts: its
        'prompt' and 'completion', the whole 'text', and the answer and other columns of its record.

        causal: a completion is the text that follows its prompt, up to eos. Else it is the whole
        text, and its prompt has BLANK in the blanks."""
        shown = self.tokens.masked_fill(self.blank, self.tok.blank_id).tolist()
        groups = sequences.unflatten(0, (len(self), -1)).tolist()
        cases = []
        for ids, group, row in zip(shown, groups, self.row.tolist()):
            start = 0
            prompt = self.tok.text_of(ids)
            if self.causal:                     # (an eos in it separates paragraphs)
                start = ids.index(self.tok.blank_id)
                prompt = self.tok.decode(ids[:start])
            # The prompt of a record, if it has one, is the text itself, without a chat template.
            case = {'prompt': prompt} | self.examples[row]
            for ids in group:
                write = self.tok.completion_of if self.causal else self.tok.text_of
                completion = write(ids[start:])
                text = case['prompt'] + completion if self.causal else completion
                cases.append(case | {'completion': completion, 'text': text})
        return cases


# ---- rollouts: their completions -----------------------------------------------------------------


# An example of a Rollout: two prompts, 7 _ _ and 2 _ _, completed k = 2 times, in two passes.
#
#     sequences       7 4 9     7 5 1     2 8 6     2 8 3       N = 4
#     pass_of         . 0 1     . 0 1     . 0 1     . 0 1       a dot is -1: this token was given
#
# These are the states, in which the network saw the sequences:
#
#     before pass 0   7 _ _     7 _ _     2 _ _     2 _ _
#     before pass 1   7 4 _     7 5 _     2 8 _     2 8 _       of these eight S = 5 differ


@dataclass
class Rollout:
    """k completions of each of B prompts; the example above has the names. Tokens of one pass were
    sampled at once: none of them knew the others."""
    prompts: Prompts            # B of them
    sequences: Tensor           # (N, T); sequence b * k + j is completion j of prompt b
    pass_of: Tensor             # (N, T) in which pass a token was sampled, from 0; -1: it was not,
                                # because it belongs to the prompt, or comes after the end
    logp_sampled: Tensor        # (N, T) log-probability of a token when it was sampled, plus those
                                # of the decisions when to sample it; 0 elsewhere. (ppo() compares
                                # with logp_old: learn() says why)
    kept: Tensor | None         # (M, V) bool: the ids that top-k and top-p kept for a token, in the
                                # order in which tokens were sampled; None: no filter
    kept_row: Tensor            # (N, T) the row of each sampled token in kept
    n_decisions: int = 0        # a learned order: passes in which the policy decides what it fills
    epoch: int = 0              # an estimate of the likelihood draws other masks in each epoch
    # what a step computes once, and then uses again
    stats_old: 'TokenStats | None' = None       # before the first update of the step, if anything
                                        # needs them: see look_back() in train_grpo.py
    x_ref: Tensor | None = None         # (S * T, C) features of the reference in all states

    @property
    def is_sampled(self):
        """Where a token was sampled (N, T), bool."""
        return self.pass_of >= 0

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
        return (self.is_sampled & (self.sequences == self.prompts.tok.eos)).any(1)

    def of_prompts(self, chosen):
        """Return the part of this Rollout that belongs to the chosen (B,) bool prompts."""
        rows = chosen.repeat_interleave(self.prompts.k)                         # (N,)
        return replace(self, prompts=self.prompts[chosen], sequences=self.sequences[rows],
                       pass_of=self.pass_of[rows], logp_sampled=self.logp_sampled[rows],
                       kept_row=self.kept_row[rows], stats_old=None, x_ref=None)

    def of_epoch(self, epoch):
        """Return this Rollout as an epoch learns from it, if the likelihood is an estimate."""
        return replace(self, epoch=epoch, stats_old=None, x_ref=None)

    def mask_uniforms(self):
        """Return the random numbers of an estimate, in [0, 1): one for each token (N, T), and one
        for each sequence (N, 1)."""
        uniforms = self.prompts.mask_uniforms.flatten(0, 1)                     # (N, 2 * epochs, T)
        return uniforms[:, 2 * self.epoch], uniforms[:, 2 * self.epoch + 1, :1]

    def cases(self):
        """Return a dict for each sequence: 'prompt', 'completion', 'text', 'ended', columns of the
        dataset, and 'sampled': the completion without the words of a world."""
        cases = self.prompts.cases(self.sequences)
        tok = self.prompts.tok
        sampled = self.sequences.masked_fill(~self.is_sampled, tok.pad).tolist()
        write = tok.completion_of if self.prompts.causal else tok.text_of
        for case, ended, ids in zip(cases, self.ended.tolist(), sampled):
            case |= {'ended': ended, 'sampled': write(ids)}
        return cases

    def states(self, model):
        """Return states (S, T), what the model saw when it sampled, and state_of (I, N): that of
        each sequence before each pass. From left to right a sequence is its own state, because each
        token sees only what is to its left. Else the states are the different ones before all
        passes. In the example state_of is

            before pass 0    4 4 1 1
            before pass 1    2 3 0 0
        """
        if model.causal:
            return self.sequences, torch.arange(len(self.sequences), device=model.device)[None]
        n_passes = int(self.pass_of.max()) + 1
        passes = torch.arange(n_passes, device=model.device)[:, None, None]     # (I, 1, 1)
        is_blank = self.pass_of >= passes                                       # (I, N, T)
        before = self.sequences.masked_fill(is_blank, model.blank_id)
        return distinct_rows(before, is_blank.any(2))


def distinct_rows(x, is_used=None):
    """Return the distinct ones (S, C) of the rows x (..., C) that are used (...), bool, in any
    order, and index (...): which of them each row is; 0 for rows that are not used. None: all are
    used."""
    if is_used is None:
        is_used = torch.ones_like(x[..., 0], dtype=torch.bool)
    rows = x[is_used]                                                           # (n, C)
    # Equal rows have equal sums of their columns, weighted by random integers; others have them in
    # 1 of 2 ** 64 cases. torch.unique is 16 to 20 times as fast with numbers as with rows.
    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(-2 ** 62, 2 ** 62, x.shape[-1:], generator=generator)
    sums, index_of_row = torch.unique((rows * weights.to(x.device)).sum(1), return_inverse=True)
    example = torch.empty_like(sums)            # a row with each sum
    example[index_of_row] = torch.arange(len(rows), device=x.device)
    distinct = rows[example]
    assert (distinct[index_of_row] == rows).all(), "two different rows have one sum"
    index = torch.zeros_like(is_used, dtype=torch.long)
    index[is_used] = index_of_row
    return distinct, index


def by_name(function, names):
    """Return a function of columns {name: value} that calls a function of the user, a reward or a
    world, with those of the names that it has as parameters; with all if it has **kwargs, as for
    TRL."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    asked_for = [name for name in names if takes_all or name in parameters]
    return lambda columns: function(**{name: columns[name] for name in asked_for})


# ---- one log_probs() to sample, to score, and in the ratio ---------------------------------------


def log_probs(logits, temperature=1.0, kept=None):
    """Return log-probabilities (M, V) of softmax(logits / temperature), in nats. Ids that are False
    in kept (M, V) have probability 0; None: all ids are kept."""
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
    return torch.searchsorted(cdf, (uniforms * top)[:, None], right=True)[:, 0]


def choose(logits, uniforms, temperature=1.0, top_k=0, top_p=1.0, greedy=False):
    """Sample from logits (M, V) with uniforms (M,). Return ids (M,), their log-probabilities (M,),
    and the ids that the filters kept (M, V), or None without a filter. greedy: take the likeliest
    id."""
    logp = log_probs(logits, temperature)                           # (M, V)
    kept = None
    if top_k > 0 or top_p < 1:
        kept = kept_set(logp, top_k, top_p)
        logp = log_probs(logits, temperature, kept)
    if not logp.isfinite().all():               # not saved, see Ending
        raise FloatingPointError("log-probabilities are not finite, so no checkpoint was "
                                 "overwritten; try a lower learning_rate")
    ids = logits.argmax(-1) if greedy else draw(logp, uniforms)
    return ids, logp_of(ids, logp), kept


def logp_of(ids, logp):
    """Return the log-probabilities (M,) of ids (M,), from those of all ids (M, V)."""
    return logp.gather(1, ids[:, None])[:, 0]


def in_parts(function, model, *tensors):
    """Return the tensors that function(*tensors) returns, computed from a part of their M rows at a
    time. M x V logits, and all that is made of them, would be most of the memory of a step; the
    backward pass makes each part again."""
    size = max(1, NUMBERS_AT_ONCE // model.blank_id)        # blank_id is V
    if len(tensors[0]) <= size:
        return function(*tensors)
    results = []
    for start in range(0, len(tensors[0]), size):
        part = [x[start:start + size] for x in tensors]
        results.append(checkpoint(function, *part, use_reentrant=False))
    whole = []
    for parts in zip(*results):                 # of each returned tensor
        whole.append(None if parts[0] is None else torch.cat(parts))
    return whole


# ---- what networks say of sampled tokens ---------------------------------------------------------


class TokenStats(NamedTuple):
    """What a policy, as it is now, and a reference say of the tokens that a Rollout sampled: (N, T)
    each, in nats, 0 where no token was sampled. All are at the temperature that samples; decisions
    of a learned order, which are added, have none."""
    logp: Tensor        # of the policy now, among the ids that top-k and top-p kept when sampling
    logp_full: Tensor   # of the policy now, among all ids
    logp_ref: Tensor    # of the reference, among all ids; without a reference that of the policy
    kl: Tensor          # KL(policy || reference) of the token's distribution, unfiltered
    entropy: Tensor     # and its entropy


def exact_kl(logp, logp_ref):
    """Return KL(policy || reference) (U,) in nats, of log-probabilities (U, V)."""
    return (logp.exp() * (logp - logp_ref)).sum(-1)


def stats_of(logits, u, actions, logits_ref=None, kept=None, temperature=1.0):
    """Return the five numbers of TokenStats, (M,) each, of the ids `actions` (M,): each was sampled
    from the row u (M,) of logits (U, V). logits_ref (U, V); None: there is no reference, so the KL
    is 0. kept (M, V): the ids that the filters kept; None: all."""
    logp_full = log_probs(logits, temperature)                              # (U, V)
    logp = logp_full[u, actions]
    if kept is not None:
        logp = logp_of(actions, log_probs(logits[u], temperature, kept))
    entropy = -(logp_full.exp() * logp_full).sum(-1)
    logp_ref = logp_full.detach()
    kl = torch.zeros_like(entropy)
    if logits_ref is not None:
        logp_ref = log_probs(logits_ref, temperature)
        kl = exact_kl(logp_full, logp_ref)
    return logp, logp_full[u, actions], logp_ref[u, actions], kl[u], entropy[u]


def token_stats(r, policy, reference=None, temperature=1.0):
    """Return the TokenStats of a Rollout, with the policy's gradient: each token in the state in
    which it was sampled. This is exact, given the order. (If blanks were filled by 'confident',
    this is all before the first update of a step. Later the policy might choose another order, and
    the ratio leaves that out.)"""
    states, state_of = r.states(policy)                                     # (S, T), (I, N)
    i = r.pass_of.clamp(0, len(state_of) - 1)                               # (N, T)
    n = torch.arange(len(i), device=i.device)[:, None]                      # (N, 1)
    # in the example above Rollout this is . 4 2 for the first sequence and . 1 0 for the last
    return stats_in(states, state_of[i, n], r, policy, reference, temperature)


def stats_in(states, state_of, r, policy, reference, temperature):
    """Return the TokenStats of a Rollout whose tokens are seen in states (S, T): state_of (N, T)
    says in which of them each token is. The features of the reference never change, so they are
    kept in r.x_ref."""
    x = policy(states, r.prompts.k).flatten(0, 1)                           # (S * T, C)
    if reference and r.x_ref is None:
        with torch.no_grad():
            r.x_ref = reference(states, r.prompts.k).flatten(0, 1)
    n, t = r.is_sampled.nonzero(as_tuple=True)                              # (M,) each
    place = state_of[n, t] * states.size(1) + t                             # (M,) as rows of x

    def part(place, actions, row):
        # tokens that were sampled at one place of one state share a distribution
        place, u = place.unique(return_inverse=True)                        # (U,), (M,)
        logits_ref = None
        if reference:
            logits_ref = reference.logits(r.x_ref.index_select(0, place))
        kept = None if r.kept is None else r.kept[row]
        return stats_of(policy.logits(x.index_select(0, place)), u, actions, logits_ref, kept,
                        temperature)

    stats = in_parts(part, policy, place, r.sequences[n, t], r.kept_row[n, t])
    stats = [values.new_zeros(r.sequences.shape).index_put((n, t), values) for values in stats]
    if r.n_decisions > 0:                       # of a learned order; they are in x, too
        stats = map(torch.add, stats, decision_stats(r, policy, x, reference))
    return TokenStats(*stats)


def stats_with_blanks(is_blank, r, policy, reference, temperature):
    """Return the TokenStats of a Rollout whose tokens are seen with other blanks, (N, T) bool, than
    when they were sampled. Many papers on masked diffusion models do not keep the states in which
    tokens were sampled, and estimate the likelihood so: d1.py, diffucoder.py and unigrpo.py in
    config/papers/."""
    states, state_of = distinct_rows(r.sequences.masked_fill(is_blank, policy.blank_id))
    return stats_in(states, state_of[:, None].expand(is_blank.shape), replace(r, x_ref=None),
                    policy, reference, temperature)


def decision_stats(r, policy, x, reference=None):
    """Return the five numbers of TokenStats, (N, T) each, of the decisions of a learned order: of
    each blank the sum over the passes in which it was open. x (S * T, C): features of the policy in
    the states that sampled."""
    _, state_of = r.states(policy)                                          # (I, N)
    passes = torch.arange(len(state_of), device=x.device)[:, None, None]      # (I, 1, 1)
    is_open = (r.pass_of >= passes) & (passes < r.n_decisions)              # (I, N, T)
    i, n, t = is_open.nonzero(as_tuple=True)                                # (D,) each
    place = state_of[i, n] * r.sequences.size(1) + t                        # (D,) as rows of x
    is_now = (r.pass_of[n, t] == i).long()

    def logits(model, x):                       # (D, 2), to wait and to fill it now
        score = model.order_scores(x[place])
        return torch.stack((torch.zeros_like(score), score), 1)

    logits_ref = logits(reference, r.x_ref) if reference else None
    stats = stats_of(logits(policy, x), torch.arange(len(n), device=x.device), is_now, logits_ref)
    return [values.new_zeros(r.sequences.shape).index_put((n, t), values, accumulate=True)
            for values in stats]


# ---- ways to complete a prompt -------------------------------------------------------------------


@torch.no_grad()
def complete(model, prompts, n_fill_steps=1, fill_order='random', greedy=False, **sampling):
    """Complete each of B Prompts prompts.k times. Return a Rollout. sampling: temperature, top_k
    and top_p, see choose()."""
    assert not model.is_classifier, "a classifier cannot generate"
    assert model.has_bos or not model.causal or not prompts.blank[:, 0].any(), (
        "without a bos no prompt may be empty")
    # What is not written yet is a blank; from left to right it is padding, and stays padding after
    # the end.
    unwritten = model.pad_id if model.causal else model.blank_id
    sequences = prompts.tokens.masked_fill(prompts.blank, unwritten)            # (B, T)
    sequences = sequences.repeat_interleave(prompts.k, 0)                       # (N, T)
    uniforms = prompts.uniforms.flatten(0, 1)                                   # (N, T)
    pass_of = torch.full_like(sequences, -1)
    logp_sampled = torch.zeros(sequences.shape, dtype=model.dtype, device=model.device)

    def sample(x, uniforms):
        return choose(model.logits(x), uniforms, greedy=greedy, **sampling)

    kept_row = torch.zeros_like(sequences)
    kept = []                                   # (M, V) of each pass
    # Each way to complete is a Python generator. Pass by pass it yields its number, which tokens
    # come next, and their features. When it goes on, it finds in `sequences` what was sampled for
    # them.
    if model.causal:
        passes = from_left_to_right(model, prompts, sequences)
    else:
        passes = in_passes(model, prompts, sequences, logp_sampled, n_fill_steps, fill_order,
                           greedy)
    # Under autocast, cast the weights once. Their casts are forgotten at the end of this block.
    kind = model.device.type
    with torch.autocast(kind, enabled=torch.is_autocast_enabled(kind), cache_enabled=True):
        for i, n, t, x in passes:
            ids, logp, kept_now = in_parts(sample, model, x, uniforms[n, t])
            sequences[n, t] = ids
            pass_of[n, t] = i
            logp_sampled[n, t] += logp
            if kept_now is not None:
                kept_row[n, t] = sum(map(len, kept)) + torch.arange(len(n), device=model.device)
                kept.append(kept_now)
    return Rollout(prompts, sequences, pass_of, logp_sampled, torch.cat(kept) if kept else None,
                   kept_row, n_decisions=n_fill_steps - 1 if fill_order == 'learned' else 0)


def in_passes(model, prompts, sequences, logp_sampled, n_fill_steps, fill_order, greedy):
    """Fill the blanks of sequences (N, T) in up to n_fill_steps passes: yield, for each pass, its
    number, sequence and position of its tokens (M,), and their features (M, C). No blank knows what
    the others of its pass become. It sees what the passes before it filled.

    The fill order says which blanks a pass fills. The last pass fills what is left. Decisions of a
    learned order are sampled like tokens: their log-probabilities are added to logp_sampled (N, T),
    at the blank that they are about."""
    is_open = prompts.blank.repeat_interleave(prompts.k, 0)                     # (N, T)
    key = prompts.order.repeat_interleave(prompts.k, 0)                         # (N, T)
    uniforms = prompts.order_uniforms.flatten(0, 1)                             # (N, I - 1, T)
    n_blanks = is_open.sum(1, keepdim=True)                                     # (N, 1)
    # There are at most as many passes as blanks, so none is empty.
    n_passes = n_blanks.clamp(1, n_fill_steps)

    def n_filled(i):                            # before pass i, if each fills its share
        return (i * n_blanks + n_passes - 1) // n_passes

    for i in range(n_fill_steps):
        if not is_open.any():
            break
        # Sequences that are in the same state go through the network once. In the second pass of
        # the example above Rollout, both of the second prompt are 2 8 _.
        states, state_of = distinct_rows(sequences, is_open.any(1))
        x = model(states)                                                       # (S, T, C)
        n_now = n_filled(i + 1) - n_filled(i)                                   # (N, 1)
        if i == n_fill_steps - 1:
            now = is_open
        elif fill_order == 'learned':
            now, logp = decide(model, x, state_of, is_open, uniforms[:, i], greedy)
            logp_sampled += logp
        elif fill_order == 'confident':
            now = surest(model, x, state_of, is_open, n_now)
        else:                                   # 'random' or 'left'
            now = lowest(key, is_open, n_now)
        n, t = now.nonzero(as_tuple=True)
        if len(n) > 0:                          # all may have decided to wait
            yield i, n, t, x[state_of[n], t]
        is_open = is_open & ~now


def lowest(key, is_open, n_now):
    """Return which of the open blanks (N, T) are filled now, bool: the n_now (N, 1) with the lowest
    keys (N, T). The keys of 'random' and 'left' came with the prompts."""
    # argsort twice ranks the open blanks: 0 for the lowest key, 1 for the next
    rank = key.masked_fill(~is_open, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
    return is_open & (rank < n_now)


def surest(model, x, state_of, is_open, n_now):
    """Return which blanks are filled now if the most 'confident' come first: the n_now (N, 1) whose
    likeliest token is likeliest. x (S, T, C): features; state_of (N,): the state of each sequence.

    LLaDA (arXiv:2502.09992) keeps those whose *sampled* token is likeliest. Then tokens that were
    thrown away have a say in what is kept, and nobody knows the probability of the result."""
    def likeliest(x):
        return (model.logits(x).log_softmax(-1).amax(-1),)

    logp, = in_parts(likeliest, model, x.flatten(0, 1))                         # (S * T,)
    return lowest(-logp.view(x.shape[:2])[state_of], is_open, n_now)


def decide(model, x, state_of, is_open, uniforms, greedy):
    """Return which blanks are filled now in a 'learned' order, and the log-probabilities (N, T) of
    the decisions. x (S, T, C), state_of (N,): see surest(). uniforms (N, T) in [0, 1).

    The policy decides for each blank by itself, with probability sigmoid(score), at temperature 1.
    greedy: it fills what is likely, and at least the likeliest. (dUltra, arXiv:2512.21446, learns
    such decisions, too; arXiv:2510.05725 which one blank comes next.)"""
    score = model.order_scores(x)[state_of].masked_fill(~is_open, -torch.inf)   # (N, T)
    now = uniforms < score.sigmoid()
    if greedy:
        now = is_open & ((score > 0) | (score == score.amax(1, keepdim=True)))
    logp = F.logsigmoid(torch.where(now, score, -score))
    return now, logp.masked_fill(~is_open, 0)


def from_left_to_right(model, prompts, sequences):
    """Write sequences (N, T) from left to right, up to *and including* eos: yield the number of
    each column, from 0, sequence and position of its tokens (M,), and their features (M, C).
    Prompts may differ in length:

        1 2 + 3 = _ _ _ _       It starts at the first blank of all, here in the second sequence.
        1 + 2 = _ _ _ _ _       The first sequence keeps its own `=` there.
    """
    unwritten = prompts.blank.repeat_interleave(prompts.k, 0)                   # (N, T)
    column = first = int(prompts.blank.any(0).nonzero()[0])
    # Sequences that are equal so far share a state: a row of the cache. At first these are the
    # prompts. (A row for each sequence would make steps of config/grpo_causal.py 1.15 times as long
    # and evaluations 1.3 times, because its completions begin alike.)
    cache = model.new_cache()
    inputs = F.pad(prompts.tokens[:, :column], (1, 0), value=model.bos_id)
    state_of = torch.arange(len(prompts), device=model.device).repeat_interleave(prompts.k)  # (N,)
    while True:
        x = model.trunk(inputs, cache)[:, -1]                                   # (S, C)
        n = unwritten[:, column].nonzero()[:, 0]
        yield column - first, n, torch.full_like(n, column), x[state_of[n]]
        last = sequences[:, column]                                             # (N,)
        unwritten[unwritten[:, column] & (last == prompts.tok.eos)] = False
        column += 1
        if prompts.reply:
            let_the_world_reply(prompts, sequences, n, column, unwritten)
        goes_on = unwritten[:, column:].any(1)                                  # (N,)
        if not goes_on.any():
            return
        # A state and the next token make a new state, for those that go on. Two prompts, k = 2:
        #     state_of  0 0 1 1    last  7 8 7 7    new  (0, 7) (0, 8) (1, 7)    state_of  0 1 2 2
        new, state_of = distinct_rows(torch.stack((state_of, last), 1), goes_on)
        cache.batch_select_indices(new[:, 0])
        inputs = new[:, 1:]


def let_the_world_reply(prompts, sequences, n, column, unwritten):
    """Write what the world says after the last token of each of the sequences n (M,), into their
    columns from `column` on: given, not sampled, like a prompt that goes on. unwritten (N, T) bool
    says where the policy is still to write, and is changed.

    reply() returns a text, which is cut where the row ends; or (text, True), which ends the
    completion, too; or None."""
    cases = prompts.cases(sequences)
    reply = by_name(prompts.reply, cases[0])
    rows, is_open = sequences.cpu(), unwritten.cpu()            # a GPU would wait in each line below
    room = is_open[:, column:].sum(1).tolist()
    for i in filter(room.__getitem__, n.tolist()):              # those that go on
        try:
            said = reply(cases[i])
            if said is None:
                continue
            text, done = said if type(said) is tuple else (said, False)
            ids = prompts.tok.encode(text)[:room[i]]
        except (Exception, SystemExit) as e:    # a function of yours can raise anything
            raise AssertionError(f"reply to {cases[i]['completion']!r:.60}: {e!r:.300}") from e
        stop = column + len(ids)
        rows[i, column:stop] = rows.new_tensor(ids)
        is_open[i, column:None if done else stop] = False
    sequences.copy_(rows)
    unwritten.copy_(is_open)
