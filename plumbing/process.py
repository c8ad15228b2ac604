"""The process: what it prints, how it fails, how it is stopped, and how far it is."""
import atexit
import contextlib
import difflib
import errno
import os
import shlex
import signal
import subprocess
import sys
import traceback

import tqdm


# ---- mistakes ------------------------------------------------------------------------------------
class Mistake(Exception):
    """Something that the user got wrong. It ends a script with one line, and without a traceback.
    Everything else has its traceback."""


def expect(condition, words):
    """Raise a Mistake with these words unless the condition holds. (An assert would be gone under
    python -O.)"""
    if not condition:
        raise Mistake(words)


# Errors that are the disk's, and nobody's code: it is full, read-only, gone, or somebody else's.
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG,
        errno.EIO, errno.EFBIG, errno.ELOOP, errno.EISDIR, errno.ENOTDIR,
        getattr(errno, 'ESTALE', errno.EIO)}
# Packages that not everybody needs.
PACKAGES = 'wandb tiktoken transformers accelerate peft gguf matplotlib pytest'.split()


# {config file: which functions it has replaced, and what these should return}
HINTS = {}


def show_error(kind, error, trace):
    """The excepthook of all scripts."""
    if kind is Mistake:
        print('error:', error, file=sys.stderr)
    elif kind in (KeyboardInterrupt, BrokenPipeError):          # `| head` has read enough
        print('stopped', file=sys.stderr)
        with contextlib.suppress(ValueError):           # a second Ctrl-C has nothing to stop
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    elif kind is ModuleNotFoundError and error.name in PACKAGES:
        print(f'error: {error}: pip install {error.name}', file=sys.stderr)
    elif isinstance(error, OSError) and error.errno in DISK:
        print('error:', error, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
        if kind.__name__ in ('MemoryError', 'OutOfMemoryError') or 'allocate memory' in str(error):
            print('out of memory: a smaller batch_size needs less (docs/gpu.md, "Memory")',
                  file=sys.stderr)
        # Was it in a function of the user, or in what it has returned?
        frames = traceback.extract_tb(trace)
        files = [x.filename for x in frames if 'site-packages' not in x.filename]
        for line in HINTS.values() if files and files[-1] not in HINTS else ():
            print(line, file=sys.stderr)


def near(name, choices):
    """Return the end of a message: which of the choices have a name like this one, if any."""
    names = difflib.get_close_matches(name, choices)
    return f". Near: {names}" if names else ''


def split_words(text):
    """Return the words of a command, as a shell splits them."""
    try:
        return shlex.split(text)
    except ValueError as e:
        raise Mistake(f"{text}: {e}") from None


def nowhere():
    """Return a console that nobody reads."""
    return open(os.devnull, 'w', encoding='utf-8', errors='replace')


@contextlib.contextmanager
def writing(path):
    """Turn an error of the disk into a Mistake that names what was written."""
    try:
        yield
    except OSError as e:
        raise Mistake(f"{path} cannot be written: {e.strerror or e}") from None


# A shell can close these: `>&-`. The next file to be opened would take such a number, and then get
# what is printed.
for _number in range(3):
    try:
        os.fstat(_number)
    except OSError:
        os.open(os.devnull, os.O_RDWR)          # it gets the smallest number that is free
sys.excepthook = show_error
sys.stdout = sys.stdout or nowhere()
sys.stderr = sys.stderr or nowhere()
for _stream in sys.stdout, sys.stderr:
    with contextlib.suppress(AttributeError):           # a notebook has other streams
        _stream.reconfigure(errors='backslashreplace')  # for a letter that the console lacks


# ---- ranks ---------------------------------------------------------------------------------------
# torchrun sets all of these. It starts several processes, the ranks, which share a step.
_ENVIRONMENT = 'RANK WORLD_SIZE MASTER_ADDR MASTER_PORT'.split()


def from_torchrun(name, alone):
    """Return a number that torchrun has put into the environment. Without torchrun: alone."""
    text = os.environ.get(name) or str(alone)
    missing = [x for x in _ENVIRONMENT if not os.environ.get(x)]
    expect(text == str(alone) or text.isdigit() and not missing, f"the environment has {name}="
           f"{text}, as torchrun sets it, but not {missing}: start several processes by torchrun, "
           f"or one without {name}")
    return int(text)


RANK = from_torchrun('RANK', 0)
N_RANKS = from_torchrun('WORLD_SIZE', 1)
expect(RANK < N_RANKS, f"the environment has RANK={RANK} and WORLD_SIZE={N_RANKS}: the first rank "
       "is 0")


# ---- signals -------------------------------------------------------------------------------------
HANGUP = getattr(signal, 'SIGHUP', signal.SIGTERM)      # the terminal is closed (not on Windows)


class Stopped(Exception):
    """An evaluation ends early, because the run was asked to stop."""


class Stop:
    """is_asked says whether a signal has come (Ctrl-C, SIGTERM, or SIGHUP of a terminal that is
    closed), or nobody reads the console any more. The first signal lets the step end, and then the
    run saves itself. The second one ends the run."""
    is_asked = False
    listens = False

    def listen(self):
        """From here on signals are for the loop of steps. Before it nothing needs saving, so a
        signal ends the process at once, as usual."""
        self.listens = True
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)   # nothing is left to stop
        with contextlib.suppress(ValueError):           # only a main thread can set signals
            signal.signal(signal.SIGINT, self)
            signal.signal(signal.SIGTERM, self)
            if signal.getsignal(HANGUP) is signal.SIG_DFL:      # and no nohup
                signal.signal(HANGUP, self)

    def __call__(self, number, frame):
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        # print() could be what was interrupted, and perhaps nobody reads.
        with contextlib.suppress(OSError):
            os.write(2, b'\nstopping after this step; the same command with --resume=True continues'
                        b'; once more to stop at once\n')


stop = Stop()


@contextlib.contextmanager
def exit_at_sigterm():
    """Let SIGTERM raise SystemExit, so that `finally` can end other processes."""
    signals = {signal.SIGTERM}
    if signal.getsignal(HANGUP) is signal.SIG_DFL:              # and no nohup
        signals.add(HANGUP)
    try:
        old = {x: signal.signal(x, lambda *_: sys.exit(143)) for x in signals}
    except ValueError:                          # only a main thread can set signals
        yield
        return
    try:
        yield
    finally:
        for x, handler in old.items():
            signal.signal(x, handler)


def start(command, **how):
    """Start another process, as subprocess.Popen does. A signal that comes meanwhile has to wait,
    because nobody could end a process that is not known yet."""
    came = []
    try:
        old = {x: signal.signal(x, lambda number, frame: came.append(number))
               for x in (signal.SIGINT, signal.SIGTERM, HANGUP)}
    except ValueError:                          # only a main thread can set signals
        old = {}
    try:
        return subprocess.Popen(command, **how)
    finally:
        for x, handler in old.items():
            signal.signal(x, handler)
        for number in came:
            os.kill(os.getpid(), number)


def hold_sigterm():
    """Python forgets a signal that comes while it forks, and a Pool would wait for ever."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def release_sigterm():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def take_sigterm():
    """Let a Pool end a process that a reward has forked. Ctrl-C, and SIGTERM to a group of
    processes, are left to the parent: it waits for what its Pool is computing."""
    with contextlib.suppress(OSError):
        os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    release_sigterm()


# Now, and not in listen(): a config file may make its Pool before. (Windows has no forks.)
if hasattr(os, 'register_at_fork'):
    os.register_at_fork(before=hold_sigterm, after_in_parent=release_sigterm,
                        after_in_child=take_sigterm)


# ---- the console ---------------------------------------------------------------------------------
def say(text):
    """Print text. The first rank speaks for all. If nobody reads it (`| head`), stop after this
    step: what a run says is never a reason to lose what it has learned."""
    if RANK != 0:
        return
    try:
        if sys.stdout.isatty():
            tqdm.tqdm.write(text)               # above the bars, if there are some
        else:
            print(text, flush=True)
    except OSError as e:
        stop.is_asked = True
        sys.stdout = nowhere()                  # else Python complains at its end
        if e.errno != errno.EPIPE:
            atexit.register(os._exit, 1)        # a script that could not speak has failed
            with contextlib.suppress(OSError):  # stderr may be on the same full disk
                ending = ': stopping after this step' if stop.listens else ''
                print(f'the console cannot be written: {e}{ending}', file=sys.stderr, flush=True)


def bar(items, label, **more):
    """Return the items with a bar, on a terminal: how many are done, and how long the rest takes.
    In a file or a pipe there is none. more: for tqdm."""
    is_shown = RANK == 0 and sys.stderr is not None and sys.stderr.isatty()
    return tqdm.tqdm(items, label, disable=not is_shown, leave=False, dynamic_ncols=True, **more)
