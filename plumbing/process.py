"""The process: what it prints, how it fails, and how it is stopped."""
import contextlib
import os
import signal
import sys

from plumbing.devices import RANK


def say(text):
    """Print text. The first rank speaks for all."""
    if RANK == 0:
        print(text, flush=True)


def show_error(kind, error, trace):
    """The excepthook. A failed assert, a file that is not there, or Ctrl-C, is one line. What a
    reward raises has its traceback: rewards.py adds a note to it."""
    if hasattr(error, '__notes__') or not isinstance(
            error, (AssertionError, OSError, KeyboardInterrupt)):
        sys.__excepthook__(kind, error, trace)
    elif kind is BrokenPipeError:               # `| head` has seen enough
        os._exit(1)
    else:
        print('error:', error, file=sys.stderr)


sys.excepthook = show_error         # for all scripts


class Stop:
    """is_asked says whether Ctrl-C or SIGTERM has come. The first one lets the step end, and then
    the run saves itself. The second one ends the run."""
    is_asked = False

    def __init__(self):
        with contextlib.suppress(ValueError):           # only a main thread can set signals
            signal.signal(signal.SIGINT, self)
            signal.signal(signal.SIGTERM, self)
        if hasattr(os, 'register_at_fork'):             # not on Windows
            os.register_at_fork(before=hold_sigterm, after_in_parent=release_sigterm,
                                after_in_child=take_sigterm)

    def __call__(self, number, frame):
        if self.is_asked:
            raise KeyboardInterrupt('stopped at once')
        self.is_asked = True
        # print() could be what was interrupted.
        os.write(2, b'\nstopping after this step; the same command with --resume=True goes on; '
                    b'once more to stop at once\n')


def hold_sigterm():
    """Python forgets a signal that comes while it forks, and a Pool would wait for ever."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def release_sigterm():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def take_sigterm():
    """Let a Pool end a process that a reward has forked. Ctrl-C is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    release_sigterm()
