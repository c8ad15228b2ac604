"""Networks of transformers. generator, judge and reference can be a folder that save_pretrained()
wrote, a name of the hub, or a run that began with one of the two. A ...ForMaskedLM fills blanks.
Every other network writes from left to right. include() this file before plugins/passes.py.

    python train_grpo.py plugins/causal.py plugins/hf.py --generator=Qwen/Qwen2.5-0.5B-Instruct ...

A name of the hub is downloaded once, to the cache of the hub. NAME@REVISION is another revision.
A folder of this name comes first.

Weights are float32, however they were stored, because bfloat16 would round an update of 1e-6 away.
Names that are not imported here are those of train_grpo.py, and inner is the function that a
function replaces."""
import functools
import inspect
import itertools
import math
import re
from pathlib import Path

import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from model import Network
from run import load_checkpoint
from shared import unique_rows
from tasks import BLANK

try:
    import huggingface_hub as hub
    import transformers
except ImportError:
    sys.exit("plugins/hf.py needs transformers: pip install transformers")

assert 'fill_order' not in globals(), "include plugins/hf.py before plugins/passes.py"
transformers.utils.logging.disable_progress_bar()       # of loading weights

chat_template = False       # put prompts into the chat template of the tokenizer
chat_options = {}           # what the template is told, such as {"enable_thinking": False}
optimizer = 'adamw'
# torch compiles such a network for longer than most runs take.
CHOICES |= {'optimizer': ('adamw',), 'compile': (False,)}
MEASURED += ('chat_template', 'chat_options')

NUMBERS_AT_ONCE = 2 ** 22   # in a table (tokens, V)
# A folder is data: its code is not run, and nothing is downloaded for it.
DATA = {'trust_remote_code': False, 'local_files_only': True}
# What is downloaded: weights as safetensors, the config, and the files of the tokenizer.
FILES = {'allow_patterns': ['model*.safetensors', '*.json', '*.model', '*.jinja', 'merges.txt',
                            'vocab.txt'], 'ignore_patterns': ['*/*']}
REASONS = {'RepositoryNotFoundError': "the hub has no such network, or it is private",
           'RevisionNotFoundError': "the one of the hub has no such revision",
           'GatedRepoError': "the hub asks you to accept conditions on the page of the network"}
# With the date of today a chat template would make another prompt tomorrow.
ANY_DAY = '{% macro strftime_now(format) %}2025-01-01{% endmacro %}'

# sizes: N texts of T tokens, L in one pass | V ids of the tokenizer | C channels | M tokens


def load_network(path, device, inner=load_network):
    """Return the network of a folder, of a name of the hub, or of a checkpoint of a run that began
    with one; and the dict of the checkpoint."""
    saved = {'args': {'folder': path}, 'model': {}}
    if Path(path).is_file():
        saved = load_checkpoint(path)
    if 'folder' not in saved['args']:
        return inner(path, device)              # a GPT, which has another vocabulary
    network = Pretrained(**saved['args'])
    if saved['model']:
        missing, _ = network.load_state_dict(saved['model'], strict=False)     # without an order
        assert not missing, f"{path} lacks weights: {missing}"
    return network.to(device), saved


# ---- the hub -------------------------------------------------------------------------------------
def open_networks(paths, dataset, device, load_network, *more, inner=open_networks):
    """Put folders in the place of names of the hub. A run that is resumed, or that begins in the
    folder of an older one, takes the commit that the checkpoint names."""
    ckpt = Path(out_dir, 'ckpt.pt')
    known = load_checkpoint(ckpt)['args'].get('folder', '') if ckpt.exists() else ''
    found = {role: find_network(known if known.startswith(f'{path}@') else path)
             for role, path in paths.items()}
    names = dict(found.values())
    return inner({role: folder for role, (folder, _) in found.items()}, dataset, device,
                 lambda folder, device: load_network(names.get(folder, folder), device), *more)


def find_network(name):
    """Return the folder of a network, and its name, with the commit if the hub has it. What is in
    the cache of the hub is not asked for again."""
    if Path(name).exists() or not re.fullmatch(r'[\w.-]+/[\w.-]+(?<!\.p[yt])(@.+)?', name):
        return name, name
    repo, _, revision = name.partition('@')
    options = {'repo_id': repo, 'revision': revision or None}
    try:
        folder = hub.snapshot_download(**options, **FILES, local_files_only=True)
        assert any(Path(folder).glob('*.safetensors'))
    except (AssertionError, OSError, ValueError):       # not there, or only a part of it
        folder = download(name, options)
    return folder, f'{repo}@{Path(folder).name}'


def download(name, options):
    """Download a network to the cache of the hub. Return its folder."""
    problem = "the one of the hub has no safetensors"
    try:
        info = hub.model_info(**options, files_metadata=True)
        sizes = {file.rfilename: file.size for file in info.siblings}
        files = [*hub.utils.filter_repo_objects(sizes, **FILES)]
        if 'custom_code' in info.tags:
            problem = "the one of the hub has code of its own, which is not run here"
        elif any('.safetensors' in file for file in files):
            print(f"downloading {name}: {sum(map(sizes.get, files)) / 1e9:.2f} GB", flush=True)
            return hub.snapshot_download(**options, **FILES)
    except Exception as e:                      # also those of the library below the hub's
        problem = REASONS.get(type(e).__name__, f"the hub cannot be asked ({type(e).__name__})")
    sys.exit(f"there is no folder {name}, and {problem}")


# ---- text ----------------------------------------------------------------------------------------
class PretrainedTokenizer:
    """The tokenizer of a folder. Its V ids keep their numbers, with holes. blank, bos and pad are
    ours: they stand behind the V ids, and Pretrained translates them."""

    def __init__(self, folder, causal):
        self.theirs = theirs = transformers.AutoTokenizer.from_pretrained(folder, **DATA)
        self.causal = causal
        ids = theirs.get_vocab()
        self.vocab_size = 1 + max(ids.values())
        self.blank, self.bos, self.pad = range(self.vocab_size, self.vocab_size + 3)
        self.line_feed = self.ids_of('\n')
        self.specials = tuple(str(token) for token in theirs.added_tokens_decoder.values()
                              if token.special)
        # What the tokenizer puts around a text: a bos, [CLS] and [SEP], an eos, or nothing.
        text, whole = self.ids_of('0'), theirs.encode('0')
        start = whole.index(text[0])
        self.before, behind = whole[:start], whole[start + len(text):]
        self.eos = theirs.eos_token_id if causal else next(iter(behind), None)
        assert self.eos is not None, f"the tokenizer of {folder} has no eos, which ends a text"
        # A network reads a bos, or [CLS], in front of a text only if the tokenizer puts it there.
        if causal:
            has_bos = self.prompt_ids('0')[0] == theirs.bos_token_id
            self.their_bos = theirs.bos_token_id if has_bos else None
        else:
            self.their_bos, = self.before or [None]
        self.vocabulary = {'ids': ids, 'eos': self.eos}

    def ids_of(self, text):
        return self.theirs.encode(text, add_special_tokens=False)

    def encode(self, text):
        """Return the ids of a text that goes on after another one: Llama 2 puts a space in front of
        others."""
        n, ids = len(self.line_feed), self.ids_of('\n' + text)
        # Two line feeds can be one token.
        return ids[n:] if ids[:n] == self.line_feed else self.ids_of(text)

    def prompt_ids(self, text):
        """Return the ids of a prompt as transformers shows it to a causal network: in the chat
        template, or behind what the tokenizer puts before a text. A prompt that brings this does
        not get it twice."""
        if chat_template and not text.startswith(self.specials):
            text = self.in_template(text)
        ids = self.ids_of(text)
        has_all = chat_template or ids[:len(self.before)] == self.before
        return ids if has_all else self.before + ids

    def in_template(self, text):
        """Return a prompt in the chat template. Some templates read texts, others lists of
        parts."""
        errors = []
        for content in (text, [{'type': 'text', 'text': text}]):
            try:
                chat = self.theirs.apply_chat_template(
                    [{'role': 'user', 'content': content}], tokenize=False,
                    chat_template=ANY_DAY + self.theirs.get_chat_template(),
                    add_generation_prompt=True, **chat_options)
                assert text.strip() in chat, f"it makes {chat!r} of it"
                return chat
            except Exception as e:              # whatever the code of a template raises
                errors.append(f'{type(e).__name__}: {e}')
        sys.exit(f"the chat template cannot show the prompt {text!r:.80}: {errors[0]:.200}; to use "
                 "none: chat_template=False")

    def decode(self, ids):
        """Return the text of a list of ids without special tokens, as TRL hands it to rewards."""
        text = ''
        for is_blank, run in itertools.groupby(ids, self.blank.__eq__):
            run = [i for i in run if i <= self.blank]
            # All at once, because a character can need several ids.
            text += BLANK * len(run) if is_blank else self.theirs.decode(
                run, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    show = decode


class Task(Task):
    """A Task for language models: chat templates, and _ as a character of a causal one."""

    def encode(self, record):
        tok = self.tok
        if not tok.causal:
            return super().encode(record)
        prompt, answer = tok.prompt_ids(record['prompt']), tok.encode(record['answer'])
        assert prompt, f"{record}: without a bos a network cannot begin a text"
        if tok.their_bos is not None:           # which the network reads in front of all texts
            bos, *prompt = prompt
            assert bos == tok.their_bos, f"{record}: expected the bos before the prompt"
        return prompt + answer + [tok.eos], prompt + [tok.blank] * (len(answer) + 1), len(prompt)


# ---- the network ---------------------------------------------------------------------------------
class Cache(transformers.DynamicCache):
    """Keys and values of all layers, which kv[:, rows] cuts, in place, like a tensor of one."""

    def __getitem__(self, index):
        self.batch_select_indices(index[1])
        return self


class Pretrained(Network):
    """A network of transformers in the place of a GPT."""

    def __init__(self, folder):
        super().__init__()
        folder, name = find_network(folder)
        self.args = {'folder': name}
        for path in Path(folder).glob('*config.json'):
            assert '"auto_map"' not in path.read_text('utf-8'), (
                f"{path} has an auto_map, so {name} brings code of its own, which is not run here; "
                "expected a network that transformers has")
        config = transformers.AutoConfig.from_pretrained(folder, **DATA)
        kind = config.architectures[0]
        self.causal = not kind.endswith('MaskedLM')
        self.tok = tok = PretrainedTokenizer(folder, self.causal)
        self.network, info = getattr(transformers, kind).from_pretrained(
            folder, dtype=torch.get_default_dtype(), output_loading_info=True, **DATA)
        assert not info['missing_keys'], f"{name} lacks weights: {info['missing_keys']}"
        n_ids = self.network.get_input_embeddings().num_embeddings
        assert n_ids >= tok.vocab_size, (
            f"{name} can read {n_ids} ids, and its tokenizer has {tok.vocab_size}")
        # Older versions of transformers have another name for it.
        has_cache = 'cache' in inspect.signature(self.network.forward).parameters
        self.cache_name = 'cache' if has_cache else 'past_key_values'
        self.has_bos = int(tok.their_bos is not None)
        # RoBERTa has fewer places than positions, and its tokenizer knows. Phi-3 has other keys in
        # longer texts, from their first token on, and a cache would keep those of a short one.
        rope = getattr(config, 'rope_parameters', None) or {}
        self.block_size = min(getattr(config, 'max_position_embeddings', math.inf),
                              tok.theirs.model_max_length,
                              rope.get('original_max_position_embeddings', math.inf)) - self.has_bos
        # Our ids are theirs but for the last three. What a folder lacks, or nobody sees, is 0.
        self.blank_id, self.bos_id, self.pad_id = tok.blank, tok.bos, tok.pad
        mask = tok.theirs.mask_token_id
        assert self.causal or mask is not None, (
            f"the tokenizer of {name} has no mask token, which stands for a blank")
        ids = [*range(tok.vocab_size), mask or 0, tok.their_bos or 0, 0]
        self.theirs_of = nn.Buffer(torch.tensor(ids), persistent=False)
        self.check()

    @torch.no_grad()
    def check(self):
        """Compare logits with those of transformers. Refuse a network whose logits are not those of
        a linear layer (a cap), which looks ahead, has no cache of keys, or sees padding."""
        name = self.args['folder']
        assert not self.network._is_stateful, (
            f"{name} keeps a state, and no keys and values of each token: it cannot be used")
        # Nine ids, up to the last one. Here they stand beside a longer text that begins like them.
        ids = torch.linspace(5, self.blank_id - 1, 9).long()
        both = torch.stack((F.pad(ids, (0, 2), value=self.pad_id), torch.cat((ids[:4], ids[:7]))))
        inputs = F.pad(ids[None], (self.has_bos, 0), value=self.bos_id)
        # Exactly, because a cap may change less than bfloat16 rounds.
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision('highest')
        with torch.autocast('cpu', enabled=False):
            theirs = self.network(self.theirs_of[inputs]).logits[0, :, :self.blank_id]
            # The output layer is the most expensive one, and few places need it. So what their
            # network calls logits are features from here on, and logits() calls the layer.
            self.head.forward = lambda x: x
            ours = self.logits(self.features(both)[0, :9])
        torch.set_float32_matmul_precision(precision)
        if self.causal:                         # those at a token are about the next one
            theirs = theirs[:-1]
        error = (ours[-8:] - theirs[-8:]).abs().max() / theirs.abs().max()
        assert error < 1e-4, (
            f"{name} has other logits here than in transformers (relative error {error:.1g}), so "
            "it cannot be used")

    @property
    def head(self):
        return self.network.get_output_embeddings()

    def logits(self, x):
        """Return logits (..., V) of features (..., C), in float32 also under autocast."""
        with torch.autocast(x.device.type, enabled=False):
            weight = self.head.weight
            return F.linear(x.to(weight.dtype), weight, self.head.bias)[..., :self.blank_id]

    def features(self, tokens):
        """Return features (N, T, C) of tokens (N, T)."""
        # Their networks fail at an empty batch, which a rank has if all its groups are dead. A row
        # that is cut off again gives all weights a gradient of 0.
        N = len(tokens)
        return super().features(F.pad(tokens, (0, 0, 0, int(N == 0))))[:N]

    def trunk(self, inputs, cache=None):
        """Return features (N, L, C) of inputs (N, L). cache: a dict, as that of a GPT."""
        if not self.causal:
            inputs = F.pad(inputs, (self.has_bos, 0), value=self.bos_id)            # [CLS]
            x = self.network(self.theirs_of[inputs], attention_mask=(inputs != self.pad_id).long())
            return x.logits[:, self.has_bos:]
        # Without a bos a network reads nothing in the first column, and nothing predicts the first
        # token, whose features are 0.
        n = int(not self.has_bos and not cache)
        options = {self.cache_name: cache.setdefault('all layers', Cache()), 'use_cache': True}
        if inputs.size(1) == n:
            return torch.zeros(len(inputs), n, self.head.in_features, device=inputs.device)
        return F.pad(self.network(self.theirs_of[inputs[:, n:]], **options).logits, (0, 0, n, 0))


# ---- in parts: M tokens * 50,000 ids are too many ------------------------------------------------
def stats_of(policy, x, r, reference=None, x_ref=None, inner=stats_of):
    """Return the Stats of some rows of the table after the other. The backward pass makes each part
    again."""
    # The reentrant kind of checkpoint forgets a part before it makes the next one. The other kind
    # keeps the parts of the KL and of the entropy, if no loss uses them: more than all at once.
    run = functools.partial(checkpoint, inner, use_reentrant=True) if x.requires_grad else inner
    rows = torch.arange(len(r.text), device=x.device).split(1 + NUMBERS_AT_ONCE // policy.pad_id)
    parts = [run(policy, x, r.select(some), reference, x_ref) for some in rows]
    return Stats(*map(torch.cat, zip(*parts)))


def judge_scores(judge, texts, inner=judge_scores):
    """Score texts in parts. To a judge without a bos all first tokens are equally likely."""
    rows, inverse = unique_rows(texts)
    parts = texts[rows].split(1 + NUMBERS_AT_ONCE // judge.pad_id // texts.size(1))
    return torch.cat([inner(judge, part) for part in parts])[inverse]
