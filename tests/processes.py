"""Runs of our scripts, in one way: a fork of the test process, which has torch loaded already, in a
folder that holds a copy of the repository. So a run at toy size takes a fraction of a second."""
import os
import runpy
import shutil
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass

import torch

import common
import data.dataset

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The parts of all runs: two layers of 32 channels, hardly trained.
SMALL = 'arithmetic.py --n_layer=2 --n_embd=32 --n_head=4 --max_iters=40 --batch_size=64'
TOY = [f'--generator_recipe=config/generator_{SMALL}', f'--judge_recipe=config/judge_{SMALL}',
       '--group_size=4', '--batch_size=4', '--gradient_accumulation_steps=2', '--max_iters=4',
       '--eval_interval=2', '--eval_prompts=8', '--learning_rate=0.01', '--device=cpu']


def copy_repository(folder):
    """A copy of what git would hold, in a new folder; returns its path."""
    made = shutil.ignore_patterns('out*', '.*', '__pycache__', '*.bin', '*.jsonl', 'meta.json',
                                  '*.pt', '*.png', 'input.txt', 'failures', 'roman', 'wandb')
    return str(shutil.copytree(ROOT, folder, ignore=made))


@dataclass
class Run:
    """Processes of one command that go on in the background."""
    pids: list
    folder: str
    output: str             # path of the file that takes stdout and stderr

    def text(self):
        with open(self.output, encoding='utf-8', errors='replace') as file:
            return file.read()

    def wait_for(self, sign, seconds=60):
        """Waits until the output has this text."""
        end = time.time() + seconds
        while sign not in self.text():
            assert time.time() < end, f"no {sign!r} in:\n{self.text()}"
            time.sleep(0.01)

    def kill(self, number=signal.SIGKILL):
        for pid in self.pids:
            os.kill(pid, number)

    def wait(self):
        """Exit code (of the first rank) and output."""
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self.pids]
        return codes[0], self.text()


def start(folder, script, *flags, ranks=1, before=None, **env):
    """Starts a script in a folder. before: a function that the process calls first; it may return
    another one, to be called last."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        env['MASTER_PORT'] = str(probe.getsockname()[1])
    start.number = getattr(start, 'number', 0) + 1
    output = f'{folder}/output-{start.number}.txt'
    open(output, 'w').close()
    pids = []
    for rank in range(ranks):
        env |= {'RANK': str(rank), 'LOCAL_RANK': str(rank), 'WORLD_SIZE': str(ranks),
                'MASTER_ADDR': '127.0.0.1'}
        pid = os.fork()
        if pid == 0:
            become(folder, script, flags, env, output, before)
        pids.append(pid)
    return Run(pids, folder, output)


def become(folder, script, flags, env, output, before):
    """Turns this process, a fork, into a run; does not return."""
    code = 0
    try:
        where = os.open(output, os.O_WRONLY | os.O_APPEND)
        os.dup2(where, 1)
        os.dup2(where, 2)
        sys.stdout = open(1, 'w', closefd=False)
        sys.stderr = open(2, 'w', closefd=False)
        os.chdir(folder)
        os.environ.update(env)
        sys.argv = [script, *flags]
        common.HOME = folder
        data.dataset.HERE = f'{folder}/data'
        after = before and before()
        runpy.run_path(f'{folder}/{script}', run_name='__main__')
    except SystemExit as e:
        if after:
            after()
        code = e.code or 0
        if isinstance(code, str):
            sys.stdout.flush()
            print(code, file=sys.stderr, flush=True)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    os._exit(code)


def run(folder, script, *flags, **how):
    """Runs a script to its end: exit code and output."""
    return start(folder, script, *flags, **how).wait()


def fails(folder, script, *flags, names, **how):
    """A run must end with one line that names what was found, and a code that is not 0."""
    code, text = run(folder, script, *flags, **how)
    assert code == 1, text
    last = text.strip().splitlines()[-1]
    assert last.startswith('error: ') and 'Traceback' not in text, text
    for name in names:
        assert name in last, last


def weights(path):
    """The weights of a checkpoint, one vector."""
    model = torch.load(path, weights_only=True)['model']
    return torch.cat([values.flatten() for values in model.values()])
