"""What all tests share: one thread, no services, a copy of the repository with its toy parts."""
import os
import signal
import sys

os.environ['OMP_NUM_THREADS'] = '1'             # for what is started
os.environ['WANDB_MODE'] = 'disabled'
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)),
                os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

import pytest
import torch

import processes

torch.set_num_threads(1)                        # forks must not inherit a pool of threads


@pytest.fixture(scope='session')
def repository(tmp_path_factory):
    """The path of a copy in which arithmetic and the toy parts are made."""
    folder = processes.copy_repository(tmp_path_factory.mktemp('work') / 'copy')
    code, text = processes.run(folder, 'data/arithmetic/prepare.py')
    assert code == 0, text
    for script, recipe in (('model.py', 'generator'), ('judge.py', 'judge')):
        words = f'config/{recipe}_{processes.SMALL}'.split()
        code, text = processes.run(folder, script, *words, '--device=cpu')
        assert code == 0, text
    return folder


@pytest.fixture(autouse=True)
def leave_no_trace():
    """Scripts that ran in this process change signals and the default type."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    torch.set_default_dtype(torch.float32)
    for number, handler in handlers.items():
        signal.signal(number, handler)
