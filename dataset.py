"""Text as token ids: the tokenizer, datasets, blanks, prompts; and completions as text again.

A dataset is a module of data/ or a Python file like these, a file of JSON lines, or a text file. It
has running text, from which windows are cut, or records: prompts, their answers, and columns of the
user's own."""
import copy
import functools
import itertools
import json
import os
import re
import runpy
import zlib
from pathlib import Path

import numpy as np
import torch

from rollout import Prompts
from run.checkers import is_answer, known_words, words_of
from run.command import by_name, fail, fail_unknown, reading, said_by
from run.machine import print0

BLANK = '_'                 # a blank, as people type it and see it

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
            self.encode = lambda text, goes_on=False: bpe.encode_ordinary(text)
        self.vocab_size = len(pieces)
        self.blank_id, self.bos, self.pad = range(self.vocab_size, self.vocab_size + 3)
        self.pieces = pieces + [BLANK.encode(), b'', b'']

    def encode(self, text, goes_on=False):
        """Return a list of ids. goes_on: the text follows another one (see hf.py)."""
        unknown = set(text).difference(self.ids)
        assert not unknown, (
            f"the network's vocabulary lacks the characters {sorted(unknown)} of {text!r:.80}")
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

    completion_of = text_of     # of what a network wrote; a pretrained one's special tokens go


def make_tokenizer(kind, dataset):
    """Return the Tokenizer of a network to be trained. kind: 'char', the characters of the dataset
    | 'gpt2' | another dataset, whose characters are taken, so that two networks fit each other."""
    if kind == 'gpt2':
        return Tokenizer('gpt2')
    train, held_out, *_ = read_texts(dataset if kind == 'char' else kind)
    chars = set()
    for text in train + held_out:               # so that held-out ones can be encoded, too
        chars.update(text if type(text) is str else text['prompt'] + (text['answer'] or ''))
    return Tokenizer('char', ''.join(sorted(chars - {BLANK})))      # BLANK is no character


# ---- datasets ------------------------------------------------------------------------------------


def path_of(dataset):
    """Return the file of a dataset."""
    return dataset if '.' in dataset else f'data/{dataset}.py'


@functools.cache
def read_texts(dataset):
    """Return (training texts, held-out texts, verify() or None, reply() or None) of a dataset.

    dataset: a module of data/, such as 'arithmetic' | FILE.py, a module of your own | FILE.jsonl,
    see read_records() | FILE.txt. A module has texts(), which returns two lists, and it may have
    verify() and reply(). A text is a string of running text, or a record {'prompt': ...,
    'answer': ...}. Without a verify() of a module, what is right is running text of known words, or
    the answer; None if there are no answers."""
    path = path_of(dataset)
    kind = Path(path).suffix
    if not os.path.isfile(path) or kind not in ('.py', '.jsonl', '.txt'):
        fail_unknown('expected a module of data/, FILE.py, FILE.jsonl or FILE.txt (to try one: '
                     'python -m extras.tasks times 1000 > mine.jsonl), not', dataset,
                     [module.stem for module in Path('data').glob('*.py')] + os.listdir())
    if kind == '.py':
        with reading(f'{path}, whose texts() should return two lists of pairs or of strings,'):
            module = runpy.run_path(path)
            train, held_out = [list(map(as_record, texts)) for texts in module['texts']()]
            kinds = {*map(type, train + held_out)}
            assert len(kinds) < 2, f"texts() of {path} mixes {kinds}"
        verify, reply = map(module.get, ('verify', 'reply'))
        for function in filter(None, (verify, reply)):
            by_name(function)                   # or it is refused
        same = repr             # a game can have few tasks: all are in both lists
    else:
        texts = read_records(path) if kind == '.jsonl' else paragraphs_of(path)
        train, held_out = hold_out(texts)
        verify = reply = None
        same = task_of          # what a file holds out is not trained on, whatever its answer says
    n_all = len(train)
    if not reply:                               # games are no answers
        known = set(map(same, held_out))
        train = [text for text in train if same(text) not in known]
    if len(train) < n_all:
        print0(f"{dataset}: {n_all - len(train)} of {n_all} texts to learn from are left out, "
               "because they are held out, too")
    assert train and held_out, (
        f"{dataset}: {len(train)} training texts, {len(held_out)} held out: expected some of each; "
        "more lines, more paragraphs (with empty lines between them), or a column `held_out` of "
        "true and false, which chooses them")
    texts = train + held_out
    if not verify and type(texts[0]) is str:
        verify = functools.partial(known_words, words_of(texts))
    elif not verify and any(record['answer'] is not None for record in texts):
        verify = is_answer
    return train, held_out, verify, reply


def task_of(text):
    """Return what tells the task of a text from others: a record's prompt and its columns, such as
    the secret of a game, but neither its answer nor where it stands."""
    if type(text) is str:
        return text
    columns = {name: value for name, value in text.items() if value is not None and name not in
               ('answer', 'line', 'held_out', 'completion', 'text')}
    plain = json.dumps(columns, default=repr)
    # 1 is 1.0, and the order of keys does not matter
    return json.dumps(json.loads(plain, parse_int=float), sort_keys=True)


def hold_out(texts):
    """Split texts into (training, held out). A hash of the prompt chooses a tenth, so that equal
    prompts stay together. A record's column `held_out`, true or false, takes the place of the hash.
    """
    parts = ([], [])
    for text in texts:
        record = {'prompt': text} if type(text) is str else text
        chosen = record.get('held_out', zlib.crc32(record['prompt'].encode()) % 10 == 0)
        parts[chosen].append(text)              # False is 0, True is 1
    return parts


def check_blanks(texts, blank_kind, blank_low, blank_high):
    """Refuse blanks that the texts cannot have."""
    allowed = ('random', 'answer', 'marked')
    if type(texts[0]) is str:
        allowed = ('random', 'suffix')
    assert blank_kind in allowed and blank_low <= blank_high <= 1, (
        f"blank_kind = '{blank_kind}', blank_low = {blank_low}, blank_high = {blank_high}: with "
        f"these texts expected one of {allowed}, and blank_low <= blank_high <= 1")


class Dataset:
    """Texts as rows of token ids, and the prompts that are made from them.

    rows (n, T): of running text all windows of T tokens; of records each prompt with its answer and
    eos, padded. rows_of[split], split 'train' or 'val': the numbers of its rows. blank (n, T) bool:
    the blanks of records. (Blanks that are 'random' or a 'suffix' are drawn anew for each step
    instead.) examples: a dict for each row, with what rewards can ask for."""

    def __init__(self, train, held_out, tok, causal, block_size=0, *, reply=None, n_more=0,
                 max_new_tokens=0, chat_template=False, blank_kind='random', blank_low=0.2,
                 blank_high=0.6, blank_span=1, **other_knobs):
        """train, held_out: lists of texts, see read_texts(). causal: prompts are continued from
        left to right. block_size: the largest T; 0: 1024 tokens for records, 64 for running text.
        reply: what a world says. n_more: numbers in Prompts.more_uniforms for each token. The rest
        are knobs of a script, which hands over all that it has."""
        self.tok = tok
        self.reply = reply
        self.causal = causal
        self.max_new_tokens = max_new_tokens
        self.chat_template = chat_template
        self.n_more = n_more
        self.world_ids = []                     # those that only the world writes in the texts
        self.draw_blanks = functools.partial(random_blanks, low=blank_low, high=blank_high,
                                             span=blank_span)
        check_blanks(train, blank_kind, blank_low, blank_high)
        is_text = type(train[0]) is str
        assert not chat_template or hasattr(tok, 'encode_chat'), (
            "chat_template: expected a pretrained generator")
        # A causal network continues running text at its end, and a pair by its answer.
        self.blank_kind = blank_kind
        if causal and blank_kind == 'random':
            self.blank_kind = 'suffix' if is_text else 'answer'
        if is_text:
            self.block_size = block_size or 64
            self.make_windows(train, held_out)
            return
        # a column that a record lacks is None
        columns = dict.fromkeys(itertools.chain(*train, *held_out))
        encoded = [self.encode(columns | record) for record in train + held_out]
        self.rows_of = {'train': np.arange(len(train)),
                        'val': np.arange(len(train), len(encoded))}
        # After any prompt there is room for the longest completion.
        prompts, answers, *_ = zip(*encoded)
        longest_prompt = max(map(len, prompts))
        longest_answer = max(map(len, answers))
        self.block_size = min(block_size or 1024,
                              longest_prompt + (max_new_tokens or longest_answer))
        self.make_rows(encoded)
        if reply:
            cases = self.own_cases(500)
            whole, sampled = [tok.encode(''.join(case[name] for case in cases))
                              for name in ('completion', 'sampled')]
            self.world_ids = list(set(whole) - set(sampled))

    def make_windows(self, train, held_out):
        """Join each list of texts to a stream of ids, and cut all its windows of T tokens."""
        T = self.block_size
        self.rows_of = {}
        stream = []
        # Windows that begin in the training texts and end in those that are held out belong to no
        # split.
        for split, texts in (('train', train), ('val', held_out)):
            start = len(stream)
            for text in texts:
                stream += self.tok.encode(text) + [self.tok.eos]
            self.rows_of[split] = np.arange(start, len(stream) - T + 1)
            assert len(self.rows_of[split]) > 0, f"'{split}' has fewer than {T} tokens"
        self.rows = torch.tensor(stream).unfold(0, T, 1)    # all windows, without a copy
        self.examples = [{}] * len(self.rows)   # running text has no columns

    def encode(self, record):
        """Return the ids of a prompt; those of its answer, and eos; those that are shown of all
        these, with blank_id where one is blank; and an example for rewards. Of a prompt with marked
        blanks the first list is the whole text (its answer, if there is one), and the second only
        eos."""
        tok = self.tok
        example = dict(record)
        has_answer = record['answer'] is not None
        answer = []
        if self.blank_kind == 'marked':
            # Text between blanks is encoded by itself, so that no token spans a blank.
            shown = []
            for part in record['prompt'].split(BLANK):
                shown += tok.encode(part, goes_on=shown != []) + [tok.blank_id]
            shown.pop()                         # no blank follows the last part
            prompt = tok.encode(record['answer']) if has_answer else shown
            fits = [other in (id, tok.blank_id) for id, other in zip(prompt, shown)]
            assert len(prompt) == len(shown) and all(fits), (
                f"{record.get('line', record)}: the answer is not the prompt with its blanks "
                "filled: expected the whole text, with as many tokens")
        else:
            prompt = (tok.encode_chat if self.chat_template else tok.encode)(record['prompt'])
            # What no network learns needs no room: from left to right a run only writes.
            if has_answer and not (self.causal and self.max_new_tokens):
                answer = tok.encode(record['answer'], goes_on=True)
            # a generated answer includes its end
            shown = prompt + [tok.blank_id] * (len(answer) + self.causal)
            if not self.causal:
                del example['prompt']           # cases() makes it, and shows the blanks
        if has_answer and not self.causal:      # a completion is the whole text: the answer, too
            example['answer'] = tok.decode(prompt + answer)
        return prompt, answer + [tok.eos], shown, example

    def make_rows(self, encoded):
        """Make rows of T tokens of what encode() has returned."""
        T = self.block_size
        padding = [self.tok.pad] * T
        rows = []
        rows_shown = []
        for prompt, answer, shown, example in encoded:
            # A pair that is cut would teach an answer without its end. (If there is a
            # max_new_tokens, no answer is learned.)
            n = len(prompt) + (self.max_new_tokens or len(answer))
            name = f"{example.get('line', example)!r:.60}"
            assert n <= T, f"{name} needs {n} tokens; expected {T} or less"
            assert self.tok.blank_id in shown or self.blank_kind == 'random', (
                f"{name} has no blank, nor an answer to be one (blank_kind = '{self.blank_kind}')")
            rows.append((prompt + answer + padding)[:T])
            rows_shown.append((shown + padding)[:T])
        self.rows = torch.tensor(rows)
        self.blank = torch.tensor(rows_shown) == self.tok.blank_id
        self.examples = [example for *_, example in encoded]

    def typed_prompt(self, prompt, k, seed, columns):
        """Return the Prompts of one prompt: causal, it is continued; else it has marked blanks.
        columns {name: value}: of its record, such as the secret of a game."""
        data = copy.copy(self)
        data.blank_kind = 'answer' if self.causal else 'marked'
        data.make_rows([data.encode(as_record({'prompt': prompt, **columns}))])
        data.rows_of = {'train': [0]}
        del data.examples[0]['answer']          # a reward that asks for it gets none
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
            if self.blank_kind == 'random':
                may_be_blank &= tokens != tok.eos
            blank = self.draw_blanks(may_be_blank, rng, self.blank_kind == 'suffix')
        else:
            blank = self.blank[row]
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

        return Prompts(tokens, blank, draw('samples', k).transpose(0, 1), draw('order'),
                       draw('more', k, self.n_more).permute(2, 0, 1, 3), row, self)

    def cases(self, prompts, sequences, numbers):
        """Return a list of dicts, one for each of sequences (N, T): its 'prompt' and 'completion',
        the whole 'text', and the answer and other columns of its record. numbers: of N completions
        of these Prompts, counted from 0, k of each prompt.

        causal: a completion is the text that follows its prompt, up to eos. Else it is the whole
        text, and its prompt has BLANK in the blanks."""
        tok = self.tok
        rows = prompts.row.tolist()

        @functools.cache
        def prompt_of(b):                       # its case, and where its completions start
            shown = prompts.shown[b]
            if self.causal:
                start = shown.index(tok.blank_id)
                text = tok.decode(shown[:start])        # an eos in it separates paragraphs
            else:
                start = 0
                text = tok.text_of(shown)
            # (The prompt of a record, if it has one, is the text itself, without a chat template.)
            return {'prompt': text} | self.examples[rows[b]], start

        cases = []
        for number, ids in zip(numbers, sequences.tolist()):
            case, start = prompt_of(number // prompts.k)
            if self.causal:
                completion = tok.completion_of(ids[start:])
                text = case['prompt'] + completion
            else:
                completion = text = tok.text_of(ids)
            cases.append(case | {'completion': completion, 'text': text})
        return cases

    def own_cases(self, n):
        """Return cases as cases() does, of n training texts that are completed by themselves."""
        prompts = self.prompts('train', n, 1, 0)
        cases = self.cases(prompts, prompts.tokens, range(n))
        for case in cases:
            if self.causal and case.get('answer'):      # which rows may lack, see max_new_tokens
                case |= {'completion': case['answer'], 'text': case['prompt'] + case['answer']}
            case |= {'ended': True, 'sampled': written_by_policy(replay(self.reply, case))}
        return cases


def replay(reply, case):
    """Return the completion of a case as a game, a list of (character, is it the policy's): behind
    a prefix stands what a world says to it. Without a world all is the policy's."""
    whole = case['completion']
    is_mine = []                                # of each character so far
    while len(is_mine) < len(whole):
        is_mine.append(True)
        if reply:
            now = whole[:len(is_mine)]
            said, done = said_by(reply, case | {'completion': now, 'text': case['prompt'] + now})
            is_mine += [False] * len(said)
            if done:
                break
    return list(zip(whole, is_mine))


def written_by_policy(game):
    """Return the text of a game without the words of its world."""
    return ''.join(char for char, is_mine in game if is_mine)


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
    # argsort twice gives each position its rank among the keys. The first `count` are blank. Keys
    # are below 1, so what may not be blank comes last.
    rank = key.masked_fill(~may_be_blank, 2).argsort(dim=1, stable=True).argsort(dim=1)
    share = torch.from_numpy(rng.uniform(low, high, size=(n, 1)))
    count = (share * may_be_blank.sum(1, keepdim=True)).round().clamp(min=1)            # (n, 1)
    return (rank < count) & may_be_blank


# ---- records: prompts and answers of your own ----------------------------------------------------


# A file with one JSON object a line:
#
#     {"prompt": "3h05m=", "answer": "185"}
#
# Objects without an answer are prompts to be continued. Other names are columns, which rewards can
# ask for, and so is `line`, such as 'mine.jsonl, line 3'.


def read_records(path):
    """Return the records of a file, dicts with 'prompt' and 'answer'. An error names the first line
    that is no record."""
    records = []
    for number, line in enumerate(read_utf8(path).split('\n'), 1):
        name = f'{Path(path).name}, line {number}'      # whichever folder it is in
        try:
            if line.strip():
                record = json.loads(line)
                assert 'line' not in record, "the column `line` is ours: this name"
                assert type(record.get('held_out', True)) is bool, "held_out: true or false?"
                records.append(as_record({'line': name} | record))
        except Exception as e:
            fail(f'{name}: expected one object a line, {{"prompt": "12+35=", "answer": "047"}}, '
                 f'both in quotes, or a prompt alone ({e!r:.300})')
    return records


def as_record(text):
    """Return the record of a pair (prompt, answer), or of a dict; a string stays as it is."""
    if type(text) is str:
        return text
    if type(text) in (tuple, list):
        text = dict(zip(('prompt', 'answer'), text, strict=True))
    record = {'answer': None} | text            # none, which is not the empty one
    for name in ('prompt', *text.keys() & {'answer'}):
        assert type(record.get(name)) is str, (
            f"the {name} is no text; found {record!r:.200}; of a chat give the text that the user "
            "says, with --chat_template=True")
        record[name].encode()                   # raises if it is no unicode
    return record


# ---- running text: the paragraphs of a file ------------------------------------------------------


def paragraphs_of(path):
    """Return the paragraphs of a text file, which are separated by empty lines."""
    return [part for part in re.split(r'\n\s*\n', read_utf8(path)) if part.strip()]


def read_utf8(path):
    """Return the text of a file."""
    with reading(path):
        return Path(path).read_text('utf-8-sig')
