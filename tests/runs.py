"""Runs of scripts. run() starts one as a fork of this process, which has imported torch already,
so a run of toy networks takes a third of a second."""
import json
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Each run imports these two, which takes a second: once here, and not in every run.
import filelock  # noqa: F401
import torch
import torch._dynamo

from data import arithmetic

ROOT = Path(__file__).resolve().parent.parent
torch.set_num_threads(1)
# There is no GPU, and each seed for it would format a stack for its warning.
torch.cuda.manual_seed_all = torch.xpu.manual_seed_all = torch.mtia.manual_seed_all = (
    lambda seed: None)
# Runs import the same modules again and again.
sys.dont_write_bytecode, sys.pycache_prefix = False, tempfile.mkdtemp()
FORK = multiprocessing.get_context('fork')
# A dataset: each twentieth equation, spelt out, because that takes a fiftieth of the time.
EQUATIONS = f"""
import json
from data.arithmetic import verify

def texts():
    return json.loads({json.dumps([pairs[::20] for pairs in arithmetic.texts()])!r})
"""
CPU = ['--device=cpu', '--dtype=float32']
TOY = ['train_grpo.py', 'config/grpo_smoke.py', '--group_size=4', '--batch_size=4', '--max_iters=6',
       '--log_interval=2', '--eval_interval=3', '--eval_prompts=8', *CPU]


class Process:
    """A script that runs in the background, as one process or as several ranks."""

    def __init__(self, *words, ranks=1):
        self.files = [tempfile.TemporaryFile() for _ in ('stdout', 'stderr')]
        with socket.create_server(('127.0.0.1', 0)) as probe:
            port = probe.getsockname()[1]
        env = {'WORLD_SIZE': str(ranks), 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port)}
        self.ranks = []
        for rank in range(ranks):
            env['RANK'] = str(rank)             # as torchrun sets them
            self.ranks.append(FORK.Process(target=become, args=(words, self.files, env)))
            self.ranks[-1].start()

    def printed(self):
        """Return what was printed to stdout and stderr."""
        return [os.pread(file.fileno(), 1_000_000, 0).decode() for file in self.files]

    def wait_for(self, words):
        """Wait until the script has printed these words."""
        while words not in self.printed()[0]:
            assert self.ranks[0].is_alive(), self.printed()
            time.sleep(0.002)

    def wait(self):
        """Return the exit code of the first rank, and what was printed."""
        for process in self.ranks:
            process.join(180)
            process.kill()
        return self.ranks[0].exitcode, *self.printed()


class Child:
    """What subprocess.Popen is to a script that starts another one, as a fork."""

    def __init__(self, words, stdout, stderr, env):
        self.stdout = None
        if stdout == subprocess.PIPE:
            end, start = os.pipe()
            self.stdout, stdout = open(end), open(start, 'w')
        files = stdout, stdout if stderr == subprocess.STDOUT else stderr
        self.process = FORK.Process(target=self.begin, args=(words, files, env))
        self.process.start()
        self.terminate, self.kill = self.process.terminate, self.process.kill
        if self.stdout:
            stdout.close()                      # only the child writes

    def begin(self, words, files, env):
        if self.stdout:
            self.stdout.close()                 # and only the parent reads
        become(words, files, env)

    def poll(self):
        return self.process.exitcode


def popen(command, stdout=None, stderr=None, env=None, real=subprocess.Popen, **how):
    """Start a script as a fork, and any other command as subprocess.Popen does."""
    if command[1] in ('train_grpo.py', 'pretrain.py'):
        return Child(command[1:], stdout, stderr or open(2, 'w', closefd=False), env or {})
    return real(command, stdout=stdout, stderr=stderr, env=env, **how)


def check_output(command, text, real=subprocess.check_output):
    """Return the records that another process reads, for extras/check.py. They can be other ones
    only if a set is there; else it takes a fifth of the time to read them here once more."""
    from plumbing.datasets import load, path_of
    path = command[-1]
    if '{*' in path_of(path).read_text():
        return real(command, text=text)
    return f'{load.__wrapped__(path)[:2]!a}\n'


def become(words, files, env):
    """Make this process, a fork, one that runs a script, as if it had just begun."""
    for number, file in enumerate(files, 1):
        os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = open(1, 'w', closefd=False), open(2, 'w', closefd=False)
    os.environ.update(env)
    sys.argv = list(words)
    subprocess.Popen, subprocess.check_output = popen, check_output
    signal.signal(signal.SIGINT, signal.default_int_handler)    # also if pytest ignores them
    again = {path.stem for path in ROOT.glob('*.py')} | {'plumbing', 'wandb'}
    for name in [*sys.modules]:
        if name.partition('.')[0] in again:
            del sys.modules[name]
    try:
        runpy.run_path(words[0], run_name='__main__')
    except (Exception, KeyboardInterrupt):
        sys.excepthook(*sys.exc_info())         # a fork does not
        sys.exit(1)


def run(*words, **more):
    return Process(*words, **more).wait()


def finish(*words, **more):
    """Run a script to its end. Return what it printed."""
    code, text, error = run(*words, **more)
    assert code == 0, error
    return text


def train(words, out, *more, **how):
    return finish(*words, f'--out_dir={out}', *more, **how)


def log_of(out):
    """Return the lines of a log without times, which differ from run to run."""
    lines = [json.loads(line) for line in open(out / 'log.jsonl')]
    return [{name: x for name, x in line.items() if name.split('/')[0] not in ('ms', 'time')}
            for line in lines]


def checkpoint_of(out, name='ckpt.pt'):
    return torch.load(out / name, weights_only=True)


def assert_same(a, b):
    """Two runs have the same log, samples, weights and moments, bit for bit."""
    assert log_of(a) == log_of(b)
    assert (a / 'samples.jsonl').read_text() == (b / 'samples.jsonl').read_text()
    a, b = checkpoint_of(a), checkpoint_of(b)
    for name in ('step', 'line', 'state', 'model', 'optimizers'):
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=0)
