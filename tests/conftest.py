"""What the tests share. All that is written is in folders of pytest. (torch is not imported here,
because the process of pytest-xdist that only hands out the tests executes this file, too.)"""
import os
import sys
from pathlib import Path

import pytest

# A fork inherits neither threads nor a GPU.
os.environ |= {'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': ''}
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


@pytest.fixture(scope='session')
def folder(tmp_path_factory):
    """Return a folder of toy networks, a generator that fills and a causal judge."""
    from runs import CPU, EQUATIONS, finish
    folder = tmp_path_factory.mktemp('networks')
    (folder / 'equations.py').write_text(EQUATIONS)
    for name in ('generator', 'judge'):
        finish('pretrain.py', f'--dataset={folder}/equations.py', *CPU, '--max_iters=20',
               f'config/networks/{name}_smoke.py', f'--out={folder}/{name}.pt')
    return folder


@pytest.fixture(scope='session')
def toy(folder):
    """Return the words of a run of toy networks."""
    from runs import TOY
    return TOY + [f'--dataset={folder}/equations.py', f'--generator={folder}/generator.pt',
                  f'--judge={folder}/judge.pt']


@pytest.fixture(scope='session')
def finished(toy, folder):
    """Return the folder of a finished run, which nobody changes."""
    from runs import train
    train(toy, folder / 'finished', '--eval_interval=2')
    return folder / 'finished'


@pytest.fixture
def file(tmp_path):
    """file('mine.py', text) writes a file and returns its path."""
    def write(name, text):
        (tmp_path / name).write_text(text)
        return f'{tmp_path}/{name}'
    return write


@pytest.fixture
def grpo():
    """Return train_grpo as it was imported. What a run changes is restored."""
    import torch

    from test_grpo import fresh
    yield fresh()
    fresh()
    torch.set_default_dtype(torch.float32)
