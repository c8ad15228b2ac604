"""Turn texts with blanks into rows of ids, and ids into text. Three words:

A dataset is a file with texts(), which returns two lists of records, to learn from and held out. It
may have verify(), which says what is right, and reply(), a world: a game or a tool that answers
while the policy writes. The knob `dataset` names the file; data/ has some.

A record is a dict with 'prompt', 'answer' and perhaps other columns. (A file may write the pair
(prompt, answer); plumbing/datasets.py makes a dict of it, and gives all records the same columns.)

A Task is a dataset in the ids of one Tokenizer. Each record is two rows of ids there: `whole`, with
the answer, and `shown`, which has a blank, here _, where the policy writes. $ is eos, the id that
ends a text. Sums have three digits:

    prompt      answer       whole        shown
    12+35=      047          12+35=047$   12+35=____     the policy also writes the end
    1_+3_=__7   12+35=047    12+35=047$   1_+3_=__7$     the length is given
    1_+3_=__7                1_+3_=__7$   1_+3_=__7$     the same, and nobody knows the answer

This is blank_kind = 'answer'. With 'random', the default of train_grpo.py, random characters of
prompt and answer are blank in the place of these, and the length is given."""
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

BLANK = '_'

# sizes: B prompts, or n | T places of a text | V ids


class Tokenizer:
    """Characters. One of the V ids that a network can write is eos, which ends a text. Ids V to
    V + 2 are only read: blank, bos (the beginning), and pad."""

    def __init__(self, chars):
        self.vocabulary = {'kind': 'char', 'chars': chars}
        self.eos = 0
        self.ids = {char: i for i, char in enumerate(chars, 1)}
        self.vocab_size = 1 + len(chars)
        self.blank, self.bos, self.pad = range(self.vocab_size, self.vocab_size + 3)
        self.pieces = ['\n', *chars, BLANK, '', '']         # an eos is shown as \n

    def encode(self, text):
        """Return a list of ids. A KeyError names a character that the vocabulary lacks."""
        return [self.ids[char] for char in text]

    def prompt_ids(self, text):
        """Return the ids of a prompt, in which each _ is a blank."""
        ids = []
        for part in text.split(BLANK):
            ids += self.encode(part) + [self.blank]
        return ids[:-1]                         # no blank follows the last part

    def decode(self, ids):
        """Return the text of a list of ids, without padding and the eos at the end."""
        return self.show(ids).removesuffix('\n')

    def show(self, ids):
        """Return the text of a list of ids, each of them: an eos is a line feed."""
        return ''.join([self.pieces[i] for i in ids])


def make_tokenizer(kind, chars=''):
    """Return the Tokenizer of a vocabulary: make_tokenizer(**tok.vocabulary) is a copy of tok."""
    if kind == 'gpt2':
        from data.gpt2 import BytePairs  # which needs tiktoken
        return BytePairs()
    return Tokenizer(chars)


class Row(NamedTuple):
    """A record as ids."""
    whole: list         # with the answer, if there is one
    shown: list         # with a blank where the policy writes
    n_prompt: int       # ids before what the policy adds: all but eos if the prompt has blanks


@dataclass
class Prompts:
    """B texts in which something is blank. Their ids have the answers, too. No network sees these:
    complete() puts blank_id in their place."""
    task: 'Task'
    tokens: Tensor      # (B, T) ids of the whole texts
    blank: Tensor       # (B, T) bool
    record: Tensor      # (B,) index in task.records

    @property
    def start(self):
        """The place (B,) of the first blank; from left to right, where a completion begins."""
        return self.blank.int().argmax(1)

    def split(self, n):
        """Return a list of Prompts, n in each."""
        parts = zip(self.tokens.split(n), self.blank.split(n), self.record.split(n))
        return [Prompts(self.task, *part) for part in parts]


class Task:
    """A dataset in the ids of a Tokenizer. blank_kind: 'random', a share of each text | 'answer',
    what its record leaves open. network: the policy. pretrain.py, which makes one, has none yet."""
    kind = 'fill'       # of network that it is for; the Task of plugins/causal.py has 'causal'

    def __init__(self, data, tok, blank_kind, network=None):
        self.tok = tok
        self.blank_kind = blank_kind
        self.verify = data.verify
        self.reply = data.reply
        self.device = network.device if network else 'cpu'
        self.max_length = network.block_size if network else math.inf
        assert not network or network.kind == self.kind and (
            self.kind == 'causal' or not self.reply), (
            "plugins/causal.py, which a world needs, expects a causal generator; without it the "
            "generator is one that fills blanks")
        self.records = data.train + data.held_out
        self.n_train = len(data.train)          # the first records; the others are held out
        self.rows = [self.encode(record) for record in self.records]
        # All batches have one width T, though most texts are shorter. So networks compute padding
        # in vain, and all shapes stay the same. Each prompt has room for the longest answer,
        # because from left to right the policy may write more than the record's.
        self.longest_prompt = max(row.n_prompt for row in self.rows)
        self.length = self.longest_prompt + max(                                # T
            len(row.whole) - row.n_prompt for row in self.rows)
        self.check_length(self.length)

    def check_length(self, length):
        """Refuse texts that are longer than the network can read."""
        assert length <= self.max_length, (
            f"texts have up to {length} tokens, more than the network can read")

    def encode(self, record):
        """Return the Row of a record."""
        tok = self.tok
        shown = tok.prompt_ids(record['prompt'])
        answer = tok.encode(record['answer'])
        if tok.blank not in shown:
            answer.append(tok.eos)
            return Row(shown + answer, shown + [tok.blank] * len(answer), len(shown))
        whole = answer or shown
        fits = [b in (a, tok.blank) for a, b in zip(whole, shown)]
        assert self.kind == 'fill' and len(whole) == len(shown) and all(fits), (
            f"{record}: expected the prompt with its blanks filled, by a network that fills blanks")
        return Row(whole + [tok.eos], shown + [tok.eos], len(shown))

    def pad(self, rows):
        """Return lists of ids as a tensor (n, T)."""
        return torch.tensor([row + [self.tok.pad] * (self.length - len(row)) for row in rows])

    def prompts(self, split, n, low=0.2, high=0.6):     # as the knobs; pretrain.py has none
        """Return Prompts of n random records: of 'train' with repeats, of 'val' without. Random
        blanks are a share in [low, high] of a text. The random numbers are those of the CPU, so
        they are the same on a GPU."""
        if split == 'train':
            record = torch.randint(self.n_train, (n,))
        else:
            record = self.n_train + torch.randperm(len(self.records) - self.n_train)[:n]
        return self.prompts_of(record, low, high)

    def prompts_of(self, record, low=0.2, high=0.6):
        """Return Prompts of the records with these numbers (B,)."""
        # Lists become tensors here, in each step, and not once for all. This is slow Python, half a
        # millisecond, but saves memory: one long text would make a table of thousands of long rows.
        rows = [self.rows[i] for i in record.tolist()]
        tokens = self.pad([row.whole for row in rows])                          # (B, T)
        if self.blank_kind == 'random':
            is_text = (tokens != self.tok.pad) & (tokens != self.tok.eos)
            # Where nobody knows the answer, the _ of a record are always blank.
            blank = random_blanks(is_text, low, high) | (tokens == self.tok.blank)
        else:
            blank = self.pad([row.shown for row in rows]) == self.tok.blank
        return Prompts(self, *[x.to(self.device) for x in (tokens, blank, record)])


def random_blanks(is_text, low, high):
    """Return blanks (n, T): a share in [low, high] of the places that are text, and at least
    one."""
    # argsort twice gives each place its rank among random numbers: .5 .9 .1 stand in order 2 0 1,
    # so their ranks are 1 2 0. (Sorting twice is wasteful, and short.) Places without text get 2,
    # which is above all random numbers, so they come last.
    rank = torch.where(is_text, torch.rand(is_text.shape), 2).argsort(1).argsort(1)
    share = low + (high - low) * torch.rand(len(is_text), 1)
    return rank < (share * is_text.sum(1, keepdim=True)).round().clamp(min=1)


# ---- text again ----------------------------------------------------------------------------------
def columns_of(r):
    """Return what rewards can ask for of a Rollout, {name: list of N}: the columns of the records;
    'prompt', as it was shown, in the place of the record's; 'original', the whole text of the
    record; 'text', the finished text; and 'completion', the same. (From left to right a completion
    is what follows the prompt: plugins/causal.py puts a function around this one.)"""
    task, decode = r.prompts.task, r.prompts.task.tok.decode
    shown = r.prompts.tokens.masked_fill(r.prompts.blank, task.tok.blank)
    records = [task.records[i] | {'prompt': decode(prompt), 'original': decode(whole)}
               for i, prompt, whole in zip(r.prompts.record.tolist(), shown.tolist(),
                                           r.prompts.tokens.tolist())]
    columns = {name: [x[name] for x in records for _ in range(r.k)] for name in records[0]}
    texts = list(map(decode, r.texts.tolist()))
    return columns | {'completion': texts, 'text': texts}
