"""Files of config/papers/ against the formulas of their papers, in loops over texts and tokens; and
stacks of them, which act together, or which one line refuses. At the end plugins/best.py."""
import copy
import re
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import train_grpo as grpo
from conftest import checkpoint_of, log_of, run, train
from plumbing.networks import load_network
from test_grpo import close, knobs, slow_stats, step_of, tiny  # noqa: F401 (a fixture)
from test_grpo import toy as toy_of

FILES = {path.stem: str(path) for path in Path('config').glob('*/*.py')}
TWO_PASSES = 'two passes, random order'
ONES = """
rewards = {'ones': 1.0}
def ones(texts):
    return [text.count('1') for text in texts]
"""


def toy_with(names, kind, knobs, texts=None, **values):
    """Return a policy, a reference, and collect(policy, step), with a reward and papers."""
    policy, other, prompts = toy_of(kind, knobs, texts, rewards={'letters': 1.0}, **values)
    grpo.letters = lambda texts: [text.count('b') for text in texts]
    for name in names.split():
        grpo.include(FILES[name])
    return policy, other, lambda policy, step=0: grpo.collect(
        SimpleNamespace(policy=policy, reference=other), prompts.task, step)


# ---- rewards and advantages ----------------------------------------------------------------------


def minus_the_mean_of_the_others(group):
    return [x - (sum(group) - x) / (len(group) - 1) for x in group]


def maxrl(group):
    return [x / (statistics.mean(group) or 1) - any(group) for x in group]


ADVANTAGES = {                  # of files, one behind the other: that of a group
    'rloo': minus_the_mean_of_the_others, 'diffucoder': minus_the_mean_of_the_others,
    'maxrl': maxrl, 'maxrl diffucoder': lambda group: minus_the_mean_of_the_others(maxrl(group))}


@pytest.mark.parametrize('names', ADVANTAGES)
def test_advantages_equal_a_loop_over_the_groups(names, knobs):
    knobs(*map(FILES.get, names.split()))
    reward = torch.rand(3, 4)
    reward[1] = 0
    close(grpo.advantages(reward, {}), [ADVANTAGES[names](group) for group in reward.tolist()])


@pytest.mark.parametrize('names', ['gdpo', 'rloo gdpo', 'gdpo rloo', 'diffucoder gdpo',
                                   'gdpo diffucoder'])
def test_gdpo_divides_each_reward_by_its_own_std_and_leaves_the_kl_of_rloo_as_it_is(names, knobs):
    """In the other order the sum of the rewards is not divided: the last file has said so."""
    knobs(*map(FILES.get, names.split()))
    grpo.rewards = {'x': 1.0, 'y': 0.5}
    scores = dict(zip(('x', 'y', 'KL in reward'), torch.rand(3, 4, 3)))
    sums = []
    for *group, kl in torch.stack([*scores.values()], 1).tolist():
        x, y = [[(z - statistics.mean(part)) / (statistics.stdev(part) + 1e-4) for z in part]
                for part in group]
        sums.append([a + 0.5 * b - c for a, b, c in zip(x, y, kl)])
    std = statistics.stdev(sum(sums, [])) + 1e-4 if names.endswith('gdpo') else 1
    # One file subtracts the mean, two files that of the others, here of two of three.
    scale = 1.5 if ' ' in names else 1
    for A, group in zip(grpo.advantages(scores['x'], scores), sums):
        close(A, [scale * (x - statistics.mean(group)) / std for x in group])


KLS = {                         # of tokens, in the first update; back: KL(reference || policy)
    'k1': lambda logp, ref, kl, back: logp - ref,
    'k3': lambda logp, ref, kl, back: (ref - logp).exp() - 1 - (ref - logp),
    'forward': lambda logp, ref, kl, back: back,
    'symmetric': lambda logp, ref, kl, back: (kl + back) / 2}
LAST_KL = {                     # of files, one behind the other: the KL that acts
    'k1': 'k1', 'k3': 'k3', 'k1 k3': 'k3', 'forward k3': 'k3', 'k3 forward': 'forward',
    'grpo': 'k3', 'grpo k1': 'k1', 'grpo forward': 'forward', 'grpo symmetric': 'symmetric',
    'rloo': 'k1', 'k3 rloo': 'k1', 'grpo rloo': 'k1', 'rloo k3': 'k3', 'rloo grpo': 'k3',
    'rloo k3_ratio': 'k3', 'rloo forward': 'forward', 'rloo grpo k1': 'k1',
    'rloo grpo symmetric': 'symmetric', 'rloo adaptive_kl': 'k1', 'rloo k3 adaptive_kl': 'k3'}


@pytest.mark.parametrize('names', LAST_KL)
def test_the_last_kl_of_a_stack_acts_and_that_of_rloo_in_its_training_reward_alone(names, knobs):
    policy, reference, collect = toy_with(names, 'causal', knobs, batch_size=4, group_size=3)
    grpo.kl_beta, grpo.adv_norm, grpo.state['kl_factor'] = 0.3, 'none', 1.7
    [r], scores = collect(policy)
    stats, back = slow_stats(policy, r, reference), slow_stats(reference, r, policy)
    kl = KLS[LAST_KL[names]](*stats[:3], back.kl) * (1.7 if 'adaptive' in names else 1)
    r.logp_old = stats.logp.detach()
    close(grpo.kl_penalty(grpo.token_stats(policy, r, reference), r), kl)
    if 'rloo' in names:
        close(scores['KL in reward'].flatten(), 0.3 * r.per_text(kl))
        close(scores['reward'], scores['letters'] - scores['KL in reward'])
        close(scores['advantage'], [*map(minus_the_mean_of_the_others, scores['reward'].tolist())])
        held_out = grpo.score(r, None, ['letters'], 0, 'val')
        assert held_out['reward'].equal(held_out['letters'])
        step = step_of(policy, [r], reference)
        grpo.kl_beta = 0.0
        close(step, step_of(policy, [r], reference))


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


def slow_gmpo(gaps, old, A):
    clipped = gaps.clamp(max=0.4) if A > 0 else gaps.clamp(min=-0.4)
    return A * clipped.exp().prod() ** (1 / len(gaps)) * (gaps == clipped)


def slow_dppo(gaps, old, A):
    moved = (old + gaps).exp() - old.exp()
    return A * gaps.exp().clamp(max=20) * (moved < 0.15 if A > 0 else moved > -0.15)


SLOPES = {                      # files, one behind the other
    'gspo': lambda gaps, old, A: A * gaps.mean().exp() * (
        gaps.mean().exp() < 1.0004 if A > 0 else gaps.mean().exp() > 0.9997),
    'cispo': lambda gaps, old, A: A * gaps.exp().clamp(max=1.28),
    'cispo gspo': lambda gaps, old, A: A * gaps.mean().exp().clamp(max=1.0004),
    'gmpo': slow_gmpo, 'dppo': slow_dppo}
SLOPES['gspo dr_grpo'] = SLOPES['gspo']


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
    limit = 1 + grpo.clip_high                  # of CISPO's weight
    is_cut = (slopes == 0) | ((slopes / r.advantage - limit).abs() < 1e-9)
    assert (is_clipped > 0).equal(is_cut) and is_cut.any() and not is_cut.all()


# ---- what is collected ---------------------------------------------------------------------------


def with_sampler(names, kind, knobs, **values):
    """Return a policy, another network, which samples, and collect(policy, step). Advantages are
    not divided, as by the last one of several files."""
    policy, sampler, collect = toy_with(names, kind, knobs, **values)
    complete = grpo.complete
    grpo.complete = lambda policy, *more: complete(sampler, *more)
    grpo.adv_norm = 'none'
    return policy, sampler, collect


@pytest.mark.parametrize('credit', ['', 'gigpo'])
@pytest.mark.parametrize('kind', ['one pass', TWO_PASSES, 'a world'])
def test_tis_weighs_the_credit_of_a_token_by_learner_over_sampler_at_most_2(kind, credit, knobs):
    found = []
    for names in (credit, f'{credit} tis'):
        policy, sampler, collect = with_sampler(names, kind, knobs, top_k=3, batch_size=4,
                                                group_size=9)
        [r], _ = collect(policy)
        found.append(r.advantage)
    close(r.logp_old, slow_stats(policy, r).logp)
    ratio = (r.logp_old - slow_stats(sampler, r).logp).exp()
    close(found[1], found[0] * ratio.clamp(max=2.0))
    assert ratio.min() < 1 and ratio.max() > 2


def test_dapo_draws_until_a_step_is_full_of_groups_whose_rewards_differ_or_three_times(knobs):
    """Each of two micro-steps has its two groups of two texts. Each draw has numbers of its own."""
    policy, _, collect = toy_with('dapo', 'one pass', knobs, batch_size=2, group_size=2,
                                  gradient_accumulation_steps=2)
    grpo.loss_norm = 'constant'
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
                chosen += drawn[r.text_of.unique()]
                # each blank of a text that learns is a token
                assert grpo.token_weights(r)[1] == len(r.text_of)
            assert len(chosen) == 4 and (all(chosen) or n == 3)
    assert n_draws == {1, 2, 3}


@pytest.mark.parametrize('name', ['tis', 'gigpo'])
def test_dapo_chooses_the_same_groups_before_and_behind_a_file_that_changes_credit(name, knobs):
    found = []
    for names in (f'dapo {name}', f'{name} dapo'):
        policy, _, collect = with_sampler(names, TWO_PASSES, knobs, batch_size=2, group_size=2)
        found.append([(r.token, r.advantage) for r in collect(policy)[0]])
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert len(found[0]) > 1


def test_gigpo_gives_a_text_with_the_mean_reward_of_its_group_exactly_0(knobs):
    """In float32 as well, where a grad_clip could make 1e-8 large. All begin in one state."""
    torch.set_default_dtype(torch.float32)
    policy, _, collect = toy_with('gigpo', 'one pass', knobs, batch_size=1, group_size=5)
    grpo.letters = lambda texts: [3.0, 7.0, 10.0, 20.0, 10.0]
    [r], scores = collect(policy)
    assert r.advantage.equal(2 * scores['advantage'][0].float()[r.text_of])


# ---- replay --------------------------------------------------------------------------------------


def updates_of(policy, rollouts):
    """Return the Rollouts of each update of a step in which the policy stays as it is."""
    updates = []
    grpo.take_update = lambda networks, optimizers, rollouts, lr: updates.append(rollouts) or {}
    grpo.learn(SimpleNamespace(policy=policy), [], rollouts, 0.0)
    return updates


@pytest.mark.parametrize('before, after', [(1.0, 0.5), (0.5, 1.0)])
@pytest.mark.parametrize('names', ['replay', 'replay tis', 'tis replay', 'replay gigpo',
                                   'gigpo replay', 'replay dapo', 'dapo replay'])
def test_replay_learns_once_more_from_the_groups_of_the_step_before_as_they_were(
        names, before, after, knobs):
    """With the ratio to the policy of that step. Another file weighs a Rollout once. Ids that a new
    filter forbids stay possible in old groups. A resumed run can have another group_size."""
    policy, _, collect = with_sampler(names, TWO_PASSES, knobs, batch_size=2, top_p=before)
    moved = tiny(seed=5)
    grpo.loss_norm = 'constant'
    first, _ = collect(policy)
    was = copy.deepcopy(first)
    assert updates_of(policy, first) == [first]         # the same objects
    grpo.top_p, grpo.group_size = after, 3
    second, _ = collect(moved)
    [update] = updates_of(moved, second)
    n = len(second)
    assert update[:n] == second
    for r, old in zip(update[n:], was, strict=True):
        for name in ('advantage', 'token', 'texts'):
            assert getattr(r, name).equal(getattr(old, name))
        assert grpo.token_weights(r)[1] == grpo.token_weights(old)[1]
    for i, r in enumerate(update):
        network = moved if i < n else policy
        close(grpo.log_probs_of(network, r), r.logp_old)
        if len(r.token):                        # dapo.py can choose no group of a draw
            close(r.logp_old, slow_stats(network, r).logp)


@pytest.mark.parametrize('n_old, n_new', [(1, 1), (1, 3), (2, 1)])
def test_each_mini_batch_learns_from_its_part_of_the_new_and_of_the_old_groups(
        n_old, n_new, knobs):
    """dapo.py makes several Rollouts of a micro-step, and not always as many."""
    policy, _, collect = toy_with('replay', 'one pass', knobs, batch_size=2, mini_batches=2)
    steps = []
    for n in (n_old, n_new):
        grpo.gradient_accumulation_steps = 2 * n
        steps.append(collect(policy, len(steps))[0])
        updates = updates_of(policy, steps[-1])
    old, new = steps
    for i, update in enumerate(updates):
        expected = new[n_new * i:][:n_new] + old[n_old * i:][:n_old]
        assert [str(r.texts) for r in update] == [str(r.texts) for r in expected]


# ---- all files -----------------------------------------------------------------------------------


LEARNED = "include('plugins/passes.py')\nfill_order = 'learned'\n"
REFUSED = {                     # a part of the line that is said, and stacks
    'cispo.py: .*put it first': ['gspo cispo'],
    'gmpo.py: .*put it first': ['gspo gmpo', 'cispo gmpo'],
    'dppo.py: .*put it first': ['forks dppo'],
    'gspo.py: .*need the ratio of each token': ['gmpo gspo', 'dppo gspo'],
    'unigrpo.py: .*leave one': ['d1 unigrpo'],
    'diffucoder.py: .*leave one': ['unigrpo diffucoder'],
    'rloo.py and diffucoder.py: .*leave one': ['rloo diffucoder'],
    'd1.py: .*leave one': ['diffucoder d1'],
    'diffucoder.py and rloo.py: .*leave one': ['diffucoder rloo'],
    'just_grpo.py: .*likelihood is exact': ['d1 just_grpo'],
    'maxrl.py: .*leave one': ['gdpo maxrl', 'rloo maxrl'],
    'adaptive_kl.py: nothing uses its weight': [
        'adaptive_kl k1', 'adaptive_kl grpo', 'adaptive_kl forward', 'adaptive_kl rloo',
        'adaptive_kl dapo', 'dapo adaptive_kl'],
    'maxrl.py: expected rewards >= 0': ['maxrl gdpo', 'maxrl rloo'],
    'include plugins/passes.py before files that wrap': ['tis passes', 'tis just_grpo'],
    'gigpo.py: .*before the files that weigh tokens': ['d1 tis gigpo'],
    'tis.py: expected fill_order to be a rule': ['learned tis'],
    'tis.py: expected masks whose weights sum to 1': ['diffucoder tis'],
    r'dppo.py: Masked: exp\(logp\)': ['d1 dppo', 'dppo unigrpo'],
    r'dppo.py: Ordered: exp\(logp\)': ['learned dppo']}


@pytest.mark.parametrize('names, said', [
    (names, said) for said, stacks in REFUSED.items() for names in stacks])
def test_a_stack_in_which_a_file_would_do_nothing_or_harm_ends_with_one_line_in_its_first_step(
        names, said, toy, file, tmp_path):
    """Or when the file is read."""
    files = FILES | {'learned': file('learned.py', LEARNED), 'passes': 'plugins/passes.py'}
    words = [*toy, file('ones.py', ONES), *map(files.get, names.split()), '--max_iters=1']
    code, _, error = run(*words, f'--out_dir={tmp_path}/run')
    assert code == 1 and re.fullmatch(f'error: {said}.*\n', error)


PAIRS = """
adaptive_kl cispo
d1 dapo
unigrpo tis
dppo dr_grpo
dr_grpo forks
gdpo gigpo
gmpo grpo
gspo just_grpo
maxrl replay
rloo d1
tis dapo
gigpo dapo
replay dapo
grpo rloo
diffucoder gspo
replay unigrpo"""


@pytest.mark.parametrize('names', PAIRS.strip().splitlines())
def test_every_file_takes_steps_with_another_one_behind_it(names, toy, file, tmp_path):
    words = [*toy, file('ones.py', ONES), *map(FILES.get, names.split()), '--max_iters=2',
             '--kl_beta=0.1']
    train(words, tmp_path / 'run')
    assert log_of(tmp_path / 'run')[1]['grad_norm'] > 0


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


def best_of(out):
    return load_network(out / 'best.pt', 'cpu')[1]


@pytest.mark.parametrize('ranks', [1, 2])
def test_best_is_the_checkpoint_of_the_best_evaluation_also_of_a_run_that_was_resumed(
        ranks, toy, file, tmp_path):
    """A run is killed while it evaluates the best one, and does so again. It is stopped between two
    evaluations. With other weights of rewards, scores cannot be compared."""
    words = [*toy, 'plugins/best.py', file('goals.py', GOALS), '--max_iters=8']
    train(words, tmp_path / 'whole', ranks=ranks)
    for more, step, best in (('', 4, 2), ('--resume=True', 5, 4), ('--resume=True', 8, 4), (
            "--resume=True --rewards={'goal':2.0} --max_iters=10", 10, 8)):
        code, *_ = run(*words, f'--out_dir={tmp_path}/run', *more.split(), ranks=ranks)
        assert (code == 0) == (more != '') and checkpoint_of(tmp_path / 'run')['step'] == step
        assert best_of(tmp_path / 'run')['step'] == best
        if step == 8:
            a, b = [best_of(tmp_path / name) for name in ('run', 'whole')]
            torch.testing.assert_close(a['model'], b['model'], rtol=0, atol=0)
