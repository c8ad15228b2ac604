"""Poor man's configurator, as in nanoGPT: config files and --name=value flags change the globals of
a script, from left to right.

A config file is executed in these globals. So it can set a knob, bring a reward, or put another
function in the place of one of the script's. include('plugins/...') in a file executes another
file. Only plugins bring knobs. A knob that nobody knows is an error."""
import ast
import contextlib
import difflib
import math
import sys
from pathlib import Path

# Values of knobs, also of pretrain.py. Plugins add to them. A number is at least 0, or its LOWEST.
CHOICES = {'blank_kind': ('random', 'answer'), 'device': ('auto', 'cpu', 'cuda', 'mps'),
           'dtype': ('auto', 'float32', 'bfloat16', 'float64'), 'optimizer': ('muon', 'adamw'),
           'adv_norm': ('std', 'batch', 'none'), 'loss_norm': ('token', 'sequence', 'constant'),
           'kind': ('fill', 'causal', 'classifier'), 'positions': ('learned', 'rotary')}
LOWEST = {'group_size': 2, 'batch_size': 1, 'gradient_accumulation_steps': 1, 'temperature': 1e-3,
          'epochs': 1, 'mini_batches': 1, 'log_interval': 1, 'eval_interval': 1, 'eval_prompts': 2,
          'n_layer': 1, 'n_head': 1, 'n_embd': 1}


def knobs_of(script):
    """Return {name: value} of the knobs of a script: lower-case names of numbers, texts, dicts."""
    return {name: value for name, value in script.items() if name[0].islower()
            and type(value) in (bool, int, float, str, dict) and name != 'state'}


def near(name, known):
    """Return '; similar: ' and the known names that are like a name, or '' if there are none."""
    matches = difflib.get_close_matches(str(name), map(str, known), cutoff=0.5)
    return f"; similar: {', '.join(matches)}" if matches else ''


def must_exist(path, what='file'):
    """Return the path of a file or folder, if it is there."""
    others = Path(path).parent.glob('[!._]*')
    assert Path(path).exists(), f"there is no {what} {path}{near(path, others)}"
    return path


def configure(script, words):
    """Apply words of a command line to the globals of a script. Return its knobs, {name: value}.
    Exit with one line on an unknown knob, a wrong value, or a missing file."""
    if {'-h', '--help'} & {*words}:                       # up to the first function or class
        print(Path(script['__file__']).read_text().split('\n\n\n')[0])
        sys.exit()
    # A second call begins with the original globals. Files may change the values of a dict.
    original = script.setdefault('_original', dict(script))
    script.clear()
    script.update({name: value.copy() if type(value) is dict else value
                   for name, value in original.items()}, _original=original)
    known = knobs_of(script)
    seen = dict(script)                         # at the last check
    files, word = [], ''                        # that were executed; that is executed

    def check():
        check_knobs(script, known, known | knobs_of(script), word)
        say_what_is_new(script, seen, word)
        seen.update(script)

    def include(path):
        nonlocal word
        check()                                 # what the outer file has changed so far
        file = Path(must_exist(path)).resolve()
        if file in files:                       # several files may name a plugin
            return
        files.append(file)
        outer, word = word, path
        exec(compile(file.read_bytes(), path, 'exec', dont_inherit=True), script)
        if file.parent.name == 'plugins':
            known.update(knobs_of(script) | known)
            seen.update(script)
        check()
        word = outer
        assert 'texts' not in script, f"{path} is a task: expected --dataset={path}"

    script['include'] = include
    for word in words:
        name, has_value, value = word.removeprefix('--').partition('=')
        if not has_value:
            assert word.endswith('.py'), f"{word}: expected FILE.py or --name=value"
            include(word)
            continue
        if type(known.get(name)) is not str:
            with contextlib.suppress(ValueError, SyntaxError):      # else it is a text
                value = ast.literal_eval(value)
        script[name] = value
        check_knobs(script, known, [name], word)
    script['_files'] = [str(file) for file in files]
    return knobs_of(script)


def say_what_is_new(script, before, path):
    """Print which functions a file has replaced or defined: a misspelt one replaces nothing."""
    new = [name for name, x in script.items()
           if callable(x) and x is not before.get(name) and name[0] != '_']
    replaced = [name for name in new if name in before]
    brought = [name for name in new if name not in before
               and getattr(script[name], '__module__', '') == script['__name__']]
    for what, names in {'replaces': replaced, 'brings': brought}.items():
        if names:
            print(path, what, ', '.join(f'{name}()' for name in names))


def check_knobs(script, known, names, word):
    """Check the knobs with these names after a word of the command line."""
    for name in names:
        own = '; names of your own begin with _ or a capital' if word.endswith('.py') else ''
        assert name in known, f"{word}: there is no knob {name}{near(name, known)}{own}"
        value, example = script.get(name), known[name]
        if type(value) is int and type(example) is float:
            value = script[name] = float(value)
        both = (True, False) if type(example) is bool else [value]
        choices = script.get('CHOICES', {}).get(name, both)
        lowest = script.get('LOWEST', {}).get(name, 0)
        is_number = type(example) in (int, float)
        expected = f'one of {choices}' if value not in choices else f'a value such as {example!r}'
        if is_number:
            expected += f', finite and not below {lowest}'
        assert type(value) is type(example) and value in choices and (
            not is_number or lowest <= value < math.inf), (
            f"{word}: {name} = {value!r:.40}: expected {expected}")


def show_error(kind, error, trace):
    """The excepthook. A failed assert with a message, a missing file, or Ctrl-C, is one line. What
    a reward raises has its traceback: call() of rewards.py marks it."""
    message = ' '.join(str(error).split()) or 'stopped' * (kind is KeyboardInterrupt)
    is_ours = issubclass(kind, (AssertionError, OSError, KeyboardInterrupt))
    if is_ours and message and not hasattr(error, 'of_user'):
        print('error:', message, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = show_error
