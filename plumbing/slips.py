"""Slips of the hand in a config file: what Python takes, and what changes nothing. Each is refused
with the right spelling."""
import __future__

import ast
import difflib
import functools
import inspect
import textwrap
from pathlib import Path
from types import ModuleType

from plumbing.process import Mistake, expect, near

ROOT = Path(__file__).resolve().parent.parent
# Functions that files replace most often.
CORE = {'advantages', 'policy_loss', 'kl_penalty', 'token_weights', 'collect', 'complete', 'learn'}
SCRIPTS = {ROOT / f'{x}.py' for x in 'train_grpo pretrain sample model tasks judge'.split()}


def parse(path):
    """Return the syntax tree of a Python file."""
    try:
        return parse_once(Path(path).read_bytes(), str(path))
    except SyntaxError as e:
        # Of a mistake in a line Python's own message shows the line.
        expect(e.lineno and 'null bytes' not in str(e), f"{path} is no Python file in UTF-8: {e}")
        raise
    except ValueError as e:                     # the same, of other versions of Python
        raise Mistake(f"{path} is no Python file in UTF-8: {e}") from None


# A command looks at each of its files a dozen times.
parse_once = functools.cache(ast.parse)


@functools.cache
def nodes_of(tree):
    """Return the nodes of a syntax tree."""
    return [*ast.walk(tree)]


@functools.cache
def code_of(path, tree):
    """Return the code of a file, which exec() takes."""
    return compile(tree, str(path), 'exec', dont_inherit=True)


def check_file(path, tree, script, before, knobs, names):
    """Refuse the slips in a file that was executed. before: the globals before it. knobs: their
    names. names: those of the script and of plugins."""
    check_lines(path, tree, knobs, {*script})
    for name, old in before.items():
        new = script.get(name)
        if new is not old and name not in ('include', 'state', *knobs):
            check_replaced(path, tree, name, new, old, knobs)
    is_plugin = Path(path).resolve().parent.name == 'plugins'
    for name in script.keys() - before.keys():
        x = script[name]
        check_name_of_file(path, name, x, {y: before[y] for y in names if y in before}, is_plugin)
        check_contents(path, name, x, knobs, names)
        if inspect.isclass(x) and x.__module__ == Path(path).stem:
            check_class(path, tree, name, x, before)
            functions = {y for y in names if inspect.isfunction(script.get(y))}
            theirs = sorted(vars(x).keys() & functions)
            expect(not theirs or is_plugin, f"{path}: the class {name} has {theirs[:1]}, and "
                   "nobody calls it there: write this function without a class")


def check_lines(path, tree, knobs, names):
    """Refuse lines without an effect. knobs, names: those of the script, with the file's own.

        max_iters: 2                    max_iters == 2
        def collect(...):               def collect(...):
            kl_beta = 0.5                   global kl_betta
        if __name__ == '__main__':      # a config file is not the script
            kl_beta = 0.5
    """
    for node in tree.body:
        target = getattr(getattr(node, 'target', None), 'id', None)
        is_empty = isinstance(node, ast.AnnAssign) and node.value is None
        check_line(path, node, not (is_empty and target in knobs), f": write {target} = VALUE")
        value = node.value if isinstance(node, ast.Expr) else None
        check_line(path, node, not isinstance(value, ast.Name | ast.Tuple | ast.Dict), (
            ": this line does nothing"))
        if isinstance(node, ast.If) and '__main__' in ast.unparse(node.test):
            called = {x.id for x in nodes_of(node) if isinstance(x, ast.Name)}
            functions = [x for x in tree.body
                         if isinstance(x, ast.FunctionDef) and x.name in called]
            inside = names_set_in(node, *functions) & knobs
            check_line(path, node, not inside, f" is not executed, and it sets {sorted(inside)}")
        if isinstance(node, ast.For):
            turned = {x.id for x in nodes_of(node.target) if isinstance(x, ast.Name)} & knobs
            check_line(path, node, not turned, f" leaves the last value in {sorted(turned)}: "
                       "extras.compare tries several")
    check_twice(path, tree)
    for node in nodes_of(tree):
        for name in node.names if isinstance(node, ast.Global) else ():
            expect(name in names, f"{path}: global {name}: there is no {name}{near(name, names)}")
        value = node.value if isinstance(node, ast.Expr) else None
        check_line(path, node, not isinstance(value, ast.Compare | ast.BinOp), (
            ": this line does nothing"))
        called = getattr(value, 'func', None)
        is_copy = getattr(called, 'attr', '') == 'select' or getattr(called, 'id', '') == 'replace'
        check_line(path, node, not is_copy, ": this line does nothing, because it returns another "
                   "Rollout: write rollout = ...")
        if isinstance(node, ast.FunctionDef):
            check_globals(path, node, knobs)
            check_split(path, node)
            for inside in node.body:
                is_hidden = isinstance(inside, ast.FunctionDef) and inside.name in CORE
                expect(not is_hidden, f"{path}: {node.name}() has a function "
                       f"{getattr(inside, 'name', '')}() of its own, which replaces nothing")


def check_line(path, node, is_right, words):
    """Refuse a line with these words. (To write a line again takes time, so it is not done for
    those that are right.)"""
    if not is_right:
        raise Mistake(f"{path}: {ast.unparse(node)[:80].splitlines()[0]}{words}")


def names_set_in(*nodes):
    """Return the names that syntax trees set, or declare to be global."""
    names = set()
    for node in [x for tree in nodes for x in nodes_of(tree)]:
        if isinstance(node, ast.Global):
            names |= {*node.names}
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def check_globals(path, function, knobs):
    """Refuse a function that sets a knob without `global`, and does not read it either."""
    declared, stored, loaded = set(), set(), set()
    for node in nodes_of(function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            declared |= {*node.names}
        if isinstance(node, ast.Name):
            (stored if isinstance(node.ctx, ast.Store) else loaded).add(node.id)
    expect('__file__' not in loaded, f"{path}: {function.name}() asks for __file__, which is "
           "train_grpo.py's when it is called: compute the path at the top of the file")
    lost = sorted((stored & knobs) - loaded - declared)
    expect(not lost, f"{path}: {function.name}() sets a {lost[:1]} of its own, and not the knob: "
           f"write `global {', '.join(lost)}` into it")


def check_split(path, function):
    """Refuse `split == 'test'` of a function that gets a split."""
    for node in nodes_of(function) if 'split' in {x.arg for x in function.args.args} else ():
        if isinstance(node, ast.Compare) and getattr(node.left, 'id', '') == 'split':
            others = {x.value for x in node.comparators if isinstance(x, ast.Constant)}
            check_line(path, node, others <= {'train', 'val'}, ": `split` is 'train' or 'val'")


def check_twice(path, tree):
    """Refuse a second function of one name, unless it wraps the first one, and a second key of one
    name: the first one would be gone."""
    seen = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            defaults = {x.id for x in node.args.defaults if isinstance(x, ast.Name)}
            expect(node.name not in seen or node.name in defaults, (
                f"{path} has {node.name}() twice"))
            seen.add(node.name)
    for node in nodes_of(tree):
        if isinstance(node, ast.Dict):
            keys = [x.value for x in node.keys if isinstance(x, ast.Constant)]
            expect(len(keys) == len({*keys}), f"{path}: a dict has a key twice: {keys}")


def check_imports(path, tree):
    """Refuse `import config.papers.dr_grpo`, which is not executed in the globals of the script,
    and `from math import *`, whose e and pi would be taken for knobs."""
    for node in nodes_of(tree):
        modules = [x.name for x in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or '']
            places = [folder / f"{modules[0].replace('.', '/')}.py"
                      for folder in (ROOT, Path(path).resolve().parent)]
            is_star = node.names[0].name == '*' and not any(x.is_file() for x in places)
            expect(not is_star, f"{path}: {ast.unparse(node)}: name what it needs, because each "
                   "lower-case number would be taken for a knob")
        for module in modules:
            file = Path(module.replace('.', '/') + '.py')
            is_config = file.parts[0] in ('plugins', 'config') and file.is_file()
            expect(not is_config, f"{path}: {ast.unparse(node)}: write include('{file}')")


def check_class(path, tree, name, x, before):
    """Refuse `class OrderedTask(Task)`: only a class called Task takes its place."""
    olds = [y.__name__ for y in x.__mro__[1:] if any(y is old for old in before.values())]
    used = {y.id for y in nodes_of(tree) if isinstance(y, ast.Name)}
    expect(not olds or name in used, f"{path}: nobody uses the class {name}: call it {olds[:1]}, "
           "and it takes the place of that one")


def check_replaced(path, tree, name, new, old, knobs):
    """Refuse what cannot take the place of an older thing of the same name: `from time import time`
    for the module, a function with other parameters, or without its return."""
    words = f"{path}: {name} takes the place of a {type(old).__name__} of the script"
    expect(not isinstance(old, ModuleType) or isinstance(new, ModuleType), words)
    expect(not inspect.isclass(old) or inspect.isclass(new) and issubclass(new, old), f"{words}: "
           f"write class {name}({name}), or choose another name")
    expect(not callable(old) or callable(new), words)
    if inspect.isclass(new):
        for method in vars(new).keys() & {x for x in dir(old) if x[0] != '_'}:
            if inspect.isfunction(vars(new)[method]):
                check_arguments(path, f'{name}.{method}', vars(new)[method], getattr(old, method))
        check_super(path, tree, name, old)
        called = {x.attr for x in nodes_of(tree) if isinstance(x, ast.Attribute)}
        for method in sorted(vars(new).keys() - {*dir(old)} - called):
            meant = difflib.get_close_matches(method, [x for x in dir(old) if x[0] != '_'], 1, 0.8)
            expect(not meant or method[0] == '_', f"{path}: nobody calls {name}.{method}(): did "
                   f"you mean {meant}?")
    if not inspect.isfunction(old) or not inspect.isroutine(new):
        return
    names = check_arguments(path, name, new, old)
    own = inspect.signature(new).parameters
    for x in own.keys() - {*names}:
        expect(x not in knobs or own[x].default is own[x].empty, f"{path}: {x} is a parameter of "
               f"{name}(), and not the knob: write {x} = VALUE as a line of its own")
    inner = own.get('inner')
    is_other = inner and inspect.isfunction(inner.default) and inner.default.__name__ != name
    expect(not is_other or inner.default is old, f"{path}: {name}() has another function as "
           f"its inner: write inner={name}")
    here = [x for x in tree.body if isinstance(x, ast.FunctionDef) and x.name == name]
    expect(not here or returns(here[-1]) or not returns_too(old), f"{path}: {name}() returns "
           f"nothing. Is its `return` missing? (Or rename it: train_grpo.py has a {name}, too)")
    read = {x.id for function in here for part in function.body for x in nodes_of(part)
            if isinstance(x, ast.Name)}
    expect(name not in read, f"{path}: {name}() calls itself: `inner={name}` as its last parameter "
           "is the old function")
    expect(not here or not inner or 'inner' in read, f"{path}: {name}() does not call its inner: "
           "leave it out")
    optional = {x.name for x in inspect.signature(old).parameters.values()
                if x.default is not x.empty}
    lost = [x for x in own if here and inner and x in optional and x not in read]
    expect(not lost, f"{path}: {name}() does not pass {lost} on to its inner")


def check_super(path, tree, name, old):
    """Refuse a method of a RunFolder, such as save(), that does not call ours: nothing would be
    written."""
    for node in nodes_of(tree) if name == 'RunFolder' else ():
        methods = node.body if isinstance(node, ast.ClassDef) and node.name == name else []
        for method in methods:
            theirs = getattr(method, 'name', '')
            names = {x.id for x in nodes_of(method) if isinstance(x, ast.Name)}
            expect(theirs not in dir(old) or 'super' in names, f"{path}: {name}.{theirs}() does "
                   f"not call super().{theirs}(), so nothing is written")


def check_arguments(path, name, new, old):
    """Refuse a function that cannot be called as the older one is. Return the older one's names."""
    theirs = [*inspect.signature(old).parameters.values()]
    names = [x.name for x in theirs]
    needed = [x for x in theirs if x.kind is x.POSITIONAL_OR_KEYWORD and x.default is x.empty]
    n = len(needed)
    if any(x.kind is x.VAR_POSITIONAL for x in theirs):         # it hands on what it does not know
        return names
    for x in 'greedy', 'high':                  # which have defaults, and are given
        if x in names:
            n = names.index(x) + 1
    try:
        inspect.signature(new).bind(*[None] * n)
    except TypeError:
        raise Mistake(f"{path}: {name}{inspect.signature(new)} is called with {n} arguments: "
                      f"{', '.join(names[:n])}. (If it is a helper of yours, rename it: "
                      f"train_grpo.py has a {name})") from None
    return names


def returns(node):
    """Does a function of a syntax tree return a value, yield some, or raise?"""
    return any(isinstance(x, ast.Return) and x.value
               or isinstance(x, ast.Yield | ast.YieldFrom | ast.Raise) for x in nodes_of(node))


def returns_too(function):
    """The same of a function. (Of some there is no source.)"""
    try:
        return returns(ast.parse(textwrap.dedent(inspect.getsource(function))))
    except (OSError, TypeError, SyntaxError):
        return False


def check_name_of_file(path, name, x, before, is_plugin):
    """Refuse a new name of a config file, with its value x, if somebody would have to know it:
    Max_iters for max_iters, betas = (0.9, 0.95). before: the globals before the file."""
    meant = {ours.lower(): ours for ours in before if len(ours) > 1}.get(name.lower())
    if inspect.isclass(x) and isinstance(before.get(meant), dict):      # class Rewards
        return
    is_constant = name.isupper() and not isinstance(before.get(meant), int | float | str | dict)
    is_module = isinstance(x, ModuleType)
    expect(not meant or is_constant or is_module, f"{path}: {name}: did you mean {meant}?")
    is_code = callable(x) or is_module or isinstance(x, __future__._Feature)
    is_knob = isinstance(x, int | float | str | dict)           # configure() looks at these
    if not (is_plugin or is_code or is_knob) and name[0].islower():
        raise Mistake(f"{path}: there is no knob {name}{near(name, before)}. (A constant of yours "
                      "begins with _ or a capital)")


def check_contents(path, name, x, knobs, functions):
    """Refuse knobs in a class, an object or a dict, `class Config: max_iters = 4`, and `import
    dr_grpo`, which is a config file: nothing would change. functions: names of the script."""
    if isinstance(x, ModuleType):
        theirs = {y for y, value in vars(x).items()
                  if inspect.isfunction(value) and value.__module__ == x.__name__}
        file = Path(getattr(x, '__file__', None) or '')
        folders = [ROOT / x for x in ('config', 'config/papers', 'config/networks', 'plugins')]
        is_ours = file.parent in (*folders, Path(path).resolve().parent) and file not in SCRIPTS
        is_config = is_ours and (knobs & vars(x).keys() or theirs & functions)
        expect(not is_config, f"{path} imports {x.__name__}, which changes nothing here: write "
               "include('FILE.py')")
        return
    held = names_in(x if isinstance(x, dict) else getattr(x, '__dict__', {}))
    theirs = held & knobs
    is_table = len(theirs) < 2 and isinstance(x, dict)          # {'judge': 0.5}
    is_half = 2 * len(theirs) >= len(held) > 0
    expect(is_table or not is_half, f"{path}: {name} holds {sorted(theirs)}, and these are knobs: "
           "write each as a line of its own, such as max_iters = 4")


def names_in(x):
    """Return the names in a dict, and in dicts that it holds."""
    names = set()
    for name, value in x.items():
        if isinstance(value, dict) and name != 'rewards':
            names |= names_in(value)
        elif not str(name).startswith('__'):
            names.add(str(name))
    return names
