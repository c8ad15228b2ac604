"""Files of config/papers/ against the formulas of their papers, in loops over texts and tokens; and
all files there and in config/kl/, alone and behind one another, in steps of toy networks."""
import math
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import train_grpo as grpo
from conftest import log_of, train
from model import make_optimizers
from test_grpo import CAUSAL, KINDS, close, knobs, slow_stats          # noqa: F401 (a fixture)
from test_grpo import toy as toy_of

FILES = {path.stem: str(path) for folder in ('papers', 'kl')
         for path in sorted(Path('config', folder).glob('*.py'))}
ONES = "def ones(texts):\n    return [text.count('1') for text in texts]"
LETTERS = "def letters(texts):\n    return [text.count('b') for text in texts]"


def files_of(names):
    return [FILES[name] for name in names.split()]


# ---- rewards and advantages ----------------------------------------------------------------------


def test_rloo_subtracts_the_mean_of_the_others_and_maxrl_divides_by_the_mean(knobs):
    def advantages(name, group):
        knobs(FILES[name])
        return grpo.advantages(torch.tensor([group]), {})[0]

    group = torch.rand(4).tolist()
    close(advantages('rloo', group), [x - (sum(group) - x) / 3 for x in group])
    close(advantages('maxrl', group), [4 * x / sum(group) - 1 for x in group])
    assert not advantages('maxrl', [0.0, 0.0]).any()
    with pytest.raises(AssertionError):         # the sign of all advantages could turn
        advantages('maxrl', [1.0, -0.5])


def test_rloo_has_the_log_ratio_of_a_text_in_its_reward_and_no_kl_in_the_loss(knobs):
    policy, reference, prompts = toy_of('causal', knobs)
    knobs(CAUSAL, FILES['rloo'], '--rewards={}', kl_beta=0.3)
    r = grpo.complete(policy, prompts, 3)
    networks = SimpleNamespace(policy=policy, reference=reference)
    rewards = grpo.score(r, networks, [])['reward'].flatten()
    stats = slow_stats(policy, r, reference)
    for n, reward in enumerate(rewards):
        close(reward, -0.3 * sum((stats.logp - stats.logp_ref)[r.n == n]).detach())
    assert not grpo.kl_penalty(stats, r).any()


def normalized(values):
    mean, std = statistics.mean(values), statistics.stdev(values)
    return [(x - mean) / (std + 1e-4) for x in values]


def test_gdpo_divides_each_reward_by_its_own_std_and_the_sum_by_that_of_the_step(knobs):
    knobs(FILES['gdpo'], rewards={'a': 1.0, 'b': 0.5})
    scores = {'a': 100 * torch.rand(5, 7), 'b': torch.rand(5, 7)}
    scores['a'][3] = 77.7                       # equal rewards
    sums = [a + b / 2 for groups in zip(scores['a'].tolist(), scores['b'].tolist())
            for a, b in zip(*map(normalized, groups))]
    close(grpo.advantages(torch.rand(5, 7), scores).flatten(), normalized(sums))


# ---- objectives ----------------------------------------------------------------------------------
# Of one text: how steep is the gain of its tokens, from their log ratios, old log-probabilities, A.


def slow_gspo(gaps, old, A):
    ratio = math.exp(sum(gaps) / len(gaps))
    return [A * ratio * (ratio < 1.0004 if A > 0 else ratio > 0.9997)] * len(gaps)


def slow_gmpo(gaps, old, A):
    clipped = [min(x, 0.4) if A > 0 else max(x, -0.4) for x in gaps]
    ratio = math.prod(map(math.exp, clipped)) ** (1 / len(gaps))
    return [A * ratio * (x == y) for x, y in zip(gaps, clipped)]


def slow_cispo(gaps, old, A):
    return [A * min(math.exp(x), 1.28) for x in gaps]


def slow_dppo(gaps, old, A):
    moved = [math.exp(logp + x) - math.exp(logp) for x, logp in zip(gaps, old)]
    return [A * min(math.exp(x), 20) * (p < 0.15 if A > 0 else p > -0.15)
            for x, p in zip(gaps, moved)]


SLOPES = {                      # files, one behind the other
    'gspo': slow_gspo, 'gspo dr_grpo': slow_gspo, 'gmpo': slow_gmpo, 'cispo': slow_cispo,
    'gspo cispo': slow_cispo, 'dppo': slow_dppo}


@pytest.mark.parametrize('names', SLOPES)
def test_the_gradient_of_an_objective_equals_a_loop_over_the_texts(names, knobs):
    """Before the first update it is that of REINFORCE."""
    policy, _, prompts = toy_of('causal', knobs)
    knobs(CAUSAL, *files_of(names))
    r = grpo.complete(policy, prompts, 16)
    r.logp_old = grpo.log_probs_of(policy, r)
    A = torch.randn(len(r.sequences))
    r.A = A[r.n]
    for noise in (0.0, 1e-3, 1.5):
        gaps = (noise * torch.randn(len(r.n))).requires_grad_()
        losses, _ = grpo.objective(grpo.Stats(r.logp_old + gaps, None, None, None), r)
        slopes = torch.autograd.grad(-losses.sum(), gaps)[0]
        for n, a in enumerate(A.tolist()):
            text = r.n == n
            close(slopes[text], SLOPES[names](gaps[text].tolist(), r.logp_old[text].tolist(), a))
        assert noise or (slopes - r.A).abs().max() < 1e-9


# ---- what is collected ---------------------------------------------------------------------------


@pytest.mark.parametrize('kind', ['one pass', 'two passes, random order', 'a world'])
def test_tis_weighs_a_token_by_learner_over_sampler_at_most_2(kind, file, knobs):
    """Here the sampler is another network."""
    policy, other, prompts = toy_of(kind, knobs)
    sampler = file('sampler.py', LETTERS + """
def complete(policy, prompts, k, greedy=False, inner=complete):
    return inner(other, prompts, k, greedy)""")
    knobs(*KINDS[kind][0], sampler, FILES['tis'], rewards={'letters': 1.0}, top_k=3,
          batch_size=4, group_size=4)
    grpo.other = other
    [r], _, A = grpo.collect(SimpleNamespace(policy=policy), prompts.task, 0)
    learner, sampler = [slow_stats(network, r).logp for network in (policy, other)]
    close(r.logp_old, learner.detach())
    ratios = (learner - sampler).exp().tolist()
    close(r.A, [A.flatten()[n] * min(x, 2.0) for n, x in zip(r.n, ratios)])
    assert min(ratios) < 1 and max(ratios) > 2


def test_dapo_draws_until_a_step_is_full_of_groups_whose_rewards_differ_or_three_times(file, knobs):
    """Each micro-step has its two groups."""
    policy, _, prompts = toy_of('one pass', knobs)
    knobs(file('letters.py', LETTERS), FILES['dapo'], rewards={'letters': 1.0}, batch_size=2,
          gradient_accumulation_steps=2, group_size=2)
    n_draws = set()
    for step in range(20):
        rollouts, _, A = grpo.collect(SimpleNamespace(policy=policy), prompts.task, step)
        n = len(rollouts) // 2
        n_draws.add(n)
        assert len(A) == 4 * n
        assert n == 1 or not rollouts[0].sequences.equal(rollouts[1].sequences)
        for i, r in enumerate(rollouts):        # draws i % n of micro-step i // n
            assert r.A.equal(A[4 * (i % n) + 2 * (i // n):][:2].flatten()[r.n])
        for part in (rollouts[:n], rollouts[n:]):
            groups = [r.A[r.n // 2 == b].any() for r in part for b in set((r.n // 2).tolist())]
            assert len(groups) == 2 and (all(groups) or n == 3)
    assert n_draws == {1, 2, 3}


# ---- all files -----------------------------------------------------------------------------------


@pytest.mark.parametrize('name', FILES)
def test_every_file_takes_steps_alone_and_before_another(name, toy, file):
    names = list(FILES)
    for files in (name, f'{name} {names[names.index(name) - 1]}'):
        _, networks, task = grpo.set_up([*toy[1:], file('ones.py', ONES), *files_of(files),
                                         '--rewards={"ones": 1.0}', '--kl_beta=0.1'])
        optimizers = make_optimizers(networks.policy, 'muon')
        for step in range(2):
            rollouts, _, _ = grpo.collect(networks, task, step)
            numbers = grpo.learn(networks, optimizers, rollouts, 0.01)
            assert all(map(math.isfinite, numbers.values())) and numbers['grad_norm'] > 0


def test_two_ranks_take_the_steps_of_one_process_with_dapo_and_gdpo(toy, tmp_path, file):
    words = [*toy, file('ones.py', ONES), *files_of('dapo gdpo'), '--dtype=float64',
             '--rewards={"ones": 1.0}', '--gradient_accumulation_steps=4', '--group_size=2']
    for ranks in (1, 2):
        train(words, tmp_path / str(ranks), ranks=ranks)
    one, two = [log_of(tmp_path / name) for name in '12']
    assert len(one) == len(two) and 0 < one[1]['dead_groups'] < 1
    for line, other in zip(one, two):
        assert line == pytest.approx(other, rel=1e-6, abs=1e-9)
