"""Read the files of datasets, and check their records."""
import functools
import json
import re
import runpy
import zlib
from pathlib import Path
from typing import Callable, NamedTuple

from data.text import of_file
from plumbing.configurator import must_exist

# What rewards, or verify() and reply(), get by these names is no column of a record.
OF_BOTH = {'original', 'sampled', 'ended'}
OF_ONE = OF_BOTH | {'prompt', 'completion', 'text'}
OF_MANY = OF_BOTH | {'prompts', 'completions', 'texts', 'r', 'networks', 'step', 'split'}


class Dataset(NamedTuple):
    """The records {'prompt': text, 'answer': text, ...} of a file, and its functions."""
    train: list                 # records to learn from
    held_out: list
    verify: Callable | None     # says what is right
    reply: Callable | None      # a world


def path_of(dataset):
    return Path(dataset if '.' in dataset else f'data/{dataset}.py')


@functools.cache
def load(dataset):
    """Return the Dataset of a module of data/, or of a file. FILE.py has texts(), and perhaps
    verify() and reply(). FILE.jsonl has a JSON object a line, and those with "held_out": true are
    held out, or, if there are none, a tenth. data/text.py makes records of FILE.txt."""
    path = must_exist(path_of(dataset), 'dataset')
    if path.suffix == '.py':
        assert not re.search(r'^include\(', path.read_text('utf-8'), re.M), (
            f"{path} is a config file: expected a dataset")
        functions = runpy.run_path(str(path))
    elif path.suffix == '.txt':
        functions = of_file(path)
    else:
        functions = {'texts': lambda: parts_of_lines(path)}
    assert callable(functions.get('texts')), (
        f"{path}: there is no texts(), which returns the records")
    parts = functions['texts']()
    is_two_lists = type(parts) in (list, tuple) and [*map(type, parts)] == [list, list]
    assert is_two_lists, f"{path}: texts() returned {parts!r:.80}: expected two lists of records"
    assert parts[0] and len(parts[1]) > 1, (
        f"{path}: expected hundreds of records, of which at least two are held out, not "
        f"{len(parts[0])} to learn from and {len(parts[1])} held out")
    train, held_out = [[as_record(x, path) for x in part] for part in parts]
    columns = dict.fromkeys(name for record in train + held_out for name in record)
    # None where a record lacks a column
    train, held_out = [[columns | x for x in part] for part in (train, held_out)]
    has_answers = all(record['answer'] for record in train + held_out)
    verify = functions.get('verify', is_answer if has_answers else None)
    return Dataset(train, held_out, verify, functions.get('reply'))


def parts_of_lines(path):
    """Return the records of FILE.jsonl, to learn from and held out. Each knows its `line`."""
    records = []
    for number, line in enumerate(path.read_bytes().split(b'\n'), 1):
        if line.strip():
            place = f'{path}, line {number}'
            try:
                record = json.loads(line)
                json.dumps(record, ensure_ascii=False).encode()
            except ValueError as e:             # no JSON, no UTF-8, or half a character
                raise AssertionError(f'{place}: expected JSON: {e}') from None
            records.append({'line': number} | as_record(record, place))
    is_marked = any('held_out' in record for record in records)
    parts = [], []
    for record in records:
        # A hash of the prompt, so that equal prompts stay together.
        is_tenth = zlib.crc32(record['prompt'].encode()) % 10 == 0
        is_held_out = record.pop('held_out', False) if is_marked else is_tenth
        parts[is_held_out].append(record)
    return [*parts]


def as_record(x, place):
    """Return the record of a pair (prompt, answer), or of a dict."""
    if type(x) in (list, tuple) and len(x) == 2:
        x = {'prompt': x[0], 'answer': x[1]}
    record = {'answer': ''} | x if type(x) is dict else {}
    assert type(record.get('prompt')) is type(record.get('answer')) is str, (
        f'{place}: expected {{"prompt": "12+35=", "answer": "047"}} or ["12+35=", "047"], '
        f'not {x!r:.80}')
    assert type(record.get('held_out', True)) is bool, f"{place}: held_out is true or false"
    assert record['prompt'] + record['answer'], f"{place}: prompt and answer are empty"
    names = record.keys() & (OF_ONE | OF_MANY) - {'prompt'}
    assert not names, f"{place}: rewards get something else by the name {names}"
    return record


def is_answer(text, original):
    return float(text == original)
