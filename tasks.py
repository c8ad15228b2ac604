"""Tasks: texts with blanks as rows of ids, and ids as text again.

A task is a Python file with texts(), which returns two lists of records, to learn from and held
out. It may have verify(), which says what is right, and reply(), a world (plugins/causal.py). A
record is a pair (prompt, answer), or a dict with both and more columns. Its blanks are the answer;
or, if its prompt has some, each _, and then the answer is the whole text:

    ('12+35=', '047')           ('1_+3_=__7', '12+35=047')

With blank_kind = 'random', the default of train_grpo.py, any characters of the text are blank
instead, and its end is given."""
import contextlib
import copy
import functools
import json
import math
import reprlib
import runpy
import sys
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, NamedTuple

import torch
from torch import Tensor

from configurator import near

BLANK = '_'

# sizes: B prompts, or n | T tokens of a text | V ids


class Tokenizer:
    """Characters, or the byte pairs of GPT-2. One of the V ids that a network can produce is eos,
    which ends a text. Behind them come three ids that it only reads: blank, bos (the beginning),
    pad."""
    block_size = math.inf                       # places that its network can read

    def __init__(self, kind, chars=''):
        self.vocabulary = {'kind': kind, 'chars': chars}        # Tokenizer(**vocabulary): a copy
        if kind == 'gpt2':
            import tiktoken                     # its first use downloads the vocabulary
            bpe = tiktoken.get_encoding('gpt2')
            self.eos = bpe.eot_token            # the last id
            self.encode = bpe.encode_ordinary
            pieces = bpe.decode_tokens_bytes(range(self.eos)) + [b'\n']
        else:
            self.eos = 0                        # decode() shows a line feed
            self.ids = {char: i for i, char in enumerate('\n' + chars)}
            pieces = [char.encode() for char in self.ids]
        self.vocab_size = len(pieces)
        self.blank, self.bos, self.pad = range(self.vocab_size, self.vocab_size + 3)
        self.pieces = pieces + [BLANK.encode(), b'', b'']

    def encode(self, text):
        unknown = set(text) - self.ids.keys()
        assert not unknown, f"the vocabulary of the network lacks {sorted(unknown)} of {text!r:.80}"
        return [self.ids[char] for char in text]

    def decode(self, ids):
        """Return the text of a list of ids, without padding and the eos that ends it."""
        ids = [i for i in ids if i != self.pad]
        if ids[-1:] == [self.eos]:
            ids.pop()
        return b''.join([self.pieces[i] for i in ids]).decode(errors='replace')


def make_tokenizer(kind, dataset):
    """Return a Tokenizer. kind: 'char', all characters of the dataset | 'gpt2' | another dataset,
    whose characters are taken, so that two networks fit each other."""
    if kind == 'gpt2':
        return Tokenizer('gpt2')
    train, held_out, *_ = load(dataset if kind == 'char' else kind)
    chars = set()
    for record in train + held_out:
        chars.update(record['prompt'] + record['answer'])
    return Tokenizer('char', ''.join(sorted(chars - {BLANK, '\n'})))


@dataclass
class Prompts:
    """B texts in which something is blank."""
    task: 'Task'
    tokens: Tensor      # (B, T) ids; in the blanks those of the original
    blank: Tensor       # (B, T) bool
    record: Tensor      # (B,) which of task.records

    def __len__(self):
        return len(self.tokens)

    @property
    def start(self):
        """The place (B,) of the first blank."""
        return self.blank.int().argmax(1)

    def to(self, device):
        return replace(self, tokens=self.tokens.to(device), blank=self.blank.to(device),
                       record=self.record.to(device))


class Task:
    """The records of a dataset as rows of ids.

    blank_kind: 'random', a share in [low, high] of a text | 'answer', what its record leaves open
    """

    def __init__(self, dataset, tok, blank_kind='random', low=0.2, high=0.6):
        train, held_out, self.verify, self.reply = load(dataset)
        self.tok = tok
        self.blank_kind, self.low, self.high = blank_kind, low, high
        self.records = train + held_out
        self.columns = dict.fromkeys(name for record in self.records for name in record)
        self.rows = {'train': range(len(train)), 'val': range(len(train), len(self.records))}
        encoded = [self.encode(record) for record in self.records]
        # After any prompt there is room for the longest answer.
        longest_answer = max(len(whole) - n for whole, _, n in encoded)
        self.longest_prompt = max(n for _, _, n in encoded)
        self.block_size = self.longest_prompt + longest_answer                  # T
        self.check(self.block_size)
        self.tokens = self.rectangle([whole for whole, _, _ in encoded])        # (n, T)
        self.blank = self.rectangle([shown for _, shown, _ in encoded]) == tok.blank    # (n, T)

    def check(self, T):
        assert T <= self.tok.block_size, (
            f"texts have up to {T} tokens: the network can read {self.tok.block_size}")

    def rectangle(self, rows):
        return torch.tensor([row + [self.tok.pad] * (self.block_size - len(row)) for row in rows])

    def encode(self, record):
        """Return the ids of the whole text, those that are shown, and the length of the prompt."""
        tok = self.tok
        if BLANK in record['prompt']:
            shown = []
            for part in record['prompt'].split(BLANK):
                shown += tok.encode(part) + [tok.blank]
            shown.pop()                         # no blank follows the last part
            whole = tok.encode(record['answer']) or shown       # (no answer: they stay blank)
            fits = [b in (a, tok.blank) for a, b in zip(whole, shown)]
            assert len(whole) == len(shown) and all(fits), (
                f"{record}: expected as the answer the prompt with its blanks filled")
            return whole + [tok.eos], shown + [tok.eos], len(shown)
        prompt, answer = tok.encode(record['prompt']), tok.encode(record['answer'])
        return prompt + answer + [tok.eos], prompt + [tok.blank] * (len(answer) + 1), len(prompt)

    def prompts(self, split, n):
        """Return n random Prompts of the split 'train', or of 'val', where none comes twice."""
        rows = self.rows[split]
        if split == 'train':
            record = rows.start + torch.randint(len(rows), (n,))
        else:
            record = rows.start + torch.randperm(len(rows))[:n]
        tokens, blank = self.tokens[record], self.blank[record]                 # (n, T)
        if self.blank_kind == 'random':
            is_text = (tokens != self.tok.pad) & (tokens != self.tok.eos)
            # (and the blanks of a record without an answer)
            blank = random_blanks(is_text, self.low, self.high) | (tokens == self.tok.blank)
        return Prompts(self, tokens, blank, record)

    def typed(self, prompt):
        """Return Prompts of a text that somebody has typed."""
        task = copy.copy(self)
        task.records = [{'prompt': prompt, 'answer': ''}]
        whole, shown, task.longest_prompt = self.encode(task.records[0])
        blank = self.rectangle([shown]) == self.tok.blank
        return Prompts(task, self.rectangle([whole]), blank, torch.tensor([0]))


def random_blanks(is_text, low, high):
    """Return blanks (n, T): a share in [low, high] of the places that are text, but at least
    one."""
    # argsort twice gives each place its rank among random numbers.
    rank = torch.rand(is_text.shape).masked_fill(~is_text, 2).argsort(1).argsort(1)
    share = low + (high - low) * torch.rand(len(is_text), 1)
    return rank < (share * is_text.sum(1, keepdim=True)).round().clamp(min=1)


# ---- text again ----------------------------------------------------------------------------------


def columns_of(r):
    """Return what rewards can ask for of a Rollout (train_grpo.py), {name: list of N}: the columns
    of the records; 'prompt', what was shown; 'original', the text of the record; and 'completion',
    here the whole 'text'."""
    task = r.prompts.task
    decode = task.tok.decode
    shown = r.prompts.tokens.masked_fill(r.prompts.blank, task.tok.blank)
    records = [task.records[i] for i in r.prompts.record.tolist()]
    columns = {name: [record.get(name) for record in records] for name in task.columns}
    columns['prompt'] = list(map(decode, shown.tolist()))
    columns['original'] = list(map(decode, r.prompts.tokens.tolist()))
    columns = {name: [x for x in values for _ in range(r.k)] for name, values in columns.items()}
    texts = list(map(decode, r.sequences.tolist()))
    return columns | {'completion': texts, 'text': texts}


def as_numbers(name, values, n):
    """Return what a reward has returned as a tensor (n,), a finite number for each text."""
    numbers, n_found = None, ''
    with contextlib.suppress(TypeError, ValueError, RuntimeError, OverflowError):
        if hasattr(values, 'tolist'):           # (in the list of a masked array None is masked)
            values = values.tolist()
        numbers = torch.tensor(values, dtype=torch.float64).float()
        n_found = f'{numbers.numel()}: '
    assert numbers is not None and numbers.shape == (n,) and numbers.isfinite().all(), (
        f"reward {name}: expected {n} finite numbers, one for each completion, not "
        f"{n_found}{reprlib.repr(values)}")
    return numbers


# ---- files ---------------------------------------------------------------------------------------


def path_of(dataset):
    return Path(dataset if '.' in dataset else f'data/{dataset}.py')


class Dataset(NamedTuple):
    train: list                 # records to learn from
    held_out: list
    verify: Callable | None
    reply: Callable | None


@functools.cache
def load(dataset):
    """Return a Dataset: that of a module of data/, or of FILE.py; or of FILE.jsonl with one JSON
    object a line, {"prompt": ..., "answer": ...}, of which a tenth is held out, or, if some have
    it, those with "held_out": true; or of FILE.txt, of which data/text.py makes records."""
    path = path_of(dataset)
    if not path.is_file():
        similar = near(str(path), map(str, path.parent.glob('*')))
        sys.exit(f"dataset: there is no {path}; similar: {similar}")
    functions = {}
    if path.suffix == '.py':
        functions = runpy.run_path(str(path))
    elif path.suffix == '.txt':
        functions['texts'], functions['verify'] = runpy.run_path('data/text.py')['of_file'](path)
    if functions:
        assert 'texts' in functions, f"{path}: there is no texts(), which returns the records"
        parts = functions['texts']()
        assert type(parts) in (list, tuple) and [type(part) for part in parts] == [list, list], (
            f"{path}: texts() returned {parts!r:.80}: expected two lists, to learn from and held "
            "out")
        parts = [[as_record(text, path) for text in part] for part in parts]
    else:
        lines = enumerate(path.read_bytes().split(b'\n'), 1)
        records = [as_record(line, f'{path}, line {i}') for i, line in lines if line.strip()]
        is_marked = any('held_out' in record for record in records)
        parts = [[], []]
        for record in records:
            # A hash of the prompt, so that equal prompts stay together.
            is_tenth = zlib.crc32(record['prompt'].encode()) % 10 == 0
            is_held_out = record.pop('held_out', is_tenth and not is_marked)
            parts[is_held_out].append(record)
    train, held_out = parts
    assert train and len(held_out) > 1, (
        f"{path}: expected records to learn from, and two or more that are held out; found "
        f"{len(train)} and {len(held_out)}")
    has_answers = all(record['answer'] for record in train + held_out)
    verify = functions.get('verify', is_answer if has_answers else None)
    return Dataset(train, held_out, verify, functions.get('reply'))


def as_record(text, place):
    """Return the record of a pair, of a dict, or of a line of JSON."""
    try:
        record = json.loads(text) if type(text) is bytes else text
        assert type(record) in (dict, list, tuple), "this is neither"
        if type(record) is not dict:
            record = dict(zip(('prompt', 'answer'), record, strict=True))
        record = {'answer': ''} | record
        assert type(record['prompt']) is type(record['answer']) is str, "they are texts"
        assert type(record.get('held_out', True)) is bool, "held_out is true or false"
        (record['prompt'] + record['answer']).encode()          # (not of half a surrogate pair)
        return record
    except (AssertionError, KeyError, TypeError, ValueError, RecursionError) as e:
        sys.exit(f'{place}: expected {{"prompt": "12+35=", "answer": "047"}}, or such a pair, not '
                 f'{text!r:.80} ({type(e).__name__}: {e})')


def is_answer(text, original):
    return float(text == original)
