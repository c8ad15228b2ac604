"""Models of others: GRPO on what lies in a folder that save_pretrained of transformers wrote.

    python data/pairs/prepare.py mine.jsonl --tokenizer=FOLDER --template=True
    python train_grpo.py config/grpo_pretrained.py --generator_checkpoint=FOLDER

mode = 'causal' takes AutoModelForCausalLM, 'fill' AutoModelForMaskedLM. The text is in ids of the
folder's own tokenizer. Weights are float32, whatever they were stored as: of a step of 1e-6
bfloat16 keeps nothing. Dropout is off, as everywhere here."""
import itertools
import json
import os
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from common import digest_of, fail
from data.dataset import BLANK, Tokenizer

try:
    import transformers
    from transformers.modeling_layers import GradientCheckpointingLayer
except ImportError as e:
    fail(f"no models of others: {e}; pip install transformers safetensors")
# letters: N rows | T positions | S of them | V ids of the tokenizer | U places to choose at


class Chat(str):
    """A text in which names of special tokens mean them. In others '<|im_end|>' is ten letters."""


class PretrainedTokenizer(Tokenizer):
    """The tokenizer of a folder. base: V, its ids; mask, bos, pad: ours, which follow, and which
    Pretrained translates; eos: the id of its own that ends a row (chat: a turn)."""

    def __init__(self, folder, digest=''):
        """digest: what the folder's tokenizer shall be; '': anything."""
        if not os.path.isdir(folder):           # transformers would look for it on the net
            fail(f"no folder {folder} of a pretrained model; bring it back, or prepare the text "
                 "again with another --tokenizer=FOLDER")
        self.kind = folder
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self.base = len(self.tokenizer)
        self.mask, self.bos, self.pad = range(self.base, self.base + 3)
        self.eos = self.tokenizer.eos_token_id
        if self.eos is None:
            self.eos = self.tokenizer.sep_token_id              # BERT: [CLS] text [SEP]
        # The same tokenizer in another folder has the same digest.
        ids = json.dumps(self.tokenizer.get_vocab(), sort_keys=True)
        self.vocabulary = {'kind': folder, 'chars': digest_of(ids, self.eos)}
        if digest not in ('', self.vocabulary['chars']):
            fail(f"the tokenizer in {folder} is not the one that the text was prepared with; "
                 "prepare it again")

    def encode(self, text):
        """List of ids."""
        return self.tokenizer.encode(text, add_special_tokens=False,
                                     split_special_tokens=not isinstance(text, Chat))

    def decode(self, ids):
        """Text; of ours eos is shown as a line feed, a blank as BLANK, BOS and padding not."""
        ours = {self.eos: '\n', self.mask: BLANK, self.bos: '', self.pad: ''}
        text = ''
        for sign, run in itertools.groupby(map(int, ids), ours.get):
            run = list(run)
            if sign is None:
                text += self.tokenizer.decode(run, clean_up_tokenization_spaces=False)
            else:
                text += sign * len(run)
        return text

    def apply_template(self, prompt):
        """The text of a chat in which a user says the prompt and the model is to answer."""
        if not self.tokenizer.chat_template:
            fail(f"{self.kind} has no chat template; expected --template=False")
        text = self.tokenizer.apply_chat_template([{'role': 'user', 'content': prompt}],
                                                  tokenize=False, add_generation_prompt=True)
        return Chat(text.removeprefix(self.tokenizer.bos_token or ''))  # Pretrained puts it there


class Cache(transformers.DynamicCache):
    expand = transformers.DynamicCache.batch_repeat_interleave


class Pretrained(nn.Module):
    """A network of transformers in the place of a GPT, whose docstring says what is needed."""

    def __init__(self, folder, block_size, causal):
        super().__init__()
        self.args = {'folder': folder, 'block_size': block_size, 'causal': causal}
        self.block_size = block_size
        self.causal = causal
        self.unit = 'rows'
        self.tok = PretrainedTokenizer(folder)
        self.vocab_size = self.tok.base
        self.mask_id = self.tok.mask
        self.bos_id = self.tok.bos
        self.pad_id = self.tok.pad
        kind = transformers.AutoModelForMaskedLM
        if causal:
            kind = transformers.AutoModelForCausalLM
        try:
            self.network, info = kind.from_pretrained(folder, dtype=torch.get_default_dtype(),
                                                      trust_remote_code=False,
                                                      output_loading_info=True)
        except (OSError, ValueError) as e:
            fail(f"{folder}: {str(e).splitlines()[0]}")
        if info['missing_keys']:
            fail(f"{folder} lacks {sorted(info['missing_keys'])[0]} of a {kind.__name__}")
        self.network.eval()
        theirs = self.tok.tokenizer
        if block_size >= theirs.model_max_length:
            fail(f"{folder} takes rows of up to {theirs.model_max_length - 1} ids; block_size is "
                 f"{block_size}")

        # What ours become: without a BOS of its own, a text begins with its first id. What is
        # padding nobody looks at, so it can be any id.
        begin = theirs.bos_token_id if causal else theirs.cls_token_id
        self.has_bos = begin is not None
        self.theirs = nn.Buffer(torch.tensor([theirs.mask_token_id or 0, begin or 0,
                                              theirs.pad_token_id or 0]), persistent=False)

        # Between its layers a network that writes keeps one activation for the backward pass, and
        # computes the others again: writing, token by token, takes most of the time anyway.
        for layer in self.network.modules():
            if causal and isinstance(layer, GradientCheckpointingLayer):
                layer.forward = partial(checkpoint, layer.forward, use_reentrant=False,
                                        preserve_rng_state=False)

    @property
    def device(self):
        return self.theirs.device

    def new_cache(self):
        return Cache(config=self.network.config)

    def forward(self, tokens, where, copies=1):
        """Logits (U, V) that score tokens (N, T) at where (N, T); see GPT."""
        where = where.cpu()
        if self.causal:
            last = int(where.any(0).nonzero()[-1])      # what follows it nobody looks at
            return self.logits_at(self.after_bos(tokens[:, :last]), where[:, :last + 1])
        hidden = tokens.masked_fill(where.to(self.device), self.mask_id)
        return self.logits_at(self.after_bos(hidden), F.pad(where, (1, 0)))

    def after_bos(self, tokens):
        return F.pad(tokens, (1, 0), value=self.bos_id)

    def next_logits(self, tokens, cache):
        """Logits (N, V) of what follows tokens (N, S), which follow what the cache holds."""
        where = torch.zeros(tokens.shape, dtype=torch.bool)
        where[:, -1] = True
        return self.logits_at(tokens, where, cache)

    def logits_at(self, inputs, where, cache=None):
        """Logits (U, V), float32 at least, of the network at where (N, S), on the CPU, of inputs
        (N, S) in our ids: a BOS and what follows it, or what follows what the cache holds."""
        if not self.has_bos and (cache is None or cache.get_seq_length() == 0):
            if where[:, 0].any():
                fail(f"{self.args['folder']} has no BOS: a prompt cannot be empty")
            inputs = inputs[:, 1:]
            where = where[:, 1:]
        ids = torch.where(inputs < self.vocab_size, inputs,
                          self.theirs[(inputs - self.vocab_size).clamp(min=0)])
        more = {'past_key_values': cache, 'use_cache': cache is not None}
        if not self.causal:
            more = {'attention_mask': (inputs != self.pad_id).long()}
        # The output layer, which has V columns, is asked just where there is something to choose.
        head = self.network.get_output_embeddings()
        with head.register_forward_pre_hook(lambda module, x: x[0][where]):
            logits = self.network(input_ids=ids, **more).logits[..., :self.vocab_size]  # (U, V)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def load(folder, data, block_size, mode, device):
    """The model of a folder, for a Dataset in whose vocabulary it is, or None."""
    model = Pretrained(folder, block_size, mode == 'causal')
    if data:
        if data.tok.vocabulary['chars'] != model.tok.vocabulary['chars']:
            fail(f"dataset '{data.name}' is not in ids of {folder}; prepare it with "
                 f"--tokenizer={folder}")
        model.tok = data.tok                    # equal, but for the name of its folder
        model.unit = data.meta['unit']
    return model.to(device)


def save(model, folder):
    """Writes a folder that transformers, and load(), can open."""
    model.network.save_pretrained(folder)
    model.tok.tokenizer.save_pretrained(folder)
