"""Run our scripts in tests: as a fork of the test process, which has torch loaded already, in a
folder that holds a copy of the repository. So a run at toy size takes a fraction of a second."""
import atexit
import glob
import itertools
import json
import multiprocessing
import os
import pathlib
import runpy
import shutil
import signal
import socket
import sys
import time
import types

import pytest
import torch
import torch._dynamo    # optimizers import it, which takes a second: once, not in every run

import common
import data.docstrings
import pretrain

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FORK = multiprocessing.get_context('fork')
NUMBERS = itertools.count()
RECIPE = """
n_layer, n_embd, n_head, max_iters, batch_size, dtype = 2, 32, 4, 30, 16, 'float32'
"""
PROSE = ["The cat sat on the mat, and the dog ran to the old house by the sea.",
         "If the file cannot be read, the call fails with an error that names the missing file.",
         "Return the number of words in a text, or raise an error if it is empty and has no words.",
         "A list is sorted in place, from the smallest to the largest, and then it is returned."]
TOY = ['--generator=out/generator_arithmetic.pt', '--judge=out/judge_arithmetic.pt',
       '--group_size=4', '--batch_size=4', '--gradient_accumulation_steps=2', '--max_iters=4',
       '--log_interval=1', '--eval_interval=2', '--eval_prompts=8', '--learning_rate=0.01',
       '--device=cpu', '--dtype=float32']


def toy_repository(folder):
    """Copy what git would hold to a new folder, make all recipes small, and train the networks of
    arithmetic by them; return its path. Texts that would be downloaded, or take seconds, are toys.
    """
    unwanted = shutil.ignore_patterns('out*', '.*', '__pycache__', 'wandb', 'tests')
    shutil.copytree(ROOT, folder, ignore=unwanted)
    for path in glob.glob(f'{folder}/config/[gj][eu]*.py'):     # generator_, judge_
        with open(path, 'a') as file:
            file.write(RECIPE)
    os.mkdir(folder / 'out')
    texts = [f'{text} {i} {PROSE[2]}' for i in range(20) for text in PROSE]
    (folder / data.docstrings.CACHE).write_text(json.dumps(texts))
    (folder / 'out/shakespeare.txt').write_text('\n\n'.join(texts))
    for recipe in ('generator_arithmetic', 'generator_equations', 'judge_arithmetic'):
        make_network(str(folder), recipe, 'arithmetic')
    return str(folder)


def make_network(folder, recipe, dataset):
    code, text = run(folder, 'pretrain.py', f'--dataset={dataset}', f'config/{recipe}.py')
    assert code == 0, text


class Run:
    """A script that runs in the background, as one process or as several ranks. before: a function
    that each process calls first."""

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
            settings = (self.output, folder, script, flags, env, before)
            self.ranks.append(FORK.Process(target=become, args=settings))
            self.ranks[-1].start()

    def text(self):
        return self.output.read_text(errors='replace')

    def wait_for(self, condition):
        """Wait until a function returns True."""
        while not condition():
            assert all(process.is_alive() for process in self.ranks), self.text()
            time.sleep(0.01)

    def kill(self, number):
        for process in self.ranks:
            os.kill(process.pid, number)

    def wait(self):
        """Return the exit code of the first rank, and the output."""
        self.ranks[0].join()
        for process in self.ranks:
            if self.ranks[0].exitcode == 1:     # torchrun ends the others, too
                process.terminate()
            process.join()
        return self.ranks[0].exitcode, self.text()


def become(output, folder, script, flags, env, before):
    """Make this process, a fork, one that runs a script."""
    number = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(number, 1)
    os.dup2(number, 2)
    sys.stdout = open(1, 'w', closefd=False)
    sys.stderr = open(2, 'w', closefd=False)
    os.chdir(folder)
    os.environ.update(env)
    sys.argv = [script, *flags]
    signal.signal(signal.SIGINT, signal.default_int_handler)    # a shell's background ignores it
    sys.modules['tiktoken'] = types.SimpleNamespace(get_encoding=lambda name: Bytes)
    atexit._clear()                             # of the test process
    if before:
        before()
    try:
        runpy.run_path(script, run_name='__main__')
    finally:
        atexit._run_exitfuncs()                 # a fork does not do this by itself


def interrupt_at_step(number):
    """Return a function that makes a script interrupt itself when it logs this step."""
    def before():
        write = common.Log.write

        def interrupt(log, step, line):
            write(log, step, line)
            if step == number:
                os.kill(os.getpid(), signal.SIGINT)
        common.Log.write = interrupt
    return before


class Bytes:
    """A stand-in for the byte pairs of GPT-2, which would be downloaded: each byte is a token."""
    eot_token = 256

    def encode_ordinary(text):
        return list(text.encode())

    def decode_tokens_bytes(ids):
        return [bytes([i]) for i in ids]


def run(*words, **more):
    """Run a script to its end. Return the exit code and the output."""
    return Run(*words, **more).wait()


def fails(words_expected, *words, **more):
    """A run must end with an error whose last line has these words, and with code 1."""
    code, text = run(*words, **more)
    last = text.strip().splitlines()[-1]
    assert code == 1 and all(word in last for word in words_expected), text
    return text


def refused(words_expected, function, *args, **more):
    """A call must end as fail() does, with one line that has these words."""
    with pytest.raises(SystemExit) as end:
        function(*args, **more)
    line = str(end.value)
    assert line.startswith('error: ') and '\n' not in line, line
    assert all(word in line for word in words_expected), line


def weights(path):
    """Return the weights of a checkpoint, one vector."""
    model = torch.load(path, weights_only=True)['model']
    return torch.cat([values.flatten() for values in model.values()])
