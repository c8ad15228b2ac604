"""Networks of transformers. generator, judge and reference can be a folder that save_pretrained()
wrote, a name of the hub, or a run that began with one of the two. A ...ForMaskedLM fills blanks.
Every other network writes from left to right. include() this file before plugins/passes.py.

    python train_grpo.py plugins/causal.py plugins/hf.py --generator=Qwen/Qwen2.5-0.5B-Instruct ...

A name of the hub is downloaded to the local cache, and again if there is a newer commit.
NAME@REVISION is another revision. If there is a folder OWNER here, OWNER/NAME is a path.

Weights are float32, however they were stored, because bfloat16 would round an update of 1e-6 away.

Ids below V are the same here and in transformers. We have three more, blank, bos and pad, which
theirs_of translates. Example: V = 6, and the tokenizer has [CLS] 0, [MASK] 1, or <s> 0. `before`
is what the tokenizer puts in front of a text: [CLS], <s>, or nothing.

    our id       0 1 2 3 4 5 blank  bos   pad
    theirs_of    0 1 2 3 4 5 1      0     0     [MASK] for blank, [CLS] for bos. pad is hidden, or
                                                not read, so any id will do.
    a masked network                            a causal network
    tokens             4  blank   5  pad        tokens         <s>  4  5  pad
    inputs      bos    4  blank   5  pad        inputs    bos  <s>  4
    theirs      [CLS]  4  [MASK]  5  0          theirs         <s>  4
    features    cut    x  x       x  x          features  0    x    x  0

Features x of a masked network predict what stands in their own place, and those of a causal one the
token to the right of what it has read: x of <s> is in the place of 4. The first token of a text,
which nothing predicts, has 0. The prompt of a causal network already begins with <s>, if there is
such a token. So trunk() puts a bos in front for the one, and leaves our bos out for the other.

This file is executed in the globals of train_grpo.py, and its open_networks(), load_network(),
stats_of(), judge_scores(), complete() and sample() take the place of those there. `inner` is the
old function."""
import inspect
import math
import re
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from model import Network, unique_rows
from plumbing.configurator import must_exist
from plumbing.networks import load_checkpoint
from tasks import BLANK, Tokenizer

try:
    import huggingface_hub as hub
    import transformers
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
except ImportError:
    sys.exit("plugins/hf.py needs transformers: pip install transformers")

# The other way round the output for a learned order would be missing.
assert 'n_fill_steps' not in globals(), "include plugins/hf.py before plugins/passes.py"

chat_template = False       # put prompts into the chat template of the tokenizer
chat_options = {}           # what the template is told, such as {"enable_thinking": False}
optimizer = 'adamw'
# Muon needs the blocks of a GPT. To compile these networks takes longer than most runs.
CHOICES |= {'optimizer': ('adamw',), 'compile': (False,)}
MEASURED += ('chat_template', 'chat_options')

NUMBERS_AT_ONCE = 2 ** 24   # in a table (tokens, V)
# A folder is data: its code is not run, and nothing is downloaded for it.
DATA = {'trust_remote_code': False, 'local_files_only': True}
# What is downloaded: weights as safetensors, the config, and the files of the tokenizer.
FILES = {'allow_patterns': ['model*.safetensors', '*.json', '*.model', '*.jinja', 'merges.txt',
                            'vocab.txt'], 'ignore_patterns': ['*/*']}
# With the date of today a chat template would make another prompt tomorrow.
ANY_DAY = '{% macro strftime_now(format) %}2025-01-01{% endmacro %}'

# sizes: N texts of T tokens, L in one pass | V ids of the tokenizer | C channels | M tokens


# ---- open ----------------------------------------------------------------------------------------
def open_networks(paths, *more, inner=open_networks):
    """Replace names of the hub by folders. A resumed run takes the commit with which it began, not
    the newest one: its checkpoint has the name as OWNER/NAME@COMMIT."""
    started_with = generator
    ckpt = Path(out_dir, 'ckpt.pt')
    if resume and ckpt.exists():
        name = load_checkpoint(ckpt)['args'].get('folder', '')
        if name.startswith(generator.partition('@')[0] + '@'):
            started_with = name
    folders = {role: find_network(started_with if path == generator else path)
               for role, path in paths.items()}
    return inner(folders, *more)


def find_network(name):
    """Return the folder of OWNER/NAME, after a download of what the local cache lacks. Another name
    is returned as it is."""
    repo, _, revision = name.partition('@')
    if Path(repo).parent.exists():              # OWNER is a folder here: no name of the hub
        return name and must_exist(name, 'network')     # '' is no network
    try:
        return hub.snapshot_download(repo, revision=revision or None, **FILES)
    except Exception as e:                      # also those of its HTTP library
        raise FileNotFoundError(f"there is no folder {name}, and the hub says: {e}") from None


def load_network(path, device, inner=load_network):
    """Return the network of a folder, of a name of the hub, or of a checkpoint of a run that began
    with one; and the dict of the checkpoint."""
    saved = {'args': {'folder': path}, 'model': {}}
    if Path(path).is_file():
        saved = load_checkpoint(path)
    if 'folder' not in saved['args']:
        return inner(path, device)              # a GPT
    assert 'r' not in saved['args'] or hasattr(Pretrained, 'add_adapters'), (
        f"{path} has adapters: export the run (python -m extras.export)")
    try:
        network = Pretrained(**saved['args'])
    except Exception as e:                      # whatever transformers raises
        raise AssertionError(f"the network of {path} cannot be used: {e!r:.300}") from None
    network.is_start = not saved['model']       # or a run has changed its weights
    if not network.is_start:
        # The weights of a learned order have no place yet. plugins/passes.py loads them.
        network.load_state_dict(saved['model'], strict='order.weight' not in saved['model'])
    if torch.device(device).type == 'cpu':
        devices.keep_memory()       # learn() takes a fifth less time, and 4 to 14 % more memory
    return network.to(device), saved


# ---- the network ---------------------------------------------------------------------------------
class Pretrained(Network):
    """A network of transformers in the place of a GPT. self.network(...).logits are features, which
    you do not expect: take_features() has made its output layer the identity."""

    def __init__(self, folder):
        super().__init__()
        folder = find_network(folder)
        # In the cache of the hub it is .../models--OWNER--NAME/snapshots/COMMIT.
        name = re.sub(r'.*models--(.+?)--(.+)/snapshots/', r'\1/\2@', folder)
        self.args = {'folder': name}
        config = transformers.AutoConfig.from_pretrained(folder, **DATA)
        name_of_class = config.architectures[0]
        self.kind = 'fill' if name_of_class.endswith('MaskedLM') else 'causal'
        self.network, info = getattr(transformers, name_of_class).from_pretrained(
            folder, dtype=torch.get_default_dtype(), output_loading_info=True, **DATA)
        assert not info['missing_keys'], f"{name} lacks weights: {info['missing_keys']}"
        # Older versions of transformers call the argument past_key_values.
        has_cache = 'cache' in inspect.signature(self.network.forward).parameters
        self.cache_name = 'cache' if has_cache else 'past_key_values'
        self.tok = tok = PretrainedTokenizer(folder, self.causal)
        self.blank_id, self.bos_id, self.pad_id = tok.blank, tok.bos, tok.pad
        first = [*tok.before, 0][0]             # a causal network never reads it
        ids = [*range(tok.vocab_size), tok.theirs.mask_token_id or 0, first, 0]
        self.theirs_of = nn.Buffer(torch.tensor(ids), persistent=False)
        # Only a masked network reads more tokens than we give it.
        self.n_before = 0 if self.causal else len(tok.before)
        # RoBERTa reads fewer tokens than max_position_embeddings. Its tokenizer has the limit.
        self.block_size = min(getattr(config, 'max_position_embeddings', math.inf),
                              tok.theirs.model_max_length) - self.n_before
        self.take_features()

    @property
    def head(self):
        return self.network.get_output_embeddings()

    def features(self, tokens):
        """Return features (N, T, C) of tokens (N, T)."""
        # A micro-step in which nothing learns has no texts. Networks of transformers fail then, so
        # they get one text of ids 0, cut off again. It is a hack, but this text gives all weights a
        # gradient of 0, as ranks expect.
        N = len(tokens)
        return super().features(F.pad(tokens, (0, 0, 0, int(N == 0))))[:N]

    def trunk(self, inputs, cache=None):
        """Return features (N, L, C) of inputs (N, L). A causal network needs a cache: a dict, as
        that of a GPT. If the dict is empty, inputs begin with our bos."""
        if not self.causal:
            inputs = F.pad(inputs, (self.n_before, 0), value=self.bos_id)
            is_shown = (inputs != self.pad_id).long()
            return self.read(inputs, attention_mask=is_shown)[:, self.n_before:]
        n_bos = 0 if cache else 1
        options = {self.cache_name: cache.setdefault('all layers', Cache()), 'use_cache': True}
        if inputs.size(1) == n_bos:             # transformers cannot read nothing
            return self.head.weight.new_zeros(len(inputs), 1, self.head.in_features)
        return F.pad(self.read(inputs[:, n_bos:], **options), (0, 0, n_bos, 0))

    def read(self, inputs, **options):
        """Return what the network of transformers returns of inputs: features, in `logits`."""
        return self.network(self.theirs_of[inputs], **options).logits

    def logits(self, x):
        """Return logits (..., V) of features (..., C), in float32 also under autocast."""
        with torch.autocast(x.device.type, enabled=False):
            weight = self.head.weight
            return F.linear(x.to(weight.dtype), weight, self.head.bias)[..., :self.blank_id]

    @torch.no_grad()
    def take_features(self):
        """Let the network of transformers return features in the place of logits. Refuse it if our
        logits then differ: it caps logits, looks ahead, keeps no keys and values, or sees padding.
        """
        # Nine ids, up to the largest. A second row with the same beginning, but longer, makes the
        # test use padding and a cache of the shared beginning.
        ids = torch.linspace(5, self.blank_id - 1, 9).long()
        both = torch.stack((F.pad(ids, (0, 2), value=self.pad_id), torch.cat((ids[:4], ids[:7]))))
        # Logits of a causal network are for the next token, so it need not read the last id.
        inputs = F.pad(ids[None], (self.n_before, -int(self.causal)), value=self.bos_id)
        # Not in bfloat16: its rounding could hide a cap.
        with torch.autocast('cpu', enabled=False):
            theirs = self.read(inputs)[0, :, :self.blank_id]    # here they are still logits
            # We need the output layer, the most expensive one, at few places. So it returns its
            # input from here on, and logits() multiplies by its weights. To replace a method of
            # somebody's object is ugly, but networks call their bodies by many names.
            self.head.forward = lambda x: x
            ours = self.logits(self.features(both)[0, :9])
        # A causal network predicts the last eight.
        assert torch.allclose(ours[-8:], theirs[-8:], atol=1e-4 * theirs.abs().max()), (
            f"{self.args['folder']} has other logits here than in transformers, so it cannot be "
            "used: expected a linear output layer, and keys and values of each token")


class Cache(transformers.DynamicCache):
    """Keys and values of all layers in one object. Ours would be {layer: tensor}, but transformers
    wants its own class. plugins/causal.py and model.py write kv[:, rows] for a new tensor with
    these rows. Here kv[:, rows] keeps these rows in place and returns the same object. This is
    ugly, because [] should change nothing. It is right as long as nobody uses the old kv again,
    and a copy of all keys and values would double the memory."""

    def __getitem__(self, index):
        self.batch_select_indices(index[1])
        return self


# ---- text ----------------------------------------------------------------------------------------
class PretrainedTokenizer(Tokenizer):
    """The tokenizer of a folder, `theirs`. The drawing above has its ids."""

    def __init__(self, folder, causal):
        self.theirs = theirs = transformers.AutoTokenizer.from_pretrained(folder, **DATA)
        self.causal = causal
        ids = theirs.get_vocab()
        self.vocab_size = 1 + max(ids.values())
        self.blank, self.bos, self.pad = range(self.vocab_size, self.vocab_size + 3)
        self.eos = ids.get(theirs.eos_token or theirs.sep_token)
        # What the tokenizer puts before a text: a bos, [CLS], or nothing.
        whole = theirs.encode('0')
        self.before = whole[:whole.index(self.ids_of('0')[0])]
        assert self.eos is not None and (
            causal or theirs.mask_token and len(self.before) < 2), (
            f"the tokenizer of {folder}: expected an eos, which ends a text; to fill blanks also a "
            "mask token, and at most one token before a text")
        self.vocabulary = {'ids': ids, 'eos': self.eos}
        self.special = tuple(str(token) for token in theirs.added_tokens_decoder.values()
                             if token.special)

    def ids_of(self, text):
        return self.theirs.encode(text, add_special_tokens=False)

    def encode(self, text):
        """Return the ids of a text that follows another text. It is encoded after a line feed,
        because Llama 2 puts a space in front of a text that stands alone."""
        assert self.causal or self.theirs.mask_token not in text, (
            f"{text!r:.80}: the mask token is a blank in a prompt, and is no answer")
        line_feed = self.ids_of('\n')
        n = len(line_feed)
        ids = self.ids_of('\n' + text)
        # The line feed may merge with one of the text.
        return ids[n:] if ids[:n] == line_feed else self.ids_of(text)

    def prompt_ids(self, text):
        """Return the ids of a prompt as transformers shows it to a causal network: in the chat
        template, or after what the tokenizer puts before a text. A prompt that begins with a
        special token gets no template. A bos is not put twice. To a masked network _ is the sign
        of a blank, and so is the text of its mask token. To a causal one _ is a character."""
        if not self.causal:
            return super().prompt_ids(text.replace(self.theirs.mask_token, BLANK))
        if chat_template and not text.startswith(self.special):
            try:
                chat = self.theirs.apply_chat_template(
                    [{'role': 'user', 'content': text}], tokenize=False,
                    chat_template=ANY_DAY + self.theirs.get_chat_template(),
                    add_generation_prompt=True, **chat_options)
                assert text.strip() in chat, f"the template returns {chat!r}"
            except Exception as e:              # whatever the code of a template raises
                sys.exit(f"the chat template cannot show the prompt {text!r:.80}: {e}; to use "
                         "none: chat_template=False")
            return self.ids_of(chat)
        ids = self.ids_of(text)
        assert ids or self.before, "an empty prompt, and the tokenizer has no bos: expected a text"
        return ids if ids[:len(self.before)] == self.before else self.before + ids

    def decode(self, ids):
        """Return the text of a list of ids without special tokens, as TRL hands it to rewards."""
        parts = [[]]                            # between blanks
        for i in ids:
            if i == self.blank:
                parts.append([])
            elif i < self.blank:                # bos and pad are larger
                parts[-1].append(i)
        # All of a part at once, because a character can need several ids.
        return BLANK.join(self.theirs.decode(part, skip_special_tokens=True,
                                             clean_up_tokenization_spaces=False) for part in parts)

    show = decode


# ---- in parts: M tokens * 50,000 ids are too many ------------------------------------------------
def stats_of(policy, x, r, reference=None, x_ref=None, inner=stats_of):
    """Return the Stats of the tokens, part by part. The backward pass makes each part again."""
    # The reentrant kind of checkpoint frees a part before it makes the next one. The other kind
    # keeps the tensors of a KL or an entropy that no loss uses: more memory than without parts.
    # Without a gradient there is nothing to keep, and the reentrant kind would warn.
    # blank_id is V, the number of ids.
    size = 1 + NUMBERS_AT_ONCE // policy.blank_id
    rows = torch.arange(len(r.text_of), device=x.device).split(size)
    parts = [checkpoint(inner, policy, x, r.select(some), reference, x_ref,
                        use_reentrant=x.requires_grad) for some in rows]
    return Stats(*map(torch.cat, zip(*parts)))


def judge_scores(judge, texts, inner=judge_scores):
    """Score texts in parts. Features of place 0 are 0, so its logits are the bias alone."""
    rows, inverse = unique_rows(texts)          # equal texts have equal scores, in any part
    parts = texts[rows].split(1 + NUMBERS_AT_ONCE // judge.blank_id // texts.size(1))
    return torch.cat([inner(judge, part) for part in parts])[inverse]


# ---- faster sampling on a CPU: skip this at first ------------------------------------------------
def complete(policy, prompts, k, greedy=False, slower=complete):
    """Complete prompts; from left to right with packed weights, if this processor can."""
    # `slower` is no `inner`: plugins/passes.py refuses to replace a function that has one.
    can_pack = (policy.causal and torch.cpu._is_avx512_supported()
                and policy.head.weight.type() == 'torch.FloatTensor')       # float32, on a CPU
    with packed_weights() if can_pack else nullcontext():
        return slower(policy, prompts, k, greedy)


@contextmanager
def packed_weights():
    """Inside this a linear layer puts its weight once, and not for each token, into the order in
    which a product reads it (under autocast also into bfloat16). Yield {weight: the same, packed}.
    Otherwise a token of SmolLM2-135M takes 1.5 times as long, in float32 1.4 times. To replace a
    function of torch is ugly, and the two for this have no public names. (torch.compile calls
    them, too.)"""
    packed = {}

    def linear(x, weight, bias=None):
        if not isinstance(weight, nn.Parameter):
            return old(x, weight, bias)         # computed, so another one each time
        dtype = torch.get_autocast_dtype('cpu') if torch.is_autocast_enabled('cpu') else x.dtype
        if weight not in packed:
            packed[weight] = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype))
        return torch.ops.mkldnn._linear_pointwise(x.to(dtype), packed[weight], bias, 'none', [], '')

    old, F.linear = F.linear, linear
    try:
        yield packed
    finally:
        F.linear = old


def sample(logits, k=1, greedy=False, inner=sample):
    """Draw ids. For one id torch needs V random numbers, and for two ids two."""
    ids, allowed = inner(logits, max(k, 2), greedy)
    return ids[:, :k], allowed


def attention(module, q, k, v, mask, **options):
    """Return the attention (N, L, H, D) of queries q (N, H, L, D), and no weights. k and v have one
    head for a group of heads of q. For one query in bfloat16 on a CPU, torch's kernel takes eight
    times as long as these two products: a third of the time of 200 tokens. All else is left to
    transformers. (model.py has the same trouble.)"""
    if (q.size(2) > 1 or q.device.type != 'cpu'
            or mask is not None or options.get('position_bias') is not None):
        return sdpa_attention_forward(module, q, k, v, mask, **options)
    q = q.reshape(*k.shape[:2], -1, k.size(3))  # a group is a matrix
    weights = (q @ k.mT * options['scaling']).softmax(-1)
    return (weights @ v).reshape(len(q), 1, -1, v.size(3)), None


transformers.AttentionInterface.register('sdpa', attention)     # the usual one, of all networks
