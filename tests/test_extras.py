"""extras: what advice says, what a page shows, what compare makes and refuses, what check finds."""
import json
import math
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from conftest import log_of, run, train
from extras import check
from extras.advice import advice, advice_for, read_lines
from extras.page import page_of
from run import verdict_of

HOSTILE = '</script><b onclick="x()"> & \u2028 \U0001f600 <!-- DATA'

DIFFERENT = [['', ''], ['--seeds=1,1', '', '--group_size=2'], ['', '--eval_prompts=4'],
             ['', '--dataset=arithmetic'], ['', '--seed=3'],
             ['--goal=eval/reward', '', '--rewards={"judge":2.0}']]
SENTENCES = ['the policy writes', 'says the same twice', 'for secret', 'verify:', 'mine of 6',
             'mine of 4', '`state`', 'good completions', 'logp_old', 'own group']
GAME = """
import random
DIGITS = '0123456789'

def reply(completion, secret='7'):
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
STEPS = """
_steps = []
def optimizer_step(network, optimizers, lr, grad_clip, inner=optimizer_step):
    _steps.append(network)
    return inner(network, optimizers, """
FREEZE = """
def make_optimizers(network, name, inner=make_optimizers):
    weights = [*network.parameters()]
    state.setdefault('frozen', int(len(weights) * torch.rand(())))
    weights[state['frozen']].requires_grad_(False)
    return inner(network, name)
"""


# ---- advice --------------------------------------------------------------------------------------

EVAL = {'greedy': 0.5, 'line to beat': 0.5, 'standard error': 0.01, 'eval/pass@4': 0.75,
        'eval/tokens': 3.0}
STEP = {'ms': 1.0, 'entropy': 1.0, 'dead_groups': 0.1, 'mean_reward': 0.5, 'mean_tokens': 3.0}


def log(*scores, first={}, step={}, last={}):
    """Return the lines of a log: evaluations at 0, 100, ... with these scores, and a step behind
    each but the last. first, step, last: numbers of the first evaluation, the last step, the last
    evaluation."""
    evals = [EVAL | {'step': 100 * i, 'verify': x, 'eval/verify': x, 'above it': x - 0.5}
             for i, x in enumerate(scores)]
    steps = [STEP | {'step': 100 * i} for i in range(max(1, len(scores) - 1))]
    for line, numbers in zip((evals[0], steps[-1], evals[-1]), (first, step, last)):
        line.update(numbers)
    return evals + steps


LINE = {'line to beat': 0.85, 'above it': 0.0}
LOW = {'above it': 0.1}
RIGHT = {'reward': 1.5, 'above it': 0.5, 'eval/a': 0.746, 'eval/b': 2.0}
STAYED = log(0.5, 0.6, first={'reward': 1.0, 'eval/a': 0.747, 'eval/b': 2.5}, last=RIGHT)
ADVICE = [                      # the log, and words of each sentence but the first
    (log(0.5, 0.9, 0.9, 0.9), 'no number says'),
    (log(0.95, first={'line to beat': 0.1}) + log(0.5, 0.9, 0.9), 'no number says'),
    (log(0.5, 0.6, 0.7, 0.8), 'still rises (0.100 in the last third): more max_iters'),
    (log(0.8, 0.7, 0.6, 0.6), 'fell by 0.200: a smaller learning_rate'),
    (log(0.5, 0.5, 0.5), 'has learned little'),
    (log(0.5, 0.5, 0.5, step={'dead_groups': 0.95}), 'nine of ten groups'),
    (log(0.5, 0.5, 0.5, last={'greedy': 0.6}), 'greedy decoding is at 0.600'),
    (log(0.85, 0.85, first=LINE, last=LINE), 'knew the task before'),
    (log(0.6, 0.8, 0.8, 0.8, step={'entropy': 0.04}), '1.000 to 0.040'),
    (log(0.5, 0.6, 0.6, 0.6, step={'mean_verify': 0.95}), 'memorises: 95%'),
    (log(0.1, 0.2, 0.2, 0.2, last=LOW), '80% of the answers are wrong, for 25%'),
    (log(0.1, 0.2, 0.2, 0.2, last=LOW, step={'entropy': 0.48}), 'so less is tried'),
    (log(0.6, 0.1, first={'reward': 1.0}, last=RIGHT), 'exploited? The reward rose, and verify'),
    (log(0.5), 'two evaluations'),
    (log(0.5, step={'mean_verify': 0.8}), 'has memorised'),
    (log(0.5, 0.9, last={'standard error': 0.0}), 'prompts that differ'),
]
KNOBS = {'rewards': {'verify': 1.0}, 'adv_norm': 'std', 'max_iters': 0}


@pytest.mark.parametrize('lines, words', ADVICE)
def test_advice_says_what_fits_the_log(lines, words):
    sentence, = advice(lines, KNOBS, n=500)[1:]
    assert words in sentence


@pytest.mark.parametrize('weights, words', [
    ({'a': 1.0, 'b': -1.0}, ['rewards a is no better (0.747 -> 0.746): a larger weight']),
    ({'a': 1.0, 'b': 1.0}, ['rewards a is no better', 'rewards b is no better (2.500 -> 2.000)']),
    ({'verify': 1.0, 'b': -1.0}, ['no number says'])])
def test_advice_names_those_of_several_rewards_that_are_no_better(weights, words):
    for sentence, part in zip(advice(STAYED, KNOBS | {'rewards': weights}, n=500)[1:], words,
                              strict=True):
        assert part in sentence


@pytest.mark.parametrize('n', [3, 5, 500])
def test_advice_draws_the_line_where_the_last_line_of_a_run_does(n):
    """A score that is not above it has learned little. Of three prompts nothing can be told."""
    for above in range(-40, 41, 3):
        last = {'above it': above / 1000}
        found = ' '.join(advice(log(0.5, 0.5, 0.5, last=last), KNOBS, n))
        assert verdict_of({'verify': 0.5} | EVAL | last, n, '').split('\n')[0] in found
        assert ('learned little' in found) == (n > 3 and ' is above ' not in found)


def test_advice_is_about_a_run_and_lists_those_that_are_there(toy, tmp_path, monkeypatch):
    said = train(toy, tmp_path / 'out-a')
    assert advice_for(tmp_path / 'out-a')[0] in said
    assert advice([], {}, 8) == ["nothing can be told: there is no evaluation yet"]
    monkeypatch.chdir(tmp_path)
    for show in (advice_for, lambda folder: page_of([folder])):
        with pytest.raises(SystemExit, match='there is no run out-b; here are: out-a$'):
            show('out-b')


# ---- export --------------------------------------------------------------------------------------


def test_an_export_leaves_a_folder_that_is_there_as_it_is(tmp_path):
    said = f'error: {tmp_path} is there already: choose a new name\n'
    assert run('extras/export.py', 'out-none', str(tmp_path)) == (1, '', said)


# ---- page ----------------------------------------------------------------------------------------


def test_a_page_has_all_numbers_and_completions_and_no_text_ends_its_script(finished, tmp_path):
    """Also a number that is none, HTML that the policy wrote, and a line that is being written."""
    folder = shutil.copytree(finished, tmp_path / 'hostile')
    lines, logged = [read_lines(folder / name) for name in ('log.jsonl', 'samples.jsonl')]
    logged.append(logged[-1] | {'step': 7, 'prompt': HOSTILE, 'pieces': [[HOSTILE, 0], [HOSTILE]]})
    with open(folder / 'log.jsonl', 'a') as log, open(folder / 'samples.jsonl', 'a') as samples:
        log.write(json.dumps(lines[-1] | {'step': 7, 'greedy': math.nan}) + '\n{"st')
        samples.write(json.dumps(logged[-1]) + '\n')
    data, _ = re.findall('(?s)<script[^>]*>(.*?)</script>', page_of([str(folder)]))
    shown, = json.loads(data)['runs']
    assert shown['evals'].pop()['greedy'] is None
    assert {'sources', 'words'}.isdisjoint(shown['config'])     # they are no knobs
    for line in lines:
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


def test_runs_with_another_checker_are_refused(compare, file):
    mine = file('mine.py', 'def verify(text):\n    return 1.0\n')
    with pytest.raises(AssertionError, match="by .'verify'.$"):
        compare('', mine)


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
    (GAME.replace('RIGHT', 'sampled[-1:] == secret').replace("'!'", "random.choice('!=')", 1),
     ['bad says the same twice', 'bad `state`']),
    (GAME.replace('RIGHT', 'sampled[-1:] == secret').replace("='7'", ''), ['look for secret']),
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
    ('def objective(stats, r):\n    return -stats.logp * r.advantage, 0 * r.advantage',
     ['look logp_old']),
    (f'_seen = []\n{A}(reward - reward.mean(1, keepdim=True)) * (_seen.append(1) or len(_seen))',
     ['bad `state`', 'look own group']),
    ('def learn(networks, optimizers, rollouts, lr, inner=learn):\n'
     '    state["n"] = state.get("n", 0) + 1\n'
     '    return inner(networks, optimizers, rollouts, lr * state["n"])\n', []),
    (f'{STEPS}len(_steps) * lr, grad_clip)', ['bad `state`']),
    (f'{STEPS}-lr, grad_clip)', ['bad good completions']),
    (FREEZE, [])])
def test_a_world_checker_reward_or_function_that_is_silently_wrong_is_found(
        text, wrong, grpo, file):
    found = [f'{mark} {part}'
             for mark, sentence in check.checks(check.words_for([file('mine.py', text)]))
             for part in SENTENCES if mark in ('bad', 'look') and part in sentence]
    assert found == wrong


@pytest.mark.parametrize('text, found', [
    (f'{REWARD}[len({{*text}}) / 9 for text in texts]',
     ['in half of the blanks', 'fills blanks, which are 0.2 to 0.6 of a text, at random',
      'all ok -> python train_grpo.py FILE']),
    (f'{TASK}return 0.0', ['nothing is bad -> python train_grpo.py config/grpo_checker.py']),
    (f'{TASK}return 1.0', [])])
def test_a_check_ends_with_the_command_to_run_next_or_with_an_exit_code(text, found, file):
    path = file('mine.py', text)
    code, said, _ = run('extras/check.py', path)
    assert code == (not found) and (not found or '\nbad' not in said)
    for part in found or ['\nbad ']:
        assert part.replace('FILE', path) in said
