"""Estimates of the likelihood, and credit for a token: functions of config/papers/."""
import collections
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import train_grpo as grpo
from plumbing.report import samples_of
from test_grpo import PASSES, TEXTS, TOK, close, knobs, prompts_of, slow_stats, tiny  # noqa: F401
from test_papers import toy_with

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


# ---- likelihoods ---------------------------------------------------------------------------------


@pytest.mark.parametrize('paper', MASKS)
def test_the_mean_of_an_estimate_over_random_masks_is_that_over_all_masks(paper, knobs):
    """Of each token and number. Equal texts have masks of their own; padding is never hidden."""
    knobs(f'config/papers/{paper}.py', temperature=0.8)
    policy, reference = tiny(), tiny(seed=3)
    n = 10_000
    prompts = prompts_of('b=aa', 'bb=a').task.prompts_of(torch.tensor([0]))     # with padding
    many = grpo.complete(policy, prompts, n, greedy=True)
    one = many.select(many.text_of == 0)
    expected = 0
    for probability, looks in MASKS[paper]:
        for weight, blanks in looks:
            view = many.texts[:1].clone()
            view[0, [*blanks]] = TOK.blank
            stats = slow_stats(policy, replace(one, views=view, view_of=0 * one.text_of), reference)
            is_blank = view[0, one.place] == TOK.blank
            expected += probability * weight * is_blank * torch.stack(stats)    # (4, 3)
    # (a pass fills a place of all texts)
    stats = torch.stack(grpo.token_stats(policy, many, reference)).view(4, 3, n)
    assert ((stats.mean(2) - expected).abs() < 5 * stats.std(2) / n ** 0.5 + 1e-9).all()


@pytest.mark.parametrize('is_stale', [False, True])
@pytest.mark.parametrize('paper', MASKS)
def test_an_estimate_is_compared_with_itself_or_with_what_an_older_network_said_that_sampled(
        paper, is_stale, knobs):
    """The policy stands still. Masks of the epochs differ, but not if log-probabilities are set."""
    knobs(f'config/papers/{paper}.py', fill_order='random', n_fill_steps=2, epochs=2, top_k=3)
    policy, older = tiny(), tiny(seed=2)
    r = grpo.complete(older if is_stale else policy, prompts_of(*TEXTS), 4)
    r.advantage = torch.ones(len(r.text_of))
    pairs = []

    def objective(stats, r):
        pairs.append(torch.stack((stats.logp, r.logp_old)))
        return pairs[-1]

    grpo.objective = objective
    if is_stale:
        r.logp_old = slow_stats(older, r).logp.detach()
    now = grpo.log_probs_of(policy, r)
    grpo.learn(SimpleNamespace(policy=policy, reference=policy), [], [r], 0.0)
    if is_stale:
        expected = torch.stack((now, r.logp_old))[:, ~now.isnan()]  # by unigrpo not all tokens
        close(torch.stack(pairs), expected.expand(2, -1, -1))
    else:
        assert all(stats.equal(old) for stats, old in pairs) and not pairs[0].equal(pairs[1])


def test_masks_refuse_an_order_that_is_learned(knobs):
    knobs('config/papers/d1.py', n_fill_steps=2, fill_order='learned')
    policy = tiny()
    with pytest.raises(AssertionError, match='expected another order'):
        grpo.log_probs_of(policy, grpo.complete(policy, prompts_of('b___'), 2))


def test_passes_come_before_a_file_that_wraps_complete_and_not_behind_it(knobs):
    """Also if they are included once more there."""
    knobs(PASSES, 'config/papers/tis.py', PASSES)
    assert grpo.complete(tiny(), prompts_of('b___'), 1).logp_old is not None
    with pytest.raises(AssertionError, match='before files that wrap complete'):
        knobs('config/papers/tis.py', PASSES)


def test_samples_have_turns_and_log_probabilities_of_tokens_that_a_network_has_looked_at(knobs):
    knobs(PASSES, n_fill_steps=3, fill_order='left')
    r = grpo.complete(tiny(), prompts_of('b___'), 1)
    logp = torch.tensor([[math.nan, math.nan], [1.0, 2.0], [3.0, 4.0]])         # (M, 2)
    [sample] = samples_of(r, grpo.columns_of(r), {}, logp)
    numbers = [piece[1:] for piece in sample['pieces']]
    assert numbers == [[], [1], [2, 1.0, 2.0], [3, 3.0, 4.0], []]


# ---- credit for a token --------------------------------------------------------------------------


@pytest.mark.parametrize('kind, text', [('two passes, left to right', '_c__'),
                                        ('a world', 'b=aaaa')])
def test_gigpo_compares_the_steps_of_a_group_that_began_in_the_same_state(kind, text, knobs):
    policy, _, collect = toy_with('gigpo', kind, knobs, [text], batch_size=2, group_size=30,
                                  temperature=3.0)
    [r], scores = collect(policy)
    rows = list(zip(r.text_of.tolist(), r.place.tolist(), r.views[r.view_of].tolist()))
    written = {row[:2] for row in rows}
    visitors, states = collections.defaultdict(set), []
    for n, t, view in rows:
        while policy.causal and (n, t - 1) in written:
            t -= 1
        states.append((n // 30, *(view[:t] if policy.causal else view)))
        visitors[states[-1]].add(n)
    A = scores['advantage'].flatten()
    means = torch.stack([A[[*visitors[state]]].mean() for state in states])
    close(r.advantage, 2 * A[r.text_of] - means)


def test_only_the_fifth_of_the_tokens_with_the_highest_entropy_learns_as_with_dapo(knobs):
    logp, logp_old, entropy, A = torch.randn(4, 11)
    stats = grpo.Stats(logp, None, None, entropy)
    r = SimpleNamespace(logp_old=logp_old, advantage=A)
    knobs('config/papers/dapo.py')
    expected = torch.stack(grpo.objective(stats, r)) * (entropy >= entropy.sort().values[-3])
    knobs('config/papers/forks.py')
    close(torch.stack(grpo.objective(stats, r)), expected)
