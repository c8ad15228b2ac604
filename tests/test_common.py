"""What every script needs: overrides, devices, numbers, and the folder of a run."""
import ast
import glob
import math
import os
import re

import pytest
import torch

import common
from common import Log, as_numbers, configure, knobs_of
from processes import ROOT, refused, run

SCRIPTS = ['train_grpo.py', 'pretrain.py', 'sample.py']


def toy_knobs():
    return {'group_size': 16, 'kl_beta': 0.05, 'dataset': 'arithmetic', 'resume': False,
            'rewards': {'judge': 1.0}, 'learning_rate': 1e-3, '_hidden': 1, 'LETTERS': 2,
            'module': os}


@pytest.fixture
def file(tmp_path):
    """file(text) -> the path of a config file with it."""
    def make(text):
        (tmp_path / 'mine.py').write_text(text)
        return str(tmp_path / 'mine.py')
    return make


# ---- overrides -----------------------------------------------------------------------------------


def test_files_and_flags_apply_in_the_order_given(file):
    path = file("import math\ngroup_size = group_size // 2\n_twice = 2 * group_size\n"
                "kl_beta = 1 / _twice\nSIGN = 'x'\ndef mine(prompts, completions): return 3\n")
    namespace = toy_knobs()
    config, functions = configure(namespace, ['--group_size=4', path, '--learning_rate=3'])
    assert (config['group_size'], config['kl_beta'], config['learning_rate']) == (2, 0.25, 3.0)
    assert type(config['learning_rate']) is float and namespace['group_size'] == 2
    assert list(functions) == ['mine'] and set(config) == set(knobs_of(toy_knobs()))
    config, _ = configure(toy_knobs(), [path, '--group_size=4'])
    assert (config['group_size'], config['kl_beta']) == (4, 1 / 16)


@pytest.mark.parametrize('flag, value', [
    ('--dataset=a=b', 'a=b'), ('--dataset=7', '7'), ("--rewards={'x': 2}", {'x': 2}),
    ('--resume=True', True), ('--learning_rate=1e-5', 1e-5), ('--group_size=0x3', 3)])
def test_the_value_of_a_flag_is_a_literal_or_text(flag, value):
    config, _ = configure(toy_knobs(), [flag])
    assert config[flag[2:].partition('=')[0]] == value


@pytest.mark.parametrize('line', [
    "group_size = 2.0", "group_size = True", "group_size = -1", "resume = 1",
    "rewards = 3", "dataset = 4", "kl_beta = 'x'", "kl_beta = -0.1", "kl_beta = 1e999"])
def test_a_wrong_type_or_sign_is_refused_from_a_file_and_from_a_flag(line, file):
    name, value = line.split(' = ')
    refused([name, 'mine.py', repr(toy_knobs()[name])], configure, toy_knobs(), [file(line)])
    if name != 'dataset' and "'" not in value:          # the text of a flag needs no quotes
        refused([name], configure, toy_knobs(), [f'--{name}={value}'])


@pytest.mark.parametrize('word, words', [
    ('--grup_size=3', ['grup_size', 'group_size']), ('--lr=3', ['lr']),
    ('-x', ["'x'"]), ('config/grpo_smok.py', ['config/grpo_smok.py', 'config/grpo_smoke.py'])])
def test_an_unknown_name_is_refused_and_the_nearest_suggested(word, words, monkeypatch):
    monkeypatch.chdir(ROOT)
    refused(words, configure, toy_knobs(), [word])


def test_a_config_file_that_fails_shows_its_line_and_one_that_exits_is_named(file):
    refused(['x', 'mine.py'], configure, toy_knobs(), [file('x = 3')])
    refused(['mine.py', 'sys.exit'], configure, toy_knobs(), [file('import sys; sys.exit()')])
    with pytest.raises(ZeroDivisionError):
        configure(toy_knobs(), [file('1 / 0')])


@pytest.mark.parametrize('script', SCRIPTS)
def test_every_knob_has_a_comment_and_is_read(script, repository):
    with open(f'{ROOT}/{script}', encoding='utf-8') as file:
        tree = ast.parse(file.read())
    names = [node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)
             and isinstance(node.targets[0], ast.Name) and node.targets[0].id.islower()]
    assert len(names) > 1
    nodes = list(ast.walk(tree))
    read = {node.id for node in nodes if isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)}
    read |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    read |= {node.value for node in nodes if isinstance(node, ast.Constant)}    # config['name']
    code, text = run(repository, script, '--help')
    assert code == 0 and 'python' in text
    for name in names:
        assert re.search(rf'^  {name} = .*  # \S', text, re.MULTILINE), name
        assert name in read, f"{script}: nobody reads {name}"


def test_train_grpo_does_nothing_when_it_is_imported():
    """Its statements are a docstring, imports, knobs, functions, and what only a script runs."""
    with open(f'{ROOT}/train_grpo.py', encoding='utf-8') as file:
        *body, last = ast.parse(file.read()).body
    assert ast.unparse(last.test) == "__name__ == '__main__'"
    kinds = {type(node) for node in body}
    assert kinds == {ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.FunctionDef}


# ---- numbers and files ---------------------------------------------------------------------------


def test_numbers_that_are_not_finite_are_refused():
    assert as_numbers({'a': torch.tensor(2.0), 'b': 3}) == {'a': 2.0, 'b': 3.0}
    for bad in (math.nan, math.inf):
        with pytest.raises(AssertionError, match="finite.*'loss'"):
            as_numbers({'step': 7, 'loss': torch.tensor(bad)})


def test_runs_are_moved_aside_to_the_first_free_number(tmp_path):
    for step in range(4):
        log = Log(f'{tmp_path}/out', {'seed': step})
        log.write(step, {'a': 1.5})
        log.file.close()                        # and with it the lock
    assert sorted(os.listdir(tmp_path)) == ['out', 'out-1', 'out-2', 'out-3']
    for step in range(4):
        name = 'out' if step == 3 else f'out-{step + 1}'
        assert (tmp_path / name / 'log.jsonl').read_text() == f'{{"step": {step}, "a": 1.5}}\n'
    again = Log(f'{tmp_path}/out', {'seed': 3}, resume=True)
    again.write(4, {'a': 2.5})
    assert len((tmp_path / 'out/log.jsonl').read_text().splitlines()) == 2
    with pytest.raises(AssertionError, match='best.pt is in .*out_dir'):
        Log(f'{tmp_path}/out', {}, [f'{tmp_path}/2', f'{tmp_path}/out/best.pt'])
    refused(['another run', f'{tmp_path}/out'], Log, f'{tmp_path}/out', {}, resume=True)


def test_products_are_bfloat16_and_casts_of_weights_are_not_kept(monkeypatch):
    """If they were, samples would come from weights that have been updated since."""
    try:
        cpu = common.init_device('cpu', 'bfloat16')
        layer = torch.nn.Linear(4, 4, bias=False)
        before = layer(torch.ones(1, 4))
        with torch.no_grad():
            layer.weight += 1.0
        after = layer(torch.ones(1, 4))
    finally:
        common.init_device('cpu', 'float32')
    assert before.dtype == torch.bfloat16 and cpu.type == 'cpu'
    torch.testing.assert_close((after - before).float(), torch.full((1, 4), 4.0), atol=0.1, rtol=0)
    assert layer(torch.ones(1, 4)).dtype == torch.float32
    refused(['cuda:9', 'mps'], common.init_device, 'cuda:9', 'float32')


def test_no_line_is_wider_than_100_columns():
    paths = glob.glob(f'{ROOT}/*.py') + glob.glob(f'{ROOT}/*/*.py')
    assert len(paths) > 40
    for path in paths:
        with open(path, encoding='utf-8') as file:
            assert max(len(line.rstrip('\n')) for line in file) <= 100, path
