"""extras: tiny.py learns, the tasks are right, compare and check find what they promise."""
import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from conftest import ROOT, run
from extras import check


def test_tiny_is_sixty_lines_of_code_and_learns_more_than_greedy_decoding_gives(file):
    """With a quarter of its steps."""
    source = (ROOT / 'extras/tiny.py').read_text('utf-8')
    assert len(re.findall(r'(?m)^\s*[^#\s]', source.split('"""', 2)[2])) <= 60
    for steps, fewer in (('range(1000)', 'range(300)'), ('range(241)', 'range(61)')):
        assert steps in source
        source = source.replace(steps, fewer)
    _, text, _ = run(file('tiny.py', source))
    shares = re.findall(r'line to beat ([\d.]+) \| true ([\d.]+)', text)
    assert float(shares[0][1]) < 0.3
    assert float(shares[-1][1]) > 0.2 + max(map(float, shares[0]))


def test_the_task_to_try_is_right_and_holds_out_the_same_prompts_whatever_its_size():
    small, large = [[json.loads(line) for line in run('extras/tasks.py', n)[1].splitlines()]
                    for n in ('3', '300')]
    assert len(large) == 500 and small == large[:203]
    assert [line['held_out'] for line in large] == [True] * 200 + [False] * 300
    for line in large:
        h, m = line['prompt'].rstrip('m=').split('h')
        assert int(line['answer']) == 60 * int(h) + int(m)


# ---- compare -------------------------------------------------------------------------------------


@pytest.fixture
def compare(toy, tmp_path, monkeypatch, capsys, grpo):
    """compare(word, ...) returns the folders of the runs that it makes, and what it prints. The
    processes of runs are forks of this one."""
    monkeypatch.setattr(sys, 'path', [*sys.path])

    def call(*words):
        made = []

        def train(command, **_):
            made.append(Path(command[-1]).name)
            run(*command[1:])

        monkeypatch.setattr('subprocess.run', train)
        shared = ' '.join(toy[1:] + ['--max_iters=2'])
        monkeypatch.setattr('sys.argv', ['', '--seeds=1,2', f'--out_dir={tmp_path}/study',
                                         f'--words={shared}', *words])
        runpy.run_module('extras.compare', run_name='__main__')
        return sorted(made), capsys.readouterr().out
    return call


def test_a_comparison_makes_only_what_is_missing_or_unfinished_or_edited(compare, file, tmp_path):
    mine = file('mine.py', 'learning_rate = 1e-3\n')
    made, text = compare('', mine)
    assert len(made) == 4
    logs = [tmp_path / 'study' / name / 'log.jsonl' for name in made if 'mine' not in name]
    ends = [json.loads(log.read_text().splitlines()[-1])['eval/verify'] for log in logs]
    assert f'{ends[0]:.4f} {ends[1]:.4f}' in text and f'{sum(ends) / 2:.4f} +- ' in text
    assert compare('', mine)[0] == []
    more, _ = compare('', '--group_size=2', '--goal=kl')
    assert len(more) == 2 and not {*more} & {*made}
    logs[1].write_text(''.join(logs[1].read_text().splitlines(True)[:-1]))      # it was killed
    config = logs[0].parent / 'config.json'
    config.write_text(config.read_text().replace('--seed=1', '--seed=7'))   # another command
    assert compare('', mine)[0] == [log.parent.name for log in logs]
    file('mine.py', 'learning_rate = 2e-3\n')
    assert len(compare('', mine)[0]) == 2


@pytest.mark.parametrize('words', [
    ('', ''), ('--seeds=1,1', '', '--group_size=2'), ('', '--eval_prompts=4'),
    ('', '--dataset=arithmetic'), ('', '--seed=3'), ('', '--group_sise=3'),
    ('--goal=eval/reward', '', '--rewards={"judge":2.0}')])
def test_runs_that_cannot_be_compared_are_refused(words, compare):
    with pytest.raises((AssertionError, SystemExit)):
        compare(*words)


def test_differences_are_of_pairs_of_seeds_and_noise_gets_no_star(capsys):
    report = runpy.run_module('extras.compare')['report']
    runs = {'a': (0.1, 0.5, 0.9), 'b': (0.2, 0.8, 1.1), 'c': (0.21, 0.61, 1.01)}
    report({name: [{0: 0.0, 50: end / 2, 100: end} for end in ends] for name, ends in runs.items()})
    rows = [line.split('+-') for line in capsys.readouterr().out.splitlines() if 'minus' in line]
    # 0.1, 0.3, 0.2: their mean, and their standard deviation 0.1 / sqrt(3); and 0.11 three times
    assert [row[-2].split()[-1] for row in rows] == ['0.2000', '0.1100']
    assert [row[-1].strip() for row in rows] == ['0.0577', '0.0000*']


# ---- check ---------------------------------------------------------------------------------------


@pytest.fixture
def marks(grpo, file):
    """marks(text) checks a file, and returns {sentence: mark}."""
    def look(text, *words):
        lines = list(check.checks([*words, file('mine.py', text)]))
        return {sentence: mark for mark, sentence in lines if mark}
    return look


def mark_of(marks, words):
    mark, = {mark for sentence, mark in marks.items() if words in sentence}
    return mark


GAME = """
import random
DIGITS = '0123456789'
CALLS = []

def reply(completion, secret='7'):
    CALLS.append(completion)
    return ('=', True) if completion[-1] == secret else {lost}

def verify({asks}, secret):
    return float({right})

def play(secret, rng):
    game = ''
    while len(game) < 4 and not game.endswith('='):
        guess = rng.choice(DIGITS)
        game += guess + ('=' if guess == secret else '!')
    return game

def texts():
    rng = random.Random(1)
    return [[{{'prompt': ':', 'answer': play(secret, rng), 'secret': secret}} for secret in part]
            for part in (DIGITS * 100, DIGITS * 3)]
"""


@pytest.mark.parametrize('asks, right, lost, is_forged, has_state', [
    ('completion', "completion.endswith('=')", "'!'", True, False),
    ('sampled', 'sampled[-1:] == secret', "'!'", False, False),
    ('sampled', 'sampled[-1:] == secret', "'!='[len(CALLS) % 2]", False, True)])
def test_a_world_that_can_be_forged_or_has_a_state_is_found(asks, right, lost, is_forged, has_state,
                                                            marks):
    found = marks(GAME.format(asks=asks, right=right, lost=lost))
    assert mark_of(found, 'the policy writes') == ('bad' if is_forged else 'ok')
    assert mark_of(found, 'says the same twice') == ('bad' if has_state else 'ok')


@pytest.mark.parametrize('line, mark', [
    ('return 1.0', 'bad'), ('return 0.0', 'look'), ('return completion == answer', 'ok')])
def test_a_checker_is_asked_for_answers_parts_of_them_and_nothing(line, mark, marks):
    found = marks("def texts():\n    pairs = [(f'{i}=', f'{i}') for i in range(99)]\n"
                  f"    return pairs[:90], pairs[90:]\ndef verify(completion, answer):\n    {line}")
    assert mark_of(found, 'verify: ') == mark


@pytest.mark.parametrize('line, six, four', [
    ('[float(text.count("1")) for text in texts]', 'ok', 'ok'),
    ('[float(len({*prompts[:i + 1]})) for i in range(len(texts))]', 'bad', 'bad'),
    ('[float(texts[i - i % group_size] == text) for i, text in enumerate(texts)]', 'ok', 'bad')])
def test_a_reward_that_depends_on_places_or_cuts_by_group_size_is_found(line, six, four, marks):
    found = marks(f"rewards = {{'mine': 1.0}}\ndef mine(prompts, texts):\n    return {line}")
    assert mark_of(found, 'mine of 6') == six and mark_of(found, 'mine of 4') == four


@pytest.mark.parametrize('values', ['[None] * len(texts)', '[1.0]', '[float("nan")] * len(texts)'])
def test_a_reward_that_returns_no_number_for_each_completion_is_found(values, marks):
    with pytest.raises(AssertionError, match='mine'):
        marks(f"rewards = {{'mine': 1.0}}\ndef mine(texts):\n    return {values}")


PPO = 'def objective(stats, r, inner=objective):\n    losses, clipped = inner(stats, r)\n'


@pytest.mark.parametrize('text, wrong', [
    ('def advantages(reward, scores):\n    return reward - reward.mean(1, keepdim=True)\n', []),
    ('def advantages(reward, scores):\n    return reward - reward.mean()\n', ['own group']),
    (f'{PPO}    return -losses, clipped\n', ['good completions']),
    ('def objective(stats, r):\n    return -stats.logp * r.A, 0 * r.A\n', ['logp_old']),
    ('_seen = []\ndef advantages(reward, scores):\n    _seen.append(1)\n'
     '    return len(_seen) * (reward - reward.mean(1, keepdim=True))\n', ['`state`', 'own group']),
    ('def learn(networks, optimizers, rollouts, lr, inner=learn):\n'
     '    state["n"] = state.get("n", 0) + 1\n'
     '    return inner(networks, optimizers, rollouts, lr * state["n"])\n', [])])
def test_a_function_that_is_silently_wrong_is_found(text, wrong, marks):
    found = marks(text)
    assert [part for part in ('`state`', 'good completions', 'logp_old', 'own group')
            if mark_of(found, part) != 'ok'] == wrong


@pytest.mark.parametrize('lines', ['losses[:, None], clipped', 'losses * torch.nan, clipped',
                                   'losses.mean(), clipped'])
def test_a_loss_that_is_no_finite_number_for_each_token_is_found(lines, marks):
    with pytest.raises(AssertionError, match='objective'):
        marks(f'{PPO}    return {lines}\n')
