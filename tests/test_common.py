"""What every script needs: overrides, devices, numbers, and the folder of a run."""
import inspect
import io
import json
import os
import re
import sys
import unittest.mock

import numpy as np
import pytest
import torch

import common
from common import Log, Progress, configure, knobs_of
from data.dataset import Dataset
from processes import ROOT, refused, succeeds, write


def toy_knobs():
    return {'group_size': 16, 'kl_beta': 0.05, 'dataset': 'arithmetic', 'resume': False,
            'rewards': {'judge': 1.0}, '_hidden': 1, 'LETTERS': 2, 'module': os}


# ---- overrides -----------------------------------------------------------------------------------


def test_files_and_flags_apply_in_the_order_given():
    path = write('mine.py', "import math\ngroup_size = group_size // 2\n_twice = 2 * group_size\n"
                 "kl_beta = 1 / _twice\nSIGN = 'x'\ndef mine(prompts, completions): return 3\n")
    namespace = toy_knobs()
    config, functions = configure(namespace, ['--group_size=4', path])
    assert config == knobs_of(namespace) == knobs_of(toy_knobs()) | {
        'group_size': 2, 'kl_beta': 0.25}
    assert list(functions) == ['mine']
    config, _ = configure(toy_knobs(), [path, '--group_size=4'])
    assert (config['group_size'], config['kl_beta']) == (4, 1 / 16)


FLAGS = {
    '--dataset=a=b': 'a=b', '--dataset=7': '7', '--dataset=~/a': os.path.expanduser('~/a'),
    "--rewards={'x': 2}": {'x': 2},
    '--resume=True': True, '--kl_beta=1e-5': 1e-5, '--kl_beta=3': 3.0,
}


@pytest.mark.parametrize('flag', FLAGS)
def test_the_value_of_a_flag_is_a_literal_or_text(flag):
    config, _ = configure(toy_knobs(), [flag])
    value = config[flag[2:].partition('=')[0]]
    assert value == FLAGS[flag] and type(value) is type(FLAGS[flag])


@pytest.mark.parametrize('line', [
    "group_size=2.0", "group_size=True", "group_size=-1", "resume=1", "rewards=3", "kl_beta='x'",
    "kl_beta=-0.1", "kl_beta=1e999", "kl_beta=print", "kl_beta=True"])
def test_a_wrong_type_or_sign_is_refused_from_a_file_and_from_a_flag(line):
    name, _ = line.split('=')
    for word in (write('mine.py', line), f'--{line}'):
        refused(f'{word}: {name}', configure, toy_knobs(), [word])


@pytest.mark.parametrize('word, nearest', [
    ('--grup_size=3', 'group_size'), ('config/grpo_smok.py', 'grpo_smoke.py'),
    ('--group_size', 'expected --name=value'), ('README.md', '--dataset=FILE')])
def test_an_unknown_name_is_refused_and_a_better_word_suggested(word, nearest, monkeypatch):
    monkeypatch.chdir(ROOT)
    refused(nearest, configure, toy_knobs(), [word])


@pytest.mark.parametrize('script', ['train_grpo', 'pretrain', 'sample'])
def test_help_shows_every_knob_with_a_comment_and_every_knob_is_read(script):
    text = succeeds(f'{script}.py', '--help')
    source = (ROOT / f'{script}.py').read_text('utf-8')
    knobs = re.findall('(?m)^([a-z]\\w*) = ', source)
    code = re.sub(r'(?s)""".*?"""|#[^\n]*', '', source)
    # two that get all knobs: a Dataset and a Log
    others = [*inspect.signature(Dataset).parameters, 'wandb_project']
    for name in knobs:
        assert re.search(rf'(?m)^  {name} = .*  # \S', text), name
        is_read = len(re.findall(rf'\b{name}\b', code)) > 1 or name in others
        assert is_read, f"nobody reads {name}"


# ---- numbers and files ---------------------------------------------------------------------------


CONFIG = {'generator': 'mine.pt', 'judge': '', 'dataset': 'arithmetic', 'wandb_project': ''}


def test_runs_are_moved_aside_to_the_first_free_number_and_other_folders_stay():
    for step in range(4):
        log = Log('mine', CONFIG, {'seconds': 50, 'cpu_seconds': 5} if step == 3 else {})
        log.write(step, {'a': 1.5})
        log.write_samples(step, [{'step': 'a column', 'n': np.int64(3)}])
        refused('another run', Log, 'mine', CONFIG, {'seconds': 50})
        log.file.close()                        # and with it the lock
    lines = {name: list(map(json.loads, open(f'{name}/log.jsonl')))
             for name in ('mine-1', 'mine-2', 'mine')}
    steps = {name: [line['step'] for line in lines[name]] for name in lines}
    assert steps == {'mine-1': [0], 'mine-2': [1], 'mine': [2, 3]}
    assert '"step": 3' in open('mine/samples.jsonl').read().splitlines()[1]
    first, resumed = lines['mine']              # a resumed run goes on counting
    assert 0 <= first['seconds'] < 10 and 50 <= resumed['seconds'] < 60
    assert 0 <= first['cpu_seconds'] < 10 and 5 <= resumed['cpu_seconds'] < 15
    write('mine/best.pt', '')
    os.symlink('mine/best.pt', 'link.pt')
    for name in ('mine/best.pt', 'link.pt'):
        for knob in ('judge', 'dataset'):
            refused(f'{name} is in /', Log, os.path.abspath('mine'), CONFIG | {knob: name}, {})
    os.mkdir('theirs')
    assert not common.has_run('theirs') and not common.has_run('nowhere')
    write('theirs/config.json', '{}')
    refused('theirs is no folder of a run', Log, 'theirs', CONFIG, {})


def test_a_file_in_the_place_of_the_folder_is_refused():
    refused('mine.md is no folder of a run', Log, write('mine.md', 'mine'), CONFIG, {})


def test_python_must_not_drop_asserts():
    source = (ROOT / 'common.py').read_text('utf-8')
    with pytest.raises(SystemExit, match='python -O'):
        exec(compile(source, 'common.py', 'exec', optimize=1), {})


def test_a_failed_assert_is_shown_in_one_line_and_a_bug_with_its_traceback(capsys):
    for wrong, is_bug in (("assert 0, 'expected 2'", False), ("open('nowhere')", False),
                          ('1 / 0', True), ('assert 0', True)):
        with pytest.raises(Exception) as caught:
            exec(wrong)
        common.show_error(caught.type, caught.value, caught.tb)
        assert ('Traceback' in capsys.readouterr().err) == is_bug


def test_a_console_without_a_sign_shows_another_one(monkeypatch):
    console = io.TextIOWrapper(io.BytesIO(), encoding='ascii')
    monkeypatch.setattr(sys, 'stdout', console)
    configure(toy_knobs(), [])
    print('caf\u00e9', flush=True)
    assert console.buffer.getvalue() == b'caf?\n'


def test_numbers_go_to_wandb(monkeypatch):
    wandb = unittest.mock.MagicMock()
    monkeypatch.setitem(sys.modules, 'wandb', wandb)
    config = CONFIG | {'wandb_project': 'theirs'}
    Log('mine', config, {}).write(3, {'a': 1.5})
    wandb.init.assert_called_once_with(project='theirs', name='mine', config=config)
    (numbers,), step = wandb.init().log.call_args
    assert numbers['a'] == 1.5 and step == {'step': 3}


def test_products_are_bfloat16_and_casts_of_weights_are_not_kept():
    """If they were, samples would come from weights that have been updated since."""
    layer = torch.nn.Linear(4, 4, bias=False)
    one = torch.ones(1, 4)
    try:
        common.init_device('cpu', 'bfloat16')
        before = layer(one)
        with torch.no_grad():
            layer.weight += 1.0
            change = layer(one) - before
    finally:
        common.init_device('cpu', 'float32')
    assert before.dtype == torch.bfloat16 and layer(one).dtype == torch.float32
    assert (change - 4.0).abs().max() < 0.1


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(value):
    with pytest.raises(AssertionError, match='not finite'):
        common.as_numbers({'kl': 1.0, 'reward': torch.tensor(value)})


VERDICTS = {                # by the goal now, before, and in training; it was 0.3 at the start
    # 2.5 of the errors of one of them
    (0.325, 0.32, 0.34): 'not better than at the start, 0.300 +- 0.028 (docs/data.md: If it does '
                         'not learn)',
    # it fell by chance: training prompts need not gain anything to do better than that
    (0.28, 0.30, 0.30): 'not better than at the start, 0.300 +- 0.028 (docs/data.md: If it does '
                        'not learn)',
    (0.45, 0.445, 0.55): 'better than at the start, but not above the line to beat',
    (0.60, 0.582, 0.65): 'above the line to beat',
    (0.60, 0.578, 0.65): 'above the line to beat; still rising: try a larger --max_iters',
    (0.60, 0.29, 0.65): 'above the line to beat; still rising: try a larger --max_iters',
    (0.40, 0.40, 0.90): 'better than at the start, but not above the line to beat; it has '
                        'memorised, or its generator had: 0.900 on training prompts',
}


@pytest.mark.parametrize('now, before, training', VERDICTS)
def test_the_verdict_says_in_words_whether_a_run_worked(now, before, training):
    """Differences of less than two standard errors, here 0.028, are noise."""
    words = VERDICTS[now, before, training]
    at_start = {'verify': 0.3, 'verify_greedy': 0.5, 'small': 0.4, 'standard_error': 0.01}
    means = {'verify': now, 'small': 0.1, 'standard_error': 0.01}
    progress = Progress('verify', {}, {0: at_start, 10: {'verify': before}, 20: means},
                        (training, 0.0))
    assert progress.verdict() == f'verify {now:.3f}: {words}'
    assert progress.values() == [(0.3, 0), (before, 10), (now, 20)]
    # samples can beat greedy decoding
    at_start |= {'reward': 0.9, 'reward_greedy': 0.2, 'small_greedy': 0.6}
    means['reward'] = 0.9
    progress = Progress('reward', {'small': 1.0}, {0: at_start, 10: means})
    assert progress.verdict() == (
        'reward 0.900: not better than at the start, 0.900 +- 0.028 (docs/data.md: If it does '
        f'not learn) | verify 0.300 -> {now:.3f} (line to beat 0.500) | small 0.400 -> 0.100 (line '
        'to beat 0.600)')
