"""Poor man's configurator, as in nanoGPT: config files and --name=value flags change the globals of
a script, from left to right. Skip this file at first.

A config file is executed in these globals. So it can set a knob, bring a reward, or put another
function in the place of one of the script's. include('plugins/...') in a file executes another
file. Only plugins bring knobs. A knob that nobody knows is an error."""
import ast
import builtins
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
# Functions of these modules may be replaced.
OURS = {'__main__'} | {path.stem for path in Path(__file__).parent.glob('*.py')}


def knobs_of(script):
    """Return {name: value} of the knobs of a script: lower-case names of numbers, texts, dicts."""
    return {name: value for name, value in script.items() if name[0].islower()
            and type(value) in (bool, int, float, str, dict) and name != 'state'}


def near(name, known):
    """Return '; similar: ' and the known names that are like a name, or '' if there are none."""
    known = sorted(map(str, known))
    matches = difflib.get_close_matches(str(name).lower(), known, cutoff=0.5)
    return f"; similar: {', '.join(matches)}" if matches else ''


def must_exist(path, what='file'):
    """Return the path of a file or folder, if it is there."""
    others = Path(path).parent.glob('[!._]*')
    assert Path(path).exists(), f"there is no {what} {path}{near(path, others)}"
    return path


def configure(script, words):
    """Apply words of a command line to the globals of a script. Return its knobs, {name: value}.
    Exit with one line on an unknown knob, a wrong type, a value that is not in CHOICES or below
    LOWEST, a missing file, or a file that changes what the script has imported."""
    if {'-h', '--help'} & {*words}:                       # up to the first function or class
        print(Path(script['__file__']).read_text().split('\n\n\n')[0])
        sys.exit()
    # A second call begins with the original globals. Files may change the values of a dict.
    original = script.setdefault('_original', dict(script))
    trees = {}                                  # of the files that were executed
    script.clear()
    script.update({name: value.copy() if type(value) is dict else value
                   for name, value in original.items()}, _original=original, _files=trees)
    known = knobs_of(script)
    seen = vars(builtins) | script              # what names meant at the last check
    first = dict(seen)                          # what each meant at first
    word = ''                                   # the file that is executed

    def check(word):
        """Check what a file has changed, and say which functions it has replaced."""
        for name in known | knobs_of(script):
            check_knob(script, known, name, word)
        changed = [name for name, old in seen.items() if script.get(name, old) is not old
                   and name not in known and name[:2] != '__']
        for name in changed:
            other = "state['key'] = value" if name == 'state' else f'another name, such as _{name}'
            assert name not in first or getattr(first[name], '__module__', '') in OURS, (
                f"{word} changes {name}, which is used here already: expected {other}")
        if changed:
            print(f"{word} takes the place of {', '.join(sorted(changed))}")
        seen.update({name: x for name, x in script.items() if callable(x) or name in seen})

    def include(path):
        nonlocal word
        check(word)                             # what the outer file has changed so far
        file = Path(must_exist(path)).resolve()
        if file in trees:                       # several files may name a plugin
            return
        trees[file] = ast.parse(file.read_bytes(), path)
        outer, word = word, path
        exec(compile(trees[file], path, 'exec', dont_inherit=True), script)
        word = outer
        if file.parent.name == 'plugins':       # it brings knobs, and nobody asks what it replaces
            known.update(knobs_of(script))
            seen.update(script)
            first.update(seen | first)          # only names that are new
        check(path)
        assert 'texts' not in script, f"{path} is a task: expected --dataset={path}"

    script['include'] = include
    for flag in words:
        name, has_value, value = flag.removeprefix('--').partition('=')
        if not has_value:
            assert flag.endswith('.py'), f"{flag}: expected FILE.py or --name=value"
            include(flag)
            continue
        if type(known.get(name)) is not str:
            with contextlib.suppress(Exception):            # else a text: check_knob() refuses
                value = ast.literal_eval(value)
        script[name] = value
        check_knob(script, known, name, flag)
    warn_of_unused(trees, {'verify', 'reply', *script.get('rewards', ())}, original)
    return knobs_of(script)


def warn_of_unused(trees, names, original):
    """Say which functions of files {path: syntax tree} nothing calls: neither names nor files name
    them, and they replace none of the original globals."""
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                names.add(node.id)
            if isinstance(node, ast.Dict):      # perhaps `rewards`, since replaced
                names |= {getattr(key, 'value', None) for key in node.keys}
    for file, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.decorator_list and (
                    node.name not in names | original.keys() and node.name[0] != '_'):
                print(f"{file.name}: nothing calls {node.name}()"
                      f"{near(node.name, original)}; a reward has a weight in `rewards`")


def check_knob(script, known, name, word):
    """Check the value that a knob has after a word of the command line."""
    own = '; names of your own begin with _ or a capital' if word.endswith('.py') else ''
    assert name in known, f"{word}: there is no knob {name}{near(name, known)}{own}"
    value, example = script.get(name), known[name]
    if type(value) is int and type(example) is float:
        value = script[name] = float(value)
    both = (True, False) if type(example) is bool else ()
    choices = script.get('CHOICES', {}).get(name, both)
    lowest = script.get('LOWEST', {}).get(name, 0)
    expected = f'one of {choices}' if choices else f'a value such as {example!r}'
    is_right = type(value) is type(example) and (not choices or value in choices)
    if type(example) in (int, float):
        expected += f', finite and not below {lowest}'
        is_right = is_right and lowest <= value < math.inf
    assert is_right, f"{word}: {name} = {value!r:.40}: expected {expected}"


def show_error(error_type, error, trace):
    """The excepthook. A failed assert of ours, a missing file, or Ctrl-C, is one line. What a
    function of the user raises has its traceback: call_each() of rewards.py adds a note to it."""
    line = ' '.join(str(error).split())
    is_ours = isinstance(error, (AssertionError, OSError)) and not hasattr(error, '__notes__')
    if isinstance(error, SyntaxError) and Path(error.filename or '').is_file():
        error = error.with_traceback(None)      # the place is in the error
    if isinstance(error, KeyboardInterrupt) and not line:
        print('stopped: what was not finished is not written', file=sys.stderr)
    elif is_ours and line:
        if not isinstance(error, BrokenPipeError):          # of `| head`
            print('error:', line, file=sys.stderr)
    else:
        sys.__excepthook__(error_type, error, trace)


sys.excepthook = show_error
