"""What stands beside the scripts: tiny.py learns, the numbers of explain.py add up, the benchmark
and the pictures run."""
import collections
import datetime
import itertools
import json
import math
import os
import pathlib
import re
import runpy
import shutil
import types
import unittest.mock

import pytest
import torch

from extras import gpu_check, tasks
from processes import ROOT, TOY, fails, make_for_run, make_network, run, succeeds, write


def test_tiny_is_sixty_lines_of_code_and_learns_more_than_greedy_decoding_gives():
    _, _, code = (ROOT / 'extras/tiny.py').read_text('utf-8').split('"""', 2)
    assert len(re.findall(r'(?m)^\s*[^#\s]', code)) <= 60
    text = succeeds('extras/tiny.py')
    shares = re.findall(r'line to beat ([\d.]+) \| true ([\d.]+)', text)
    assert float(shares[0][1]) < 0.4
    assert float(shares[-1][1]) > 0.5 + max(map(float, shares[0]))


@pytest.mark.parametrize('flags', [
    ['--loss_norm=token', '--adv_norm=none'],
    ['--loss_norm=constant', '--entropy_coef=0.1', '--n_fill_steps=2']])
def test_the_terms_of_one_group_add_up(flags):
    text = succeeds('extras/explain.py', *TOY, *flags)
    terms = re.findall(r'(?m)^(?:pg_loss|kl_penalty|entropy_bonus|loss) +(\S+)', text)
    *terms, loss = map(float, terms)
    assert len(terms) == 3 and loss == pytest.approx(sum(terms), abs=2e-5)
    # the probabilities of the longest completion's tokens multiply to that of the completion
    completion = re.search(r"The tokens of ('.*'), the first", text).group(1)
    logs = [math.log(float(p)) for p in re.findall(r"(?m)^'.*' +(\S+) +\S+ +\S+$", text)]
    logp = re.search(rf'(?m)^.* +(\S+) +\S+ +\S+   {re.escape(completion)}$', text).group(1)
    assert sum(logs) == pytest.approx(float(logp), abs=0.05) and len(logs) > 1


def test_the_benchmark_compares_with_the_usual_way():
    text = succeeds('extras/benchmark.py', *TOY)
    assert re.search(r'a step +[\d.]+ ms, 1.00', text) and 'the usual way' in text


def test_the_check_of_a_machine_has_a_row_for_a_run_and_for_one_that_fails(monkeypatch):
    monkeypatch.setattr(gpu_check, 'steps', 2)
    monkeypatch.setattr(gpu_check.subprocess, 'getstatusoutput', lambda command: run(
        'extras/gpu_check.py', *command.partition(' extras.gpu_check ')[2].split()))
    for flag, expected in (('--seed=1', r'[\d.]+ \| [\d.]+ \| -?[\d.]+ \| [\d.]+e[-+]\d+'),
                           ('--rewards={"nothing":1.0}', r'failed: .*rewards: .*')):
        monkeypatch.setitem(gpu_check.WORDS, 'smoke', ' '.join([*TOY, flag]))
        row = gpu_check.row('smoke', '--device=cpu', 1)
        cells = row.removeprefix('| smoke --device=cpu | 1 | 0 | ').removesuffix(' |')
        assert re.fullmatch(expected, cells)


def test_pictures_are_drawn_and_a_resumed_or_killed_run_is_read_once_per_step():
    pytest.importorskip('matplotlib')
    from extras.curves import read_log
    succeeds('train_grpo.py', *TOY, '--generator=out/generator_equations.pt',
             '--blank_kind=answer', '--rewards={"verify": 1.0, "tokens": -0.1}', '--max_iters=1',
             '--out_dir=run')
    with open('run/log.jsonl', 'a') as log:
        log.write('{"step": 1, "loss": 2, "kl": 3, "entropy": 4}\n' * 2 + '{"s')
    assert [line['step'] for line in read_log('run')] == [0, 0, 1, 1]
    os.mkdir('again')
    lines = [(0, False), (0, True), (1, True), (2, True), (1, True), (2, False), (2, True),
             (1, False)]
    write('again/log.jsonl', '\n'.join(json.dumps(
        {'step': step} | ({'loss': 0} if is_training else {}) | {'number': i})
        for i, (step, is_training) in enumerate(lines)) + '\n{"loss": 0}\n[1]\n3')
    assert [line['number'] for line in read_log('again')] == [0, 1, 7]
    for words, path in (('curves.py run', 'run/curves.png'),
                        ('curves.py run ./run', 'run/compare.png'),
                        ('figures.py passes run', 'docs/assets/passes.png')):
        write(path, '')
        script, *folders = words.split()
        succeeds(f'extras/{script}', *folders)
        assert pathlib.Path(path).read_bytes()[:4] == b'\x89PNG'
    fails("'rum'; similar names: ['run']", 'extras/curves.py', 'run', 'rum')
    fails('no flags', 'extras/curves.py', 'run', '--goal=x')
    os.mkdir('empty')
    write('empty/config.json', '{"goal": "reward", "rewards": {"reward": 1}}')
    write('empty/log.jsonl', '[1]\n{}\n{"step": 0, "kl": 1}\n')
    fails("empty/log.jsonl has no 'eval/reward'", 'extras/curves.py', 'empty')
    write('empty/config.json', '{"goal"')
    fails('is damaged', 'extras/curves.py', 'empty')
    # a reward that is the goal, one that is drawn anyway, and a run that has neither
    os.mkdir('mine')
    write('mine/config.json', '{"goal": "reward", "rewards": {"reward": 1, "tokens": -1}}')
    write('mine/log.jsonl', '{"step": 0, "eval/reward": 1, "greedy/reward": 1, '
          '"eval/tokens": 2, "eval/ended": 1}')
    succeeds('extras/curves.py', 'mine', 'run')


def test_pass_at_k_is_the_share_of_sets_of_k_samples_with_a_right_one():
    pytest.importorskip('matplotlib')
    from extras.passk import pass_at
    for n_right in range(7):
        for k in range(1, 7):
            sets = list(itertools.combinations([True] * n_right + [False] * (6 - n_right), k))
            expected = sum(map(any, sets)) / len(sets)
            assert pass_at(k, [n_right], 6) == pytest.approx(expected)


def test_how_often_a_network_thinks_is_printed_and_drawn():
    pytest.importorskip('matplotlib')
    path = make_for_run('config/networks/generator_think.py', 'cups')
    succeeds('train_grpo.py', 'config/grpo_think.py', '--max_iters=1', '--eval_prompts=8',
             '--batch_size=4', '--out_dir=run')
    text = succeeds('extras/cups.py', 'run', path)
    assert len(re.findall(r'(?m)^.*(?: \| [a-z 1248]+ [\d.nan]+){13}$', text)) == 3
    for words in (['figures.py', 'think', 'run', 'run'], ['passk.py', 'run']):
        succeeds(f'extras/{words[0]}', *words[1:])
        picture = 'passk' if len(words) == 2 else 'think'
        assert pathlib.Path(f'docs/assets/{picture}.png').read_bytes()[:4] == b'\x89PNG'


def test_another_task_than_the_game_of_cups_is_refused():
    fails('expected prompts of data/cups.py', 'extras/cups.py', 'out/generator_equations.pt')


def test_smollm2_never_writes_over_a_folder():
    fails('is there already', 'extras/smollm2.py', '.')


def test_compare_makes_what_is_missing_and_pairs_the_seeds(monkeypatch, capsys):
    """Two variants whose values differ by 0.1 and 0.3, on seeds that differ by 0.4."""
    pytest.importorskip('matplotlib')
    ends = {'a-1': 0.1, 'a-2': 0.5, 'b-1': 0.2, 'b-2': 0.8}
    made = []

    def run_of(words, **_):
        """What stands for the process of a run: it has ended."""
        path = words[-1].removeprefix('--out_dir=')
        name = path.removeprefix('study/')
        made.append(name)
        shutil.rmtree(path, ignore_errors=True)             # as if it were moved aside
        os.mkdir(path)
        write(f'{path}/log.jsonl', '\n'.join(json.dumps(
            {'step': step, 'cpu_seconds': step / 2, 'eval/verify': ends.get(name, 0) * step / 100,
             'greedy/verify': 1.0}) for step in (0, 100)))
        if '--group_size=14' in words:              # somebody edits meanwhile
            write('x.py', toy + 'seed = 2')
        code = int('--group_size=13' in words)      # this one fails
        return types.SimpleNamespace(wait=lambda: code, terminate=lambda: None)

    def compare(*words):
        """Return what is printed, and the names of the runs that are made."""
        made.clear()
        monkeypatch.setattr('sys.argv', ['compare.py', 'study', '--seeds=1,2', *words])
        runpy.run_module('extras.compare', run_name='__main__')
        return capsys.readouterr().out, sorted(made)

    monkeypatch.setenv('OMP_NUM_THREADS', '2')              # processes; the script changes it
    monkeypatch.setattr('run.folder.on_signal', lambda handler: None)
    expected = collections.defaultdict(lambda: unittest.mock.ANY)       # knobs, data, networks
    monkeypatch.setattr('run.folder.load_checkpoint',
                        lambda path: {'config': expected})
    monkeypatch.setattr('subprocess.Popen', run_of)
    toy = "eval_prompts = 8\nbatch_size = 2\nrewards = {'verify': 1.0}\n"
    write('x.py', toy)
    with pytest.raises(AssertionError, match='ended with code 1: see study/b-1.txt'):
        compare('x.py', 'a=--group_size=2', 'b=--group_size=13')
    text, names = compare('x.py', 'a=--group_size=2', 'b=')
    assert {'b-1', 'b-2'} <= set(names) and 'a-1' not in names
    assert re.search(r'(?m)^\d runs to make, about \d\.\d minutes \(', text)
    assert 'With 2 seeds a difference must exceed 12.7 standard errors' in text
    for table in text.split('cpu_seconds'):     # the start, halfway, the end
        a, b, gap = re.findall(r'(?m)^[ab] .*', table)
        assert re.findall(r'\S+ \+- \S+', a)[::2] == [
            '0.000 +- 0.000', '0.150 +- 0.141', '0.300 +- 0.283']
        assert re.findall(r'\S+ \+- \S+', b)[::2] == [
            '0.000 +- 0.000', '0.250 +- 0.212', '0.500 +- 0.424']
        assert re.findall(r'\S+ \+- \S+', gap)[::2] == [
            '0.0000 +- 0.0000', '0.1000 +- 0.0500', '0.2000 +- 0.1000']
    assert compare('x.py', 'a=--group_size=2', 'b=')[1] == []
    with open('study/a-2/log.jsonl', 'a') as log:           # it was resumed
        log.write('\n')
    assert compare('x.py', 'a=--group_size=2', 'b=')[1] == ['a-2']
    with pytest.raises(AssertionError, match='have changed while'):
        compare('x.py', 'c=--group_size=14')
    expected['temperature'] = 0.5               # a file was edited and mended again
    with pytest.raises(AssertionError, match='have changed while'):
        compare('x.py', 'c=--group_size=4')
    del expected['temperature']
    write('x.py', toy)
    # other words, more variants, more seeds; a config file, or a network, that has changed
    assert compare('x.py', 'a=--group_size=4', 'b=')[1] == ['a-1', 'a-2']
    assert compare('x.py', 'b=', 'c=', '--seeds=1,2,3')[1] == ['b-3', 'c-1', 'c-2', 'c-3']
    write('x.py', toy + 'seed = 3')
    assert compare('x.py', 'b=')[1] == ['b-1', 'b-2']
    os.mkdir('elsewhere')
    for text, is_new in ((toy, True), (toy, False), (toy + 'seed = 3', True)):
        write('elsewhere/x.py', text)
        assert compare('elsewhere/x.py', 'b=')[1] == ['b-1', 'b-2'] * is_new
    other = make_network('generator_arithmetic', '--seed=2')
    for network, is_new in (('out/generator_arithmetic.pt', True), (other, True), (other, False)):
        shutil.copy(network, 'mine.pt')
        assert compare('x.py', 'b=--generator=mine.pt')[1] == ['b-1', 'b-2'] * is_new
    for mistake, message in (
            ('--seeds=1 b=', 'two or more --seeds'), ('b', 'two or more --seeds'),
            ('--goal=no b=', "study/b-1/log.jsonl has no 'no'"),
            ('b= b=--group_size=2', 'different names'), ('../b=', 'different names'),
            ('--seeds=1,1 b=', 'errors are too small'), ('b=--seed=3', '--seed=3 is set here'),
            ('--resume=True b=', '--resume=True is set here'), ('b=--grup_size=3', 'grup_size')):
        with pytest.raises(SystemExit, match=message):
            compare(*mistake.split())
        assert made == [] or 'goal' in mistake
    for folder in ('--max_iters=3', 'a=', 'run'):           # of another variant, of a run
        os.makedirs('run', exist_ok=True)
        write('run/log.jsonl', '')
        monkeypatch.setattr('sys.argv', ['compare.py', folder, 'x.py', '--seeds=1,2', 'b='])
        with pytest.raises(SystemExit, match='expected FOLDER|is the folder of a run'):
            runpy.run_module('extras.compare', run_name='__main__')
    # the value of a flag has a space; a number's name has a slash
    made.clear()
    text, names = compare('x.py', "b=--rewards={'verify': 1.0} x.py", '--goal=greedy/verify')
    assert names == ['b-1', 'b-2'] and 'wrote study/greedy-verify.png' in text
    with pytest.raises(SystemExit, match="study/d-1/log.jsonl has no 'no'"):
        # before all runs are made
        compare('--goal=no', '--seeds=1,2,3,4,5,6,7,8', 'd=')
    assert len(made) < 8


def test_auc_is_the_share_of_pairs_in_order():
    from extras.auc import auc
    scores = torch.randint(4, (9,)).float()     # with ties
    labels = torch.arange(9) % 2 == 0
    pairs = [(a > b) + (a == b) / 2 for a in scores[labels] for b in scores[~labels]]
    assert auc(scores, labels) == pytest.approx(sum(pairs).item() / len(pairs))
    assert auc(scores, labels | True) == 0.5    # all are right


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
