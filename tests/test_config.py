"""What every script needs: overrides checked the same from files and flags, files that are whole or
not there, digests, locks, the folder of a run."""
import ast
import glob
import json
import os
import re
import runpy

import pytest
import torch

import common
from common import (Log, at_least, between, check_finite, configure, digest_of, knobs, lock_file,
                    new_file, one_of, read_json, read_json_lines)
from processes import ROOT, refused, run

SCRIPTS = ['train_grpo.py', 'model.py', 'judge.py', 'sample.py']


def some_knobs():
    return {'group_size': 16, 'kl_beta': 0.05, 'dataset': 'arithmetic', 'resume': False,
            'rewards': {'judge': 1.0}, 'learning_rate': 1e-3, 'out_dir': 'out',
            '_hidden': 1, 'LETTERS': 2, 'module': os}


@pytest.fixture
def file(tmp_path):
    """file(text) -> the path of a config file with it."""
    def make(text, name='mine.py'):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)
    return make


# ---- overrides -----------------------------------------------------------------------------------


def test_files_and_flags_apply_in_the_order_given(file):
    path = file("group_size = 8\n_twice = 2 * group_size\nkl_beta = 1 / _twice\nSIGN = 'x'\n")
    namespace = some_knobs()
    config, functions = configure(namespace, ['--group_size=4', path, '--kl_beta=3'], quiet=True)
    assert (config['group_size'], config['kl_beta']) == (8, 3.0) and functions == {}
    assert type(config['kl_beta']) is float and namespace['group_size'] == 8
    config, _ = configure(some_knobs(), [path, '--group_size=4'], quiet=True)
    assert (config['group_size'], config['kl_beta']) == (4, 1 / 16)


@pytest.mark.parametrize('flag, value', [
    ('--dataset=a=b', 'a=b'), ('--dataset=7', '7'), ("--rewards={'x': 2}", {'x': 2}),
    ('--resume=True', True), ('--learning_rate=1e-5', 1e-5), ('--group_size=0x3', 3)])
def test_a_value_is_a_literal_or_text_as_it_stands(flag, value):
    config, _ = configure(some_knobs(), [flag], quiet=True)
    assert config[flag[2:].partition('=')[0]] == value


@pytest.mark.parametrize('line', ["group_size = 2.0", "group_size = '2'", "group_size = True",
                                  "resume = 1", "rewards = 3", "dataset = 4", "kl_beta = 'x'"])
def test_a_wrong_type_is_refused_from_a_file_and_from_a_flag(line, file):
    name, value = line.split(' = ')
    refused([name, 'mine.py'], configure, some_knobs(), [file(line)], quiet=True)
    if name != 'dataset':                       # there a flag is text
        refused([name], configure, some_knobs(), [f'--{name}={ast.literal_eval(value)}x'],
                quiet=True)


@pytest.mark.parametrize('word, names', [
    ('--grup_size=3', ['grup_size', 'group_size']), ('--lr=3', ['lr', 'learning_rate']),
    ('--num_generations=3', ['group_size']), ('--group_size', ['--group_size=VALUE']),
    ('no/such.py', ['no/such.py'])])
def test_what_is_unknown_is_named_with_what_was_meant(word, names):
    refused(names, configure, some_knobs(), [word], quiet=True)


@pytest.mark.parametrize('text, name', [('x = 3', 'x'), ('group_size = (', 'SyntaxError'),
                                        ('1 / 0', 'ZeroDivisionError')])
def test_a_file_that_is_no_config_is_refused(text, name, file):
    refused(['mine.py', name], configure, some_knobs(), [file(text)], quiet=True)


def test_functions_are_known_by_their_code_and_by_what_it_imports(file, tmp_path, monkeypatch):
    monkeypatch.setattr(common, 'HOME', str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))

    def digest(text):
        config, functions = configure(some_knobs(), [file(text)], quiet=True)
        assert list(functions) == ['mine']
        return config['functions']

    code = 'def mine(prompts, completions): return [1.0]\n'
    assert digest(code) == digest('group_size = 3\n' + code) == digest('# a word\n' + code)
    assert digest(code) != digest(code.replace('1.0', '2.0'))
    file('LENGTH = 3\n', 'far.py')
    file('import far\n', 'near.py')
    code = 'import near\n' + code
    first = digest(code)
    assert digest(code) == first
    file('LENGTH = 4\n', 'far.py')
    assert digest(code) != first


def test_a_recipe_given_to_the_wrong_script_is_told_whose_it_is(tmp_path):
    path = tmp_path / 'judge_mine.py'
    path.write_text('a = 2\n')
    refused(['is for judge.py', 'model.py'], configure, {'__file__': 'model.py', 'a': 1},
            [str(path)])
    namespace = {'__file__': 'judge.py', 'a': 1}
    configure(namespace, [str(path)], quiet=True)
    assert namespace['a'] == 2


def test_the_promise_of_a_file_is_printed_only_while_it_holds(file, capsys):
    path = file('# in a minute: 93 %\ngroup_size = 8\n')
    for flags, is_said in (([], True), (['--out_dir=x'], True), (['--group_size=8'], True),
                           (['--kl_beta=1'], False), (['--group_size=9'], False)):
        configure(some_knobs(), [path, *flags])
        assert ('93 %' in capsys.readouterr().out) == is_said


@pytest.mark.parametrize('script', SCRIPTS)
def test_every_knob_has_a_gloss_and_is_read(script, repository):
    with open(f'{ROOT}/{script}', encoding='utf-8') as file:
        source = file.read()
    code, text = run(repository, script, '--help')
    assert code == 0
    nodes = list(ast.walk(ast.parse(source)))
    read = {node.id for node in nodes if isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)}
    read |= {node.value for node in nodes if isinstance(node, ast.Constant)}    # config['name']
    read |= set(re.findall(r"config\['(\w+)'\]", open(f'{ROOT}/model.py').read()))
    for name in knobs(runpy.run_path(f'{ROOT}/{script}')):
        assert re.search(rf'^  {name} +\S.*  +\S', text, re.MULTILINE), name
        assert name in read, f"{script}: nobody reads {name}"


def test_checks_name_knob_and_value():
    refused(["mode = 'x'", "'fill'"], one_of, ('fill', 'causal'), mode='x')
    refused(['n = 0', '1', 'why'], at_least, 1, 'why', n=0)
    refused(['p = nan'], between, 0, 1, p=float('nan'))
    refused(['n = inf'], at_least, 1, n=float('inf'))
    refused(['step 7', 'loss', 'nan'], check_finite, {'step': 7, 'kl': 0.0, 'loss': float('nan')})
    between(0, 1, p=1)


# ---- files ---------------------------------------------------------------------------------------


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path):
    path = tmp_path / 'a' / 'x.bin'
    with new_file(path) as file:
        file.write(b'old')
    with pytest.raises(ZeroDivisionError), new_file(path) as file:
        file.write(b'half')
        1 / 0

    def full():
        with new_file(path) as file:
            file.write(b'half')
            raise OSError(28, 'No space left on device')
    refused([str(path), 'No space left'], full)
    assert path.read_bytes() == b'old' and os.listdir(tmp_path / 'a') == ['x.bin']


def test_a_digest_tells_what_differs():
    things = [1, 1.0, '1', b'1', [1], [[1]], {'a': 1}, {'a': 2}, {'b': 1}, True, None, [1, 2], [12]]
    assert len({digest_of(thing) for thing in things}) == len(things)
    assert digest_of({'a': [1, 'x']}) == digest_of(json.loads(json.dumps({'a': [1, 'x']})))


def test_only_objects_with_a_step_are_read_from_a_log(tmp_path):
    path = tmp_path / 'log.jsonl'
    path.write_text('{"step": 1}\n[]\nnonsense\n{"step": "x"}\n{"step": 2, "a": 1}\n'
                    '{"step": 3, "a": "}')
    assert read_json_lines(path) == [{'step': 1}, {'step': 2, 'a': 1}]
    refused(['no.json', 'make it with: python x.py'], read_json, tmp_path / 'no.json', {},
            'python x.py')
    path.write_text('[' * 10 ** 5)
    refused(['log.jsonl'], read_json, path, {}, 'python x.py')
    path.write_text('{"a": 1}')
    refused(["'b'"], read_json, path, {'a': int, 'b': int}, 'python x.py')


def test_a_lock_is_held_by_one(tmp_path):
    first = lock_file(f'{tmp_path}/a/.lock')
    with pytest.raises(OSError):
        lock_file(f'{tmp_path}/a/.lock')
    first.close()
    lock_file(f'{tmp_path}/a/.lock').close()


def test_runs_are_moved_aside_to_the_first_free_number(tmp_path):
    for _ in range(4):
        log = Log(f'{tmp_path}/out/')
        log.begin(0, {'seed': 1}, resume=False)
        log.held.close()
    assert sorted(os.listdir(tmp_path)) == ['out', 'out-1', 'out-2', 'out-3']
    log.write({'step': 0, 'a': 1.5}, 'words')
    log.write({'step': 3, 'a': 2.5}, 'words')
    with pytest.raises(ValueError):             # it would be no JSON
        log.write({'step': 4, 'a': float('nan')}, 'words')
    again = Log(f'{tmp_path}/out', resume=True)
    again.begin(2, {'seed': 1}, resume=True)    # what is later than its step is done again
    assert read_json_lines(f'{tmp_path}/out/log.jsonl') == [{'step': 0, 'a': 1.5}]
    refused(['nothing'], Log, f'{tmp_path}/nothing', resume=True)


# ---- the device ----------------------------------------------------------------------------------


def test_products_are_bfloat16_if_they_are_to_be_and_casts_of_weights_are_not_kept():
    """In one context around a loop samples would come from weights that have been updated since."""
    cpu = torch.device('cpu')
    layer = torch.nn.Linear(4, 4, bias=False)
    with common.autocast(cpu, 'bfloat16'):
        before = layer(torch.ones(1, 4))
        with torch.no_grad():
            layer.weight += 1.0
        after = layer(torch.ones(1, 4))
    assert before.dtype == torch.bfloat16
    torch.testing.assert_close((after - before).float(), torch.full((1, 4), 4.0), atol=0.1, rtol=0)
    with common.autocast(cpu, 'float32'):
        assert layer(torch.ones(1, 4)).dtype == torch.float32
    refused(['cuda:9'], common.resolve_device, 'cuda:9')
    refused(["'half'"], common.resolve_dtype, 'cpu', 'half')


def test_no_line_is_wider_than_100_columns():
    files = [path for pattern in ('*.py', '*/*.py', 'data/*/*.py')
             for path in glob.glob(f'{ROOT}/{pattern}')]
    assert len(files) > 40
    for path in files:
        with open(path, encoding='utf-8') as file:
            assert max(len(line.rstrip('\n')) for line in file) <= 100, path
