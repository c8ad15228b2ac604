# ------------------------------------------------------------------------------------------------
# the system: the real scripts at toy size, stopped, killed, resumed, spread over ranks, ill-treated
#
#     python -m pytest test_grpo.py                      # everything but the long tests
#     LONG=1 python -m pytest test_grpo.py -k long -s    # 40 kills, 30 steps, 2,000 steps: minutes
import contextlib
import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch

HERE = pathlib.Path(__file__).resolve().parent
long = pytest.mark.skipif(not os.environ.get('LONG'), reason="minutes; run with LONG=1")

# Importing torch takes longer than a toy run, so one process imports it and forks for each run.
# A nanny waits for each run and writes down how it ended, also when that was SIGKILL.
SERVER = '''
import json, os, resource, runpy, signal, sys, traceback
import numpy, torch, torch._dynamo, torch.distributed
torch.set_num_threads(1)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def go(job):
    os.setpgid(0, 0)
    for fd, name in ((1, 'out'), (2, 'err')):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
    os.chdir(job['folder'])
    os.environ.update(job['env'])
    if job['fsize']:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job['fsize'], job['fsize']))
    sys.argv = job['argv']
    sys.path[:0] = [*job['path'], job['folder']]
    code = 0
    try:
        runpy.run_path(job['argv'][0], run_name='__main__')
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
        if not isinstance(e.code, (int, type(None))):
            print(e.code, file=sys.stderr)
    except BaseException as e:
        traceback.print_exc()
        code = 130 if isinstance(e, KeyboardInterrupt) else 1
    sys.exit(code)
print('ready', flush=True)
for text in sys.stdin:
    job = json.loads(text)
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pid = os.fork()
        if pid == 0:
            go(job)
        for name, value in (('pid', pid), ('rc', None)):
            if value is None:
                value = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with open(job[name] + '.tmp', 'w') as f:
                f.write(str(value))
            os.rename(job[name] + '.tmp', job[name])
        os._exit(0)
'''


def until(ready, seconds, what):
    """ready()'s first true value, asked for at most so many seconds."""
    end = time.time() + seconds
    while time.time() < end:
        value = ready()
        if value:
            return value
        time.sleep(0.002)
    raise AssertionError(f"waited {seconds} s for {what}")


class Job:
    """A script running in a process of its own."""

    def __init__(self, toy, argv, folder, env, fsize, path):
        self.base = toy.scratch / f'job{len(toy.jobs)}'
        toy.jobs.append(self)
        self.argv = [str(a) for a in argv]
        names = {name: f'{self.base}.{name}' for name in ('out', 'err', 'pid', 'rc')}
        job = {**names, 'argv': self.argv, 'folder': str(folder), 'fsize': fsize,
               'env': {key: str(value) for key, value in env.items()},
               'path': [str(p) for p in path]}
        toy.server.stdin.write(json.dumps(job) + '\n')
        toy.server.stdin.flush()

    def text(self, name):
        path = pathlib.Path(f'{self.base}.{name}')
        return path.read_text() if path.exists() else ''

    out = property(lambda self: self.text('out'))
    err = property(lambda self: self.text('err'))
    ended = property(lambda self: bool(self.text('rc')))

    def send(self, number, group=False):
        """Sends a signal, unless the process has ended; to its children too, as Ctrl-C does."""
        pid = int(until(lambda: self.text('pid'), 10, "a process"))
        with contextlib.suppress(ProcessLookupError):
            if not self.ended:
                (os.killpg if group else os.kill)(pid, number)
        return self

    def wait(self, seconds=60):
        """The exit code, negative for a signal."""
        try:
            return int(until(lambda: self.text('rc'), seconds, f"the end of {self.argv}"))
        except AssertionError:
            self.send(signal.SIGKILL)
            raise

    def good(self):
        """Waits; asserts that all went well."""
        assert self.wait() == 0, f"{self.argv}\n{self.out[-2000:]}\n{self.err[-4000:]}"
        return self

    def refused(self, *words):
        """Waits; asserts the one clear line that a user's mistake ends with."""
        code, lines = self.wait(), self.err.strip().splitlines()
        assert code == 1 and len(lines) == 1 and lines[0].startswith('error: '), \
            f"{self.argv} ended with {code}:\n{self.err}"
        assert len(lines[0]) < 600 and all(word in lines[0] for word in words), \
            f"{words} not all in: {lines[0]}"
        return self


TOY = '''# a run of seconds
generator_checkpoint = 'toy/generator.pt'
judge_checkpoint = 'toy/judge.pt'
batch_size = 4
group_size = 4
max_iters = 12
lr_decay_iters = 12
warmup_iters = 2
eval_interval = 4
eval_prompts = 16
save_interval = 4
sample_interval = 0
blank_low = 0.1
blank_high = 0.9
device = 'cpu'
'''
SMALL = '''n_layer = 1
n_head = 2
n_embd = 16
batch_size = 32
max_iters = 10
eval_interval = 10
warmup_iters = 2
device = 'cpu'
'''


class Toy:
    """A copy of the repository with prepared data, tiny models, and a server of processes."""

    def __init__(self, scratch):
        self.scratch, self.jobs, self.repo, self.count = scratch, [], scratch / 'repo', 0
        env = {key: value for key, value in os.environ.items() if not key.startswith('WANDB')}
        self.server = subprocess.Popen([sys.executable, '-c', SERVER], text=True, env={
            **env, 'OMP_NUM_THREADS': '1'}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.server.stdout.readline() == 'ready\n'
        shutil.copytree(HERE, self.repo, ignore=shutil.ignore_patterns(
            '.git', 'out*', '*.bin', 'meta.json', '__pycache__', 'wandb', '.pytest*'))
        (self.repo / 'config/toy.py').write_text(TOY)
        for name in ('generator_toy', 'judge_toy'):
            (self.repo / f'config/{name}.py').write_text(SMALL)
        self.run('data/arithmetic/prepare.py').good()
        for script, *flags in (('model', '--out=toy/generator.pt'),
                               ('model', '--out=toy/causal.pt', '--mode=causal'),
                               ('judge', '--out=toy/judge.pt')):
            self.run(f'{script}.py', 'config/judge_toy.py', *flags).good()

    def run(self, *argv, folder=None, fsize=0, path=(), **env):
        return Job(self, argv, folder or self.repo, env, fsize, path)

    def new(self, name='run'):
        """A fresh folder's name."""
        self.count += 1
        return self.scratch / f'{name}{self.count}'

    def train(self, out, *flags, **how):
        return self.run('train_grpo.py', 'config/toy.py', f'--out_dir={out}', *flags, **how)

    def ranks(self, out, *flags, world=2, **how):
        """The same on several ranks, as torchrun would start it."""
        with socket.socket() as s:
            s.bind(('127.0.0.1', 0))
            port = s.getsockname()[1]
        return [self.train(out, *flags, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world,
                           MASTER_ADDR='127.0.0.1', MASTER_PORT=port, **how)
                for rank in range(world)]

    def config(self, text):
        """A config file with this text."""
        path = self.new('config').with_suffix('.py')
        path.write_text(text)
        return path

    def close(self):
        for job in self.jobs:
            if not job.ended:
                job.send(signal.SIGKILL, group=True)
        self.server.stdin.close()
        self.server.wait()


@pytest.fixture(scope='module')
def toy(tmp_path_factory):
    toy = Toy(tmp_path_factory.mktemp('system'))
    yield toy
    toy.close()


def checkpoint(out, name='ckpt.pt'):
    return torch.load(f'{out}/{name}', weights_only=True)


def log_lines(out):
    """The log without times."""
    with open(f'{out}/log.jsonl') as f:
        lines = [json.loads(text) for text in f]
    return [{key: value for key, value in line.items()
             if not key.startswith('ms_') and key != 'completions_per_s'} for line in lines]


def bits(value):
    """Anything out of a checkpoint, in a form that is equal only if every bit is."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(v) for v in value]
    return repr(value)


def state(out, name='ckpt.pt'):
    """All that a run computed: weights, optimizers, step, best score; bit by bit."""
    return {key: bits(value) for key, value in checkpoint(out, name).items() if key != 'config'}


def weights_differ(a, b):
    """The largest difference between the weights of two runs."""
    a, b = (checkpoint(out)['model'] for out in (a, b))
    return max((a[key].double() - b[key].double()).abs().max().item() for key in a)


def files(folder):
    """Every file below a folder, with its bytes; caches of Python aside."""
    return {str(path.relative_to(folder)): path.read_bytes()
            for path in pathlib.Path(folder).rglob('*')
            if path.is_file() and '__pycache__' not in path.parts}


VARIANTS = {
    'fill': ['--gradient_accumulation_steps=2', '--kl_beta=0'],
    'causal': ['--mode=causal', '--blank_kind=suffix', '--generator_checkpoint=toy/causal.pt',
               '--inner_updates=2', '--mini_batches=2', '--gradient_accumulation_steps=2',
               '--target_kl=0.001', '--adv_norm=std', '--top_p=0.9']}


def killed_at(job, out, line, delay=0.0):
    """Sends SIGKILL when the log holds so many lines, and a moment later."""
    log = pathlib.Path(out) / 'log.jsonl'
    until(lambda: job.ended or log.exists() and log.read_text().count('\n') >= line, 60, "the log")
    time.sleep(delay)
    return job.send(signal.SIGKILL).wait()


# ------------------------------------------------------------------------------------------------
# exact resume

def straight_or_not(toy, flags, steps, first, lines):
    """A run in one piece, in two, and killed at log lines; asserts that nobody can tell."""
    knobs = [*flags, f'--lr_decay_iters={steps}', f'--max_iters={steps}']
    straight, two, killed = toy.new(), toy.new(), toy.new()
    jobs = [toy.train(straight, *knobs), toy.train(two, *knobs[:-1], f'--max_iters={first}')]
    jobs[0].good(), jobs[1].good()
    assert checkpoint(two)['step'] == first
    toy.train(two, *knobs, '--resume=True').good()
    for i, line in enumerate(lines):
        code = killed_at(toy.train(killed, *knobs, f'--resume={i > 0}'), killed, line,
                         random.random() * 0.02)
        assert code in (-signal.SIGKILL, 0)
    toy.train(killed, *knobs, '--resume=True').good()
    for out in (two, killed):
        assert state(out) == state(straight)
        assert state(out, 'best.pt') == state(straight, 'best.pt')
        assert log_lines(out) == log_lines(straight)
    seen = [(line['step'], 'loss' in line) for line in log_lines(straight)]
    assert seen == [(step, kind) for step in range(steps + 1) for kind in (False, True)
                    if (step % 4 == 0 and not kind) or (kind and step < steps)]


@pytest.mark.parametrize('variant', VARIANTS)
def test_a_run_in_two_pieces_and_one_that_was_killed_end_like_one_in_one_piece(toy, variant):
    straight_or_not(toy, VARIANTS[variant], 12, 5, [random.randint(8, 9), random.randint(8, 14)])


@long
@pytest.mark.parametrize('variant', VARIANTS)
def test_long_thirty_steps_are_ten_and_twenty_are_any_three_pieces_after_kills(toy, variant):
    for trial in range(5):
        moments = sorted(random.sample(range(8, 37), 2))
        straight_or_not(toy, VARIANTS[variant], 32, 10, moments)
        print(f"\n{variant}: 32 steps = 10 + 22 = killed at log lines {moments}: bit-identical")


def killed_often(toy, kills):
    """SIGKILL at random moments of a run that saves at every step; every newest checkpoint
    must load and be of a step that the log has reached. Returns how far the run got."""
    out = toy.new()
    steps, knobs = [], ['--save_interval=1', '--max_iters=100000', '--lr_decay_iters=100000']
    for i in range(kills):
        job = toy.train(out, *knobs, f'--resume={i > 0}')
        before = checkpoint(out)['step'] if i else 0
        until(lambda: job.ended or 'step ' in job.out.split('checks')[-1], 60, "the loop")
        until(lambda: i or job.ended or (out / 'ckpt.pt').exists(), 60, "a checkpoint")
        time.sleep(random.random() * 0.3)
        assert job.send(signal.SIGKILL).wait() == -signal.SIGKILL, job.err
        found = checkpoint(out)                                     # raises if it is not whole
        assert before <= found['step'] <= log_lines_torn(out)[-1]['step'] + 1
        assert all(p.isfinite().all() for p in found['model'].values())
        steps.append(found['step'])
    assert steps == sorted(steps) and steps[-1] > kills
    toy.train(out, *knobs[:1], f'--max_iters={steps[-1] + 2}', knobs[-1], '--resume=True').good()
    assert sorted(p.name for p in out.iterdir()) == ['best.pt', 'ckpt.pt', 'config.json',
                                                      'log.jsonl']
    return steps


def log_lines_torn(out):
    """The whole lines of a log whose last one may be torn."""
    text = (pathlib.Path(out) / 'log.jsonl').read_text()
    return [json.loads(line) for line in text[:text.rfind('\n') + 1].splitlines()]


def test_after_sigkill_at_random_moments_the_newest_checkpoint_loads(toy):
    killed_often(toy, 4)


@long
def test_long_after_sigkill_at_forty_random_moments_the_newest_checkpoint_loads(toy):
    steps = killed_often(toy, 40)
    print(f"\n40 kills, 40 newest checkpoints loaded; the run got to step {steps[-1]}")


def test_two_runs_of_one_command_are_equal_and_looking_saving_or_logging_changes_nothing(toy):
    outs = [toy.new() for _ in range(4)]
    jobs = [toy.train(outs[0]), toy.train(outs[1]),
            toy.train(outs[2], '--eval_interval=0', '--save_interval=0', '--log_interval=100'),
            toy.train(outs[3], '--eval_interval=1', '--save_interval=1', '--sample_interval=1',
                      '--eval_prompts=7', '--judge_batch_size=0')]
    for job in jobs:
        job.good()
    assert state(outs[0]) == state(outs[1]) and log_lines(outs[0]) == log_lines(outs[1])
    for other in outs[2:]:
        for key in ('model', 'optimizers', 'step'):
            assert state(other)[key] == state(outs[0])[key]
    training = [line for line in log_lines(outs[0]) if 'loss' in line]
    assert training == [line for line in log_lines(outs[3]) if 'loss' in line]
    assert len(training) == 12 and checkpoint(outs[0])['step'] == 12
    start = torch.load(toy.repo / 'toy/generator.pt', weights_only=True)['model']
    assert bits(start) != bits(checkpoint(outs[0])['model'])            # something was learned


def test_the_choice_of_the_matrix_library_does_not_depend_on_how_busy_the_machine_is(monkeypatch):
    """It once did, by a stopwatch: two runs of one command could differ in the last bits."""
    from model import quick_products
    before, chosen = torch.get_float32_matmul_precision(), []
    for slow in ('highest', 'medium'):
        now = [0.0]

        def clock():
            now[0] += 1.0 if torch.get_float32_matmul_precision() == slow else 0.01
            return now[0]
        monkeypatch.setattr(time, 'perf_counter', clock)
        quick_products()
        chosen.append(torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision(before)
    assert chosen[0] == chosen[1]


# ------------------------------------------------------------------------------------------------
# ranks and micro-steps

RECORD = '''
import json, os
def record(prompts, completions):
    with open(os.environ['RECORD'] + os.environ.get('RANK', '0'), 'a') as f:
        f.write(json.dumps([prompts, completions]) + '\\n')
    return [float(sum(map(int, filter(str.isdecimal, c)))) / 100 for c in completions]
rewards = {'judge': 1.0, 'record': 0.5}
'''


def spread(toy, flags):
    """5 steps of 8 micro-steps as 1 process x 8, 1 x 1 of eight times the batch, 2 ranks x 4;
    returns their folders after asserting that all took the same completions."""
    outs, record = [toy.new() for _ in range(3)], toy.config(RECORD)
    flags = [record, '--max_iters=5', '--eval_interval=0', '--kl_beta=0.1', *flags]
    small, large = [['--batch_size=3', '--gradient_accumulation_steps=8'],
                    ['--batch_size=24', '--gradient_accumulation_steps=1']]
    jobs = [toy.train(outs[0], *flags, *small, RECORD=f'{outs[0]}-'),
            toy.train(outs[1], *flags, *large, RECORD=f'{outs[1]}-'),
            *toy.ranks(outs[2], *flags, *small, RECORD=f'{outs[2]}-')]
    for job in jobs:
        job.good()
    seen = []
    for out, ranks in zip(outs, ('0', '0', '01')):
        calls = [[json.loads(text) for text in open(f'{out}-{rank}')][1:] for rank in ranks]
        calls = [pair for turn in zip(*calls) for pair in turn]     # the first was a check
        prompts, completions = ([text for call in calls for text in call[i]] for i in (0, 1))
        seen.append(list(zip(prompts, completions)))
    assert len(seen[0]) == 5 * 24 * 4 and seen[0] == seen[1] == seen[2]
    blanks = [prompt.count('_') for prompt, _ in seen[0]]
    halves = [sum(blanks[i] for i in range(96) if i // 12 % 2 == rank) for rank in (0, 1)]
    assert len(set(blanks)) > 3 and halves[0] != halves[1]
    return outs


@pytest.mark.parametrize('adv_norm', ['none', 'std', 'batch', 'rloo'])
def test_micro_steps_and_ranks_are_only_another_way_to_compute_the_same_step(toy, adv_norm):
    # AdamW and Muon turn last bits of small gradients into steps of up to the learning rate: after
    # 5 steps float32 agrees to 3e-6 at a rate of 1e-5, 6e-4 at 1e-3; float64 to 1e-14 at any
    for dtype, rate in (('float64', 1e-3), ('float32', 1e-5)):
        outs = spread(toy, [f'--adv_norm={adv_norm}', f'--dtype={dtype}', '--min_lr=1e-6',
                            f'--learning_rate={rate}'])
        for out in outs[1:]:
            assert weights_differ(outs[0], out) < (1e-9 if dtype == 'float64' else 3e-6)
            for one, other in zip(log_lines(outs[0]), log_lines(out)):
                for key, value in one.items():
                    assert value == pytest.approx(other[key], rel=1e-4, abs=1e-5), key


def test_two_ranks_make_what_is_missing_once_and_only_rank_0_speaks_and_writes(toy):
    folder, out = toy.new('clone'), toy.new()
    shutil.copytree(toy.repo, folder, ignore=shutil.ignore_patterns('*.bin', 'meta.json', 'toy'))
    flags = ['--generator_checkpoint=', '--generator_recipe=config/generator_toy.py',
             '--judge_checkpoint=', '--judge_recipe=config/judge_toy.py', '--max_iters=3',
             '--gradient_accumulation_steps=2']
    first, second = toy.ranks(out, *flags, folder=folder)
    first.good(), second.good()
    made = [line for line in first.out.splitlines() if line.startswith('$')]
    assert [line.split()[2] for line in made] == ['data/arithmetic/prepare.py', 'model.py',
                                                  'judge.py']
    assert second.out == '' and 'Traceback' not in first.err + second.err
    assert [line['step'] for line in log_lines(out) if 'loss' in line] == [0, 1, 2]
    before = files(folder)
    again = toy.train(out, *flags, folder=folder).good()            # and what was made is kept
    assert '$' not in again.out and files(folder) == before


LATE = """
import json, os, time
_dumps = json.dumps
def _slowly(*args):             # a long while between the end of a step and the next
    time.sleep(0.2)
    return _dumps(*args)
json.dumps = _slowly
"""


def test_a_signal_to_any_rank_at_any_moment_stops_all_ranks_after_the_same_step(toy):
    for targets in ((0,), (1,), (0, 1)):
        out = toy.new()
        jobs = toy.ranks(out, toy.config(LATE), '--max_iters=500', '--eval_interval=0',
                         '--gradient_accumulation_steps=2')
        until(lambda: (out / 'log.jsonl').exists() and len(log_lines_torn(out)) > 1, 30, "a step")
        time.sleep(random.random() * 0.2)
        for rank in targets:
            jobs[rank].send(signal.SIGTERM)
        assert [job.wait() for job in jobs] == [143, 143], jobs[0].err + jobs[1].err
        assert [line['step'] for line in log_lines(out)] == list(range(checkpoint(out)['step']))
        assert jobs[0].out.splitlines()[-1].endswith('--resume=True')


def torchrun(toy, *argv, folder=None):
    env = {key: value for key, value in os.environ.items() if 'RANK' not in key}
    return subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone',
                           '--nproc_per_node=2', 'train_grpo.py', *map(str, argv)],
                          cwd=folder or toy.repo, env={**env, 'OMP_NUM_THREADS': '1'},
                          capture_output=True, text=True, timeout=120)


def test_torchrun_with_two_ranks_runs_to_the_end(toy):
    alone, out = toy.new(), toy.new()
    toy.train(alone, '--gradient_accumulation_steps=2').good()
    done = torchrun(toy, 'config/toy.py', '--gradient_accumulation_steps=2', f'--out_dir={out}')
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('held-out verify') == 1 and 'Traceback' not in done.stderr
    assert len(log_lines(out)) == len(log_lines(alone)) == 12 + 4
    assert log_lines(out)[1] == pytest.approx(log_lines(alone)[1], rel=1e-4, abs=1e-6)


FRAGILE = """
import os
def fragile(prompts, completions):
    fragile.calls += 1
    if fragile.calls == 3 and os.environ.get('RANK') == '1':
        raise RuntimeError('the disk of rank 1 is gone')
    return [0.0] * len(prompts)
fragile.calls = 0
rewards = {'judge': 1.0, 'fragile': 1.0}
"""
GONE = "error: reward 'fragile' raised RuntimeError: the disk of rank 1 is gone"


def test_if_a_rank_fails_the_others_end_too_and_nothing_hangs(toy):
    out, flags = toy.new(), ['--gradient_accumulation_steps=2', '--save_interval=1']
    jobs = toy.ranks(out, toy.config(FRAGILE), '--eval_interval=0', *flags)
    jobs[1].refused(GONE)
    assert jobs[0].wait(20) == 1
    assert checkpoint(out)['step'] == 1 and [line['step'] for line in log_lines(out)] == [0]


@long
def test_long_if_a_rank_fails_torchrun_ends_with_its_error(toy):
    began, out = time.time(), toy.new()
    done = torchrun(toy, 'config/toy.py', toy.config(FRAGILE), '--gradient_accumulation_steps=2',
                    '--eval_interval=0', f'--out_dir={out}')
    print(f"\ntorchrun ended {time.time() - began:.0f} s after its start")
    assert done.returncode != 0 and GONE in done.stderr and time.time() - began < 60


# ------------------------------------------------------------------------------------------------
# signals

SAVES = """
import time, torch
_save, _calls = torch.save, []
def _broken(content, file):
    _calls.append(file)
    if len(_calls) < {at}:
        return _save(content, file)
    file.write(b'half of a checkpoint')
    file.flush()
    {what}
torch.save = _broken
"""
SLEEP = 'time.sleep(30)'
FOREVER = ['--max_iters=100000', '--lr_decay_iters=100000', '--eval_interval=0']
SLOW = """
import time
def slow(prompts, completions):
    slow.calls += 1
    time.sleep(30 if slow.calls == 6 else 0)            # in step 4
    return [0.0] * len(prompts)
slow.calls = 0
rewards = {'judge': 1.0, 'slow': 1.0}
"""


def lines_of(job, out, n, seconds=30):
    """Waits until a run has written so many lines of its log."""
    until(lambda: job.ended or (out / 'log.jsonl').exists() and len(log_lines_torn(out)) >= n,
          seconds, f"{n} lines of the log\n{job.err}")


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_step_end_saves_and_ends_with_the_command_to_resume(toy, number):
    out = toy.new('a run of ')                      # a name that a shell would tear apart
    job = toy.train(out, *FOREVER, '--save_interval=0', "--rewards={'judge': 1.0, 'length': 0.1}")
    lines_of(job, out, 3)
    assert job.send(number).wait() == 128 + number, job.err
    assert job.err == '' and checkpoint(out)['step'] == len(log_lines(out)) >= 3
    last = job.out.splitlines()[-1]
    command = shlex.split(last[last.index('python '):])
    assert command[0] == 'python' and '--resume=True' in command
    steps = checkpoint(out)['step'] + 2
    toy.run(*command[1:], f'--max_iters={steps}').good()
    assert [line['step'] for line in log_lines(out)] == list(range(steps))


def test_a_second_signal_stops_at_once_and_leaves_the_previous_checkpoint_whole(toy):
    for config in (SLOW, SAVES.format(at=3, what=SLEEP)):
        out = toy.new()
        job = toy.train(out, toy.config(config), *FOREVER, '--save_interval=1')
        lines_of(job, out, 3)
        until(lambda: checkpoint(out)['step'] == (4 if config is SLOW else 2), 10, "checkpoints")
        time.sleep(0.1)                             # now it sleeps: in a step, or in a save
        before = files(out)
        began = time.time()
        job.send(signal.SIGTERM)
        until(lambda: 'once more' in job.out or time.time() > began + 0.3, 1, "the first")
        assert job.send(signal.SIGINT).wait(10) == 130 and time.time() - began < 5
        after = files(out)
        assert after['ckpt.pt'] == before['ckpt.pt'] and 'ckpt.pt.tmp' not in after
        assert 'Traceback' not in job.err


@pytest.mark.parametrize('script', ['model', 'judge'])
def test_a_generator_or_judge_that_is_interrupted_writes_nothing_and_says_how_to_go_on(toy, script):
    for number in (signal.SIGINT, signal.SIGTERM):
        out = toy.new().with_suffix('.pt')
        job = toy.run(f'{script}.py', f'config/{script.replace("model", "generator")}_toy.py',
                      '--max_iters=100000', f'--out={out}')
        until(lambda: job.ended or 'step ' in job.out, 30, "a step")
        assert job.send(number).wait() == 128 + number
        assert f'python {script}.py config/' in job.out.splitlines()[-1] and job.err == ''
        assert not out.exists() and not list(out.parent.glob(f'{out.name}*'))


def test_interrupted_in_the_save_a_generator_is_not_written_by_half(toy):
    for number, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        out, config = toy.new().with_suffix('.pt'), toy.config(SAVES.format(at=1, what=SLEEP))
        job = toy.run('model.py', 'config/generator_toy.py', config, f'--out={out}')
        until(lambda: job.ended or list(out.parent.glob(f'{out.name}*')), 30, "the save")
        assert job.send(number).wait() == code and not out.exists()
        assert code < 0 or not list(out.parent.glob(f'{out.name}*'))


def test_interrupted_while_it_trains_its_generator_grpo_takes_it_down_and_says_so(toy):
    jobs = [toy.train(toy.new(), '--generator_checkpoint=', f'--generator_recipe='
                      f'config/generator_toy.py --max_iters={n}000000') for n in (1, 2)]
    for job, number, group in zip(jobs, (signal.SIGINT, signal.SIGTERM), (True, False)):
        until(lambda: job.ended or 'step ' in job.out, 30, "a step of the generator")
        assert job.send(number, group).wait() == 128 + number
        length = len(job.out)
        assert 'python train_grpo.py config/toy.py' in job.out.splitlines()[-1]
        assert 'Traceback' not in job.err
        time.sleep(0.3)
        assert len(job.out) == length               # nobody goes on behind our back
        assert not list((toy.repo / 'out').glob('*000000*'))


def test_ctrl_c_while_everything_is_set_up_is_no_traceback_either(toy):
    for _ in range(4):
        job = toy.train(toy.new(), *FOREVER)
        until(lambda: job.ended or 'overrides' in job.out, 30, "its knobs")
        time.sleep(random.random() * 0.15)
        assert job.send(signal.SIGINT).wait() == 130 and job.err == ''
        assert 'python train_grpo.py config/toy.py' in job.out.splitlines()[-1]


# ------------------------------------------------------------------------------------------------
# not a number

@pytest.mark.parametrize('value', ['nan', 'inf'])
def test_a_reward_that_is_not_finite_stops_the_run_by_name_and_spares_the_checkpoint(toy, value):
    whole, out = toy.new(), toy.new()
    config = toy.config(f"""
def moody(prompts, completions):
    moody.calls += 1
    values = [c.count('1') / 10 for c in completions]
    if moody.calls == 6:                                # in step 4
        values[9] = float('{value}')
        print('CULPRIT', prompts[9])
    return values
moody.calls = 0
rewards = {{'judge': 1.0, 'moody': 1.0}}
""")
    flags = [config, '--eval_interval=0', '--save_interval=1']
    toy.train(whole, *flags, '--max_iters=4').good()
    job = toy.train(out, *flags).refused('step 4', 'moody')
    prompt = job.out.split('CULPRIT ')[1].split('\n')[0]
    assert prompt in job.err
    assert state(out) == state(whole) and log_lines(out) == log_lines(whole)
    (batch,) = out.glob('nonfinite*')
    assert f"{batch.name}" in job.err
    assert torch.load(batch, weights_only=True)['step'] == 4


def test_a_judge_or_policy_that_is_not_finite_is_named_and_nothing_is_saved(toy):
    for name, flag, word in (('judge', '--judge_checkpoint', 'judge'),
                             ('generator', '--generator_checkpoint', 'policy')):
        path, out = toy.new().with_suffix('.pt'), toy.new()
        ckpt = torch.load(toy.repo / f'toy/{name}.pt', weights_only=True)
        next(iter(ckpt['model'].values())).fill_(float('nan'))
        torch.save(ckpt, path)
        job = toy.train(out, f'{flag}={path}', '--save_interval=1', '--eval_interval=0')
        job.refused('step 0', word, 'prompt', '_')
        assert not (out / 'ckpt.pt').exists() and list(out.glob('nonfinite*'))
        assert log_lines(out) == []


def test_a_learning_rate_that_destroys_the_policy_leaves_no_checkpoint_of_the_ruins(toy):
    for rate in ('1e20', '1e42', '1e999'):
        out = toy.new()
        toy.train(out, f'--learning_rate={rate}', '--save_interval=1', '--eval_interval=1',
                  '--kl_beta=0').refused('step')
        for path in out.glob('*.pt'):
            if not path.name.startswith('nonfinite'):
                assert all(p.isfinite().all() for p in checkpoint(out, path.name)['model'].values())


def test_a_nan_on_one_rank_stops_both_and_names_its_prompt(toy):
    config = toy.config("""
import os
def moody(prompts, completions):
    moody.calls += 1
    bad = moody.calls == 4 and os.environ.get('RANK') == '1'
    return [float('nan') if bad else c.count('1') / 10 for c in completions]
moody.calls = 0
rewards = {'judge': 1.0, 'moody': 1.0}
""")
    out = toy.new()
    jobs = toy.ranks(out, config, '--eval_interval=0', '--gradient_accumulation_steps=2')
    assert [job.wait() for job in jobs] == [1, 1]
    assert 'step 2' in jobs[1].err and 'moody' in jobs[1].err and '_' in jobs[1].err
    assert 'step 2' in jobs[0].err and 'moody' in jobs[0].err
    assert not (out / 'ckpt.pt').exists()


# ------------------------------------------------------------------------------------------------
# checkpoints and logs that were damaged, changed, or could not be written

@pytest.fixture(scope='module')
def stopped(toy):
    """The folder of a run that was stopped at step 6 of 12; tests take copies."""
    out = toy.new()
    toy.train(out, '--max_iters=6').good()
    return out


def test_a_checkpoint_cut_off_anywhere_is_refused_with_a_sentence(toy, stopped):
    whole, jobs = (stopped / 'ckpt.pt').read_bytes(), []
    for i in range(20):
        out = toy.new()
        shutil.copytree(stopped, out)
        (out / 'ckpt.pt').write_bytes(whole[:len(whole) * i // 20 + (i == 19) * len(whole) // 21])
        jobs.append(toy.train(out, '--resume=True'))
        if i % 2:
            for job in jobs[-2:]:
                job.refused('ckpt.pt', 'damaged', 'python train_grpo.py')
    cut = toy.new().with_suffix('.pt')
    for name, flag in (('generator', 'generator_checkpoint'), ('judge', 'judge_checkpoint'),
                       ('generator', 'reference_checkpoint')):
        cut.write_bytes((toy.repo / f'toy/{name}.pt').read_bytes()[:-100])
        toy.train(toy.new(), f'--{flag}={cut}').refused(cut.name, 'damaged')


def test_a_checkpoint_that_would_run_code_is_refused_and_runs_nothing(toy, stopped):
    trap, trace = toy.new().with_suffix('.pt'), toy.new('trace')

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(trace),)
    ckpt = checkpoint(stopped)
    torch.save({**ckpt, 'kind': 'generator', 'config': Trap()}, trap)
    out = toy.new()
    shutil.copytree(stopped, out)
    shutil.copy(trap, out / 'ckpt.pt')
    for job in (toy.train(out, '--resume=True'),
                toy.train(toy.new(), f'--generator_checkpoint={trap}'),
                toy.train(toy.new(), f'--judge_checkpoint={trap}'),
                toy.train(toy.new(), f'--reference_checkpoint={trap}')):
        job.refused('more than tensors and plain values')
    assert not trace.exists()
    with contextlib.suppress(Exception):
        torch.load(trap, weights_only=False)
    assert trace.exists()                           # the trap was a trap


def test_a_log_with_a_torn_last_line_is_continued_without_gap_or_repeat(toy, stopped):
    whole = toy.new()
    toy.train(whole).good()
    for torn in ('{"step": 6, "loss": 0.1', '{"step": 6, "loss": 0.1, "ms_learn": 3.0}\n{"st',
                 '\x00\x00\x00\n[1, 2]\n'):
        out = toy.new()
        shutil.copytree(stopped, out)
        with open(out / 'log.jsonl', 'a') as f:
            f.write(torn)
        toy.train(out, '--resume=True').good()
        again = [line for line in log_lines(out) if line['step'] != 6 or 'loss' in line]
        assert again == log_lines(whole)            # step 6 was the end once, and was evaluated


def test_resuming_refuses_knobs_that_change_the_maths_and_accepts_harmless_ones(toy, stopped):
    before = files(stopped)
    job = toy.train(stopped, '--resume=True', '--kl_beta=0.3', '--adv_norm=std')
    job.refused("kl_beta 0.05 -> 0.3", "adv_norm 'none' -> 'std'")
    assert 'eval_prompts' not in job.err
    for flag in ('--temperature=0.5', '--seed=2', '--batch_size=8', '--learning_rate=2e-3',
                 '--lr_decay_iters=20', "--rewards={'verify': 1}",
                 '--dtype=float64', '--gradient_accumulation_steps=2'):
        toy.train(stopped, '--resume=True', flag).refused(flag[2:].split('=')[0], '->')
    assert files(stopped) == before
    plain = toy.new()
    toy.train(plain, '--lr_decay_iters=0', '--max_iters=6').good()
    toy.train(plain, '--lr_decay_iters=0', '--resume=True').refused('max_iters 6 -> 12')
    out, moved = toy.new(), toy.new()
    toy.train(out).good()
    shutil.copytree(stopped, moved)
    toy.train(moved, '--resume=True', '--eval_interval=3', '--eval_prompts=8', '--log_interval=2',
              '--save_interval=0', '--sample_interval=3', '--judge_batch_size=3').good()
    for key in ('model', 'optimizers', 'step'):
        assert state(moved)[key] == state(out)[key]
    toy.train(moved, '--resume=True').good()                        # done is done
    assert state(moved)['model'] == state(out)['model']
    toy.train(moved, '--resume=True', '--max_iters=8').refused('12', '8')


def test_a_full_disk_ends_a_run_with_a_line_and_the_previous_checkpoint_survives(toy, stopped):
    full = toy.config(SAVES.format(at=2, what='raise OSError(28, "No space left on device")'))
    size = (stopped / 'best.pt').stat().st_size + 4000
    assert size < (stopped / 'ckpt.pt').stat().st_size
    for how in ([full], []):
        out = toy.new()
        shutil.copytree(stopped, out)
        before = files(out)
        toy.train(out, *how, '--resume=True', '--eval_interval=0', '--save_interval=1',
                  fsize=0 if how else size).refused('ckpt.pt', 'cannot write')
        after = files(out)
        if not how:
            assert after['ckpt.pt'] == before['ckpt.pt']
        assert checkpoint(out)['step'] == (7 if how else 6) and 'ckpt.pt.tmp' not in after
        toy.train(out, '--resume=True', '--eval_interval=0').good()
        assert checkpoint(out)['step'] == 12
    out = toy.new()                                 # full while it writes a line of the log
    toy.train(out, '--eval_interval=0', '--save_interval=0', fsize=3000).refused('log.jsonl')


def test_killed_in_the_middle_of_a_save_the_checkpoint_before_is_whole(toy, stopped):
    out = toy.new()
    shutil.copytree(stopped, out)
    before = files(out)
    job = toy.train(out, toy.config(SAVES.format(at=1, what=SLEEP)), '--resume=True',
                    '--save_interval=1', '--eval_interval=0')
    until(lambda: job.ended or (out / 'ckpt.pt.tmp').exists(), 30, "the save")
    assert job.send(signal.SIGKILL).wait() == -signal.SIGKILL
    assert (out / 'ckpt.pt').read_bytes() == before['ckpt.pt']
    toy.train(out, '--resume=True').good()
    assert not (out / 'ckpt.pt.tmp').exists() and checkpoint(out)['step'] == 12


def test_data_of_another_corpus_is_named_before_anything_is_computed(toy, stopped):
    folder, out = toy.new('clone'), toy.new()
    shutil.copytree(toy.repo, folder)
    shutil.copytree(stopped, out)
    path = folder / 'data/arithmetic/meta.json'
    meta = json.loads(path.read_text())
    path.write_text(json.dumps({**meta, 'chars': meta['chars'] + 'abc'}))
    for flags, words in (([], ['generator.pt', 'arithmetic-']),
                         (['--resume=True'], ['generator.pt', 'arithmetic-'])):
        toy.train(out, *flags, folder=folder).refused(*words)
    (folder / 'data/docstrings').mkdir(exist_ok=True)
    path.write_text(json.dumps({**meta, 'train': {**meta['train'], 'tokens': 12345}}))
    toy.run('model.py', 'config/generator_toy.py', '--out=x.pt', folder=folder).refused(
        'train.bin', 'prepare.py')
    path.write_text('{"tokenizer": "char", ')
    toy.run('judge.py', 'config/judge_toy.py', '--out=x.pt', folder=folder).refused('prepare.py')
    path.write_text(json.dumps(meta))
    (folder / 'data/arithmetic/train.bin').unlink()
    toy.train(out, folder=folder).refused('train.bin', 'prepare.py')
    assert not (folder / 'x.pt').exists()


# ------------------------------------------------------------------------------------------------
# wandb

WANDB = {'missing': "raise ImportError('no module named wandb')",
         'silent failure': "Settings = dict\ndef init(**_): raise RuntimeError()",
         'breaks later': """
Settings = dict
class init:
    def __init__(self, **_): self.count = 0
    def log(self, line, **_):
        self.count += 1
        if self.count > 3: raise ConnectionError('the network is gone')
    def finish(self): raise ConnectionError('the network is gone')
""", 'works': """
Settings = dict
import json
class init:
    def __init__(self, **knobs): print('INIT', sorted(knobs['config']) != [])
    def log(self, line, step): print('WANDB', step, json.dumps(line))
    def finish(self): pass
"""}


def test_wandb_absent_failing_or_fine_changes_nothing_but_a_warning_line(toy):
    plain, jobs = toy.new(), {}
    first = toy.train(plain)
    for name, text in WANDB.items():
        path, out = toy.new('wandb'), toy.new()
        path.mkdir()
        (path / 'wandb.py').write_text(text)
        jobs[name] = out, toy.train(out, '--wandb_log=True', path=[path])
    first.good()
    for name, (out, job) in jobs.items():
        job.good()
        assert state(out) == state(plain) and log_lines(out) == log_lines(plain), name
        warnings = [line for line in job.out.splitlines() if line.startswith('warning: ')]
        assert len(warnings) == (name != 'works') and job.err == '', name
        assert all('wandb' in line and 'log.jsonl' in line for line in warnings)
        told = [json.loads(line.split(' ', 2)[2]) for line in job.out.splitlines()
                if line.startswith('WANDB')]
        with open(out / 'log.jsonl') as f:
            assert name != 'works' or told == [json.loads(line) for line in f]


def test_wandb_offline_works_with_the_real_package(toy):
    pytest.importorskip('wandb')
    plain, out, where = toy.new(), toy.new(), toy.new('wandb')
    where.mkdir()
    job = toy.train(out, '--max_iters=3', '--wandb_log=True', WANDB_MODE='offline',
                    WANDB_DIR=where, WANDB_SILENT='true')
    toy.train(plain, '--max_iters=3').good()
    assert 'warning: ' not in job.good().out
    assert log_lines(out) == log_lines(plain) and state(out) == state(plain)
    assert list(where.rglob('*.wandb'))


# ------------------------------------------------------------------------------------------------
# bad input

FUNCTIONS = """
def raises(prompts, completions): return [1 / 0]
def short(prompts, completions): return [1.0]
def words(prompts, completions): return ['much'] * len(prompts)
def none(prompt, original): return False
"""
BAD = [     # flags, and what the one line must contain
    (['--grop_size=4'], ["'grop_size'", "'group_size'"]),
    (['config/typo.py'], ['config/typo.py', "'grop_size'", "'group_size'"]),
    (['config/wrong.py'], ['config/wrong.py', 'learning_rate', 'str', 'float']),
    (['config/raises.py'], ['config/raises.py', 'ZeroDivisionError']),
    (['config/syntax.py'], ['config/syntax.py', 'line 2']),
    (['config/missing.py'], ['config/missing.py', 'config/toy.py']),
    (['--group_size=4.5'], ['group_size', 'float', 'int']),
    (['--group_size=many'], ['group_size', "'many'"]),
    (['--group_size=True'], ['group_size', 'bool', 'int']),
    (['--learning_rate=fast'], ['learning_rate', "'fast'", 'float']),
    (['--resume=1'], ['resume', 'int', 'bool']),
    (['--group_size'], ['--group_size', '16']),
    (['--group_size=1'], ['group_size = 1']),
    (['--group_size=0'], ['group_size = 0']),
    (['--dataset=nope'], ["'nope'", 'arithmetic']),
    (['--generator_checkpoint=nope.pt'], ['nope.pt', 'python model.py']),
    (['--judge_checkpoint=nope.pt'], ['nope.pt', 'python judge.py']),
    (['--reference_checkpoint=nope.pt'], ['nope.pt', 'python model.py']),
    (['--generator_checkpoint=toy'], ['toy', 'python model.py']),
    (['--generator_checkpoint=', '--generator_recipe=config/nope.py'], ['config/nope.py']),
    (['--resume=True'], ['ckpt.pt', 'python train_grpo.py']),
    (['--generator_checkpoint=toy/vocabulary.pt'], ['vocabulary.pt', 'python model.py']),
    (['--judge_checkpoint=toy/vocabulary.pt'], ['vocabulary.pt', 'python judge.py']),
    (['--judge_checkpoint=toy/generator.pt'], ['generator.pt', 'generator', 'expected a judge']),
    (['--generator_checkpoint=toy/judge.pt'], ['judge.pt', 'expected a generator']),
    (['--generator_checkpoint=toy/causal.pt'], ['causal.pt', 'fill']),
    (['--mode=causal'], ['generator.pt', 'causal']),
    (['--generator_checkpoint=toy/version.pt'], ['version.pt', 'version 99']),
    (['--generator_checkpoint=toy/other.pt'], ['other.pt', 'python model.py']),
    (['--generator_checkpoint=toy/list.pt'], ['list.pt', 'python model.py']),
    (['--block_size=12'], ['10', '12', 'block_size']),
    (['--block_size=1'], ['block_size = 1']),
    (['--top_p=0'], ['top_p = 0']),
    (['--top_p=1.5'], ['top_p = 1.5']),
    (['--top_k=-1'], ['top_k = -1']),
    (['--temperature=0'], ['temperature = 0']),
    (['--temperature=-1'], ['temperature = -1']),
    (['--kl_beta=-0.1'], ['kl_beta = -0.1']),
    (['--kl_beta=0', '--kl_in_reward=True'], ['kl_beta = 0']),
    (['--batch_size=0'], ['batch_size = 0']),
    (['--gradient_accumulation_steps=0'], ['gradient_accumulation_steps = 0']),
    (['--gradient_accumulation_steps=4', '--mini_batches=3'], ['mini_batches = 3']),
    (['--max_iters=0'], ['max_iters = 0']),
    (['--seed=-1'], ['seed = -1']),
    (['--learning_rate=-0.1'], ['learning_rate = -0.1']),
    (['--weight_decay=-1'], ['weight_decay = -1']),
    (['--beta1=1.5'], ['beta1 = 1.5']),
    (['--grad_clip=-1'], ['grad_clip = -1']),
    (['--judge_batch_size=-1'], ['judge_batch_size = -1']),
    (['--blank_low=0.9', '--blank_high=0.1'], ['blank_low = 0.9']),
    (['--blank_kind=zigzag'], ['zigzag', 'span']),
    (['--mode=diagonal'], ['diagonal', 'causal']),
    (['--adv_norm=loud'], ['loud', 'rloo']),
    (['--kl_type=k9'], ['k9', 'exact']),
    (['--dtype=int8'], ['int8', 'bfloat16']),
    (['--device=tpu'], ['tpu', 'cpu']),
    (['--device=cuda:99'], ['cuda:99']),
    (['--backend=pigeon'], ['pigeon', 'gloo']),
    (["--rewards={'niceness': 1.0}"], ['niceness', 'verify']),
    (['--rewards={}'], ['rewards']),
    (["--rewards={'judge': 'much'}"], ['rewards', 'much']),
    (["--rewards={'raises': 1.0}", 'config/functions.py'], ['raises', 'ZeroDivisionError']),
    (["--rewards={'short': 1.0}", 'config/functions.py'], ['short', '1 number', '16']),
    (["--rewards={'words': 1.0}", 'config/functions.py'], ['words', 'much']),
    (['--prompt_filter=nope'], ['nope']),
    (['--prompt_filter=none', 'config/functions.py'], ['prompt_filter', '2000']),
    (['--out_dir=config/toy.py/run'], ['config/toy.py/run', '--out_dir']),
    (['--out_dir=/proc/nowhere'], ['/proc/nowhere', '--out_dir']),
]
BAD_MODEL = [
    (['--nlayer=2'], ["'nlayer'", "'n_layer'"]), (['--n_layer=two'], ['n_layer', "'two'"]),
    (['config/missing.py'], ['config/missing.py']), (['--mode=diagonal'], ['diagonal', 'causal']),
    (['--dataset=nope'], ["'nope'", 'arithmetic']), (['--n_embd=15'], ['n_embd = 15']),
    (['--dataset=docstrings'], ['docstrings', 'python data/docstrings/prepare.py']),
    (['--blank_kind=zigzag'], ['zigzag', 'span']), (['--block_size=0'], ['block_size = 0']),
    (['--batch_size=0'], ['batch_size = 0']), (['--max_iters=0'], ['max_iters = 0']),
    (['--eval_interval=-1'], ['eval_interval = -1']), (['--device=tpu'], ['tpu', 'cpu']),
    (['--learning_rate=-1'], ['learning_rate = -1']), (['--seed=-1'], ['seed = -1']),
    (['--out=config/toy.py/x.pt'], ['config/toy.py/x.pt']),
]
BAD_JUDGE = [
    (['--kind=zen'], ['zen', 'classifier']), (['--lables=x'], ["'lables'", "'labels'"]),
    (['--kind=classifier', '--labels=nope.jsonl'], ['nope.jsonl']),
    (['--kind=classifier', '--labels=toy/torn.jsonl'], ['torn.jsonl', 'line 2']),
    (['--kind=classifier', '--labels=toy/few.jsonl'], ['few.jsonl', '20']),
    (['--kind=classifier', '--generator_checkpoint=nope.pt'], ['nope.pt', 'python model.py']),
    (['--dataset=docstrings'], ['python data/docstrings/prepare.py']),
    (['--batch_size=0'], ['batch_size = 0']), (['--n_embd=15'], ['n_embd = 15']),
    (['--out=config/toy.py/x.pt'], ['config/toy.py/x.pt']),
]


@pytest.fixture(scope='module')
def bad(toy):
    """The toy repository with config files and checkpoints that are wrong in some way."""
    for name, text in {'typo': 'grop_size = 4', 'wrong': "learning_rate = 'fast'",
                       'raises': 'x_ = 1\nbatch_size = 1 // 0', 'syntax': 'x_ = 1\nbatch size = 1',
                       'functions': FUNCTIONS}.items():
        (toy.repo / f'config/{name}.py').write_text(text)
    ckpt = torch.load(toy.repo / 'toy/generator.pt', weights_only=True)
    args = ckpt['model_args']
    for name, content in {
            'vocabulary': {**ckpt, 'model_args': {**args, 'vocab_size': 65}, 'corpus': '0' * 16},
            'version': {**ckpt, 'version': 99}, 'other': {'model_args': args, 'x': 1},
            'list': [1, 2, 3]}.items():
        torch.save(content, toy.repo / f'toy/{name}.pt')
    (toy.repo / 'toy/torn.jsonl').write_text('{"text": "1", "label": 1}\n{"text": "2", "la')
    (toy.repo / 'toy/few.jsonl').write_text('{"text": "1", "label": 1}\n' * 3)
    return toy


def all_refused(toy, run, cases):
    """Runs each case, two at a time; asserts its one line and that nothing was written."""
    before, problems = files(toy.repo), []
    for i in range(0, len(cases), 2):
        pair = [(run(*flags), words) for flags, words in cases[i:i + 2]]
        for job, words in pair:
            try:
                job.refused(*words)
            except AssertionError as e:
                problems.append(str(e).split('\nassert')[0][-600:])
    after = files(toy.repo)
    for name in set(after) | set(before):
        if before.get(name) != after.get(name):
            problems.append(f"{name} was changed or left behind")
    assert not problems, '\n\n'.join(problems)


def test_bad_input_to_grpo_ends_with_one_clear_line_and_nothing_half_written(bad):
    out = bad.new()
    cases = [case for case in BAD if not (case[0] == ['--device=cuda:99']
                                          and torch.cuda.device_count() > 99)]
    all_refused(bad, lambda *flags: bad.train(out, '--max_iters=2', *flags), cases)
    assert {name for name, content in files(out).items() if content} <= {
        'config.json'} and not list(out.glob('*.tmp'))
    jobs = bad.ranks(bad.new(), '--gradient_accumulation_steps=3')
    jobs[0].refused('gradient_accumulation_steps = 3', 'world = 2'), jobs[1].wait()


def test_bad_input_to_model_and_judge_ends_with_one_clear_line_and_no_checkpoint(bad):
    all_refused(bad, lambda *flags: bad.run('model.py', 'config/generator_toy.py', '--out=x.pt',
                                            *flags), BAD_MODEL)
    all_refused(bad, lambda *flags: bad.run('judge.py', 'config/judge_toy.py', '--out=x.pt',
                                            *flags), BAD_JUDGE)


def test_bad_input_to_sample_ends_with_one_clear_line(toy, stopped):
    all_refused(toy, lambda *flags: toy.run('sample.py', f'--out_dir={stopped}', *flags), [
        (['--prompt=1x+3_=__7'], ["'x'"]), (['--prompt=' + '1_+3_=__7' * 5], ['45', '10']),
        (['--promt=1'], ["'promt'", "'prompt'"]), (['--out_dir=nope'], ['nope'])])


# ------------------------------------------------------------------------------------------------
# long runs

@long
def test_long_two_thousand_steps_need_no_more_memory_and_time_than_the_first_ones(toy):
    """Peak memory is the kernel's VmHWM; a step's time the median over 200 steps."""
    out = toy.new()
    job = toy.run('train_grpo.py', 'config/grpo_smoke.py', f'--out_dir={out}', '--device=cpu',
                  '--generator_checkpoint=toy/generator.pt', '--judge_checkpoint=toy/judge.pt',
                  '--max_iters=2000', '--log_interval=1', '--eval_interval=100',
                  '--save_interval=100', '--sample_interval=100')
    peak = {}
    for step in (200, 2000):
        lines_of(job, out, step + step // 100, 600)
        with contextlib.suppress(FileNotFoundError):
            text = pathlib.Path(f"/proc/{job.text('pid')}/status").read_text()
            peak[step] = int(text.split('VmHWM:')[1].split()[0])
    job.good()
    with open(out / 'log.jsonl') as f:
        times = [sum(line[key] for key in line if key.startswith('ms_'))
                 for line in map(json.loads, f) if 'loss' in line]
    early, late = (sorted(part)[100] for part in (times[:200], times[-200:]))
    print(f"\npeak memory at steps 200 and 2,000: {peak} kB; ms a step: {early:.2f}, {late:.2f}")
    assert len(times) == 2000 and peak[2000] < 1.02 * peak[200] and late < 1.2 * early
