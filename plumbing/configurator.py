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
import os
import re
import sys
from pathlib import Path

from plumbing import process
from plumbing.datasets import assigns, folder_on_path, is_dataset, no_exit
from plumbing.process import Mistake, expect
from plumbing.rewards import check_rewards
from plumbing.slips import (
    ROOT,
    SCRIPTS,
    check_class,
    check_contents,
    check_imports,
    check_lines,
    check_name_of_file,
    check_replaced,
    parse,
)

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
    paths = [Path(word).resolve() for word in words if not word.startswith('--')]
    expect(len(paths) == len({*paths}), f"{' '.join(words)}: a config file is there twice")
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
        default = value if type(value) in (int, float) else 0
        script[name] = checked(name, script.get(name), type(value), default)
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
    files.report(say, any(word.startswith('--rewards=') for word in words))
    return knobs_of(script)


# ---- words ---------------------------------------------------------------------------------------
def check_word(word, script):
    """Refuse a word that is neither --name=value nor the path of a config file, and say how it is
    spelt. (Plugins may bring more knobs, so an unknown --name=value is refused later.)"""
    expect(word.strip(), f"{word!r}: an empty word. Is a variable of the shell empty, or is there "
           "a space behind a backslash?")
    first = word.split()[0]
    expect(first == word or not Path(first).is_file(), f"{word!r}: several words in one pair of "
           "quotes")
    expect('{' in word or not word.endswith('}'), f"{word}: a value with a space needs quotes: "
           "--rewards=\"{'verify': 1.0}\"")
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
        is_network = path.is_file() and path.resolve().parent == ROOT / 'config/networks'
        expect('rewards' not in script or not is_network, f"{word} is the recipe of a network: "
               f"write --generator={word} or --judge={word}")
        expect(path.suffix == '.py' and path.is_file(), (
            f"{word}: expected --name=value, or the path of a config file, FILE.py. "
            f"Near: {near_paths(path) or 'none'}"))


def near_paths(path):
    """Return config files whose names are like a path."""
    files = [str(x) for folder in ('.', 'config', 'config/papers', 'plugins', 'data')
             for x in sorted(Path(folder).glob('*.py'))]
    files += [str(x) for x in sorted(path.parent.glob('*.py')) if str(x) not in files]
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


def checked(name, value, kind, default=0):
    """Return the value of a knob, or refuse it: it has another type, or is out of range. (A knob of
    a plugin may be below 0 if its default is.)"""
    if kind is float and type(value) is int:
        value = float(value)
    if name in PATHS and type(value) is str:
        value = os.path.expanduser(os.path.expandvars(value))           # ~ and $HOME
        expect(value == value.strip() and value.isprintable(), (
            f"{name} = {value!r}: it begins or ends with a space, or has a line feed, or a letter "
            "that this locale does not know"))
        is_path = name not in ('out_dir', 'out') or not re.search('[$"\']|://', value)
        expect(is_path, f"{name} = {value!r}: it has a quote, a variable of the shell that is not "
               "set, or is an address")
    if type(value) is str and '.py --' not in value:            # a recipe may have words
        word = re.search(r'--\w+=.*', value)
        expect(not word, f"{name} = {value!r}: it holds another word, {word and word[0]}")
    expected = TYPES[kind]
    is_right = type(value) is kind
    if name in CHOICES:
        expected = ' or '.join(map(repr, CHOICES[name]))
        is_right = value in CHOICES[name]
    elif kind in (int, float):
        low = SMALLEST.get(name, 0) if default >= 0 else -MOST
        high = LARGEST.get(name, MOST)
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
        for node in parse(path).body:
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
        folder, tree = Path.cwd(), parse(path)
        code = compile(tree, str(path), 'exec', dont_inherit=True)
        expect(not is_dataset(file) or assigns(tree, 'dataset'), f"{path} is a dataset: write "
               f"dataset = '{path}'")
        check_imports(path, tree)
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
        self.check_names(path, tree, before)
        self.weighted |= {*script.get('rewards', ())}
        included = self.new.keys() - {*others}
        self.new[str(path)] = self.functions_of(file, before, included)
        for name in self.new[str(path)]:
            self.check_once(path, name, before)
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

    def check_once(self, path, name, before):
        """Refuse a function of two papers, and a helper of two files: the first one would be gone
        without a word. (In others the last one counts, and may call the first as `inner`.)"""
        if Path(path).parent.name == 'papers':
            other = self.paper_of.setdefault(name, path)
            expect(other == path, f"{other} and {path} both replace {name}(): leave one out")
        defaults = getattr(self.script[name], '__defaults__', None) or ()
        is_wrapped = any(x is before.get(name) for x in defaults)
        for other, names in self.new.items():
            is_lost = name in names and other != str(path) and not is_wrapped
            expect(not is_lost or name in self.names | KNOWN, f"{other} and {path} both have "
                   f"{name}(): rename one")

    def check_names(self, path, tree, before):
        """Refuse slips of the hand in a file. before: the globals before it."""
        knobs = {*knobs_of(before)}
        check_lines(path, tree, knobs, {*self.script})
        for name, old in before.items():
            new = self.script.get(name)
            if new is not old and name not in ('include', 'state', *knobs):
                check_replaced(path, tree, name, new, old)
        is_plugin = Path(path).resolve().parent.name == 'plugins'
        for name in self.script.keys() - before.keys():
            x = self.script[name]
            check_name_of_file(path, name, x, before, is_plugin)
            check_contents(path, name, x, knobs, self.names_at_start)
            if inspect.isclass(x) and x.__module__ == Path(path).stem:
                check_class(path, tree, name, x, before)

    def report(self, say, is_chosen):
        """Say which functions the files replaced. Refuse a function that nobody calls, if its name
        is nearly one of ours. is_chosen: the command line has --rewards=, so it is no surprise that
        others do not count."""
        script = self.script
        ours = [x for x in self.names if callable(script.get(x))]
        rewards = script.get('rewards', {})
        known = self.weighted if is_chosen else set()
        for path, names in self.new.items():
            replaced = [f'{x}()' for x in names if x in self.names_at_start]
            if replaced:
                say(f"{path} replaces {', '.join(replaced)}")
            idle = {'kl_penalty', 'divergence'} if script.get('kl_beta') == 0 else set()
            if rewards:
                idle |= {'labelled'} | ({'judge_scores'} - {f'{x}_scores' for x in rewards})
            if ROOT / 'plugins/masks.py' not in self.done:
                idle |= {'masks'}
            for name in idle & {*names}:
                say(f"{path}: nobody needs {name}() in this run")
            if 'verify' in names:
                say(f"{path} brings verify(), in the place of the dataset's")
            for name in {*names} - self.names - KNOWN - rewards.keys() - known:
                is_class = inspect.isclass(script[name])
                if is_class or name[0].islower() and inspect.isfunction(script[name]):
                    meant = difflib.get_close_matches(name, [*ours, *rewards], 1, 0.8)
                    meant += difflib.get_close_matches(name, ['texts'], 1, 0.7)         # get_texts
                    expect(not meant, f"{path}: nobody calls {name}(): did you mean {meant}? (The "
                           "name of a helper of yours begins with _)")
                    if not is_class:
                        why = ", which has no weight in `rewards`" if rewards else ''
                        say(f"{path} brings {name}(){why}: nobody calls it")
