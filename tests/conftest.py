"""What all tests share: one thread, no services, a copy of the repository with its toy parts."""
import os
import sys

os.environ['OMP_NUM_THREADS'] = '1'             # a fork must not inherit a pool of threads
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import pytest
import torch

import common
import data.dataset
import processes

torch.set_num_threads(1)                        # forks must not inherit a pool of threads


@pytest.fixture(scope='session')
def repository(tmp_path_factory):
    """The path of a copy in which arithmetic and the toy parts are made."""
    folder = processes.copy_repository(tmp_path_factory.mktemp('work') / 'copy')
    for words in processes.PARTS:
        code, text = processes.run(folder, *words)
        assert code == 0, text
    return folder


@pytest.fixture
def here(repository, monkeypatch):
    """The path of that copy; for one test our modules look for files in it."""
    monkeypatch.chdir(repository)
    monkeypatch.setattr(common, 'HOME', repository)
    monkeypatch.setattr(data.dataset, 'HERE', f'{repository}/data')
    return repository


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)
