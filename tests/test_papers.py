"""Each file of config/papers/ and config/kl/ against its equation, in slow loops over one token at
a time."""
import math
from pathlib import Path

import pytest
import torch

import train_grpo
from extras.check import check
from judge import Scorer
from rollout import TokenStats
from test_grpo import (close, expected_step, knobs, letters, loss_of, randn,     # noqa: F401
                       rollout_of, slope, slow_loss, slow_rollout, tiny,
                       toy_prompts, toy_scorer, two_sequences)
from train_grpo import collect, learn

FILES = {path.stem: str(path) for folder in ('papers', 'kl')
         for path in sorted(Path('config', folder).glob('*.py'))}


# ---- advantages ----------------------------------------------------------------------------------


def advantages_of(name, knobs, reward, scores=None):
    """Return the advantages that a paper gives to rewards (P, k)."""
    knobs(FILES[name])
    return train_grpo.rules.adv_norm(reward, scores)


def test_rloo_subtracts_the_mean_of_the_others(knobs):
    for name in ('rloo', 'diffucoder'):
        reward = torch.rand(5, 4).double()
        for group, advantages in zip(reward, advantages_of(name, knobs, reward)):
            for j in range(4):
                close(advantages[j], group[j] - (sum(group) - group[j]) / 3)


def test_maxrl_divides_by_the_mean_and_refuses_negative_rewards(knobs):
    """A negative mean would turn the sign of every advantage. All zeros teach nothing."""
    reward = torch.rand(5, 4).double()
    reward[1] = 0.0
    for group, advantages in zip(reward, advantages_of('maxrl', knobs, reward)):
        mean = sum(group) / 4
        close(advantages, torch.stack([(x - mean) / mean if mean > 0 else x for x in group]))
    with pytest.raises(AssertionError, match='MaxRL .*-0.5'):
        advantages_of('maxrl', knobs, torch.tensor([[1.0, -0.5]]))


@pytest.mark.parametrize('name', ['rloo', 'diffucoder', 'maxrl', 'gdpo'])
def test_a_group_with_missing_rewards_has_the_advantages_of_the_smaller_group(name, knobs):
    """Where all but one are missing there are none: see collect()."""
    whole = torch.rand(3, 6).double()
    few = whole[:, :4]
    some = torch.cat((few, torch.full((3, 2), math.nan).double()), 1)[:, [4, 0, 1, 5, 2, 3]]
    A, expected = [advantages_of(name, knobs, reward, {'judge': reward}) for reward in (some, few)]
    close(A[:, [1, 2, 4, 5]], expected)
    assert A[:, [0, 3]].isnan().all()
    alone = torch.tensor([[math.nan, 1.5, math.nan]])
    assert advantages_of(name, knobs, alone, {'judge': alone})[0, 1] == 0


def pass_at(m, z):
    """P(at least one of m ids is id 0, the right one)."""
    return 1 - (1 - z.softmax(0)[0]) ** m


def is_right(ids):
    return (ids == 0).double()


@pytest.mark.parametrize('k', [2, 3, 4])
def test_maxrl_follows_the_gradient_of_pass_at_1_plus_pass_at_2_over_2_and_so_on(k, knobs):
    """Dividing by the mean gives weight to prompts that seldom succeed."""
    z = randn(3)
    exact = slope(lambda z: sum(pass_at(m, z) / m for m in range(1, k)), z)
    close(expected_step(z, is_right, k, lambda reward: advantages_of('maxrl', knobs, reward)),
          exact)


def test_gdpo_normalises_each_reward_by_itself_then_their_sum(knobs):
    """A group whose sums are equal still learns, if its rewards differ; one whose rewards are equal
    does not, nor does a reward that is equal throughout count."""
    knobs(FILES['gdpo'], rewards={'a': 1.0, 'b': 0.5})
    a, b = torch.rand(2, 5, 4).double()
    b[1] = 1 - 2 * a[1]                         # a + b / 2 = 1 / 2
    a[2] = 0.1
    a[3], b[3] = 1234.1, 0.7
    scores = {'a': a, 'b': b, 'tokens': torch.rand(5, 4)}
    A = train_grpo.rules.adv_norm(a + 0.5 * b, scores)
    totals = [[0.0] * 4 for _ in range(5)]
    for values, weight in ((a, 1.0), (b, 0.5)):
        for p, group in enumerate(values.tolist()):
            mean = sum(group) / 4
            std = (sum((x - mean) ** 2 for x in group) / 3) ** 0.5
            for j in range(4):
                totals[p][j] += weight * (group[j] - mean) / (std + 1e-4)
    totals = torch.tensor(totals, dtype=torch.float64)
    close(A, totals / (totals.std() + 1e-4), atol=1e-7)
    assert A[1].abs().min() > 0.1 and not A[3].any()


def stats_with(logp):
    """Return the TokenStats of which only logp is known."""
    return TokenStats(logp, None, None, None, None, None)


# ---- objectives ----------------------------------------------------------------------------------


def slow_gspo(log_ratios, A, low, high):
    ratio = math.exp(sum(log_ratios) / len(log_ratios))
    return [-min(ratio * A, min(max(ratio, 1 - low), 1 + high) * A)] * len(log_ratios)


def slow_gmpo(log_ratios, A, low, high):
    clipped = [min(x, high) if A > 0 else max(x, -low) for x in log_ratios]
    return [-A * math.exp(sum(clipped) / len(clipped))] * len(log_ratios)


@pytest.mark.parametrize('name, slow', [('gspo', slow_gspo), ('gmpo', slow_gmpo)])
def test_a_ratio_of_a_sequence_is_that_of_a_slow_loop(name, slow, knobs):
    """Its value, and its gradient by finite differences. Other sequences do not matter."""
    knobs(FILES[name], clip_low=0.05, clip_high=0.1)
    r = two_sequences(1, 4)
    objective = train_grpo.rules.objective
    for A in (1.5, -0.7):
        for _ in range(5):
            logp_old = randn(2, 4) * r.is_sampled
            logp = logp_old + 0.2 * randn(2, 4) * r.is_sampled
            logp.requires_grad_()
            pg, numbers = objective(stats_with(logp), logp_old, torch.full((2, 1), A).double(), r)

            def by_hand(logp):
                losses = [slow((logp - logp_old)[n, :length].tolist(), A, 0.05, 0.1)
                          for n, length in enumerate((1, 4))]
                return torch.tensor(sum(losses, []), dtype=torch.float64)

            close(pg[r.is_sampled], by_hand(logp))
            close(torch.autograd.grad(pg[r.is_sampled].sum(), logp)[0] * r.is_sampled,
                  slope(lambda x: by_hand(x).sum(), logp.detach()), atol=1e-6)
            assert set(numbers) == {'clip_frac', 'ratio_off'}


@pytest.mark.parametrize('A', [1.0, -1.0])
@pytest.mark.parametrize('p_new', [0.05, 0.2, 0.25, 0.45])
def test_cispo_clips_the_weight_of_a_token_and_not_its_gradient(A, p_new, knobs):
    """The old probability is 0.2. The gradient is that of log p, times the ratio, at most 1.28."""
    knobs(FILES['cispo'])
    z = torch.tensor([[p_new, 0.5 - p_new, 0.5]]).log().requires_grad_()
    score = torch.eye(3)[0] - z.detach().exp()              # the gradient of log p of id 0
    terms, sums = loss_of(z, rollout_of(torch.tensor([0])), torch.tensor([[A]]),
                          torch.tensor([[0.2]]).log())
    close(torch.autograd.grad(terms['loss'], z)[0], -min(p_new / 0.2, 1.28) * A * score, atol=1e-6)
    assert sums['objective/clip_frac'] == (p_new > 0.256)


def test_truncated_importance_sampling_weighs_tokens_by_learner_over_sampler_at_most_2(knobs):
    knobs(FILES['tis'])
    r = two_sequences(3, 4)
    logp, logp_old, r.logp_sampled = [randn(2, 4) * r.is_sampled for _ in range(3)]
    A = torch.tensor([[1.5], [-0.7]]).double()
    pg, numbers = train_grpo.rules.objective(stats_with(logp), logp_old, A, r)
    for n, t in r.is_sampled.nonzero().tolist():
        ratio = math.exp(logp[n, t] - logp_old[n, t])
        weight = math.exp(logp_old[n, t] - r.logp_sampled[n, t])
        a = A[n].item()
        close(pg[n, t].item(), -min(weight, 2) * min(ratio * a, min(max(ratio, 0.8), 1.2) * a))
        assert numbers['tis_frac'][n, t] == (weight > 2)


DPPO = {                        # by advantage, old and new probability: does the token learn?
    (1.0, 0.001, 0.1): True,    # a hundred times as likely, but the distribution has hardly moved
    (1.0, 0.5, 0.7): False,
    (-1.0, 0.5, 0.7): True,     # on its way back
    (-1.0, 0.99, 0.8): False,
    (-1.0, 0.99, 0.9): True,
}


@pytest.mark.parametrize('A, p_old, p_new', DPPO)
def test_dppo_stops_a_token_when_its_probability_has_moved_too_far(A, p_old, p_new, knobs):
    knobs(FILES['dppo'])
    z = torch.tensor([[p_new, 1 - p_new]]).double().log().requires_grad_()
    r = rollout_of(torch.tensor([0]))
    r.logp_sampled = torch.tensor([[p_old]]).double().log()
    terms, sums = loss_of(z, r, torch.tensor([[A]]).double())
    learns = DPPO[A, p_old, p_new]
    score = torch.eye(2).double()[0] - z.detach().exp()     # the gradient of log p of id 0
    weight = min(p_new / p_old, 20) * learns
    close(torch.autograd.grad(terms['loss'], z)[0], -weight * A * score, atol=1e-6)
    assert sums['objective/clip_frac'] == (not learns)


# ---- whole steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize('name', ['grpo', 'dr_grpo', 'just_grpo'])
def test_a_paper_without_functions_takes_the_step_of_the_slow_loops(name, knobs):
    knobs(FILES[name], rewards={'letters': 1.0}, grad_clip=0.0, batch_size=4, temperature=0.9)
    policy, reference = tiny(), tiny(seed=3).requires_grad_(False)
    by_hand = tiny()
    if name == 'just_grpo':                     # one blank a pass, from left to right
        knobs(n_fill_steps=4)                   # the slow loop fills as many in all of its passes
    prompts = toy_prompts()
    if name == 'just_grpo':
        prompts.blank[:] = prompts.blank[3]     # four blanks each
    micro_steps, _, advantages = collect(policy, toy_scorer(reference), prompts)
    completions = slow_rollout(by_hand, prompts)
    loss = slow_loss(by_hand, reference, completions, advantages, train_grpo.kl_beta,
                     3 * prompts.blank.sum())
    loss.backward()
    learn(policy, Scorer(reference=reference), [torch.optim.SGD(policy.parameters(), 0.1)],
          micro_steps, advantages, 0.1, train_grpo.kl_beta)
    for p, q in zip(policy.parameters(), by_hand.parameters()):
        close(p.data, q.data - 0.1 * q.grad, atol=1e-7)


def test_dapo_fills_a_step_with_the_first_groups_that_are_not_dead(knobs):
    """Of three times as many prompts. Dead ones fill it up. Its upper clip is 1.28."""
    knobs(FILES['dapo'], rewards={'letters': 1.0}, batch_size=2, gradient_accumulation_steps=2,
          group_size=2)
    assert (train_grpo.clip_low, train_grpo.clip_high, train_grpo.loss_norm) == (0.2, 0.28, 'token')
    policy = tiny()
    asked = toy_prompts(P=12, k=2)

    class Data:
        def prompts(self, split, n, k, seed, step):
            assert (split, n, k) == ('train', 12, 2)
            return asked

    choose = train_grpo.rules.draw_prompts
    chosen = choose(Data(), 0, policy, toy_scorer(None)).row.tolist()
    alive = [row for row in range(12)           # without `verify`: whose rewards differ
             if len(set(letters([case['completion'] for case in
                                 train_grpo.act(policy, asked[[row]]).cases()]))) > 1]
    dead = [row for row in range(12) if row not in alive]
    assert 0 < len(alive) < 12 and dead
    assert chosen == (alive + dead)[:4]


def exact_kl(logp, logp_ref):
    return (logp.exp() * (logp - logp_ref)).sum()


# ---- KLs -----------------------------------------------------------------------------------------


KL_TYPES = {                    # the KL that the mean is, and the KL that the gradient is of
    'k1': ('reverse', 'nothing'),
    'k2': ('neither', 'reverse'),
    'k3': ('reverse', 'forward'),               # ours
    'k3_ratio': ('reverse', 'reverse'),
    'exact': ('reverse', 'reverse'),            # ours; this one and the next are no estimates
    'forward': ('forward', 'forward'),
    'symmetric': ('both', 'both'),
}


@pytest.mark.parametrize('kl_type', KL_TYPES)
def test_mean_and_gradient_of_a_kl_estimator_belong_to_different_kls(kl_type, knobs):
    """Every id counts as often as it is likely. k1 is right on average and has no gradient; k2 is
    wrong on average and has the gradient of the exact KL(policy || reference)."""
    if kl_type in FILES:
        knobs(FILES[kl_type])
    else:
        knobs(kl_type=kl_type)
    mean_is, gradient_is = KL_TYPES[kl_type]
    z, ref = randn(2, 3)
    logp_ref = ref.log_softmax(0)
    kl = {
        'reverse': lambda z: exact_kl(z.log_softmax(0), logp_ref),
        'forward': lambda z: exact_kl(logp_ref, z.log_softmax(0)),
        'both': lambda z: (kl['reverse'](z) + kl['forward'](z)) / 2,
        'nothing': lambda z: 0 * z.sum(),
    }
    z.requires_grad_()
    logp = z.log_softmax(0)
    exact = [kl[name](z).expand(3) for name in ('reverse', 'forward')]     # of each id the same
    stats = TokenStats(logp, logp, logp_ref, *exact, None)
    mean = logp.detach().exp() @ train_grpo.rules.kl_type(stats, logp.detach())
    for name in ('reverse', 'forward', 'both'):
        assert (mean_is == name) == ((mean - kl[name](z)).abs() < 1e-9)
    close(torch.autograd.grad(mean, z)[0], slope(kl[gradient_is], z.detach()))


# ---- all files -----------------------------------------------------------------------------------


@pytest.mark.parametrize('name', FILES)
def test_the_functions_of_every_file_fit_and_ranks_do_not_change_them(name):
    """The fifth of forks.py is that of a micro-step, as in the paper."""
    wrong = {knob for knob, sentence in check(FILES[name]).items() if sentence}
    assert wrong == ({'micro-steps'} if name == 'forks' else set())
