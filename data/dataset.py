"""Text as rows of token ids; batches of rows; blanks in them; prompts; and rows as text again.

What is reserved is out of band: blank, beginning, end and padding of a row are ids that no text
has. A blank is shown as BLANK; people may type '_' for it."""
import functools
import hashlib
import inspect
import itertools
import json
import operator
import os
import pathlib
import re
import runpy
import sys
import zlib
from dataclasses import dataclass, replace

from common import (Stopped, code_digest, digest_of, fail, is_main, new_file, one_of, read_json,
                    run_missing)

import numpy as np
import torch
from torch import Tensor

HERE = os.path.dirname(os.path.abspath(__file__))
UNITS = ('rows', 'windows', 'pairs')
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

    def encode(self, text, blanks=False):
        """List of ids; with blanks=True each '_' or BLANK is a blank. Raises ValueError."""
        if blanks:
            ids = []
            for part in re.split(f'[_{BLANK}]', text):
                ids += self.encode(part) + [self.mask]
            return ids[:-1]
        if self.kind == 'gpt2':
            return self.bpe.encode_ordinary(text)
        strange = ''.join(sorted(set(text) - set(self.ids)))
        if strange:
            raise ValueError(f"the characters {strange!r} are not in the vocabulary")
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


def write_corpus(folder, unit, train, val, tokenizer='char', vocabulary='', script='',
                 replace=True):
    """Writes two lists of texts as a corpus: train.bin and val.bin, the ids of all rows, in the
    smallest type that holds them; and meta.json, which says where each row ends.

    unit: 'rows', a text is a row | 'windows', rows are cut anywhere from the texts | 'pairs', a
    text is (prompt, answer), its row is both, and where the answer begins is kept; it may be ''.
    tokenizer: see make_tokenizer(). vocabulary: name of the corpus whose tokenizer this one takes,
    so that networks made on either fit the other. script: the prepare.py whose verify() goes with
    it; '': the folder's. replace=False: a corpus of another text is not replaced."""
    one_of(UNITS, unit=unit)
    if not (train and val and all(map(''.join, itertools.chain(train, val)))):
        fail(f"{len(train)} texts to train on, {len(val)} held out; expected at least one of each, "
             "and none that is empty")
    everything = ''.join(itertools.chain(*train, *val))
    chars = ''.join(sorted(set(everything)))
    if BLANK in chars:
        fail(f"the text has the sign {BLANK!r}, which stands for a blank; replace it first")
    if vocabulary:
        tok = Dataset(vocabulary, prepare=True).tok
    else:
        tok = make_tokenizer(tokenizer, chars if tokenizer == 'char' else '')
    if tokenizer not in ('char', tok.kind):
        fail(f"tokenizer = {tokenizer!r}: that of vocabulary = {vocabulary!r} is {tok.kind!r}")
    try:
        tok.encode(chars)
    except ValueError as e:
        fail(f"{e} of '{vocabulary}'; leave them out, or prepare '{vocabulary}' with them")
    kind = np.min_scalar_type(tok.base - 1)
    name = os.path.relpath(folder, HERE).replace(os.sep, '/')
    meta = {'script': script or f"data/{name.split('/')[0]}/prepare.py",
            'vocabulary': tok.vocabulary, 'unit': unit, 'dtype': kind.name}

    stored = {}                                 # {split: bytes}
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
        stored[split] = np.array(ids, kind).tobytes()
        meta[split] = {'ends': ends, 'sha256': hashlib.sha256(stored[split]).hexdigest()}
        if unit == 'pairs':
            meta[split]['answers'] = answers
    meta['checksum'] = digest_of(meta)

    path = f'{folder}/meta.json'
    if not replace and os.path.exists(path):
        before = read_json(path, {'checksum': str}, 'the flag --replace=True')
        if before['checksum'] != meta['checksum']:
            fail(f"data/{name} holds another text, and there may be runs of it; choose another "
                 "--name=NAME, or --replace=True")
    for split in stored:
        with new_file(f'{folder}/{split}.bin') as file:
            file.write(stored[split])
    with new_file(path, 'w') as file:           # last: it says "complete"
        json.dump(meta, file)
    print(f"{name}: {len(train)} texts, {len(val)} held out, V = {tok.base}")


class Dataset:
    """A prepared corpus, a folder of data/. tok: its tokenizer; meta: what meta.json says; verify:
    (prompt, completion) or (prompt, completion, original) -> [0, 1], if its prepare.py has such a
    function, else None; fingerprint, code: stand for the text, and for verify()."""

    def __init__(self, name, prepare=False):
        """prepare=True runs its prepare.py if needed. Exits with an error if it is not complete.
        name: 'docstrings', or 'docstrings/failures', a second corpus of the same prepare.py."""
        self.name = name.strip('/')
        owner = self.name.split('/')[0]
        known = sorted({path.parent.name for path in pathlib.Path(HERE).glob('*/*')
                        if path.name in ('prepare.py', 'meta.json')})
        # Checkpoints of others name datasets, whose prepare.py is run: '..' leads nowhere.
        if owner not in known or '..' in self.name:
            fail(f"no dataset '{name}'; there are {', '.join(known)}")
        self.make = f'python data/{owner}/prepare.py'
        if not os.path.exists(f'{HERE}/{owner}/prepare.py'):
            self.make = f'python data/pairs/prepare.py FILE --name={self.name} --replace=True'
        folder = f'{HERE}/{self.name}'
        meta_path = f'{folder}/meta.json'
        if prepare:
            run_missing({meta_path: self.make})
        self.meta = read_json(meta_path, {'checksum': str, 'vocabulary': dict}, self.make)
        self.fingerprint = self.meta.pop('checksum')
        if self.fingerprint != digest_of(self.meta):
            fail(f"{meta_path} is damaged: its checksum does not match; make it with: {self.make}")
        self.tok = make_tokenizer(**self.meta['vocabulary'])
        self.ids = {}                           # of each split: the ids of all rows,
        self.edges = {}                         # where each row begins, and where the last one ends
        self.answers = {}                       # pairs: where in each row the answer begins
        for split in ('train', 'val'):
            stored = self.meta[split]
            self.ids[split] = self.read_ids(f'{folder}/{split}.bin', stored['sha256'])
            self.edges[split] = np.array([0] + stored['ends'])
            if self.meta['unit'] == 'pairs':
                self.answers[split] = np.array(stored['answers'])

        self.script = self.meta['script']
        path = f'{os.path.dirname(HERE)}/{self.script}'
        try:
            module = runpy.run_path(path)
        except Exception as e:
            fail(f"{self.script}: {type(e).__name__}: {e}")
        self.verify = module.get('verify')
        self.code = code_digest(pathlib.Path(path).read_bytes(), module.values())
        if self.answers and not self.has_answers().any() and self.verify:
            if asks_for('original', self.verify):
                self.verify = None              # there is nothing to compare with

    def read_ids(self, path, sha256):
        """The ids of a split, if they are those that were written."""
        try:
            ids = np.memmap(path, self.meta['dtype'], 'r')
            if hashlib.sha256(ids).hexdigest() != sha256:
                raise ValueError("it is not what meta.json says")
        except (OSError, ValueError) as e:
            fail(f"cannot read {path}: {e}; make it with: {self.make}")
        return ids

    def has_answers(self):
        """Which pairs have an answer: bool, of all splits."""
        return np.concatenate([np.diff(self.edges[split]) - 1 > self.answers[split]
                               for split in self.answers])

    def fitting(self, split, block_size):
        """Numbers of the rows that are drawn: pairs that are too long are skipped, since an answer
        without its end teaches a wrong one; other rows are cut."""
        lengths = np.diff(self.edges[split])
        return np.flatnonzero((lengths <= block_size) | (self.meta['unit'] != 'pairs'))

    def check_rows(self, block_size, mode='causal', blank_kind=''):
        """Says what a row of block_size tokens cannot hold; exits with an error if that is all, or
        if an answer is asked for where there is none."""
        where = f"dataset '{self.name}'"
        for split, ids in self.ids.items():
            lengths = np.diff(self.edges[split])
            too_long = (lengths > block_size).mean()
            if self.meta['unit'] == 'windows':
                if len(ids) < block_size:
                    fail(f"{where}, {split}: expected block_size <= {len(ids)}, all its tokens")
            elif self.answers and too_long == 1:
                fail(f"{where}, {split}: expected block_size >= {lengths.min()}, its shortest row")
            elif too_long and is_main():
                does = 'skips' if self.answers else 'cuts'
                print(f"{where}, {split}: rows have up to {lengths.max()} tokens with their end; "
                      f"block_size = {block_size} {does} {too_long:.1%} of them")
        is_there = bool(self.answers)
        if is_there and mode == 'fill':
            is_there = self.has_answers().all()
        if blank_kind == 'answer' and not is_there:
            fail(f"blank_kind = 'answer': {where} has {self.meta['unit']} without an answer; "
                 "expected pairs, or prompts alone and --mode=causal; see data/README.md")

    def check(self, prompts, completions, originals):
        """verify() of each completion, in [0, 1]."""
        return call_user(f"verify() of {self.script}", self.verify, prompts, completions,
                         originals, one_by_one=True)

    def batch(self, split, n, block_size, rng):
        """n random rows: ids, int64 (n, T = block_size), windows of the text, or rows with padding;
        and, of pairs, where the answers begin, int64 (n,), else None."""
        ids = self.ids[split]
        answer = None
        if self.meta['unit'] == 'windows':
            start = rng.integers(len(ids) - block_size + 1, size=(n, 1))                # (n, 1)
            stop = start + block_size
        else:
            rows = self.fitting(split, block_size)
            row = rows[rng.integers(len(rows), size=(n, 1))]
            start = self.edges[split][row]
            stop = self.edges[split][row + 1]
            if self.answers:
                answer = torch.from_numpy(self.answers[split][row[:, 0]])
        at = start + np.arange(block_size)                                              # (n, T)
        there = ids.take(at, mode='clip').astype(np.int64)
        tokens = np.where(at < stop, there, self.tok.pad)
        return torch.from_numpy(tokens), answer


# ---- prompts: rows with blanks -------------------------------------------------------------------


def blanks(tokens, tok, rng, kind='random', low=0.2, high=0.6, span=4, answer=None, causal=False):
    """Mask (n, T) bool of what to fill: a share uniform in [low, high] of each row, at least one.
    kind: 'random' positions | 'span': runs of that length | 'suffix': the end of the row |
    'answer': from answer (n,) on, whatever the share. A suffix includes the end-of-row token, and
    so does an answer that is written from left to right (causal)."""
    n, T = tokens.shape
    may_be_blank = tokens != tok.pad                                                    # (n, T)
    if kind != 'suffix' and not (kind == 'answer' and causal):
        may_be_blank &= tokens != tok.eos
    if kind == 'answer':
        return may_be_blank & (torch.arange(T) >= answer[:, None])
    may_be_blank = may_be_blank.numpy()
    share = rng.uniform(low, high, size=(n, 1))
    count = np.rint(share * may_be_blank.sum(1, keepdims=True)).clip(1)                 # (n, 1)

    # Give each run of `width` positions a random key; the `count` positions with the lowest keys
    # are blank. Runs begin at a random offset, so that their edges can be anywhere.
    width = span if kind == 'span' else 1
    run = (np.arange(T) + rng.integers(width, size=(n, 1))) // width                    # (n, T)
    key = np.take_along_axis(rng.random((n, T // width + 2)), run, 1)                   # (n, T)
    if kind == 'suffix':
        # The last positions first. The random keys were drawn all the same, so that what is drawn
        # next does not depend on the kind.
        key = np.broadcast_to(-np.arange(T), (n, T))
    key = np.where(may_be_blank, key, 2.0)
    rank = key.argsort(1, kind='stable').argsort(1, kind='stable')                      # (n, T)
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
        """The prompts of a slice."""
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


def draw_prompts(data, split, n, k, rng, *, block_size, mode, blank_kind, blank_low, blank_high,
                 blank_span, max_new_tokens=0):
    """n Prompts for k completions each, from the text of a split; the rest are knobs."""
    causal = mode == 'causal'
    original, answer = data.batch(split, n, block_size, rng)                    # (n, T), (n,)
    tokens = original
    mask = blanks(tokens, data.tok, rng, blank_kind, blank_low, blank_high, blank_span, answer,
                  causal)
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
        try:
            ids = tok.encode(text, blanks=True)
            row = (ids + ending + [tok.pad] * block_size)[:block_size]
            if not 1 <= len(ids) <= block_size or tok.mask not in row:
                raise ValueError(f"{len(ids)} symbols; expected 1 to {block_size}, and something "
                                 "left to fill; '_' is a blank")
        except ValueError as e:
            raise ValueError(f"{text!r}: {e}") from None
        rows.append(row)
    tokens = torch.tensor(rows)                                                         # (n, T)
    return with_draws(tokens, tokens == tok.mask, tok, k, rng)


# ---- rows as text --------------------------------------------------------------------------------


def closed(tok, ids):
    """A list of ids of a row without its padding and the one end that closes it."""
    ids = [i for i in ids if i != tok.pad]
    return ids[:-1] if ids[-1:] == [tok.eos] else ids


def texts(tok, tokens, mask, rows, causal):
    """Prompts and completions, two lists of N strings, of tokens, mask (B, T) and rows (N, T).

    Fill: the row with BLANK for its blanks, and the whole completed row. Causal: what stands to the
    left of the first blank, and what follows. Padding and the end that closes a row are not text;
    but in fill mode an end that was blank is a choice, and is shown."""
    k = len(rows) // len(tokens)
    shown = tokens.cpu().masked_fill(mask.cpu(), tok.mask).tolist()                     # (B, T)
    prompts = []
    completions = []
    for b, ids in enumerate(shown):
        cut = ids.index(tok.mask) if causal else len(closed(tok, ids))
        prompts += [tok.decode(ids[:cut])] * k
        for row in rows[b * k:(b + 1) * k].tolist():
            written = closed(tok, row[cut:]) if causal else row[:cut]
            completions.append(tok.decode(written))
    return prompts, completions


def texts_and_originals(tok, prompts, rows, causal):
    """texts() of Prompts (B) and rows (N, T), and for each completion, in the same form, the one
    that the text itself has: three lists of N strings."""
    k = len(rows) // len(prompts)
    own = prompts.tokens if prompts.original is None else prompts.original              # (B, T)
    _, originals = texts(tok, prompts.tokens, prompts.mask, own.cpu(), causal)
    originals = [original for original in originals for _ in range(k)]
    return *texts(tok, prompts.tokens, prompts.mask, rows, causal), originals


def asks_for(name, function):
    """Does a function take a parameter of this name, or any by **columns?"""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind == p.VAR_KEYWORD for p in parameters.values())


def call_user(what, function, prompts, completions, originals, one_by_one=False):
    """Calls a function of the user's with lists of N strings; one_by_one: a verify(), with single
    strings, each different case once. Returns N numbers, or exits with an error that names the
    function, what came of it, and the prompt. The originals are passed if it asks for them."""
    s = '' if one_by_one else 's'
    wants_it = asks_for(f'original{s}', function)

    def ask(prompt, completion, original):
        return function(prompt, completion, **({f'original{s}': original} if wants_it else {}))

    case = prompts[0]                           # what it failed at
    try:
        if one_by_one:
            ask = functools.cache(ask)          # equal cases are asked once
            values = []
            for case in zip(prompts, completions, originals):
                values.append(ask(*case))
        else:
            # It gets lists of its own: one that sorts them must not spoil the next one's.
            values = ask(list(prompts), list(completions), list(originals))
        if len(values) != len(prompts):
            raise ValueError(f"{len(values)} values for {len(prompts)} completions: {values!r:.60}")
        numbers = []
        for i, prompt in enumerate(prompts):
            case = (prompt, values[i])          # by number, since a dict or a set has no order
            numbers.append(float(values[i] + 0))                # '1' + 0 fails; float('1') does not
            if one_by_one and not 0 <= numbers[i] <= 1:
                raise ValueError("expected 0 to 1")
        return numbers
    except Stopped:                             # a signal came
        raise
    except (Exception, SystemExit) as e:
        fail(f"{what} failed: {type(e).__name__}: {e}; it was at {case!r}; expected "
             f"(prompt{s}, completion{s}[, original{s}]) -> a number for each")


def print_group(tok, tokens, mask, rows, label, columns, causal=False, most=6):
    """Prints a prompt, tokens and mask (T,), and its different completions among rows (k, T): how
    often each came, its values, its text; the best by the first of columns {name: values (k,)}, and
    the worst."""
    ids = tokens.masked_fill(mask, tok.mask)
    if causal:                                  # one sign for all that is to be written
        ids = ids[:mask.int().argmax() + 1]
    names = ''.join(f'{name:>10}' for name in columns)
    print(f'{label:9}{names}   {row_text(tok, ids, mask)}')

    order = next(iter(columns.values())).argsort(descending=True, stable=True)
    found = {}                                  # {row: indices of the equal rows}
    for j in order.tolist():
        found.setdefault(tuple(rows[j].tolist()), []).append(j)
    lines = []
    for same in found.values():
        j = same[0]
        values = ''.join(f'{column[j]:10.3f}' for column in columns.values())
        lines.append(f'{len(same):7} x{values}   {row_text(tok, rows[j], mask)}')
    if len(lines) > most:
        lines[most - 1:-1] = [f'  ({len(lines) - most} between)']
    print('\n'.join(lines), flush=True)


def print_groups(tok, prompts, rows, causal, label, columns, groups=3, most=6):
    """Prints the first groups among rows (N, T), of each its best completions and its worst, with
    columns {name: values (P, k)}. Returns them for samples.jsonl, a dict per completion."""
    k = len(rows) // len(prompts)
    shown = prompts[:groups]
    rows = rows[:len(shown) * k]
    for p, group in enumerate(rows.split(k)):   # (k, T)
        here = {name: values[p] for name, values in columns.items()}        # {name: (k,)}
        print_group(tok, shown.tokens[p], shown.mask[p], group, label, here, causal, most)
    names = ['prompt', 'completion', *columns]
    values = [column.flatten().tolist() for column in columns.values()]
    found = zip(*texts(tok, shown.tokens, shown.mask, rows, causal), *values)
    return [dict(zip(names, sample)) for sample in found]


def row_text(tok, ids, mask):
    """Text of ids (T,); line ends as a sign. On a terminal what was blank, mask (T,), is yellow."""
    text = ''
    marked = zip(mask.tolist(), closed(tok, ids.tolist()))
    for is_blank, run in itertools.groupby(marked, operator.itemgetter(0)):
        piece = tok.decode([i for _, i in run])
        piece = ''.join(char if char.isprintable() else '\u00b6' for char in piece)
        text += f'\033[33m{piece}\033[0m' if is_blank and sys.stdout.isatty() else piece
    return text
