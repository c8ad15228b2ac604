"""Poor man's configurator, as in nanoGPT: config files and --name=value flags change the globals of
a script, from left to right. A file is executed in these globals. So it can set a knob, bring a
reward, or put another function in the place of one of the script's. include('plugins/...') in a
file executes another one, which may bring knobs of its own. A name that nobody knows is an
error."""
import ast
import contextlib
import copy
import difflib
import functools
import inspect
import sys
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

# names of other trainers, and ours
THEIRS = {'lr': 'learning_rate', 'beta': 'kl_beta', 'num_generations': 'group_size',
          'max_completion_length': 'max_new_tokens', 'max_steps': 'max_iters',
          'num_iterations': 'epochs', 'num_train_epochs': 'max_iters, in steps,',
          'per_device_train_batch_size': 'batch_size, in prompts,'}


def knobs_of(script):
    """Return {name: value} of the knobs of a script: lower-case names of values."""
    return {name: value for name, value in script.items() if name[0].islower()
            and not callable(value) and not isinstance(value, ModuleType) and name != 'state'}


def functions_of(script):
    return {name: f for name, f in script.items() if type(f) is FunctionType and name[0] != '_'}


def near(name, known):
    return ', '.join(difflib.get_close_matches(name.lower(), known, cutoff=0.5)) or 'none'


def configure(script, words):
    """Apply words of a command line to the globals of a script. Return its knobs. Exit with one
    line on an unknown knob, a wrong type, a value that is not in CHOICES or below LOWEST, or a
    missing file."""
    sys.excepthook = show_error
    words = [word.replace('\n', ' ') for word in words]      # (a message is one line)
    if '--help' in words:
        print(Path(script['__file__']).read_text().split('CHOICES')[0])
        sys.exit()
    # A second call begins with the original globals. (Files may change the values of a dict.)
    original = script.setdefault('_original', dict(script))
    script.clear()
    script.update({name: copy.deepcopy(value) if type(value) is dict else value
                   for name, value in original.items()}, _original=original)
    known = knobs_of(original)
    files = []
    seen = functions_of(original)
    added = {}                                  # {new function: its file}

    def unknown(word, name):
        similar = f'similar: {near(name, known)}'
        if word.endswith('.py'):
            similar += '; a constant begins with _ or a capital'
        if name in THEIRS:
            similar = f'it is {THEIRS[name]} here'
        sys.exit(f"{word}: there is no knob {name}; {similar}")

    def check(word):
        for name, value in ({name: script.get(name) for name in known} | knobs_of(script)).items():
            if name not in known:
                unknown(word, name)
            lowest = script.get('LOWEST', {}).get(name, 0)
            if type(value) in (int, float) and not lowest <= value < 1e300:
                sys.exit(f"{word}: {name} = {value!r:.40}: expected a number not below {lowest}")
            if type(known[name]) is float and type(value) is int:
                script[name] = float(value)
            elif type(value) is not type(known[name]) or (type(value) is dict and not all(
                    type(key) is str and type(x) in (int, float) and abs(x) < 1e300
                    for key, x in value.items())):
                value = ' '.join(repr(value)[:40].split())      # (of an array: several lines)
                sys.exit(f"{word}: {name} = {value}: expected a value such as {known[name]!r}")

    def include(path):
        nonlocal known
        if path in files:
            return
        check(files[-1] if files else path)
        files.append(path)
        if not Path(path).is_file():
            nearby = map(str, Path().glob('**/*.py'))
            sys.exit(f"there is no file {path}; similar: {near(path, nearby)}")
        exec(compile(Path(path).read_text('utf-8-sig'), path, 'exec'), script)
        defined = {name: f for name, f in functions_of(script).items()
                   if inspect.unwrap(f).__code__.co_filename == path}
        replaced = [name for name, f in defined.items() if seen.get(name, f) is not f]
        new = defined.keys() - seen.keys()
        seen.update(defined)
        if Path(path).parent.name == 'plugins':         # a plugin may bring knobs
            known = knobs_of(script) | known
            return
        if replaced:
            print(f"{path} takes the place of {', '.join(replaced)}")
        added.update(dict.fromkeys(new, path))
        if 'texts' in added:
            sys.exit(f"{path} is a task: expected --dataset={path}")

    script['include'] = include
    for word in words:
        if word.startswith('--') and '=' in word:
            name, _, value = word[2:].partition('=')
            if type(known.get(name, '')) is not str:
                with contextlib.suppress(Exception):            # a text, which check() refuses
                    value = ast.literal_eval(value)
            if name in known:
                script[name] = value
            else:
                unknown(word, name)
        elif word.endswith('.py'):
            include(word)
        else:
            nearby = ['--' + name for name in known] + [*map(str, Path().glob('**/*.py'))]
            sys.exit(f"expected a config file, --name=value, or --dataset=FILE, not {word}; "
                     f"similar: {near(word, nearby)}")
        check(word)
    for name, choices in script['CHOICES'].items():
        if script[name] not in choices:
            sys.exit(f"{name} = {script[name]!r}: expected one of {choices}")
    named = {'reply', 'verify', *script.get('rewards', ())}
    named.update(*map(names_in, functions_of(script).values()))
    for name in added.keys() - named:
        similar = near(name, functions_of(original))
        print(f"{added[name]}: nothing calls {name}(), nor is it in rewards; similar: {similar}")
    return knobs_of(script)


def names_in(function):
    """Return the names that the code of a function uses."""
    codes = [inspect.unwrap(function).__code__]
    for code in codes:
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
    return {name for code in codes for name in code.co_names}


def show_error(kind, error, trace):
    """The excepthook: a failed assert of ours, or a missing file, is one line. All else, and
    whatever a function of the user raises (call() adds a note), has its traceback."""
    if (issubclass(kind, (AssertionError, OSError)) and str(error)
            and not hasattr(error, '__notes__')):
        print('error:', *str(error).split(), file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


# ---- functions of the user -----------------------------------------------------------------------


@functools.cache
def parameters_of(function):
    """Return the names of the parameters of a function; None if it takes all, as **kwargs."""
    parameters = inspect.signature(function).parameters
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) else [*parameters]


def call(function, columns):
    """Call a function of the user with those of the columns that it names."""
    names = parameters_of(function)
    names = columns if names is None else names
    try:
        return function(**{name: columns[name] for name in names if name in columns})
    except Exception as e:
        name = getattr(function, '__name__', function)
        e.add_note(f"in {name}(), which can ask for {', '.join(columns)}")
        raise


def call_world(reply, columns):
    """Return what a world says, a text, and whether it ends the completion."""
    said = call(reply, columns)
    text, *ends = said if type(said) is tuple else (said or '',)
    assert type(text) is str, (
        f"reply() returned {said!r:.80}: expected a text, (text, True), or None")
    return text, any(ends)
