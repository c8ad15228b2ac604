"""Words of the command line, config files, plugins, and functions of a user."""
import contextlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from configurator import configure
from conftest import log_of, run, train
from model import load_network
from run import open_networks

GOOD = '{"prompt": "1+1=", "answer": "2"}\n'


@pytest.fixture
def refusal(toy, tmp_path):
    """refusal(word, ...) returns the line with which a run ends before it has made anything."""
    def refuse(*words):
        code, text, error = run(*toy, f'--out_dir={tmp_path}/run', *words)
        assert code == 1 and error.count('\n') == 1, error
        assert not {'$', '|'} & {*text}         # neither a command nor a number
        return error
    return refuse


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize('words, line', {
    '--group_sise=2': 'there is no knob group_sise; similar: group_size',
    '--beta=0.1': 'there is no knob beta; it is kl_beta here',
    '--n_fill_steps=3': 'there is no knob n_fill_steps',        # of a plugin
    'group_size=2': 'not group_size=2; similar: --group_size',
    '--Group_size=2': 'there is no knob Group_size; similar: group_size',
    '--group_size=2.5': 'group_size = 2.5: expected a value such as 16',
    '--resume=1': 'resume = 1: expected a value such as False',
    '--kl_beta=-0.1': 'kl_beta = -0.1: expected a number not below 0',
    '--temperature=0': 'temperature = 0: expected a number not below 0.001',
    '--rewards=verify': "rewards = 'verify': expected a value such as {",
    '--adv_norm=sdt': "adv_norm = 'sdt': expected one of ('std', 'batch', 'none')",
    'plugins/passes.py --fill_order=right': "expected one of ('random', 'left', 'confident',",
    'config/grpo_smok.py': 'there is no file config/grpo_smok.py; similar: config/grpo_smoke.py',
    '--rewards={"verify":"a"}': "expected a value such as {",
    '--rewards={"verfy":1.0}': 'equations.py has no verfy(); similar: verify',
    '--rewards={"learn":1.0}': 'equations.py has no learn(); similar: ',
    '--gradient_accumulation_steps=3 --mini_batches=2': 'expected a multiple of',
    '--generator=out/none.pt': 'there is no network out/none.pt',
    '--judge=README.md': 'README.md is no checkpoint',
    '--reference=out/mine.pt': 'there is no network out/mine.pt',
    '--dataset=arithmetc': 'similar: data/arithmetic.py',
    '--eval_prompts=1': 'eval_prompts = 1: expected a number not below 2',
    '--generator={0}/judge.pt': 'add plugins/causal.py',
    'plugins/causal.py': 'leave out plugins/causal.py',
    'plugins/passes.py --generator={0}/judge.pt': 'plugins/passes.py',
    'plugins/passes.py --fill_order=learned --n_fill_steps=1': 'n_fill_steps',
}.items())
def test_a_mistake_on_the_command_line_is_one_line(words, line, refusal, folder):
    assert line in refusal(*[word.replace('{0}', str(folder)) for word in words.split()])


@pytest.mark.parametrize('text, line', [
    ("group_sise = 2\ninclude('plugins/causal.py')",
     'mine.py: there is no knob group_sise; similar: group_size'),
    ("include('plugins/causl.py')", 'plugins/causl.py; similar: plugins/causal.py'),
    ('kl_beta = None', 'mine.py: kl_beta = None: expected'),
    ('mine = torch.zeros(2)', 'mine.py: there is no knob mine; similar: '),
    ('del batch_size', 'mine.py: batch_size = None: expected'),
    ('kl_beta = 10 ** 400', 'mine.py: kl_beta = 1000'),
    ('def texts():\n    return [], []', 'mine.py is a task: expected --dataset='),
    ("include('plugins/causal.py')\ngenerator = judge\ndef reply():\n    return 1",
     'reply() returned 1')])
def test_a_mistake_in_a_config_file_is_one_line(text, line, file, refusal):
    assert line in refusal(file('mine.py', text))


@pytest.mark.parametrize('line', [
    'What?', '["1+1="]', '{"answer": "2"}', '{"prompt": "1+1=", "answer": 2}', '7', '"ab"',
    '["1+1=", "\\ud800"]', 150_000 * '[',
    '{"prompt": "1+1=", "answer": "2", "held_out": "no"}'])
def test_a_bad_line_of_data_is_named_before_a_network_is_made_from_it(line, file, refusal):
    path = file('bad.jsonl', f'{GOOD}{line}\n{GOOD}')
    error = refusal('--generator=config/networks/generator_smoke.py', f'--dataset={path}')
    assert 'bad.jsonl, line 2: ' in error


# ---- rewards -------------------------------------------------------------------------------------


def reward(line):
    return (f"import numpy as np\nrewards = {{'mine': 1.0}}\n"
            f"def mine(texts):\n    n = len(texts)\n    {line}\n")


@pytest.mark.parametrize('values', [
    'None', '[1.0]', '1.0', '"text"', '[None] * n', '[[1.0]] * n', '["a"] * n', '[1e99] * n',
    '[0.5] * (n - 1) + [float("nan")]', '[float("inf")] * n', '[1j] * n',
    'np.ma.masked_array([0.5] * n, [0, 1] * (n // 2))'])
def test_a_reward_that_returns_no_finite_number_for_each_completion_is_named(
        values, file, refusal):
    error = refusal(file('mine.py', reward(f'return {values}')))
    assert error.startswith('error: reward mine: expected 32 finite numbers')


@pytest.mark.parametrize('wrong', ['1 / 0', "assert n == 7, 'not 7'", "open('nowhere')"])
def test_an_exception_in_a_reward_has_its_traceback_and_the_name_of_the_reward(
        wrong, toy, file, tmp_path):
    _, _, error = run(*toy, file('mine.py', reward(wrong)), f'--out_dir={tmp_path}/run')
    assert error.startswith('Traceback') and 'mine.py", line 5, in mine' in error
    assert 'in mine()' in error.splitlines()[-1]


def test_a_checker_of_a_config_file_takes_the_place_of_that_of_the_dataset(toy, file, tmp_path):
    train(toy, tmp_path / 'run', file('mine.py', 'def verify(text):\n    return 0.25\n'))
    assert {line.get('eval/verify', 0.25) for line in log_of(tmp_path / 'run')} == {0.25}


# ---- config files --------------------------------------------------------------------------------


def test_words_act_from_left_to_right_and_whole_numbers_become_floats(grpo, file):
    path = file('mine.py', 'group_size = 4')
    for words, size in (([path, '--group_size=2'], 2), (['--group_size=2', path], 4)):
        config = configure(vars(grpo), [*words, '--kl_beta=1'])
        assert config['group_size'] == grpo.group_size == size
        assert repr(config['kl_beta']) == '1.0'


def test_functions_of_a_file_that_take_a_place_or_that_nobody_calls_are_named(grpo, file, capsys):
    path = file('mine.py', """
rewards = {'mine': 1.0}
def mine(completions):
    return list(map(helper, completions))
def helper(text):
    return len(text)
def advantages(reward, scores, inner=advantages):
    return 2 * inner(reward, scores)
def objectve(stats, r):
    return 0
""")
    configure(vars(grpo), [path, '--adv_norm=none'])
    assert grpo.advantages(grpo.torch.eye(2), {}).tolist() == [[1.0, -1.0], [-1.0, 1.0]]
    place, nothing = capsys.readouterr().out.splitlines()
    assert place == f'{path} takes the place of advantages'
    assert 'nothing calls objectve(), nor is it in rewards; similar: objective' in nothing


def test_a_file_is_run_once_and_a_second_configure_begins_with_the_original_globals(grpo, file):
    configure(vars(grpo), [])
    before = dict(vars(grpo))
    path = file('mine.py', """
rewards['verify'] = 2.0
state['times'] = state.get('times', 0) + 1
def advantages(reward, scores):
    return scores
def mine(texts):
    return texts
""")
    other = file('other.py', f"include('{path}')\ninclude('{path}')")
    config = configure(vars(grpo), ['plugins/passes.py', '--fill_order=left', other, path])
    assert config['rewards'] == {'judge': 1.0, 'verify': 2.0} and config['fill_order'] == 'left'
    assert grpo.state == {'times': 1}
    configure(vars(grpo), [])
    after = vars(grpo)
    assert after.keys() == before.keys()
    changed = {name for name in before if after[name] != before[name]}
    assert changed <= {'__builtins__', 'include'}


def test_every_config_file_of_ours_is_understood(grpo, capsys):
    has_transformers = importlib.util.find_spec('transformers')
    for path in Path('config').rglob('grpo_*.py'):
        if has_transformers or 'plugins/hf.py' not in path.read_text():
            configure(vars(grpo), [str(path)])
    assert 'nothing calls' not in capsys.readouterr().out


@pytest.mark.parametrize('times, is_made', [((3, 1, 2), True), ((1, 3, 2), True),
                                            ((1, 1, 2), False)])
def test_a_network_is_made_again_if_its_recipe_or_its_dataset_is_newer(
        times, is_made, folder, tmp_path, file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir('out')
    paths = file('tiny.py', ''), file('mine.jsonl', '')
    name = f'{paths[0][:-3]}-{paths[1]}.pt'.replace('/', '_')
    network = shutil.copy(folder / 'generator.pt', f'out/{name}')
    for path, time in zip((*paths, network), times):
        os.utime(path, (time, time))
    made = []
    monkeypatch.setattr('subprocess.Popen', lambda command, **_: made.append(command) or sys.exit())
    with contextlib.suppress(SystemExit):
        open_networks({'policy': paths[0]}, paths[1], 'cpu', load_network)
    command = ['pretrain.py', f'--dataset={paths[1]}', paths[0], f'--out={network}']
    assert [words[1:] for words in made] == [command] * is_made
