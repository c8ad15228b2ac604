"""Poor man's configurator, after nanoGPT's: config files and --name=value flags change the globals
of a script, from left to right.

A config file is executed in these globals. So it can set a knob, bring a reward, or replace a
function of the script. include('plugins/...') in a config file executes another one. Only plugins,
the files of a folder plugins/, bring knobs. Plugins are executed before all other files, in the
order of PLUGINS and then yours. Knobs are checked once, after the last word.

exec() has a price: an editor finds no definition of what a config file replaces. It stays because a
change is then a file of five lines, and needs no hook in the script."""
import ast
import contextlib
import difflib
import inspect
import sys
from pathlib import Path

from plumbing import process
from plumbing.datasets import folder_on_path, no_exit
from plumbing.process import Mistake, expect
from plumbing.rewards import check_rewards

# In this order, and then yours.
PLUGINS = 'causal hf passes order masks top skip lora overlong watch best'.split()
# The choices of knobs that are texts, also of plugins and of other scripts.
CHOICES = {
    'blank_kind': ('random', 'answer'), 'kind': ('fill', 'causal', 'classifier'),
    'optimizer': ('muon', 'adamw'), 'positions': ('learned', 'rotary'),
    'adv_norm': ('std', 'batch', 'none'), 'loss_norm': ('token', 'sequence', 'constant'),
    'kl_estimate': ('exact', 'k1', 'k2', 'k3'), 'device': ('auto', 'cpu', 'cuda', 'mps'),
    'dtype': ('float32', 'bfloat16', 'float64'),
    'fill_order': ('random', 'left', 'confident', 'learned')}
# The smallest and the largest value of knobs that are numbers. Others are 0 or more.
SHARES = 'blank_low blank_high stop_at'.split()
COUNTS = ('batch_size gradient_accumulation_steps epochs mini_batches log_interval eval_interval '
          'n_layer n_head n_embd num_samples n_fill_steps lora_rank').split()
MOST = 1e18                     # what a tensor can hold
RANGES = dict.fromkeys(SHARES, (0, 1)) | dict.fromkeys(COUNTS, (1, MOST)) | {
    'top_p': (1e-6, 1), 'temperature': (1e-3, MOST), 'group_size': (2, MOST),
    'eval_prompts': (2, MOST)}
# Functions that nobody replaces, and that are no rewards: those of a dataset, and of a plugin.
KNOWN = {'verify', 'reply', 'masks', 'labelled'}
ROOT = Path(__file__).resolve().parent.parent


def knobs_of(script):
    """Return {name: value} of the knobs of a script: lower-case names of numbers, texts, dicts."""
    return {name: value for name, value in script.items() if name[0].islower()
            and type(value) in (bool, int, float, str, dict) and name != 'state'}


def configure(script, words, executed=None, say=process.say):
    """Apply the words of a command line to the globals of a script. Return its knobs, {name:
    value}. executed: a list, to which the paths of the executed files are appended."""
    if {'-h', '--help'} & {*words}:             # what stands before the first function
        sys.exit(print(Path(script['__file__']).read_text('utf-8').split('\n\n\n')[0]))
    expect(Path.cwd() == ROOT, f"run this from the folder of train_grpo.py: cd {ROOT}")
    for word in words:
        check_word(word, knobs_of(script))
    files = Files(script, [] if executed is None else executed)
    for plugin in plugins_of([word for word in words if not word.startswith('--')]):
        files.include(plugin)
    known = files.known_at_start | {
        name: x for name, x in knobs_of(script).items() if name not in files.known_at_start}
    script['include'] = files.include
    for word in words:
        if word.startswith('--'):
            name, _, text = word.removeprefix('--').partition('=')
            check_name(name, known)
            script[name] = value_of(text, type(known[name]))
        else:
            files.include(word)
        for name in knobs_of(script).keys() - known.keys():
            check_name(name, known, word)
    for name in known:
        check_value(script, name, type(known[name]))
    if 'rewards' in script:
        check_rewards(script, files.names_at_start)
    files.report(say)
    return knobs_of(script)


# ---- words ---------------------------------------------------------------------------------------
def check_word(word, knobs):
    """Refuse a word that is neither --name=value nor the path of a config file, and say how it is
    spelt. (Plugins may bring more knobs, so an unknown --name=value is refused later.)"""
    name, has_value, _ = word.removeprefix('--').partition('=')
    if word.startswith('-'):
        example = 'True' if type(knobs.get(name)) is bool else 'VALUE'
        expect(word.startswith('--') and has_value, (
            f"{word}: expected --name=value, such as --{name.strip('-')}={example}"))
        return
    path = Path(word)
    expect(not has_value or path.is_file(), f"{word}: write --{word}")
    if path.suffix in ('.jsonl', '.txt') or path.suffix == '.py' and path.is_file() and (
            'texts' in defined_in(path)):
        raise Mistake(f"{word} is a dataset: write --dataset={word}")
    if not (path.suffix == '.py' and path.is_file()):
        raise Mistake(f"{word}: expected --name=value, or the path of a config file, FILE.py."
                      + near_files(path) + near_dataset(word))


def near_files(path):
    """Return a hint: the config files whose names are like a path."""
    files = [str(x) for folder in ('.', 'config', 'config/papers', 'plugins')
             for x in sorted(Path(folder).glob('*.py'))]
    stem = path.stem.removeprefix('grpo_')
    near = [x for x in files if stem and stem in Path(x).stem]
    near = near or difflib.get_close_matches(str(path), files, 3, 0.7)
    return f" Did you mean {' or '.join(near[:3])}?" if near else ''


def near_dataset(word):
    """Return a hint if the word is the value of a flag, after a space, or a dataset."""
    if Path(f'data/{word}.py').is_file():
        return f" Or --dataset={word}?"
    return '' if '/' in word else f" (--name={word} has a = and no space)"


def defined_in(path):
    """Return the names that a file defines or imports, outside of functions."""
    names = set()
    for node in ast.parse(path.read_text('utf-8'), str(path)).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        for name in ast.walk(node) if isinstance(node, ast.Assign) else ():
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                names.add(name.id)
    return names


# ---- knobs ---------------------------------------------------------------------------------------
def value_of(text, kind):
    """Return the value of a flag, for a knob of this type."""
    if kind is not str:
        with contextlib.suppress(ValueError, SyntaxError):              # else it stays a text
            return ast.literal_eval(text)
    return text


def check_name(name, known, file=''):
    """Refuse a knob that nobody knows. file: the config file that sets it, if one does."""
    if name in known:
        return
    plugins = [str(x) for x in Path('plugins').glob('*.py') if f'\n{name} = ' in x.read_text()]
    near = plugins or difflib.get_close_matches(name, known)
    where = f"{file}: " if file.endswith('.py') else ''
    hint = '. A constant or a helper of yours begins with _ or a capital' if where else ''
    raise Mistake(f"{where}there is no knob {name}"
                  + (f"; {'it is a knob of' if plugins else 'near:'} {', '.join(near)}"
                     if near else '') + hint)


def check_value(script, name, kind):
    """Refuse a value of another type, or out of range."""
    if kind is float and type(script[name]) is int:
        script[name] = float(script[name])
    value = script[name]
    expected = {bool: 'True or False', str: 'a text', dict: "a dict, such as \"{'verify': 1.0}\"",
                int: 'a whole number', float: 'a number'}[kind]
    is_right = type(value) is kind
    if kind in (int, float):
        low, high = RANGES.get(name, (0, MOST))
        expected += f', {low:g} or more' if high == MOST else f' from {low:g} to {high:g}'
        is_right = is_right and low <= value <= high
    elif name in CHOICES:
        expected = ' or '.join(map(repr, CHOICES[name]))
        is_right = is_right and value in CHOICES[name]
    expect(is_right, f"{name} = {value!r:.80}: expected {expected}")


# ---- config files --------------------------------------------------------------------------------
def include_calls(path):
    """Return the paths that a config file includes at its top level."""
    tree = ast.parse(Path(path).read_text('utf-8'), str(path))
    calls = [x.value for x in tree.body if isinstance(x, ast.Expr) and isinstance(x.value, ast.Call)]
    return [x.args[0].value for x in calls if getattr(x.func, 'id', '') == 'include']


def is_plugin(path):
    return Path(path).parent.name == 'plugins'


def plugins_of(paths):
    """Return the plugins among config files and what these include, in the order of PLUGINS."""
    paths = [*paths]
    for path in paths:                          # the list grows in the loop
        expect(Path(path).is_file(), f"include({path!r}): there is no such file")
        paths += [x for x in include_calls(path) if x not in paths]
    stems = [*PLUGINS, *sorted({Path(x).stem for x in paths} - {*PLUGINS})]
    return sorted(filter(is_plugin, paths), key=lambda x: stems.index(Path(x).stem))


class Files:
    """The config files of a command: include() executes one, and report() says what they did."""

    def __init__(self, script, executed):
        self.script = script
        self.executed = executed                # paths
        self.done = set()                       # the same, resolved
        self.names_at_start = {*script}
        self.known_at_start = knobs_of(script)
        self.paper_of = {}                      # {function: the file of config/papers/ that has it}
        self.new = {}                           # {path: (replaced, brought) names}

    def include(self, path):
        """Execute a config file in the globals of the script, once."""
        file = Path(path).resolve()
        if file in self.done:                   # several files may include a plugin
            return
        expect(file.is_file(), f"include({path!r}): there is no such file")
        self.done.add(file)
        self.executed.append(str(path))
        script = self.script
        before = dict(script)
        script['include'] = self.include
        code = compile(file.read_bytes(), str(path), 'exec', dont_inherit=True)
        # The file is not the script, so `if __name__ == '__main__'` in it is false.
        script.update(__name__=file.stem, __file__=str(path))
        try:
            with folder_on_path(file), no_exit(path):
                exec(code, script)
        finally:
            script.update(__name__=before.get('__name__'), __file__=before.get('__file__'))
        self.note(str(path), before)

    def note(self, path, before):
        """Note what a file has replaced and brought. Refuse two papers that replace one function.
        """
        new = [name for name, x in self.script.items() if x is not before.get(name)
               and (inspect.isfunction(x) or inspect.isclass(x)) and source_of(x) == path]
        self.new[path] = [x for x in new if x in before], [x for x in new if x not in before]
        for name in new if Path(path).parent.name == 'papers' else ():
            other = self.paper_of.setdefault(name, path)
            expect(other == path, f"{other} and {path} both replace {name}(): leave one out")

    def report(self, say):
        """Say which functions the files replaced. Refuse a function that nobody calls, if its name
        is nearly one of ours."""
        rewards = self.script.get('rewards', {})
        for path, (replaced, brought) in self.new.items():
            if replaced:
                say(f"{path} replaces {', '.join(f'{x}()' for x in replaced)}")
            for name in brought:
                is_known = name in rewards or name in KNOWN or not name[0].islower()
                if is_known or is_plugin(path) or not inspect.isfunction(self.script[name]):
                    continue
                near = difflib.get_close_matches(name, self.functions(), 1, 0.8)
                expect(not near, f"{path}: nobody calls {name}(): did you mean {near}? (The name of "
                       "a helper of yours begins with _)")
                say(f"{path} brings {name}(), which has no weight in `rewards`: nobody calls it")

    def functions(self):
        return [x for x in self.names_at_start | {*self.script['rewards']}
                if callable(self.script.get(x))] if 'rewards' in self.script else []


def source_of(x):
    """Return the path of the file in which a function or a class was written."""
    if inspect.isclass(x):
        methods = [y for y in vars(x).values() if inspect.isfunction(y)]
        return methods[0].__code__.co_filename if methods else ''
    return inspect.unwrap(x).__code__.co_filename
