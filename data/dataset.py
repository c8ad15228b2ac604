"""Text as rows of token ids, batches of rows, and blanks in them.

A corpus is a folder data/<name>/ whose prepare.py writes train.bin and val.bin (uint16 ids, each
row or paragraph closed by the end-of-row id) and meta.json, and may define verify(prompt,
completion) -> float in [0, 1]. The special ids (mask, BOS, padding) follow the base vocabulary;
the models have no output for them, so nothing can ever produce one."""
import functools
import hashlib
import json
import os
import re
import runpy
import zlib
from itertools import groupby

import numpy as np
import torch

from config.configurator import fail, run

HERE = os.path.dirname(os.path.abspath(__file__))
BLANK = '_'             # how a blank is written; an underscore in a corpus is stored as '-'
SPECIALS = ('mask', 'bos', 'pad')

def draws(seed, purpose, step=0):
    """A generator of random numbers that depends on (seed, purpose, step) and on nothing else."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), step])

class Tokenizer:
    """Characters, or GPT-2's byte pairs. base = V, the ids that a model can produce."""
    def __init__(self, kind, chars=''):
        self.kind, self.chars = kind, chars
        if kind == 'gpt2':
            try:
                import tiktoken
                gpt2 = tiktoken.get_encoding('gpt2')
            except Exception as e:      # not installed, or no network and no cached vocabulary
                fail(f"GPT-2's vocabulary cannot be had ({type(e).__name__}): it needs tiktoken "
                     "and, the first time, a network; --tokenizer=char needs neither")
            self.base, self.eos = gpt2.n_vocab, gpt2.eot_token      # <|endoftext|> ends a row
            ours = {f'<|{name}|>': gpt2.n_vocab + i for i, name in enumerate(SPECIALS)}
            self.bpe = tiktoken.Encoding(       # extended in the way that tiktoken documents
                'gpt2_blanks', pat_str=gpt2._pat_str, mergeable_ranks=gpt2._mergeable_ranks,
                special_tokens={**gpt2._special_tokens, **ours})
        else:
            self.ids = {c: i for i, c in enumerate(chars)}
            self.base, self.eos = len(chars), self.ids['\n']
        self.mask, self.bos, self.pad = range(self.base, self.base + len(SPECIALS))
        self.size = self.base + len(SPECIALS)

    def encode(self, text, blanks=False):
        """List of ids; with blanks=True each '_' becomes the mask id. Raises ValueError."""
        if blanks:
            parts = [self.encode(part) for part in text.split(BLANK)]
            return sum(([self.mask] + part for part in parts[1:]), parts[0])
        if self.kind == 'gpt2':
            return self.bpe.encode_ordinary(text)
        strange = ''.join(sorted(set(text) - set(self.ids)))
        if strange:
            raise ValueError(f"characters {strange!r} are not in the vocabulary {self.chars!r}")
        return [self.ids[c] for c in text]

    def decode(self, ids):
        """Text; blanks are shown as '_', an end of row as a line feed, BOS and padding not."""
        ids = [int(i) for i in ids if i not in (self.bos, self.pad)]
        if self.kind == 'char':
            return ''.join(BLANK if i == self.mask else self.chars[i] for i in ids)
        shown, text = {self.mask: BLANK, self.eos: '\n'}, ''
        for special, part in groupby(ids, shown.get):       # byte pairs are decoded run by run
            text += special * len(list(part)) if special else self.bpe.decode(list(part))
        return text

def write_corpus(folder, unit, train, val, tokenizer='char'):
    """Writes train.bin, val.bin and meta.json for two lists of rows or paragraphs of text.
    unit: 'rows' (each text is a row of its own) or 'windows' (cut anywhere in the running text)."""
    train, val = ([t.replace(BLANK, '-') for t in part] for part in (train, val))
    chars = ''.join(sorted(set(''.join(train + val)) | {'\n'})) if tokenizer == 'char' else ''
    tok, said, name = Tokenizer(tokenizer, chars), '', 'rows' if unit == 'rows' else 'paragraphs'
    meta = {'tokenizer': tokenizer, 'chars': chars, 'unit': unit}
    for split, texts, use in (('train', train, 'to train'), ('val', val, 'held out')):
        ids = np.array([i for t in texts for i in tok.encode(t) + [tok.eos]], dtype=np.uint16)
        ids.tofile(os.path.join(folder, f'{split}.bin.tmp'))
        meta[split] = {'texts': len(texts), 'tokens': len(ids),
                       'longest': max(np.diff(np.flatnonzero(ids == tok.eos), prepend=-1)).item(),
                       'sha256': hashlib.sha256(ids.tobytes()).hexdigest()}
        said += f"{len(texts)} {name}, {len(ids)} tokens {use}; "
    with open(os.path.join(folder, 'meta.json.tmp'), 'w') as f:
        json.dump(meta, f, indent=1)
    for file in ('train.bin', 'val.bin', 'meta.json'):          # meta.json last: it says "complete"
        os.replace(os.path.join(folder, f'{file}.tmp'), os.path.join(folder, file))
    print(f"data/{os.path.basename(folder)}: {said}{tok.base} symbols")

class Dataset:
    """A prepared corpus: tokenizer, memory-mapped ids, verify() and a fingerprint."""
    def __init__(self, name, prepare=False):
        self.name, self.folder = name, os.path.join(HERE, name)
        known = sorted(d for d in os.listdir(HERE) if os.path.isfile(f'{HERE}/{d}/prepare.py'))
        if name not in known:
            fail(f"no dataset '{name}'; there are {', '.join(known)}")
        path, script = os.path.join(self.folder, 'meta.json'), f'data/{name}/prepare.py'
        if not os.path.isfile(path) and prepare:
            run(['python', script])
        if not os.path.isfile(path):
            fail(f"dataset '{name}' is not prepared; run: python {script}")
        try:
            with open(path) as f:
                text = f.read()
            self.meta = json.loads(text)
            self.tok = Tokenizer(self.meta['tokenizer'], self.meta['chars'])
            self.ids = {split: np.memmap(os.path.join(self.folder, f'{split}.bin'), np.uint16, 'r')
                        for split in ('train', 'val')}
            for split, ids in self.ids.items():
                if len(ids) != self.meta[split]['tokens']:
                    raise ValueError(f"{split}.bin has {len(ids)} tokens, meta.json says "
                                     f"{self.meta[split]['tokens']}")
        except (OSError, ValueError, KeyError) as e:
            fail(f"data/{name} is damaged ({e}); prepare it again: python {script}")
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.ends = {split: np.flatnonzero(ids == self.tok.eos) for split, ids in self.ids.items()
                     if self.meta['unit'] == 'rows'}
        self.verify = runpy.run_path(f'{self.folder}/prepare.py').get('verify')

    def batch(self, split, n, block_size, rng):
        """n random rows as int64 (n, T=block_size): windows of the text, or rows with padding."""
        ids = self.ids[split]
        if self.meta['unit'] == 'windows':
            starts = rng.integers(len(ids) - block_size + 1, size=n)            # (n,)
            return torch.from_numpy(ids[starts[:, None] + np.arange(block_size)].astype(np.int64))
        rows = rng.integers(len(self.ends[split]), size=n)                      # (n,)
        stops = self.ends[split][rows] + 1
        starts = np.where(rows > 0, self.ends[split][rows - 1] + 1, 0)
        at = starts[:, None] + np.arange(block_size)                            # (n, T)
        inside = at < stops[:, None]
        tokens = np.where(inside, ids[np.minimum(at, len(ids) - 1)], self.tok.pad)
        return torch.from_numpy(tokens.astype(np.int64))

def blanks(tokens, tok, rng, kind='random', low=0.2, high=0.6, span=4):
    """Chooses what the policy must fill: mask (n, T) bool, at least one True in each row.
    The share of a row's tokens that becomes blank is uniform in [low, high], drawn per row.
    kind: 'random' positions | 'span': runs of `span` positions | 'suffix': the end of the row.
    Padding is never blank, and the end of the row only in a suffix. Raises ValueError."""
    if kind not in ('random', 'span', 'suffix') or not 0 <= low <= high <= 1 or span < 1:
        raise ValueError(f"blanks: kind={kind!r}, low={low}, high={high}, span={span}; expected "
                         "'random', 'span' or 'suffix', 0 <= low <= high <= 1 and span >= 1")
    n, T = tokens.shape
    free = (tokens != tok.pad).numpy()                                          # (n, T)
    if kind != 'suffix':
        free &= (tokens != tok.eos).numpy()
    count = rng.uniform(low, high, size=(n, 1)) * free.sum(1, keepdims=True)    # (n, 1)
    count = np.clip(np.rint(count), 1, None)
    width = span if kind == 'span' else 1
    cell = (np.arange(T) + rng.integers(width, size=(n, 1))) // width           # (n, T) which run
    key = np.take_along_axis(rng.random((n, T // width + 2)), cell, 1)          # a key per run
    if kind == 'suffix':
        key = np.broadcast_to(-np.arange(T), (n, T))
    order = np.argsort(np.where(free, key, 2.0), axis=1, kind='stable')
    rank = np.argsort(order, axis=1, kind='stable')
    return torch.from_numpy((rank < count) & free)

def texts(tok, tokens, mask, rows, causal):
    """Prompts and completions as two lists of N strings, for verify() and reward functions.
    tokens, mask: prompts (B, T); rows (N, T). fill: the row with '_' for its blanks, and the whole
    completed row. causal: what stands left of the first blank, and everything from there on. The
    line feed that stands for a closing end of row is left out."""
    k, tokens, mask, rows = len(rows) // len(tokens), tokens.cpu(), mask.cpu(), rows.tolist()
    if causal:
        first = mask.int().argmax(1).tolist()                                   # (B,)
        left = [tok.decode(t[:i]) for t, i in zip(tokens.tolist(), first)]
        right = [tok.decode(row[first[n // k]:]).removesuffix('\n') for n, row in enumerate(rows)]
        return [text for text in left for _ in range(k)], right
    left = [tok.decode(t) for t in tokens.masked_fill(mask, tok.mask).tolist() for _ in range(k)]
    right = [tok.decode(row) for row in rows]
    given = [text.endswith('\n') for text in left]                             # so it is in both
    return [[t[:-1] if cut else t for t, cut in zip(side, given)] for side in (left, right)]

def prompts(data, c, split, n, rng, wanted=None):
    """n prompts under the knobs c: tokens (n, T), mask (n, T) bool, uniforms (n, T, k) in [0, 1).
    wanted(prompt, original) -> bool, if given, decides from the text which rows are taken."""
    found, causal = [], c['mode'] == 'causal'
    while sum(len(mask) for _, mask in found) < n:
        tokens = data.batch(split, n, c['block_size'], rng)
        mask = blanks(tokens, data.tok, rng, c['blank_kind'], c['blank_low'], c['blank_high'],
                      c['blank_span'])
        if wanted:
            pairs = zip(*texts(data.tok, tokens, mask, tokens, causal))
            good = torch.tensor([bool(wanted(*pair)) for pair in pairs])
            tokens, mask = tokens[good], mask[good]
        found.append((tokens, mask))
        if len(found) == 500:
            fail(f"prompt_filter took fewer than {n} of {500 * n} rows")
    tokens, mask = (torch.cat(part)[:n] for part in zip(*found))
    if causal and c['blank_kind'] == 'suffix':  # a completion may be longer than the original was
        at, first = torch.arange(tokens.size(1)), mask.int().argmax(1, keepdim=True)
        stop = first + (c['max_new_tokens'] or tokens.size(1))
        mask, tokens = (at >= first) & (at < stop), tokens.masked_fill(at >= stop, data.tok.pad)
    uniforms = rng.random((*tokens.shape, c['group_size']), dtype='float32')
    return tokens, mask, torch.from_numpy(uniforms)

@functools.lru_cache(maxsize=4)
def vocabulary(folder):
    """Words of a corpus's training text, their beginnings and their ends, as three sets."""
    data = Dataset(os.path.basename(folder))
    words = set(re.findall('[A-Za-z]+', data.tok.decode(data.ids['train'])))
    starts = {w[:i] for w in words for i in range(1, len(w) + 1)}
    return words, starts, {w[i:] for w in words for i in range(len(w))}

def known_words(prompt, completion, folder):
    """The share, in [0, 1], of the words touched by a blank that occur in the training text.
    Touched: a blank lies in the word or beside it. A word that the edge of the row cuts counts
    if some word of the text begins (or ends) so; nothing between two spaces is an unknown word.
    A row without touched words gives 1.0."""
    words, starts, ends = vocabulary(folder)
    if BLANK not in prompt:                                     # a completion after a prompt
        text, spans = prompt + completion, [(len(prompt), len(prompt) + len(completion))]
    elif len(prompt) == len(completion):                        # one character per blank
        text, spans = completion, [m.span() for m in re.finditer(f'{BLANK}+', prompt)]
    else:                                                       # byte pairs: find what was given
        given = '(.*?)'.join(map(re.escape, re.split(f'{BLANK}+', prompt)))
        match, text = re.fullmatch(given, completion, re.DOTALL), completion
        spans = match.regs[1:] if match else [(0, len(text))]
    hits = []
    for word in re.finditer(r'[A-Za-z]+|(?<= )(?= )', text):
        a, b = word.span()
        if any(a <= stop and start <= b for start, stop in spans):
            cut = ends if a == 0 else starts if b == len(text) else words
            hits.append(word.group() in cut)
    return sum(hits) / len(hits) if hits else 1.0
