"""Fill the blanks of prompts, in one pass or in several: a masked model. The order says which
blanks a pass fills."""
import torch
import torch.nn.functional as F

from rollout import Draft
from run.batching import distinct_rows, in_parts

# letters: see rollout.py


@torch.no_grad()
def fill(model, prompts, n_fill_steps=1, fill_order='random', greedy=False, **sampling):
    """Fill the blanks of each of B Prompts prompts.k times, in up to n_fill_steps passes. Return a
    Rollout. No blank knows what the others of its pass become. It sees what the passes before it
    filled. sampling: temperature, top_k and top_p, see choose() in rollout.py."""
    draft = Draft(model, prompts, greedy=greedy, **sampling)
    is_open = prompts.blank.repeat_interleave(prompts.k, 0)                     # (N, T)
    key = prompts.order.repeat_interleave(prompts.k, 0)                         # (N, T)
    if fill_order == 'left':
        key = key.sort(1).values                # keys that rise from left to right
    n_blanks = is_open.sum(1, keepdim=True)                                     # (N, 1)
    # There are at most as many passes as blanks, so none is empty.
    n_shares = n_blanks.clamp(1, n_fill_steps)
    # Sequences in the same state go through the network once. At first these are the copies of a
    # prompt. In the second pass of the example in rollout.py, both of the second are 2 8 _.
    numbers = torch.arange(len(is_open), device=model.device)
    state_of = numbers // prompts.k                                             # (N,)
    first = numbers[::prompts.k]                # (S,) a sequence in each state
    seen = []                                   # the states of each pass
    seen_in = []                                # and which of all is whose, before each pass
    n_seen = 0
    for i in range(n_fill_steps):
        if i > 0:
            if not is_open.any():
                break
            first, state_of = distinct_rows(draft.sequences, is_open.any(1))
        states = draft.sequences[first]
        seen.append(states)
        seen_in.append(n_seen + state_of)
        n_seen += len(states)
        x = model(states)                                                       # (S, T, C)
        if i == n_fill_steps - 1:               # the last pass fills what is left
            now = is_open
        elif fill_order == 'learned':
            uniforms = prompts.more_uniforms[:, :, i].flatten(0, 1)             # (N, T)
            now, logp = decide(model, x, state_of, is_open, uniforms, greedy)
            # decisions are sampled like tokens, and count at the blank that they are about
            draft.logp_sampled += logp
        else:
            if fill_order == 'confident':
                key = -confidence(model, x)[state_of]                           # (N, T)
            # argsort twice ranks the open blanks: 0 for the lowest key, 1 for the next
            rank = key.masked_fill(~is_open, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
            # The last ones stay open: of 5 blanks in 3 passes 3, then 1, then 0.
            n_left = (n_shares - 1 - i) * n_blanks // n_shares                  # (N, 1)
            now = is_open & (rank < is_open.sum(1, keepdim=True) - n_left)
        n, t = now.nonzero(as_tuple=True)       # none, if all have decided to wait
        draft.sample(i, n, t, x[state_of[n], t])
        is_open = is_open & ~now
    states = torch.cat(seen)                                                    # (S, T)
    state_of = torch.stack(seen_in)                                             # (I, N)
    n_decisions = 0
    if fill_order == 'learned':
        n_decisions = n_fill_steps - 1
        # Where the policy decided to wait, it has seen the same state again.
        first, kind = distinct_rows(states)
        states, state_of = states[first], kind[state_of]
    return draft.rollout(states, state_of, n_decisions=n_decisions)


def confidence(model, x):
    """Return the log-probability (S, T) of the likeliest token at each place of features x
    (S, T, C). The most 'confident' blanks are filled first.

    LLaDA (arXiv:2502.09992) keeps those whose *sampled* token is likeliest. Then tokens that were
    thrown away have a say in what is kept, and nobody knows the probability of the result."""
    def likeliest(x):
        return [model.logits(x).log_softmax(-1).amax(-1)]

    logp, = in_parts(likeliest, model.blank_id, x.flatten(0, 1))                # (S * T,)
    return logp.view(x.shape[:2])


def decide(model, x, state_of, is_open, uniforms, greedy):
    """Return which blanks are filled now in a 'learned' order, and the log-probabilities (N, T) of
    the decisions. x (S, T, C): features; state_of (N,): the state of each sequence; uniforms (N, T)
    in [0, 1).

    The policy decides for each blank by itself, with probability sigmoid(score), at temperature 1.
    greedy: it fills what is likely, and at least the likeliest. (dUltra, arXiv:2512.21446, learns
    such decisions, too; arXiv:2510.05725 which one blank comes next.)"""
    score = model.order_scores(x)[state_of].masked_fill(~is_open, -torch.inf)   # (N, T)
    now = uniforms < score.sigmoid()
    if greedy:
        now = is_open & ((score > 0) | (score == score.amax(1, keepdim=True)))
    logp = F.logsigmoid(torch.where(now, score, -score))
    return now, logp.masked_fill(~is_open, 0)
