"""Poor man's configurator, as in nanoGPT: config files and --name=value flags change the globals of
a script, from left to right.

A config file is executed in these globals. So it can set a knob, bring a reward, or put another
function in the place of one of the script's. include('plugins/...') in a file executes another
file. Only plugins bring knobs. A knob that nobody knows is an error.

exec() is ugly: an editor finds no definition of what a file replaces, and two files can replace the
same function. It stays because a change is then a file of five lines, and needs no hook in the
script."""
import ast
import contextlib
import difflib
import os
import sys
from pathlib import Path

from tqdm import tqdm

# Values of knobs, also of pretrain.py. Plugins add to them. A number is at least 0, or its LOWEST.
CHOICES = {'blank_kind': ('random', 'answer'), 'device': ('auto', 'cpu', 'cuda', 'mps'),
           'dtype': ('auto', 'float32', 'bfloat16', 'float64'), 'optimizer': ('muon', 'adamw'),
           'adv_norm': ('std', 'batch', 'none'), 'loss_norm': ('token', 'sequence', 'constant'),
           'kind': ('fill', 'causal'), 'positions': ('learned', 'rotary')}
LOWEST = {'group_size': 2, 'batch_size': 1, 'gradient_accumulation_steps': 1, 'temperature': 1e-3,
          'epochs': 1, 'mini_batches': 1, 'log_interval': 1, 'eval_interval': 1, 'eval_prompts': 2,
          'top_p': 1e-6, 'n_layer': 1, 'n_head': 1, 'n_embd': 1, 'num_samples': 1}
SHARES = ('blank_low', 'blank_high', 'top_p', 'stop_at')           # at most 1
MISSING = object()
KINDS = {bool: 'True or False', int: 'a whole number', float: 'a number', str: 'a text',
         dict: 'a dict (in a command in quotes)'}


def knobs_of(script):
    """Return {name: value} of the knobs of a script: lower-case names of numbers, texts, dicts."""
    return {name: value for name, value in script.items()
            if name[0].islower() and type(value) in KINDS and name != 'state'}


def near(name, known):
    """Return '; similar: ' and the known names that are like a name, or '' if there are none."""
    matches = difflib.get_close_matches(str(name), {*map(str, known)}, cutoff=0.5)
    return f"; similar: {', '.join(matches)}" if matches else ''


def must_exist(path, what='file'):
    """Return the path of a file or folder, if it is there."""
    others = [*Path(path).parent.glob('[!._]*'), *Path('config').rglob('*.py')]
    assert Path(path).exists(), f"there is no {what} {path}{near(path, others)}"
    return path


def say(text):
    """Print text, above the bar if a terminal shows one. The first rank speaks for all."""
    if os.environ.get('RANK', '0') == '0':
        with tqdm.external_write_mode():
            print(text, flush=True)


def whose(name):
    """Return '; FILE has it' if a plugin, or another script, has a knob of this name, or ''."""
    for file in [*Path('plugins').glob('*.py'), *map(Path, ('pretrain.py', 'sample.py'))]:
        if f'\n{name} = ' in file.read_text('utf-8', errors='replace'):
            return f'; {file} has it'
    return ''


def configure(script, words):
    """Apply words of a command line to the globals of a script. Return its knobs, {name: value}.
    Exit with one line on an unknown knob, a wrong value, or a missing file."""
    if not __debug__:
        sys.exit("python -O leaves out all that refuses mistakes: run without -O")
    if {'-h', '--help'} & {*words}:             # the docstring, and the knobs
        source = Path(script['__file__']).read_text('utf-8')
        sys.exit(print(script['__doc__'], source[source.find('\n# ---- '):].split('\n\n\n')[0]))
    # A second call, as tests and extras make, begins with the original globals. Their dicts are
    # copied, because files may change them.
    original = script.setdefault('_original', dict(script))
    script.clear()
    script.update({name: value.copy() if type(value) is dict else value
                   for name, value in original.items()}, _original=original)
    known = knobs_of(script)                    # with their types; soon those of plugins, too
    files = []                                  # that were executed
    said = {}                                   # {name: value} that the files before have changed
    set_by = {}                                 # {knob: word of the command that names the file}

    def include(path):                          # `word` is that of the loop below
        file = Path(must_exist(path)).resolve()
        if file in files:                       # several files may name a plugin
            return
        files.append(file)
        before = dict(script)
        exec(compile(file.read_bytes(), path, 'exec', dont_inherit=True), script)
        # What this file has changed, and not one that it includes.
        changed = {name: x for name, x in script.items()
                   if x is not before.get(name, MISSING) and x is not said.get(name, MISSING)}
        said.update(changed)
        assert 'texts' not in script, f"{path} is a dataset: expected --dataset={path}"
        if file.parent.name == 'plugins':
            known.update(knobs_of(changed) | known)
        else:
            say_what_is_new(script, before, changed, path)
        for name in known | knobs_of(changed):  # all, because a plugin may leave other CHOICES
            check_knob(script, known, name, path)
        for name in [name for name in changed if name in known]:
            if set_by.get(name, word) != word and script[name] != before[name]:
                say(f'{word} sets {name} = {script[name]!r}, not {before[name]!r} as before')
            set_by[name] = word

    script['include'] = include
    for word in words:
        name, has_value, value = word.removeprefix('--').partition('=')
        if not has_value:
            assert word.endswith('.py'), f"{word}: expected FILE.py or --name=value"
            include(word)
            continue
        if type(known.get(name)) is not str:
            with contextlib.suppress(ValueError, SyntaxError, TypeError):      # else it is a text
                value = ast.literal_eval(value)
        script[name] = value
        check_knob(script, known, name, word)
    script['_files'] = [str(file) for file in files]
    return knobs_of(script)


def say_what_is_new(script, before, changed, path):
    """Print which functions a file has replaced or defined: a misspelt one replaces nothing."""
    replaced = [f'{name}()' for name, x in changed.items() if callable(x) and name in before]
    brought = [f'{name}()' for name, x in changed.items() if name not in before and name[0] != '_'
               and getattr(x, '__module__', '') == script['__name__']]      # else it is imported
    for what, names in {'replaces': replaced, 'brings': brought}.items():
        if names:
            say(f"{path} {what} {', '.join(names)}")


def check_knob(script, known, name, word):
    """Check the knob of this name after a word of the command line."""
    own = '; names of your own begin with _ or a capital' if word.endswith('.py') else ''
    assert name in known, f"{word}: there is no knob {name}{whose(name) or near(name, known)}{own}"
    value, example = script[name], known[name]
    kind = type(example)
    if kind is float and type(value) is int:
        value = script[name] = float(str(value))        # float(10 ** 400) would raise
    choices = script.get('CHOICES', CHOICES).get(name)
    is_right = type(value) is kind
    if choices:
        is_right = is_right and value in choices
        expected = f'one of {choices}'
    elif kind in (int, float):
        lowest = script.get('LOWEST', LOWEST).get(name, 0)
        highest = 1 if name in SHARES else 1e18         # a larger one fits into no tensor
        is_right = is_right and lowest <= value <= highest
        expected = f'{KINDS[kind]} from {lowest} to {highest:g}, such as {example}'
    else:
        expected = f'{KINDS[kind]}, such as {example!r}'
    assert is_right, f"{word}: {name} = {value!r:.40}: expected {expected}"


def show_error(kind, error, trace):
    """The excepthook. A failed assert with a message, a missing file, or Ctrl-C, is one line. What
    a reward raises has its traceback: call() of rewards.py marks it."""
    message = ' '.join(str(error).split()) or 'stopped' * (kind is KeyboardInterrupt)
    is_ours = issubclass(kind, (AssertionError, OSError, KeyboardInterrupt))
    if is_ours and message and not hasattr(error, 'of_user'):
        print('error:', message, file=sys.stderr)
    else:
        if kind is SyntaxError:                 # it has a line of its own, and needs no others
            error.__traceback__ = trace = None
        sys.__excepthook__(kind, error, trace)


sys.excepthook = show_error         # for all scripts that read words: most mistakes are typed
if hasattr(sys.stdout, 'reconfigure'):
    sys.stdout.reconfigure(errors='backslashreplace')   # a console may not know each character
