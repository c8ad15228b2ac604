"""Networks of transformers in the place of a GPT: a folder that save_pretrained() wrote, or one
that was downloaded from the hub.

    python train_grpo.py config/grpo_problems.py --generator=FOLDER --dataset=mine.jsonl
    python -m extras.export out-problems my-folder          # write the policy of a run for others

The folder brings its own tokenizer. A ...ForMaskedLM fills blanks, any other network generates.
Weights are float32, whatever they were stored as, because bfloat16 would round an update of 1e-6
away. Dropout is off, as everywhere here."""
import datetime
import functools
import inspect
import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn

from dataset import BLANK, Tokenizer
from model import Network

# load_network() imports this file only for a folder: the small GPTs need no transformers.
try:
    import transformers
except ImportError as e:
    raise AssertionError(
        f"a pretrained model needs transformers: pip install transformers ({e})") from e

transformers.utils.logging.disable_progress_bar()       # of loading weights

# letters: N sequences | T tokens in each, L in one pass | V ids of the tokenizer | C channels

# A folder brings data: code of its own is not run, and nothing is downloaded.
DATA = {'trust_remote_code': False, 'local_files_only': True}
# The date of chat templates: with that of today a prompt would be another one tomorrow.
A_DAY = datetime.date(2025, 1, 1)


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

    def encode(self, text, goes_on=False):
        """Return a list of ids. The name of a special token, such as <s>, becomes this token.
        goes_on: the text follows another one. Llama 2 puts a space in front of a text, and must not
        do so there."""
        encode = functools.partial(self.tokenizer.encode, add_special_tokens=False)
        before = '\n' if goes_on else ''
        return encode(before + text)[len(encode(before)):]

    def encode_chat(self, prompt):
        """Return the ids of a chat in which a user says the prompt and the model is to answer."""
        assert self.tokenizer.chat_template, f"{self.vocabulary} has no chat template"
        ids = self.tokenizer.apply_chat_template([{'role': 'user', 'content': prompt}],
                                                 add_generation_prompt=True, return_dict=False,
                                                 strftime_now=A_DAY.strftime)
        bos = self.tokenizer.bos_token_id
        if bos is None:
            return ids
        # Network puts a bos before every sequence; that of the template would be a second.
        assert ids[0] == bos, (
            f"the chat template of {self.vocabulary} begins without the bos that all texts get "
            'here; expected "bos_token": null in its tokenizer_config.json')
        return ids[1:]

    def completion_of(self, ids):
        """Return the text of a completion without special tokens, as TRL hands it to rewards."""
        return self.tokenizer.decode([i for i in ids if i < self.vocab_size],
                                     skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def decode(self, ids):
        """Return text. eos is shown as a line feed, a blank as BLANK, bos and pad not at all."""
        ours = {self.eos: '\n', self.blank_id: BLANK, self.bos: '', self.pad: ''}
        text = ''
        # Runs of ordinary ids are decoded together, because a character can need several of them.
        for is_ours, run in itertools.groupby(ids, ours.__contains__):
            if is_ours:
                text += ''.join(map(ours.get, run))
            else:
                text += self.tokenizer.decode(list(run), clean_up_tokenization_spaces=False)
        return text


class Pretrained(Network):
    """A network of transformers in the place of a GPT."""
    is_classifier = False

    def __init__(self, folder):
        super().__init__()
        self.args = {'folder': folder}
        self.tok = PretrainedTokenizer(folder)
        config = transformers.AutoConfig.from_pretrained(folder, **DATA)
        name = config.architectures[0]
        self.causal = not name.endswith('MaskedLM')
        self.network, loading_info = getattr(transformers, name).from_pretrained(
            folder, dtype=torch.get_default_dtype(), output_loading_info=True, **DATA)
        missing = loading_info['missing_keys']
        assert not missing, f"{folder} lacks weights of a {name}: {missing}"    # they are random
        # older versions of transformers have another name for it
        has_cache = 'cache' in inspect.signature(self.network.forward).parameters
        self.cache_name = 'cache' if has_cache else 'past_key_values'
        # RoBERTa has fewer places than positions, and its tokenizer knows. Phi-3 has other keys in
        # longer texts, from their first token on, and a cache would keep those of a short text.
        tokenizer = self.tok.tokenizer
        rope = getattr(config, 'rope_parameters', None) or {}
        n_places = min(config.max_position_embeddings, tokenizer.model_max_length,
                       rope.get('original_max_position_embeddings', math.inf))
        self.block_size = n_places - 1          # one place is for bos
        self.blank_id = self.tok.blank_id
        self.bos_id = self.tok.bos
        self.pad_id = self.tok.pad
        # Our ids are the folder's, but for blank, bos and pad, the last three. They become 0 if it
        # lacks them, or nobody reads them: a causal network gets no blanks, and no position attends
        # to padding. Without a bos of the folder's own, a text begins with its first token.
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
        """Compare logits with those that the network has in transformers, and refuse one that does
        not do what this file takes for granted: its logits are a linear layer's, with no cap behind
        it; a causal one goes on from a cache, and sees nothing that comes later; another one does
        not see padding."""
        # Nine ids, up to the last one of the tokenizer. (RoBERTa counts its padding, one of the
        # first ids, out of the positions.) Here they stand beside a longer text that begins like
        # them, there alone.
        ids = torch.linspace(5, self.tok.vocab_size - 1, 9).long()
        both = torch.stack((F.pad(ids, (0, 2), value=self.pad_id), torch.cat((ids[:4], ids[:7]))))
        with_bos = F.pad(ids[None], (int(self.has_bos), 0), value=self.bos_id)
        # in float32 also where a run has bfloat16, because a cap may change less than that rounds
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision('highest')
        with torch.autocast('cpu', enabled=False):
            theirs = self.network(self.folder_ids[with_bos]).logits[0, :, :self.tok.vocab_size]
            # The output layer has V columns and is the most expensive one. transformers would make
            # logits at every position, and few of them are needed. So what its network calls logits
            # are features from here on, and logits() below calls the layer.
            self.head.forward = lambda x: x
            ours = self.logits(self(both, start=4)[0, :len(ids)])
        torch.set_float32_matmul_precision(precision)
        if self.causal:                         # those at a token are about the next one
            theirs = theirs[:-1]
        # (the last eight: [CLS] comes before the first, and without a bos nothing predicts it)
        error = (ours[-8:] - theirs[-8:]).abs().max() / theirs.abs().max()
        assert error < 1e-4, (
            f"{self.args['folder']} has other logits here than in transformers (relative error "
            f"{error:.1g}), so it cannot be used")

    def compile(self):
        raise AssertionError("compile = True is for GPTs: torch compiles a network of transformers "
                             "for longer than most runs take")

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

    def trunk(self, inputs, cache=None):
        """Return features (N, L, C) of inputs (N, L), our ids. cache: the tokens to their left."""
        # (features and not logits: see check())
        if not self.causal:                     # [CLS] stands before the text
            n = int(self.has_bos)
            inputs = F.pad(inputs, (n, 0), value=self.bos_id)
            mask = (inputs != self.pad_id).long()
            return self.network(self.folder_ids[inputs], attention_mask=mask).logits[:, n:]
        if inputs[0, 0] == self.bos_id and not self.has_bos:    # left out; its features are 0
            return F.pad(self.trunk(inputs[:, 1:], cache), (0, 0, 1, 0))
        options = {self.cache_name: cache, 'use_cache': cache is not None}
        return self.network(self.folder_ids[inputs], **options).logits
