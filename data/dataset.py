"""Text as token ids: the tokenizer, datasets, blanks, prompts; and sequences as text again.

A dataset is a module of this folder, a file of JSON lines, or a text file. It has running text,
from which windows are cut, or pairs of a prompt and its answer."""
import functools
import importlib
import os
import pkgutil
import re
import statistics
import zlib
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from common import fail_unknown, print0
from data.pairs import is_answer, read_pairs
from data.prose import BLANK, checker, paragraphs_of

# letters: n prompts or sequences | T tokens in a sequence | V base ids
# B prompts, k completions of each: N = B * k sequences


def rng_for(seed, purpose, step=0):
    """Return a numpy generator that depends on (seed, purpose, step) and on nothing else.

    Batches, blanks and samples are drawn from such generators (weights by torch.manual_seed). So a
    resumed run draws what an uninterrupted one would have drawn, and no draw depends on how many
    others came before it."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), step])


# ---- tokenizer -----------------------------------------------------------------------------------


class Tokenizer:
    """Characters, or the byte pairs of GPT-2.

    vocab_size: V, the number of ids that a network can produce. One of them is eos, which ends a
    text. The next three ids are mask (a blank), bos (the beginning) and pad. Networks only read
    them, and no text has them."""

    def __init__(self, kind, chars=''):
        """kind: 'char', with all characters of the vocabulary in chars, or 'gpt2'."""
        # id 0 is eos, so that the characters begin with 1
        self.vocabulary = {'kind': kind, 'chars': chars}        # Tokenizer(**vocabulary): a copy
        self.ids = {char: i for i, char in enumerate(chars, 1)}
        self.eos = 0
        pieces = [b'\n'] + [char.encode() for char in chars]    # the bytes of each id
        if kind == 'gpt2':
            import tiktoken
            bpe = tiktoken.get_encoding('gpt2')
            self.eos = bpe.eot_token            # the last id
            pieces = bpe.decode_tokens_bytes(range(self.eos)) + [b'\n']
            self.encode = self.encode_prompt = bpe.encode_ordinary
        self.vocab_size = len(pieces)
        self.mask, self.bos, self.pad = range(self.vocab_size, self.vocab_size + 3)
        self.pieces = pieces + [BLANK.encode(), b'', b'']

    def encode(self, text):
        """Return a list of ids."""
        unknown = set(text) - set(self.ids)
        assert not unknown, f"the vocabulary lacks the characters {unknown} of {text!r:.80}"
        return [self.ids[char] for char in text]

    encode_prompt = encode                      # a pretrained chat model has its own way

    def decode(self, ids):
        """Return text. eos is shown as a line feed, bos and pad are not shown."""
        return b''.join(self.pieces[i] for i in ids).decode(errors='replace')


def make_tokenizer(kind, dataset):
    """Return the Tokenizer of a recipe. kind: 'char', the characters of the dataset | 'gpt2' |
    another dataset, whose characters are taken, so that two networks fit each other."""
    if kind == 'gpt2':
        return Tokenizer('gpt2')
    train, held_out, _ = read_texts(dataset if kind == 'char' else kind)
    chars = set().union(*map(''.join, train + held_out))
    assert BLANK not in chars, f"{dataset} has the sign {BLANK!r}, which stands for a blank"
    return Tokenizer('char', ''.join(sorted(chars)))


# ---- datasets ------------------------------------------------------------------------------------


@functools.cache
def read_texts(dataset):
    """Return (training texts, held-out texts, verify() or None) of a dataset.

    dataset: a module of data/, such as 'arithmetic' | FILE.jsonl, see data/pairs.py | FILE.txt. A
    text is a string of running text, or a pair of strings (prompt, answer)."""
    modules = {module.name for module in pkgutil.iter_modules([os.path.dirname(__file__)])}
    verify = None
    if dataset in modules:
        module = importlib.import_module(f'data.{dataset}')
        train, held_out = module.texts()
        verify = getattr(module, 'verify', None)
    elif not os.path.isfile(dataset):
        fail_unknown('there is no dataset', dataset, [*modules, *os.listdir()])
    elif dataset.endswith('.jsonl'):
        train, held_out = hold_out(read_pairs(dataset))
        if any(answer for _, answer in train):
            verify = is_answer
    else:
        train, held_out = hold_out(paragraphs_of(dataset))
    both = set(train) & set(held_out)
    if both:
        print0(f"{dataset}: {len(both)} held-out texts are left out of the training texts")
        train = [text for text in train if text not in both]
    assert train and held_out, (
        f"{dataset}: {len(train)} training texts, {len(held_out)} held out: expected some of each")
    if verify is None and type(train[0]) is str:
        verify = checker(train)
    return train, held_out, verify


def hold_out(texts):
    """Split texts into (training, held out). A hash of the prompt chooses a tenth, so that equal
    prompts stay together."""
    parts = ([], [])
    for text in texts:
        prompt = text if type(text) is str else text[0]
        parts[zlib.crc32(prompt.encode()) % 10 == 0].append(text)
    return parts


class Dataset:
    """The texts of a dataset as rows of token ids.

    rows[split] (n, T), split 'train' or 'val': of running text all windows of T tokens; of pairs
    each prompt with its answer and eos, padded. answer_starts[split] (n,): where each answer
    begins; T in running text, which has none. constant_answer: the share of held-out pairs that
    have the commonest answer of the training pairs."""

    def __init__(self, name, tok, block_size=0, max_new_tokens=0):
        """block_size: the largest T; 0: no limit for pairs, 64 tokens for running text. Within the
        limit, there is room for the longest answer, and for max_new_tokens, after any prompt."""
        train, held_out, self.verify = read_texts(name)
        texts = {'train': train, 'val': held_out}
        self.tok = tok
        self.rows = {}
        self.answer_starts = {}
        self.constant_answer = 0.0
        # Running text: one long stream of ids. unfold() gives all its windows without a copy.
        if type(train[0]) is str:
            self.block_size = T = block_size or 64
            for split in texts:
                stream = []
                for text in texts[split]:
                    stream += tok.encode(text) + [tok.eos]
                assert len(stream) >= T, f"{name}: '{split}' has {len(stream)} tokens; expected {T}"
                self.rows[split] = torch.tensor(stream).unfold(0, T, 1)
                self.answer_starts[split] = torch.full((len(self.rows[split]),), T)
            return
        # Pairs: each is one row, padded to the longest.
        pairs = {}
        for split in texts:
            pairs[split] = [(tok.encode_prompt(prompt), tok.encode(answer) + [tok.eos])
                            for prompt, answer in texts[split]]
        prompts, answers = zip(*pairs['train'], *pairs['val'])
        longest = max(map(len, prompts)) + max(max_new_tokens, *map(len, answers))
        self.block_size = T = min(block_size or longest, longest)
        for split in pairs:
            # A pair that is cut would teach an answer without its end.
            n_tokens = max(len(prompt + answer) for prompt, answer in pairs[split])
            assert n_tokens <= T, f"{name}: a pair has {n_tokens} tokens; expected {T} or less"
            self.rows[split] = torch.tensor([(prompt + answer + [tok.pad] * T)[:T]
                                             for prompt, answer in pairs[split]])       # (n, T)
            starts = [len(prompt) for prompt, _ in pairs[split]]
            self.answer_starts[split] = torch.tensor(starts)                            # (n,)
        # A policy that always gives the commonest answer of the training pairs is a weak baseline,
        # but on small tasks it can be hard to beat.
        commonest = statistics.mode(answer for _, answer in train)
        if commonest:
            hits = [answer == commonest for _, answer in held_out]
            self.constant_answer = sum(hits) / len(hits)

    def batch(self, split, n, rng):
        """Return n rows (n, T), and where their answers begin (n,). Rows of 'train' are random; of
        'val' each comes at most once."""
        size = len(self.rows[split])
        index = rng.integers(size, size=n) if split == 'train' else rng.permutation(size)[:n]
        return self.rows[split][index], self.answer_starts[split][index]

    def prompts(self, split, n, k, seed, step, causal, max_new_tokens, fill_order, *blank_knobs,
                purpose=''):
        """Return n Prompts for k completions each, a function of (seed, purpose, split, step).
        fill_order: 'random' | 'left' to right. max_new_tokens: 0: no limit but T. blank_knobs: see
        blanks()."""
        rng = rng_for(seed, purpose + split, step)
        original, answer_start = self.batch(split, n, rng)                      # (n, T), (n,)
        tokens = original
        mask = blanks(tokens, answer_start, self.tok, rng, causal, *blank_knobs)
        if causal:
            # All from the first blank on is generated, and may be longer than the original.
            at = torch.arange(self.block_size)
            first = mask.int().argmax(1, keepdim=True)                          # (n, 1)
            stop = first + (max_new_tokens or self.block_size)
            mask = (at >= first) & (at < stop)
            tokens = tokens.masked_fill(at >= stop, self.tok.pad)
        # Completion j has the same numbers whatever k is: k comes first when they are drawn, so a
        # larger k only adds numbers at the end. The order of the blanks has numbers of its own, so
        # it does not depend on those that sample.
        shape = (k, *tokens.shape)
        uniforms = rng_for(seed, f'{split} samples', step).random(shape, np.float32)    # (k, n, T)
        order = rng_for(seed, f'{split} order', step).random(shape[1:], np.float32)     # (n, T)
        if fill_order == 'left':
            order.sort()
        return Prompts(tokens, mask, original, torch.from_numpy(uniforms).transpose(0, 1),
                       torch.from_numpy(order), self.tok)


# ---- prompts: sequences with blanks --------------------------------------------------------------


def blanks(tokens, answer_start, tok, rng, causal, blank_kind, blank_low, blank_high, blank_span):
    """Return a mask (n, T) bool of what to fill in tokens (n, T).

    blank_kind: 'random': runs of blank_span positions anywhere | 'suffix': the end of the sequence
    | 'answer': everything from answer_start (n,) on. The first two take a share of each sequence,
    uniform in [blank_low, blank_high], but at least one position. A suffix includes eos, and so
    does an answer that is generated from left to right (causal)."""
    n, T = tokens.shape
    assert not (causal and blank_kind == 'random'), (
        "blank_kind = 'random': a causal generator needs 'suffix' or 'answer'")
    assert blank_low <= blank_high <= 1, f"expected blank_low <= blank_high = {blank_high} <= 1"
    # Only a suffix or generated text includes eos. Else it stays, as it says how long the text is.
    may_be_blank = tokens != tok.pad                                                    # (n, T)
    if blank_kind != 'suffix' and not causal:
        may_be_blank &= tokens != tok.eos
    if blank_kind == 'answer':
        mask = may_be_blank & (torch.arange(T) >= answer_start[:, None])                # (n, T)
        assert mask.any(1).all(), (
            "blank_kind = 'answer': expected pairs; only a causal generator needs no answers")
        return mask
    # Positions with the lowest keys are blank. 'random': the positions of a run share a random key,
    # and runs begin at a random offset, so that their edges can be anywhere. 'suffix': the last
    # positions have the lowest keys.
    run = (np.arange(T) + rng.integers(blank_span, size=(n, 1))) // blank_span          # (n, T)
    key_of_run = rng.random((n, T // blank_span + 2))
    key = torch.from_numpy(np.take_along_axis(key_of_run, run, 1))                      # (n, T)
    if blank_kind == 'suffix':
        key = -torch.arange(T).expand(n, T)
    # argsort twice gives each position its place in the order of the keys. The first `count` places
    # are blank.
    place = key.masked_fill(~may_be_blank, 2).argsort(dim=1, stable=True).argsort(dim=1)
    share = torch.from_numpy(rng.uniform(blank_low, blank_high, size=(n, 1)))
    count = (share * may_be_blank.sum(1, keepdim=True)).round().clamp(min=1)            # (n, 1)
    return (place < count) & may_be_blank


@dataclass
class Prompts:
    """n prompts, and the random numbers with which each of them is completed k times."""
    tokens: Tensor      # (n, T) ids; in the blanks the original text
    mask: Tensor        # (n, T) bool: the blanks
    original: Tensor    # (n, T) ids of the text that the prompts were made from
    uniforms: Tensor    # (n, k, T) in [0, 1): completion j takes [:, j]
    order: Tensor       # (n, T) random keys; several passes fill blanks with low keys first
    tok: Tokenizer

    def __len__(self):
        return len(self.tokens)

    def map(self, change):
        """Return the same Prompts with each tensor changed."""
        return replace(self, **{name: change(value) for name, value in vars(self).items()
                                if name != 'tok'})

    def to(self, device):
        return self.map(lambda tensor: tensor.to(device))

    def __getitem__(self, index):
        return self.map(lambda tensor: tensor[index])


def prompts_of_text(text, prompts, causal, max_new_tokens=0):
    """Return the first of some Prompts with a text that a user typed in its place. fill: '_' is a
    blank; causal: the text is continued."""
    tok = prompts.tok
    T = prompts.tokens.size(1)
    if causal:
        ids = tok.encode_prompt(text)
        end = [tok.mask] * (max_new_tokens or T)
    else:
        # Text between blanks is encoded by itself, so that no token spans a blank.
        ids = []
        for part in re.split(f'([_{BLANK}])', text):
            ids += [tok.mask] if part in ('_', BLANK) else tok.encode(part)
        end = [tok.eos]
    row = (ids + end + [tok.pad] * T)[:T]
    assert len(ids) <= T, f"{text!r} has {len(ids)} tokens; expected {T} at most"
    assert tok.mask in row, f"{text!r}: expected something to fill ('_' is a blank)"
    tokens = torch.tensor([row])                                                # (1, T)
    return replace(prompts[:1], tokens=tokens, mask=tokens == tok.mask, original=tokens)


# ---- sequences as text again ---------------------------------------------------------------------


def texts_of(prompts, sequences, causal):
    """Return three lists of N strings for Prompts (B) and sequences (N, T): prompts, completions,
    and originals, the dataset's own completions.

    causal: the prompt, and what follows it, up to the end of the text. fill: the sequence with
    BLANK in its blanks, and the whole sequence; an eos that was sampled is shown. Padding, and the
    eos that ends a text, are not shown."""
    tok = prompts.tok
    B, T = prompts.tokens.shape
    masked = prompts.tokens.masked_fill(prompts.mask, tok.mask).tolist()
    # of each prompt the original, and then its completions; all of them are cut by the same rule
    groups = torch.cat((prompts.original[:, None], sequences.view(B, -1, T)), 1).tolist()
    table = []
    for ids, group in zip(masked, groups):
        if causal:
            start = ids.index(tok.mask)
            prompt = ids[:start]
            rows = [row[start:(row + [tok.eos]).index(tok.eos, start)] for row in group]
        else:
            stop = T - ids.count(tok.pad)
            if ids[stop - 1] == tok.eos:
                stop -= 1
            prompt = ids[:stop]
            rows = [row[:stop] for row in group]
        original, *completions = map(tok.decode, rows)
        table += [(tok.decode(prompt), completion, original) for completion in completions]
    return [list(column) for column in zip(*table)]
