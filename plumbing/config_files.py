"""The config files of a command: which of them are plugins, how they are executed in the globals of
a script, and what they have brought."""
import ast
import difflib
import inspect
import os
import sys
from pathlib import Path

from plumbing import process
from plumbing.datasets import (
    add_folder,
    assigns,
    guarded,
    is_dataset,
    is_near,
    modules_of,
    opened_files,
)
from plumbing.process import expect
from plumbing.slips import ROOT, check_file, check_imports, code_of, nodes_of, parse

# In this order, and then yours.
PLUGINS = 'causal world hf passes order masks top skip lora overlong watch best'.split()
# What knobs can be.
TYPES = {bool: 'True or False', str: 'a text', dict: "a dict, such as \"{'verify': 1.0}\"",
         int: 'a whole number', float: 'a number'}
# Functions that replace nothing, and are no rewards.
KNOWN = {'verify', 'reply', 'masks', 'labelled'}


def knobs_of(script):
    """Return {name: value} of the knobs of a script: lower-case names of numbers, texts, dicts."""
    return {name: value for name, value in script.items() if name[0].islower()
            and type(value) in TYPES and name != 'state'}


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
                expect(Path(included).is_file(), f"{path}: include({included!r}): there is no such "
                       "file. (Paths begin in the folder of train_grpo.py)")
                paths += {included} - {*paths}
    stems = [*PLUGINS, *sorted({Path(x).stem for x in paths} - {*PLUGINS})]
    plugins = [x for x in paths if Path(x).parent.name == 'plugins']
    return sorted(plugins, key=lambda x: stems.index(Path(x).stem))


def is_idle(tree, knobs):
    """Does a syntax tree set no knob, define no function, and call none? (rewards['verify'] = 0.5
    sets one.)"""
    acts = any(isinstance(x, ast.Call | ast.Subscript | ast.Attribute) for x in nodes_of(tree))
    is_plain = all(isinstance(x, ast.Expr | ast.Assign | ast.Import) for x in tree.body)
    return is_plain and not acts and not assigns(tree, *knobs, 'state')


class ConfigFiles:
    """The config files of a command: include() executes one, and report() says what they did."""

    def __init__(self, script, executed):
        self.script = script
        self.module = script['__name__']        # where a Pool looks for functions
        self.executed = executed                # paths
        self.opened = []                        # paths of texts that the files have read
        self.plugins = set()                    # resolved; include() at a top level names them
        self.done = set()                       # the same, resolved
        self.open = []                          # (path, globals before it) of files in execution
        self.at_start = dict(script)
        self.names = {*script}                  # with the names of plugins
        self.paper_of = {}                      # {function: the file of config/papers/ that has it}
        self.new = {}                           # {path: names of functions that it has defined}
        self.used = {}                          # {path: names that it reads}
        self.idle_files = []                    # those that set no knob and define nothing
        self.experiment = ''                    # the file grpo_*.py of config/
        self.constants = {}                     # {name: the file that has set it}
        self.knobs = {}                         # the same of knobs
        self.lost = []                          # what to say of knobs that an experiment sets again
        self.weighted = set()                   # rewards, also of files before the last one
        script['include'] = self.include

    def include(self, path, *more):
        """Execute a config file in the globals of the script, once."""
        expect(not more, f"include({path!r}, ...): one file at a time")
        file = Path(path).resolve()
        if file in self.done:                   # several files may include a plugin
            return
        expect(file.is_file(), f"include({path!r}): there is no such file")
        expect(file.parent.name != 'plugins' or file in self.plugins, f"include({path!r}): write "
               "it at the top level of a config file, and not inside of `if` or of a function")
        self.done.add(file)
        if file.parent == ROOT / 'config' and file.stem.startswith('grpo_'):
            expect(not self.experiment, f"{self.experiment} {path}: two experiments would be "
                   "mixed: take one")
            self.experiment = path
        self.executed.append(str(path))
        script, before, others = self.script, dict(self.script), [*self.new]
        tree = parse(path)
        expect(not is_dataset(file) or assigns(tree, 'dataset'), f"{path} is a dataset: write "
               f"dataset = '{path}'")
        check_imports(path, tree)
        # The file is not the script, so `if __name__ == '__main__'` in it is false.
        script.update(__name__=file.stem, __file__=str(path))
        script.pop('main', None)                # a main() of the file is the file's
        self.open.append((path, before))
        add_folder(file)
        # A dataclass looks for the module in which it is defined.
        is_new = file.stem not in sys.modules
        if is_new:
            sys.modules[file.stem] = sys.modules[self.module]
        try:
            with opened_files() as opened, guarded(path):
                exec(code_of(path, tree), script)
            self.opened += [os.fsdecode(x) for x in opened if is_near(x, file)]
        finally:
            self.open.pop()
            if is_new:
                del sys.modules[file.stem]
            # The script's again. (A file may have a main() to test itself.)
            script.update({x: before[x] for x in ('__name__', '__file__', 'main') if x in before})
        for name in 'configure', 'include':
            expect(script.get(name) == before.get(name), f"{path} replaces {name}(), which has "
                   "been called already")
        for outer, start in self.open:
            self.check_order(outer, start, path, before)
        check_file(path, tree, self.script, before, {*knobs_of(before)}, self.names)
        if not self.open and file.parent.name != 'plugins':
            self.note_knobs(path, before)
        rewards = script.get('rewards', {})
        expect(isinstance(rewards, dict), f"{path}: rewards = {rewards!r:.80}: expected a dict")
        self.weighted |= {*rewards}
        included = self.new.keys() - {*others}
        for name in assigns(tree, *script) - knobs_of(script).keys() - {'state'}:
            other = self.constants.setdefault(name, path)
            is_same = repr(before.get(name)) == repr(script[name])
            expect(other == path or is_same or callable(script[name]), f"{other} and {path} both "
                   f"have {name}: rename one, because config files share their names")
        self.new[str(path)] = self.functions_of(file, before, included)
        self.used[str(path)] = {x.id for x in nodes_of(tree) if isinstance(x, ast.Name)
                                and isinstance(x.ctx, ast.Load)}
        if is_idle(tree, knobs_of(script)):
            self.idle_files.append(path)
        for name in self.new[str(path)]:
            self.check_once(path, name, before)
        if file.parent.name == 'plugins':
            self.names |= {*script}

    def check_order(self, outer, start, path, before):
        """Refuse an include() below a knob, or a function, of the file `outer` that it sets again.
        start, before: the globals before `outer`, and before the included file, path."""
        script = self.script
        lost = [x for x in knobs_of(before) if before[x] != start.get(x, before[x])
                and script.get(x) != before[x]]
        if Path(outer).parent.name != 'plugins':                # passes.py wants it so
            lost += [x for x in before if inspect.isfunction(before[x])
                     and before[x] is not start.get(x) and script.get(x) is not before[x]]
        expect(not lost, f"{outer} sets {lost}, and then include('{path}') sets them again: write "
               "the include() first")

    def note_knobs(self, path, before):
        """Remember which knobs a file of the command has set, for the case that an experiment
        comes later and sets them again."""
        changed = [x for x in knobs_of(before) if self.script.get(x) != before[x]]
        lost = [x for x in changed if x in self.knobs]
        if lost and path == self.experiment:
            self.lost.append(f"{path} sets {', '.join(lost)} after {self.knobs[lost[0]]}, and the "
                             "later word wins: write the experiment first")
        self.knobs |= dict.fromkeys(changed, path)

    def sources(self):
        """Return the paths of the config files, of what they import, and of what they have read."""
        return [*{x for path in self.executed for x in modules_of(path)}, *self.opened]

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
            if is_own or name in self.at_start:
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

    def report(self, say, is_chosen):
        """Say which functions the files replaced. Refuse a function that nobody calls, if its name
        is nearly one of ours. is_chosen: the command line has --rewards=, so it is no surprise that
        others do not count."""
        script = self.script
        ours = [x for x in self.names if callable(script.get(x))]
        rewards = script.get('rewards', {})
        known = self.weighted if is_chosen else set()
        for text in self.lost:
            say(text)
        for path in self.idle_files:
            say(f"{path} changes nothing: it sets no knob, and defines no function")
        for path, names in self.new.items():
            replaced = [x for x in names if x in self.at_start]
            if replaced:
                say(f"{path} replaces {', '.join([f'{x}()' for x in replaced])}")
            heads = [(inspect.getdoc(self.at_start[x]) or '').split('\n\n')[0] for x in replaced]
            if replaced and Path(path).parent.name not in ('plugins', 'papers'):
                process.HINTS[path] = '\n'.join(
                    f"{path} replaces {name}(). Ours: {' '.join(head.split())}"
                    for name, head in zip(replaced, heads))
            for name in self.idle() & {*names}:
                say(f"{path}: nobody needs {name}() in this run")
            if 'verify' in names:
                say(f"{path} brings verify(), in the place of the dataset's")
            for name in {*names} - self.names - KNOWN - rewards.keys() - known - self.used[path]:
                is_class = inspect.isclass(script[name])
                if is_class or name[0].islower() and inspect.isfunction(script[name]):
                    meant = difflib.get_close_matches(name, [*ours, *rewards], 1, 0.8)
                    meant += difflib.get_close_matches(name, ['texts'], 1, 0.7)         # get_texts
                    expect(not meant, f"{path}: nobody calls {name}(): did you mean {meant}? (The "
                           "name of a helper of yours begins with _)")
                    if not is_class:
                        why = ", which has no weight in `rewards`" if rewards else ''
                        say(f"{path} brings {name}(){why}: nobody calls it")

    def idle(self):
        """Return the names of functions that this command does not call."""
        rewards = self.script.get('rewards', {})
        idle = set()
        if self.script.get('kl_beta') == 0:
            idle |= {'kl_penalty', 'divergence'}
        if rewards:                             # train_grpo.py, and not pretrain.py
            idle.add('labelled')
        if rewards and 'judge' not in rewards:
            idle.add('judge_scores')
        if ROOT / 'plugins/masks.py' not in self.done:
            idle.add('masks')
        return idle
