"""Words of the command line, config files, plugins, functions of a user, and networks by name."""
import importlib.util
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import run as run_module
from configurator import configure, show_error
from conftest import train
from model import load_network

GOOD = '{"prompt": "1+1=", "answer": "2"}\n'


@pytest.fixture
def shown(capsys):
    """shown(error) returns what a person sees of an exception."""
    def show(error):
        if isinstance(error, SystemExit):
            return f'{error}\n'
        capsys.readouterr()
        show_error(type(error), error, error.__traceback__)
        return capsys.readouterr().err
    return show


@pytest.fixture
def refusal(grpo, monkeypatch, shown):
    """refusal(word, ...) returns the line with which a run ends before it makes a network."""
    def refuse(*words):
        made = []
        popen = lambda *words, **more: made.append(words)
        monkeypatch.setattr(run_module, 'subprocess', SimpleNamespace(Popen=popen))
        with pytest.raises((Exception, SystemExit)) as caught:
            grpo.set_up(words)
        assert not made
        text = shown(caught.value)
        assert text.count('\n') == 1, text
        return text
    return refuse


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize('words, line', {
    '--group_sise=2': 'there is no knob group_sise; similar: group_size',
    '--beta=0.1': 'there is no knob beta; it is kl_beta here',
    '--n_fill_steps=3': 'there is no knob n_fill_steps',        # of a plugin
    '--clip=(0.2,0.3)': 'there is no knob clip',
    'group_size=2': 'not group_size=2; similar: --group_size',
    '--group_size=2.5': 'group_size = 2.5: expected a value such as 16',
    '--resume=1': 'resume = 1: expected a value such as False',
    '--rewards=verify': "rewards = 'verify': expected a value such as {",
    '--adv_norm=sdt': "adv_norm = 'sdt': expected one of ('std', 'batch', 'none')",
    'plugins/passes.py --fill_order=right': "expected one of ('random', 'left', 'confident',",
    'config/grpo_smok.py': 'there is no file config/grpo_smok.py; similar: config/grpo_smoke.py',
    '--rewards={"verfy":1.0}': 'there is no verfy(); similar: verify',
    '--gradient_accumulation_steps=3 --mini_batches=2': 'expected a multiple of',
    '--generator=out/none.pt': 'there is no network out/none.pt',
    '--dataset=arithmetc': "similar: ['data/arithmetic.py'",
}.items())
def test_a_mistake_on_the_command_line_is_one_line_before_a_network_is_made(words, line, refusal):
    assert line in refusal(*words.split())


@pytest.mark.parametrize('text, line', [
    ('group_sise = 2', 'mine.py: there is no knob group_sise; similar: group_size'),
    ("group_sise = 2\ninclude('plugins/causal.py')", 'mine.py: there is no knob group_sise'),
    ("include('plugins/causl.py')", 'plugins/causl.py; similar: plugins/causal.py'),
    ('kl_beta = "0.1"', "mine.py: kl_beta = '0.1': expected"),
    ('kl_beta = None', 'mine.py: kl_beta = None: expected'),
])
def test_a_mistake_in_a_config_file_ends_in_one_line(text, line, file, refusal):
    assert line in refusal(file('mine.py', text))


@pytest.mark.parametrize('line', [
    'What?', '["1+1="]', '{"answer": "2"}', '{"prompt": "1+1=", "answer": 2}', '7',
    '{"prompt": "1+1=", "answer": "2", "held_out": "no"}'])
def test_a_bad_line_of_data_is_named(line, toy, file, refusal):
    words = [*toy[1:], '--dataset=' + file('bad.jsonl', f'{GOOD}{line}\n{GOOD}')]
    assert 'bad.jsonl, line 2: ' in refusal(*words)


def test_a_bad_line_of_data_is_named_before_networks_are_made_from_it(file, refusal):
    assert 'bad.jsonl, line 2: ' in refusal('--dataset=' + file('bad.jsonl', f'{GOOD}What?\n'))


def test_verify_as_a_reward_of_a_task_without_it_is_refused_in_one_line(toy, file, refusal):
    path = file('asked.py', "def texts():\n    return [('1+1=', '')], [('2+2=', '')] * 2")
    assert 'verify' in refusal(*toy[1:], f'--dataset={path}', '--rewards={"verify": 1.0}')


@pytest.mark.parametrize('words, word', [
    ('--generator={}/judge.pt', 'plugins/causal.py'), ('plugins/causal.py', 'plugins/causal.py'),
    ('plugins/passes.py --generator={}/judge.pt', 'plugins/passes.py'),
    ('plugins/passes.py --fill_order=learned --n_fill_steps=1', 'n_fill_steps')])
def test_a_generator_that_does_not_fit_the_plugins_is_refused(words, word, toy, folder, grpo):
    with pytest.raises(AssertionError, match=word):
        _, networks, task = grpo.set_up(toy[1:] + words.format(folder).split())
        grpo.complete(networks.policy, task.prompts('val', 4), 2)


def test_a_run_without_a_step_evaluates_and_ends_well(toy, tmp_path):
    assert 'line to beat' in train(toy, tmp_path / 'run', '--max_iters=0')


# ---- config files --------------------------------------------------------------------------------


def test_words_act_from_left_to_right_and_whole_numbers_become_floats(grpo, file):
    path = file('mine.py', 'group_size = 4')
    for words, size in (([path, '--group_size=2'], 2), (['--group_size=2', path], 4)):
        config = configure(vars(grpo), [*words, '--kl_beta=1'])
        assert config['group_size'] == grpo.group_size == size
        assert type(config['kl_beta']) is float and config['kl_beta'] == 1


def test_a_function_of_a_file_takes_the_place_of_ours_and_the_run_says_so(grpo, file, capsys):
    ours = grpo.advantages
    path = file('mine.py', 'def advantages(reward, scores, inner=advantages):\n'
                '    return 2 * inner(reward, scores)\n')
    configure(vars(grpo), [path, '--adv_norm=none'])
    assert capsys.readouterr().out == f'{path} takes the place of advantages\n'
    assert grpo.advantages(grpo.torch.eye(2), {}).tolist() == [[1.0, -1.0], [-1.0, 1.0]]
    configure(vars(grpo), [])
    assert grpo.advantages is ours


def test_a_new_function_that_nobody_calls_is_named(grpo, file, capsys):
    path = file('mine.py', """
rewards = {'mine': 1.0}
def mine(completions):
    return list(map(helper, completions))
def helper(text):
    return len(text)
def objectve(stats, r):
    return 0
""")
    configure(vars(grpo), [path])
    line, = capsys.readouterr().out.splitlines()
    assert line.startswith(f'{path}: nothing calls objectve(); similar: objective')


def test_a_file_that_is_included_twice_is_run_once(grpo, file):
    path = file('mine.py', "state['times'] = state.get('times', 0) + 1")
    other = file('other.py', f"include('{path}')\ninclude('{path}')")
    configure(vars(grpo), [other, path])
    assert grpo.state == {'times': 1}


def test_a_second_configure_begins_with_the_original_globals(grpo, file):
    configure(vars(grpo), [])
    before = dict(vars(grpo))
    path = file('mine.py', "rewards['verify'] = 2.0\nstate['a'] = 1\ndef mine(texts):\n    pass")
    config = configure(vars(grpo), ['plugins/passes.py', '--fill_order=left', '--seed=3', path])
    assert config['rewards'] == {'judge': 1.0, 'verify': 2.0} and config['fill_order'] == 'left'
    configure(vars(grpo), [])
    assert grpo.rewards == {'judge': 1.0} and vars(grpo).keys() == before.keys()
    changed = {name for name in before if vars(grpo)[name] != before[name]}
    assert changed <= {'__builtins__', 'include'}


def test_every_config_file_of_ours_is_understood(grpo, capsys):
    paths = sorted(Path('config').rglob('grpo_*.py'))
    assert len(paths) > 9
    for path in paths:
        if 'plugins/hf.py' in path.read_text() and not importlib.util.find_spec('transformers'):
            continue
        configure(vars(grpo), [str(path)])
        assert not grpo.generator.endswith('.py') or Path(grpo.generator).exists()
        assert 'nothing calls' not in capsys.readouterr().out


# ---- functions of a user -------------------------------------------------------------------------


@pytest.fixture
def scored(toy, grpo, file, shown):
    """scored(code) returns what a person sees if a reward with this code scores 8 completions."""
    def score(code):
        path = file('mine.py', f"def mine(completions):\n    n = len(completions)\n    {code}\n")
        _, networks, task = grpo.set_up([*toy[1:], path, '--rewards={"mine": 1.0}'])
        r = grpo.complete(networks.policy, task.prompts('val', 4), 2)
        with pytest.raises(Exception) as caught:
            grpo.score(r, networks, ['mine'])
        return shown(caught.value)
    return score


@pytest.mark.parametrize('values', [
    'None', '[1.0]', '1.0', '"text"', '[None] * n', '[[1.0]] * n', '["a"] * n', '[1e99] * n',
    '[0.5] * (n - 1) + [float("nan")]', '[float("inf")] * n'])
def test_a_reward_that_returns_no_finite_number_for_each_completion_is_named(values, scored):
    text = scored(f'return {values}')
    assert text.startswith('error: reward mine: expected 8 finite numbers')
    assert text.count('\n') == 1


@pytest.mark.parametrize('wrong', ['1 / 0', "assert n == 7, 'not 7'", "open('nowhere')"])
def test_an_exception_in_a_reward_has_its_traceback_and_the_name_of_the_reward(wrong, scored):
    text = scored(wrong)
    assert text.startswith('Traceback') and 'mine.py", line 3, in mine' in text
    assert 'in mine()' in text.splitlines()[-1]


# ---- networks by name ----------------------------------------------------------------------------


def test_a_network_is_made_again_if_its_recipe_or_its_dataset_is_newer(
        folder, tmp_path, file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir('out')
    recipe, dataset = file('tiny.py', ''), file('mine.jsonl', '')
    network = f"out/tiny-{dataset.replace('/', '_')}.pt"
    names = {'policy': recipe, 'reference': recipe}
    made = []

    def make(command, env):
        made.append(command[1:])
        shutil.copy(folder / 'generator.pt', network)
        return SimpleNamespace(wait=lambda: 0)

    monkeypatch.setattr(run_module, 'subprocess', SimpleNamespace(Popen=make))
    for newer in ('', '', recipe, dataset, ''):
        for seconds, path in enumerate((recipe, dataset, network), 100):
            if os.path.exists(path):
                os.utime(path, (0, 999 if path == newer else seconds))
        run_module.open_networks(names, dataset, 'cpu', load_network)
    command = ['pretrain.py', f'--dataset={dataset}', recipe, f'--out={network}']
    assert made == [command] * 3                # at first, and when one of them was newer
