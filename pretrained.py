"""Networks of transformers in the place of a GPT: a folder that save_pretrained() wrote, or one
that was downloaded from the hub.

    python train_grpo.py config/grpo_smollm2.py --generator=FOLDER --dataset=mine.jsonl
    python -m extras.export out-smollm2 my-folder           # write the policy of a run for others

The folder brings its own tokenizer. A ...ForCausalLM generates, a ...ForMaskedLM fills blanks.
Weights are float32, whatever they were stored as, because bfloat16 would round an update of 1e-6
away. Dropout is off, as everywhere here."""
import itertools

import torch
import torch.nn.functional as F
from torch import nn

from common import BLANK, fail
from data.dataset import Tokenizer

try:
    import transformers
except ImportError:
    fail("a pretrained model needs transformers: pip install transformers")

# letters: N sequences, in runs of `copies` that share a prompt | T tokens in each, L in one pass
# V ids of the tokenizer | U places where logits are asked for


class PretrainedTokenizer(Tokenizer):
    """The tokenizer of a folder: its vocab_size (V) ids and its eos. blank_id, bos and pad are
    ours: they follow the V ids, and Pretrained translates them."""

    def __init__(self, folder):
        self.vocabulary = folder
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.vocab_size = len(self.tokenizer)
        self.blank_id, self.bos, self.pad = range(self.vocab_size, self.vocab_size + 3)
        self.eos = self.tokenizer.eos_token_id
        if self.eos is None:
            self.eos = self.tokenizer.sep_token_id              # BERT: [CLS] text [SEP]

    def encode(self, text):
        """Return a list of ids. The name of a special token is encoded as plain text."""
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def encode_chat(self, prompt):
        """Return the ids of a chat in which a user says the prompt and the model is to answer."""
        assert self.tokenizer.chat_template, f"{self.vocabulary} has no chat template"
        text = self.tokenizer.apply_chat_template([{'role': 'user', 'content': prompt}],
                                                  tokenize=False, add_generation_prompt=True)
        text = text.removeprefix(self.tokenizer.bos_token or '')        # bos is added later
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids):
        """Return text. eos is shown as a line feed, a blank as BLANK, bos and pad not at all."""
        ours = {self.eos: '\n', self.blank_id: BLANK, self.bos: '', self.pad: ''}
        text = ''
        for sign, run in itertools.groupby(ids, ours.get):
            run = list(run)
            text += self.tokenizer.decode(run) if sign is None else sign * len(run)
        return text


class Head(nn.Module):
    """The output layer, in float32, only at the places where self.where (N, L) is True. Its V
    columns make it the most expensive layer, and bfloat16 logits would be off by up to 0.2."""
    where = None

    def __init__(self, linear):
        super().__init__()
        self.linear = linear
        self.bias = linear.bias                 # BERT looks for it here

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            return self.linear(x[self.where].to(self.linear.weight.dtype))      # (U, V)


class Pretrained(nn.Module):
    """A network of transformers in the place of a GPT, whose docstring says what is needed."""
    new_cache = transformers.DynamicCache
    is_classifier = False

    def __init__(self, folder):
        super().__init__()
        self.args = {'folder': folder}
        self.tok = PretrainedTokenizer(folder)
        config = transformers.AutoConfig.from_pretrained(folder)
        self.causal = not config.architectures[0].endswith('MaskedLM')
        kind = transformers.AutoModelForMaskedLM
        if self.causal:
            kind = transformers.AutoModelForCausalLM
        self.network = kind.from_pretrained(folder, dtype=torch.get_default_dtype()).eval()
        self.network.set_output_embeddings(Head(self.network.get_output_embeddings()))
        self.block_size = config.max_position_embeddings - 1
        self.blank_id = self.tok.blank_id
        self.bos_id = self.tok.bos
        self.pad_id = self.tok.pad
        # The folder's ids for our blank, bos and pad. Without a bos of its own, a text begins with
        # its first token. No position attends to padding, so any id will do for it.
        tokenizer = self.tok.tokenizer
        bos = tokenizer.bos_token_id if self.causal else tokenizer.cls_token_id
        self.has_bos = bos is not None
        self.special_ids = nn.Buffer(torch.tensor([tokenizer.mask_token_id or 0, bos or 0, 0]),
                                persistent=False)

    @property
    def device(self):
        return self.special_ids.device

    def forward(self, tokens, where, copies=1):
        """Return logits (U, V) for tokens (N, T) at the U places where `where` (N, T) is True."""
        if not self.causal:
            inputs = F.pad(tokens.masked_fill(where, self.blank_id), (1, 0), value=self.bos_id)
            return self.run(inputs, F.pad(where, (1, 0)))
        last = int(where.any(0).nonzero()[-1])              # nobody looks at what follows it
        inputs = F.pad(tokens[:, :last], (1, 0), value=self.bos_id)             # (N, last + 1)
        where = where[:, :last + 1]
        if copies == 1:
            return self.run(inputs, where)
        # The copies are equal up to `first`. This part goes through the network once, with
        # gradient, and fills a cache. The cache is repeated, and each copy goes on by itself.
        first = int(where.any(0).nonzero()[0])
        cache = self.new_cache()
        at_first = self.next_logits(inputs[::copies, :first + 1], cache)        # (B, V)
        if last == first:
            return at_first[where[:, first].nonzero()[:, 0] // copies]
        cache.batch_repeat_interleave(copies)
        rest = self.run(inputs[:, first + 1:], where[:, first + 1:], cache)
        n, t = where.nonzero(as_tuple=True)                                     # (U,) each
        logits = rest.new_empty(len(n), rest.size(1))                           # (U, V)
        logits[t > first] = rest
        logits[t == first] = at_first[n[t == first] // copies]
        return logits

    def next_logits(self, tokens, cache):
        """Return logits (N, V) of the token after tokens (N, L), which continue those in the cache.
        """
        where = torch.zeros(tokens.shape, dtype=torch.bool, device=self.device)
        where[:, -1] = True
        return self.run(tokens, where, cache)

    def run(self, inputs, where, cache=None):
        """Return float32 logits (U, V) at the places where `where` (N, L) is True. inputs (N, L),
        in our ids: bos and what follows it, or what follows the tokens in the cache."""
        if not self.has_bos and inputs[0, 0] == self.bos_id:
            assert not where[:, 0].any(), f"{self.args['folder']} has no bos: a prompt is empty"
            inputs = inputs[:, 1:]
            where = where[:, 1:]
        ids = torch.where(inputs < self.tok.vocab_size, inputs,
                          self.special_ids[(inputs - self.tok.vocab_size).clamp(min=0)])
        more = {'past_key_values': cache, 'use_cache': cache is not None}
        if not self.causal:
            more = {'attention_mask': (inputs != self.pad_id).long()}
        self.network.get_output_embeddings().where = where
        return self.network(input_ids=ids, **more).logits[:, :self.tok.vocab_size]

    def save_pretrained(self, folder):
        """Write network and tokenizer as a folder that transformers and this file can open."""
        head = self.network.get_output_embeddings()
        self.network.set_output_embeddings(head.linear)
        self.network.save_pretrained(folder)
        self.network.set_output_embeddings(head)
        self.tok.tokenizer.save_pretrained(folder)
