"""Turn texts with blanks into ids, and ids back into text.

A dataset is a file with texts(), which returns two lists of records: those to learn from, and those
that are held out. It may have verify(), which says what is right, and reply() (plugins/world.py).
The knob `dataset` names the file; data/ has some.

A record is a dict with 'prompt', 'answer' and perhaps other columns. (A file may write a pair
(prompt, answer). plumbing/datasets.py makes a dict of it.)

A Task is a dataset in the ids of one Tokenizer. There each record has two rows of ids: `whole`,
with its answer, and `shown`, with a blank, here _, wherever the policy writes. $ is eos, the id
that ends a text. Sums have three digits:

    prompt      answer       whole        shown
    12+35=      047          12+35=047$   12+35=____     the answer continues the prompt
    1_+3_=__7   12+35=047    12+35=047$   1_+3_=__7$     the answer is the whole text
    1_+3_=__7                1_+3_=__7$   1_+3_=__7$     there is no known answer

This is blank_kind = 'answer': a prompt without _ is continued, and the policy also writes the end;
a prompt with _ is filled, so its length is given. With 'random', the default of train_grpo.py,
random characters of `whole` are blank instead, never the end."""
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from plumbing.process import Mistake, expect

BLANK = '_'

# Shapes in comments: B prompts, T positions in a text, V ids.


class Tokenizer:
    """Characters. The network can write V ids: eos, which ends a text, is 0, and the characters
    follow. The ids V, V + 1 and V + 2 are only read: blank, bos (the beginning of a text), pad."""

    def __init__(self, chars):
        self.vocabulary = {'kind': 'char', 'chars': chars}
        self.eos = 0
        self.ids = {char: i for i, char in enumerate(chars, 1)}
        self.vocab_size = 1 + len(chars)
        self.blank, self.bos, self.pad = range(self.vocab_size, self.vocab_size + 3)
        self.pieces = ['\n', *chars, BLANK, '', '']         # an eos is shown as \n

    def encode(self, text):
        """Return a list of ids."""
        try:
            return [self.ids[char] for char in text]
        except KeyError as e:
            meaning = {'\n': ' (it ends a text)', BLANK: ' (it is a blank)'}.get(e.args[0], '')
            raise Mistake(f"{text!r:.80}: the vocabulary of the network has no {e}{meaning}"
                          ) from None

    def prompt_ids(self, text):
        """Return the ids of a prompt, in which each _ is a blank."""
        ids = []
        for part in text.split(BLANK):
            ids += self.encode(part) + [self.blank]
        return ids[:-1]                         # no blank follows the last part

    def decode(self, ids):
        """Return the text of a list of ids, without padding and without the eos at the end."""
        return self.show(ids).removesuffix('\n')

    def show(self, ids):
        """Return the text of a list of ids, with each eos as a line feed."""
        return ''.join([self.pieces[i] for i in ids])


def make_tokenizer(kind, chars=''):
    """Return the Tokenizer of a vocabulary: make_tokenizer(**tok.vocabulary) is a copy of tok."""
    if kind == 'gpt2':
        from data.gpt2 import BytePairs  # which needs tiktoken
        return BytePairs()
    return Tokenizer(chars)


class Row(NamedTuple):
    """A record as ids."""
    whole: list         # with its answer, if there is one
    shown: list         # with a blank wherever the policy writes
    n_prompt: int       # where a completion begins, if the prompt is continued


@dataclass
class Prompts:
    """B texts in which something is blank. `whole` has the answers. No network sees them, because
    complete() removes them first."""
    task: 'Task'
    whole: Tensor       # (B, T) ids of the texts with their answers
    blank: Tensor       # (B, T) bool
    record: Tensor      # (B,) numbers of the records: indices in task.records

    @property
    def start(self):
        """The position (B,) of the first blank. From left to right, a completion begins there."""
        return self.blank.int().argmax(1)

    def split(self, n):
        """Return a list of Prompts with n of them each."""
        parts = zip(self.whole.split(n), self.blank.split(n), self.record.split(n))
        return [Prompts(self.task, *part) for part in parts]


class Task:
    """A dataset in the ids of a Tokenizer. blank_kind: 'random', a share of each text is blank |
    'answer', what its record leaves open. network: the policy. (pretrain.py has none yet.)"""
    kind = 'fill'       # the kind of network that completes; plugins/causal.py has 'causal'

    def __init__(self, data, tok, blank_kind, network=None):
        if network:
            self.check_kind(network)
        self.tok = tok
        self.blank_kind = blank_kind
        self.verify = data.verify
        self.reply = data.reply
        self.device = network.device if network else 'cpu'
        self.max_length = network.block_size if network else math.inf
        self.records = data.train + data.held_out
        self.n_train = len(data.train)          # the first records; the others are held out
        self.rows = [self.encode(record) for record in self.records]
        # All batches have one width T, so that shapes stay the same, with room for the longest
        # prompt and the longest answer.
        self.longest_prompt = max(row.n_prompt for row in self.rows)
        longest_answer = max(len(row.whole) - row.n_prompt for row in self.rows)
        self.length = self.longest_prompt + longest_answer                      # T
        self.check_length(self.length)

    def check_kind(self, network):
        """Refuse a network that cannot complete these texts."""
        if self.kind == 'causal':
            expect(network.kind == 'causal', f"the generator is a {network.kind!r} network, and "
                   "plugins/causal.py needs one that writes from left to right, kind = 'causal'")
        else:
            expect(network.kind == 'fill', f"the generator is a {network.kind!r} network: expected "
                   "one that fills blanks, kind = 'fill', or plugins/causal.py in the command")

    def check_length(self, length):
        """Refuse texts that are longer than the network can read."""
        expect(length <= self.max_length, f"texts have up to {length} tokens, and the generator "
               f"can read {self.max_length}. (Is it of another dataset, or has this one grown?)")

    def encode(self, record):
        """Return the Row of a record."""
        try:
            shown = self.tok.prompt_ids(record['prompt'])
            answer = self.tok.encode(record['answer'])
        except Mistake as e:
            raise Mistake(f"{e}, in the record {record!r:.200}") from None
        if self.tok.blank in shown:
            return self.row_to_fill(shown, answer, record)
        expect(shown or answer or self.kind == 'causal', f"{record!r:.200}: an empty text")
        return self.row_to_continue(shown, answer)

    def row_to_continue(self, prompt, answer):
        """12+35= and 047 become 12+35=047$ and 12+35=____."""
        answer = [*answer, self.tok.eos]
        return Row(prompt + answer, prompt + [self.tok.blank] * len(answer), len(prompt))

    def row_to_fill(self, shown, answer, record):
        """1_+3_=__7 and 12+35=047 become 12+35=047$ and 1_+3_=__7$."""
        whole = answer or shown                 # perhaps nobody knows the answer
        fits = [part in (full, self.tok.blank) for full, part in zip(whole, shown)]
        expect(len(whole) == len(shown) and all(fits), f"{record!r:.200}: the answer of a prompt "
               "with _, a blank, is the prompt with its blanks filled")
        return Row(whole + [self.tok.eos], shown + [self.tok.eos], len(shown))

    def pad(self, rows):
        """Return lists of ids as a tensor (n, T)."""
        return torch.tensor([row + [self.tok.pad] * (self.length - len(row)) for row in rows])

    def prompts(self, split, n, low=0.2, high=0.6):
        """Return Prompts of n random records: of 'train' with repeats, of 'val' without. Random
        blanks are a share in [low, high] of a text. The random numbers come from the CPU, so they
        are the same on a GPU."""
        if split == 'train':
            record = torch.randint(self.n_train, (n,))
        else:
            record = self.n_train + torch.randperm(len(self.records) - self.n_train)[:n]
        return self.prompts_of(record, low, high)

    def prompts_of(self, record, low=0.2, high=0.6):
        """Return Prompts of the records with these numbers (B,)."""
        # Lists become tensors in each step, and not once for all, which saves memory.
        rows = [self.rows[i] for i in record.tolist()]
        whole = self.pad([row.whole for row in rows])                           # (B, T)
        if self.blank_kind == 'random':
            is_text = (whole != self.tok.pad) & (whole != self.tok.eos)
            # Where nobody knows the answer, the _ of a record are always blank.
            blank = random_blanks(is_text, low, high) | (whole == self.tok.blank)
        else:
            blank = self.pad([row.shown for row in rows]) == self.tok.blank
        return Prompts(self, *[x.to(self.device) for x in (whole, blank, record)])


def random_blanks(is_text, low, high):
    """Return blanks (n, T): a share in [low, high] of the positions that are text, at least one."""
    # argsort twice gives each position its rank among random numbers: .5 .9 .1 stand in the order
    # 2 0 1, so their ranks are 1 2 0. Positions without text get 2, which is above all random
    # numbers, so they come last.
    rank = torch.where(is_text, torch.rand(is_text.shape), 2).argsort(1).argsort(1)
    share = low + (high - low) * torch.rand(len(is_text), 1)
    return rank < (share * is_text.sum(1, keepdim=True)).round().clamp(min=1)


# ---- text again ----------------------------------------------------------------------------------
def columns_of(rollout):
    """Return columns of all completions, {name: list of N}:

        the columns of the record           answer, label, ...
        prompt                              as it was shown, with _ for each blank
        text, completion                    the finished text
        original                            the text of the record, with its answer

    (From left to right a completion is what follows the prompt: plugins/causal.py wraps this.)"""
    prompts, k = rollout.prompts, rollout.k
    task, decode = prompts.task, prompts.task.tok.decode
    shown = prompts.whole.masked_fill(prompts.blank, task.tok.blank).tolist()
    whole, texts = prompts.whole.tolist(), rollout.texts.tolist()
    rows = []                                   # a dict for each completion
    for b, record in enumerate(prompts.record.tolist()):
        of_prompt = {'prompt': decode(shown[b]), 'original': decode(whole[b])}
        for text in map(decode, texts[b * k:(b + 1) * k]):
            rows.append(task.records[record] | of_prompt | {'completion': text, 'text': text})
    return {name: [row[name] for row in rows] for name in rows[0]}
