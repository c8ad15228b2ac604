"""Estimates of the likelihood, credit for a token, and replay: functions of config/papers/."""
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import train_grpo as grpo
from conftest import checkpoint_of, log_of, train
from test_grpo import TEXTS, TOK, close, knobs, prompts_of, slow_stats, tiny, toy  # noqa: F401
from test_runs import SIGNAL

# What a paper can draw for a text whose places 1, 2, 3 were sampled, and 0 was given, by its
# definition: (probability, [(weight, blanks)]). A share is uniform, in [0.2, 0.8] or in [0, 1], of
# three blanks, rounded, and at least one.
ALL = {1, 2, 3}
MASKS = {
    'd1': [(0.85, [(1, ALL)]), (0.15, [(1, ALL | {0})])],
    'diffucoder': [(1 / 3, [(0.5, ALL), (1.5, {t}), (0.75, ALL - {t})]) for t in ALL],
    'unigrpo': [(1 / 6, [(1, ALL)]), *[(1 / 6, [(1, {t})]) for t in ALL],
                *[(1 / 9, [(1, ALL - {t})]) for t in ALL]],
}


def letters(texts):
    return [text.count('b') - text.count('c') / 4 for text in texts]


# ---- likelihoods ---------------------------------------------------------------------------------


@pytest.mark.parametrize('paper', MASKS)
def test_the_mean_of_an_estimate_over_random_masks_is_that_over_all_masks(paper, knobs):
    """Of each token and number. Ten thousand equal texts have masks of their own; padding is never
    hidden."""
    knobs(f'config/papers/{paper}.py', temperature=0.8)
    policy, reference = tiny(), tiny(seed=3)
    one = grpo.complete(policy, prompts_of('b___ '), 1)
    expected = 0
    for probability, looks in MASKS[paper]:
        for weight, blanks in looks:
            view = one.sequences.clone()
            view[0, [*blanks]] = TOK.blank
            stats = slow_stats(policy, replace(one, views=view, view=0 * one.n), reference)
            is_blank = view[0, one.t] == TOK.blank
            expected += probability * weight * is_blank * torch.stack(stats)    # (4, 3)
    n = 10_000
    many = replace(one, sequences=one.sequences.repeat(n, 1), t=one.t.repeat(n),
                   id=one.id.repeat(n), n=torch.arange(n).repeat_interleave(3))
    stats = torch.stack(grpo.token_stats(policy, many, reference)).view(4, n, 3)
    assert ((stats.mean(1) - expected).abs() < 5 * stats.std(1) / n ** 0.5 + 1e-9).all()
    assert len(stats[0].round(decimals=6).unique(dim=0)) == len(MASKS[paper])


@pytest.mark.parametrize('is_stale', [False, True])
@pytest.mark.parametrize('paper', MASKS)
def test_an_estimate_is_compared_with_itself_or_with_what_an_older_network_said_that_sampled(
        paper, is_stale, knobs):
    """The policy stands still. Masks of the epochs differ, but not if log-probabilities are set."""
    knobs(f'config/papers/{paper}.py', fill_order='random', n_fill_steps=2, epochs=2, top_k=3)
    policy, older = tiny(), tiny(seed=2)
    r = grpo.complete(older if is_stale else policy, prompts_of(*TEXTS), 4)
    r.A = torch.ones(len(r.n))
    now = grpo.log_probs_of(policy, r)
    if is_stale:
        r.logp_old = slow_stats(older, r).logp.detach()
    pairs, objective = [], grpo.objective

    def watched(stats, r):
        pairs.append((stats.logp, r.logp_old))
        return objective(stats, r)

    grpo.objective = watched
    still = torch.optim.SGD(policy.parameters())
    grpo.learn(SimpleNamespace(policy=policy, reference=policy), [still], [r], 0.0)
    for logp, logp_old in pairs:
        if is_stale:
            is_seen = now != 0                  # by unigrpo not all tokens
            close(logp, now[is_seen])
            close(logp_old, r.logp_old[is_seen])
        else:
            assert logp.equal(logp_old)
    assert pairs[0][0].equal(pairs[1][0]) == is_stale


# ---- credit for a token --------------------------------------------------------------------------


@pytest.mark.parametrize('kind, text', [('two passes, left to right', '_c__'),
                                        ('a world', 'b_____')])
def test_gigpo_compares_the_steps_of_a_group_that_began_in_the_same_state(kind, text, knobs):
    policy, _, prompts = toy(kind, knobs, [text], batch_size=2, group_size=30, temperature=3.0,
                             rewards={'letters': 1.0})
    grpo.letters = letters
    grpo.include('config/papers/gigpo.py')
    (r,), _, A = grpo.collect(SimpleNamespace(policy=policy), prompts.task, 0)
    rows = list(zip(r.n.tolist(), r.t.tolist(), r.views[r.view].tolist()))
    written = {(n, t) for n, t, _ in rows}
    states, visitors = [], {}
    for n, t, view in rows:
        while policy.causal and (n, t - 1) in written:
            t -= 1
        states.append((n // 30, *(view[:t] if policy.causal else view)))
        visitors.setdefault(states[-1], set()).add(n)
    A = A.flatten()
    close(r.A, torch.stack([2 * A[n] - A[[*visitors[state]]].mean()
                            for (n, _, _), state in zip(rows, states)]))
    assert {1, 30} < set(map(len, visitors.values()))


def test_only_the_fifth_of_the_tokens_with_the_highest_entropy_learns(knobs):
    knobs('config/papers/forks.py')
    logp, entropy, A = torch.randn(3, 11)
    r = SimpleNamespace(logp_old=logp, A=A)
    losses, _ = grpo.objective(grpo.Stats(logp, None, None, entropy), r)
    highest = entropy.argsort()[-3:].tolist()
    close(losses, [-A[m] * (m in highest) for m in range(11)])


# ---- replay --------------------------------------------------------------------------------------


def test_replay_learns_from_the_groups_of_the_step_before_with_the_ratio_to_their_policy(knobs):
    policy, _, prompts = toy('two passes, random order', knobs, batch_size=2, top_p=0.9,
                             rewards={'letters': 1.0})
    grpo.letters = letters
    grpo.include('config/papers/replay.py')
    networks = SimpleNamespace(policy=policy, reference=None)
    (first,), _, _ = grpo.collect(networks, prompts.task, 0)
    logp = slow_stats(policy, first).logp.detach()
    grpo.learn(networks, [torch.optim.SGD(policy.parameters())], [first], 0.5)
    (new, old), _, _ = grpo.collect(networks, prompts.task, 1)
    assert old.sequences.equal(first.sequences) and old.A.equal(first.A)
    close(old.logp_old, logp)
    close(new.logp_old, slow_stats(policy, new).logp)
    assert (slow_stats(policy, old).logp - logp).abs().max() > 1e-3


def test_a_run_that_replays_behind_an_estimate_and_is_resumed_ends_like_an_uninterrupted_one(
        toy, tmp_path, file):
    words = [*toy, 'config/papers/replay.py', 'config/papers/diffucoder.py']
    stop = file('signal.py', SIGNAL.format(number=int(signal.SIGTERM)))
    train(words, tmp_path / 'whole')
    train([*words, stop], tmp_path / 'parts')
    train(words, tmp_path / 'parts', '--resume=True')
    whole, parts = [checkpoint_of(tmp_path / name) for name in ('whole', 'parts')]
    for name in ('model', 'optimizers', 'state'):
        torch.testing.assert_close(whole[name], parts[name], rtol=0, atol=0)
    assert log_of(tmp_path / 'whole') == log_of(tmp_path / 'parts')
