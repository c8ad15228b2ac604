"""Read the files of datasets, and check their records."""
import functools
import re
import runpy
from pathlib import Path
from typing import Callable, NamedTuple

from data.lines import of_lines
from data.text import of_file

COMMENTS = r'#.*|"""[\s\S]*?"""'
NAMES = r"""(?<=['"])[\w./-]{1,99}(?=['"])|(?<=from data[ .])(?:import )?\w+"""


class Dataset(NamedTuple):
    """The records {'prompt': text, 'answer': text, ...} of a file, and its functions."""
    train: list                 # records to learn from
    held_out: list
    verify: Callable | None     # says what is right
    reply: Callable | None      # a world


def path_of(dataset):
    return Path(dataset if '.' in dataset else f'data/{dataset}.py')


def files_of(*names):
    """Return the files (Paths) of datasets and config files: themselves, those that their texts
    name in quotes or import from data/, and those that these name."""
    files = [path_of(name) for name in names]
    for file in files:
        code = re.sub(COMMENTS, '', file.read_text('utf-8')) if file.suffix == '.py' else ''
        named = [path_of(name.removeprefix('import ')) for name in re.findall(NAMES, code)]
        files += [x for x in named if x.is_file() and x not in files]
    return files


def as_record(x, path):
    """Return the record of a pair (prompt, answer), or of a dict."""
    if type(x) in (list, tuple):
        x = dict(zip(('prompt', 'answer'), x))
    assert type(x) is dict and type(x.get('prompt')) is type(x.get('answer', '')) is str, (
        f'{path}: expected {{"prompt": "12+35=", "answer": "047"}} or ["12+35=", "047"], not '
        f'{x!r:.80}')
    return {'answer': ''} | x


def is_answer(text, original):
    return float(text == original)


READERS = {'.txt': of_file, '.py': runpy.run_path}          # by suffix


@functools.cache
def load(dataset):
    """Return the Dataset of a module of data/, or of a file. FILE.py has texts(), and perhaps
    verify() and reply(). data/lines.py reads FILE.jsonl, and data/text.py FILE.txt."""
    path = path_of(dataset)
    functions = READERS.get(path.suffix, of_lines)(str(path))
    parts = [[as_record(x, path) for x in part] for part in functions['texts']()]
    columns = {name: None for record in sum(parts, []) for name in record}
    train, held_out = [[columns | record for record in part] for part in parts]
    assert train and len(held_out) > 1, f"{path}: expected two held-out records, and others"
    verify = is_answer if all(record['answer'] for record in train + held_out) else None
    return Dataset(train, held_out, functions.get('verify', verify), functions.get('reply'))


def open_data(script):
    """Return the Dataset of a script, with the verify() and reply() of config files. Refuse a
    reward that is no function."""
    ours = {name: script[name] for name in ('verify', 'reply') if name in script}
    data = load(script['dataset'])._replace(**ours)
    functions = script | data._asdict()
    for name in script['rewards'].keys() - {'judge'}:
        assert callable(functions.get(name)), (
            f"rewards: there is no {name}() of a config file, or verify() of the dataset")
    return data
