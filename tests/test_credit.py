"""What a file can change beyond a loss: credit for a token, experience, a teacher, and STATE, which
is what a file keeps."""
import copy
import os
import signal
from types import SimpleNamespace

import pytest
import torch

import train_grpo
from extras.check import check
from judge import Scorer
from processes import at_step, assert_same, command, fails, read_log, run, train, write
from rollout import Rollout, TokenStats, token_stats
from run.folder import load_checkpoint, save_checkpoint
from test_grpo import (close, everything, gradient, knobs, randn, slow_rollout,     # noqa: F401
                       tiny, toy_prompts, toy_scorer, two_sequences)
from train_grpo import collect, grpo_loss, learn

# ---- credit for a token --------------------------------------------------------------------------

BASELINES = '''
import torch
credit = 'from_before'

def from_before(A, r, policy, scorer):
    """A baseline that reads what was there before a token, and where the token stands."""
    is_later = r.pass_of[:, None] >= r.pass_of[:, :, None]              # (N, T, T)
    before = r.sequences[:, None].masked_fill(is_later, 7)
    T = before.size(2)
    return A - (before * torch.arange(1, T * T + 1).view(T, T) % 5).sum(2) / 3

def peeks(A, r, policy, scorer):
    """A baseline that reads the token, too."""
    return from_before(A, r, policy, scorer) - r.sequences

def of_its_chance(A, r, policy, scorer):
    """Another one, which reads no token, but its probability."""
    return A - r.logp_sampled.exp()
'''


@pytest.mark.parametrize('name, is_right', [('from_before', True), ('peeks', False),
                                            ('of_its_chance', False)])
def test_a_baseline_from_before_a_token_leaves_the_mean_gradient_and_one_that_peeks_does_not(
        name, is_right, knobs):
    """All 8 completions of three blanks, one a pass, and all groups of two."""
    path = write('mine.py', BASELINES)
    knobs(path, credit=name, n_fill_steps=3)
    policy = tiny(V=2, T=3)
    _, logp, groups, chance, r = everything(policy, [0.7, 0.1, 0.4])
    reward = randn(8)
    A = reward[groups] - reward[groups.flip(1)]                 # reward - mean of the others
    values = train_grpo.rules.credit(A.view(-1, 1), r, policy, None)            # (N, T)
    assert values.shape == r.sequences.shape and values.std() > 0.1
    weighted = values * chance.repeat_interleave(2, 0)
    terms, _ = grpo_loss(token_stats(r, policy), r, weighted, 0.0)
    gap = gradient(-terms['loss'] / 2, policy) - gradient(logp.exp() @ reward, policy)
    assert (gap.abs().max() < 1e-9) == is_right
    wrong = ' '.join(check(path, f'--credit={name}').values())
    assert ('the token itself' not in wrong) == is_right


def test_a_step_weighs_each_token_by_its_credit(knobs):
    """Also with dead groups left out: a token counts if its group has credit anywhere."""
    knobs(write('mine.py', BASELINES), rewards={'letters': 1.0}, kl_beta=0.0, batch_size=4,
          grad_clip=0.0, n_fill_steps=2)
    policy, by_hand = tiny(), tiny()
    micro_steps, _, advantages = collect(policy, toy_scorer(None), toy_prompts())
    (_, r), = micro_steps
    values = train_grpo.rules.credit(advantages.view(-1, 1), r, policy, None)
    losses = []
    for n, (_, tokens, _) in enumerate(slow_rollout(by_hand, toy_prompts())):
        losses += [-values[n, token.t] * token.logp for token in tokens]
    sum(losses).div(len(losses)).backward()
    learn(policy, Scorer(), [torch.optim.SGD(policy.parameters(), 0.1)], micro_steps, advantages,
          0.1, 0.0)
    for p, q in zip(policy.parameters(), by_hand.parameters()):
        close(p.data, q.data - 0.1 * q.grad, atol=1e-7)


def slow_gigpo(A, k, begins):
    """begins: {(sequence, token): the state in which its step began}. Return {(n, t): credit}."""
    same = {}
    for (n, t), state in begins.items():
        same.setdefault((n // k, state), {})[n] = A[n]      # a step counts once, however long
    means = {key: sum(values.values()) / len(values) for key, values in same.items()}
    return {(n, t): A[n] + A[n] - means[n // k, state] for (n, t), state in begins.items()}


def test_gigpo_compares_the_passes_that_began_in_the_same_state(knobs):
    knobs('config/papers/gigpo.py', n_fill_steps=3, rewards={'letters': 1.0}, batch_size=4)
    policy = tiny(V=5)
    prompts = toy_prompts(k=6)
    prompts.order[:] = prompts.order[:1]
    (_, r), = collect(policy, toy_scorer(policy), prompts)[0]
    A = randn(24)
    values = train_grpo.rules.credit(A[:, None], r, policy, None)
    begins = {}
    for n, t in r.is_sampled.nonzero().tolist():
        seen = r.sequences[n].masked_fill(r.pass_of[n] >= r.pass_of[n, t], -1)
        begins[n, t] = tuple(seen.tolist())
    expected = slow_gigpo(A, 6, begins)
    close(torch.stack([values[n, t] for n, t in expected]), torch.stack([*expected.values()]))
    assert len(set(begins.values())) < len({(n, *state) for (n, _), state in begins.items()})


def test_gigpo_compares_the_turns_that_began_in_the_same_state(knobs):
    """Turns of one or two tokens; the world speaks in between; some games end early."""
    knobs('config/papers/gigpo.py')
    sequences = torch.tensor([[7, 1, 2, 9, 1, 1, 9, 3], [7, 1, 2, 9, 2, 1, 9, 3],
                              [7, 1, 3, 8, 1, 1, 9, 3], [7, 1, 2, 9, 0, 6, 6, 6]])
    pass_of = torch.tensor([[-1, 0, 1, -1, 3, 4, -1, 6], [-1, 0, 1, -1, 3, 4, -1, 6],
                            [-1, 0, 1, -1, 3, 4, -1, 6], [-1, 0, 1, -1, 3, -1, -1, -1]])
    r = Rollout(SimpleNamespace(k=4), sequences, pass_of, torch.zeros(4, 8))
    A = randn(4)
    values = train_grpo.rules.credit(A[:, None], r, SimpleNamespace(causal=True), None)
    begins = {}
    for n, t in r.is_sampled.nonzero().tolist():
        start = t - 1 if t in (2, 5) else t     # of the turn
        begins[n, t] = tuple(sequences[n, :start].tolist())
    for (n, t), expected in slow_gigpo(A, 4, begins).items():
        close(values[n, t], expected)


def test_only_the_fifth_of_the_tokens_with_the_highest_entropy_learns(knobs):
    knobs('config/papers/forks.py')
    r = two_sequences(4, 2)
    logp, entropy = randn(2, 4) * r.is_sampled, randn(2, 4).abs() * r.is_sampled
    A = torch.tensor([[1.5], [-0.7]]).double()
    stats = TokenStats(logp, logp, logp, 0 * logp, 0 * logp, entropy)
    pg, numbers = train_grpo.rules.objective(stats, logp, A, r)
    highest = entropy[r.is_sampled].sort().values[-2:]          # two of six tokens
    close(pg, torch.where(entropy >= highest[0], -A.expand(2, 4), 0.0) * r.is_sampled)
    assert numbers['fork_frac'].sum() == 2


def test_a_process_reward_is_the_normalised_sum_of_the_steps_to_come(knobs):
    """`b ea ba ..=`: the ball goes b, a, a. A thought that stops early has no right answer."""
    knobs('config/grpo_think.py', 'extras/studies/think_process.py')
    prompt = 'b ea ba cd ..='                   # bbaa -> after each swap b a a a
    texts = [':baaa', ':bb', 'a', ':baab']
    is_sampled = torch.zeros(4, 9).bool()
    for row, text in zip(is_sampled, texts):
        row[2:2 + len(text) + 1] = True         # and the end
    r = SimpleNamespace(sequences=torch.zeros(4, 9), is_sampled=is_sampled,
                        prompts=SimpleNamespace(k=4),
                        cases=lambda: [{'prompt': prompt, 'sampled': text} for text in texts])
    values = train_grpo.rules.credit(torch.zeros(4, 1), r, None, None)
    steps = [[1, 1, 1, 1], [1, 0], [1], [1, 1, 1, 0]]
    flat = torch.tensor(sum(steps, [])).float()
    for row, text, rewards in zip(values, texts, steps):
        scaled = [(x - flat.mean()) / (flat.std() + 1e-4) for x in rewards]
        first = 2 + text.startswith(':')
        close(row[first:first + len(rewards)],
              torch.stack([sum(scaled[i:]) for i in range(len(scaled))]), atol=1e-5)
        close(row[2], sum(scaled), atol=1e-5)   # the colon gets all of its steps
        assert row[2 + len(text)].abs() < 1e-5  # the end none


# ---- experience, and STATE -----------------------------------------------------------------------


def test_replay_learns_from_the_groups_of_the_step_before_with_the_ratio_to_their_policy(knobs):
    knobs('config/papers/replay.py', rewards={'letters': 1.0}, batch_size=2, n_fill_steps=2)
    experience = train_grpo.rules.experience
    policy, scorer = tiny(), toy_scorer(None)
    before = copy.deepcopy(policy)
    first, _, A = experience(policy, scorer, toy_prompts())
    assert len(first) == 2 and A.shape == (4, 3)
    logp = [r.stats_old.logp for _, r in first]
    learn(policy, scorer, [torch.optim.SGD(policy.parameters(), 0.5)], first, A, 0.5, 0.0)
    second, scores, both = experience(policy, scorer, toy_prompts(seed=2))
    assert [index for index, _ in second] == [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 8)]
    close(both[4:], A)
    assert scores['reward'].shape == (4, 3)
    for (index, r), (_, old), logp_then in zip(second[2:], first, logp):
        alive = both[index].any(1).repeat_interleave(3)
        assert r.sequences.equal(old.sequences)
        close(r.stats_old.logp, logp_then * alive[:, None])
        close(token_stats(r, before).logp, r.stats_old.logp)
        ratio = (token_stats(r, policy).logp - r.stats_old.logp).exp()[r.is_sampled]
        assert (ratio - 1).abs().max() > 1e-3
    for _, r in second[:2]:
        close(token_stats(r, policy).logp, r.stats_old.logp)


@pytest.mark.parametrize('kind', [[], ['--top_p=0.9', '--n_fill_steps=2']], ids=['plain', 'filter'])
def test_a_run_with_state_that_is_killed_and_resumed_ends_like_an_uninterrupted_one(kind):
    words = ['config/papers/replay.py', '--rewards={"verify": 1.0, "distinct": 0.1}', *kind]
    train(*words, out='whole')
    run(*command(*words, out='parts'), before=at_step(1, signal.SIGKILL))
    run(*command(*words, '--resume=True', out='parts'), before=at_step(2, signal.SIGTERM))
    train(*words, '--resume=True', out='parts')
    assert_same('whole', 'parts')
    (state,) = load_checkpoint('parts')['states'].values()
    assert len(state['old']) == 2


def test_a_state_that_a_file_binds_anew_goes_on_after_a_signal():
    path = write('mine.py', "rewards = {'mine': 1.0}\nSTATE = [0]\ndef mine(completions):\n"
                 "    global STATE\n    STATE = [STATE[0] + 1]\n"
                 "    return [STATE[0] * text.count('1') for text in completions]\n")
    train(path, out='whole')
    run(*command(path, out='parts'), before=at_step(1, signal.SIGTERM))
    train(path, '--resume=True', out='parts')
    assert_same('whole', 'parts')


def test_each_of_two_ranks_replays_its_own_groups():
    train('config/papers/replay.py', '--rewards={"verify": 1.0}', '--epochs=2', ranks=2)
    assert len(read_log('run')) == 7 and read_log('run')[-2]['objective/ratio_off'] > 0


def test_a_state_that_could_not_be_loaded_again_ends_the_run_before_it_is_saved():
    """A class or a function would be code, which no checkpoint holds."""
    for value in ('print', 'lambda: 0'):
        path = write('mine.py', f"STATE = {{'f': {value}}}\nadv_norm = 'mine'\n"
                     "def mine(reward, scores):\n    return group_advantages(reward)\n")
        fails('STATE may have plain values', *command(path))
        assert not any(name.endswith('.tmp') for name in os.listdir('run'))


# ---- a teacher -----------------------------------------------------------------------------------


def test_the_start_as_reference_gives_the_very_same_log_as_none():
    words = ['--kl_beta=0.1', '--rewards={"verify": 1.0, "kl": -0.1}', '--n_fill_steps=2']
    train(*words, out='own')
    train(*words, '--reference=out/generator_arithmetic.pt', out='named')
    assert read_log('own') == read_log('named')
    assert read_log('own')[-2]['kl'] > 0


def test_a_student_moves_towards_its_teacher_without_a_reward():
    """The teacher is the same network after some steps of GRPO."""
    teacher = ['--rewards={"verify": 1.0}', '--kl_beta=0', '--learning_rate=0.02']
    train(*teacher, '--max_iters=12', out='teacher')
    for words in ([], ['config/kl/forward.py'], ['config/kl/symmetric.py']):
        text = train(*words, '--rewards={"verify": 0.0}', '--kl_beta=1', '--reference=teacher',
                     '--max_iters=12', '--batch_size=16', out='student')
        assert 'and from teacher, ' in text
        kls = [line['kl'] for line in read_log('student') if 'kl' in line]
        assert kls[-1] < 0.7 * kls[0], words


def test_a_reference_that_cannot_teach_is_refused_in_one_line():
    fails('expected kl_beta > 0',
          *command('--reference=out/generator_arithmetic.pt', '--kl_beta=0'))
    fails('expected a network of the kind of the generator',
          *command('--reference=out/generator_equations.pt'))
    other = load_checkpoint('out/generator_arithmetic.pt')
    vocabulary = other['vocabulary'] | {'chars': other['vocabulary']['chars'][::-1]}
    network = SimpleNamespace(state_dict=lambda: other['model'], args=other['model_args'])
    save_checkpoint('other.pt', network, vocabulary, other['config'])
    text = fails('', *command('--reference=other.pt'))
    assert 'Traceback' not in text and 'vocabular' in text.strip().splitlines()[-1]


# ---- the check -----------------------------------------------------------------------------------

FINE = {
    'a rule that wraps ours': '''
adv_norm = 'positive'
def positive(reward, scores):
    return group_advantages(reward, scores).clamp(min=0)
''',
    'an objective that reads prompts and texts': '''
objective = 'mine'
def mine(stats, logp_old, A, r):
    pg, numbers = ppo(stats, logp_old, A, r)
    weight = torch.tensor([1.0 + len(case['text']) for case in r.cases()])[:, None]
    short = (r.lengths < r.prompts.blank.size(1))[:, None]
    return pg * weight * (1.0 + short), numbers
''',
    'an objective that asks the policy again': '''
objective, draw_prompts = 'mine', 'kept'
_KEPT = []
def kept(data, step, policy, scorer):
    _KEPT[:] = [policy]
    return get_prompts(data, step)
def mine(stats, logp_old, A, r):
    entropy = stats_now(r, _KEPT[0]).entropy if _KEPT else 0.0
    return ppo(stats, logp_old, A, r)[0] * (1 + entropy), {}
''',
    'experience of a policy that is a step old': '''
experience = 'stale'
STATE = {}
def stale(policy, scorer, prompts):
    now = copy.deepcopy(policy)
    now.load_state_dict(STATE.get('weights', policy.state_dict()))
    STATE['weights'] = copy.deepcopy(policy.state_dict())
    micro_steps, scores, advantages = collect(now, scorer, prompts)
    for _, r in micro_steps:
        r.stats_old = stats_now(r, now, scorer.reference)
    return micro_steps, scores, advantages
''',
    'credit by entropy': '''
credit = 'mine'
def mine(A, r, policy, scorer):
    return A * stats_now(r, policy).entropy
''',
    'the harder half of the prompts': '''
draw_prompts = 'hard'
def hard(data, step, policy, scorer):
    P = batch_size * gradient_accumulation_steps
    prompts = data.prompts('train', 2 * P, group_size, seed, step)
    micro_steps, scores, _ = collect(policy, scorer, prompts)
    return prompts[scores['verify'].mean(1).cpu().argsort(stable=True)[:P]]
''',
}


@pytest.mark.parametrize('name', FINE)
def test_the_check_passes_what_is_right(name):
    rows = check(write('mine.py', 'import copy, torch\n' + FINE[name]),
                 '--rewards={"verify": 1.0}')
    assert rows and not any(rows.values())


MISTAKES = {
    'credit(A, r, policy, scorer)': {
        'A[:, 0]': 'expected finite numbers',
        'A * A.std()': 'in two parts',
        'A * token_stats(r, policy).entropy': 'gradient',
        'A * (r.sequences % 3)': 'the token itself',
        'A * r.logp_sampled.exp()': 'the token itself',
        'A * scorer.nothing': "no attribute 'nothing'"},
    'experience(policy, scorer, prompts)': {
        'collect(policy, scorer, prompts)[::-1]': 'Error: ',
        'collect(policy, scorer, prompts)[:2] + (torch.rand(2, 4),)': 'of the advantages',
        'collect(policy, scorer, prompts)[:2] + (torch.full((6, 4), torch.nan),)': 'finite'},
    'draw_prompts(data, step, policy, scorer)': {
        'get_prompts(data, step)[:5]': 'expected Prompts',
        'None': 'expected Prompts',
        "data.prompts('train', 6, 4, seed, int(torch.randint(999, (1,))))": 'asked again'},
    'objective(stats, logp_old, A, r)': {
        'stats.nothing, {}': "no attribute 'nothing'",
        '(stats.logp - logp_old).exp() * A, {}': 'become less likely',
        '-(stats.logp - logp_old).exp() * A / A.std(), {}': 'in two parts',
        '-(stats.logp.detach() - logp_old).exp() * A + 0 * stats.logp, {}': 'it has no gradient'},
    'adv_norm(reward, scores)': {
        'torch.rand(reward.shape)': 'groups of equal rewards',
        "(STATE.update(f=all_equal), group_advantages(reward))[1]": 'no checkpoint can hold STATE'},
}


@pytest.mark.parametrize('signature, mistake, sentence', [
    (signature, mistake, sentence) for signature, mistakes in MISTAKES.items()
    for mistake, sentence in mistakes.items()])
def test_the_check_names_what_is_wrong_and_has_no_traceback(signature, mistake, sentence):
    knob, arguments = signature.split('(')
    path = write('mine.py', f"import torch\nSTATE = {{}}\n{knob} = 'f'\n"
                 f"def f({arguments}:\n    return {mistake}")
    assert any(sentence in wrong for wrong in check(path).values())
