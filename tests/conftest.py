"""What all tests share: one thread, and a copy of the repository with toy networks."""
import os
import sys

os.environ['OMP_NUM_THREADS'] = '1'             # a fork must not inherit a pool of threads
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import pytest
import torch

import processes

torch.set_num_threads(1)


@pytest.fixture(scope='session')
def repository(tmp_path_factory):
    """Return the path of a copy of the repository in which all recipes are small, and made."""
    return processes.toy_repository(tmp_path_factory.mktemp('work') / 'copy')


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)
