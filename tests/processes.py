"""Run our scripts in tests: as a fork of the test process, which has torch loaded already, with toy
networks. So a run takes a fraction of a second."""
import atexit
import itertools
import json
import multiprocessing
import os
import pathlib
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types

import pytest
import torch
import torch._dynamo    # optimizers import it, which takes a second: once, not in every run

import data.cups
import data.docstrings
import fill
import model
from pretrain import read_recipe
from run.folder import RunFolder, load_checkpoint

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = pathlib.Path(tempfile.mkdtemp())
FORK = multiprocessing.get_context('fork')
RECIPE = """
n_layer, n_embd, n_head, max_iters, batch_size, dtype = 2, 32, 4, 10, 8, 'float32'
block_size = min(block_size, 66)
"""
# Each run reads its texts anew, so they are few.
FEW_EQUATIONS = """
all_texts = texts

def texts():
    return [pairs[::8] for pairs in all_texts()]
"""
FEW_GAMES = "N_TEXTS = 1000"
FEW_THOUGHTS = "texts.__defaults__ = (600,)"
PROSE = ["The cat sat on the mat, and the dog ran to the old house by the sea.",
         "If the file cannot be read, the call fails with an error that names the missing file.",
         "Return the number of words in a text, or raise an error if it is empty and has no words.",
         "A list is sorted in place, from the smallest to the largest, and then it is returned."]
MARKED = '{"prompt": "%02d+_7=1__", "answer": "%02d+57=123", "level": %d}'
TOY = ['--generator=out/generator_arithmetic.pt', '--judge=out/judge_arithmetic.pt',
       '--group_size=4', '--batch_size=4', '--gradient_accumulation_steps=2', '--max_iters=4',
       '--log_interval=1', '--eval_interval=2', '--eval_prompts=8', '--learning_rate=0.01',
       '--device=cpu', '--dtype=float32']
EQUATIONS = 'out/generator_equations.pt'
KINDS = {
    'fill': ['--rewards={"judge": 1.0, "distinct": 0.3}', '--target_kl=0.01'],
    'marked': ['--dataset=marked.jsonl', '--blank_kind=marked'],
    'passes': ['--dataset=marked.jsonl', '--blank_kind=marked', '--n_fill_steps=3', '--top_p=0.9',
               '--mini_batches=2', '--epochs=2', '--optimizer=muon', '--fill_order=learned'],
    'estimate': ['--n_fill_steps=2', 'config/papers/diffucoder.py', '--kl_type=exact',
                 '--mini_batches=2', '--epochs=2'],
    'causal': [f'--generator={EQUATIONS}', '--blank_kind=answer', '--top_p=0.9', '--kl_beta=0',
               '--rewards={"verify": 1.0, "length": -0.1}', '--epochs=2'],
}


def toy_repository():
    """Copy what git would hold to REPOSITORY, make all recipes small, and train the networks of
    arithmetic by them. Texts that would be downloaded, or take seconds, are toys."""
    atexit.register(shutil.rmtree, REPOSITORY)
    # nor what the commands of the README leave behind
    unwanted = shutil.ignore_patterns('out*', '.*', '__pycache__', 'wandb', 'tests', 'venv',
                                      '*.jsonl', 'mine*')
    shutil.copytree(ROOT, REPOSITORY, ignore=unwanted, dirs_exist_ok=True)
    for path in [*REPOSITORY.glob('config/networks/*.py'),
                 *REPOSITORY.glob('extras/studies/generator_*.py')]:
        path.write_text(path.read_text('utf-8') + RECIPE, 'utf-8')
    few = {'arithmetic': FEW_EQUATIONS, 'cups': FEW_GAMES, 'thoughts': FEW_THOUGHTS}
    for name, more in few.items():
        with open(REPOSITORY / f'data/{name}.py', 'a') as file:
            file.write(more)
    for name, many, few in (('countdown', '* 20', '* 1'), ('guess', '20_000', '1_000')):
        path = REPOSITORY / f'data/{name}.py'
        path.write_text(path.read_text().replace(many, few))
    exec(FEW_GAMES, vars(data.cups))            # other modules import it
    (REPOSITORY / 'out').mkdir()
    texts = [f'{text} {i} {PROSE[2]}' for i in range(20) for text in PROSE]
    (REPOSITORY / data.docstrings.CACHE).write_text(json.dumps(texts))
    (REPOSITORY / 'out/shakespeare.txt').write_text('\n\n'.join(texts))
    equations = [MARKED % (i, i, i) for i in range(99)]
    (REPOSITORY / 'marked.jsonl').write_text('\n'.join(equations))
    os.chdir(REPOSITORY)
    for recipe in ('generator_arithmetic', 'generator_equations', 'judge_arithmetic'):
        path = make_for_run(f'config/networks/{recipe}.py', 'arithmetic')
        os.link(path, f'out/{recipe}.pt')       # a name without a checksum


def make_for_run(recipe, dataset, blank_kind='random'):
    """Make the network of a recipe, if it is not there, as a run with these knobs would make it.
    But this is a fork, so it takes less time. Return its path."""
    path, words = read_recipe(recipe, {'dataset': dataset, 'blank_kind': blank_kind})
    if not os.path.exists(path):
        succeeds('pretrain.py', *words)
    return path


class Run:
    """A script that runs in the background, as one process or as several ranks. before: a function
    that each process calls first."""

    def __init__(self, script, *flags, ranks=1, before=None):
        self.output = tempfile.TemporaryFile('a+b')
        with socket.socket() as probe:
            probe.bind(('127.0.0.1', 0))
            port = probe.getsockname()[1]
        self.ranks = []
        for rank in range(ranks):
            env = {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port), 'RANK': str(rank),
                   'WORLD_SIZE': str(ranks)}
            settings = (self.output, [script, *flags], env, before)
            self.ranks.append(FORK.Process(target=become, args=settings))
            self.ranks[-1].start()

    def text(self):
        self.output.seek(0)
        return self.output.read().decode(errors='replace')

    def wait_for(self, words):
        """Wait until the output has these words."""
        while words not in self.text():
            assert all(process.is_alive() for process in self.ranks), self.text()
            time.sleep(0.01)

    def wait(self):
        """Return the exit code of the first rank, and the output."""
        self.ranks[0].join()
        for process in self.ranks:
            if self.ranks[0].exitcode == 1:     # torchrun ends the others, too
                process.terminate()
            process.join()
        return self.ranks[0].exitcode, self.text()


class Popen(FORK.Process):
    """A fork that stands for a process that a run begins, to make a network."""

    def __init__(self, command, env):
        super().__init__(target=become, args=(None, command[1:], env, None))
        self.start()

    wait = FORK.Process.join


def become(output, argv, env, before):
    """Make this process, a fork, one that runs a script."""
    if output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.stdout = open(1, 'w', closefd=False)
    sys.stderr = open(2, 'w', closefd=False)
    os.environ.update(env)
    sys.argv = argv
    signal.signal(signal.SIGINT, signal.default_int_handler)    # a shell's background ignores it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.modules['pretrain'].subprocess = types.SimpleNamespace(Popen=Popen)
    sys.modules['tiktoken'] = types.SimpleNamespace(get_encoding=lambda name: Bytes)
    atexit._clear()                             # of the test process
    if before:
        before()
    try:
        runpy.run_path(argv[0], run_name='__main__')
    except Exception:
        sys.excepthook(*sys.exc_info())         # a fork does neither this nor the next by itself
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()


def at_step(number, signal_number):
    """Return a function that makes a script send itself a signal when it logs this step."""
    def before():
        log = RunFolder.log

        def interrupt(folder, step, numbers):
            log(folder, step, numbers)
            if step == number:
                os.kill(os.getpid(), signal_number)
        RunFolder.log = interrupt
    return before


def at_moment(n, signal_number):
    """Return a function that makes a script send itself a signal at its n-th moment: before or
    after it samples, updates weights, writes a line, or saves."""
    def before():
        moments = itertools.count(1)

        def moment():
            if next(moments) == n:
                os.kill(os.getpid(), signal_number)

        def watched(function):
            def call(*args, **more):
                moment()
                result = function(*args, **more)
                moment()
                return result
            return call

        for owner, name in ((fill, 'fill'), (sys.modules['write'], 'write'),
                            (model, 'optimizer_step'), (RunFolder, 'log'),
                            (RunFolder, 'log_samples'), (torch, 'save'), (os, 'truncate'),
                            (pathlib.Path, 'replace')):
            setattr(owner, name, watched(getattr(owner, name)))
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


def succeeds(*words, **more):
    """Run a script, which must end well. Return the output."""
    code, text = run(*words, **more)
    assert code == 0, text
    return text


def fails(word, *words, **more):
    """A run must end with an error whose last line has this word, and with code 1."""
    code, text = run(*words, **more)
    assert code == 1 and word in text.strip().splitlines()[-1], text
    return text


def refused(word, function, *args, **more):
    """A call must end with one line that has this word: by fail(), or by an assert."""
    with pytest.raises((SystemExit, AssertionError), match=f'^.*{re.escape(word)}.*$'):
        function(*args, **more)


def write(name, text):
    """Write a file into the folder of this test; return its name."""
    pathlib.Path(name).write_text(text, 'utf-8')
    return name


def weights(folder):
    """Return the weights of a checkpoint, or of that in a run's folder, one vector."""
    model = load_checkpoint(folder)['model']
    return torch.cat([values.flatten() for values in model.values()])


def command(*flags, out='run'):
    """Return the words of a run of GRPO in a folder of this test."""
    return 'train_grpo.py', *TOY, *flags, f'--out_dir={out}'


def train(*flags, out='run', **more):
    """Run GRPO to its end. Return the output."""
    return succeeds(*command(*flags, out=out), **more)


def read_log(folder):
    """Return the lines of a log without times."""
    times = dict.fromkeys(('ms', 'seconds_left', 'seconds', 'cpu_seconds'), 0)
    lines = [json.loads(line) for line in open(f'{folder}/log.jsonl')]
    return [line | {name: 0 for name in times if name in line} for line in lines]


def assert_same(a, b):
    """Two runs have the same log, line by line, and the same weights, bit for bit."""
    assert read_log(a) == read_log(b)
    assert open(f'{a}/samples.jsonl').read() == open(f'{b}/samples.jsonl').read()
    for name in ('ckpt.pt', 'best.pt'):
        assert weights(f'{a}/{name}').equal(weights(f'{b}/{name}'))
