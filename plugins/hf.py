"""Networks of transformers. generator, judge and reference can be folders that save_pretrained()
wrote, or runs that began with one. A ...ForMaskedLM fills blanks, every other network writes from
left to right. include() this in a config, before plugins/passes.py.

    python train_grpo.py plugins/causal.py plugins/hf.py --generator=FOLDER --dataset=mine.jsonl

knobs: chat_template. optimizer is 'adamw', and compile False: torch compiles such a network for
longer than most runs take. Weights are float32, however they were stored, because bfloat16 would
round an update of 1e-6 away. (What is not imported here is of train_grpo.py; inner is the function
that is replaced.)"""
import functools
import inspect
import math
from dataclasses import replace
from pathlib import Path

import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from model import Network, distinct
from tasks import BLANK

try:
    import transformers
except ImportError:
    sys.exit("plugins/hf.py needs transformers: pip install transformers")

assert 'fill_order' not in globals(), "include plugins/hf.py before plugins/passes.py"
transformers.utils.logging.disable_progress_bar()       # of loading weights

chat_template = False       # put prompts into the chat template of the tokenizer
optimizer = 'adamw'
CHOICES |= {'optimizer': ('adamw',), 'compile': (False,)}

NUMBERS_AT_ONCE = 2 ** 22   # in a table (tokens, V)
# A folder brings data: code of its own is not run, and nothing is downloaded.
DATA = {'trust_remote_code': False, 'local_files_only': True}
# With the date of today a chat template would make another prompt tomorrow.
ANY_DAY = '{% macro strftime_now(format) %}2025-01-01{% endmacro %}'

# sizes: N texts of T tokens, L in one pass | V ids of the tokenizer | C channels | M tokens


def load_network(path, device, inner=load_network):
    """Return the network of a folder, or of a checkpoint of a run that began with one; its
    tokenizer; and what else was saved."""
    saved = {'args': {'folder': path}, 'model': {}}
    if not Path(path).is_dir():
        saved = torch.load(path, map_location='cpu', weights_only=True)
    if 'folder' not in saved['args']:
        return inner(path, device)              # a GPT, which has another vocabulary
    network = Pretrained(saved['args']['folder'])
    if saved['model']:
        missing, _ = network.load_state_dict(saved['model'], strict=False)     # without an order
        assert not missing, f"{path} lacks weights: {missing}"
    return network.to(device), network.tok, saved


# ---- text ----------------------------------------------------------------------------------------


class PretrainedTokenizer:
    """The tokenizer of a folder. Its V ids keep their numbers; there can be holes. blank, bos and
    pad are ours: they stand behind the V ids, and Pretrained translates them."""

    def __init__(self, folder, causal):
        self.theirs = transformers.AutoTokenizer.from_pretrained(folder, **DATA)
        self.causal = causal
        ids = self.theirs.get_vocab()
        self.vocab_size = 1 + max(ids.values())
        self.blank, self.bos, self.pad = range(self.vocab_size, self.vocab_size + 3)
        # A masked network reads [CLS] text [SEP].
        self.their_bos = self.theirs.bos_token_id if causal else self.theirs.cls_token_id
        self.eos = self.theirs.convert_tokens_to_ids(self.theirs.eos_token or self.theirs.sep_token)
        assert self.eos is not None, f"the tokenizer of {folder} has no eos, which ends a text"
        self.vocabulary = {'ids': ids, 'eos': self.eos}

    def encode(self, text):
        """Return the ids of a text that goes on after another one: Llama 2 puts a space in front of
        others."""
        alone, before, both = [self.theirs.encode(part, add_special_tokens=False)
                               for part in (text, '\n', '\n' + text)]
        # (Two line feeds can be one token.)
        return both[len(before):] if both[:len(before)] == before else alone

    def encode_prompt(self, text):
        """Return the ids of a prompt, in the chat template or not, without the bos that all texts
        get from the network."""
        ids = self.theirs.encode(text, add_special_tokens=False)
        # A text that begins with a special token has been put into the template before.
        if chat_template and not set(ids[:1]) & set(self.theirs.all_special_ids):
            ids = self.theirs.apply_chat_template(
                [{'role': 'user', 'content': text}], add_generation_prompt=True, return_dict=False,
                chat_template=ANY_DAY + self.theirs.get_chat_template())
            assert self.their_bos in (None, ids[0]), (
                "the chat template begins without the bos that all texts get here; expected "
                '"bos_token": null in tokenizer_config.json')
        return ids[1:] if ids[:1] == [self.their_bos] else ids

    def decode(self, ids):
        """Return the text of a list of ids without special tokens, as TRL hands it to rewards."""
        runs = [[]]                             # a character can need several ids
        for i in ids:
            if i == self.blank:
                runs.append([])
            elif i < self.vocab_size:
                runs[-1].append(i)
        return BLANK.join(self.theirs.decode(run, skip_special_tokens=True,
                                             clean_up_tokenization_spaces=False) for run in runs)


class Task(Task):
    """A Task for language models: chat templates, and _ as a character of a causal one."""

    def encode(self, record):
        tok = self.tok
        if not tok.causal:
            return super().encode(record)
        prompt, answer = tok.encode_prompt(record['prompt']), tok.encode(record['answer'])
        assert prompt or tok.their_bos is not None, (
            f"{record}: without a bos in its tokenizer a network cannot begin a text")
        return prompt + answer + [tok.eos], prompt + [tok.blank] * (len(answer) + 1), len(prompt)


# ---- the network ---------------------------------------------------------------------------------


class Cache(transformers.DynamicCache):
    """Keys and values of all layers, which kv[:, rows] cuts like a tensor of one."""

    def __getitem__(self, index):
        self.batch_select_indices(index[1])
        return self


class Pretrained(Network):
    """A network of transformers in the place of a GPT."""

    def __init__(self, folder):
        super().__init__()
        for path in Path(folder).glob('*config.json'):
            assert '"auto_map"' not in path.read_text('utf-8'), (
                f"{path} has an auto_map, so {folder} brings code of its own, which is not run "
                "here; expected a network that transformers has")
        self.args = {'folder': folder}
        config = transformers.AutoConfig.from_pretrained(folder, **DATA)
        kind = config.architectures[0]
        self.causal = not kind.endswith('MaskedLM')
        self.tok = tok = PretrainedTokenizer(folder, self.causal)
        self.network, info = getattr(transformers, kind).from_pretrained(
            folder, dtype=torch.get_default_dtype(), output_loading_info=True, **DATA)
        assert not info['missing_keys'], f"{folder} lacks weights: {info['missing_keys']}"
        n_ids = self.network.get_input_embeddings().num_embeddings
        assert n_ids >= tok.vocab_size, (
            f"{folder} can read {n_ids} ids, and its tokenizer has {tok.vocab_size}")
        # Older versions of transformers have another name for it.
        has_cache = 'cache' in inspect.signature(self.network.forward).parameters
        self.cache_name = 'cache' if has_cache else 'past_key_values'
        # RoBERTa has fewer places than positions, and its tokenizer knows. Phi-3 has other keys in
        # longer texts, from their first token on, and a cache would keep those of a short one.
        rope = getattr(config, 'rope_parameters', None) or {}
        tok.block_size = min(getattr(config, 'max_position_embeddings', math.inf),
                             tok.theirs.model_max_length,
                             rope.get('original_max_position_embeddings', math.inf)) - 1    # bos
        # Our ids are theirs but for the last three. What a folder lacks, or nobody sees, is 0.
        self.blank_id, self.bos_id, self.pad_id = tok.blank, tok.bos, tok.pad
        mask = tok.theirs.mask_token_id
        assert self.causal or mask is not None, (
            f"the tokenizer of {folder} has no mask token, which stands for a blank")
        self.has_bos = tok.their_bos is not None
        ids = [*range(tok.vocab_size), mask or 0, tok.their_bos or 0, 0]
        self.theirs_of = nn.Buffer(torch.tensor(ids), persistent=False)
        self.check()

    @torch.no_grad()
    def check(self):
        """Compare logits with those of transformers. Refuse a network whose logits are not those of
        a linear layer (a cap), which looks ahead, has no cache of keys, or sees padding."""
        folder = self.args['folder']
        assert not self.network._is_stateful, (
            f"{folder} keeps a state, and no keys and values of each token: it cannot be used")
        # Nine ids, up to the last one. Here they stand beside a longer text that begins like them.
        ids = torch.linspace(5, self.blank_id - 1, 9).long()
        both = torch.stack((F.pad(ids, (0, 2), value=self.pad_id), torch.cat((ids[:4], ids[:7]))))
        inputs = F.pad(ids[None], (int(self.has_bos), 0), value=self.bos_id)
        # Exactly, because a cap may change less than bfloat16 rounds.
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision('highest')
        with torch.autocast('cpu', enabled=False):
            theirs = self.network(self.theirs_of[inputs]).logits[0, :, :self.blank_id]
            # The output layer is the most expensive one, and few places need it. So what their
            # network calls logits are features from here on, and logits() calls the layer.
            self.head.forward = lambda x: x
            ours = self.logits(self(both)[0, :9])
        torch.set_float32_matmul_precision(precision)
        if self.causal:                         # those at a token are about the next one
            theirs = theirs[:-1]
        error = (ours[-8:] - theirs[-8:]).abs().max() / theirs.abs().max()
        assert error < 1e-4, (
            f"{folder} has other logits here than in transformers (relative error {error:.1g}), so "
            "it cannot be used")

    @property
    def head(self):
        return self.network.get_output_embeddings()

    def logits(self, x):
        """Return logits (..., V) of features (..., C), in float32 also under autocast."""
        with torch.autocast(x.device.type, enabled=False):
            weight = self.head.weight
            return F.linear(x.to(weight.dtype), weight, self.head.bias)[..., :self.blank_id]

    def trunk(self, inputs, cache=None):
        """Return features (N, L, C) of inputs (N, L). cache: a dict, as that of a GPT."""
        # [CLS] stands before a text. Without a bos nothing predicts the first token of a causal
        # network: its features are 0.
        shift = int(self.has_bos)
        if self.causal:
            shift = -int(not self.has_bos and not cache)
        # Their networks fail at no text at all, which a rank can have to learn from. A row that is
        # cut off again gives all weights a gradient of 0.
        N = len(inputs)
        inputs = F.pad(inputs, (shift, 0, 0, int(N == 0)), value=self.bos_id)
        if self.causal:
            options = {self.cache_name: cache.setdefault('all layers', Cache()), 'use_cache': True}
        else:
            options = {'attention_mask': (inputs != self.pad_id).long()}
        x = self.network(self.theirs_of[inputs], **options).logits
        return F.pad(x, (0, 0, -shift, 0))[:N]


# ---- in parts: M tokens * 50,000 ids are too many ------------------------------------------------


def stats_of(policy, x, r, reference=None, x_ref=None, inner=stats_of):
    """The backward pass makes each part again. (The reentrant kind of checkpoint forgets a part
    before it makes the next one. The other kind keeps those of the KL and of the entropy, if no
    loss uses them: more memory than all at once.)"""
    run = functools.partial(checkpoint, inner, use_reentrant=True) if x.requires_grad else inner
    parts = []
    for m in torch.arange(len(r.n), device=x.device).split(1 + NUMBERS_AT_ONCE // policy.pad_id):
        kept = None if r.kept is None else r.kept[m]
        part = replace(r, n=r.n[m], t=r.t[m], id=r.id[m], view=r.view[m], kept=kept)
        parts.append(run(policy, x, part, reference, x_ref))
    return Stats(*map(torch.cat, zip(*parts)))


def judge_scores(judge, sequences, inner=judge_scores):
    """(To a judge without a bos all first tokens are equally likely.)"""
    example, kind = distinct(sequences)
    parts = sequences[example].split(1 + NUMBERS_AT_ONCE // judge.pad_id // sequences.size(1))
    return torch.cat([inner(judge, texts) for texts in parts])[kind]
