"""Networks of transformers in the place of a GPT: a folder that save_pretrained() wrote, or one
that was downloaded from the hub.

    python train_grpo.py config/grpo_smollm2.py --generator=FOLDER --dataset=mine.jsonl
    python -m extras.export out-smollm2 my-folder           # write the policy of a run for others

The folder brings its own tokenizer. A ...ForCausalLM generates, a ...ForMaskedLM fills blanks.
Weights are float32, whatever they were stored as, because bfloat16 would round an update of 1e-6
away. Dropout is off, as everywhere here."""
import inspect
import itertools
import os
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from dataset import Tokenizer, contents
from dataset import BLANK
from model import NUMBERS_AT_ONCE, Network
from run.command import reading
from run.machine import free_memory, n_ranks, print0

# load_network() imports this file only for a folder: the small GPTs need no transformers.
try:
    import transformers
except ImportError as e:
    raise AssertionError(
        f"a pretrained model needs transformers: pip install transformers ({e})") from e

transformers.utils.logging.disable_progress_bar()       # of loading weights

# letters: N sequences, in runs of `copies` that share a prompt | T tokens in each, L in one pass
# V ids of the tokenizer

# A folder brings data: code of its own is not run, and nothing is downloaded.
DATA = {'trust_remote_code': False, 'local_files_only': True}
# A chat template may say what day it is. A run that is resumed on another day has the same prompts.
DAY = "{% macro strftime_now(format) %}01 Jan 2025{% endmacro %}"


class PretrainedTokenizer(Tokenizer):
    """The tokenizer of a folder: its vocab_size (V) ids and its eos. blank_id, bos and pad are
    ours: they follow the V ids, and Pretrained translates them."""

    def __init__(self, folder):
        self.vocabulary = folder
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **DATA)
        # All of this project has one numbering: the V ids of the tokenizer, then blank, bos, pad.
        # (There can be holes among the ids.)
        self.vocab_size = 1 + max(self.tokenizer.get_vocab().values())
        self.blank_id, self.bos, self.pad = range(self.vocab_size, self.vocab_size + 3)
        self.eos = self.tokenizer.eos_token_id
        if self.eos is None:
            self.eos = self.tokenizer.sep_token_id              # BERT: [CLS] text [SEP]
        assert self.eos is not None, f"the tokenizer of {folder} has no eos, which ends a text"

    def encode(self, text):
        """Return a list of ids. The name of a special token is encoded as plain text."""
        ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        # (BERT's tokenizer has words and no spaces, so it drops the one before a blank.)
        assert self.decode(ids).strip() == text.strip(), self.change_of(text, ids)
        return ids

    def change_of(self, text, ids):
        """Say that the tokenizer changes a text. One that writes small letters, say, would make
        right answers wrong; another lacks a character."""
        return (f"the tokenizer of {self.vocabulary} changes texts: {text!r:.80} becomes "
                f"{self.decode(ids)!r:.80}")

    def encode_chat(self, prompt):
        """Return the ids of a chat in which a user says the prompt and the model is to answer."""
        assert self.tokenizer.chat_template, f"{self.vocabulary} has no chat template"
        with reading(f"the chat template of {self.vocabulary}"):
            template = self.tokenizer.get_chat_template()
            if 'strftime_now' in template:
                template = DAY + template
            text = self.tokenizer.apply_chat_template(
                [{'role': 'user', 'content': prompt}], chat_template=template, tokenize=False,
                add_generation_prompt=True)
        assert prompt.strip() in text, (
            f"the chat template of {self.vocabulary} leaves out the prompt {prompt!r:.80}")
        # Network puts a bos before every sequence; that of the template would be a second.
        bos = self.tokenizer.bos_token or ''
        assert text.startswith(bos), (
            f"the chat template of {self.vocabulary} begins without {bos!r}, the bos that all "
            'texts get here; expected "bos_token": null in its tokenizer_config.json')
        ids = self.tokenizer.encode(text.removeprefix(bos), add_special_tokens=False)
        assert prompt.strip() in self.decode(ids), self.change_of(prompt, ids)
        return ids

    def decode(self, ids):
        """Return text. eos is shown as a line feed, a blank as BLANK, bos and pad not at all."""
        ours = {self.eos: '\n', self.blank_id: BLANK, self.bos: '', self.pad: ''}
        text = ''
        # Runs of ordinary ids are decoded together, because a character can need several of them.
        for sign, run in itertools.groupby(ids, ours.get):
            run = list(run)
            if sign is None:
                text += self.tokenizer.decode(run, clean_up_tokenization_spaces=False)
            else:
                text += sign * len(run)
        return text


# the files of a folder that say what its weights are for, by the beginnings of their names
SETTINGS = ('config', 'tokenizer', 'vocab', 'merges', 'special_tokens', 'added_tokens',
            'chat_template', 'spiece', 'sentencepiece')


def file_checksum(folder):
    """Return a number that tells settings, tokenizer and chat template of a folder from others."""
    crc = 0
    for path in sorted(Path(folder).iterdir()):
        if path.is_file() and path.name.startswith(SETTINGS):
            crc = zlib.crc32(path.read_bytes(), crc)
    return crc


def identity(x):
    return x


class Pretrained(Network):
    """A network of transformers in the place of a GPT."""
    is_classifier = False

    def __init__(self, folder, files=None):
        """files: what file_checksum() was when a run began from the folder, if one did."""
        super().__init__()
        self.args = {'folder': folder, 'files': file_checksum(folder)}
        assert files in (None, self.args['files']), (
            f"settings or tokenizer of {folder} have changed since the run that began from it")
        assert not os.path.exists(f'{folder}/adapter_config.json'), (       # it would be put on top
            f"{folder} has an adapter of peft: merge_and_unload() it, and save the network alone")
        self.tok = PretrainedTokenizer(folder)
        config = transformers.AutoConfig.from_pretrained(folder, **DATA)
        name = (config.architectures or ['network without a name'])[0]
        assert name.endswith(('CausalLM', 'LMHeadModel', 'MaskedLM')), (
            f"{folder} has a {name}: expected a ...ForCausalLM or a ...ForMaskedLM")
        self.causal = not name.endswith('MaskedLM')
        kind = getattr(transformers, name)
        # older versions of transformers have another name for it
        named = inspect.signature(kind.forward).parameters
        self.cache_name = 'cache' if 'cache' in named else 'past_key_values'
        self.network, loading_info = kind.from_pretrained(
            folder, dtype=torch.get_default_dtype(), output_loading_info=True, **DATA)
        self.network.eval()
        n_known = self.network.get_input_embeddings().num_embeddings
        assert self.tok.vocab_size <= n_known, (
            f"the tokenizer of {folder} has {self.tok.vocab_size} ids, but its network knows "
            f"{n_known}: see resize_token_embeddings() of transformers")
        # weights that are missing would be random
        wrong = {key: sorted(map(str, names)) for key, names in loading_info.items()
                 if key in ('missing_keys', 'unexpected_keys') and names}
        assert not wrong, (
            f"the weights of {folder} are not those of a {name}: {wrong!s:.300}. If only those of "
            "another output layer are unexpected, open it there and write it with save_pretrained")
        # RoBERTa has fewer places than positions, and its tokenizer knows.
        n_places = [config.max_position_embeddings, self.tok.tokenizer.model_max_length]
        rope = getattr(config, 'rope_parameters', None) or getattr(config, 'rope_scaling', None)
        if 'longrope' in str(rope):     # Phi-3, Phi-4: a longer text has other keys from the start
            n_places.append(rope.get('original_max_position_embeddings')
                            or config.original_max_position_embeddings)
        self.block_size = min(n_places) - 1     # one place is for bos
        self.blank_id = self.tok.blank_id
        self.bos_id = self.tok.bos
        self.pad_id = self.tok.pad
        # Our ids are the folder's, but for blank, bos and pad, the last three. They become 0 if it
        # lacks them, or nobody reads them: a causal network gets no blanks, and no position attends
        # to padding. Without a bos of the folder's own, a text begins with its first token.
        tokenizer = self.tok.tokenizer
        assert self.causal or tokenizer.mask_token_id is not None, (
            f"the tokenizer of {folder} has no mask token, which stands for a blank")
        bos = tokenizer.bos_token_id if self.causal else tokenizer.cls_token_id
        self.has_bos = bos is not None
        folder_ids = torch.arange(self.tok.vocab_size + 3)
        folder_ids[-3:] = torch.tensor([tokenizer.mask_token_id or 0, bos or 0, 0])
        self.folder_ids = nn.Buffer(folder_ids, persistent=False)
        self.check()

    @torch.no_grad()
    def check(self):
        """Let the network return features, and refuse one that does not do what this file takes for
        granted. Nine ids tell: no matter which, but not the first, because RoBERTa counts its
        padding out of the positions."""
        assert all(weight.isfinite().all() for weight in self.network.parameters()), (
            f"{self.args['folder']} has weights that are not finite")
        ids = torch.arange(5, 14)[None] % self.tok.vocab_size
        n_more = int(self.has_bos and not self.causal)          # see trunk()
        given = self.folder_ids[F.pad(ids, (n_more, 0), value=self.bos_id)]
        with torch.autocast('cpu', enabled=False):
            logits = self.network(given).logits
            # The output layer has V columns and is the most expensive one. transformers would make
            # logits at every position, and few of them are needed. So what its network calls logits
            # are features from here on, and logits() below calls the layer.
            self.head.forward = identity
            features = self.network(given).logits
            # nothing follows the output layer, such as a cap on logits
            logits = logits[..., :self.tok.vocab_size]
            assert torch.allclose(self.logits(features), logits, atol=1e-4), (
                f"{self.args['folder']} changes its logits after the output layer, which is not "
                "supported")
            # A causal network sees nothing that comes later, and goes on from a cache. Another one
            # does not see padding.
            if self.causal:
                cache = self.new_cache()
                first = self.trunk(ids[:, :4], cache)
                cache.batch_select_indices(torch.tensor([0]))
                x = torch.cat((first, self.trunk(ids[:, 4:], cache)), 1)
            else:
                x = self.trunk(F.pad(ids, (0, 2), value=self.pad_id))[:, :9]
        # (on some machines products are bfloat16, which is off by less than a hundredth)
        assert (x - features[:, n_more:]).abs().max() <= 0.03 * features.abs().max(), (
            f"{self.args['folder']} sees padding, or, as a ...ForCausalLM, what comes later or "
            "nothing of its cache, so it cannot be used")

    def new_cache(self):
        return transformers.DynamicCache()

    @property
    def head(self):
        return self.network.get_output_embeddings()

    def logits(self, x):
        """Return logits (..., V) of features (..., C), in float32 even under autocast: bfloat16
        logits would be off by up to 0.2."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.head.weight.dtype)
            return type(self.head).forward(self.head, x)[..., :self.tok.vocab_size]

    def forward(self, tokens, copies=1):
        """Return features (N, T, C), see Network.

        A backward pass needs what each layer computed, about a megabyte a token. So of many tokens
        only a part goes through the network at a time, and the backward pass makes it again."""
        # A token counts as 4096 numbers. A part is some whole runs of copies, at least one.
        if not self.causal:
            copies = 1
        run = copies * tokens.size(1)
        size = copies * max(1, NUMBERS_AT_ONCE // 4096 // run)
        if size >= len(tokens):
            return self.forward_part(tokens, copies)
        return torch.cat([checkpoint(self.forward_part, part, copies, use_reentrant=False)
                          for part in tokens.split(size)])

    def forward_part(self, tokens, copies):
        if not self.causal:
            return super().forward(tokens, copies)
        # nobody looks at the padding that all sequences end with
        stop = int((tokens != self.pad_id).any(0).nonzero()[-1]) + 1
        x = super().forward(tokens[:, :stop], copies)
        return F.pad(x, (0, 0, 0, tokens.size(1) - stop))

    def trunk(self, inputs, cache=None):
        """Return features (N, L, C) of inputs (N, L), our ids. cache: the tokens to their left."""
        #                   our inputs      what the network gets       features that we return
        # masked            text            [CLS] text                  those of the text
        # causal            bos text        bos text                    all
        # causal, no bos    bos text        text                        0 for bos, those of the text
        # (A call that continues a cache has no bos.)
        n_more = 0                              # inputs that the network gets in front
        if self.has_bos and not self.causal:
            n_more = 1
        elif not self.has_bos and inputs[0, 0] == self.bos_id:
            n_more = -1
        inputs = F.pad(inputs, (n_more, 0), value=self.bos_id)      # of -1, pad() takes one away
        more = {self.cache_name: cache, 'use_cache': cache is not None}
        if not self.causal:
            more = {'attention_mask': (inputs != self.pad_id).long()}
        # (features and not logits: see check())
        x = self.network(input_ids=self.folder_ids[inputs], **more).logits
        return F.pad(x, (0, 0, -n_more, 0))


# ---- memory --------------------------------------------------------------------------------------


def memory_of(network, texts, config):
    """Return about how many bytes a run takes that begins with this network, and trains on texts
    with the knobs of config: see Cost in the manual."""
    # weight, gradient and two moments, the cast to bfloat16, and the weight of the reference
    per_weight = 16
    if torch.is_autocast_enabled(network.device.type):
        per_weight += 2
    if config['kl_beta'] > 0 or 'kl' in config['rewards']:
        per_weight += 4
    # What a backward pass needs of the tokens that go through the network at a time. The peak on a
    # CPU was 1.75 times what the layers keep.
    args = network.network.config
    inner = getattr(args, 'intermediate_size', None) or 4 * args.hidden_size
    per_token = 1.75 * args.num_hidden_layers * (36 * args.hidden_size + 10 * inner)
    # (tok.encode() would refuse marked blanks)
    tok = network.tok
    encode = tok.encode_chat if config['chat_template'] else tok.tokenizer.encode
    longest = len(encode(max((contents(text)[0] for text in texts), key=len)))
    n_tokens = config['batch_size'] * config['group_size'] * (longest + config['max_new_tokens'])
    n_tokens = min(n_tokens, NUMBERS_AT_ONCE // 4096)           # of a part, see forward()
    n_weights = sum(p.numel() for p in network.parameters())
    return n_weights * per_weight + n_tokens * per_token


def warn_of_memory(network, texts, config):
    """Print a line if a run needs more than half of the memory that is free."""
    needed = memory_of(network, texts, config)
    free = free_memory(network.device)
    if network.device.type == 'cpu':
        needed *= n_ranks()                     # which share it; each has a GPU of its own
    if needed > free / 2:
        print0(f"memory: the run takes about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are "
               "free; a smaller batch_size needs less: docs/manual.md#cost")
