"""What every script needs and nobody comes to read: errors and signals, overrides, checks of knobs,
ranks, the device, processes and files, clock, statistics, log. Nothing here knows one script."""
import ast
import atexit
import collections
import contextlib
import ctypes
import datetime
import difflib
import functools
import glob
import hashlib
import inspect
import itertools
import json
import math
import os
import pathlib
import re
import runpy
import secrets
import shlex
import signal
import subprocess
import sys
import textwrap
import time

# Threads that have nothing to do sleep. Else they spin for their turn, and beside another busy
# process each product takes a slice of the scheduler's time; see also use_threads(). It must be
# said before torch is loaded, so our scripts import this module first.
os.environ.setdefault('OMP_WAIT_POLICY', 'passive')

import torch
import torch.distributed as dist
from torch import nn

HOME = os.path.dirname(os.path.abspath(__file__))

# What other libraries call our knobs: whoever types one of these names is told ours.
ELSEWHERE = {
    'num_generations': 'group_size', 'num_completions_per_prompt': 'group_size',
    'beta': 'kl_beta', 'kl_coef': 'kl_beta', 'init_kl_coef': 'kl_beta', 'lr': 'learning_rate',
    'max_steps': 'max_iters', 'num_train_steps': 'max_iters', 'warmup_steps': 'warmup_iters',
    'epsilon': 'clip_low', 'cliprange': 'clip_low', 'clip_range': 'clip_low',
    'epsilon_high': 'clip_high', 'num_epochs': 'inner_updates', 'ppo_epochs': 'inner_updates',
    'num_iterations': 'inner_updates', 'max_grad_norm': 'grad_clip', 'output_dir': 'out_dir',
    'reward_funcs': 'rewards', 'reward_model': 'judge_checkpoint', 'loss_type': 'loss_norm',
    'model_name': 'generator_checkpoint', 'scale_rewards': 'adv_norm', 'max_length': 'block_size',
    'max_completion_length': 'max_new_tokens', 'logging_steps': 'log_interval',
    'eval_steps': 'eval_interval', 'diffusion_steps': 'n_fill_steps', 'd_model': 'n_embd',
    'n_layers': 'n_layer', 'n_heads': 'n_head'}

# What a config file promises of its results holds whatever these knobs are.
NO_MATTER = 'out_dir|seed|wandb_.*|log_interval|eval_interval|keep_checkpoints|device|resume|out'


# ---- ranks: the environment says who we are, as torchrun sets it ---------------------------------


def rank():
    return int(os.environ.get('RANK', 0))


def n_ranks():
    return int(os.environ.get('WORLD_SIZE', 1))


def is_main():
    """Rank 0 makes what is missing, evaluates, prints and saves."""
    return rank() == 0


def all_reduce_sum(tensor):
    """Sum over all ranks, in place; returns the tensor. One rank: as it is."""
    if n_ranks() > 1:
        dist.all_reduce(tensor, dist.ReduceOp.SUM)
    return tensor


def all_reduce_gradients(model):
    """Adds up the gradients of all ranks, in one message: with one for each tensor, a step of two
    ranks at toy size takes a third longer."""
    if n_ranks() > 1:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = all_reduce_sum(nn.utils.parameters_to_vector(gradients))
        nn.utils.vector_to_parameters(flat, gradients)


def main_rank_first(make):
    """make(), called by rank 0 before the others, so that they find what it made."""
    if is_main():
        made = make()
    if n_ranks() > 1:
        dist.barrier()
    return made if is_main() else make()


def leave(code):
    """Ends the process. Ranks leave together, and skip the interpreter's last rites, in which gloo
    aborts at times."""
    if n_ranks() > 1:
        dist.barrier()
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


# ---- errors and signals --------------------------------------------------------------------------


def fail(message):
    """Exits with one line on stderr and code 1. (In a notebook: SystemExit.)"""
    if not is_main():           # what all ranks would say is said by the first, whose end ends all:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)       # torchrun asks only once
        time.sleep(3)
    sys.exit(' '.join(f"error: {message}".splitlines()))


def go_on_command(*more):
    """The command that was used, with more flags, as one can paste it."""
    command = 'python'
    if n_ranks() > 1:
        command = f"torchrun --standalone --nproc_per_node={n_ranks()}"
    return f"{command} {shlex.join(dict.fromkeys(sys.argv + list(more)))}"


class StopSignal:
    """Ctrl-C, SIGTERM, and a closed terminal (but under nohup). At once: they end the script with
    one line. After listen(): the first one is noted, so that a step can end and be saved."""

    def __init__(self):
        self.code = 0                           # the exit code asked for: 128 + the signal's number
        self.can_wait = False
        for number in signal.valid_signals() & {1, 2, 15}:      # SIGHUP, SIGINT, SIGTERM
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self.on_signal)

    def listen(self):
        self.can_wait = True

    def on_signal(self, number, frame):
        if is_main():                           # print() might interrupt another one, and fail
            os.write(1, b"\nstopping; once more to stop at once\n")
        if self.code or not self.can_wait:
            sys.exit(128 + number)
        self.code = 128 + number

    def agree(self, device):
        """The exit code if any rank was asked to stop, else 0. All ranks ask at the same place."""
        return min(255, int(all_reduce_sum(torch.tensor(self.code, device=device))))


# ---- overrides, in the exec style of nanoGPT, checked the same from files and flags --------------


def knobs(namespace):
    """{name: value} of the knobs in a module's globals(), in the order written: whatever has a
    lower-case name and is a number, a bool, a string or a dict."""
    return {name: value for name, value in namespace.items()
            if name[0].islower() and type(value) in (bool, int, float, str, dict)}


def configure(namespace, argv=None, quiet=False):
    """Applies config files and --key=value flags, in the order given, to a script's globals().

    Files may also define functions, and helpers _like_this or LIKE_THIS. Returns all knobs and the
    functions, each {name: value}. Exits with an error if a name is unknown, a type is wrong, or a
    number is negative or not finite."""
    defaults = knobs(namespace)
    functions = {}
    digests = []                                # of what the files hold besides knobs
    promise = ''                                # the last file's, and the knobs it speaks about
    promised = defaults.copy()
    for word in sys.argv[1:] if argv is None else argv:
        if word in ('--help', '-h'):
            print_help(namespace)
            sys.exit(0)
        if word.startswith('--'):
            found = read_flag(word, defaults)
        else:
            check_owner(word, namespace)
            found, digest, promise = read_config_file(word, knobs(namespace))
            digests.append(digest)
            promised |= found
        for name, value in found.items():
            default = defaults.get(name, value)
            if type(default) is float and type(value) is int:
                value = float(value)
            if type(value) is not type(default):
                example = 'True or False' if type(default) is bool else f'such as {default!r}'
                fail(f"{word}: {name} = {value!r}: expected {type(default).__name__} {example}")
            if type(value) in (int, float) and not 0 <= value < math.inf:
                fail(f"{word}: {name} = {value!r}: expected a number, 0 or more")
            if name in defaults:
                namespace[name] = value
            elif callable(value):
                functions[name] = value
            else:
                near = difflib.get_close_matches(name, defaults, 1, cutoff=0)[0]
                fail(f"{word}: unknown key '{name}'; did you mean '{ELSEWHERE.get(name, near)}'? "
                     "(--help lists them all)")

    config = knobs(namespace)
    if functions:
        config['functions'] = digest_of(digests)    # a run knows by it that its rewards changed
    if not quiet and is_main():
        if all(config.get(name, value) == value or re.fullmatch(NO_MATTER, name)
               for name, value in promised.items()):
            print(promise, end='')
        changed = {name: value for name, value in config.items() if value != defaults.get(name)}
        print(textwrap.fill(f"overrides: {changed or 'none'}", 100, subsequent_indent='  '))
    return config, functions


def check_owner(path, namespace):
    """Exits with an error if a config file, by its name, is for another script than this one."""
    owners = {'generator': 'model.py', 'judge': 'judge.py', 'grpo': 'train_grpo.py'}
    owner = owners.get(os.path.basename(path).partition('_')[0])
    script = os.path.basename(namespace.get('__file__', ''))
    if owner and script in set(owners.values()) - {owner}:
        fail(f"{path} is for {owner}, and this is {script}")


def read_flag(word, defaults):
    """{key: value} of --key=value. The value is a Python literal, or text as it stands."""
    key, equals, value = word.removeprefix('--').partition('=')
    if not equals:
        fail(f"{word}: expected {word}=VALUE")
    if type(defaults.get(key)) is not str:
        with contextlib.suppress(ValueError, SyntaxError):      # its type will not do
            value = ast.literal_eval(value)
    return {key: value}


def read_config_file(path, before):
    """What a config file defines, {name: value}; a digest of its code without the lines that set
    knobs; and the comment at its head: what it does, and what to expect of it. before: the knobs so
    far, which the file sees."""
    try:
        text = pathlib.Path(path).read_text(encoding='utf-8-sig')
        code = [ast.unparse(statement) for statement in ast.parse(text).body]
        defined = runpy.run_path(path, before)
    except Exception as e:                      # a SyntaxError tells its line
        fail(f"config file {path}: {type(e).__name__}: {e}")
    found = {name: value for name, value in defined.items() if name[0].islower()
             and type(value) is not type(sys) and value is not before.get(name, before)}
    rest = [statement for statement in code if statement.partition(' = ')[0] not in before]
    head = re.match(r'(#.*\n)*', text)[0]
    return found, code_digest(rest, defined.values()), head


def print_help(namespace):
    """The script's docstring, and the lines that set its knobs, each with a comment."""
    source = pathlib.Path(namespace['__file__']).read_text(encoding='utf-8')
    lines = re.findall('^[a-z].* = .*#.*', source, re.MULTILINE)
    print(namespace['__doc__'], 'knobs (--key=value, or in a config file):', *lines, sep='\n  ')


def expect(is_right, expected, knobs):
    """Exits with an error if a knob of {name: value} is not right."""
    for name, value in knobs.items():
        if not is_right(value):
            fail(f"{name} = {value!r}: expected {expected}")


def one_of(choices, **knobs):
    expect(lambda value: value in choices, f"one of {choices}", knobs)


def at_least(low, why='', **knobs):
    expect(lambda value: low <= value < math.inf, f"{low} or more {why}", knobs)


def between(low, high, why='', **knobs):
    expect(lambda value: low <= value <= high, f"{low} to {high} {why}", knobs)


def code_digest(code, values):
    """Stands for some code, and for the files of this folder that define these values, and those
    that these import in turn; our own scripts and installed packages do not count."""
    ours = ('common', 'model', 'judge', 'train_grpo', 'data.dataset')
    values = list(values)
    files = {}                                  # {path: bytes}
    for value in values:                        # it grows
        module = inspect.getmodule(value)
        path = str(getattr(module, '__file__', ''))
        is_theirs = path.startswith(HOME + os.sep) and 'site-packages' not in path
        if is_theirs and module.__name__ not in ours and path not in files:
            files[path] = pathlib.Path(path).read_bytes()
            values += vars(module).values()
    return digest_of(code, list(files.values()))


def digest_of(*things):
    """16 hex digits that stand for bytes and plain values, in dicts and lists."""
    return hashlib.sha256(repr(things).encode()).hexdigest()[:16]


def print_changes(old, new):
    """Says which knobs of a run, {name: value}, are not those it was begun with."""
    changed = [f'{name} {old.get(name)!r} -> {value!r}' for name, value in new.items()
               if old.get(name) != value and name not in ('resume', 'out_dir')]
    if changed and is_main():
        print(f"resumed with changes: {', '.join(changed)}")


# ---- the device ----------------------------------------------------------------------------------


def resolve_device(device):
    """'auto' -> the best there is. Exits with an error if the device is not there."""
    if device == 'auto':
        device = str(torch.accelerator.current_accelerator(check_available=True) or 'cpu')
    if device == 'cuda' and n_ranks() > 1:
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as e:
        fail(f"device = {device} is not there: {str(e).partition('.')[0]}; --device=auto finds one")


@functools.cache
def resolve_dtype(device_type, dtype):
    """'auto' -> 'bfloat16' where the device multiplies it, else 'float32'."""
    one_of(('auto', 'float32', 'bfloat16', 'float64'), dtype=dtype)
    if dtype != 'auto':
        return dtype
    capabilities = getattr(torch.cpu, 'get_capabilities', dict)()       # torch 2.10 and later
    is_fast = {'cuda': True, 'cpu': capabilities.get('avx512_bf16')}
    return 'bfloat16' if is_fast.get(device_type) else 'float32'


def autocast(device, dtype):
    """Context in which products are bfloat16, if they are to be; softmax stays float32. It keeps no
    casts of weights: it would until the outermost context ends, and samples would come from what
    the weights were before an update."""
    is_bfloat16 = resolve_dtype(device.type, dtype) == 'bfloat16'
    return torch.autocast(device.type, torch.bfloat16, enabled=is_bfloat16, cache_enabled=False)


def init_device(device, dtype):
    """Sets torch up for a run. Returns the device, and in words what was chosen."""
    device = resolve_device(device)
    dtype = resolve_dtype(device.type, dtype)
    torch.set_default_dtype(torch.float64 if dtype == 'float64' else torch.float32)
    torch.set_float32_matmul_precision('high')          # TF32 on CUDA
    if device.type == 'cuda':
        torch.cuda.set_device(device)
    if device.type == 'cpu':
        keep_freed_memory()
        choose_matmul_precision()
    if n_ranks() > 1:
        # Ranks wait for as long as it takes rank 0 to make what is missing.
        dist.init_process_group('nccl' if device.type == 'cuda' else 'gloo',
                                timeout=datetime.timedelta(hours=9))
        atexit.register(dist.destroy_process_group)     # or gloo aborts at times
    return device, (f"{device}, products in {dtype}, {n_ranks()} rank(s) of "
                    f"{torch.get_num_threads()} thread(s)")


def use_threads(width):
    """One thread for networks of less than 256 channels, but for who sets OMP_NUM_THREADS. Two
    gain a sixth on two idle cores at 128, and lose a factor of two to five if another process runs
    there, since they wait for each other at every small product."""
    if width < 256 and 'OMP_NUM_THREADS' not in os.environ:
        torch.set_num_threads(1)


def keep_freed_memory():
    """Lets glibc keep the buffers that a step frees. Mapping them anew costs up to half a step in
    page faults. Options -1, -2 and -3 are the thresholds for trimming, padding and mapping."""
    with contextlib.suppress(AttributeError, TypeError):            # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, 2 ** 30)
        mallopt(-2, 2 ** 26)
        mallopt(-3, 2 ** 26)


def choose_matmul_precision():
    """Lets float32 products of this CPU use another library if that is as exact. On AMD 'medium'
    calls one that is twice as fast, elsewhere it may round to bfloat16. Its error (float32's own is
    3e-7) decides. By stopwatch, the last bits would depend on the machine's load."""
    torch.set_float32_matmul_precision('medium')
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 256, 256, generator=rng, dtype=torch.float32)
    error = (a @ b - a.double() @ b.double()).norm() / 256 ** 1.5       # relative to |a @ b|
    torch.set_float32_matmul_precision('medium' if error <= 1e-6 else 'highest')


# ---- processes and files -------------------------------------------------------------------------


def run_missing(commands):
    """Makes what is missing of {path: command}: runs these scripts of ours, visibly and side by
    side. What another process is just making is waited for. Exits with the code of one that fails.
    """
    running = []                                # of each: the lock of its path, the process
    env = os.environ | {'RANK': '0', 'WORLD_SIZE': '1'}
    for path in commands:
        if os.path.exists(path):
            continue
        with writing(path):
            lock = lock_file(f'{path}.lock', wait=True)
        if not os.path.exists(path):            # nobody has made it meanwhile
            print('$', commands[path], flush=True)
            words = [sys.executable] + shlex.split(commands[path])[1:]
            running.append((lock, subprocess.Popen(words, env=env)))
    for lock, process in running:
        code = process.wait()
        os.unlink(lock.name)
        if code != 0:
            for _, other in running:
                other.terminate()
            sys.exit(abs(code))


def lock_file(path, wait=False):
    """A file that only this process holds, until it closes it or ends. Raises OSError if another
    one does, unless it is waited for."""
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    file = open(path, 'a')
    with contextlib.suppress(ImportError):
        import fcntl                            # not on Windows
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    return file


@contextlib.contextmanager
def writing(path):
    """What goes wrong meanwhile ends the script with one line."""
    try:
        yield
    except (OSError, RuntimeError) as e:        # torch.save raises the latter on a full disk
        fail(f"cannot write {path}: {e}; what stood there is whole; make room, or choose another "
             "place")


@contextlib.contextmanager
def new_file(path, mode='wb'):
    """Opens a file that takes its name only once it is whole and on the disk. If anything goes
    wrong before, nothing is left behind and what stood there stays."""
    part = f'{path}.{os.getpid()}.tmp'
    try:
        with writing(path):
            os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
            with open(part, mode) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
    finally:
        pathlib.Path(part).unlink(missing_ok=True)


def read_object(path):
    """The object {key: value} in a JSON file; {} if there is none."""
    found = {}
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
    return found if type(found) is dict else {}


def read_json(path, expected, make):
    """The object in a JSON file of ours. expected: {key: type} that must be there. Exits with an
    error, and the command that makes the file, if it is not there or something else."""
    found = read_object(path)
    if not os.path.exists(path):
        fail(f"there is no {path}; make it with: {make}")
    if not found or any(type(found.get(key)) is not kind for key, kind in expected.items()):
        fail(f"{path}: expected a file that we wrote, with {', '.join(map(repr, expected))}; make "
             f"it with: {make}")
    return found


def read_lines(path, read, expected):
    """[read(key=value, ...)] of the objects in a user's file of JSON lines. Exits with an error
    that names the first line that is none, has other keys, or that read() raises ValueError at."""
    found = []
    number = 0
    try:
        with open(path, encoding='utf-8-sig') as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    found.append(read(**json.loads(line)))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as e:
        where = f", line {number}" if number else ''
        fail(f"{path}{where}: {e}; expected JSON lines {expected}")
    return found


def read_json_lines(path):
    """The objects in a file with one a line, each with a step first, as we write them. What is none
    is left out: the last line of a run that was killed may be. [] if there is no file."""
    text = ''
    with contextlib.suppress(OSError):
        text = pathlib.Path(path).read_text(encoding='utf-8', errors='replace')
    return [json.loads(line) for line in re.findall(r'^\{"step": \d+\b.*\}\n', text, re.MULTILINE)]


# ---- clock, statistics, log ----------------------------------------------------------------------


def clocks():
    """Seconds that have passed, and seconds that this process ran on a core."""
    return time.time(), time.process_time()


def tell_if_slow(began, steps):
    """Says so if other processes keep this one from running, some steps after clocks() began."""
    passed, ran = [1e3 * (now - then) / steps for now, then in zip(clocks(), began)]
    if passed > 2 * ran and is_main() and not torch.cuda.is_available():
        print(f"slow: a step takes {passed:.0f} ms, and {ran:.0f} on a core of its own; other "
              "processes keep this machine busy: stop them, or wait", flush=True)


class Clock:
    """Milliseconds per phase: from each mark() to the next. Nothing waits for a GPU before read().
    """

    def __init__(self):
        self.marks = []

    def mark(self, phase):
        self.marks.append((phase, time.perf_counter()))

    def read(self):
        """{phase: ms} since the last call."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.mark('end')
        total = collections.Counter()
        for (phase, began), (_, ended) in itertools.pairwise(self.marks):
            total[phase] += 1e3 * (ended - began)
        self.marks.clear()
        return total


clock = Clock()         # one for all files, since a phase may begin in one and end in another


class Statistics:
    """Means by name over micro-steps, updates and ranks. Values may be tensors on the device:
    nothing waits for them before read()."""

    def __init__(self):
        self.sums = collections.Counter()
        self.weights = collections.Counter()

    def add(self, weight, **sums):
        """Adds to each name its sum, over things that weigh `weight` in all."""
        for name, value in sums.items():
            self.sums[name] += torch.as_tensor(value).detach()
            self.weights[name] += weight

    def read(self, device):
        """{name: number}, the same on every rank, whatever order they were added in."""
        names = sorted(self.sums)
        found = [torch.as_tensor(values[name], dtype=torch.float32, device=device)
                 for values in (self.sums, self.weights) for name in names]
        sums, weights = all_reduce_sum(torch.stack(found)).view(2, -1)
        return dict(zip(names, (sums / weights).tolist()))


def in_words(name, value):
    """A number of this name for people: a share of what was written is in percent."""
    return f"{value:.1%}" if name in ('verify', 'pass@4') else f"{value:.3f}"


def check_finite(line):
    """Exits with an error if a number of a line of the log, {key: number}, is NaN or infinite."""
    for key, value in line.items():
        if not math.isfinite(value):
            fail(f"step {line['step']}: {key} is {value}; no checkpoint was overwritten; "
                 "lower --learning_rate, or look at the rewards")


class Log:
    """The folder of a run, which is this run's alone; log.jsonl in it, a JSON object a line; the
    same in words on the console, and to wandb if asked for; and samples.jsonl."""

    def __init__(self, folder, resume=False):
        """Exits with an error if the folder holds something else than a run, or there is nothing in
        it to resume."""
        self.folder = os.path.normpath(folder)
        self.has_wandb = False
        self.wandb_id = secrets.token_hex(4)
        old = read_object(f'{folder}/config.json')
        if resume:
            self.wandb_id = old.get('wandb_id')
        self.is_run = old.get('written_by') == 'train_grpo.py'
        names = glob.glob('*', root_dir=folder)
        if not self.is_run and (names or resume):
            fail(f"{folder} holds {', '.join(names[:3]) or 'nothing'}, and no run of ours; choose "
                 "another --out_dir=DIR")

    def lock(self):
        try:
            self.held = lock_file(f'{self.folder}/.lock')
        except OSError as e:
            fail(f"another run is writing to {self.folder}, or nobody can ({e.strerror}); choose "
                 "another --out_dir=DIR")

    def begin(self, step, config, resume):
        """Writes config.json. A run that is resumed goes on with its log and samples, without what
        is later than its step; another one moves aside what stands in the folder."""
        self.lock()
        if self.is_run and not resume:
            self.move_aside()
        for part in os.listdir(self.folder):    # left by a run that was killed
            if re.fullmatch(r'(ckpt|best|config|log|samples)\S*\.\d+\.tmp', part):
                os.unlink(f'{self.folder}/{part}')
        with new_file(f'{self.folder}/config.json', 'w') as file:
            ours = {'written_by': 'train_grpo.py', 'wandb_id': self.wandb_id}
            json.dump(ours | config, file, indent=1)
        for path in (f'{self.folder}/log.jsonl', f'{self.folder}/samples.jsonl'):
            lines = [line for line in read_json_lines(path) if line['step'] < step]
            with new_file(path, 'w') as file:
                file.writelines(json.dumps(line) + '\n' for line in lines)

    def move_aside(self):
        """Renames the folder to the first free folder-1, folder-2, ..., and makes a new one."""
        names = (f'{self.folder}-{number}' for number in itertools.count(1))
        aside = next(name for name in names if not os.path.exists(name))
        if os.path.islink(self.folder):
            fail(f"{self.folder} is a link to another run; choose another --out_dir=DIR")
        with writing(self.folder):
            os.rename(self.folder, aside)
        print(f"{self.folder} held another run, which is now {aside}")
        self.lock()

    def wandb(self, **settings):
        """Also logs to wandb."""
        self.has_wandb = True
        self.tell_wandb('init', **settings, id=self.wandb_id, resume='allow',
                        settings={'init_timeout': 30})

    def tell_wandb(self, function, *args, **how):
        """Calls a function of wandb. The first failure is told, and ends wandb, not the run."""
        if self.has_wandb:
            try:
                import wandb
                getattr(wandb, function)(*args, **how)
            except Exception as e:
                self.has_wandb = False
                print(f"warning: no wandb ({repr(e)[:80]}); {self.folder}/log.jsonl has everything")

    def append(self, name, lines):
        """Adds objects to a file of the folder, one a line."""
        path = f'{self.folder}/{name}'
        with writing(path), open(path, 'a') as file:
            file.writelines(json.dumps(line, allow_nan=False) + '\n' for line in lines)

    def write(self, line, text):
        """Writes the line, a dict with a step, of a step or of an evaluation; prints the text."""
        self.append('log.jsonl', [line])
        print(text, flush=True)
        self.tell_wandb('log', line, step=line['step'])

    def write_samples(self, step, samples):
        """Writes completions to samples.jsonl: dicts with the same keys."""
        self.append('samples.jsonl', [{'step': step} | sample for sample in samples])

    def end(self):
        self.tell_wandb('finish')
