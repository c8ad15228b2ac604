"""Load datasets, check their records, and find the files that they are made of."""
import ast
import builtins
import contextlib
import difflib
import functools
import inspect
import io
import os
import random
import re
import runpy
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from data.lines import of_lines
from data.text import of_file
from plumbing.process import Mistake, expect, near, say
from plumbing.slips import code_of, nodes_of, parse, returns

# What a reward can ask for beside the columns of a record (plumbing/rewards.py, tasks.columns_of).
OURS = {'completion', 'completions', 'text', 'texts', 'prompts', 'original', 'sampled', 'ended',
        'rollout', 'networks', 'step', 'split'}


class Dataset(NamedTuple):
    """The records {'prompt': text, 'answer': text, ...} of a file, and its functions."""
    train: list                 # records to learn from
    held_out: list
    verify: Callable | None     # says what is right
    reply: Callable | None      # a world
    sources: tuple = ()         # files (Paths) that it was made of


def path_of(dataset):
    """Return the Path of a dataset: 'arithmetic' is data/arithmetic.py."""
    return Path(dataset if '.' in dataset else f'data/{dataset}.py')


def is_dataset(path):
    """Does a file define texts() outside of its functions?"""
    return path.suffix == '.py' and 'texts' in code_of(path, parse(path)).co_names


def as_record(x, path):
    """Return the record of a pair (prompt, answer), or of a dict."""
    if type(x) in (list, tuple) and len(x) == 2:
        x = dict(zip(('prompt', 'answer'), x))
    for name in x if type(x) is dict else ():
        meant = str(name).strip().lower()
        expect(name == meant or meant not in ('prompt', 'answer'), (
            f"{path}: {x!r:.80}: did you mean {meant!r}?"))
    expect(type(x) is dict and type(x.get('prompt')) is type(x.get('answer', '')) is str, (
        f'{path}: expected {{"prompt": "12+35=", "answer": "047"}} or ["12+35=", "047"], both '
        f'texts, not {x!r:.80}'))
    return {'answer': ''} | x


def is_answer(text, original):
    """Is a text right? The verify() of a dataset that has answers, and no verify()."""
    return float(text == original)


READERS = {'.txt': of_file, '.py': runpy.run_path, '.jsonl': of_lines}          # by suffix


@functools.cache
def load(dataset):
    """Return the Dataset of a module of data/, or of a file. FILE.py has texts(), and perhaps
    verify() and reply(). data/lines.py reads FILE.jsonl, and data/text.py FILE.txt."""
    path, mine = path_of(dataset), Path(f'{dataset}.py')
    ours = [x.stem for x in Path('data').glob('*.py')]
    there = f". There is {mine}" if mine.is_file() else near(
        re.split('[/.]', dataset.removesuffix('.py'))[-1], ours)
    expect(path.is_file(), f"dataset = {dataset!r}: there is no file {path}{there}. (Paths begin "
           "in the folder of train_grpo.py)")
    expect(path == mine or not mine.is_file() or not is_dataset(mine), f"dataset = {dataset!r} is "
           f"{path}. There is also {mine}: write --dataset={path} or --dataset={mine}")
    expect(path.suffix in READERS, f"dataset = {dataset!r}: expected a module of data/, FILE.py, "
           "FILE.jsonl, or FILE.txt")
    expect(path.suffix != '.py' or is_dataset(path), (
        f"{path} is no dataset: it has no function texts()"))
    add_folder(path)
    with opened_files() as opened, guarded(path):
        functions = READERS[path.suffix](str(path))
        check_names(functions, path)
        if path.suffix == '.py':
            check_functions(parse(path), path)
        texts = functions.get('texts')
        expect(callable(texts) and all(
            x.default is not x.empty for x in inspect.signature(texts).parameters.values()), (
            f"{path}: expected a function texts() that needs no arguments"))
        random.seed(0)                          # a file that shuffles gives the same each time
        try:
            parts = texts()
        except Mistake as e:
            raise e if str(path) in str(e) else Mistake(f"{path}: {e}") from None
    is_right = isinstance(parts, list | tuple) and len(parts) == 2 and all(
        isinstance(part, list | tuple) for part in parts)       # a set has another order each time
    expect(is_right, f"{path}: expected two lists from texts(), to learn from and held out")
    train, held_out = [[as_record(x, path) for x in part] for part in parts]
    expect(train and len(held_out) > 1, f"{path}: expected two held-out records or more, and one "
           "or more to learn from. (In a .jsonl they have \"held_out\": true)")
    columns = {name: None for record in train + held_out for name in record}
    expect(not columns.keys() & OURS, f"{path}: rename its column {[*columns.keys() & OURS][:1]}, "
           "which has a name of ours (docs/task.md)")
    train, held_out = [[columns | record for record in part] for part in (train, held_out)]
    seen = {(record['prompt'], record['answer']) for record in train}
    n_seen = sum((record['prompt'], record['answer']) in seen for record in held_out)
    if n_seen > len(held_out) / 10 and 'reply' not in functions:        # a world can be asked again
        say(f"{path}: {n_seen} of {len(held_out)} held-out records are also to learn from")
    if len(held_out) > len(train):
        say(f"{path}: {len(train)} records to learn from, and more that are held out, "
            f"{len(held_out)}")
    n_open = sum(not record['answer'] for record in train + held_out)
    others = [*columns.keys() - {'prompt', 'answer', 'line'}]
    if n_open == len(train + held_out) and others and 'verify' not in functions:
        say(f"{path}: no record has an 'answer'. There are also {others}")
    if 0 < n_open < len(train + held_out) and 'verify' not in functions:
        first = next(x for x in train + held_out if not x['answer'])
        say(f"{path}: {n_open} records have no answer, so there is no verify(). The first is "
            f"{first!r:.160}")
    check_form(path, train + held_out)
    if 'reply' not in functions:                # a world can be asked again
        check_copies(path, train + held_out, 'verify' in functions)
    verify = None if n_open else is_answer
    read = {Path(os.path.relpath(os.fsdecode(x))) for x in opened if is_near(x, path)}
    sources = (*modules_of(path), *sorted(read))
    return Dataset(train, held_out, functions.get('verify', verify), functions.get('reply'),
                   sources)


@functools.cache
def sum_of_records(dataset):
    """Return a checksum of the records of a dataset."""
    data = load(dataset)
    return zlib.crc32(repr((data.train, data.held_out)).encode())


def open_data(script):
    """Return the Dataset of a script, with the verify() and reply() of config files."""
    path = path_of(script['dataset'])
    if path.is_file() and is_dataset(path):
        check_dataset(path, script)
    ours = {name: script[name] for name in ('verify', 'reply') if name in script}
    return load(script['dataset'])._replace(**ours)


def assigns(tree, *names):
    """Which of these names does a syntax tree set, outside of its functions?"""
    nodes = [x for x in tree.body if isinstance(x, ast.Assign | ast.AnnAssign)]
    stored = {x.id for node in nodes for x in nodes_of(node)
              if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    return stored & {*names}


def check_dataset(path, script):
    """Refuse knobs of a dataset, and functions that would replace one of a script or be a reward.
    They are for a config file. (A file can be both. Then it sets the knob dataset.)"""
    tree = parse(path)
    knobs = {name for name, x in script.items() if not callable(x)}
    is_config = assigns(tree, 'dataset')
    done = script['include'].__self__.done if 'include' in script else ()
    for name in sorted(assigns(tree, *knobs) - {'dataset'}):
        expect(is_config, f"{path} sets {name}, and a dataset sets no knob: write a config file "
               "beside it")
        expect(path.resolve() in done, f"{path} sets {name}: give it as a word, too")
    if is_config:
        return
    called = {x.id for x in nodes_of(tree) if isinstance(x, ast.Name)} | {'verify', 'reply'}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name not in called:
            is_reward = 'reward' in node.name or node.name in script
            expect(not is_reward, f"{path} has {node.name}(), and nobody calls it in a dataset: "
                   "write it into a config file")
            scores = {x.arg for x in node.args.args} & {'text', 'completion', 'sampled'}
            expect(not scores or 'def verify(' in path.read_text('utf-8'), f"{path}: nobody calls "
                   f"{node.name}(): did you mean verify()?")
            if not node.name.startswith('_') and node.name != 'texts':
                say(f"{path}: nobody calls {node.name}()")


def check_form(path, records):
    """Say what looks like a mistake in the texts of records."""
    if records[0]['prompt'].strip().lower() in ('prompt', 'prompts', 'question', 'input'):
        say(f"{path}: the first record is {records[0]!r:.160}: is it a header?")
    for name in 'prompt', 'answer':
        n = sum(record[name] != record[name].strip(' ') for record in records)
        if 0 < n < len(records):
            say(f"{path}: {n} of {len(records)} records have a space at an end of their {name}, "
                "and a right text has it, too")
    pairs = [(record['prompt'], record['answer']) for record in records]
    if all(prompt and prompt != answer and answer.startswith(prompt) for prompt, answer in pairs):
        say(f"{path}: each answer repeats its prompt. A completion follows the prompt, so leave it "
            "out of the answer")
    texts = [prompt + answer for prompt, answer in pairs]
    for record, text in zip(records, texts):    # such as \r, of line ends of Windows
        if not text.replace('\n', '').replace('\t', '').isprintable():
            say(f"{path}: a record has letters that nobody sees, which are learned, too: "
                f"{record!r:.160}")
            break
    lengths = sorted(map(len, texts))
    median = lengths[len(lengths) // 2]
    if lengths[-1] > max(500, 20 * median):
        say(f"{path}: the longest record has {lengths[-1]} characters, where others have {median}, "
            "and all batches are as wide as it is")


def check_copies(path, records, has_verify):
    """Say that records are copies, or differ in nothing but their answers."""
    answers = {}
    for record in records:
        answers.setdefault(record['prompt'], set()).add(record['answer'])
    n_several = sum(len(x) > 1 for x in answers.values())
    if n_several and not has_verify:
        say(f"{path}: {n_several} prompts have several answers, and a completion is right if it is "
            "the one of its own record")
    n_kinds = sum(map(len, answers.values()))
    if n_kinds < len(records) / 2:
        say(f"{path}: of {len(records)} records only {n_kinds} differ")


def check_names(functions, path):
    """Refuse a function of a dataset whose name is nearly one of ours."""
    for name in functions:
        meant = difflib.get_close_matches(name.lower(), ['texts', 'verify', 'reply'], 1, 0.9)
        expect(not meant or name in meant or name[0] == '_', f"{path} has {name}(): did you mean "
               f"{meant}? (The name of a helper of yours begins with _)")


def check_functions(tree, path):
    """Refuse a function of a dataset without a return."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in ('texts', 'verify', 'reply'):
            expect(returns(node), f"{path}: {node.name}() returns nothing. Is its `return` "
                   "missing?")


# ---- what a file is made of ----------------------------------------------------------------------
def modules_of(path):
    """Return the files of a module: itself, and the modules of this project, or beside it, that it
    imports. plumbing/ is left out: an edit there changes no texts. (modulefinder of Python fails in
    a folder without an __init__.py.)"""
    files, waiting = set(), [Path(path)]
    for file in waiting:                        # the list grows in the loop
        if file not in files and file.parent.name != 'plumbing':
            files.add(file)
            waiting += imports_of(file) if file.suffix == '.py' else []
    return sorted({Path(os.path.relpath(file)) for file in files})


def imports_of(path):
    """Return the files that a file of Python imports from the root, or from its own folder."""
    names = set()
    for node in nodes_of(parse(path)):
        if isinstance(node, ast.Import):
            names |= {x.name for x in node.names}
        if isinstance(node, ast.ImportFrom):    # from package import module, also
            names |= {'.'.join(filter(None, (node.module, x.name))) for x in node.names}
            names.add(node.module or '')
    files = []
    for name in sorted(names - {''}):
        parts = name.split('.')
        for i in range(1, len(parts) + 1):
            places = [folder.joinpath(*parts[:i]) for folder in (Path(), path.parent)]
            found = [x for place in places
                     for x in (place.with_suffix('.py'), place / '__init__.py') if x.is_file()]
            files += found[:1]
    return files


@contextlib.contextmanager
def opened_files():
    """Give a list of the files that are opened meanwhile."""
    paths, real = [], builtins.open

    def spy(file, *more, **options):
        paths.append(file)
        return real(file, *more, **options)

    builtins.open = io.open = spy
    try:
        yield paths
    finally:
        builtins.open = io.open = real


def is_near(file, dataset):
    """Is it a file of this folder, or of the folder of the dataset, and no program?"""
    if isinstance(file, int):                   # open() takes numbers, too
        return False
    file = Path(os.fsdecode(file))
    folders = Path.cwd(), dataset.resolve().parent
    return file.is_file() and file.suffix not in ('.py', '.pyc') and any(
        file.resolve().is_relative_to(folder) for folder in folders)


def add_folder(path):
    """Let a file import modules that stand beside it, also later, in a function."""
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)


@contextlib.contextmanager
def guarded(name):
    """Refuse exit() in somebody's file or function, which would look like success, and os.chdir(),
    after which no path is right."""
    folder = os.getcwd()
    try:
        yield
    except SystemExit as e:
        raise Mistake(f"{name} called exit({e.code!r})") from e
    expect(os.getcwd() == folder, f"{name} calls os.chdir(): a run stays in its folder")
