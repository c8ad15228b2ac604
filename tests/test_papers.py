"""Files of config/papers/ against the formulas of their papers, in loops over texts and tokens;
plugins/overlong.py. (Estimates of likelihoods: test_likelihoods.py. KLs: test_grpo.py. Papers that
exclude one another: test_files.py.) At the end plugins/best.py."""
import math
from types import SimpleNamespace

import pytest
import torch

import train_grpo as grpo
from runs import checkpoint_of, run, train
from test_grpo import TOP, close, knobs, slow_stats, step_of  # noqa: F401 (a fixture)
from test_grpo import toy as toy_of


def toy_with(words, kind, knobs, **values):
    """Return a policy, another network, and collect(network, step), with a reward and papers."""
    policy, other, prompts = toy_of(kind, knobs, None, "--rewards={'letters':1.0}", words, **values)
    grpo.letters = lambda texts: [text.count('b') for text in texts]
    return policy, other, lambda network, step=0: grpo.collect(
        SimpleNamespace(policy=network, reference=other), prompts.task, step)


# ---- rewards, advantages, KLs --------------------------------------------------------------------


def test_rloo_subtracts_the_mean_of_the_others_and_in_training_a_kl_of_the_text(knobs):
    policy, reference, collect = toy_with('config/papers/rloo.py', 'causal', knobs, batch_size=4,
                                           group_size=3)
    [r], scores = collect(policy)
    stats = slow_stats(policy, r, reference)
    kl = r.per_text(stats.logp - stats.logp_ref).view(-1, 3)
    close(scores['reward'], scores['letters'] - 0.05 * kl)
    for A, group in zip(scores['advantage'], scores['reward'].tolist()):
        close(A, [x - (sum(group) - x) / 2 for x in group])
    held_out = grpo.score(r, None, grpo.rewards, 0, 'val')
    assert held_out['reward'].equal(held_out['letters'])
    assert not grpo.kl_penalty(stats).any()                  # the loss has none


def test_adaptive_kl_grows_above_its_target_and_shrinks_below_by_10_percent_in_5000_texts(knobs):
    """The target is 0.5. An error above 20 % counts as 20 %. The knob stays."""
    knobs(kl_beta=0.3, group_size=10, batch_size=100, gradient_accumulation_steps=5)
    grpo.learn = lambda kl, optimizers, rollouts, lr: {'kl': kl, 'weight': grpo.kl_beta}
    grpo.include('config/papers/adaptive_kl.py')
    for kl, factor in ((0.9, 1.0), (0.45, 1.1), (0.1, 1.045), (0.5, 0.9405)):
        numbers = grpo.learn(kl, None, None, None)
        close([numbers['kl_beta'], numbers['weight'], grpo.kl_beta], [0.3 * factor] * 2 + [0.3])


# ---- losses of tokens ----------------------------------------------------------------------------

SLOPES = {          # of a text: how steep is the gain of its tokens, from their log ratios and A
    'config/papers/gspo.py': lambda gaps, A: A * gaps.mean().exp() * (
        gaps.mean().exp() < 1.0004 if A > 0 else gaps.mean().exp() > 0.9997),
    'config/papers/cispo.py': lambda gaps, A: A * gaps.exp().clamp(max=1.28)}


@pytest.mark.parametrize('file', SLOPES)
def test_the_gradient_of_a_loss_equals_a_loop_over_the_texts(file, knobs):
    """Every second text has moved little."""
    knobs(file)
    n = torch.randint(20, (200,))
    A, old = torch.randn(20), -2 * torch.rand(200)
    gaps = (torch.randn(200) * (n % 2 * 2 + 1e-3)).requires_grad_()
    r = grpo.Rollout(None, 1, A, None, n, None, None, advantage=A[n], logp_old=old)
    losses, is_clipped = grpo.policy_loss(grpo.Stats(old + gaps, None, None, None), r)
    slopes = torch.autograd.grad(-losses.sum(), gaps)[0]
    for i, a in enumerate(A):
        close(slopes[n == i], SLOPES[file](gaps[n == i], a).expand((n == i).sum()))
    limit = 1 + grpo.clip_high                  # of CISPO's weight
    is_cut = (slopes == 0) | ((slopes / r.advantage - limit).abs() < 1e-9)
    assert (is_clipped > 0).equal(is_cut) and is_cut.any() and not is_cut.all()


@pytest.mark.parametrize('kind', ['one pass', 'two passes, random order', 'a world'])
def test_tis_weighs_a_token_by_learner_over_sampler_at_most_2(kind, knobs):
    """Among the ids that plugins/top.py has allowed. The first micro-step keeps its numbers."""
    policy, sampler, collect = toy_with(
        f'config/papers/tis.py {TOP} --top_k=3', kind, knobs, batch_size=2, group_size=9,
        gradient_accumulation_steps=2)
    rollouts, _ = collect(sampler)
    ratios = [(slow_stats(policy, r).logp - slow_stats(sampler, r).logp).exp() for r in rollouts]
    step = step_of(policy, rollouts)
    for r, ratio in zip(rollouts, ratios):
        r.advantage = r.advantage * ratio.detach().clamp(max=2.0)
        r.more['logp_sampler'] = slow_stats(policy, r).logp.detach()
    close(step, step_of(policy, rollouts))
    assert ratios[0].min() < 1 and ratios[0].max() > 2


# ---- what is collected ---------------------------------------------------------------------------


def test_dapo_draws_until_a_step_is_full_of_groups_whose_rewards_differ_or_three_times(knobs):
    """A step has two updates, of a micro-step each. A micro-step keeps its first two groups of two
    texts whose rewards differ, and no other group. Each draw has numbers of its own."""
    policy, _, collect = toy_with('config/papers/dapo.py', 'one pass', knobs, batch_size=2,
                                  group_size=2, mini_batches=2)
    found = set()
    for step in range(20):
        rollouts, scores = collect(policy, step)
        A = scores['advantage'].view(-1, 2, 2, 2)       # of draws, micro-steps, groups, texts
        n_draws = len(A)
        expected, is_full = set(), []
        for micro_step in range(2):
            teaches = A[:, micro_step].any(2).nonzero().tolist()        # [draw, group]
            expected |= {(draw, micro_step, group) for draw, group in teaches[:2]}
            is_full.append([sum(draw <= last for draw, _ in teaches) >= 2
                            for last in range(n_draws)])
        fulls = [all(x) for x in zip(*is_full)]         # after each draw
        assert not any(fulls[:-1]) and (fulls[-1] or n_draws == 3)
        kept = set()
        for i, r in enumerate(rollouts):
            micro_step, draw = divmod(i, n_draws)
            assert r.advantage.equal(A[draw, micro_step].flatten()[r.text_of])
            kept |= {(draw, micro_step, group) for group in (r.text_of // 2).tolist()}
        assert kept == expected and len(rollouts) == 2 * n_draws
        assert len({str(r.texts) for r in rollouts[:n_draws]}) == n_draws
        first, second = grpo.updates_of(rollouts)
        assert [id(r) for r in first + second] == [id(r) for r in rollouts]
        assert len(first) == n_draws
        networks = SimpleNamespace(policy=policy, reference=None)
        numbers = grpo.learn(networks, [torch.optim.SGD(policy.parameters())], rollouts, 1e-3)
        assert all(map(math.isfinite, numbers.values()))
        found.add((n_draws, len(kept)))
    assert {(1, 4), (2, 4), (3, 4)} <= found and min(n for _, n in found) < 4


def test_overlong_gives_no_advantage_to_a_text_that_the_policy_did_not_end(knobs):
    policy, _, collect = toy_with('plugins/overlong.py', 'a world', knobs, batch_size=4,
                                  group_size=9, max_new_tokens=2)
    [r], scores = collect(policy)
    ended = torch.tensor(grpo.columns_of(r)['ended'])
    assert r.advantage.equal((scores['advantage'].flatten() * ended)[r.text_of])
    assert ended.any() and not ended.all()


# ---- the best checkpoint -------------------------------------------------------------------------

GOALS = """
import os, signal
rewards, _SIGNALS = {'goal': 1.0}, [signal.SIGTERM]
def goal(texts, step, split):
    if step == 4 and 'whole' not in out_dir:    # a run that is killed, and one that is stopped
        assert split == 'train' or resume
        if split == 'train' and _SIGNALS:
            os.kill(os.getpid(), _SIGNALS.pop())
    return [{0: 1.0, 2: 3.0, 4: 5.0, 6: 4.0, 8: 2.0}.get(step, 0.0)] * len(texts)
"""


@pytest.mark.parametrize('ranks', [1, 2])
def test_best_is_the_checkpoint_of_the_best_evaluation_also_of_a_run_that_was_resumed(
        ranks, toy, file, tmp_path):
    """A run is killed while it evaluates the best one, and does so again. It is stopped between two
    evaluations. With other weights of rewards, scores cannot be compared."""
    words = [*toy, 'plugins/best.py', file('goals.py', GOALS), '--max_iters=8',
             '--eval_interval=2']
    train(words, tmp_path / 'whole', ranks=ranks)
    for more, step, best in (('', 4, 2), ('--resume=True', 5, 4), ('--resume=True', 8, 4), (
            "--resume=True --rewards={'goal':2.0} --max_iters=10", 10, 8)):
        code, *_ = run(*words, f'--out_dir={tmp_path}/run', *more.split(), ranks=ranks)
        assert (code == 0) == (more != '') and checkpoint_of(tmp_path / 'run')['step'] == step
        assert checkpoint_of(tmp_path / 'run', 'best.pt')['step'] == best
        if step == 8:
            a, b = [checkpoint_of(tmp_path / name, 'best.pt')['model'] for name in ('run', 'whole')]
            torch.testing.assert_close(a, b, rtol=0, atol=0)
