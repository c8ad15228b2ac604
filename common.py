"""Shared helpers: command line, ranks, device, console, signals; the log and the progress of a run.
"""
import ast
import atexit
import contextlib
import ctypes
import datetime
import difflib
import glob
import inspect
import json
import math
import os
import re
import runpy
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

BLANK = '_'                 # a blank, as people type it and see it
KINDS = {bool: 'True or False', int: 'a whole number, not below 0', str: 'text',
         float: 'a finite number, not below 0', dict: 'a dict'}
if not __debug__:                               # asserts are our checks of what users give
    sys.exit("error: python -O and PYTHONOPTIMIZE remove checks that protect your files")


def fail(message):
    """Exit with one line and code 1. For everyday mistakes, which need no traceback."""
    sys.exit(f"error: {message}")


def show_error(kind, error, trace):
    """The excepthook: a failed assert or file operation is one line, all else has its traceback."""
    if kind is BrokenPipeError:                 # the reader has seen enough, as in `... | head`
        os._exit(1)
    if issubclass(kind, (AssertionError, OSError)) and str(error):
        cause = error.__cause__ or error        # of a RewardError: what the user's function raised
        *_, frame = traceback.extract_tb(cause.__traceback__)
        print(f"error: {error} ({frame.filename}, line {frame.lineno})", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


@contextlib.contextmanager
def reading(path):
    """Turn what goes wrong in this block, if a file has unexpected contents, into one line."""
    try:
        yield
    except (AssertionError, OSError):           # these are sentences already
        raise
    except Exception as e:                      # json, torch and safetensors raise a dozen kinds
        fail(f"{path} is damaged, or not what was expected: {e!r:.300}")


def fail_unknown(message, name, known):
    """Exit, and suggest known names that are similar."""
    # names that share most of their letters
    similar = difflib.get_close_matches(name, known)
    fail(f"{message} '{name}'; similar names: {similar or 'none'}")


# ---- command line --------------------------------------------------------------------------------


def knobs_of(namespace):
    """Return {name: value} of the knobs in a script's globals(): lower-case names of plain values.
    """
    return {name: value for name, value in namespace.items()
            if name[0].islower() and type(value) in KINDS}


def configure(namespace, words):
    """Apply words of a command line, which are config files and --name=value flags, to the knobs in
    a script's globals(), in order.

    A config file is Python. It sees the knobs as they are so far, and sets some of them. It may
    also define functions, which can serve as rewards. Names that begin with _ or a capital letter
    stay inside the file. Return all knobs and all functions, each as {name: value}. Exit if a name
    is unknown, a type is wrong, a number is negative or not finite, or a value is not among the
    script's CHOICES {name: values}."""
    # Like nanoGPT's configurator: no argparse, no dataclass. A script's globals are its knobs. But
    # unlike there, a typo in a config file is an error.
    sys.excepthook = show_error
    defaults = knobs_of(namespace)
    functions = {}
    with contextlib.suppress(AttributeError):   # a notebook's console has any sign
        sys.stdout.reconfigure(errors='replace')
    for word in words:
        if word in ('-h', '--help'):
            print_help(namespace)
        for name, value in parse_word(word, knobs_of(namespace)).items():
            if callable(value) and name not in defaults:        # a reward
                functions[name] = value
                continue
            if name not in defaults:
                script = Path(namespace.get('__file__', 'this script')).name
                fail_unknown(f'{word}: expected a knob of {script} (see --help; config/networks/ '
                             'is for pretrain.py) or _name, not', name, defaults)
            # The type of the default is the type of the knob. A flag is text: read it as Python.
            # The values of a file stay: literal_eval() refuses them. float() takes the 0 of
            # kl_beta = 0, too.
            kind = type(defaults[name])
            if kind is not str and type(value) is not bool:     # float(True) would be 1.0
                with contextlib.suppress(ValueError, SyntaxError, TypeError):
                    value = float(value) if kind is float else ast.literal_eval(value)
            # (type() and not isinstance(), because True is an int)
            if type(value) is not kind or kind in (int, float) and not 0 <= value < math.inf:
                fail(f"{word}: {name} = {value!r}: expected {KINDS[kind]}, such as "
                     f"{defaults[name]!r}")
            namespace[name] = os.path.expanduser(value) if kind is str else value       # ~/runs
    # After all words are read: a later one may have corrected an earlier one.
    for name, choices in namespace.get('CHOICES', {}).items():
        if namespace[name] not in choices:
            expected = f"one of {choices}"
            if type(choices) is range:
                expected = f"{choices[0]} to {choices[-1]}"
            fail(f"{name} = {namespace[name]!r}: expected {expected}")
    return knobs_of(namespace), functions


def parse_word(word, knobs):
    """Return {name: value} from one argument of the command line: --name=value, whose value stays
    text, or a config file, which sees the knobs."""
    if word.startswith('-') and '=' in word:
        name, _, value = word.lstrip('-').partition('=')
        return {name: value}
    if not word.endswith('.py') or not os.path.isfile(word):
        fail_unknown('expected --name=value without spaces (data: --dataset=FILE), or a config '
                     'file, not', word, glob.glob('config/**/*.py', recursive=True))
    # runpy runs the file in a namespace of its own, which it returns. The knobs are in it, too.
    return {name: value for name, value in runpy.run_path(word, knobs).items()
            if name[0].islower() and not inspect.ismodule(value)}


def print_help(namespace):
    """Print the docstring of a script, and the lines that set its knobs; exit."""
    source = Path(namespace['__file__']).read_text('utf-8')
    # a line that sets a knob, with its comment, or a line that continues the comment
    lines = re.findall('(?m)^(?:[a-z].* = .*| {28})#.*', source)
    print(namespace['__doc__'], 'knobs:', *lines, sep='\n  ', flush=True)
    sys.exit()


# ---- ranks: torchrun says in the environment who we are ------------------------------------------


def rank():
    return int(os.environ.get('RANK', 0))


def n_ranks():
    return int(os.environ.get('WORLD_SIZE', 1))


def print0(*words):
    """Print on rank 0 only."""
    if rank() == 0:
        print(*words, flush=True)


def all_reduce(tensor, op=dist.ReduceOp.SUM):
    """Sum (or another op) over all ranks, in place; return the tensor. One rank: do nothing."""
    if n_ranks() > 1:
        dist.all_reduce(tensor, op)
    return tensor


def barrier():
    """Wait for the other ranks."""
    if n_ranks() > 1:
        dist.barrier()


# ---- device --------------------------------------------------------------------------------------


def init_device(device, dtype):
    """Set torch up for the knobs device and dtype, for the whole process. Return the torch.device.
    """
    if rank() >= n_ranks():
        fail(f"RANK = {rank()}, but WORLD_SIZE = {n_ranks()}: ranks are started by torchrun")
    torch.set_float32_matmul_precision('highest')           # an earlier call may have changed it
    # torch.accelerator is the GPU that this build of torch was made for, if the machine has it.
    if device == 'auto':
        device = str(torch.accelerator.current_accelerator(check_available=True) or 'cpu')
    if device == 'cuda':                        # torchrun gives each rank a GPU
        torch.cuda.init()                       # says so if there is no GPU
        torch.cuda.set_device(int(os.environ.get('LOCAL_RANK', 0)))
        torch.set_float32_matmul_precision('high')          # TF32
    device = torch.empty(0, device=device).device       # 'cuda' becomes cuda:3
    if dtype == 'auto':                         # bfloat16 where the device has it
        has_bfloat16 = False
        if device.type == 'cuda':
            has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        elif device.type == 'cpu':
            has_bfloat16 = torch.cpu._is_avx512_bf16_supported()
        dtype = 'bfloat16' if has_bfloat16 else 'float32'
    torch.set_default_dtype(torch.float64 if dtype == 'float64' else torch.float32)
    # If dtype is bfloat16, matrix products are cast to it, and softmax and sums stay float32. The
    # casts of weights are not kept, because they would outlive the next update of the weights.
    torch.set_autocast_enabled(device.type, dtype == 'bfloat16')
    torch.set_autocast_dtype(device.type, torch.bfloat16)
    torch.set_autocast_cache_enabled(False)
    if device.type == 'cpu' and dtype == 'bfloat16':
        # Products of float32 (the output layer) may have bfloat16 factors, and still float32 sums.
        # CPUs without AMX keep float32 factors, but on an AMD they leave MKL for faster kernels.
        torch.set_float32_matmul_precision('medium')
    keep_freed_memory()
    if n_ranks() > 1:                           # 9 hours: ranks wait while rank 0 makes networks
        dist.init_process_group('nccl' if device.type == 'cuda' else 'gloo',
                                timeout=datetime.timedelta(hours=9))
        atexit.register(dist.destroy_process_group)
    return device


def keep_freed_memory():
    """Stop glibc from returning freed buffers to the system. Page faults otherwise cost 10 to 16 %
    of a step, measured on two cores of an AMD EPYC."""
    with contextlib.suppress(AttributeError, TypeError):    # another C library
        mallopt = ctypes.CDLL(None).mallopt
        # M_TRIM_THRESHOLD: return memory at the end of the heap only if it is more than this
        mallopt(-1, 2 ** 30)
        # M_MMAP_THRESHOLD: take smaller buffers from the heap, where they can be used again
        mallopt(-3, 2 ** 26)


def use_threads(network):
    """Use one thread for a network of less than 256 channels, unless OMP_NUM_THREADS is set.

    Threads wait for each other at every small product. If another process is busy on the machine,
    two threads take two to five times as long as one."""
    # (a pretrained network has no n_embd: it counts as large)
    if network.args.get('n_embd', 256) < 256 and 'OMP_NUM_THREADS' not in os.environ:
        torch.set_num_threads(1)


def as_numbers(values):
    """Return values {name: number or tensor} as {name: number}; all of them must be finite."""
    # float() waits for the device, so this is called once a step.
    numbers = {name: float(value) for name, value in values.items()}
    assert math.isfinite(sum(numbers.values())), (
        f"not finite: {numbers}; no checkpoint was overwritten; is learning_rate too large, or a "
        "reward?")
    return numbers


def print_line(label, numbers):
    """Print numbers {name: number} on one line."""
    print0(label.ljust(9), *[f'| {name} {number:.3f}' for name, number in numbers.items()])


# ---- signals, files ------------------------------------------------------------------------------


class Signals:
    """Ctrl-C, and the SIGTERM of a cluster that wants its machine back, end the process at once,
    without a traceback. After finish_step = True the first one only sets the exit code, so that the
    present step can end and be saved."""
    code = 0
    finish_step = False

    def __init__(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle)

    def of_all_ranks(self, device):
        """Return the exit code of any rank, so that all of them stop after the same step."""
        return int(all_reduce(torch.tensor(self.code, device=device), dist.ReduceOp.MAX))

    def handle(self, number, frame):
        self.code = 128 + number
        if not self.finish_step:
            os.write(2, b"\nstopped\n")
            sys.exit(self.code)
        for number in (signal.SIGINT, signal.SIGTERM):      # the next one ends the process
            signal.signal(number, signal.SIG_DFL)
        os.write(2, b"\nstopping after this step; once more to stop at once\n")


def lock(path):
    """Open a file for appending, and lock it. Exit if another run has locked it."""
    # The lock belongs to the open file. It ends with the process, however that ends.
    file = open(path, 'a')
    try:
        import fcntl
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:                         # Windows has no such locks
        pass
    except OSError:
        fail(f"another run is already writing to {path}; choose another --out_dir=DIR")
    return file


def has_run(folder):
    """Return whether a folder holds a run of ours. Exit if it holds something else."""
    if not os.path.exists(folder) or os.path.isdir(folder) and not os.listdir(folder):
        return False
    if not os.path.exists(f'{folder}/log.jsonl'):
        fail(f"{folder} is no folder of a run; choose another --out_dir")
    return True


def move_aside(folder, needed):
    """Rename the folder of a run: out-grpo becomes out-grpo-1, or the first free number. Exit if
    that run still writes, or if a file in it is needed."""
    for name in needed:                         # perhaps through a link
        if Path(name).resolve().is_relative_to(Path(folder).resolve()):
            fail(f"{name} is in {folder}, which would be moved aside; choose another --out_dir")
    lock(f'{folder}/log.jsonl')
    number = 1
    while os.path.exists(f'{folder}-{number}'):
        number += 1
    os.rename(folder, f'{folder}-{number}')
    print(f"{folder} held another run, which is now in {folder}-{number}")


class Log:
    """The folder of a run: config.json, and log.jsonl and samples.jsonl, one JSON object a line. Of
    several ranks only the first writes.

    A new run moves an older one out of its way. A resumed run appends, and may repeat the steps
    after the last checkpoint. So a reader takes the last training line and the last evaluation line
    of each step."""

    wandb = None

    def __init__(self, folder, config, spent):
        """spent: what clocks() said when the run to be resumed was saved; {}: the run is new."""
        if rank() > 0:
            return
        path = Path(folder, 'log.jsonl')
        if not spent and has_run(folder):
            move_aside(folder, [config[name] for name in ('generator', 'judge', 'dataset')])
        os.makedirs(folder, exist_ok=True)
        self.file = lock(path)
        # A resumed run goes on counting, as if it had begun that much earlier.
        self.began = time.time() - spent.get('seconds', 0)
        self.cpu_began = time.process_time() - spent.get('cpu_seconds', 0)
        self.samples = open(f'{folder}/samples.jsonl', 'a')
        # the knobs of the last command, if the run was resumed with others
        Path(folder, 'config.json').write_text(json.dumps(config, indent=1))
        if config['wandb_project']:             # also log to Weights & Biases
            import wandb
            self.wandb = wandb.init(project=config['wandb_project'], name=path.parent.name,
                                    config=config)

    def clocks(self):
        """Return the seconds since the start of the run, and those of the processor."""
        return {'seconds': round(time.time() - self.began, 3),
                'cpu_seconds': round(time.process_time() - self.cpu_began, 3)}

    def write(self, step, numbers):
        """Append a line {'step': step, name: number, 'seconds': ..., 'cpu_seconds': ...}."""
        if rank() == 0:
            # The clocks come last, so that without them two logs can be compared as text.
            numbers |= self.clocks()
            print(json.dumps({'step': step} | numbers), file=self.file, flush=True)
        if self.wandb:
            self.wandb.log(numbers, step=step)

    def write_samples(self, step, samples):
        """Append samples, a list of dicts, to samples.jsonl, one a line."""
        for sample in samples:
            line = sample | {'step': step}      # even if a column of the dataset has this name
            print(json.dumps(line, default=str), file=self.samples, flush=True)


# ---- a run in numbers and words ------------------------------------------------------------------


@dataclass
class Progress:
    """How far a run has come, by its evaluations on held-out prompts."""
    goal: str                   # the mean to watch: 'verify' or 'reward'
    rewards: dict               # {name: weight}
    evaluations: dict           # {step: means {name: number}}, the start first
    training: tuple = ()        # mean and standard error of the goal in the last training step
    updates: int = 0            # optimizer steps so far

    def values(self):
        """Return (the goal, its step) of all evaluations."""
        return [(means[self.goal], step) for step, means in self.evaluations.items()]

    def ends(self):
        """Return the means of the first evaluation and of the last one."""
        evaluations = list(self.evaluations.values())
        return evaluations[0], evaluations[-1]

    def parts(self):
        """Return the names of the rewards if the goal is their sum, which hides each of them."""
        _, means = self.ends()
        # a dict keeps their order, and has `verify` once if it is a reward, too
        names = dict.fromkeys(['verify', *self.rewards])
        return [name for name in names if self.goal == 'reward' and name in means]

    def numbers(self):
        """Return the numbers of the last evaluation that the console shows."""
        goal = self.goal
        at_start, means = self.ends()
        numbers = {goal: means[goal], 'greedy': means[f'{goal}_greedy'], 'start': at_start[goal],
                   'line to beat': at_start[f'{goal}_greedy'],
                   'standard error': means['standard_error']}
        if self.training:
            numbers['training'] = self.training[0]
        return numbers | {name: means[name] for name in self.parts()}

    def verdict(self):
        """Return in words whether the run worked. Differences of less than two standard errors are
        noise."""
        at_start, means = self.ends()
        start = at_start[self.goal]
        now = means[self.goal]
        before, _ = self.values()[-2:][0]       # the evaluation before the last, if there is one
        noise = 2 * math.hypot(means['standard_error'], at_start['standard_error'])
        words = (f"not better than at the start, {start:.3f} +- {noise:.3f} (docs/data.md: If it "
                 "does not learn)")
        if now > start + noise:
            words = "better than at the start, but not above the line to beat"
        # Samples can be better than greedy decoding, and then they are the line.
        if now > max(start, at_start[f'{self.goal}_greedy']) + noise:
            words = "above the line to beat"
        if now > max(before + 2 * means['standard_error'], start + noise):
            words += "; still rising: try a larger --max_iters"
        # Memorised: training prompts gained twice as much, and more than chance explains.
        training, error = self.training or (start, 0.0)
        if training - start > 2 * max(0, now - start) + noise + 2 * error:
            words += (f"; it has memorised, or its generator had: {training:.3f} on training "
                      "prompts")
        for name in self.parts():
            words += (f" | {name} {at_start[name]:.3f} -> {means[name]:.3f} (line to beat "
                      f"{at_start[f'{name}_greedy']:.3f})")
        return f"{self.goal} {now:.3f}: {words}"
