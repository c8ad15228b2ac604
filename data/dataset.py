"""Text as rows of token ids; batches of rows; blanks in them; prompts; and rows as text again."""
import functools
import hashlib
import inspect
import itertools
import json
import os
import pathlib
import re
import reprlib
import runpy
import sys
import zlib
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from common import Stopped, digest_of, fail, is_main, new_file, one_of, read_json, run_missing

HERE = os.path.dirname(os.path.abspath(__file__))
UNITS = ('rows', 'windows', 'pairs')
BLANK_KINDS = ('random', 'span', 'suffix', 'answer')
BLANK = '_'             # how a blank is written; an underscore in a corpus is stored as '-'
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
        if kind == 'gpt2':
            pieces = self.load_gpt2()
        else:
            pieces = [char.encode() for char in chars]
            self.ids = {char: i for i, char in enumerate(chars)}
            self.eos = self.ids['\n']
        self.base = len(pieces)
        self.size = self.base + len(SPECIALS)
        self.mask, self.bos, self.pad = range(self.base, self.size)
        self.pieces = pieces + [BLANK.encode(), b'', b'']       # how ids are shown, as bytes
        self.vocabulary = {'kind': kind, 'chars': chars}        # Tokenizer(**this) is an equal one

    def load_gpt2(self):
        """Sets up the byte pairs; returns the bytes of each id. The last id ends a row."""
        try:
            import tiktoken
            gpt2 = tiktoken.get_encoding('gpt2')
        except Exception as e:
            fail(f"no GPT-2 vocabulary ({type(e).__name__}): it needs tiktoken and, the first "
                 "time, a network; --tokenizer=char needs neither")
        ours = {f'<|{name}|>': gpt2.n_vocab + i for i, name in enumerate(SPECIALS)}
        self.bpe = tiktoken.Encoding(           # extended in the way that tiktoken documents
            'gpt2_blanks', pat_str=gpt2._pat_str, mergeable_ranks=gpt2._mergeable_ranks,
            special_tokens=gpt2._special_tokens | ours)
        self.eos = gpt2.eot_token
        return gpt2.decode_tokens_bytes(range(self.eos)) + [b'\n']

    def difference(self, other):
        """In words, how another tokenizer's vocabulary differs from this one; '': not at all."""
        if self.vocabulary == other.vocabulary:
            return ''
        if self.kind != other.kind:
            return f"its tokenizer is {other.kind}, not {self.kind}"
        more = ''.join(sorted(set(other.ids) - set(self.ids))) or 'none'
        less = ''.join(sorted(set(self.ids) - set(other.ids))) or 'none'
        return f"characters only there: {more!r}, only here: {less!r}"

    def encode(self, text, blanks=False):
        """List of ids; with blanks=True each '_' becomes the mask id. Raises ValueError."""
        if blanks:
            first, *others = text.split(BLANK)
            ids = self.encode(first)
            for part in others:
                ids += [self.mask] + self.encode(part)
            return ids
        if self.kind == 'gpt2':
            return self.bpe.encode_ordinary(text)
        strange = ''.join(sorted(set(text) - set(self.ids)))
        if strange:
            raise ValueError(f"characters {strange!r} not in the vocabulary {''.join(self.ids)!r}")
        return [self.ids[char] for char in text]

    def decode(self, ids):
        """Text; blanks are shown as '_', an end of row as a line feed, BOS and padding not."""
        return b''.join(self.pieces[i] for i in ids).decode(errors='replace')


def make_tokenizer(kind, chars=''):
    return Tokenizer(kind, chars)


# ---- corpora -------------------------------------------------------------------------------------


def write_corpus(folder, unit, train, val, tokenizer='char', vocabulary=''):
    """Writes two lists of texts as a corpus: train.bin and val.bin (uint16 ids, each text with its
    end of row), and meta.json.

    unit: 'rows', a text is a row | 'windows', rows are cut anywhere from the texts | 'pairs', a
    text is (prompt, answer), its row is both, and where the answer begins is kept; it may be ''.
    vocabulary: name of the corpus whose characters this one takes, so that networks made on either
    fit the other; '': those that occur here."""
    one_of(UNITS, unit=unit)
    one_of(('char', 'gpt2'), tokenizer=tokenizer)
    if not train or not val:
        fail(f"{len(train)} texts to train on, {len(val)} held out; expected at least one of each")
    splits = {'train': [], 'val': []}           # of texts in parts: (text,) or (prompt, answer)
    for split, items in (('train', train), ('val', val)):
        for item in items:
            parts = [part.replace(BLANK, '-') for part in (item if unit == 'pairs' else (item,))]
            text = ''.join(parts)
            if unit != 'windows' and ('\n' in text or text == ''):
                fail(f"a row that is empty, or with a line feed in it: {text[:60]!r}; a line feed "
                     "ends a row, and an empty one has nothing to fill")
            splits[split].append(parts)

    every_char = {'\n'}.union(*itertools.chain(*splits['train'], *splits['val']))
    chars = ''
    if vocabulary:
        tok = Dataset(vocabulary, prepare=True).tok
        strange = ''.join(sorted(every_char - set(tok.ids))) if tok.kind == 'char' else ''
        if tok.kind != tokenizer or strange:
            fail(f"vocabulary = {vocabulary!r}: a {tok.kind} vocabulary without the characters "
                 f"{strange!r} of this text; leave them out, or prepare '{vocabulary}' with them")
        chars = tok.vocabulary['chars']
    elif tokenizer == 'char':
        chars = ''.join(sorted(every_char))
        if len(chars) > 2 ** 16:
            fail(f"{len(chars)} different characters; expected at most {2 ** 16} (ids are uint16)")
    tok = Tokenizer(tokenizer, chars)
    meta = {'tokenizer': tokenizer, 'chars': chars, 'unit': unit}

    for split, texts_in_parts in splits.items():
        ids = []
        answers = []                            # where in its row the answer begins
        for parts in texts_in_parts:
            answers.append(len(tok.encode(parts[0])))
            for part in parts:                  # apart: no symbol is half prompt and half answer
                ids += tok.encode(part)
            ids.append(tok.eos)
        ids = np.array(ids, dtype=np.uint16)
        meta[split] = {'texts': len(texts_in_parts), 'tokens': len(ids),
                       'sha256': hashlib.sha256(ids).hexdigest()}
        if unit == 'pairs':
            meta[split]['answers'] = answers
        with new_file(f'{folder}/{split}.bin') as file:
            file.write(ids.tobytes())
    meta['checksum'] = digest_of(meta)
    with new_file(f'{folder}/meta.json', 'w') as file:          # last: it says "complete"
        json.dump(meta, file)
    name = os.path.relpath(folder, HERE)
    print(f"{name}: {len(train)} {'pairs' if unit == 'pairs' else 'texts'}, {len(val)} held out, "
          f"V = {tok.base}")


class Dataset:
    """A prepared corpus, a folder of data/. tok: its tokenizer; meta: what meta.json says; verify:
    (prompt, completion) or (prompt, completion, original) -> [0, 1], if its prepare.py has such a
    function, else None."""

    def __init__(self, name, prepare=False):
        """prepare=True runs its prepare.py if needed. Ends with one line if it is not complete.
        name: 'docstrings', or 'docstrings/failures', a second corpus of the same prepare.py."""
        self.name = name
        self.folder = f'{HERE}/{name}'
        owner = name.split('/')[0]
        script = f'data/{owner}/prepare.py'
        known = sorted(path.parent.name for path in pathlib.Path(HERE).glob('*/prepare.py'))
        if owner not in known:
            fail(f"no dataset '{name}'; there are {', '.join(known)}")

        meta_path = f'{self.folder}/meta.json'
        make = f'python {script}'
        self.make = make
        if prepare and not os.path.exists(meta_path):
            run_missing({meta_path: make})
            if not os.path.exists(meta_path):
                fail(f"{script} has not written {meta_path}; it must call write_corpus()")
        keys = {'tokenizer': str, 'chars': str, 'unit': str, 'train': dict, 'val': dict,
                'checksum': str}
        self.meta = read_json(meta_path, keys, make)
        if self.meta.pop('checksum') != digest_of(self.meta):
            fail(f"{meta_path} is damaged: its checksum does not match; make it with: {make}")
        self.tok = Tokenizer(self.meta['tokenizer'], self.meta['chars'])
        self.ids = {split: self.read_ids(split, make) for split in ('train', 'val')}
        # Where each row begins, and, last, where the last one ends.
        self.edges = {split: np.append(0, np.flatnonzero(ids == self.tok.eos) + 1)
                      for split, ids in self.ids.items()}
        self.fits = {}                          # what fitting() has found
        self.answers = {}                       # pairs: where in each row the answer begins
        if self.meta['unit'] == 'pairs':
            self.answers = {split: np.array(self.meta[split]['answers'])
                            for split in ('train', 'val')}
        self.fingerprint = hashlib.sha256(pathlib.Path(meta_path).read_bytes()).hexdigest()[:16]
        self.code = digest_of(pathlib.Path(HERE, owner, 'prepare.py').read_bytes())
        try:
            self.verify = runpy.run_path(f'{HERE}/{owner}/prepare.py').get('verify')
        except Exception as e:
            fail(f"{script}: {type(e).__name__}: {e}")
        if self.verify:
            asks_for_original = n_arguments(self.what_verify, self.verify, one_by_one=True) == 3
            if asks_for_original and self.answers and not self.has_answers():
                self.verify = None              # there is nothing to compare with

    def read_ids(self, split, make):
        """The ids of a split, if they are those that were written."""
        path = f'{self.folder}/{split}.bin'
        try:
            ids = np.memmap(path, np.uint16, 'r')
        except (OSError, ValueError) as e:
            fail(f"cannot read {path}: {e}; make it with: {make}")
        if hashlib.sha256(ids).hexdigest() != self.meta[split].get('sha256'):
            fail(f"{path} is damaged: it is not what meta.json says; make it with: {make}")
        return ids

    @property
    def what_verify(self):
        return f"verify() of data/{self.name.split('/')[0]}/prepare.py"

    def has_answers(self, every=False):
        """Has any pair an answer? every: has each of them one?"""
        there = [np.diff(self.edges[split]) - 1 > self.answers[split] for split in self.answers]
        return np.concatenate(there).all() if every else np.concatenate(there).any()

    def fitting(self, split, block_size):
        """Numbers of the rows that are drawn: those of pairs that are too long are skipped, since
        an answer without its end teaches a wrong one; other rows are cut."""
        if (split, block_size) not in self.fits:
            lengths = np.diff(self.edges[split])
            if self.answers:
                self.fits[split, block_size] = np.flatnonzero(lengths <= block_size)
            else:
                self.fits[split, block_size] = np.arange(len(lengths))
        return self.fits[split, block_size]

    def check_rows(self, block_size, mode='causal', blank_kind=''):
        """Says what a row of block_size tokens cannot hold; ends with one line if that is all, or
        if an answer is asked for where there is none."""
        for split, ids in self.ids.items():
            if self.meta['unit'] == 'windows' and len(ids) < block_size:
                fail(f"dataset '{self.name}': the text of {split} has {len(ids)} tokens, fewer "
                     f"than block_size = {block_size}")
            if len(self.fitting(split, block_size)) == 0:
                shortest = np.diff(self.edges[split]).min()
                fail(f"dataset '{self.name}': the shortest row of {split} has {shortest} tokens "
                     f"with its end; expected block_size >= {shortest}")
        if self.meta['unit'] != 'windows':
            lengths = np.diff(self.edges['train'])
            share = (lengths > block_size).mean()
            if share > 0 and is_main():
                does = 'skips' if self.answers else 'cuts'
                print(f"dataset '{self.name}': rows have up to {lengths.max()} tokens with their "
                      f"end; block_size = {block_size} {does} {share:.1%} of them")
        if blank_kind == 'answer' and not self.answers:
            fail(f"blank_kind = 'answer': dataset '{self.name}' is made of {self.meta['unit']}; "
                 f"expected pairs of prompt and answer, as {self.make} would write them if it "
                 "called write_corpus(folder, 'pairs', ...)")
        if blank_kind == 'answer' and mode == 'fill' and not self.has_answers(every=True):
            fail(f"blank_kind = 'answer': dataset '{self.name}' has prompts without an answer, so "
                 "there is nothing to fill; --mode=causal writes one")

    def check(self, prompts, completions, originals):
        """verify() of each completion, in [0, 1]."""
        values = call_user(self.what_verify, self.verify, prompts, completions, originals,
                           one_by_one=True)
        for prompt, completion, value in zip(prompts, completions, values):
            if not 0 <= value <= 1:
                fail(f"{self.what_verify} gave {value} for {prompt!r}, {completion!r}; expected 0 "
                     "to 1")
        return values

    def batch(self, split, n, block_size, rng):
        """n random rows: ids, int64 (n, T = block_size), windows of the text, or rows with padding;
        and, of pairs, where the answers begin, int64 (n,), else None."""
        ids = self.ids[split]
        answer = None
        if self.meta['unit'] == 'windows':
            start = rng.integers(len(ids) - block_size + 1, size=(n, 1))                # (n, 1)
            stop = start + block_size
        else:
            edges = self.edges[split]
            rows = self.fitting(split, block_size)
            row = rows[rng.integers(len(rows), size=(n, 1))]
            start = edges[row]
            stop = edges[row + 1]
            if split in self.answers:
                answer = torch.from_numpy(self.answers[split][row[:, 0]])
        at = start + np.arange(block_size)                                              # (n, T)
        tokens = np.where(at < stop, ids.take(at, mode='clip'), self.tok.pad)
        return torch.from_numpy(tokens).long(), answer


# ---- prompts: rows with blanks -------------------------------------------------------------------


def blanks(tokens, tok, rng, kind='random', low=0.2, high=0.6, span=4, answer=None, causal=False):
    """Mask (n, T) bool of what to fill: a share uniform in [low, high] of each row, at least one.
    kind: 'random' positions | 'span': runs of that length | 'suffix': the end of the row |
    'answer': from answer (n,) on, whatever the share. A suffix includes the end-of-row token, and
    so does an answer that is written from left to right (causal). Raises ValueError."""
    if kind not in BLANK_KINDS or not 0 <= low <= high <= 1 or span < 1:
        raise ValueError(f"blanks: kind={kind!r}, low={low}, high={high}, span={span}")
    n, T = tokens.shape
    if kind == 'answer':
        is_there = tokens != tok.pad
        if not causal:
            is_there &= tokens != tok.eos
        return is_there & (torch.arange(T) >= answer[:, None])
    width = span if kind == 'span' else 1

    may_be_blank = tokens != tok.pad                                                    # (n, T)
    if kind != 'suffix':
        may_be_blank &= tokens != tok.eos
    may_be_blank = may_be_blank.numpy()
    share = rng.uniform(low, high, size=(n, 1))
    count = np.rint(share * may_be_blank.sum(1, keepdims=True)).clip(1)                 # (n, 1)

    # Give each run of `width` positions a random key; the `count` positions with the lowest keys
    # are blank. Runs begin at a random offset, so that their edges can be anywhere.
    run = (np.arange(T) + rng.integers(width, size=(n, 1))) // width                    # (n, T)
    key = np.take_along_axis(rng.random((n, T // width + 2)), run, 1)                   # (n, T)
    if kind == 'suffix':
        key = np.broadcast_to(-np.arange(T), (n, T))    # the last positions have the lowest keys;
        # they are drawn all the same, so that what is drawn next does not depend on the kind
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
        order = None if self.order is None else change(self.order)
        original = None if self.original is None else change(self.original)
        return Prompts(change(self.tokens), change(self.mask), change(self.uniforms), self.eos,
                       order, original)

    def __getitem__(self, part):
        """The prompts of a slice."""
        return self.map(lambda tensor: tensor[part])

    def split(self, size):
        """A list of Prompts, size at a time."""
        return [self[i:i + size] for i in range(0, len(self), size)]

    def for_k(self, k):
        """The same, to be completed k times only."""
        return replace(self, uniforms=self.uniforms[:, :, :k])

    def pin_memory(self):
        """The same in memory from which a GPU can copy without being waited for."""
        return self.map(lambda tensor: tensor.pin_memory())


def draw_prompts(data, split, n, k, rng, *, block_size, mode, blank_kind, blank_low, blank_high,
                 blank_span, max_new_tokens=0):
    """n Prompts for k completions each, from the text of a split; the rest are knobs."""
    causal = mode == 'causal'
    original, answer = data.batch(split, n, block_size, rng)                    # (n, T), (n,)
    tokens = original
    mask = blanks(tokens, data.tok, rng, blank_kind, blank_low, blank_high, blank_span, answer,
                  causal)
    if causal and blank_kind in ('suffix', 'answer'):
        # A completion may be longer than the original was.
        at = torch.arange(block_size)
        first = mask.int().argmax(1, keepdim=True)                                      # (n, 1)
        stop = first + (max_new_tokens or block_size)
        mask = (at >= first) & (at < stop)
        tokens = tokens.masked_fill(at >= stop, data.tok.pad)
    uniforms = torch.from_numpy(rng.random((n, block_size, k), np.float32))
    # The order in which blanks are filled has a stream of its own: were it drawn from the uniforms
    # that sample, or after them, it would depend on what is sampled, or on k.
    order = torch.from_numpy(rng.spawn(1)[0].random((n, block_size), np.float32))
    return Prompts(tokens, mask, uniforms, data.tok.eos, order, original)


def prompts_of_texts(strings, tok, unit, k, rng, *, block_size, mode, max_new_tokens=0):
    """Prompts of texts that a user wrote, for k completions each: '_' is a blank; in causal mode,
    what to continue. unit: as of the corpus of the model. Raises ValueError, which names the text.
    """
    causal = mode == 'causal'
    T = block_size
    longest = T - 1 if causal else T
    rows = []
    for text in strings:
        try:
            ids = tok.encode(text, blanks=True)
        except ValueError as e:
            raise ValueError(f"{text!r}: {e}") from None
        if not 1 <= len(ids) <= longest:
            raise ValueError(f"{text!r}: {len(ids)} symbols; expected 1 to {longest}")
        if not causal and tok.mask not in ids:
            raise ValueError(f"{text!r}: there is nothing to fill; write '{BLANK}' for a blank")
        if causal:
            ids += [tok.mask] * (max_new_tokens or T)
        elif unit != 'windows':
            ids += [tok.eos]
        rows.append((ids + [tok.pad] * T)[:T])
    tokens = torch.tensor(rows)                                                         # (n, T)
    uniforms = torch.from_numpy(rng.random((len(rows), T, k), np.float32))
    order = torch.from_numpy(rng.spawn(1)[0].random((len(rows), T), np.float32))
    return Prompts(tokens, tokens == tok.mask, uniforms, tok.eos, order)


# ---- rows as text --------------------------------------------------------------------------------


def texts(tok, tokens, mask, rows, causal):
    """Prompts and completions, two lists of N strings, of tokens, mask (B, T) and rows (N, T).

    Fill: the row with '_' for its blanks, and the whole completed row. Causal: what stands to the
    left of the first blank, and what follows. Without the line feed that closes a row."""
    shown = tokens.cpu().masked_fill(mask.cpu(), tok.mask).tolist()                     # (B, T)
    groups = rows.view(len(shown), -1, rows.size(1)).tolist()                           # (B, k, T)
    prompts = []
    completions = []
    for ids, group in zip(shown, groups):
        first = ids.index(tok.mask) if causal else None
        prompt = tok.decode(ids[:first])
        # In fill mode a line feed closes the row only if it was given: a blank one is a choice.
        closing = '\n' if causal or prompt.endswith('\n') else ''
        if not causal:
            prompt = prompt.removesuffix(closing)
        for row in group:
            prompts.append(prompt)
            completions.append(tok.decode(row[first:]).removesuffix(closing))
    return prompts, completions


def texts_and_originals(tok, prompts, rows, causal):
    """texts() of Prompts (B) and rows (N, T), and for each completion, in the same form, the one
    that the text itself has: three lists of N strings."""
    k = len(rows) // len(prompts)
    own = prompts.tokens if prompts.original is None else prompts.original              # (B, T)
    _, originals = texts(tok, prompts.tokens, prompts.mask, own.cpu(), causal)
    originals = [original for original in originals for _ in range(k)]
    return *texts(tok, prompts.tokens, prompts.mask, rows, causal), originals


def n_arguments(what, function, one_by_one=False):
    """How many arguments a reward, or with one_by_one a verify(), wants: 2, or 3 if it also asks
    for the originals. Ends with one line if it cannot be called with either."""
    arguments = ['prompt', 'completion', 'original']
    if not one_by_one:
        arguments = [name + 's' for name in arguments]
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):             # some that are built in have no signature
        return 2
    for n in (2, 3):
        try:
            signature.bind(*arguments[:n])
        except TypeError:
            continue
        takes_it_too = arguments[2] in signature.parameters
        return 3 if takes_it_too else n
    fail(f"{what} cannot be called: its arguments are {signature}; expected "
         f"({', '.join(arguments[:2])}), or ({', '.join(arguments)})")


def call_user(what, function, prompts, completions, originals, one_by_one=False):
    """Calls a function of the user's with lists of N strings; one_by_one: with single strings, each
    different case once. Returns N numbers, or ends with one line that names the function, what came
    of it, and what was expected. The originals are passed if it asks for them."""
    expected = "a list of one number per completion, from (prompts, completions)"
    if one_by_one:
        expected = "one number, from (prompt, completion)"
    columns = (prompts, completions, originals)[:n_arguments(what, function, one_by_one)]

    def refuse(problem):
        fail(f"{what} {problem}; expected {expected}; a prompt was {prompt!r}")

    prompt = prompts[0]
    try:
        if one_by_one:
            ask = functools.cache(function)
            values = []
            for case in zip(*columns):
                prompt = case[0]
                values.append(ask(*case))
        else:
            # It gets lists of its own: one that sorts them must not spoil the next one's.
            values = function(*map(list, columns))
    except Stopped:                             # a signal came
        raise
    except (Exception, SystemExit) as e:
        refuse(f"raised {type(e).__name__}: {e}")

    if isinstance(values, (np.ndarray, Tensor)):
        values = values.tolist()
    if not isinstance(values, (list, tuple)):   # a dict or a set has no order
        refuse(f"gave {reprlib.repr(values)}")
    if len(values) != len(prompts):
        refuse(f"gave {len(values)} values for {len(prompts)} completions")
    numbers = []
    for value, prompt in zip(values, prompts):
        if isinstance(value, str):              # float('1') would be 1
            refuse(f"gave {value!r}")
        try:
            numbers.append(float(value))
        except (TypeError, ValueError, OverflowError):
            refuse(f"gave {reprlib.repr(value)}")
    return numbers


def print_group(tok, tokens, mask, rows, label, columns, most=None, note=''):
    """Prints a prompt, tokens and mask (T,), and its different completions among rows (k, T): how
    often each came, its values, its text. columns: {name: values (k,)}; highest first value first.
    note: ends the line of the prompt. On a terminal what was blank is yellow."""
    names = ''.join(f'{name:>10}' for name in columns)
    print(f'{label:9}{names}   {row_text(tok, tokens.masked_fill(mask, tok.mask), mask)}{note}')

    first_column = next(iter(columns.values()))
    found = {}                                  # {row: indices of the equal rows}
    for j in first_column.argsort(descending=True, stable=True).tolist():
        found.setdefault(tuple(rows[j].tolist()), []).append(j)
    for same in list(found.values())[:most]:
        j = same[0]
        values = ''.join(f'{column[j]:10.3f}' for column in columns.values())
        print(f'{len(same):7} x{values}   {row_text(tok, rows[j], mask)}')
    sys.stdout.flush()


def print_groups(tok, prompts, rows, causal, label, columns, groups=3, most=6):
    """Prints the first groups among rows (N, T), of each its best completions and its worst, with
    columns {name: values (P, k)}. Returns them for samples.jsonl, a dict per completion."""
    k = len(rows) // len(prompts)
    strings, completions = texts(tok, prompts.tokens, prompts.mask, rows, causal)
    samples = []
    for p in range(min(groups, len(prompts))):
        here = {name: values[p] for name, values in columns.items()}        # {name: (k,)}
        print_group(tok, prompts.tokens[p], prompts.mask[p], rows[p * k:(p + 1) * k], label, here,
                    most)
        for j in range(k):
            i = p * k + j
            samples.append({'prompt': strings[i], 'completion': completions[i]}
                           | {name: values[j].item() for name, values in here.items()})
    return samples


def row_text(tok, ids, mask):
    """Text of ids (T,) up to the last that is no padding and no end of row; line ends as a sign."""
    yellow = ''
    normal = ''
    if sys.stdout.isatty() and not os.environ.get('NO_COLOR'):
        yellow = '\033[33m'
        normal = '\033[0m'
    ends = (ids == tok.pad) | (ids == tok.eos)
    length = int((~ends).nonzero().max()) + 1 if not ends.all() else 0
    text = ''
    for is_blank, part in itertools.groupby(range(length), lambda t: bool(mask[t])):
        piece = tok.decode(ids[t] for t in part)
        piece = ''.join(char if char.isprintable() else '\u00b6' for char in piece)
        text += f'{yellow}{piece}{normal}' if is_blank else piece
    return text


# ---- a check of English --------------------------------------------------------------------------


@functools.cache
def vocabulary(folder):
    """Words of a corpus's training text, ' so ', and what row edges leave: ' s', 'o ' and 'o'."""
    data = Dataset(os.path.basename(folder))
    text = data.tok.decode(data.ids['train'])
    parts = set()
    for letters in set(re.findall('[A-Za-z]+', text)):
        word = f' {letters} '
        for i in range(len(word)):
            parts |= {word[:i + 1], word[i:], word[i:-1]}
    return parts


def known_words(prompt, completion, folder):
    """Share of the words with a blank in or beside them that the training text has; 1.0 if none.

    A word cut by the row's edge must begin (or end) a word. Nothing between two spaces is unknown.
    So 'th_ c_t sat' -> 'the cqt sat' gives 0.5: 'the' is known, 'cqt' is not, 'sat' was given."""
    if BLANK not in prompt:                     # what follows a prompt is one blank
        completion = prompt + completion
        prompt = prompt + BLANK
    spans = [match.span() for match in re.finditer(f'{BLANK}+', prompt)]
    if len(prompt) != len(completion):          # not one character each: find what was given
        pattern = re.sub(f'{BLANK}+', '(.*?)', re.escape(prompt))
        match = re.fullmatch(pattern, completion, re.DOTALL)
        spans = match.regs[1:] if match else [(0, len(completion))]

    spaced = re.sub('[^A-Za-z]', ' ', completion)
    hits = []
    for word in re.finditer(r'[A-Za-z]+|(?<= )(?= )', completion):
        if any(word.start() <= stop and start <= word.end() for start, stop in spans):
            with_edges = spaced[max(0, word.start() - 1):word.end() + 1]
            hits.append(with_edges in vocabulary(folder))
    return sum(hits) / len(hits) if hits else 1.0
