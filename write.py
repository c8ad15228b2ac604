"""Write from left to right what follows prompts: a causal model. A world may answer between its
tokens."""
import functools

import torch
import torch.nn.functional as F

from rollout import Draft
from run.batching import distinct, distinct_rows
from run.command import said_by

# letters: see rollout.py


@torch.no_grad()
def write(model, prompts, **sampling):
    """Continue each of B Prompts prompts.k times, up to *and including* eos. Return a Rollout.
    sampling: temperature, top_k, top_p and greedy, see choose() in rollout.py. Lengths of prompts
    differ:

        1 2 + 3 = _ _ _ _       It starts at the first blank of all, here in the second sequence.
        1 + 2 = _ _ _ _ _       The first sequence keeps its own `=` there.
    """
    assert model.has_bos or not prompts.blank[:, 0].any(), "without a bos no prompt may be empty"
    data = prompts.data
    draft = Draft(model, prompts, **sampling)
    sequences = draft.sequences                                                 # (N, T)
    is_open = prompts.blank.repeat_interleave(prompts.k, 0)     # (N, T) what is still to be written
    first_blank = prompts.blank.int().argmax(1)                                 # (B,)
    start = column = int(first_blank.min())
    # Sequences that are equal so far share a state: a row of the cache. At first these are the
    # different prompts. (A row for each sequence would make steps of config/grpo_causal.py 1.15
    # times as long and evaluations 1.3 times, because its completions begin alike.)
    chosen, state_of = distinct_rows(torch.stack((prompts.row, first_blank), 1))
    inputs = F.pad(prompts.tokens[chosen, :start], (1, 0), value=model.bos_id)      # (S, start + 1)
    state_of = state_of.repeat_interleave(prompts.k)                            # (N,)
    cache = model.new_cache()
    while True:
        x = model.trunk(inputs, cache)[:, -1]                                   # (S, C)
        is_now = is_open[:, column]                                             # (N,)
        n = is_now.nonzero()[:, 0]
        draft.sample(column - start, n, column, x[state_of[n]])
        last = sequences[:, column]                                             # (N,)
        has_ended = is_now & (last == data.tok.eos)                             # (N,)
        rest = slice(column + 1, None)
        is_open[:, rest] &= ~has_ended[:, None]
        goes_on = is_open[:, rest].any(1)                                       # (N,)
        # A state and the next token make a new state, for those that go on. Two prompts, k = 2:
        #     state_of  0 0 1 1    last  7 8 7 7    new  (0, 7) (0, 8) (1, 7)    state_of  0 1 2 2
        # As one number a pair is
        key = state_of * (model.pad_id + 1) + last                              # (N,)
        # Those that have ended share one more state, which nobody looks at.
        first, new_state_of = distinct(key, goes_on)
        if data.reply:
            is_asked = is_now & goes_on
            of_states = replies(prompts, sequences, first, is_asked, column + 1)    # (S, L)
            said = of_states[new_state_of]                                      # (N, L)
            # What it says is given, not sampled, like a prompt that goes on.
            is_said = is_open[:, rest] & (said >= 0)
            sequences[:, rest] = torch.where(is_said, said, sequences[:, rest])
            is_open[:, rest] &= ~is_said
        # Go on with the next column in which somebody writes. Where the world speaks in all of
        # them, its words are inputs, too; they are the same in all sequences of a state.
        has_writer = is_open[:, rest].any(0).tolist()
        if True not in has_writer:
            break
        next_column = column + 1 + has_writer.index(True)
        cache.batch_select_indices(state_of[first])
        inputs = sequences[first, column:next_column]                           # (S, L)
        state_of = new_state_of
        column = next_column
    first, state_of = distinct_rows(sequences)
    return draft.rollout(sequences[first], state_of[None], start=start)


def replies(prompts, sequences, first, is_asked, column):
    """Return what the world says in each of S states, ids (S, T - column) for the columns from
    `column` on; -1: nothing. first (S,): a sequence in each state. is_asked (N,): sequences that go
    on, and whose last token was sampled. The world has no state, so it is asked once in each of
    ours: once for equal completions of equal prompts."""
    data = prompts.data
    room = sequences.size(1) - column
    rows = [[-1] * room] * len(first)
    states = is_asked[first].nonzero()[:, 0]
    numbers = first[states]
    cases = data.cases(prompts, sequences[numbers], numbers.tolist())
    encode = functools.partial(data.tok.encode, goes_on=True)
    for s, case in zip(states.tolist(), cases):
        ids, done = said_by(data.reply, case, encode)
        # It is cut where the row ends. What ends a completion is followed by padding.
        ids += [data.tok.pad if done else -1] * room
        rows[s] = ids[:room]
    return sequences.new_tensor(rows)
