"""Each command at the head of an experiment, a paper or a plugin runs for a step, with tiny random
networks and some records of its dataset. (Networks of the hub have no part in this: test_hf.py.)"""
import functools
import re
import runpy
import shlex
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import pretrain
from model import GPT
from plumbing.configurator import configure, plugins_of
from plumbing.datasets import READERS, load
from plumbing.networks import paths_of, save_network
from plumbing.process import stop
from runs import CPU, ROOT, log_of

pytestmark = pytest.mark.xdist_group('datasets')        # so only one process loads them
FILES = [str(path.relative_to(ROOT)) for folder in ('config', 'config/papers', 'plugins')
         for path in sorted((ROOT / folder).glob('*.py'))]
SHORT = ('--max_iters=1 --warmup_iters=0 --group_size=4 --batch_size=2 --eval_prompts=2 '
         '--gradient_accumulation_steps=1 --log_interval=1').split()


def head_of(path):
    """Return the comment with which a file begins, or its docstring, without #."""
    text = Path(path).read_text()
    if text.startswith('"""'):
        return text.split('"""')[1]
    lines = re.match('(#.*\n)+', text)
    return re.sub('(?m)^# ?', '', lines[0]) if lines else ''


def commands_of(path):
    """Return the words of each command `python train_grpo.py ...` at the head of a file."""
    found = re.findall(r'python train_grpo\.py((?: *\\\n| +(?!&&)\S+)+)', head_of(path))
    return [shlex.split(words.replace('\\\n', ' '), comments=True) for words in found]


COMMANDS = {}                   # {command: (the file that has it first, its words)}
for path in FILES:
    for words in commands_of(path):
        if '...' not in words:
            COMMANDS.setdefault(' '.join(words), (path, words))


def read_few(path):
    """Execute the file of a dataset. The 100,000 records of one would take three seconds."""
    functions = runpy.run_path(path)
    if path == 'data/thoughts.py':
        functions['texts'].__defaults__ = (200,)
    return functions


@functools.cache
def few_records(dataset):
    """Return a Dataset with 200 records to learn from, and 20 that are held out."""
    with patch.dict(READERS, {'.py': read_few}):
        data = load(dataset)
    return data._replace(train=data.train[:200], held_out=data.held_out[:20])


def toy_networks(script, folder):
    """Make a random network for each one that the globals of train_grpo.py ask for. Return flags
    that name them."""
    torch.manual_seed(0)
    with patch.object(pretrain, 'dataset', script['dataset']):
        _, task = pretrain.new_network()        # for its characters
    flags = []
    for role, path in paths_of(script).items():
        if not path or role == 'reference' and not script['reference']:
            continue
        kind = 'causal' if role == 'judge' else script['Task'].kind
        if role == 'judge' and ('classifier' in path or 'labels' in path):
            kind = 'classifier'
        network = GPT(task.tok.vocab_size, task.length + 512, 1, 2, 8, kind)
        network.tok = task.tok
        for p in network.parameters():          # of a new one the logits are 0
            torch.nn.init.normal_(p, std=0.5)
        name = 'generator' if role == 'policy' else role
        save_network(f'{folder}/{name}.pt', network)
        flags.append(f'--{name}={folder}/{name}.pt')
    return flags


@pytest.mark.parametrize('command', COMMANDS)
def test_the_command_at_the_head_of_a_file_runs(command, grpo, tmp_path, monkeypatch, capfd):
    path, words = COMMANDS[command]
    for code, file in re.findall(r'echo "(.*)" > (\w+\.py)', head_of(path)):
        (tmp_path / file).write_text(code)
        words = [str(tmp_path / file) if word == file else word for word in words]
    monkeypatch.setattr('plumbing.datasets.load', few_records)
    monkeypatch.setattr(stop, 'listen', lambda: None)
    if 'plugins/hf.py' in plugins_of([word for word in words if word[:2] != '--']):
        pytest.skip('its networks come from a hub')
    script = dict(vars(grpo))
    configure(script, words)
    words = [*words, *toy_networks(script, tmp_path), *SHORT, *CPU, f'--out_dir={tmp_path}/run']
    monkeypatch.setattr('sys.argv', ['train_grpo.py', *words])
    grpo.main()
    _, step, end = log_of(tmp_path / 'run')
    assert 'loss' in step and 'line to beat' in end
    assert 'above the line to beat' in capfd.readouterr().out


@pytest.mark.parametrize('path', [path for path in FILES if 'grpo_' in path or 'papers' in path])
def test_each_experiment_and_each_paper_has_a_command(path):
    assert commands_of(path) or path == 'config/grpo_config.py' or path == 'config/grpo_smoke.py'
