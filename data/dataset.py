"""Text as rows of token ids; batches of rows; blanks in them; prompts; and rows as text again.

What is reserved is out of band: blank, beginning, end and padding of a row are ids that no text
has. A blank is shown as BLANK; people may type '_' for it."""
import functools
import hashlib
import inspect
import json
import operator
import os
import pathlib
import re
import runpy
import zlib
from dataclasses import dataclass, replace

from common import (at_least, between, code_digest, digest_of, fail, is_main, new_file, one_of,
                    read_json, read_object, run_missing)

import numpy as np
import torch
from torch import Tensor

HERE = os.path.dirname(os.path.abspath(__file__))
UNITS = ('windows', 'pairs')
BLANK_KINDS = ('random', 'span', 'suffix', 'answer')
BLANK = '\u2581'        # how a blank is shown, to people and to rewards: a sign that no corpus has
SPECIALS = ('mask', 'bos', 'pad')       # ids V, V + 1, V + 2; models have no output for them
# letters: n rows | T positions | V base vocabulary | B prompts, k completions each: N = B * k rows


def draws(seed, purpose, step=0):
    """A generator of random numbers that depends on (seed, purpose, step) and on nothing else."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), step])


# ---- tokenizer -----------------------------------------------------------------------------------


class Tokenizer:
    """Characters, or GPT-2's byte pairs. base: V, the number of ids that a model can produce.
    eos: the id that ends a row; mask, bos, pad: the special ids, which follow the base ids."""

    def __init__(self, kind, chars=''):
        """kind: 'char', with all the characters there are, or 'gpt2'."""
        self.kind = kind
        self.ids = {char: i for i, char in enumerate(chars, 1)}
        self.eos = 0
        pieces = [b'\n'] + [char.encode() for char in chars]
        if kind == 'gpt2':
            self.bpe = load_gpt2()
            self.eos = self.bpe.eot_token       # the last id
            pieces = self.bpe.decode_tokens_bytes(range(self.eos)) + [b'\n']
        self.base = len(pieces)
        self.mask, self.bos, self.pad = range(self.base, self.base + len(SPECIALS))
        self.pieces = pieces + [BLANK.encode(), b'', b'']       # how ids are shown, as bytes
        self.vocabulary = {'kind': kind, 'chars': chars}        # make_tokenizer(**this) is equal

    def encode(self, text):
        """List of ids. Raises ValueError."""
        if self.kind == 'gpt2':
            return self.bpe.encode_ordinary(text)
        strange = sorted(set(text) - set(self.ids))
        if strange:
            raise ValueError(f"the characters {strange} of {text!r:.80} are not in the vocabulary")
        return [self.ids[char] for char in text]

    def decode(self, ids):
        """Text; an end of row is shown as a line feed, BOS and padding are not."""
        return b''.join(self.pieces[i] for i in ids).decode(errors='replace')


def load_gpt2():
    """GPT-2's byte pairs, of tiktoken."""
    try:
        import tiktoken
        return tiktoken.get_encoding('gpt2')
    except Exception as e:          # requests, OSError, ImportError: it cannot be had
        fail(f"no GPT-2 vocabulary ({type(e).__name__}): it needs tiktoken and, the first time, a "
             "network; --tokenizer=char needs neither")


def make_tokenizer(kind, chars=''):
    """The tokenizer of a vocabulary: 'char', 'gpt2', or a folder of a pretrained one."""
    if kind in ('char', 'gpt2'):
        return Tokenizer(kind, chars)
    from extras.pretrained import PretrainedTokenizer
    return PretrainedTokenizer(kind, chars)


# ---- corpora -------------------------------------------------------------------------------------


def script_of(name):
    """The prepare.py of a corpus; a folder without one holds pairs."""
    script = f"data/{name.split('/')[0]}/prepare.py"
    if os.path.exists(f'{os.path.dirname(HERE)}/{script}'):
        return script
    return 'data/pairs/prepare.py'


def write_corpus(name, unit, train, val, tokenizer='char', replace=True):
    """Writes two lists of texts as the corpus data/<name>: train.bin and val.bin, the ids of all
    rows, in the smallest type that holds them; and meta.json, which says where each row ends.

    unit: 'windows', rows are cut anywhere from the texts | 'pairs', a text is (prompt, answer), its
    row is both, and where the answer begins is kept; it may be ''.
    tokenizer: see make_tokenizer(); or the name of a corpus, whose tokenizer is taken, so that
    networks made on either fit the other. replace=False: a corpus of another text is not replaced.
    """
    one_of(UNITS, unit=unit)
    everything = [''.join(text) for text in train + val]
    if not (train and val and all(everything)):
        fail(f"data/{name}: no text to train on, none held out, or an empty one; expected neither")
    chars = ''.join(sorted(set(''.join(everything))))
    if BLANK in chars:
        fail(f"the text has the sign {BLANK!r}, which stands for a blank; replace it first")
    if os.path.isdir(f'{HERE}/{tokenizer}'):
        tok = Dataset(tokenizer, prepare=True).tok
    else:
        tok = make_tokenizer(tokenizer, chars if tokenizer == 'char' else '')
    try:
        tok.encode(chars)
    except ValueError as e:
        fail(f"{e} of '{tokenizer}'; leave them out, or prepare '{tokenizer}' with them")
    kind = np.min_scalar_type(tok.base - 1)
    meta = {'script': script_of(name),
            'vocabulary': tok.vocabulary,
            'unit': unit,
            'dtype': kind.name}

    stored = {}                                 # {name of a file: bytes}
    for split, texts in (('train', train), ('val', val)):
        ids = []
        ends = []                               # where each row ends, its eos included
        answers = []                            # and where in it the answer begins
        for text in texts:
            # Apart: no id is half prompt and half answer.
            parts = text if unit == 'pairs' else [text]
            encoded = [tok.encode(part) for part in parts]
            answers.append(len(encoded[0]))
            ids += sum(encoded, []) + [tok.eos]
            ends.append(len(ids))
        stored[f'{split}.bin'] = np.array(ids, kind).tobytes()
        meta[split] = {'ends': ends, 'sha256': sha256(stored[f'{split}.bin'])}
        if unit == 'pairs':
            meta[split]['answers'] = answers
    meta['checksum'] = digest_of(meta)

    if not replace and read_object(f'{HERE}/{name}/meta.json') not in ({}, meta):
        fail(f"data/{name} holds another text, and there may be runs of it; choose another "
             "--name=NAME, or --replace=True")
    stored['meta.json'] = json.dumps(meta).encode()         # last: it says "complete"
    for file_name, content in stored.items():
        with new_file(f'{HERE}/{name}/{file_name}') as file:
            file.write(content)
    print(f"{name}: {len(train)} texts, {len(val)} held out, V = {tok.base}")


def sha256(content):
    return hashlib.sha256(content).hexdigest()


class Dataset:
    """A prepared corpus, a folder of data/. tok: its tokenizer; meta: what meta.json says; verify:
    (prompt, completion) or (prompt, completion, original) -> [0, 1], if its prepare.py has such a
    function, else None; fingerprint, code: stand for the text, and for verify()."""

    def __init__(self, name, prepare=False):
        """prepare=True runs its prepare.py if needed. Exits with an error if it is not complete.
        name: 'docstrings', or 'docstrings/failures', a second corpus of the same prepare.py."""
        self.name = name.strip('/')
        folder = f'{HERE}/{self.name}'
        path = f'{folder}/meta.json'
        # Checkpoints of others name datasets: no name leads to a script that is not in data/.
        self.script = script_of(self.name)
        self.make = f'python {self.script}'
        if self.script == 'data/pairs/prepare.py':
            self.make += f' FILE --name={self.name}'
            if os.path.exists(path):
                self.make += ' --replace=True'
        elif prepare:
            run_missing({path: self.make})
        self.meta = read_json(path, {'checksum': str}, self.make)
        self.fingerprint = self.meta.pop('checksum')
        stored = {}                             # {split: bytes}
        for split in ('train', 'val'):
            path = pathlib.Path(folder, f'{split}.bin')
            stored[split] = path.read_bytes() if path.exists() else b''
        is_whole = self.fingerprint == digest_of(self.meta) and all(
            sha256(ids) == self.meta[split]['sha256'] for split, ids in stored.items())
        if not is_whole:
            fail(f"{folder}: train.bin, val.bin or meta.json is missing or damaged; "
                 f"make them with: {self.make}")
        self.tok = make_tokenizer(**self.meta['vocabulary'])
        self.ids = {}                           # of each split: the ids of all rows,
        self.edges = {}                         # where each row begins, and where the last one ends
        self.answers = {}                       # pairs: where in each row the answer begins
        for split, ids in stored.items():
            self.ids[split] = np.frombuffer(ids, self.meta['dtype'])
            self.edges[split] = np.array([0] + self.meta[split]['ends'])
            if self.meta['unit'] == 'pairs':
                self.answers[split] = np.array(self.meta[split]['answers'])

        path = f'{os.path.dirname(HERE)}/{self.script}'
        module = runpy.run_path(path)
        self.verify = module.get('verify')
        self.code = code_digest(pathlib.Path(path).read_bytes(), module.values())
        if self.answers and not self.has_answers().any() and self.verify:
            if asks_for('original', self.verify):
                self.verify = None              # there is nothing to compare with

    def has_answers(self):
        """Which pairs have an answer: bool, of all splits."""
        return np.concatenate([np.diff(self.edges[split]) - 1 > self.answers[split]
                               for split in self.answers])

    def check_rows(self, block_size, mode='causal', blank_kind=''):
        """Says what a row of block_size tokens cannot hold; exits with an error if that is all, or
        if an answer is asked for where there is none."""
        for split, edges in self.edges.items():
            where = f"dataset '{self.name}', {split}"
            if not self.answers:
                between(1, edges[-1], f"tokens of {where}", block_size=block_size)
                continue
            lengths = np.diff(edges)
            at_least(lengths.min(), f"for the shortest row of {where}", block_size=block_size)
            too_long = (lengths > block_size).mean()
            if too_long and is_main():
                print(f"{where}: rows have up to {lengths.max()} tokens with their end; block_size "
                      f"= {block_size} skips {too_long:.1%} of them")
        is_there = self.answers and (mode == 'causal' or self.has_answers().all())
        if blank_kind == 'answer' and not is_there:
            fail(f"blank_kind = 'answer': dataset '{self.name}' has {self.meta['unit']} without an "
                 "answer; expected pairs, or prompts alone and --mode=causal; see data/README.md")

    def check(self, prompts, completions, originals):
        """verify() of each completion, in [0, 1]; equal cases are asked once."""
        cases = list(zip(prompts, completions, originals))
        values = {}
        for case in dict.fromkeys(cases):
            values[case] = call_user(f"verify() of {self.script}", self.verify, *case).item()
            between(0, 1, **{f"verify{case}": values[case]})
        return [values[case] for case in cases]

    def batch(self, split, n, block_size, rng):
        """n random rows: ids, int64 (n, T = block_size), windows of the text, or rows with padding;
        and, of pairs, where the answers begin, int64 (n,), else None."""
        edges = self.edges[split]
        answer = None
        if self.answers:
            # One that is too long is not drawn: an answer without its end teaches a wrong one.
            rows = np.flatnonzero(np.diff(edges) <= block_size)
            row = rows[rng.integers(len(rows), size=n)]                                 # (n,)
            start = edges[row, None]                                                    # (n, 1)
            stop = edges[row + 1, None]
            answer = torch.from_numpy(self.answers[split][row])
        else:
            start = rng.integers(edges[-1] - block_size + 1, size=(n, 1))
            stop = start + block_size
        at = start + np.arange(block_size)                                              # (n, T)
        ids = self.ids[split].take(at, mode='clip').astype(np.int64)
        tokens = np.where(at < stop, ids, self.tok.pad)
        return torch.from_numpy(tokens), answer


# ---- prompts: rows with blanks -------------------------------------------------------------------


def blanks(tokens, tok, rng, blank_kind, blank_low=0.2, blank_high=0.6, blank_span=4, answer=None,
           causal=False):
    """Mask (n, T) bool of what to fill: a share uniform in [blank_low, blank_high] of each row, at
    least one. blank_kind: 'random' positions | 'span': runs of blank_span | 'suffix': the end of
    the row | 'answer': from answer (n,) on, whatever the share. A suffix includes the end-of-row
    token, and so does an answer that is written from left to right (causal)."""
    n, T = tokens.shape
    may_be_blank = tokens != tok.pad                                                    # (n, T)
    if blank_kind != 'suffix' and not (blank_kind == 'answer' and causal):
        may_be_blank &= tokens != tok.eos
    if blank_kind == 'answer':
        return may_be_blank & (torch.arange(T) >= answer[:, None])
    may_be_blank = may_be_blank.numpy()
    share = rng.uniform(blank_low, blank_high, size=(n, 1))
    count = np.rint(share * may_be_blank.sum(1, keepdims=True)).clip(1)                 # (n, 1)

    # Give each run of `width` positions a random key; the `count` positions with the lowest keys
    # are blank. Runs begin at a random offset, so that their edges can be anywhere.
    width = blank_span if blank_kind == 'span' else 1
    run = (np.arange(T) + rng.integers(width, size=(n, 1))) // width                    # (n, T)
    key = np.take_along_axis(rng.random((n, T // width + 2)), run, 1)                   # (n, T)
    if blank_kind == 'suffix':
        # The last positions first. The random keys were drawn all the same, so that what is drawn
        # next does not depend on the kind.
        key = -np.arange(T)
    key = np.where(may_be_blank, key, 2.0)
    rank = key.argsort(1, kind='stable').argsort(1)                      # (n, T)
    return torch.from_numpy((rank < count) & may_be_blank)


@dataclass
class Prompts:
    """n prompts, and the random numbers with which each is completed k times. On the CPU."""
    tokens: Tensor      # (n, T) ids, with the original text in the blanks, if it fits there
    mask: Tensor        # (n, T) bool: what the policy must choose
    uniforms: Tensor    # (n, T, k) in [0, 1): completion j takes [:, :, j]
    eos: int            # the id that ends a row that is written from left to right
    order: Tensor | None = None         # (n, T) random keys; blanks with low ones are filled first
    original: Tensor | None = None      # (n, T) the rows as the text has them; None: tokens

    def __len__(self):
        return len(self.tokens)

    def map(self, change):
        """The same with each tensor changed."""
        tensors = {name: change(value) for name, value in vars(self).items()
                   if isinstance(value, Tensor)}
        return replace(self, **tensors)

    def __getitem__(self, part):
        """The prompts of a slice or an index."""
        return self.map(lambda tensor: tensor[part])

    def split(self, size):
        """A list of Prompts, size at a time."""
        return [self[i:i + size] for i in range(0, len(self), size)]


def with_draws(tokens, mask, tok, k, rng, original=None):
    """Prompts of tokens and mask (n, T), with the random numbers of k completions each."""
    uniforms = torch.from_numpy(rng.random((*tokens.shape, k), np.float32))
    # The order in which blanks are filled has a stream of its own: were it drawn from the uniforms
    # that sample, or after them, it would depend on what is sampled, or on k.
    order = torch.from_numpy(rng.spawn(1)[0].random(tokens.shape, np.float32))
    return Prompts(tokens, mask, uniforms, tok.eos, order, original)


def draw_prompts(data, split, n, k, rng, *, block_size, mode, max_new_tokens=0, **how):
    """n Prompts for k completions each, from the text of a split; the rest are knobs, how: those of
    blanks()."""
    causal = mode == 'causal'
    original, answer = data.batch(split, n, block_size, rng)                    # (n, T), (n,)
    tokens = original
    mask = blanks(tokens, data.tok, rng, answer=answer, causal=causal, **how)
    if causal:                                  # a completion may be longer than the original was
        at = torch.arange(block_size)
        first = mask.int().argmax(1, keepdim=True)                                      # (n, 1)
        stop = first + (max_new_tokens or block_size)
        mask = (at >= first) & (at < stop)
        tokens = tokens.masked_fill(at >= stop, data.tok.pad)
    return with_draws(tokens, mask, data.tok, k, rng, original)


def prompts_of_texts(strings, tok, unit, k, rng, *, block_size, mode, max_new_tokens=0):
    """Prompts of texts that a user wrote, for k completions each: '_' is a blank; in causal mode,
    what to continue. unit: as of the corpus of the model. Raises ValueError, which names the text.
    """
    ending = [tok.eos] if unit != 'windows' else []
    if mode == 'causal':
        ending = [tok.mask] * (max_new_tokens or block_size)
    rows = []
    for text in strings:
        parts = [[tok.mask] + tok.encode(part) for part in re.split(f'[_{BLANK}]', text)]
        ids = sum(parts, [])[1:]
        row = (ids + ending + [tok.pad] * block_size)[:block_size]
        if len(ids) > block_size or tok.mask not in row:
            raise ValueError(f"{text!r} has {len(ids)} symbols; expected {block_size} or fewer, "
                             "and something left to fill; '_' is a blank")
        rows.append(row)
    tokens = torch.tensor(rows)                                                         # (n, T)
    return with_draws(tokens, tokens == tok.mask, tok, k, rng)


# ---- rows as text --------------------------------------------------------------------------------


def closed(tok, ids):
    """A list of ids of a row without its padding and the one end that closes it."""
    ids = [i for i in ids if i != tok.pad]
    return ids[:-1] if ids[-1:] == [tok.eos] else ids


def texts(tok, prompts, rows, causal):
    """Of Prompts (B) and rows (N, T), three lists of N strings: prompts, completions, and the
    completions that the text itself has.

    Fill: the row with BLANK for its blanks, and the whole completed row. Causal: what stands to the
    left of the first blank, and what follows. Padding and the end that closes a row are not text;
    but in fill mode an end that was blank is a choice, and is shown."""
    k = len(rows) // len(prompts)
    rows = rows.tolist()
    own = prompts.tokens if prompts.original is None else prompts.original              # (B, T)
    found = []
    for b, ids in enumerate(prompts.tokens.masked_fill(prompts.mask, tok.mask).tolist()):
        cut = ids.index(tok.mask) if causal else len(closed(tok, ids))
        prompt = tok.decode(ids[:cut])
        few = [own[b].tolist()] + rows[b * k:(b + 1) * k]
        few = [closed(tok, row[cut:]) if causal else row[:cut] for row in few]
        original, *completions = map(tok.decode, few)
        found += [(prompt, completion, original) for completion in completions]
    return [list(column) for column in zip(*found)]


@functools.cache
def asks_for(name, function):
    """Does a function take a parameter of this name?"""
    return name in inspect.signature(function).parameters


def call_user(what, function, prompts, completions, originals):
    """Calls a function of the user's: a reward, with lists of N strings, or a verify(), with single
    strings. Returns its numbers, float64 (N,) or (), or exits with an error that names the function
    and what it was asked about. The originals are passed if it asks for them."""
    try:
        # It gets lists of its own: one that sorts them must not spoil the next one's.
        more = {name: originals[:] for name in ('original', 'originals')
                if asks_for(name, function)}
        values = function(prompts[:], completions[:], **more)
        numbers = torch.as_tensor(values, dtype=torch.float64)
        if numbers.shape != np.shape(prompts):
            raise ValueError(f"{values!r:.60}; expected the shape {np.shape(prompts)}")
        return numbers
    except Exception as e:
        fail(f"{what} failed: {type(e).__name__}: {e}; it was asked about {prompts!r:.100}, "
             f"{completions!r:.100}; expected a number for each")


def print_groups(tok, prompts, rows, causal, label, columns, groups=3, most=6):
    """Prints the first groups among rows (N, T): of each the prompt and its different completions,
    how often each came, its values, its text; the best by the first of columns
    {name: values (B, k)}, and the worst. Returns them for samples.jsonl, a dict per completion."""
    k = len(rows) // len(prompts)
    asked, written, _ = texts(tok, prompts, rows, causal)
    table = {'prompt': asked, 'completion': written}
    for name, values in columns.items():
        table[name] = values.flatten().tolist()
    samples = [dict(zip(table, sample)) for sample in zip(*table.values())][:groups * k]
    names = ''.join(f'{name:>10}' for name in columns)
    for i in range(0, len(samples), k):
        given = ''
        head = asked[i]
        if causal:                              # completions go on from the prompt
            given = head
            head += BLANK
        print(f'{label:9}{names}   {one_line(head)}')
        equal = {}                              # {completion: its samples}
        best = operator.itemgetter(next(iter(columns)))
        # Reversed, the sort is still stable: of equal ones the first comes first.
        for sample in sorted(samples[i:i + k], key=best, reverse=True):
            equal.setdefault(sample['completion'], []).append(sample)
        lines = []
        for text, same in equal.items():
            numbers = ''.join(f'{same[0][name]:10.3f}' for name in columns)
            lines.append(f'{len(same):7} x{numbers}   {one_line(given + text)}')
        if len(lines) > most:
            lines[most - 1:-1] = [f'  ({len(lines) - most} between)']
        print('\n'.join(lines), flush=True)
    return samples


def one_line(text):
    """The text with a sign for line ends, and for all else that is not printed."""
    return ''.join(char if char.isprintable() else '\u00b6' for char in text)
