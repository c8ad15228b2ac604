"""Files of config/papers/ against the formulas of their papers, in loops over texts and tokens; and
all of them behind one another, in runs of toy networks."""
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import train_grpo as grpo
from conftest import log_of, train
from test_grpo import close, knobs, slow_stats                          # noqa: F401 (a fixture)
from test_grpo import toy as toy_of

FILES = {path.stem: str(path) for path in sorted(Path('config/papers').glob('*.py'))}
NAMES = [*FILES]
ONES = """
rewards = {'ones': 1.0}
def ones(texts):
    return [text.count('1') for text in texts]
"""


def toy_with(paper, kind, knobs, texts=None, **values):
    """Return a policy, a reference, and collect(policy, step), with a reward and a paper."""
    policy, other, prompts = toy_of(kind, knobs, texts, rewards={'letters': 1.0}, **values)
    grpo.letters = lambda texts: [text.count('b') for text in texts]
    grpo.include(FILES[paper])
    return policy, other, lambda policy, step=0: grpo.collect(
        SimpleNamespace(policy=policy, reference=other), prompts.task, step)


# ---- rewards and advantages ----------------------------------------------------------------------


def minus_the_mean_of_the_others(group):
    return [x - (sum(group) - x) / (len(group) - 1) for x in group]


ADVANTAGES = {                  # of a group
    'rloo': minus_the_mean_of_the_others, 'diffucoder': minus_the_mean_of_the_others,
    'maxrl': lambda group: [x / (statistics.mean(group) or 1) - any(group) for x in group]}


@pytest.mark.parametrize('name', ADVANTAGES)
def test_advantages_equal_a_loop_over_the_groups(name, knobs):
    knobs(FILES[name])
    reward = torch.rand(3, 4)
    reward[1] = 0
    close(grpo.advantages(reward, {}), [ADVANTAGES[name](group) for group in reward.tolist()])


def test_rloo_has_the_log_ratio_of_a_text_in_its_training_reward_and_no_kl_in_the_loss(knobs):
    policy, reference, collect = toy_with('rloo', 'causal', knobs, batch_size=4, group_size=3)
    [r], scores = collect(policy)
    stats = slow_stats(policy, r, reference)
    gaps = scores['letters'] - scores['reward']
    close(gaps.flatten(), 0.05 * r.per_text(stats.logp - stats.logp_ref).detach())
    assert not grpo.kl_penalty(stats, r).any()
    held_out = grpo.score(r, None, ['letters'], 0, 'val')
    assert held_out['reward'].equal(held_out['letters'])


def test_adaptive_kl_grows_above_its_target_and_shrinks_below_by_10_percent_in_5000_texts(knobs):
    """The target is 0.5. An error above 20 % counts as 20 %."""
    knobs(kl_beta=0.3, group_size=10, batch_size=100, gradient_accumulation_steps=5)
    grpo.learn = lambda kl, *_: {'kl': kl}
    grpo.include(FILES['adaptive_kl'])
    stats = SimpleNamespace(kl=2.0)
    for kl, factor in ((0.9, 1.0), (0.45, 1.1), (0.1, 1.045), (0.5, 0.9405)):
        close(grpo.kl_penalty(stats, None), 2.0 * factor)
        close(grpo.learn(kl, None, None, None)['kl_beta'], 0.3 * factor)


# ---- objectives ----------------------------------------------------------------------------------
# Of one text: how steep is the gain of its tokens, from their log ratios, old log-probabilities, A.


def slow_gspo(gaps, old, A):
    ratio = gaps.mean().exp()
    return A * ratio * (ratio < 1.0004 if A > 0 else ratio > 0.9997)


def slow_gmpo(gaps, old, A):
    clipped = gaps.clamp(max=0.4) if A > 0 else gaps.clamp(min=-0.4)
    return A * clipped.exp().prod() ** (1 / len(gaps)) * (gaps == clipped)


def slow_cispo(gaps, old, A):
    return A * gaps.exp().clamp(max=1.28)


def slow_dppo(gaps, old, A):
    moved = (old + gaps).exp() - old.exp()
    return A * gaps.exp().clamp(max=20) * (moved < 0.15 if A > 0 else moved > -0.15)


SLOPES = {                      # files, one behind the other
    'gspo': slow_gspo, 'gspo dr_grpo': slow_gspo, 'gmpo': slow_gmpo, 'cispo': slow_cispo,
    'gspo cispo': slow_cispo, 'dppo': slow_dppo}


@pytest.mark.parametrize('names', SLOPES)
def test_the_gradient_of_an_objective_equals_a_loop_over_the_texts(names, knobs):
    """Every second text has moved little."""
    knobs(*map(FILES.get, names.split()))
    n = torch.randint(20, (200,))
    A, old = torch.randn(20), -2 * torch.rand(200)
    gaps = (torch.randn(200) * (n % 2 * 2 + 1e-3)).requires_grad_()
    r = grpo.Rollout(None, 1, A, None, n, None, None, None, advantage=A[n], logp_old=old)
    losses, is_clipped = grpo.objective(grpo.Stats(old + gaps, None, None, None), r)
    slopes = torch.autograd.grad(-losses.sum(), gaps)[0]
    for i, a in enumerate(A):
        text = n == i
        close(slopes[text], SLOPES[names](gaps[text], old[text], a).expand(text.sum()))
    is_cut = (slopes == 0) | ((slopes / r.advantage - 1.28).abs() < 1e-9)       # (CISPO's limit)
    assert (is_clipped > 0).equal(is_cut) and is_cut.any() and not is_cut.all()


# ---- what is collected ---------------------------------------------------------------------------


@pytest.mark.parametrize('kind', ['one pass', 'two passes, random order', 'a world'])
def test_tis_weighs_a_token_by_learner_over_sampler_at_most_2(kind, knobs):
    """Here the sampler is another network."""
    policy, sampler, collect = toy_with('tis', kind, knobs, top_k=3, batch_size=4, group_size=9)
    complete = grpo.complete
    grpo.complete = lambda policy, *more: complete(sampler, *more)
    [r], scores = collect(policy)
    close(r.logp_old, slow_stats(policy, r).logp)
    ratio = (r.logp_old - slow_stats(sampler, r).logp).exp()
    close(r.advantage, scores['advantage'].flatten()[r.text_of] * ratio.clamp(max=2.0))
    assert ratio.min() < 1 and ratio.max() > 2


def test_dapo_draws_until_a_step_is_full_of_groups_whose_rewards_differ_or_three_times(knobs):
    """Each of two micro-steps has its two groups of two texts. Each draw has numbers of its own."""
    policy, _, collect = toy_with('dapo', 'one pass', knobs, batch_size=2, group_size=2,
                                  gradient_accumulation_steps=2)
    grpo.loss_norm = 'sequence'
    n_draws = set()
    for step in range(20):
        rollouts, scores = collect(policy, step)
        A = scores['advantage'].view(-1, 2, 4)  # of draws, micro-steps, texts
        n = len(A)
        n_draws.add(n)
        assert n == len({str(r.texts) for r in rollouts[:n]})
        for i in range(2):
            chosen = []
            for r, drawn in zip(rollouts[n * i:n * (i + 1)], A[:, i], strict=True):
                assert r.advantage.equal(drawn[r.text_of])
                close(grpo.token_weights(r)[1], len(r.text_of.unique()))   # texts that learn
                chosen += drawn[r.text_of.unique()]
            assert len(chosen) == 4 and (all(chosen) or n == 3)
    assert n_draws == {1, 2, 3}


# ---- all files -----------------------------------------------------------------------------------


PAIRS = [*zip(NAMES[::2], NAMES[1::2] + NAMES[:1]), ('tis', 'dapo'), ('gigpo', 'dapo')]


@pytest.mark.parametrize('first, second', PAIRS)
def test_every_file_takes_steps_with_another_one_behind_it(first, second, toy, file, tmp_path):
    words = [*toy, file('ones.py', ONES), FILES[first], FILES[second], '--max_iters=2',
             '--kl_beta=0.1']
    train(words, tmp_path / 'run')
    assert log_of(tmp_path / 'run')[1]['grad_norm'] > 0
