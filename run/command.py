"""The command line: config files and flags change the knobs of a script; a mistake is one line."""
import ast
import contextlib
import copy
import difflib
import glob
import inspect
import math
import os
import re
import runpy
import sys
import traceback
from pathlib import Path

KINDS = {bool: 'True or False', int: 'a whole number, not below 0', str: 'text',
         float: 'a finite number, not below 0', dict: 'a dict'}
if not __debug__:                               # asserts are our checks of what users give
    sys.exit("error: python -O and PYTHONOPTIMIZE remove checks that protect your files")


def fail(message):
    """Exit with one line and code 1. For everyday mistakes, which need no traceback."""
    sys.exit(f"error: {message}")


def show_error(kind, error, trace):
    """The excepthook: a failed assert or file operation, or a policy whose numbers are not finite,
    is one line; all else has its traceback."""
    if kind is BrokenPipeError:                 # the reader has seen enough, as in `... | head`
        os._exit(1)
    if issubclass(kind, (AssertionError, OSError, FloatingPointError)) and str(error):
        cause = error.__cause__ or error        # of a reward: what the user's function raised
        *_, frame = traceback.extract_tb(cause.__traceback__)
        print(f"error: {error} ({frame.filename}, line {frame.lineno})", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def set_console():
    """Let a script show its mistakes in one line, and any sign that the console lacks as `?`."""
    sys.excepthook = show_error
    with contextlib.suppress(AttributeError):   # a notebook's console has any sign
        sys.stdout.reconfigure(errors='replace')


@contextlib.contextmanager
def reading(path):
    """Turn what goes wrong in this block, if a file has unexpected contents, into one line."""
    try:
        yield
    except (AssertionError, OSError):           # these are sentences already
        raise
    except Exception as e:                      # json, torch and safetensors raise a dozen kinds
        raise AssertionError(f"{path} is damaged, or not what was expected: {e!r:.300}") from e


def fail_unknown(message, name, known):
    """Exit, and suggest known names that are similar."""
    # names with these initials, and names that share about half of their letters
    similar = [other for other in known if name == ''.join(re.findall('(?:^|_)(.)', other))]
    similar += difflib.get_close_matches(name, known, cutoff=0.5)
    fail(f"{message} '{name}'; similar names: {similar or 'none'}")


def find(path):
    """Return a path of a file or folder. What is not there is looked for in this project, so that
    scripts can be started from anywhere."""
    ours = Path(__file__).parent.parent / path
    return str(ours) if path and ours.exists() and not os.path.exists(path) else path


def words_of(doc, at_least=0, at_most=math.inf):
    """Return the words of the command line of a script without knobs. If there are fewer or more,
    or to --help, print its docstring and exit."""
    set_console()
    words = sys.argv[1:]
    is_help = bool({'-h', '--help'} & set(words))
    if is_help or not at_least <= len(words) <= at_most:
        print(doc, flush=True)
        sys.exit(not is_help)
    return words


# ---- knobs ---------------------------------------------------------------------------------------


def knobs_of(namespace):
    """Return {name: value} of the knobs in a script's globals(): lower-case names of plain values.
    """
    return {name: value for name, value in namespace.items()
            if name[0].islower() and type(value) in KINDS}


def configure(namespace, words):
    """Apply words of a command line, which are config files and --name=value flags, to the knobs in
    a script's globals(), in order. A word can also be a dict of knobs.

    A config file is Python. It sees the knobs as they are so far, and sets some of them. It may
    also define functions, which can serve as rewards. Names that begin with _ or a capital letter
    stay inside the file. Return all knobs and all functions, each as {name: value}. Exit if a name
    is unknown, a type is wrong, a number is negative or not finite, or a value is not among the
    script's CHOICES {name: values}."""
    # Like nanoGPT's configurator: no argparse, no dataclass. A script's globals are its knobs. But
    # unlike there, a typo in a config file is an error.
    set_console()
    defaults = knobs_of(namespace)
    functions = {}
    for word in words:
        if word in ('-h', '--help'):
            print_help(namespace)
        for name, value in values_of(word, knobs_of(namespace)).items():
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
            fail(f"{name} = {namespace[name]!r}: expected one of {choices}")
    return knobs_of(namespace), functions


def values_of(word, knobs):
    """Return {name: value} of one word. The value of a flag stays text; a file sees the knobs."""
    if type(word) is dict:
        # a file may change a dict in place; a function stays that of the user
        return {name: value if callable(value) else copy.deepcopy(value)
                for name, value in word.items()}
    if word.startswith('-') and '=' in word:
        name, _, value = word.lstrip('-').partition('=')
        return {name: value}
    word = find(word)
    if not word.endswith('.py') or not os.path.isfile(word):
        fail_unknown('expected --name=value without spaces (data: --dataset=FILE), or a config '
                     'file, not', word,
                     [f'--{name}=' for name in knobs] + glob.glob('config/**/*.py', recursive=True))
    # It may import files beside it. Our own come first.
    sys.path.append(os.path.dirname(os.path.abspath(word)))
    # runpy runs the file in a namespace of its own, which it returns. The knobs are in it, too.
    try:
        values = runpy.run_path(word, knobs)
    except SystemExit as e:
        fail(f"{word} calls sys.exit({e.code!r}); expected a config file")
    except SyntaxError as e:                    # it names the line itself
        fail(f"{word}: {e}")
    except Exception as e:                      # text without quotes, for example
        raise AssertionError(f"{word}: {type(e).__name__}: {e}") from e
    return {name: value for name, value in values.items()
            if name[0].islower() and not inspect.ismodule(value)
            and type(value).__module__ != '__future__'}         # of from __future__ import ...


def print_help(namespace):
    """Print the docstring of a script, and the lines that set its knobs; exit."""
    source = Path(namespace['__file__']).read_text('utf-8')
    # a line that sets a knob, with its comment, or a line that continues the comment
    lines = re.findall('(?m)^(?:[a-z].* = .*| {28})#.*', source)
    print(namespace['__doc__'], 'knobs:', *lines, sep='\n  ', flush=True)
    sys.exit()
