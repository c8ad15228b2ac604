"""Files of config/papers/ against the formulas of their papers, in loops over texts and tokens; and
stacks of them, which act together, or which one line refuses. At the end plugins/best.py."""
import itertools
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import train_grpo as grpo
from conftest import checkpoint_of, log_of, run, train
from test_grpo import close, knobs, slow_stats, step_of, tiny  # noqa: F401 (a fixture)
from test_grpo import toy as toy_of

FILES = {path.stem: str(path) for folder in ('config/papers', 'config/kl', 'plugins')
         for path in sorted(Path(folder).glob('*.py'))}
ONES = """
rewards = {'ones': 1.0}
def ones(texts):
    return [text.count('1') for text in texts]
"""


def both_orders(*stacks):
    return [f'{a} {b}' for stack in stacks for a, b in itertools.permutations(stack.split())]


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


@pytest.mark.parametrize('names', ['gdpo', *both_orders('rloo gdpo', 'diffucoder gdpo')])
def test_gdpo_divides_each_reward_by_its_own_std_and_leaves_the_kl_of_rloo_as_it_is(names, knobs):
    """In the other order the sum of the rewards is not divided: the last file has said so."""
    policy, reference, collect = toy_with(names, 'one pass', knobs, batch_size=4, group_size=3)
    grpo.rewards = {'letters': 1.0, 'others': 0.5}
    grpo.others = lambda texts: [ord(text[0]) % 5 + text.count('c') for text in texts]
    [r], scores = collect(policy)
    stats = slow_stats(policy, r, reference)
    kl = 0.05 * ('rloo' in names) * r.per_text(stats.logp - stats.logp_ref).detach()
    sums = []
    for group in zip(*[scores[name].tolist() for name in grpo.rewards], kl.view(4, 3).tolist()):
        x, y = [[(z - statistics.mean(part)) / (statistics.stdev(part) + 1e-4) for z in part]
                for part in group[:2]]
        sums.append([a + 0.5 * b - c for a, b, c in zip(x, y, group[2])])
    std = statistics.stdev(sum(sums, [])) + 1e-4 if names.endswith('gdpo') else 1
    for A, group in zip(scores['advantage'].tolist(), sums):
        close(A, [x / std for x in minus_the_mean_of_the_others(group)] if ' ' in names else
              [(x - statistics.mean(group)) / std for x in group])


KLS = {                         # of tokens, in the first update; back: KL(reference || policy)
    'k1': lambda logp, ref, kl, back: logp - ref,
    'k3': lambda logp, ref, kl, back: (ref - logp).exp() - 1 - (ref - logp),
    'forward': lambda logp, ref, kl, back: back,
    'symmetric': lambda logp, ref, kl, back: (kl + back) / 2}
LAST_KL = {                     # of files, one behind the other: the KL that acts
    'rloo': 'k1', 'k3 rloo': 'k1', 'grpo rloo': 'k1', 'rloo k3': 'k3', 'rloo grpo': 'k3',
    'rloo k3_ratio': 'k3', 'rloo forward': 'forward', 'rloo grpo k1': 'k1',
    'rloo grpo symmetric': 'symmetric', 'rloo adaptive_kl': 'k1', 'rloo k3 adaptive_kl': 'k3'}


@pytest.mark.parametrize('names', LAST_KL)
def test_rloo_has_the_last_kl_of_a_text_in_its_training_reward_and_none_in_the_loss(names, knobs):
    policy, reference, collect = toy_with(names, 'causal', knobs, batch_size=4, group_size=3)
    grpo.kl_beta, grpo.adv_norm, grpo.state['kl_factor'] = 0.3, 'none', 1.7
    [r], scores = collect(policy)
    stats, back = slow_stats(policy, r, reference), slow_stats(reference, r, policy)
    kl = KLS[LAST_KL[names]](stats.logp, stats.logp_ref, stats.kl, back.kl)
    weight = 0.3 * 1.7 if 'adaptive' in names else 0.3
    close((scores['letters'] - scores['reward']).flatten(), weight * r.per_text(kl).detach())
    close(scores['advantage'], [*map(minus_the_mean_of_the_others, scores['reward'].tolist())])
    held_out = grpo.score(r, None, ['letters'], 0, 'val')
    assert held_out['reward'].equal(held_out['letters'])
    step = step_of(policy, [r], reference)
    grpo.kl_beta = 0.0
    close(step, step_of(policy, [r], reference))


@pytest.mark.parametrize('names', ['k3', 'k1 k3', 'forward k3', 'grpo', 'k3 forward', 'k1',
                                   'grpo forward', 'grpo symmetric', 'grpo k1'])
def test_the_kl_of_the_loss_is_that_of_the_last_file_which_has_one(names, knobs):
    policy, reference, collect = toy_with(names, 'one pass', knobs, batch_size=4, group_size=3)
    [r], _ = collect(policy)
    stats, back = slow_stats(policy, r, reference), slow_stats(reference, r, policy)
    kl = KLS[names.split()[-1].replace('grpo', 'k3')](*stats[:3], back.kl)
    close(grpo.kl_penalty(grpo.token_stats(policy, r, reference), r), kl)


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


def slow_cispo_of_gspo(gaps, old, A):
    return A * gaps.mean().exp().clamp(max=1.0004)


def slow_dppo(gaps, old, A):
    moved = (old + gaps).exp() - old.exp()
    return A * gaps.exp().clamp(max=20) * (moved < 0.15 if A > 0 else moved > -0.15)


SLOPES = {                      # files, one behind the other
    'gspo': slow_gspo, 'gspo dr_grpo': slow_gspo, 'gmpo': slow_gmpo, 'cispo': slow_cispo,
    'cispo gspo': slow_cispo_of_gspo, 'dppo': slow_dppo}


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
                texts = r.text_of.unique()      # that learn; each of their blanks is a token
                for norm, divisor in (('sequence', len(texts)), ('constant', len(r.text_of))):
                    grpo.loss_norm = norm
                    close(grpo.token_weights(r)[1], divisor)
                chosen += drawn[texts]
            assert len(chosen) == 4 and (all(chosen) or n == 3)
    assert n_draws == {1, 2, 3}


def with_sampler(names, knobs, **values):
    """Return a policy, another network, which samples, and collect(policy, step). Advantages are
    not divided, as by the last one of several files."""
    policy, sampler, collect = toy_with(names, 'two passes, random order', knobs, **values)
    complete = grpo.complete
    grpo.complete = lambda policy, *more: complete(sampler, *more)
    grpo.adv_norm = 'none'
    return policy, sampler, collect


def test_tis_weighs_the_credit_that_gigpo_has_given(knobs):
    policy, _, collect = with_sampler('gigpo', knobs, batch_size=4)
    [alone], _ = collect(policy)
    policy, sampler, collect = with_sampler('gigpo tis', knobs, batch_size=4)
    [r], _ = collect(policy)
    ratio = (slow_stats(policy, r).logp - slow_stats(sampler, r).logp).exp()
    close(r.advantage, alone.advantage * ratio.clamp(max=2.0))
    policy, _, collect = with_sampler('tis gigpo', knobs, batch_size=4)
    with pytest.raises(AssertionError, match='before the files that weigh tokens'):
        collect(policy)


@pytest.mark.parametrize('name', ['tis', 'gigpo'])
def test_dapo_chooses_the_same_groups_before_and_behind_a_file_that_changes_credit(name, knobs):
    found = []
    for names in both_orders(f'dapo {name}'):
        policy, _, collect = with_sampler(names, knobs, batch_size=2, group_size=2)
        found.append([(r.token, r.advantage) for r in collect(policy)[0]])
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert len(found[0]) > 1


def test_gigpo_gives_a_text_with_the_mean_reward_of_its_group_and_of_its_states_exactly_0(knobs):
    """In float32 as well, where a grad_clip could make 1e-8 large. A group of five begins in one
    state, and four of its texts meet again in another one, where each writes three tokens."""
    torch.set_default_dtype(torch.float32)
    text_of = torch.arange(5).repeat_interleave(4)
    view_of = torch.tensor(4 * [0, 1, 1, 1] + [0, 2, 2, 2])
    A = torch.tensor([-7.0, -3.0, 0.0, 10.0, 0.0])[text_of]
    texts = torch.zeros(5, 3, dtype=torch.long)
    r = grpo.Rollout(None, 5, texts, torch.eye(3).long(), text_of, None, None, view_of, advantage=A)
    grpo.collect = lambda *_: ([r], {})
    grpo.include(FILES['gigpo'])
    grpo.collect(SimpleNamespace(policy=SimpleNamespace(causal=False)), None, 0)
    assert r.advantage.equal(2 * A)


# ---- replay --------------------------------------------------------------------------------------


def updates_of(policy, rollouts):
    """Return the Rollouts of each update of a step in which the policy stays as it is."""
    updates = []
    grpo.take_update = lambda networks, optimizers, rollouts, lr: updates.append(rollouts) or {}
    grpo.learn(SimpleNamespace(policy=policy), [], rollouts, 0.0)
    return updates


@pytest.mark.parametrize('before, after', [(1.0, 0.5), (0.5, 1.0)])
@pytest.mark.parametrize('names', ['replay', *both_orders('replay tis', 'replay gigpo',
                                                          'replay dapo')])
def test_replay_learns_once_more_from_the_groups_of_the_step_before_as_they_were(
        names, before, after, knobs):
    """With the ratio to the policy of that step. Another file weighs a Rollout once. Ids that a new
    filter forbids stay possible in old groups. A resumed run can have another group_size."""
    policy, _, collect = with_sampler(names, knobs, batch_size=2, top_p=before)
    moved = tiny(seed=5)
    grpo.loss_norm = 'constant'
    first, _ = collect(policy)
    was = [(r.advantage.clone(), r.token, r.texts, grpo.token_weights(r)[1]) for r in first]
    assert [*map(id, first)] == [*map(id, *updates_of(policy, first))]
    grpo.top_p, grpo.group_size = after, 3
    second, _ = collect(moved)
    [update] = updates_of(moved, second)
    new, old = update[:len(second)], update[len(second):]
    assert [*map(id, new)] == [*map(id, second)]
    for r, (A, token, texts, divisor) in zip(old, was, strict=True):
        assert r.advantage.equal(A) and r.token.equal(token) and r.texts.equal(texts)
        close(grpo.token_weights(r)[1], divisor)
        close(grpo.log_probs_of(policy, r), r.logp_old)
    for rollouts, network in ((old, policy), (new, moved)):
        for r in rollouts:
            if len(r.token):                    # dapo.py can choose no group of a draw
                close(r.logp_old, slow_stats(network, r).logp.detach())


@pytest.mark.parametrize('n_first, n_second', [(1, 1), (1, 3), (2, 1)])
def test_each_mini_batch_learns_from_its_part_of_the_new_and_of_the_old_groups(
        n_first, n_second, knobs):
    """dapo.py makes several Rollouts of a micro-step, and not always as many."""
    policy, _, collect = toy_with('replay', 'one pass', knobs, batch_size=2, mini_batches=2,
                                  gradient_accumulation_steps=2)
    steps = [[[collect(policy, step)[0][i] for step in range(n)] for i in range(2)]
             for n in (n_first, n_second)]
    updates_of(policy, sum(steps[0], []))
    for i, update in enumerate(updates_of(policy, sum(steps[1], []))):
        assert [str(r.texts) for r in update] == [str(r.texts) for r in steps[1][i] + steps[0][i]]


# ---- all files -----------------------------------------------------------------------------------


def stacks_of(refused):
    return [(names, sentence) for sentence, stacks in refused.items() for names in stacks]


WITHOUT_OTHERS = {'put it first': ['gspo cispo', 'gspo gmpo', 'gmpo cispo', 'forks dppo'],
                  'the ratio of each token': ['gmpo gspo', 'dppo gspo'],
                  'leave one': ['d1 unigrpo', 'unigrpo diffucoder', 'diffucoder d1', 'gdpo maxrl',
                                'rloo maxrl', *both_orders('rloo diffucoder')],
                  'likelihood is exact': ['d1 just_grpo']}


@pytest.mark.parametrize('names, sentence', stacks_of(WITHOUT_OTHERS))
def test_a_file_that_would_undo_another_one_is_refused_when_it_is_read(names, sentence, knobs):
    with pytest.raises(AssertionError, match=f'{names.split()[1]}.py.*{sentence}'):
        knobs(*map(FILES.get, names.split()))


LEARNED = "include('plugins/passes.py')\nfill_order = 'learned'\n"
REFUSED = {
    'adaptive_kl.py: nothing uses its weight': [
        'adaptive_kl k1', 'adaptive_kl grpo', 'adaptive_kl forward', 'adaptive_kl rloo',
        'adaptive_kl dapo', 'dapo adaptive_kl'],
    'maxrl.py: expected rewards >= 0': ['maxrl gdpo', 'maxrl rloo'],
    'include plugins/passes.py before files that wrap complete()': ['tis passes', 'tis just_grpo'],
    "tis.py: expected fill_order to be a rule": ['learned tis'],
    'tis.py: expected masks whose weights sum to 1': ['diffucoder tis'],
    'dppo.py: Masked: exp(logp)': ['d1 dppo', 'dppo unigrpo'],
    'dppo.py: Ordered: exp(logp)': ['learned dppo']}


@pytest.mark.parametrize('names, sentence', stacks_of(REFUSED))
def test_a_stack_in_which_a_file_would_do_nothing_or_harm_ends_with_one_line_in_its_first_step(
        names, sentence, toy, file, tmp_path):
    files = FILES | {'learned': file('learned.py', LEARNED)}
    words = [*toy, file('ones.py', ONES), *map(files.get, names.split()), '--max_iters=1']
    code, _, error = run(*words, f'--out_dir={tmp_path}/run')
    assert code == 1 and error.startswith(f'error: {sentence}') and error.count('\n') == 1


PAIRS = ['adaptive_kl cispo', 'd1 dapo', 'unigrpo tis', 'dppo dr_grpo', 'dr_grpo forks',
         'gdpo gigpo', 'gmpo grpo', 'gspo just_grpo', 'maxrl replay', 'rloo d1', 'tis dapo',
         'gigpo dapo', 'replay dapo', 'grpo rloo', 'diffucoder gspo', 'replay unigrpo']


@pytest.mark.parametrize('names', PAIRS)
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
    return torch.load(out / 'best.pt', weights_only=True)


@pytest.mark.parametrize('ranks', [1, 2])
def test_best_is_the_checkpoint_of_the_best_evaluation_also_of_a_run_that_was_resumed(
        ranks, toy, file, tmp_path):
    """A run is killed while it evaluates the best one, and does so again. It is stopped between two
    evaluations. With other weights of rewards, scores cannot be compared."""
    words = [*toy, 'plugins/best.py', file('goals.py', GOALS), '--max_iters=8']
    train(words, tmp_path / 'whole', ranks=ranks)
    for more, step, best in (([], 4, 2), (['--resume=True'], 5, 4), (['--resume=True'], 8, 4), (
            ['--resume=True', "--rewards={'goal': 2.0}", '--max_iters=10'], 10, 8)):
        code, *_ = run(*words, f'--out_dir={tmp_path}/run', *more, ranks=ranks)
        assert (code == 0) == (more != []) and checkpoint_of(tmp_path / 'run')['step'] == step
        assert best_of(tmp_path / 'run')['step'] == best
        if step == 8:
            a, b = [best_of(tmp_path / name) for name in ('run', 'whole')]
            torch.testing.assert_close(a['model'], b['model'], rtol=0, atol=0)
    train(toy, tmp_path / 'next', f'--generator={tmp_path}/whole/best.pt', '--max_iters=0')
    a, b = checkpoint_of(tmp_path / 'next'), best_of(tmp_path / 'whole')
    torch.testing.assert_close(a['model'], b['model'], rtol=0, atol=0)
