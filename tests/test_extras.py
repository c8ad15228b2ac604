"""What stands beside the scripts: tiny.py learns, the benchmark and the pictures run."""
import datetime
import itertools
import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import time
import types

import pytest

from extras import tasks
from dataset import read_texts
from processes import KINDS, ROOT, TOY, make_for_run, run, succeeds, train, write


def test_tiny_is_sixty_lines_of_code_and_learns_more_than_greedy_decoding_gives():
    """With a quarter of its steps."""
    source = (ROOT / 'extras/tiny.py').read_text('utf-8')
    assert len(re.findall(r'(?m)^\s*[^#\s]', source.split('"""', 2)[2])) <= 60
    for steps, fewer in (('range(1000)', 'range(300)'), ('range(241)', 'range(61)')):
        assert steps in source
        source = source.replace(steps, fewer)
    shares = re.findall(r'line to beat ([\d.]+) \| true ([\d.]+)', succeeds(write('t.py', source)))
    assert float(shares[0][1]) < 0.3
    assert float(shares[-1][1]) > 0.2 + max(map(float, shares[0]))


def page_of(*folders):
    """Write the page of some runs. Return the data in it."""
    succeeds('extras/page.py', *folders)
    path = pathlib.Path(folders[0], 'run.html' if len(folders) == 1 else 'compare.html')
    [data] = re.findall('(?s)id="data">(.*?)</script>', path.read_text('utf-8'))
    return json.loads(data)['runs']


def check_in_a_browser(path):
    """Open a page at step 1: its script must run to the end without an error."""
    if chromium := shutil.which('chromium'):
        html = subprocess.run([chromium, '--headless', '--no-sandbox', '--virtual-time-budget=2000',
                               '--enable-logging=stderr', '--dump-dom',
                               pathlib.Path(path).resolve().as_uri() + '#step=1'],
                              capture_output=True, text=True)
        assert 'CONSOLE' not in html.stderr, html.stderr
        assert '>1 of ' in html.stdout and '<h2>Knobs' in html.stdout


@pytest.mark.parametrize('kind', ['passes', 'causal'])
def test_a_page_has_what_log_and_samples_have(kind):
    """A damaged line, which a run may be writing, is named and left out."""
    folder = f'page-{kind}'
    train(*KINDS[kind], out=folder)
    with open(f'{folder}/log.jsonl', 'a') as log:
        log.write('{"s')
    [run] = page_of(folder)
    lines = [json.loads(line) for line in open(f'{folder}/log.jsonl').readlines()[:-1]]
    for name in ('evals', 'steps'):
        of_kind = [line for line in lines if ('loss' in line) == (name == 'steps')]
        for i, line in enumerate(of_kind):
            assert line == {key: values[i] for key, values in run[name].items()
                            if key in line}
    samples = [json.loads(line) for line in open(f'{folder}/samples.jsonl')]
    shown = [row for group in sum(run['held_out'], []) + run['groups'] for row in group['rows']]
    assert sum(row['n'] for row in shown) == len(samples)
    texts = {json.dumps([sample['scores'], text_of(sample['pieces'])]) for sample in samples}
    assert texts == {json.dumps([row['scores'], text_of(row['pieces'])]) for row in shown}
    check_in_a_browser(f'{folder}/run.html')


def text_of(pieces):
    return ''.join(piece if type(piece) is str else piece[0] for piece in pieces)


def test_a_page_escapes_what_a_policy_writes_and_shows_runs_side_by_side():
    for folder in ('page-a', 'page-b'):
        train('--max_iters=1', out=folder)
    path = pathlib.Path('page-a/samples.jsonl')
    line = json.loads(path.read_text().splitlines()[-1])
    line['pieces'][0] = line['prompt'] = '</script><b onclick="x()">\u2028 \n\U0001f600'
    path.write_text(json.dumps(line) + '\n')
    a, b = page_of('page-a', 'page-b')
    assert a['held_out'][0][0]['prompt'] == line['prompt'] and len(b['groups']) == 1
    assert pathlib.Path('page-a/compare.html').read_text('utf-8').count('</script>') == 2
    check_in_a_browser('page-a/compare.html')


def test_the_pictures_of_the_pages_are_drawn():
    pytest.importorskip('matplotlib')
    began = time.time()
    make_for_run('config/networks/generator_think.py', 'cups')
    succeeds('train_grpo.py', 'config/grpo_think.py', '--max_iters=1', '--eval_prompts=8',
             '--batch_size=4', '--out_dir=run')
    succeeds('extras/studies/pictures.py', 'step', *TOY)
    text = succeeds('extras/studies/pictures.py', 'think', 'run')
    assert re.search(r'(?m)^run, before: [\d.]+', text)
    for path in ('docs/assets/step.png', 'docs/assets/think.png'):
        assert pathlib.Path(path).stat().st_mtime > began


def test_compare_makes_what_is_missing_and_pairs_the_seeds(monkeypatch, capsys):
    """Two variants whose values differ by 0.1 and 0.3, on seeds that differ by 0.4 and 0.6."""
    pytest.importorskip('matplotlib')
    ends = {'a-1': 0.1, 'a-2': 0.5, 'b-1': 0.2, 'b-2': 0.8}
    made = []

    def run_of(words, **_):
        """What stands for the process of a run."""
        path = words[-1].removeprefix('--out_dir=')
        name = path.removeprefix('study/')
        made.append(name)
        shutil.rmtree(path, ignore_errors=True)             # as if it were moved aside
        os.mkdir(path)
        write(f'{path}/log.jsonl', '\n'.join(json.dumps(
            {'step': step, 'cpu_seconds': step / 2, 'eval/verify': ends.get(name, 0) * step / 100,
             'greedy/verify': 1.0, 'eval/reward': 1.0}) for step in (0, 100)))
        return types.SimpleNamespace(returncode=int('--group_size=13' in words))    # it fails

    def compare(*words):
        """Return what is printed, and the names of the runs that are made."""
        made.clear()
        monkeypatch.setattr('sys.argv', ['compare.py', 'study', '--seeds=1,2', *words])
        runpy.run_module('extras.compare', run_name='__main__')
        return capsys.readouterr().out, sorted(made)

    monkeypatch.setenv('OMP_NUM_THREADS', '2')              # processes; the script changes it
    monkeypatch.setattr('subprocess.run', run_of)
    x = write('x.py', "eval_prompts = 8\nbatch_size = 2\nrewards = {'verify': 1.0}\n")
    with pytest.raises(AssertionError, match='a run has failed: see study/b-1.txt'):
        compare(x, 'a=--group_size=2', 'b=--group_size=13')
    text, names = compare(x, 'a=--group_size=2', 'b=')
    assert {'b-1', 'b-2'} <= set(names) and 'a-1' not in names
    assert 'noise exceeds 12.7 in 1 of 20 cases' in text and 'wrote study/verify.png' in text
    gaps = re.findall(r'\S+ \+- \S+ \(.*?\)', text)          # at the start, halfway, at the end
    assert gaps[-1] == '0.2000 +- 0.1000 (2.0)' and '0.5000 +- 0.3000' in text
    # a file that was edited: its runs begin anew
    write('x.py', "eval_prompts = 8\nbatch_size = 2\nrewards = {'verify': 1.0}\nkl_beta = 0.0\n")
    assert compare(x, 'a=--group_size=2', 'b=')[1] == ['a-1', 'a-2', 'b-1', 'b-2']
    # what is there, other words, more variants and seeds
    assert compare(x, 'a=--group_size=2', 'b=')[1] == []
    assert compare(x, 'a=--group_size=4', 'b=')[1] == ['a-1', 'a-2']
    assert compare(x, 'b=', 'c=--group_size=3', '--seeds=1,2,3')[1] == ['b-3', 'c-1', 'c-2', 'c-3']
    for words, error in ((('--seeds=1,1', 'b='), 'two or more'), ((x, 'b=', 'c='), 'the same run'),
                         ((x, 'b=', 'c=--eval_prompts=9'), 'other held-out prompts'),
                         ((x, 'b=', 'c=--seed=2'), 'no --seed'),
                         ((x, 'b=', f'c={x}', '--goal=eval/verfy'), 'eval/verify')):
        with pytest.raises((AssertionError, SystemExit), match=error):
            compare(*words)


def test_an_estimate_is_compared_with_the_exact_gradient():
    train('--n_fill_steps=2', '--max_iters=1')
    text = succeeds('extras/cosine.py', 'run', 'config/papers/d1.py')
    assert re.search(r'before +\| one_pass \d\.\d+\nafter +\| one_pass \d\.\d+', text)


def test_the_tasks_are_right_and_hold_out_the_same_200_prompts_whatever_their_size():
    """Each answer is compared with another way to it."""
    value = dict(zip('IVXLCDM', (1, 5, 10, 50, 100, 500, 1000)))

    def day(prompt):
        name, n = prompt.split('+')
        monday = datetime.date(2024, 1, 1)
        later = monday + datetime.timedelta(days=tasks.DAYS.index(name) + int(n))
        return f'{later:%a}'.lower()

    def number(numeral):                        # a sign before a larger one is taken away
        signs = [value[sign] for sign in numeral] + [0]
        return sum(-a if a < b else a for a, b in itertools.pairwise(signs))

    answers = {
        'times': lambda prompt: int(prompt.split('h')[0]) * 60 + int(prompt[-3:-1]),
        'roman': number,
        'runs': lambda prompt: ''.join(f'{len([*run])}{x}' for x, run in itertools.groupby(prompt)),
        'days': day,
        'day_steps': lambda prompt: ''.join(str(int(number) % 7) for number in itertools.accumulate(
            prompt.split('+')[1])) + ' ' + day(prompt),
        'sort': lambda prompt: ''.join(sorted(prompt))}
    for name, answer in answers.items():
        small, large = [
            [json.loads(line) for line in succeeds('extras/tasks.py', name, str(n)).splitlines()]
            for n in (3, 300)]
        assert len(large) == 500 and small == large[:203]
        assert [line['held_out'] for line in large] == [True] * 200 + [False] * 300
        for line in large:
            assert line['answer'] == str(answer(line['prompt'].removesuffix('=')))


# ---- a task, before anything is trained ----------------------------------------------------------


GAME = """
import random
DIGITS = '0123456789'

def reply(completion, secret='7', depth=0):
    return ('=', True) if completion[-1] == secret else '!'

def verify({asks}, secret):
    return float({right})

def play(secret, rng):
    game = ''
    while len(game) < 4 and not game.endswith('='):
        guess = rng.choice(DIGITS)
        game += guess + reply(guess, secret)[0]
    return game

def texts():
    rng = random.Random(1)
    return [[{{'prompt': ':', 'answer': play(secret, rng), 'secret': secret}} for secret in part]
            for part in (DIGITS * 100, DIGITS * 3)]
"""


@pytest.mark.parametrize('asks, right, is_forged', [
    ('completion', "completion.endswith('=')", True),           # which the policy can write
    ('sampled', 'sampled[-1:] == secret', False)])
def test_the_check_of_a_world_finds_games_that_are_won_by_the_worlds_own_words(
        asks, right, is_forged):
    path = write('digits.py', GAME.format(asks=asks, right=right))
    code, text = run('extras/check.py', path)
    assert ('FORGED' in text) == is_forged == (code == 1)
    assert "reply() asks for `depth`, and always gets its default" in text
    assert "the policy writes '0123456789', only the world '!='" in text
    train, held_out, *_ = read_texts(path)
    wins = [game['answer'].endswith('=') for game in train + held_out]
    assert f'verify, mean: {sum(wins) / len(wins):.3g} for their own answers' in text
    assert 'it says the same twice' in text


@pytest.mark.parametrize('name, line, words', [
    ('verfy', 'return 1.0', 'verfy() is called by nobody; meant verify()?'),
    ('verify', 'completion == answer', 'verify returns None for all: has it a `return`?'),
    ('verify', 'return "yes"', "reward 'verify' of '"),
    ('verify', 'return 0.0', '??  verify, mean: 0 for their own answers'),
    ('verify', 'return completion == answer', 'verify, mean: 1 for their own answers')])
def test_the_check_of_a_task_names_what_its_checker_returns(name, line, words):
    path = write('pairs.py', "def texts():\n    pairs = [(f'{i}=', f'{i}') for i in range(99)]\n"
                 "    return pairs[:90], pairs[90:]\n"
                 f"def {name}(completion, answer):\n    {line}\n")
    assert words in run('extras/check.py', path)[1]
