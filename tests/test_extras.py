"""extras: what a page shows, what compare makes and refuses, what check finds."""
import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from conftest import log_of, run
from extras import check
from extras.page import page_of, read_lines

HOSTILE = '</script><b onclick="x()"> & \u2028 \U0001f600 <!-- DATA'

DIFFERENT = [['', ''], ['--seeds=1,1', '', '--group_size=2'], ['', '--eval_prompts=4'],
             ['', '--dataset=arithmetic'], ['', '--seed=3'],
             ['--goal=eval/reward', '', '--rewards={"judge":2.0}']]
SENTENCES = ['the policy writes', 'says the same twice', 'verify:', 'mine of 6', 'mine of 4',
             '`state`', 'good completions', 'logp_old', 'own group']
GAME = """
import random
DIGITS = '0123456789'
CALLS = []

def reply(completion, secret='7'):
    CALLS.append(completion)
    return ('=', True) if completion[-1] == secret else '!'

def verify(completion, sampled, secret):
    return float(RIGHT)

def play(secret, rng):
    game = ''
    while len(game) < 4 and not game.endswith('='):
        guess = rng.choice(DIGITS)
        game += guess + ('=' if guess == secret else '!')
    return game

def texts():
    rng = random.Random(1)
    return [[{'prompt': ':', 'answer': play(secret, rng), 'secret': secret} for secret in part]
            for part in (DIGITS * 100, DIGITS * 3)]
"""
TASK = """
def texts():
    pairs = [(f'{i}=', f'{i}') for i in range(99)]
    return pairs[:90], pairs[90:]
def verify(completion, answer):
    """
REWARD = "rewards = {'mine': 1.0}\ndef mine(prompts, texts):\n    return "
PPO = """
def objective(stats, r, inner=objective):
    losses, clipped = inner(stats, r)
    return """
A = 'def advantages(reward, scores):\n    return '


# ---- page ----------------------------------------------------------------------------------------


def test_a_page_has_all_numbers_and_completions_and_no_text_ends_its_script(finished, tmp_path):
    """Also a number that is none, HTML that the policy wrote, and a line that is being written."""
    folder = shutil.copytree(finished, tmp_path / 'hostile')
    logged = read_lines(folder / 'samples.jsonl')
    logged.append(logged[-1] | {'step': 7, 'prompt': HOSTILE, 'pieces': [[HOSTILE, 0], [HOSTILE]]})
    with open(folder / 'log.jsonl', 'a') as log, open(folder / 'samples.jsonl', 'a') as samples:
        log.write('{"step": 7, "line to beat": NaN}\n{"st')
        samples.write(json.dumps(logged[-1]) + '\n')
    data, _ = re.findall('(?s)<script[^>]*>(.*?)</script>', page_of([str(folder)]))
    shown, = json.loads(data)['runs']
    assert shown['evals'].pop() == {'step': 7, 'line to beat': None}
    for line in read_lines(finished / 'log.jsonl'):
        assert shown['steps' if 'ms' in line else 'evals'].pop(0) == pytest.approx(line, rel=6e-4)
    texts = [sample['completion'] for sample in sum(shown['held_out'] + shown['groups'], [])]
    assert sorted(texts) == sorted(sample['completion'] for sample in logged)


# ---- compare -------------------------------------------------------------------------------------


@pytest.fixture
def compare(toy, tmp_path, monkeypatch, capsys, grpo):
    """compare(word, ...) returns the folders of the runs that it makes, and what it prints. The
    processes of runs are forks of this one."""
    monkeypatch.setattr(sys, 'path', [*sys.path])

    def call(*words):
        made = []

        def train(command, **_):
            made.append(Path(command[-1].removeprefix('--out_dir=')))
            run(*command[1:])

        monkeypatch.setattr('subprocess.run', train)
        shared = ' '.join(toy[1:] + ['--max_iters=2'])
        monkeypatch.setattr('sys.argv', ['', '--seeds=1,2', f'--out_dir={tmp_path}/study',
                                         f'--words={shared}', *words])
        runpy.run_module('extras.compare', run_name='__main__')
        return made, capsys.readouterr().out
    return call


def test_a_comparison_makes_only_what_is_missing_or_unfinished_or_edited(compare, file):
    mine = file('mine.py', 'learning_rate = 1e-3\n')
    made, text = compare('', mine)
    first, edited, second, _ = made             # of the two seeds
    ends = [log_of(folder)[-1]['eval/verify'] for folder in (first, second)]
    assert f'{ends[0]:.4f} {ends[1]:.4f}' in text and f'{sum(ends) / 2:.4f} +- ' in text
    assert compare('', mine)[0] == []
    log, config = second / 'log.jsonl', first / 'config.json'
    log.write_text(log.read_text().rpartition('{')[0])          # it was killed
    config.write_text(config.read_text().replace('--seed=1', '--seed=7'))   # another command
    assert compare('', mine)[0] == [first, second]
    file('mine.py', 'learning_rate = 2e-3\n')
    assert edited in compare('', mine)[0]


@pytest.mark.parametrize('words', DIFFERENT)
def test_runs_that_cannot_be_compared_are_refused(words, compare):
    with pytest.raises((AssertionError, SystemExit)):
        compare(*words)


def test_differences_are_of_pairs_of_seeds_and_noise_gets_no_star(capsys):
    report = runpy.run_module('extras.compare')['report']
    runs = {'a': (0.1, 0.5, 0.9), 'b': (0.2, 0.8, 1.1), 'c': (0.21, 0.61, 1.01)}
    report({name: [{0: 0.0, 50: end / 2, 100: end} for end in ends] for name, ends in runs.items()})
    # 0.1, 0.3, 0.2: their mean, and their standard deviation 0.1 / sqrt(3); and 0.11 three times
    text = capsys.readouterr().out
    ends = re.findall(r'minus the first.* (\S+ \+- \S+) *$', text, re.MULTILINE)
    assert ends == ['0.2000 +- 0.0577', '0.1100 +- 0.0000*']


# ---- check ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('text, wrong', [
    (GAME.replace('RIGHT', "completion.endswith('=')"), ['bad the policy writes']),
    (GAME.replace('RIGHT', 'sampled[-1:] == secret'), []),
    (GAME.replace('RIGHT', 'sampled[-1:] == secret').replace("'!'", "'!='[len(CALLS) % 2]", 1),
     ['bad says the same twice', 'bad `state`']),
    (f'{TASK}return 1.0', ['bad verify:']), (f'{TASK}return 0.0', ['look verify:']),
    (f'{TASK}return completion == answer', []),
    (f'{REWARD}[float(text.count("1")) for text in texts]', []),
    (f'{REWARD}[float(len({{*prompts[:i + 1]}})) for i in range(len(texts))]',
     ['bad mine of 6', 'bad mine of 4']),
    (f'{REWARD}[float(texts[i - i % group_size] == text) for i, text in enumerate(texts)]',
     ['bad mine of 4']),
    (f'{A}reward - reward.mean(1, keepdim=True)', []),
    (f'{A}reward - reward.mean()', ['look own group']),
    (f'{PPO}-losses, clipped', ['bad good completions']),
    ('def objective(stats, r):\n    return -stats.logp * r.A, 0 * r.A', ['look logp_old']),
    (f'_seen = []\n{A}(reward - reward.mean(1, keepdim=True)) * (_seen.append(1) or len(_seen))',
     ['bad `state`', 'look own group']),
    ('def learn(networks, optimizers, rollouts, lr, inner=learn):\n'
     '    state["n"] = state.get("n", 0) + 1\n'
     '    return inner(networks, optimizers, rollouts, lr * state["n"])\n', [])])
def test_a_world_checker_reward_or_function_that_is_silently_wrong_is_found(
        text, wrong, grpo, file):
    found = [f'{mark} {part}' for mark, sentence in check.checks([file('mine.py', text)])
             for part in SENTENCES if mark in ('bad', 'look') and part in sentence]
    assert found == wrong
