"""Poor man's configurator, after nanoGPT's: config files and --name=value flags change the globals
of a script, from left to right.

A config file is executed in these globals. So it can set a knob, bring a reward, or replace a
function of the script. include('plugins/...') in a config file executes another one. Only plugins,
the files of a folder plugins/, bring knobs. Plugins are executed before all other files, in the
order of PLUGINS and then yours. Knobs are checked once, after the last word.

exec() has a price: an editor finds no definition of what a config file replaces. It stays because a
change is then a file of five lines, and needs no hook in the script."""
import __future__

import ast
import contextlib
import difflib
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType

from plumbing import process
from plumbing.datasets import folder_on_path, is_dataset, no_exit
from plumbing.process import Mistake, expect, near
from plumbing.rewards import check_rewards

# In this order, and then yours.
PLUGINS = 'causal world hf passes order masks top skip lora overlong watch best'.split()
# The choices of knobs that are texts, also of plugins and of other scripts.
CHOICES = {
    'blank_kind': ('random', 'answer'), 'kind': ('fill', 'causal', 'classifier'),
    'optimizer': ('muon', 'adamw'), 'positions': ('learned', 'rotary'),
    'adv_norm': ('std', 'batch', 'none'), 'loss_norm': ('token', 'sequence', 'constant'),
    'kl_estimate': ('exact', 'k1', 'k2', 'k3'), 'device': ('auto', 'cpu', 'cuda', 'mps'),
    'dtype': ('float32', 'bfloat16', 'float64'),
    'fill_order': ('random', 'left', 'confident', 'learned')}
# The smallest value of knobs that are numbers; of others it is 0.
SMALLEST = {'top_p': 1e-6, 'temperature': 1e-3, 'group_size': 2, 'eval_prompts': 2,
            'n_steps': 3} | dict.fromkeys(
    'batch_size gradient_accumulation_steps epochs mini_batches log_interval eval_interval n_layer '
    'n_head n_embd num_samples n_fill_steps lora_rank jobs length'.split(), 1)
LARGEST = dict.fromkeys('blank_low blank_high stop_at top_p learning_rate'.split(), 1)
MOST = 1e18                     # of other numbers: what a tensor can hold
# Knobs of which the first is never above the second.
ORDERED = ('blank_low', 'blank_high'), ('min_lr', 'learning_rate')
# Knobs that are paths, and may differ between machines.
PATHS = {'dataset', 'generator', 'judge', 'reference', 'out_dir', 'out'}
TYPES = {bool: 'True or False', str: 'a text', dict: "a dict, such as \"{'verify': 1.0}\"",
         int: 'a whole number', float: 'a number'}
DASHES = '-\u2010\u2011\u2012\u2013\u2014\u2015\u2212'        # what a text program makes of --
# Functions that replace nothing, and are no rewards.
KNOWN = {'verify', 'reply', 'masks', 'labelled'}
ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = {ROOT / f'{x}.py' for x in 'train_grpo pretrain sample model tasks judge'.split()}


def knobs_of(script):
    """Return {name: value} of the knobs of a script: lower-case names of numbers, texts, dicts."""
    return {name: value for name, value in script.items() if name[0].islower()
            and type(value) in TYPES and name != 'state'}


def configure(script, words, executed=None, say=process.say):
    """Apply the words of a command line to the globals of a script. Return its knobs, {name:
    value}. executed: a list, to which the paths of the executed files are appended."""
    if {'-h', '--help'} & {*words}:             # the docstring, and the knobs
        head = Path(script['__file__']).read_text('utf-8').split('\n\n\n')[0]
        process.say(script['__doc__'] + '\n' + ''.join(head.partition('# ---- knobs')[1:]))
        sys.exit()
    expect(Path.cwd() == ROOT, f"run this from the folder of train_grpo.py: cd {ROOT}")
    for word in words:
        check_word(word, script)
    # A config file that imports train_grpo gets the one that runs, and no second one.
    if Path(script['__file__']).stem == 'train_grpo':
        sys.modules['train_grpo'] = sys.modules[script['__name__']]
    files = ConfigFiles(script, [] if executed is None else executed)
    known = knobs_of(script)
    plugins = plugins_of([word for word in words if not word.startswith('--')])
    expect(not plugins or 'rewards' in script, f"{plugins[:1]}: a plugin is for train_grpo.py")
    files.plugins |= {Path(path).resolve() for path in plugins}
    for path in plugins:
        files.include(path)
    known = knobs_of(script) | known            # the types of ours, and what plugins bring
    for word in words:
        if word.startswith('--'):
            name, _, text = word.removeprefix('--').partition('=')
            script[name] = value_of(text, type(known.get(name)))
            check_name(name, known, '')
        else:
            files.include(word)
            for name in knobs_of(script).keys() - known.keys():
                check_name(name, known, f'{word}: ')
    for name, value in known.items():
        script[name] = checked(name, script.get(name), type(value))
        expect(script[name] != '' or value == '', f"{name} is empty: expected a text")
    for low, high in ORDERED:
        expect(low not in script or script[low] <= script[high], (
            f"{low} = {script.get(low)} is above {high} = {script.get(high)}"))
    expect(isinstance(script.get('state', {}), dict), f"state = {script.get('state')!r:.80}: "
           "expected a dict, as it was")
    if 'rewards' in script:
        check_rewards(script, files.names_at_start)
        if 'judge' not in script['rewards'] and any(x.startswith('--judge=') for x in words):
            say(f"judge = {script['judge']}: nobody asks it, because `rewards` has no 'judge'")
    files.report(say)
    return knobs_of(script)


# ---- words ---------------------------------------------------------------------------------------
def check_word(word, script):
    """Refuse a word that is neither --name=value nor the path of a config file, and say how it is
    spelt. (Plugins may bring more knobs, so an unknown --name=value is refused later.)"""
    name, has_value, text = word.lstrip('-').partition('=')
    path = Path(word)
    expect(name in script or Path(text).suffix != '.py', (
        f"{word}: there is no knob {name}. For a config file write {text}"))
    if word.startswith('-'):
        value = 'True' if type(script.get(name)) is bool else 'VALUE'
        example = f'--{name}={value}' if name in script else '--max_iters=4'
        expect(word.startswith('--') and has_value, (
            f"{word}: expected --name=value, such as {example}"))
    elif has_value and not path.is_file():
        name = name.lstrip(DASHES)
        check_name(name, knobs_of(script), '')
        raise Mistake(f"{word}: write --{name}={text}")
    elif path.suffix in ('.jsonl', '.txt') or path.is_file() and is_dataset(path):
        more = "" if path.is_file() else ". (There is no such file)"
        raise Mistake(f"{word} is a dataset: write --dataset={word}{more}")
    else:
        expect(path.resolve() not in SCRIPTS, f"{word} is a script, and no config file")
        expect(path.suffix == '.py' and path.is_file(), (
            f"{word}: expected --name=value, or the path of a config file, FILE.py. "
            f"Near: {near_paths(path) or 'none'}"))


def near_paths(path):
    """Return config files whose names are like a path."""
    files = [str(x) for folder in ('.', 'config', 'config/papers', 'plugins', 'data')
             for x in sorted(Path(folder).glob('*.py'))]
    stem = path.stem.removeprefix('grpo_')
    return [x for x in files if stem and stem in Path(x).stem][:3] or difflib.get_close_matches(
        str(path), files, 3, 0.7)


# ---- knobs ---------------------------------------------------------------------------------------
def value_of(text, kind):
    """Return the value of a flag, for a knob of this type."""
    if kind is not str:
        with contextlib.suppress(ValueError, SyntaxError):              # else it stays a text
            return ast.literal_eval(text)
    return text


def check_name(name, known, where):
    """Refuse a knob that nobody knows. where: the config file that sets it, or ''."""
    plugins = [str(x) for x in Path('plugins').glob('*.py') if f'\n{name} = ' in x.read_text()]
    candidates = plugins or difflib.get_close_matches(name, known) or [
        x for x in known if x.startswith(name)]
    hint = f". Near: {candidates}" if candidates else ''
    if where == '':
        hint += ". (docs/words.md has the names of TRL and verl)"
    else:
        hint += (". (A constant or a helper of yours begins with _ or a capital. A dataset has "
                 "texts(), and the recipe of a network has knobs of pretrain.py)")
    expect(name in known, f"{where}there is no knob {name}{hint}")


def checked(name, value, kind):
    """Return the value of a knob, or refuse it: it has another type, or is out of range."""
    if kind is float and type(value) is int:
        value = float(value)
    if name in PATHS and type(value) is str:
        value = os.path.expanduser(os.path.expandvars(value))           # ~ and $HOME
        expect(value == value.strip() and value.isprintable(), (
            f"{name} = {value!r}: it begins or ends with a space, or has a line feed"))
    expected = TYPES[kind]
    is_right = type(value) is kind
    if name in CHOICES:
        expected = ' or '.join(map(repr, CHOICES[name]))
        is_right = value in CHOICES[name]
    elif kind in (int, float):
        low, high = SMALLEST.get(name, 0), LARGEST.get(name, MOST)
        expected += f' from {low:g} to {high:g}' if high < MOST else f', {low:g} or more'
        is_right = is_right and low <= value <= high
    expect(is_right, f"{name} = {value!r:.80}: expected {expected}")
    return value


# ---- config files --------------------------------------------------------------------------------
def plugins_of(paths):
    """Return the plugins among config files and what these include, in the order of PLUGINS. An
    include() counts if it stands at the top level of a file."""
    paths = [*paths]
    for path in paths:                          # the list grows in the loop
        expect(Path(path).is_file(), f"include({path!r}): there is no such file")
        for node in ast.parse(Path(path).read_bytes(), str(path)).body:
            call = getattr(node, 'value', None)
            if isinstance(call, ast.Call) and getattr(call.func, 'id', '') == 'include':
                included = getattr((*call.args, None)[0], 'value', None)
                expect(isinstance(included, str), f"{path}: {ast.unparse(call)}: expected "
                       "include('FILE.py')")
                paths += {included} - {*paths}
    stems = [*PLUGINS, *sorted({Path(x).stem for x in paths} - {*PLUGINS})]
    plugins = [x for x in paths if Path(x).parent.name == 'plugins']
    return sorted(plugins, key=lambda x: stems.index(Path(x).stem))


class ConfigFiles:
    """The config files of a command: include() executes one, and report() says what they did."""

    def __init__(self, script, executed):
        self.script = script
        self.module = script['__name__']        # where a Pool looks for functions
        self.executed = executed                # paths
        self.plugins = set()                    # resolved; include() at a top level names them
        self.done = set()                       # the same, resolved
        self.names_at_start = {*script}
        self.names = {*script}                  # with the names of plugins
        self.paper_of = {}                      # {function: the file of config/papers/ that has it}
        self.new = {}                           # {path: names of functions that it has defined}
        self.weighted = set()                   # rewards, also of files before the last one
        script['include'] = self.include

    def include(self, path):
        """Execute a config file in the globals of the script, once."""
        file = Path(path).resolve()
        if file in self.done:                   # several files may include a plugin
            return
        expect(file.is_file(), f"include({path!r}): there is no such file")
        expect(file.parent.name != 'plugins' or file in self.plugins, f"include({path!r}): write "
               "it at the top level of a config file, and not inside of `if` or of a function")
        self.done.add(file)
        self.executed.append(str(path))
        script, before, others = self.script, dict(self.script), [*self.new]
        folder, text = Path.cwd(), file.read_bytes()
        code = compile(text, str(path), 'exec', dont_inherit=True)
        # The file is not the script, so `if __name__ == '__main__'` in it is false.
        script.update(__name__=file.stem, __file__=str(path))
        try:
            with folder_on_path(file), no_exit(path):
                exec(code, script)
        finally:
            # The script's again. (A file may have a main() to test itself.)
            script.update({x: before[x] for x in ('__name__', '__file__', 'main') if x in before})
        expect(script.get('configure') is before.get('configure'), f"{path} replaces configure(), "
               "which has been called already")
        expect(Path.cwd() == folder, f"{path} calls os.chdir(): a run stays in its folder")
        self.check_spelling(path, text, before)
        self.weighted |= {*script.get('rewards', ())}
        included = self.new.keys() - {*others}
        self.new[str(path)] = self.functions_of(file, before, included)
        for name in self.new[str(path)] if file.parent.name == 'papers' else ():
            other = self.paper_of.setdefault(name, path)
            expect(other == path, f"{other} and {path} both replace {name}(): leave one out")
        if file.parent.name == 'plugins':
            self.names |= {*script}

    def functions_of(self, file, before, included):
        """Return the names of the functions and classes that a file has brought. before: the
        globals before it. included: paths of the files that it includes, whose functions are
        theirs."""
        theirs = [self.script[name] for path in included for name in self.new[path]]
        names = []
        for name, x in self.script.items():
            is_theirs = any(x is other for other in theirs)
            if x is before.get(name) or is_theirs or not callable(x):
                continue
            is_own = getattr(x, '__module__', None) == file.stem        # or it is imported
            if is_own:
                x.__module__ = self.module
            if is_own or name in self.names_at_start:
                names.append(name)
        return names

    def check_spelling(self, path, text, before):
        """Refuse Max_iters for max_iters, betas = (0.9, 0.95), and `global kl_betta`, which would
        be ignored."""
        ours = {name.lower(): name for name in before}
        is_plugin = Path(path).resolve().parent.name == 'plugins'
        for name in self.script.keys() - before.keys():
            x = self.script[name]
            meant = ours.get(name.lower())
            is_constant = name.isupper() and meant not in knobs_of(before)
            is_other = is_constant or isinstance(x, ModuleType)
            expect(not meant or is_other, f"{path}: {name}: did you mean {meant}?")
            is_code = callable(x) or isinstance(x, ModuleType | __future__._Feature)
            expect(is_plugin or is_code or not name[0].islower(), f"{path}: there is no knob "
                   f"{name}{near(name, before)}. (A constant of yours begins with _ or a capital)")
            self.check_contents(path, name, x, before)
        for node in ast.walk(ast.parse(text)):
            for name in node.names if isinstance(node, ast.Global) else ():
                expect(name in self.script, f"{path}: global {name}: there is no {name}"
                       f"{near(name, self.script)}")

    def check_contents(self, path, name, x, before):
        """Refuse knobs in a class, an object or a dict, `class Config: max_iters = 4`, and `import
        dr_grpo`, which is a config file: nothing would change."""
        knobs = {*knobs_of(before)}
        if isinstance(x, ModuleType):
            theirs = {y for y, value in vars(x).items()
                      if inspect.isfunction(value) and value.__module__ == x.__name__}
            is_config = knobs & vars(x).keys() or theirs & self.names_at_start
            file = Path(getattr(x, '__file__', None) or '')
            is_ours = file.is_relative_to(ROOT) and file not in SCRIPTS
            expect(not (is_ours and is_config), f"{path} imports {x.__name__}, which changes "
                   "nothing here: write include('FILE.py')")
            return
        held = x if isinstance(x, dict) else getattr(x, '__dict__', ())
        held = {y for y in held if not str(y).startswith('__')}
        expect(len(held) < 2 or not held <= knobs, f"{path}: {name} holds {sorted(held, key=str)}, "
               "which are knobs: write each as a line of its own, such as max_iters = 4")

    def report(self, say):
        """Say which functions the files replaced. Refuse a function that nobody calls, if its name
        is nearly one of ours."""
        script = self.script
        ours = [x for x in self.names if callable(script.get(x))]
        rewards = script.get('rewards', {})
        for path, names in self.new.items():
            replaced = [f'{x}()' for x in names if x in self.names_at_start]
            if replaced:
                say(f"{path} replaces {', '.join(replaced)}")
            if 'kl_penalty' in names and script.get('kl_beta') == 0:
                say(f"{path}: nobody calls kl_penalty(), because kl_beta is 0")
            for name in {*names} - self.names - KNOWN - rewards.keys() - self.weighted:
                is_class = inspect.isclass(script[name])
                if is_class or name[0].islower() and inspect.isfunction(script[name]):
                    meant = difflib.get_close_matches(name, [*ours, *rewards], 1, 0.8)
                    meant += difflib.get_close_matches(name, ['texts'], 1, 0.7)         # get_texts
                    expect(not meant, f"{path}: nobody calls {name}(): did you mean {meant}? (The "
                           "name of a helper of yours begins with _)")
                    if not is_class:
                        why = ", which has no weight in `rewards`" if rewards else ''
                        say(f"{path} brings {name}(){why}: nobody calls it")
