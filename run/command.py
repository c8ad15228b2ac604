"""The command line: config files and flags change the knobs of a script; a mistake is one line."""
import ast
import contextlib
import copy
import difflib
import functools
import glob
import inspect
import os
import sys
import traceback
from pathlib import Path

KINDS = {bool: 'True or False', int: 'a whole number, not below 0', str: 'text',
         float: 'a finite number, not below 0', dict: 'a dict'}


def fail(message):
    """Exit with one line and code 1. For everyday mistakes, which need no traceback."""
    sys.exit(f"error: {message}")


def show_error(kind, error, trace):
    """The excepthook: a failed assert or file operation, or a policy whose numbers are not finite,
    is one line; all else has its traceback."""
    if kind is BrokenPipeError:                 # `| head` has read enough
        os._exit(1)
    if issubclass(kind, (AssertionError, OSError, FloatingPointError)) and str(error):
        cause = error.__cause__ or error        # of a reward: what the user's function raised
        *_, frame = traceback.extract_tb(cause.__traceback__)
        print(f"error: {error} ({frame.filename}, line {frame.lineno})", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


@contextlib.contextmanager
def reading(path):
    """Turn whatever goes wrong in this block, which reads a file or runs one, into one line."""
    try:
        yield
    except BaseException as e:                  # json, torch and safetensors raise a dozen kinds
        # A sentence, or the number of a signal (from 128), goes on. A bare assert, exit() and
        # exit(1) say nothing.
        if isinstance(e, (AssertionError, SystemExit)) and any(e.args) and len(str(e)) > 2:
            raise
        raise AssertionError(f"{path} cannot be read: {e!r:.300}") from e


def fail_unknown(message, name, known):
    """Exit, and suggest known names that share about half of their letters."""
    similar = difflib.get_close_matches(str(name), known, cutoff=0.5)
    fail(f"{message} '{name}'; similar names: {similar or 'none'}")


@functools.cache
def by_name(function):
    """Return a function of columns {name: value} that calls a function of the user, a reward or a
    world, with those that it has as parameters; with all if it has **kwargs, as for TRL."""
    with reading(f"the list of parameters of {function!r:.80}"):
        parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    required = {p.name for p in parameters.values()
                if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}

    def call(columns):
        unknown = required.difference(columns)
        assert not unknown, f"it asks for {unknown}: there are {[*columns]}"
        # A function may change what it gets: each completion has a copy of its own.
        return function(**{
            name: [*map(copy.deepcopy, value)] if type(value) is list else copy.deepcopy(value)
            for name, value in columns.items() if takes_all or name in parameters})

    return call


def said_by(reply, case, encode=list):
    """Return what a world says to a completion: what encode() makes of its text, such as a list of
    ids, and whether it ends the completion. reply() returns a text, which ends nothing; (text, True
    or False); or None, which is the empty text."""
    try:
        said = by_name(reply)(case)
        text, done = said if type(said) is tuple else (said or '', False)
        assert type(text) is str, f"expected a text, not {text!r:.60}"
        return encode(text), bool(done)
    except BaseException as e:                  # a function of yours can raise anything
        raise AssertionError(f"reply to {case['completion']!r:.60}: {e!r:.300}") from e


def values_in(words):
    """Return the words of a command line, and the value of each word NAME=VALUE: some are files."""
    return [word.partition('=')[2] or word for word in words]


# names that people try, most of them of TRL, and ours
THEIRS = {
    'lr': 'learning_rate',
    'lr_rate': 'learning_rate',
    'rate': 'learning_rate',
    'model': 'generator',
    'steps': 'max_iters',
    'max_tokens': 'max_new_tokens',
    'n_samples': 'group_size',
    'kl_coef': 'kl_beta',
    'beta': 'kl_beta',
    'epsilon': 'clip_low',
    'epsilon_high': 'clip_high',
    'loss_type': 'loss_norm',
    'max_completion_length': 'max_new_tokens',
    'max_steps': 'max_iters',
    'num_generations': 'group_size',
    'num_iterations': 'epochs',
    'output_dir': 'out_dir',
    'reward_funcs': 'rewards',
    'scale_rewards': 'adv_norm',
}

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
    also define functions, which can serve as rewards, or as values of knobs in the script's
    RULES {knob: the function of ours whose place they take}. Names that begin with _ or a capital
    letter stay inside the file.
    Return all knobs and all functions, each as {name: value}. Exit if a name is unknown, a type is
    wrong, a number is negative or not finite, or a value is not among the script's CHOICES {name:
    values}."""
    # Like nanoGPT's configurator: no argparse, no dataclass. A script's globals are its knobs. But
    # unlike there, a typo in a config file is an error.
    sys.excepthook = show_error
    assert os.path.isdir('data'), "there is no data/ here: run this in the folder of train_grpo.py"
    defaults = knobs_of(namespace)
    functions = {}
    files = []                                  # the globals of each config file
    for word in words:
        if word in ('-h', '--help'):            # the head of the script has the knobs
            print(Path(namespace['__file__']).read_text('utf-8').split('\n\n\n')[0])
            sys.exit()
        for name, value in values_of(word, knobs_of(namespace), files).items():
            if callable(value) and name not in defaults:
                assert inspect.isfunction(inspect.unwrap(value)), (
                    f"{name} = {value!r:.80}: expected a function that is written in Python")
                functions[name] = value
                continue
            if name in THEIRS:
                fail(f"{word}: {name} is {THEIRS[name]} here (all: docs/other-engines.md)")
            if name not in defaults:
                fail_unknown(f'{word}: expected a knob (see --help; config/networks/ is for '
                             'pretrain.py) or _name, not', name, defaults)
            # The type of the default is the type of the knob. A flag is text: read it as Python.
            # The values of a file stay: literal_eval() refuses them. float() takes the 0 of
            # kl_beta = 0, too.
            kind = type(defaults[name])
            if kind is not str and type(value) is not bool:     # float(True) would be 1.0
                with contextlib.suppress(ValueError, SyntaxError, TypeError, OverflowError):
                    value = float(value) if kind is float else ast.literal_eval(value)
            # (type() and not isinstance(), because True is an int)
            if type(value) is not kind or kind in (int, float) and not 0 <= value < 1e300:
                fail(f"{str(word):.80}: {name} = {value!r:.80}: expected {KINDS[kind]}, such as "
                     f"{defaults[name]!r}")
            namespace[name] = value
    # After all words are read: a later one may have corrected an earlier one.
    rules = namespace.get('RULES', {})
    for name, choices in namespace.get('CHOICES', {}).items():
        check_choice(name, namespace[name], choices, functions, rules.get(name))
    knobs = knobs_of(namespace)
    # A function of a file sees what those of the script see: its functions, and the knobs as they
    # are now. (What the file itself defines comes first.)
    for values in files:
        values.update({**namespace, **values, **knobs})
    return knobs, functions


def check_choice(knob, value, choices, functions, ours):
    """Exit if the value of a knob is none of its choices, and names no function that can take the
    place of ours; or if it is both."""
    if not ours:
        expected = f"one of {choices}"
        if type(choices) is range:
            expected = f"{choices.start} or more, below {choices.stop}"
        assert value in choices, f"{knob} = {value!r}: expected {expected}"
        return
    arguments = inspect.signature(ours).parameters
    expected = (f"{knob} = {value!r}: expected one of {choices}, or a function {knob}"
                f"({', '.join(arguments)}) of a config file on the command line, of another name")
    if (value in choices) == (value in functions):
        fail_unknown(f"{expected}, not", value, [*choices, *functions])
    if value in functions:
        with reading(f"{expected}, but {value}()"):
            inspect.signature(functions[value]).bind(*arguments)


def values_of(word, knobs, files):
    """Return {name: value} of one word. The value of a flag stays text; a file sees the knobs, and
    its globals are added to files."""
    if type(word) is dict:                      # a file may change its values in place
        return copy.deepcopy(word)
    if word.startswith('-') and '=' in word:
        name, _, value = word.lstrip('-').partition('=')
        return {name: value}
    if not word.endswith('.py') or not os.path.isfile(word):
        fail_unknown('expected --name=value without spaces (data: --dataset=FILE), or a config '
                     'file, not', word,
                     [f'--{name}=' for name in knobs] + glob.glob('config/**/*.py', recursive=True))
    # A file may import files beside it. Our own come first.
    sys.path.append(os.path.dirname(os.path.abspath(word)))
    values = {**knobs, '__file__': word}
    with reading(word):                         # text without quotes, for example
        exec(compile(Path(word).read_bytes(), word, 'exec'), values)
    files.append(values)
    return {name: value for name, value in values.items()
            if name in knobs or name[0].islower() and not is_imported(value, values)}


def globals_of(function):
    """Return the globals of a function of the user, which others may have decorated."""
    return getattr(inspect.unwrap(function), '__globals__', {})


def file_of(function):
    """Return the file of a function of the user; '' if it was typed into a notebook."""
    return globals_of(function).get('__file__', '')


def is_imported(value, of_file):
    """Return whether a value is a module, a class, or a function of another file. What a config
    file imports is for its own use; its rewards and rules are the functions that it defines."""
    is_mine = globals_of(value) is of_file
    return not is_mine and any([inspect.ismodule(value), inspect.isclass(value),
                                inspect.isroutine(value)])
