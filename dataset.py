"""Text as token ids: the tokenizer, datasets, blanks, prompts; and completions as text again.

A dataset is a module of data/, a file of JSON lines, or a text file. It has running text,
from which windows are cut, or records: prompts, their answers, and columns of the user's own."""
import copy
import functools
import importlib
import itertools
import json
import os
import pkgutil
import re
import zlib
from pathlib import Path

import numpy as np
import torch

from rollout import Prompts
from run.command import fail_unknown, reading

BLANK = '_'                 # a blank, as people type it and see it
WORD = r'[^\W\d_]+'         # letters of any alphabet

# letters: n prompts or sequences | T tokens in a sequence | V base ids


def rng_for(seed, purpose, step=0):
    """Return a numpy generator that depends on (seed, purpose, step) and on nothing else.

    Batches, blanks and samples are drawn from such generators (weights by torch.manual_seed). So a
    resumed run draws the numbers of an uninterrupted one, and no draw depends on how many others
    came before it."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), step])


# ---- tokenizer -----------------------------------------------------------------------------------


class Tokenizer:
    """Characters, or the byte pairs of GPT-2.

    vocab_size: V, the number of ids that a network can produce. One of them is eos, which ends a
    text. The next three ids are blank_id, bos (the beginning) and pad. Networks only read them, and
    no text has them."""

    def __init__(self, kind, chars=''):
        """kind: 'char', with all characters of the vocabulary in chars, or 'gpt2'."""
        self.vocabulary = {'kind': kind, 'chars': chars}        # Tokenizer(**vocabulary): a copy
        # id 0 is eos, so that the characters begin with 1
        self.ids = {char: i for i, char in enumerate(chars, 1)}
        self.eos = 0                            # people see it as a line feed
        pieces = [b'\n'] + [char.encode() for char in chars]    # the bytes of each id
        if kind == 'gpt2':
            # 50,257 pieces of words; the first use downloads them
            import tiktoken
            bpe = tiktoken.get_encoding('gpt2')
            self.eos = bpe.eot_token            # the last id
            pieces = bpe.decode_tokens_bytes(range(self.eos)) + [b'\n']
            self.encode = bpe.encode_ordinary   # instead of the method below
        self.vocab_size = len(pieces)
        self.blank_id, self.bos, self.pad = range(self.vocab_size, self.vocab_size + 3)
        self.pieces = pieces + [BLANK.encode(), b'', b'']

    def encode(self, text):
        """Return a list of ids."""
        unknown = set(text).difference(self.ids)
        assert not unknown, (
            f"the network's vocabulary lacks the characters {sorted(unknown)} of {text!r:.80}; "
            f"{BLANK!r} is a blank where prompts have marked ones, and no character elsewhere")
        return [self.ids[char] for char in text]

    def decode(self, ids):
        """Return text. eos is shown as a line feed, bos and pad are not shown."""
        return b''.join(self.pieces[i] for i in ids).decode(errors='replace')

    def text_of(self, ids):
        """Return the text of a list of ids, without padding and the eos that ends it."""
        ids = [i for i in ids if i != self.pad]
        if ids[-1:] == [self.eos]:
            ids.pop()
        return self.decode(ids)


def make_tokenizer(kind, dataset):
    """Return the Tokenizer of a network to be trained. kind: 'char', the characters of the dataset
    | 'gpt2' | another dataset, whose characters are taken, so that two networks fit each other."""
    if kind == 'gpt2':
        return Tokenizer('gpt2')
    train, held_out, _ = read_texts(dataset if kind == 'char' else kind)
    # of all texts, so that held-out ones can be encoded, too
    chars = set()
    for text in train + held_out:
        chars.update(*contents(text))
    return Tokenizer('char', ''.join(sorted(chars - {BLANK})))      # BLANK is no character


# ---- datasets ------------------------------------------------------------------------------------


@functools.cache
def read_texts(dataset):
    """Return (training texts, held-out texts, verify() or None) of a dataset.

    dataset: a module of data/, such as 'arithmetic' | FILE.jsonl, see read_records() | FILE.txt. A
    text is a string of running text, or a record {'prompt': ..., 'answer': ...}."""
    folder = Path(__file__).with_name('data')
    modules = {module.name for module in pkgutil.iter_modules([str(folder)])}
    verify = None
    if dataset in modules:
        with reading(f'data/{dataset}.py'):
            module = importlib.import_module(f'data.{dataset}')
            assert hasattr(module, 'texts'), f"data/{dataset}.py has no function texts()"
            lists = module.texts()
        with reading(f'data/{dataset}.py, what texts() returns,'):
            train, held_out = [list(map(as_record, texts)) for texts in lists]
            json.dumps([train, held_out])       # raises if a column is a set, say
        verify = getattr(module, 'verify', None)
        assert verify is None or callable(verify), f"data/{dataset}.py: verify is no function"
    elif not os.path.isfile(dataset):
        fail_unknown('expected a module of data/ or a file (to try one: python -m extras.tasks '
                     'times 1000 > mine.jsonl), not', dataset, [*modules, *os.listdir()])
    elif dataset.endswith('.jsonl'):
        train, held_out = hold_out(read_records(dataset))
    elif dataset.endswith('.txt'):
        train, held_out = hold_out(paragraphs_of(dataset))
    else:
        raise AssertionError(
            f"dataset = {dataset}: expected a module of data/, FILE.jsonl or FILE.txt")
    # What stands in both lists is held out only: it must not be trained on.
    known = set(map(contents, held_out))
    train = [text for text in train if contents(text) not in known]
    assert train and held_out, (
        f"{dataset}: {len(train)} training texts, {len(held_out)} held out: expected some of each; "
        "more lines, more paragraphs (with empty lines between them), or a column `held_out` of "
        "true and false, which chooses them")
    texts = train + held_out
    assert len(set(map(type, texts))) == 1, (
        f"{dataset} has records and running text: expected only one of them")
    if verify is None and type(train[0]) is str:
        verify = checker(train)
    elif verify is None and any(record['answer'].strip() for record in texts):
        # is_answer() compares with the answer, but for spaces around it. If a record had none, an
        # empty completion would be right.
        for record in texts:
            assert record['answer'].strip(), (
                f"{record.get('line', record)} has no answer, and others have one: expected all or "
                "none")
        verify = is_answer
    return train, held_out, verify


def contents(text):
    """Return the strings that are learned: a text, or prompt and answer of a record."""
    return (text,) if type(text) is str else (text['prompt'], text['answer'])


def hold_out(texts):
    """Split texts into (training, held out). A hash of the prompt chooses a tenth, so that equal
    prompts stay together. A record's column `held_out`, true or false, takes the place of the hash.
    """
    parts = ([], [])
    for text in texts:
        record = {'prompt': text} if type(text) is str else text
        chosen = record.get('held_out', zlib.crc32(record['prompt'].encode()) % 10 == 0)
        assert type(chosen) is bool, (
            f"{record['line']}: held_out = {chosen!r}: expected true or false")
        parts[chosen].append(text)              # False is 0, True is 1
    return parts


def check_blanks(texts, blank_kind, blank_low, blank_high):
    """Refuse blanks that the texts cannot have."""
    assert blank_low <= blank_high <= 1, f"expected blank_low <= blank_high = {blank_high} <= 1"
    allowed = ('random', 'answer', 'marked')
    if type(texts[0]) is str:                   # running text
        allowed = ('random', 'suffix')
    assert blank_kind in allowed, (
        f"blank_kind = '{blank_kind}': for these texts expected one of {allowed}")


class Dataset:
    """Texts as rows of token ids, and the prompts that are made from them.

    rows (n, T): of running text all windows of T tokens; of records each prompt with its answer and
    eos, padded. rows_of[split], split 'train' or 'val': the numbers of its rows. shown (n, T): the
    rows of records with blank_id in the blanks. (Blanks that are 'random' or a 'suffix' are drawn
    anew for each step instead.) examples: a dict for each row, with what rewards can ask for."""

    def __init__(self, train, held_out, tok, causal, block_size=0, *, max_new_tokens=0,
                 chat_template=False, n_fill_steps=1, fill_order='random', likelihood='trajectory',
                 epochs=1, blank_kind='random', blank_low=0.2, blank_high=0.6, blank_span=1,
                 **other_knobs):
        """train, held_out: lists of texts, see read_texts(). causal: prompts are continued from
        left to right. block_size: the largest T; 0: 1024 tokens for records, 64 for running text.
        Within the limit, there is room for the longest answer, and for max_new_tokens, after
        any prompt. The rest are knobs of a script, which hands over all that it has."""
        self.tok = tok
        self.causal = causal
        self.max_new_tokens = max_new_tokens
        self.chat_template = chat_template
        self.fill_order = fill_order
        # random numbers of each token besides those that sample it, see Prompts
        self.n_decisions = n_fill_steps - 1 if fill_order == 'learned' else 0
        self.n_masks = 2 * epochs if likelihood != 'trajectory' else 0
        self.draw_blanks = functools.partial(random_blanks, low=blank_low, high=blank_high,
                                             span=blank_span)
        check_blanks(train, blank_kind, blank_low, blank_high)
        is_text = type(train[0]) is str
        # A causal network continues running text at its end, and a pair by its answer.
        self.blank_kind = blank_kind
        if causal and blank_kind == 'random':
            self.blank_kind = 'suffix' if is_text else 'answer'
        has_chat = hasattr(tok, 'encode_chat') and not is_text and blank_kind != 'marked'
        assert has_chat or not chat_template, (
            "chat_template: expected a pretrained generator, and prompts without marked blanks")
        if is_text:
            self.make_windows(train, held_out, block_size or 64)
            return
        self.make_rows(train, held_out, block_size)
        if causal:                              # room after the longest prompt
            blanks = (self.shown == tok.blank_id).int()
            room = self.block_size - int(blanks.argmax(1).max())
            assert room >= max_new_tokens, (
                f"max_new_tokens = {max_new_tokens}, but after the longest prompt the network has "
                f"room for {room} tokens: see block_size in pretrain.py")

    def make_windows(self, train, held_out, T):
        """Join each list of texts to a stream of ids, and cut all its windows of T tokens."""
        self.block_size = T
        self.rows_of = {}
        stream = []
        # Windows that begin in the training texts and end in those that are held out belong to no
        # split.
        for split, texts in (('train', train), ('val', held_out)):
            start = len(stream)
            for text in texts:
                stream += self.encode(text) + [self.tok.eos]
            self.rows_of[split] = np.arange(start, len(stream) - T + 1)
            assert len(self.rows_of[split]) > 0, f"'{split}' has fewer than {T} tokens"
        self.rows = torch.tensor(stream).unfold(0, T, 1)    # all windows, without a copy
        self.examples = [{}] * len(self.rows)   # running text has no columns

    def make_rows(self, train, held_out, block_size):
        """Encode each record as a row, and once more with blank_id in its blanks."""
        records = train + held_out
        self.rows_of = {'train': np.arange(len(train)),
                        'val': np.arange(len(train), len(records))}
        columns = dict.fromkeys(itertools.chain(*records))      # one that is missing is None
        encode = self.encode_marked if self.blank_kind == 'marked' else self.encode_pair
        encoded = [encode(columns | record) for record in records]
        # After any prompt there is room for the longest answer.
        prompts, answers, _, self.examples = zip(*encoded)
        longest = max(map(len, prompts)) + max(self.max_new_tokens, *map(len, answers))
        self.block_size = T = min(block_size or 1024, longest)
        rows = []
        shown_rows = []
        for prompt, answer, shown, example in encoded:
            # A pair that is cut would teach an answer without its end.
            n = len(shown)
            assert n <= T, (
                f"{example.get('line', 'a pair')} has {n} tokens; expected {T} or less")
            padding = [self.tok.pad] * (T - n)
            rows.append(prompt + answer + padding)
            shown_rows.append(shown + padding)
        self.rows = torch.tensor(rows)
        self.shown = torch.tensor(shown_rows)

    def encode_pair(self, record):
        """Return three lists of ids, a prompt; its answer and eos; and both, with blank_id in the
        blanks; and the example of this record."""
        tok = self.tok
        assert record['answer'] or self.causal or self.blank_kind != 'answer', (
            f"{record.get('line', record)} has no answer; only a causal generator needs none")
        encode_prompt = tok.encode_chat if self.chat_template else self.encode
        prompt = encode_prompt(record['prompt'])
        answer = self.encode(record['answer'])
        if self.causal:                         # eos is generated, too
            return prompt, answer + [tok.eos], prompt + [tok.blank_id] * (len(answer) + 1), record
        # A completion is the whole text, so the answer is, too. Prompts.cases() makes the prompt,
        # because it shows the blanks.
        example = record | {'answer': tok.decode(prompt + answer)}
        del example['prompt']
        shown = prompt + [tok.blank_id] * len(answer) + [tok.eos]
        return prompt, answer + [tok.eos], shown, example

    def encode_marked(self, record):
        """Return the same for a prompt with marked blanks. Here the first list is the whole text
        (the answer, if there is one), and the second only eos."""
        tok = self.tok
        # Text between blanks is encoded by itself, so that no token spans a blank.
        shown = []
        for part in record['prompt'].split(BLANK):
            shown += self.encode(part) + [tok.blank_id]
        shown.pop()                             # no blank follows the last part
        text = self.encode(record['answer']) if record['answer'] else shown
        fits = [other in (id, tok.blank_id) for id, other in zip(text, shown)]
        assert tok.blank_id in shown, (
            f"{record.get('line', record)}: expected a blank, {BLANK!r}, for each token to fill")
        assert len(text) == len(shown) and all(fits), (
            f"{record.get('line', record)}: the answer is not the prompt with its blanks filled: "
            f"expected the whole text ({len(shown)} tokens, found {len(text)})")
        if record['answer']:
            record = record | {'answer': tok.decode(text)}
        return text, [tok.eos], shown + [tok.eos], record

    def encode(self, text):
        """Return the ids of a text, which may not have the sign of a blank if blanks are filled."""
        assert self.causal or BLANK not in text, (
            f"{text!r:.80} has the sign {BLANK!r}, which stands for a blank: replace it. (Prompts "
            "can mark their blanks with it, see blank_kind = 'marked'.)")
        return self.tok.encode(text)

    def typed_prompt(self, prompt, k, seed):
        """Return the Prompts of one prompt: causal, it is continued; else it has marked blanks."""
        data = copy.copy(self)
        data.blank_kind = 'answer' if self.causal else 'marked'
        data.max_new_tokens = self.max_new_tokens or self.block_size
        record = {'prompt': prompt, 'answer': '', 'line': 'the prompt'}
        data.make_rows([record], [], self.block_size)
        # a reward that asks for these gets none
        del data.examples[0]['answer'], data.examples[0]['line']
        return data.prompts('train', 1, k, seed)

    def prompts(self, split, n, k, seed, step=0, purpose=''):
        """Return n Prompts for k completions each, a function of (seed, split, step). purpose: a
        word that changes which texts and blanks are drawn; pretraining has its own."""
        tok = self.tok
        rng = rng_for(seed, purpose + split, step)
        # A training text may come again before all have come, a held-out one at most once.
        rows = self.rows_of[split]
        row = rng.choice(rows, n) if split == 'train' else rng.permutation(rows)[:n]
        row = torch.from_numpy(row)                                             # (n,)
        tokens = self.rows[row]                                                 # (n, T)
        if self.blank_kind in ('random', 'suffix'):
            # Only a suffix includes eos: a network that continues a text has to learn to stop. One
            # that fills blanks is shown eos, which tells it how long the text is.
            may_be_blank = tokens != tok.pad
            is_suffix = self.blank_kind == 'suffix'
            if not is_suffix:
                may_be_blank &= tokens != tok.eos
            blank = self.draw_blanks(may_be_blank, rng, is_suffix)
        else:
            blank = self.shown[row] == tok.blank_id
        if self.causal:
            # All from the first blank on is generated, also where the original ends and padding
            # follows: a completion may be longer.
            at = torch.arange(self.block_size)
            first = blank.int().argmax(1, keepdim=True)                         # (n, 1)
            stop = first + (self.max_new_tokens or self.block_size)
            blank = (at >= first) & (at < stop)
            tokens = tokens.masked_fill(at >= stop, tok.pad)
        # Drawn as (k, n, T), so that a larger group_size adds completions and changes none. The
        # order of the blanks has numbers of its own: it does not depend on those that sample.
        def draw(name, *shape):
            rng = rng_for(seed, f'{split} {name}', step)
            return torch.from_numpy(rng.random((*shape, *tokens.shape), np.float32))

        order = draw('order')
        if self.fill_order == 'left':
            order = order.sort(1).values        # keys that rise from left to right
        return Prompts(tokens, blank, draw('samples', k).transpose(0, 1), order,
                       draw('more', k, self.n_decisions).permute(2, 0, 1, 3),
                       draw('more', k, self.n_masks).permute(2, 0, 1, 3), row, self.examples,
                       tok, self.causal)


def random_blanks(may_be_blank, rng, suffix, low, high, span):
    """Return a mask (n, T) bool of blanks among the positions that may be blank (n, T): runs of
    `span` positions anywhere, or a suffix. A share of each sequence is blank, uniform in [low,
    high], but at least one position that may be."""
    n, T = may_be_blank.shape
    # Positions with the lowest keys are blank. The positions of a run share a random key, and runs
    # begin at a random offset, so that their edges can be anywhere. For span = 2 and offset 1, runs
    # and keys of T = 6 positions are     0 1 1 2 2 3     and     .7 .2 .2 .9 .9 .4
    run = (np.arange(T) + rng.integers(span, size=(n, 1))) // span                      # (n, T)
    key_of_run = rng.random((n, T // span + 2))         # with an offset, a run is cut at both ends
    key = torch.from_numpy(np.take_along_axis(key_of_run, run, 1))                      # (n, T)
    if suffix:                                  # the last positions have the lowest keys
        key = -torch.arange(T).expand(n, T)
    # argsort twice gives each position its place in the order of the keys. The first `count` places
    # are blank. Keys are below 1, so what may not be blank comes last.
    place = key.masked_fill(~may_be_blank, 2).argsort(dim=1, stable=True).argsort(dim=1)
    share = torch.from_numpy(rng.uniform(low, high, size=(n, 1)))
    count = (share * may_be_blank.sum(1, keepdim=True)).round().clamp(min=1)            # (n, 1)
    return (place < count) & may_be_blank


# ---- records: prompts and answers of your own ----------------------------------------------------


# A file with one JSON object a line:
#
#     {"prompt": "3h05m=", "answer": "185"}
#
# Objects without an answer, which then none may have, are prompts to be continued. Other names are
# columns, which rewards can ask for, and so is `line`, such as 'mine.jsonl, line 3'.


def read_text(path):
    """Return the text of a UTF-8 file."""
    try:
        return Path(path).read_text('utf-8-sig')
    except UnicodeDecodeError as e:
        line = 1 + e.object[:e.start].count(b'\n')
        raise AssertionError(f"{path}, line {line}: expected UTF-8, not {e.object[e.start:][:9]} "
                             f"({e.reason})") from e


def read_records(path):
    """Return the records of a file, dicts with 'prompt' and 'answer'. An error names the first line
    that is no record."""
    records = []
    for number, line in enumerate(read_text(path).split('\n'), 1):
        place = f'{Path(path).name}, line {number}'      # whichever folder it is in
        try:
            if line.strip():
                records.append(as_record({'line': place} | json.loads(line)))
        except Exception as e:
            why = repr(e)[:100].replace('line 1 ', '')      # json sees one line
            raise AssertionError(
                f'{path}, line {number}: expected {{"prompt": "12+35=", "answer": "047"}}, both in '
                f'quotes, or a prompt alone ({why})') from None
    return records


def as_record(text):
    """Return the record of a pair (prompt, answer), or of a dict; a string stays as it is."""
    if type(text) is str:
        return text
    if type(text) in (tuple, list):
        text = dict(zip(('prompt', 'answer'), text, strict=True))
    record = {'answer': ''} | text
    reserved = record.keys() & {'prompts', 'completion', 'completions', 'text', 'texts', 'ended'}
    assert not reserved, f"{reserved} cannot be columns: rewards get these from the run"
    (record['prompt'] + record['answer']).encode()          # raises if they are no text
    return record


def is_answer(completion, answer):
    """verify() of records: 1.0 if the completion is the answer, else 0.0."""
    return float(completion.strip() == answer.strip())


# ---- running text: the paragraphs of a file, and a check for unknown words ------------------------


def paragraphs_of(path):
    """Return the paragraphs of a UTF-8 text file, which are separated by empty lines."""
    return [part for part in re.split(r'\n\s*\n', read_text(path)) if part.strip()]


def checker(texts):
    """Return verify(prompt, text, ended): known_words() with the words of these texts."""
    return functools.partial(known_words, words_of(texts))


def words_of(texts):
    """Return a set: the words of texts between spaces, such as ' so ', and the parts that remain if
    the edge of a window cuts them, such as ' s', 'o ' and 'o'."""
    # The edge of a window, or of a completion, can cut a word anywhere.
    parts = set()
    for letters in set(re.findall(WORD, '\n'.join(texts))):
        word = f' {letters} '
        for i in range(len(word)):
            parts |= {word[:i + 1], word[i:], word[i:-1]}
    return parts


def known_words(words, prompt, text, ended):
    """Return the share of known words among those with a blank in or beside them; 0.0 if there are
    no such words.

    A word that the edge of the window cuts must begin or end a known word. Two spaces in a row
    count as an unknown word. Example: 'th_ c_t sat' -> 'the cqt sat' gives 0.5, because 'the' is
    known and 'cqt' is not; 'sat' was given."""
    if text.startswith(prompt):                 # it was continued
        if not text[len(prompt):].strip():      # to say nothing is no prose
            return 0.0
        text += ' ' * ended     # no edge of a window has cut the last word of a text that has ended
        spans = [(len(prompt), len(text))]
    elif len(prompt) == len(text):
        spans = [match.span() for match in re.finditer(f'{BLANK}+', prompt)]
    else:                                       # a token can have several characters
        spans = spans_between(re.split(f'{BLANK}+', prompt), text)
    spaced = re.sub(r'[\W\d_]', ' ', text)
    hits = []
    for word in re.finditer(WORD + '|(?<= )(?= )', text):
        left, right = word.span()
        # in a blank, or beside it; looked up with the spaces around it, which the window may lack
        if any(left <= stop and start <= right for start, stop in spans):
            hits.append(spaced[max(0, left - 1):right + 1] in words)
    return sum(hits) / max(1, len(hits))


def spans_between(pieces, text):
    """Return (start, stop) of what stands between the pieces of a text, each of which is as far to
    the left as it can be, but the last at the end; the whole text if it has not these pieces."""
    first, *others = pieces
    start = len(first)
    spans = []
    for i, piece in enumerate(others, 1):
        stop = text.rfind(piece) if i == len(others) else text.find(piece, start)
        if stop < start:
            return [(0, len(text))]
        spans.append((start, stop))
        start = stop + len(piece)
    return spans
