"""Runs of our scripts, in one way: a fork of the test process, which has torch loaded already, in a
folder that holds a copy of the repository. So a run at toy size takes a fraction of a second."""
import itertools
import multiprocessing
import os
import pathlib
import runpy
import shutil
import signal
import socket
import sys
import time

import pytest
import torch
import torch._dynamo    # optimizers import it, which takes a second: once, not in every run

import common
import data.dataset

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FORK = multiprocessing.get_context('fork')
NUMBERS = itertools.count()

# The parts of all runs: two layers of 32 channels, hardly trained, alike on every machine.
SIZE = '--n_layer=2 --n_embd=32 --n_head=4 --max_iters=40 --batch_size=64 --dtype=float32'
SMALL = f'arithmetic.py {SIZE}'
CAUSAL = f'config/generator_equations.py {SIZE} --max_iters=20'
PARTS = [['data/arithmetic/prepare.py'], ['model.py', *CAUSAL.split()],
         ['model.py', *f'config/generator_{SMALL}'.split()],
         ['judge.py', *f'config/judge_{SMALL}'.split()]]
TOY = [f'--generator_recipe=config/generator_{SMALL}', f'--judge_recipe=config/judge_{SMALL}',
       '--group_size=4', '--batch_size=4', '--gradient_accumulation_steps=2', '--max_iters=4',
       '--eval_interval=2', '--eval_prompts=8', '--learning_rate=0.01', '--device=cpu',
       '--dtype=float32']


def copy_repository(folder):
    """A copy of what git would hold, in a new folder; returns its path."""
    made = shutil.ignore_patterns('out*', '.*', '__pycache__', '*.bin', '*.jsonl', 'meta.json',
                                  '*.pt', '*.png', 'input.txt', 'wandb', 'tests')
    return str(shutil.copytree(ROOT, folder, ignore=made))


class Run:
    """A script that runs in the background, as one process or as several ranks. before: a function
    that each calls first, to change what the script will find."""

    def __init__(self, folder, script, *flags, ranks=1, before=None):
        self.output = pathlib.Path(folder, f'output-{next(NUMBERS)}.txt')
        self.output.touch()
        with socket.socket() as probe:
            probe.bind(('127.0.0.1', 0))
            port = probe.getsockname()[1]
        self.ranks = []
        for rank in range(ranks):
            env = {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port), 'RANK': str(rank),
                   'WORLD_SIZE': str(ranks)}
            how = (self.output, folder, script, flags, env, before)
            self.ranks.append(FORK.Process(target=become, args=how, daemon=True))
            self.ranks[-1].start()

    def text(self):
        return self.output.read_text(errors='replace')

    def wait_for(self, is_so):
        """Waits until a function says True."""
        while not is_so():
            assert all(process.is_alive() for process in self.ranks), self.text()
            time.sleep(0.01)

    def kill(self, number):
        for process in self.ranks:
            os.kill(process.pid, number)

    def wait(self):
        """Exit code, of the first rank, and output. If it fails, the others are ended, as torchrun
        does it."""
        self.ranks[0].join()
        for process in self.ranks:
            if self.ranks[0].exitcode == 1:
                process.terminate()
            process.join()
        return self.ranks[0].exitcode, self.text()


def become(output, folder, script, flags, env, before):
    """Makes this process, a fork, one that runs a script."""
    where = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(where, 1)
    os.dup2(where, 2)
    sys.stdout = open(1, 'w', closefd=False)
    sys.stderr = open(2, 'w', closefd=False)
    os.chdir(folder)
    os.environ.update(env)
    sys.argv = [script, *flags]
    sys.path.insert(0, os.path.dirname(f'{folder}/{script}'))
    signal.signal(signal.SIGINT, signal.default_int_handler)    # a shell's background ignores it
    common.HOME = folder
    data.dataset.HERE = f'{folder}/data'
    if before:
        before()
    runpy.run_path(f'{folder}/{script}', run_name='__main__')


def run(*words, **how):
    """Runs a script to its end: exit code and output."""
    return Run(*words, **how).wait()


def fails(names, *words, **how):
    """A run must end with one line that names what was found, and a code that is not 0."""
    code, text = run(*words, **how)
    last = text.strip().splitlines()[-1]
    assert code == 1 and last.startswith('error: ') and 'Traceback' not in text, text
    assert text.count('\nerror: ') <= 1, text
    assert all(name in last for name in names), last


def refused(names, function, *args, **how):
    """A call must end as fail() does: with one line that names what was found."""
    with pytest.raises(SystemExit) as end:
        function(*args, **how)
    line = str(end.value)
    assert line.startswith('error: ') and '\n' not in line, line
    assert all(name in line for name in names), line


def weights(path):
    """The weights of a checkpoint, one vector."""
    model = torch.load(path, weights_only=True)['model']
    return torch.cat([values.flatten() for values in model.values()])
