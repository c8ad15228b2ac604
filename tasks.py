"""Turn texts with blanks into rows of ids, and ids into text.

A task is a Python file with texts(), which returns two lists of records, to learn from and held
out. The file may have verify(), which says what is right, and reply(), a world, which answers
while the policy writes. A record is a pair (prompt, answer), or a dict with 'prompt', 'answer'
and other columns. If the prompt has no blank, the answer is what the policy writes after it:

    ('12+35=', '047')

If it has blanks, each _, the answer is the whole text, and the policy writes only the blanks:

    ('1_+3_=__7', '12+35=047')

With blank_kind = 'random', the default of train_grpo.py, random characters of prompt and answer are
blank instead. The eos that ends a text is blank only if the policy writes the answer after the
prompt. Otherwise the length is given."""
import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

BLANK = '_'

# sizes: B prompts, or n | T places of a text | V ids


class Tokenizer:
    """Characters, or the byte pairs of GPT-2. One of the V ids that a network can write is eos,
    which ends a text. Ids V to V + 2 are only read: blank, bos (the beginning), and pad."""

    def __init__(self, kind, chars=''):
        self.vocabulary = {'kind': kind, 'chars': chars}    # Tokenizer(**vocabulary) is a copy
        if kind == 'gpt2':
            import tiktoken                     # its first use downloads the vocabulary
            bpe = tiktoken.get_encoding('gpt2')
            self.eos = bpe.eot_token            # the last id
            self.encode = bpe.encode_ordinary   # in the place of the method for characters
            pieces = bpe.decode_tokens_bytes(range(self.eos)) + [b'\n']
        else:
            self.eos = 0
            self.ids = {char: i for i, char in enumerate(chars, 1)}
            pieces = [char.encode() for char in '\n' + chars]           # an eos is shown as \n
        self.vocab_size = len(pieces)
        self.blank, self.bos, self.pad = range(self.vocab_size, self.vocab_size + 3)
        self.pieces = pieces + [BLANK.encode(), b'', b'']

    def encode(self, text):
        """Return a list of ids."""
        unknown = set(text) - self.ids.keys()
        assert not unknown, f"the vocabulary of the network lacks {sorted(unknown)} of {text!r:.80}"
        return [self.ids[char] for char in text]

    def prompt_ids(self, text):
        """Return the ids of a prompt, in which each _ is a blank."""
        ids = []
        for part in text.split(BLANK):
            ids += self.encode(part) + [self.blank]
        return ids[:-1]                         # no blank follows the last part

    def decode(self, ids):
        """Return the text of a list of ids, without padding and the eos at the end."""
        ids = [i for i in ids if i != self.pad]
        if ids[-1:] == [self.eos]:
            ids.pop()
        return self.show(ids)

    def show(self, ids):
        """Return the text of a list of ids, in which an eos is a line feed."""
        return b''.join([self.pieces[i] for i in ids]).decode(errors='replace')


@dataclass
class Prompts:
    """B texts in which something is blank."""
    task: 'Task'
    tokens: Tensor      # (B, T) ids with the answers filled in; without an answer, blank ids
    blank: Tensor       # (B, T) bool
    record: Tensor      # (B,) index in task.records

    def __len__(self):
        return len(self.tokens)

    @property
    def start(self):
        """The place (B,) of the first blank."""
        return self.blank.int().argmax(1)

    def split(self, n):
        """Return a list of Prompts, n in each."""
        parts = zip(self.tokens.split(n), self.blank.split(n), self.record.split(n))
        return [Prompts(self.task, *part) for part in parts]


class Task:
    """The records of a Dataset as rows of ids, (n, T). blank_kind: 'random', a share of each text |
    'answer', what its record leaves open. network: gives the device, the longest length that it can
    read, and whether it can fill blanks."""

    def __init__(self, data, tok, blank_kind, network=None):
        self.tok = tok
        self.device = network.device if network else 'cpu'
        self.max_length = network.block_size if network else math.inf
        self.is_causal = bool(network and network.causal)
        assert self.is_causal or not (network and data.reply), (
            "the dataset is a world: expected plugins/causal.py, and a causal generator")
        self.verify = data.verify
        self.reply = data.reply
        self.blank_kind = blank_kind
        self.records = data.train + data.held_out
        self.n_train = len(data.train)          # the first records; the others are held out
        wholes, shown, lengths = zip(*map(self.encode, self.records))
        # After each prompt there is room for the longest answer.
        longest_answer = max(len(whole) - n for whole, n in zip(wholes, lengths))
        self.longest_prompt = max(lengths)
        self.length = self.longest_prompt + longest_answer                      # T
        self.check(self.length)
        self.tokens = self.rectangle(wholes)                                    # (n, T)
        if blank_kind == 'random':              # prompts() draws more; wholes keep unanswered ones
            shown = wholes
        self.blank = self.rectangle(shown) == tok.blank                         # (n, T)
        self.is_text = (self.tokens != tok.pad) & (self.tokens != tok.eos)      # (n, T)

    def check(self, length):
        """Refuse texts that are longer than the network can read."""
        assert length <= self.max_length, (
            f"texts have up to {length} tokens: the network can read {self.max_length}")

    def rectangle(self, rows):
        return torch.tensor([row + [self.tok.pad] * (self.length - len(row)) for row in rows])

    def encode(self, record):
        """Return the ids of the whole text, the ids that are shown, and the length of the
        prompt; if the prompt has blanks, this is the length of the whole text without eos."""
        tok = self.tok
        shown = tok.prompt_ids(record['prompt'])
        answer = tok.encode(record['answer'])
        if tok.blank not in shown:
            answer.append(tok.eos)
            return shown + answer, shown + [tok.blank] * len(answer), len(shown)
        assert not self.is_causal, (
            f"{record}: the generator writes from left to right, and fills no blanks")
        whole = answer or shown                 # a record without an answer keeps its blanks
        fits = [b in (a, tok.blank) for a, b in zip(whole, shown)]
        assert len(whole) == len(shown) and all(fits), (
            f"{record}: expected as the answer the prompt with its blanks filled")
        return whole + [tok.eos], shown + [tok.eos], len(shown)

    def prompts(self, split, n, low=0.2, high=0.6):
        """Return Prompts of n random records: of 'train' with repeats, of 'val' without. Random
        blanks are a share in [low, high] of a text. The random numbers are those of the CPU, so
        they are the same on a GPU."""
        if split == 'train':
            record = torch.randint(self.n_train, (n,))
        else:
            record = self.n_train + torch.randperm(len(self.records) - self.n_train)[:n]
        tokens, blank = self.tokens[record], self.blank[record]                 # (n, T)
        if self.blank_kind == 'random':         # and the blanks of records without an answer
            blank = random_blanks(self.is_text[record], low, high) | blank
        return self.on_device(tokens, blank, record)

    def on_device(self, *tensors):
        return Prompts(self, *[x.to(self.device) for x in tensors])

    def typed(self, prompt):
        """Return Prompts of one text that somebody has typed."""
        assert self.is_causal or BLANK in prompt, f"{prompt!r} has no blank: expected a {BLANK}"
        task = copy.copy(self)
        task.records = [{'prompt': prompt, 'answer': ''}]
        whole, shown, task.longest_prompt = self.encode(task.records[0])
        blank = self.rectangle([shown]) == self.tok.blank
        return task.on_device(self.rectangle([whole]), blank, torch.tensor([0]))


def random_blanks(is_text, low, high):
    """Return blanks (n, T): a share in [low, high] of the places that are text, and at least
    one."""
    # argsort twice gives each place its rank among random numbers. 2 is above them all.
    rank = torch.where(is_text, torch.rand(is_text.shape), 2).argsort(1).argsort(1)
    share = low + (high - low) * torch.rand(len(is_text), 1)
    return rank < (share * is_text.sum(1, keepdim=True)).round().clamp(min=1)


# ---- text again ----------------------------------------------------------------------------------
def columns_of(r):
    """Return what rewards can ask for of a Rollout, {name: list of N}: 'prompt', as it was shown;
    'original', the text of the record; 'text', the finished text; 'completion', the same
    (plugins/causal.py: what follows the prompt); and the columns of the records."""
    task = r.prompts.task
    decode = task.tok.decode
    shown = r.prompts.tokens.masked_fill(r.prompts.blank, task.tok.blank)
    records = [task.records[i] for i in r.prompts.record.tolist()]
    columns = {name: [record[name] for record in records] for name in task.records[0]}
    columns['prompt'] = list(map(decode, shown.tolist()))
    columns['original'] = list(map(decode, r.prompts.tokens.tolist()))
    columns = {name: [x for x in values for _ in range(r.k)] for name, values in columns.items()}
    texts = list(map(decode, r.texts.tolist()))
    return columns | {'completion': texts, 'text': texts}
