"""What every script needs and nobody comes to read: errors and signals, overrides, checks of knobs,
device and ranks, files, clock, statistics, log. Nothing here knows a knob of one script.

Scripts import it before torch, so that a signal during those seconds is answered with a line."""
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

HOME = os.path.dirname(os.path.abspath(__file__))


# ---- ranks: the environment says who we are, as torchrun sets it ---------------------------------


def rank():
    return int(os.environ.get('RANK', 0))


def n_ranks():
    return int(os.environ.get('WORLD_SIZE', 1))


def is_main():
    """Rank 0 makes what is missing, evaluates, prints and saves."""
    return rank() == 0


# ---- errors and signals --------------------------------------------------------------------------


def fail(message):
    """Ends the script with one line on stderr and exit code 1. (In a notebook: SystemExit.)"""
    sys.exit(' '.join(f"error: {message}".splitlines()))


class Stopped(SystemExit):
    """The end that a signal asked for; a function of the user's may raise another SystemExit."""


def go_on_command(*more):
    """The command that was used, with more flags, as one can paste it."""
    command = 'python'
    if n_ranks() > 1:
        command = f"torchrun --nproc_per_node={os.environ.get('LOCAL_WORLD_SIZE', n_ranks())}"
        if os.environ.get('GROUP_WORLD_SIZE', '1') == '1':
            command += ' --standalone'
    flags = [flag for flag in more if flag not in sys.argv]
    return f"{command} {shlex.join(sys.argv + flags)}"


def signal_numbers():
    """Ctrl-C, kill, and a closed terminal: but under nohup, which has that ignored, and on Windows,
    which does not have it."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, 'SIGHUP') and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


def on_early_signal(number, frame):
    """Ends a script, and what it runs, with one line on how to go on."""
    atexit.register(print, f"\nstopped; again with: {go_on_command()}", flush=True)
    raise Stopped(128 + number)


class StopSignal:
    """Once listen() was called, the first signal is only noted, so that a step can end and be
    saved; a second one stops at once."""

    def __init__(self):
        self.code = 0                           # the exit code asked for: 128 + the signal's number

    def listen(self):
        for number in signal_numbers():
            signal.signal(number, self.on_signal)

    def on_signal(self, number, frame):
        if self.code:
            raise Stopped(128 + number)
        self.code = 128 + number
        if is_main():                           # a print here may interrupt another one, and fail
            with contextlib.suppress(OSError):
                os.write(1, b"\nfinishing this step and saving; once more to stop at once\n")

    def agree(self, device):
        """The exit code if any rank was asked to stop, else 0. All ranks ask at the same place."""
        if n_ranks() == 1:
            return self.code
        return int(all_reduce_max(torch.tensor(self.code, device=device)))


class Output:
    """stdout that outlives its reader: a run whose output goes to `| head` goes on to its end."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        return self.try_or_drop(self.stream.write, text)

    def flush(self):
        return self.try_or_drop(self.stream.flush)

    def try_or_drop(self, function, *arguments):
        try:
            return function(*arguments)
        except OSError:                         # from now on, what is written goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def __getattr__(self, name):
        return getattr(self.stream, name)


def on_error(kind, error, trace):
    """What nobody could foresee gets a traceback; what a machine lacks gets one line."""
    text = str(error).split('\n')[0]
    no_memory = isinstance(error, MemoryError) or 'OutOfMemory' in kind.__name__
    lacks = "(can't|cannot|not enough|unable).*(allocat|memory)|too big|overflow|allowed dimension"
    if no_memory or re.search(lacks, text, re.I):
        print(f"error: out of memory: {text}; ask for less: --batch_size, --block_size, the size "
              "of the network", file=sys.stderr)
    elif isinstance(error, OSError):
        print(f"error: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def is_our_script():
    """Is it one of our scripts that runs, not a test or a notebook that imports us?"""
    script = os.path.relpath(os.path.abspath(sys.argv[0]), HOME).replace(os.sep, '/')
    return re.fullmatch(r'\w+\.py|data/\w+/prepare\.py', script) is not None


if is_our_script():
    sys.excepthook = on_error
    if sys.stdout is None:                      # closed by whoever started us
        sys.stdout = open(os.devnull, 'w', encoding='utf-8')
    with contextlib.suppress(OSError):          # a terminal may not have all letters of a corpus
        sys.stdout.reconfigure(errors='replace')
    sys.stdout = Output(sys.stdout)
    for number in signal_numbers():
        signal.signal(number, on_early_signal)

os.environ.setdefault('OMP_WAIT_POLICY', 'passive')
import torch                                    # takes seconds, hence the handlers above
import torch.distributed as dist
from torch import nn


# ---- overrides, in the exec style of nanoGPT, checked the same from files and flags --------------


def knobs(namespace):
    """{name: value} of the knobs in a module's globals(), in the order written: whatever has a
    lower-case name and is a number, a bool, a string or a dict."""
    found = {}
    for name, value in namespace.items():
        if re.fullmatch('[a-z][a-z0-9_]*', name) and type(value) in (bool, int, float, str, dict):
            found[name] = value
    return found


def configure(namespace, argv=None, quiet=False):
    """Applies config files and --key=value flags, in the order given, to a script's globals().

    Files may also define functions, and helpers _like_this or LIKE_THIS. A script may have a table
    ELSEWHERE {knob: 'names'} of what others call its knobs, for the answer to a wrong name. Returns
    all knobs and the functions, each {name: value}. Ends with one line if a name is unknown or a
    type is wrong."""
    defaults = knobs(namespace)
    functions = {}
    code = []                                   # what the files hold besides knobs
    if argv is None:
        argv = sys.argv[1:]

    for arg in argv:
        if arg in ('--help', '-h'):
            print_help(namespace, defaults)
            sys.exit(0)
        if arg.startswith('--') or arg in defaults:
            found = read_flag(arg, defaults)
        else:
            found, rest = read_config_file(arg, namespace)
            code.append(rest)
            if not quiet and is_main():
                print_promise(arg)
        for name, value in found.items():
            if name in defaults:
                namespace[name] = checked_type(arg, name, value, defaults[name])
            elif callable(value):
                functions[name] = value
            elif type(value) is not type(sys):              # modules that it imports are fine
                near = difflib.get_close_matches(name, defaults, 1, cutoff=0)[0]
                for knob, names in namespace.get('ELSEWHERE', {}).items():
                    if name.replace('-', '_') in names.split():
                        near = knob
                fail(f"{arg}: unknown key '{name}'; did you mean '{near}'? (--help lists them all)")

    config = knobs(namespace)
    if functions:
        config['functions'] = digest_of(code)   # a run knows by it that its rewards have changed
    changed = [f"{name}={value!r}" for name, value in knobs(namespace).items()
               if value != defaults[name]]
    if changed and not quiet and is_main():
        print(textwrap.fill(f"overrides: {', '.join(changed)}", 100, subsequent_indent='  '))
    return config, functions


def print_promise(path):
    """Prints the comment at the head of a config file: what it does, and what to expect of it."""
    with open(path, encoding='utf-8-sig') as file:
        for line in file:
            if not line.startswith('#'):
                break
            print(line.lstrip('# ').rstrip())


def read_flag(arg, defaults):
    """{key: value} of --key=value. The value is a Python literal, or text as it stands."""
    key, equals, text = arg.removeprefix('--').partition('=')
    if key in defaults and not equals:
        fail(f"{arg}: expected --{key}=VALUE, such as --{key}={defaults[key]!r}")
    if type(defaults.get(key)) is str:
        return {key: text}
    try:
        return {key: ast.literal_eval(text)}
    except (ValueError, SyntaxError):           # no literal: checked_type() will tell its type
        return {key: text}


def read_config_file(path, namespace):
    """What a config file defines, {name: value}, and its code without the lines that set knobs. It
    sees the knobs as they are so far. Programs are refused."""
    if not os.path.isfile(path):
        near = difflib.get_close_matches(path, glob.glob('config/*.py', root_dir=HOME), 9, cutoff=0)
        fail(f"no config file {path}; there are, among others, {', '.join(near)}")
    try:
        with open(path, encoding='utf-8-sig') as file:
            tree = ast.parse(file.read())
        if is_program(tree):
            fail(f"{path} is a program; expected a config file: lines such as batch_size = 32, "
                 "and functions that serve as rewards")
        defined = runpy.run_path(path, knobs(namespace))
    except Stopped:
        raise
    except (Exception, SystemExit) as e:        # a SyntaxError tells its line
        fail(f"{path}: {type(e).__name__}: {e}")

    own = {node.id for node in ast.walk(tree)
           if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    found = {}
    for name, value in defined.items():
        is_helper = name[0] == '_' or name[0].isupper()
        if callable(value) or (name in own and not is_helper):
            found[name] = value
    if not found:
        fail(f"{path} defines no knob and no function; expected lines such as batch_size = 32")
    rest = [node for node in tree.body if not isinstance(node, ast.Assign)
            or getattr(node.targets[0], 'id', '') not in knobs(namespace)]
    return found, [ast.unparse(rest), imported_code(defined.values())]


def imported_code(values):
    """What the files of this folder hold that define these values, and those that these import in
    turn; our own scripts and installed packages do not count."""
    ours = ('common', 'model', 'judge', 'train_grpo', 'data.dataset')
    values = list(values)
    code = {}                                   # {path: bytes}
    for value in values:                        # it grows
        name = value.__name__ if type(value) is type(sys) else getattr(value, '__module__', None)
        module = sys.modules.get(name)
        path = getattr(module, '__file__', None) or ''
        is_theirs = path.startswith(HOME + os.sep) and 'site-packages' not in path
        if is_theirs and name not in ours and path not in code:
            code[path] = pathlib.Path(path).read_bytes()
            values += vars(module).values()
    return [code[path] for path in sorted(code)]


def code_digest(path, values):
    """Stands for the code of a file of this folder, and of what it imports; values: what it
    defines."""
    return digest_of(pathlib.Path(HOME, path).read_bytes(), imported_code(values))


def is_program(tree):
    """Does a syntax tree define a class, or ask for __name__? Config files need neither."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            return True
        if isinstance(node, ast.Name) and node.id == '__name__':
            return True
    return False


def checked_type(arg, name, value, default):
    """The value, if it is of the default's type, and no giant; an int will do for a float."""
    largest = 1e12 if type(value) is int else 1e30
    if type(value) in (int, float) and largest < abs(value) < float('inf'):
        fail(f"{arg}: {name} is too large; expected at most {largest:g}")
    if type(default) is float and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        fail(f"{arg}: {name} = {value!r} is of type {type(value).__name__}, expected "
             f"{type(default).__name__} such as {default!r}")
    return value


def print_help(namespace, defaults):
    """The script's docstring, and each knob with its default and the comment beside it."""
    print(namespace['__doc__'].strip(), '\n\nknobs (--key=value, or in a config file):')
    with open(namespace['__file__'], encoding='utf-8') as file:
        glosses = dict(re.findall(r'^(\w+) = .*?# (.*)', file.read(), re.MULTILINE))
    for name, value in defaults.items():
        print(f"  {name:28} {value!r:24} {glosses.get(name, '')}")


# ---- checks of knobs, to be called as at_least(1, batch_size=batch_size) -------------------------


def one_of(choices, **knobs):
    """Ends with one line if a knob is not among the choices."""
    for name, value in knobs.items():
        if value not in choices:
            fail(f"{name} = {value!r}: expected one of {', '.join(map(repr, choices))}")


def at_least(low, why='', **knobs):
    """Ends with one line if a knob is smaller than low, or no number."""
    for name, value in knobs.items():
        if not low <= value < float('inf'):
            fail(f"{name} = {value!r}: expected {name} >= {low}{why and f' ({why})'}")


def above(low, why='', **knobs):
    """Ends with one line if a knob is not larger than low."""
    for name, value in knobs.items():
        if not low < value < float('inf'):
            fail(f"{name} = {value!r}: expected {name} > {low}{why and f' ({why})'}")


def between(low, high, **knobs):
    """Ends with one line if a knob is not in [low, high]."""
    for name, value in knobs.items():
        if not low <= value <= high:
            fail(f"{name} = {value!r}: expected {low} <= {name} <= {high}")


# ---- what ranks do together ----------------------------------------------------------------------


def all_reduce_sum(tensor):
    """Sum over all ranks, in place; returns the tensor. One rank: as it is."""
    if n_ranks() > 1:
        dist.all_reduce(tensor, dist.ReduceOp.SUM)
    return tensor


def all_reduce_max(tensor):
    """Maximum over all ranks, in place; returns the tensor."""
    if n_ranks() > 1:
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor


def all_reduce_gradients(model):
    """Adds up the gradients of all ranks, in one message."""
    if n_ranks() > 1:
        for p in model.parameters():
            if p.grad is None:                  # this rank had nothing to add
                p.grad = torch.zeros_like(p)
        gradients = [p.grad for p in model.parameters()]
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
    aborts at times. A signal comes too late by now."""
    for number in signal_numbers():
        signal.signal(number, signal.SIG_IGN)
    if n_ranks() > 1:
        dist.barrier()
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


# ---- the device ----------------------------------------------------------------------------------


def resolve_device(device):
    """'auto' -> the best there is. Ends with one line if the device is not there."""
    available = [name for name in ('cuda', 'mps', 'cpu') if getattr(torch, name).is_available()]
    if device == 'auto':
        device = available[0]
    kind, colon, number = device.partition(':')
    if kind not in available:
        fail(f"device = {device} is not available; there is {', '.join(available)}, or auto")
    count = torch.cuda.device_count() if kind == 'cuda' else 1
    if colon and number not in map(str, range(count)):
        fail(f"device = {device}: expected {kind}:0 to {kind}:{count - 1}, or auto")
    if device == 'cuda' and n_ranks() > 1:
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    return torch.device(device)


@functools.cache
def resolve_dtype(device_type, dtype):
    """'auto' -> 'bfloat16' where the device multiplies it, else 'float32'."""
    if dtype != 'auto':
        return dtype
    if device_type == 'cuda':
        return 'bfloat16'
    capabilities = {}
    if device_type == 'cpu' and hasattr(torch.cpu, 'get_capabilities'):     # torch 2.10 and later
        capabilities = torch.cpu.get_capabilities()
    if capabilities.get('avx512_bf16') or capabilities.get('amx_bf16'):
        return 'bfloat16'
    return 'float32'


def autocast(device, dtype):
    """Context in which products are bfloat16, if they are to be; softmax stays float32."""
    is_bfloat16 = resolve_dtype(device.type, dtype) == 'bfloat16'
    return torch.autocast(device.type, torch.bfloat16, enabled=is_bfloat16, cache_enabled=False)


def init_device(device, dtype, backend=''):
    """Sets torch up for a run. Returns the device, and in words what was chosen."""
    device = resolve_device(device)
    dtype = resolve_dtype(device.type, dtype)
    torch.set_default_dtype(torch.float64 if dtype == 'float64' else torch.float32)
    torch.set_float32_matmul_precision('high')          # TF32 on CUDA
    note = f"{device}, products in {dtype}"

    if device.type == 'cuda':
        torch.cuda.set_device(device)
    if device.type == 'cpu':
        keep_freed_memory()
        choose_matmul_precision()
        note += f", {torch.get_num_threads()} thread(s)"

    if n_ranks() > 1:
        # Ranks wait for as long as it takes rank 0 to make what is missing.
        dist.init_process_group(backend or ('nccl' if device.type == 'cuda' else 'gloo'),
                                timeout=datetime.timedelta(hours=9))
        atexit.register(dist.destroy_process_group)     # or gloo aborts at times
        note += f", {n_ranks()} ranks"
    return device, note


def keep_freed_memory():
    """Lets glibc keep the buffers that a step frees. Mapping them anew costs up to half a step in
    page faults. Options -1, -2 and -3 are the thresholds for trimming, padding and mapping."""
    if not sys.platform.startswith('linux'):
        return
    with contextlib.suppress(OSError, AttributeError):          # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, 2 ** 30)
        mallopt(-2, 2 ** 26)
        mallopt(-3, 2 ** 26)


def choose_matmul_precision():
    """Lets float32 products of this CPU use another library if that is as exact; says which.

    On AMD 'medium' calls one that is twice as fast, elsewhere it may round to bfloat16. Its error
    (float32's own is 3e-7) decides. By stopwatch, the last bits would depend on the machine's load.
    """
    torch.set_float32_matmul_precision('medium')
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 256, 256, generator=rng, dtype=torch.float32)
    error = ((a @ b - a.double() @ b.double()).norm() / 256 ** 1.5).item()   # relative to |a @ b|
    precision = 'medium' if error <= 1e-6 else 'highest'
    torch.set_float32_matmul_precision(precision)
    return f"float32 products '{precision}' (error of 'medium': {error:.0e})"


def peak_memory(device):
    """Largest memory so far in GB: of the GPU, or of this process; None where nobody can tell."""
    if device.type == 'cuda':
        return torch.cuda.max_memory_allocated() / 1e9
    try:
        import resource                         # not on Windows
    except ImportError:
        return None
    unit = 1 if sys.platform == 'darwin' else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def print_changes(old, new):
    """Says which knobs of a run, {name: value}, are not those it was begun with."""
    changed = [f'{name} {old.get(name)!r} -> {value!r}' for name, value in new.items()
               if old.get(name) != value and name not in ('resume', 'out_dir')]
    if changed and is_main():
        print(f"resumed with changes: {', '.join(changed)}")


def check_finite(line):
    """Exits with an error if a number of a line of the log, {key: number}, is NaN or infinite."""
    for key, value in line.items():
        if not math.isfinite(value):
            fail(f"step {line.get('step', 0)}: {key} is {value}; no checkpoint was overwritten; "
                 "lower --learning_rate, or look at the rewards")


# ---- processes and files -------------------------------------------------------------------------


def run_missing(commands):
    """Makes what is missing of {path: command}: runs these scripts of ours, visibly and side by
    side, each on its share of the cores. What another process is just making is waited for. Exits
    with the code of one that fails."""
    running = []                                # of each: the lock of its path, the process
    missing = [path for path in commands if path and not os.path.exists(path)]
    env = os.environ | {'RANK': '0', 'WORLD_SIZE': '1'}
    if len(missing) > 1:
        env.setdefault('OMP_NUM_THREADS', str(max(1, os.cpu_count() // len(missing))))
    for path in missing:
        lock = lock_file(f'{path}.lock', wait=True)
        if not os.path.exists(path):            # nobody has made it meanwhile
            print('$', commands[path], flush=True)
            words = [sys.executable] + shlex.split(commands[path])[1:]
            running.append((lock, subprocess.Popen(words, env=env)))
    for lock, process in running:
        code = process.wait()
        os.unlink(lock.name)
        lock.close()
        if code != 0:
            for _, other in running:
                other.terminate()
            sys.exit(code if code > 0 else 128 - code)


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
def new_file(path, mode='wb'):
    """Opens a file that takes its name only once it is whole and on the disk. If anything goes
    wrong before, nothing is left behind and what stood there stays; one line says so. Two processes
    may write the same path at once."""
    part = f'{path}.{os.getpid()}.tmp'
    try:
        os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
        with open(part, mode, encoding=None if 'b' in mode else 'utf-8') as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except (OSError, RuntimeError) as e:        # torch.save raises the latter on a full disk
        first_line = str(e).partition('\n')[0]
        why = getattr(e, 'strerror', None) or f"is the disk full? ({first_line})"
        fail(f"cannot write {path}: {why}; what stood there before is whole; make room, or choose "
             "another place")
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)


def read_json(path, expected, make):
    """The object {key: value} of a JSON file of ours. expected: {key: type} that must be there.
    Ends with one line, and the command that makes the file, if it is something else."""
    try:
        with open(path, encoding='utf-8') as file:
            found = json.load(file)
    except (OSError, ValueError) as e:
        why = getattr(e, 'strerror', None) or f"no JSON: {e}"
        fail(f"cannot read {path}: {why}; make it with: {make}")
    for key, kind in expected.items():
        if type(found) is not dict or type(found.get(key)) is not kind:
            fail(f"{path} is not what we wrote: expected an object with '{key}'; make it with: "
                 f"{make}")
    return found


def read_json_lines(path):
    """The objects in a file with one a line, each with a step. A last line without its end is still
    being written; other lines are left out, and the first of them is named in a warning."""
    found = []
    bad = []
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            lines = file.readlines()
    except OSError as e:
        fail(f"cannot read {path}: {e.strerror}; it is written by train_grpo.py")
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        has_step = type(line) is dict and type(line.get('step')) is int
        if has_step and text.endswith('\n'):
            found.append(line)
        elif number < len(lines):
            bad.append(number)
    if bad:
        print(f"warning: {path}, line {bad[0]}: no JSON object with a step; {len(bad)} such "
              "line(s) left out")
    return found


open_locks = []         # files; a lock lives as long as its file is open, and dies with the process


def lock_folder(folder):
    """Makes a folder that only this process writes to; exits with an error if another one does."""
    try:
        open_locks.append(lock_file(f'{folder}/.lock'))
    except BlockingIOError:
        fail(f"another run is writing to {folder}; choose another --out_dir=DIR, or stop that one")
    except OSError as e:
        fail(f"cannot write to {folder}: {e.strerror}; choose another --out_dir=DIR")


def move_aside(folder):
    """Renames a folder to the first free folder-1, folder-2, ..., and makes a new one."""
    folder = os.path.normpath(folder)           # without a slash at its end
    number = 1
    while os.path.exists(f'{folder}-{number}'):
        number += 1
    try:
        os.rename(folder, f'{folder}-{number}')
    except OSError as e:
        fail(f"{folder} holds another run, and cannot be renamed ({e.strerror}); choose another "
             "--out_dir=DIR")
    print(f"{folder} held another run, which is now {folder}-{number}; delete what you do not need")
    lock_folder(folder)


def digest_of(*things):
    """16 hex digits that stand for networks, tensors, bytes, and plain values in dicts, lists."""
    sha = hashlib.sha256()

    def feed(thing):
        if isinstance(thing, nn.Module):
            feed(thing.state_dict())
        elif isinstance(thing, torch.Tensor):
            values = thing.detach().cpu().contiguous()
            feed([str(values.dtype), list(values.shape)])
            sha.update(values.flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(thing, bytes):
            sha.update(thing)
        elif isinstance(thing, dict):
            for key, value in thing.items():
                feed(key)
                feed(value)
        elif isinstance(thing, (list, tuple)):
            for value in thing:
                feed(value)
        else:
            sha.update(f'{thing!r};'.encode())

    feed(things)
    return sha.hexdigest()[:16]


# ---- clock, statistics, log ----------------------------------------------------------------------


class Clock:
    """Milliseconds per phase: from each mark() to the next. On CUDA by events, so nothing waits."""

    def __init__(self):
        self.marks = collections.deque(maxlen=10000)    # in a notebook nobody may ever read() them

    def mark(self, phase):
        if torch.cuda.is_available():
            event = torch.cuda.Event(enable_timing=True)
            self.marks.append((phase, torch.cuda.current_stream().record_event(event)))
        else:
            self.marks.append((phase, time.perf_counter()))

    def read(self):
        """{phase: ms} since the last call, a Counter: 0 for phases that did not occur."""
        self.mark('')
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        total = collections.Counter()
        marks = list(self.marks)
        self.marks.clear()
        for (phase, begin), (_, end) in zip(marks, marks[1:]):
            if torch.cuda.is_available():
                total[phase] += begin.elapsed_time(end)
            else:
                total[phase] += 1e3 * (end - begin)
        return total


clock = Clock()         # one for all files, since a phase may begin in one and end in another


class Statistics:
    """Means by name, each a pair (sum, weight), over micro-steps, updates and ranks; and maxima.
    Values may be tensors on the device: nothing waits for them before read()."""

    def __init__(self):
        self.pairs = {}
        self.maxima = {}

    def add(self, weight, **sums):
        """Adds to each name its sum, over things that weigh `weight` in all."""
        for name, value in sums.items():
            total, weights = self.pairs.get(name, (0, 0))
            self.pairs[name] = (total + value, weights + weight)

    def add_max(self, **values):
        for name, value in values.items():
            self.maxima[name] = max(self.maxima.get(name, value), value)

    def read(self, device):
        """{name: number}, the same on every rank. Here, and only here, the device is waited for."""
        def vector(values):
            return torch.stack([torch.as_tensor(x, dtype=torch.float32, device=device)
                                for x in values])

        totals = torch.stack((vector(total for total, _ in self.pairs.values()),
                              vector(weight for _, weight in self.pairs.values())))     # (2, names)
        totals, weights = all_reduce_sum(totals)
        found = dict(zip(self.pairs, (totals / weights).tolist()))
        if self.maxima:
            found |= zip(self.maxima, all_reduce_max(vector(self.maxima.values())).tolist())
        return found


class Log:
    """What a run tells: log.jsonl in a folder, a JSON object a line; the same in words on the
    console, and to wandb if asked for; and samples.jsonl. The folder is this run's alone."""

    def __init__(self, folder, resume=False, wandb_settings=None):
        """wandb_settings: arguments of wandb.init(), None: no wandb. Ends with one line if the
        folder cannot be written, another run writes there, it holds something else than a run, or
        there is nothing in it to resume."""
        is_run = os.path.exists(f'{folder}/config.json')
        if resume and not is_run:
            runs = [os.path.dirname(path) for path in sorted(glob.glob('*/log.jsonl'))]
            fail(f"nothing to resume: no run in {folder}; there are: {', '.join(runs) or 'none'}; "
                 f"start one with: {go_on_command('--resume=False')}")
        with contextlib.suppress(OSError):      # a start would move them aside
            others = [name for name in sorted(os.listdir(folder))
                      if name not in ('.lock', 'log.jsonl') and not name.endswith('.tmp')]
            if others and not is_run:
                fail(f"{folder} holds something else than a run: {others[0]}; choose another "
                     "--out_dir=DIR")
        self.folder = folder
        self.path = f'{folder}/log.jsonl'
        self.wandb_settings = wandb_settings
        self.wandb_run = None
        lock_folder(folder)
        self.append('log.jsonl', [])

    def append(self, name, lines):
        """Adds objects to a file of the folder, one a line."""
        path = f'{self.folder}/{name}'
        try:
            with open(path, 'a', encoding='utf-8') as file:
                file.write(''.join(json.dumps(line, allow_nan=False) + '\n' for line in lines))
        except OSError as e:
            fail(f"cannot write {path}: {e.strerror}; checkpoints are whole; make room, or choose "
                 "another --out_dir=DIR")

    def begin(self, step, config, resume):
        """Writes config.json. A run that is resumed goes on with its log and samples, without what
        is later than its step; another one moves aside what stands in the folder, if that is a run.
        """
        for part in glob.glob(f'{glob.escape(self.folder)}/*.tmp'):     # of a run that was killed
            os.unlink(part)
        kept = {'log.jsonl': []}                # {file: lines}
        if resume:
            for name in ('log.jsonl', 'samples.jsonl'):
                if os.path.exists(f'{self.folder}/{name}'):
                    lines = read_json_lines(f'{self.folder}/{name}')
                    kept[name] = [line for line in lines if line['step'] < step]
        elif os.path.getsize(self.path) > 0 or glob.glob(f'{self.folder}/*.pt'):
            move_aside(self.folder)
        with new_file(f'{self.folder}/config.json', 'w') as file:
            json.dump(config, file, indent=1)
        for name, lines in kept.items():
            with new_file(f'{self.folder}/{name}', 'w') as file:
                for line in lines:
                    file.write(json.dumps(line) + '\n')
        if self.wandb_settings:
            self.wandb_settings['id'] = self.wandb_id()

    def wandb_id(self):
        """The name by which wandb knows this run; one that is resumed has it already."""
        path = f'{self.folder}/wandb_id'
        if not os.path.exists(path):
            with new_file(path, 'w') as file:
                file.write(secrets.token_hex(4))
        with open(path, encoding='utf-8') as file:
            return file.read()

    def write(self, line, text):
        """Writes the line, a dict with a step, of a step or of an evaluation; prints the text."""
        self.append('log.jsonl', [line])
        print(text, flush=True)
        self.tell_wandb(line['step'], line)

    def write_samples(self, step, samples):
        """Writes completions to samples.jsonl: dicts with the same step and keys."""
        self.append('samples.jsonl', [{'step': step} | sample for sample in samples]); return

        def table(wandb):
            columns = list(samples[0])
            rows = [[sample[name] for name in columns] for sample in samples]
            return wandb.Table(columns=columns, data=rows)

        self.tell_wandb(samples[0]['step'], {f"samples/{samples[0]['split']}": table})

    def tell_wandb(self, step, line):
        """Logs a line, in which a function stands for what it makes of wandb."""
        if self.wandb_settings is None:
            return
        try:
            import wandb
            if self.wandb_run is None:
                self.wandb_run = wandb.init(**self.wandb_settings, resume='allow',
                                            settings={'init_timeout': 30})
            line = {key: value(wandb) if callable(value) else value for key, value in line.items()}
            self.wandb_run.log(line, step=step)
        except Exception as e:      # the first failure is told once, and ends wandb, not the run
            self.wandb_settings = None
            print(f"warning: no wandb ({repr(e)[:80]}); {self.path} has everything")

    def end(self):
        with contextlib.suppress(Exception):    # of wandb, which may not be there
            self.wandb_run.finish()
