"""Poor man's configurator, as in nanoGPT: config files and --name=value flags change the globals of
a script, from left to right.

A config file is executed in these globals. So it can set a knob, bring a reward, or put another
function in the place of one of the script's. include('plugins/...') in a file executes another
file. Only plugins bring knobs. Plugins are executed before all other files, in the order of
PLUGINS, wherever their names stand. Knobs are checked once, after the last word.

exec() is ugly: an editor finds no definition of what a file replaces. It stays because a change is
then a file of five lines, and needs no hook in the script."""
import ast
import contextlib
import difflib
import inspect
import sys
from pathlib import Path

from plumbing.datasets import files_of
from plumbing.process import say

PLUGINS = 'causal hf passes order masks top lora watch'     # in this order
# The choices of a text, and the smallest and largest value of a number, also of plugins and other
# scripts. Other numbers are at least 0, and small enough for a tensor.
VALUES = {
    'blank_kind': ('random', 'answer'), 'kind': ('fill', 'causal', 'classifier'),
    'optimizer': ('muon', 'adamw'), 'positions': ('learned', 'rotary'),
    'adv_norm': ('std', 'batch', 'none'), 'loss_norm': ('token', 'sequence', 'constant'),
    'device': ('auto', 'cpu', 'cuda', 'mps'), 'dtype': ('auto', 'float32', 'bfloat16', 'float64'),
    'fill_order': ('random', 'left', 'confident', 'learned'),
    'blank_low': (0, 1), 'blank_high': (0, 1), 'stop_at': (0, 1), 'top_p': (1e-6, 1),
    'temperature': (1e-3, 1e18), 'group_size': (2, 1e18), 'eval_prompts': (2, 1e18),
    'batch_size': (1, 1e18), 'gradient_accumulation_steps': (1, 1e18), 'epochs': (1, 1e18),
    'mini_batches': (1, 1e18), 'log_interval': (1, 1e18), 'eval_interval': (1, 1e18),
    'n_layer': (1, 1e18), 'n_head': (1, 1e18), 'n_embd': (1, 1e18), 'num_samples': (1, 1e18),
    'n_fill_steps': (1, 1e18), 'lora_rank': (1, 1e18)}


def knobs_of(script):
    """Return {name: value} of the knobs of a script: lower-case names of numbers, texts, dicts."""
    return {name: value for name, value in script.items() if name[0].islower()
            and type(value) in (bool, int, float, str, dict) and name != 'state'}


def configure(script, words):
    """Apply words of a command line to the globals of a script. Return its knobs, {name: value}."""
    if '--help' in words:                       # what stands before the first function
        sys.exit(print(Path(script['__file__']).read_text('utf-8').split('\n\n\n')[0]))
    known = knobs_of(script)
    done = []                                   # files that were executed
    paper_of = {}                               # {function: the file of config/papers/ that has it}

    def include(path):
        file = Path(path).resolve()
        if file in done:                        # several files may name a plugin
            return
        done.append(file)
        before = dict(script)
        exec(compile(file.read_bytes(), path, 'exec', dont_inherit=True), script)
        kind = file.parent.name
        for name, x in script.items():
            if kind != 'plugins' and inspect.isfunction(x) and x is not before.get(name):
                source = inspect.unwrap(x).__code__.co_filename
                if source == path:              # a misspelt function replaces nothing
                    say(f"{path} {'replaces' if name in before else 'brings'} {name}()")
                if kind == 'papers':            # also of a KL that the paper has included
                    other = paper_of.setdefault(name, path)
                    assert other in (path, source), (
                        f"{other} and {path} both replace {name}(): leave one out")

    script['include'] = include
    files = files_of(*[word for word in words if word[:2] != '--'])
    for plugin in PLUGINS.split():
        path = f'plugins/{plugin}.py'
        if Path(path) in files:
            include(path)
    known = knobs_of(script) | known            # the types of ours, and what plugins bring
    for word in words:
        name, is_knob, value = word.removeprefix('--').partition('=')
        if not is_knob:
            include(word)
            continue
        if type(known.get(name)) is not str:
            with contextlib.suppress(ValueError, SyntaxError):          # else it is a text
                value = ast.literal_eval(value)
        script[name] = value
        check_knob(script, known, name)         # also a name that no knob can have
    for name in known | knobs_of(script):
        check_knob(script, known, name)
    return knobs_of(script)


def check_knob(script, known, name):
    """Refuse a knob that nobody knows, and a value of another type or out of range."""
    near = [str(x) for x in Path('plugins').glob('*.py') if f'\n{name} = ' in x.read_text()]
    assert name in known, f"no knob {name}; near: {near + difflib.get_close_matches(name, known)}"
    kind = type(known[name])
    if kind is float and type(script[name]) is int:
        script[name] = float(script[name])
    value = script[name]
    is_number = kind in (int, float)
    allowed = VALUES.get(name, (0, 1e18) if is_number else (value,))
    assert type(value) is kind and (
        allowed[0] <= value <= allowed[1] if is_number else value in allowed), (
        f"{name} = {value!r:.80}: expected {kind.__name__} of {allowed}")
