"""What all tests share: one thread, and a copy of the repository with toy networks."""
import gc
import os
import pathlib
import sys

os.environ['OMP_NUM_THREADS'] = '1'             # a fork must not inherit a pool of threads
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import pytest
import torch

import processes
from dataset import read_texts

torch.set_num_threads(1)


@pytest.fixture(scope='session', autouse=True)
def repository():
    processes.toy_repository()
    # Forks would look through what was imported again and again: a sixth of the time of the suite.
    gc.freeze()


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Each test stands in a folder of its own, with links to what is in the repository."""
    monkeypatch.chdir(tmp_path)
    for path in processes.REPOSITORY.iterdir():
        if path.name != 'run':                  # tests give this name to the folder of a run
            os.symlink(path, path.name)
    read_texts.cache_clear()                    # other tests have files of the same names
    torch.manual_seed(0)
