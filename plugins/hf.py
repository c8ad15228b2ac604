"""Teach a language model of transformers, such as Llama or Qwen, instead of the GPT of model.py.

    python train_grpo.py plugins/causal.py plugins/hf.py --generator=Qwen/Qwen2.5-0.5B-Instruct ...

A network is a folder that save_pretrained() wrote, a name of the hub, or a run that began with one
of these. A network whose class ends with ForMaskedLM (BERT, ESM) fills blanks: leave out
plugins/causal.py. Every other network writes from left to right.

GRPO itself does not change: to train_grpo.py a Pretrained is a Network like the GPT. This file only
translates two things.

Ids. Ours are the V ids of the tokenizer, and three more, V, V + 1 and V + 2: blank, bos and pad.
`theirs_of` says what transformers reads instead of each of them.

Positions. Our features at position t predict token t. The features of a masked network do so, too.
A causal network predicts the next token, so here its features move one position to the right.
Nothing predicts the first token, which is <s> if the tokenizer has one; there the features are 0.

    a causal network                            a masked network
    position        0     1     2     3         position               0     1       2     3
    tokens          <s>   4     5     pad       tokens                 4     blank   5     pad
    inputs          bos   <s>   4               inputs                 4     blank   5     pad
    they read             <s>   4               they read       [CLS]  4     [MASK]  5     (hidden)
    features        0     x     x               features        (cut)  x     x       x     x

This file is executed in the globals of train_grpo.py. Its open_networks(), load_network() and
stats_of() replace the functions there; `inner` is the old function."""
import inspect
import re
from pathlib import Path

import huggingface_hub as hub
import torch.nn.functional as F
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint

from model import Network
from plumbing.networks import load_checkpoint
from plumbing.process import Mistake, expect
from tasks import BLANK, Tokenizer

chat_template = False       # True: show each prompt as the turn of a user in a chat
chat_options = {}           # for the chat template, such as {"enable_thinking": False}
optimizer = 'adamw'         # 'muon' needs the blocks of a GPT

NUMBERS_AT_ONCE = 2 ** 24   # in a table (tokens, V): 64 MB
FILES = 'model*.safetensors *.json *.model *.jinja merges.txt vocab.txt'.split()  # to download
# For from_pretrained(): run no code that comes with a network, and do not ask the hub again.
SAFE = {'trust_remote_code': False, 'local_files_only': True}
# Some chat templates tell the date. The same prompt each day makes a run repeatable.
ANY_DAY = '{% macro strftime_now(format) %}2025-01-01{% endmacro %}'
# transformers warns of weights that are missing, and goes on. Here they are a mistake.
transformers.logging.set_verbosity_error()

# Shapes in comments: N texts of T tokens, L inputs of a call, V ids, C channels, M sampled tokens.


# ---- find a network ------------------------------------------------------------------------------
def open_networks(paths, dataset, device, files, load_network, inner=open_networks):
    """Find networks before they are opened. The first rank asks the hub for all ranks, and the
    checkpoint remembers the commit that it got, so that a resumed run does not get a newer one."""
    files = files | devices.from_first_rank(
        lambda: {path: file_of(path) for path in paths.values() if path not in {'', *files}})
    return inner(paths, dataset, device, files, load_network)


def file_of(path):
    """Return the checkpoint of a run, the path of a folder, or OWNER/NAME@COMMIT of the hub."""
    expect(not path.partition(' ')[0].endswith('.py'), f"{path} is a recipe of pretrain.py, and "
           "plugins/hf.py, which plugins/lora.py includes, is for networks of transformers")
    folder = folder_of(path)
    ckpt = Path(folder, 'ckpt.pt')
    if ckpt.exists():
        return str(ckpt)
    # The hub's cache has its folders at .../models--OWNER--NAME/snapshots/COMMIT.
    return re.sub(r'.*models--(.+?)--(.+)/snapshots/', r'\1/\2@', folder)


def folder_of(name):
    """Return a path as it is. For OWNER/NAME or OWNER/NAME@REVISION return the folder in the hub's
    cache, and download what it lacks. (If there is a folder OWNER here, the name is a path.)"""
    if Path(name).parent.exists():
        expect(Path(name).exists(), f"there is no folder {name} here, and a name of the hub is "
               "OWNER/NAME (docs/language-models.md)")
        return name
    repo, _, revision = name.partition('@')
    try:
        folder = hub.snapshot_download(repo, revision=revision or None, allow_patterns=FILES)
        if not any(Path(folder).glob('model*.safetensors')):    # older networks have only these:
            hub.snapshot_download(repo, revision=Path(folder).name,
                                  allow_patterns=['pytorch_model*.bin'])
    except Exception as e:                      # no such name, no connection, no permission
        reason = ' '.join(str(e).split())
        raise Mistake(f"there is no folder {name} here, and the hub did not give it: is there a "
                      "network, and such a name? python -m extras.smollm2 out/smollm2 makes a "
                      f"folder without the hub. ({type(e).__name__}: {reason:.90})") from None
    return folder


# ---- open it -------------------------------------------------------------------------------------
def load_network(path, device):
    """Return the network of a folder, of a name of the hub, or of a checkpoint; and the dict of the
    checkpoint."""
    saved = devices.from_first_rank(lambda: load_checkpoint(path) if path.endswith('.pt')
                                    else {'args': {'folder': path}, 'model': {}})
    expect('folder' in saved['args'], f"{path} is a network of pretrain.py, and plugins/hf.py, "
           "which plugins/lora.py includes, is for networks of transformers")
    try:
        network = Pretrained(**saved['args'])
        network.take_features()
    except Exception as e:                      # whatever transformers raises
        reason = e if isinstance(e, Mistake) else f'{e!r:.300}'
        raise Mistake(f"the network of {path} cannot be used: {reason}") from None
    if saved['model']:
        # Weights of a learned order have no place yet: plugins/order.py loads them.
        network.load_state_dict(saved['model'], strict='order.weight' not in saved['model'])
    # Each machine has read its own folder, and ranks must begin alike: compare sums of all bits.
    total = sum(p.data.view(torch.int32).sum() for p in network.parameters())
    expect(total == devices.from_first_rank(lambda: total), f"{path}: rank 0 has other weights")
    return network.to(device), saved


def open_folder(folder):
    """Return the network of transformers in a folder, and its config. Refuse a folder that is not
    a whole network."""
    expect(not Path(folder, 'adapter_config.json').exists(), "it is an adapter: merge it with its "
           "network first (docs/language-models.md)")
    config = transformers.AutoConfig.from_pretrained(folder, **SAFE)
    quantized = config.to_dict().get('quantization_config') or {}
    expect(not quantized, f"its weights are quantized ({quantized.get('quant_method')}): take the "
           "unquantized network")
    expect(config.architectures, "its config.json names no architectures")
    # float32, however the weights were stored: bfloat16 would round an update of 1e-6 away. (With
    # --dtype=float64 the default of torch is float64.)
    network, info = getattr(transformers, config.architectures[0]).from_pretrained(
        folder, dtype=torch.get_default_dtype(), output_loading_info=True, **SAFE)
    missing = sorted(info['missing_keys'])
    expect(not missing, f"it has no weights for {', '.join(missing[:3])}: they would be random")
    return network, config


# ---- the network ---------------------------------------------------------------------------------
class Pretrained(Network):
    """A network of transformers, `network`, that train_grpo.py can use like a GPT."""

    def __init__(self, folder):
        super().__init__()
        self.args = {'folder': folder}
        folder = folder_of(folder)
        self.network, config = open_folder(folder)
        self.kind = 'fill' if config.architectures[0].endswith('MaskedLM') else 'causal'
        self.tok = tok = PretrainedTokenizer(folder, self.causal)
        self.blank_id, self.bos_id, self.pad_id = tok.blank, tok.bos, tok.pad
        # bos and pad get any id: bos is cut off, and pad is hidden, or stands behind everything.
        ids = [*range(tok.vocab_size), tok.theirs.mask_token_id or 0, 0, 0]
        self.theirs_of = nn.Buffer(torch.tensor(ids), persistent=False)
        # [CLS]. (From left to right, <s> is a token of the prompt: see prompt_ids().)
        before = [] if self.causal else tok.before
        self.before = nn.Buffer(torch.tensor(before, dtype=torch.long), persistent=False)
        # Two limits, because RoBERTa has positions that it cannot use.
        self.block_size = min(getattr(config, 'max_position_embeddings', 1e9),
                              tok.theirs.model_max_length) - len(before)
        # transformers has called it `cache` since 5.24.
        is_new = 'cache' in inspect.signature(self.network.forward).parameters
        self.cache_name = 'cache' if is_new else 'past_key_values'

    @property
    def head(self):
        return self.network.get_output_embeddings()

    @torch.no_grad()
    def take_features(self):
        """Make `network` return features instead of logits. With 50,000 ids the output layer is
        the most expensive one, and transformers applies it at every position, but we need logits
        only where a token is sampled. So let the layer hand on what it gets; logits() multiplies by
        its weights. (Networks have many names for their bodies. This works with all names.)

        That is wrong for a network that changes its logits afterwards. So compare the logits of a
        text before and after, and refuse a network where they differ. Afterwards there is padding,
        and a beginning that two texts share. So a network that looks ahead, sees padding, or keeps
        no keys and values is refused, too."""
        ids = torch.linspace(5, self.blank_id - 1, 9).long()            # the largest id is there
        inputs = F.pad(ids[None], (int(self.causal), 0), value=self.bos_id)
        expected = self.trunk(inputs, {})[0, 1:9, :self.blank_id]       # still logits
        self.head.forward = lambda x: x
        padded = F.pad(ids, (0, 2), value=self.pad_id)
        other = torch.cat((ids[:4], ids[:7]))
        ours = self.logits(self.features(torch.stack((padded, other)))[0, 1:9])
        is_same = torch.allclose(ours, expected, atol=1e-4 * expected.abs().max())
        expect(is_same, "its logits are others once its output layer is applied outside, and keys "
               "and values are kept")

    def features(self, tokens):
        """Return features (N, T, C) of tokens (N, T): see Network."""
        if len(tokens) > 0:
            return super().features(tokens)
        # A micro-step where all rewards are equal reads nothing, which transformers cannot. So read
        # a text, and keep none of it. All weights get a gradient of 0, and ranks can add up theirs.
        return super().features(F.pad(tokens, (0, 0, 0, 1)))[:0]

    def trunk(self, inputs, cache=None):
        """Return features (N, L, C) of inputs (N, L). With a cache, a dict, the inputs of a causal
        network continue what the cache has read."""
        if self.causal:
            return self.read_on(inputs, cache)
        before = self.before.expand(len(inputs), -1)                    # (N, 1)  [CLS]
        is_shown = F.pad(inputs != self.pad_id, (before.size(1), 0), value=True)
        with self.precision():
            x = self.network(torch.cat((before, self.theirs_of[inputs]), 1),
                             attention_mask=is_shown).logits
        return x[:, before.size(1):]

    def read_on(self, inputs, cache):
        """Return trunk() of a causal network. If the cache is empty, the inputs begin with our bos,
        whose features are 0."""
        if not cache:
            cache['all layers'] = Cache()
            if inputs.size(1) == 1:             # nothing but bos
                return self.head.weight.new_zeros(len(inputs), 1, self.head.in_features)
            return F.pad(self.read_on(inputs[:, 1:], cache), (0, 0, 1, 0))
        keys_and_values = {self.cache_name: cache['all layers']}
        with self.precision():
            return self.network(self.theirs_of[inputs], use_cache=True, **keys_and_values).logits

    def logits(self, x):
        """Return logits (..., V) of features (..., C), in the precision of the weights. (A network
        may have a few more rows than its tokenizer has ids. They are cut off.)"""
        weight = self.head.weight
        return F.linear(x.to(weight.dtype), weight, self.head.bias)[..., :self.blank_id]


class Cache(transformers.DynamicCache):
    """Keys and values of all layers. A GPT has a tensor for each layer, and kv[:, rows] is a new
    tensor with some of the texts. Here kv[:, rows] drops the other texts from the cache itself, and
    returns it: a copy would double the memory, and nobody uses the old one again."""

    def __getitem__(self, index):
        self.batch_select_indices(index[1])
        return self


def stats_of(policy, x, rollout, reference=None, x_ref=None, inner=stats_of):
    """Return the Stats of the tokens, computed for some tokens at a time. A table (M, V) of all
    would be the largest thing in memory: 200 MB for 1,000 tokens and 50,000 ids, and backward needs
    several of them. So the table of a part is thrown away, and the backward pass makes it again."""
    size = 1 + NUMBERS_AT_ONCE // policy.blank_id       # tokens; blank_id is V
    rows = torch.arange(len(x), device=x.device).split(size)
    x_refs = x_ref.split(size) if reference else [None] * len(rows)
    parts = []
    for some, ours, theirs in zip(rows, x.split(size), x_refs):
        # The reentrant kind frees a part before it makes the next one. (The other kind keeps a KL
        # or an entropy that no loss uses.) Without a gradient it would only warn.
        parts.append(checkpoint(inner, policy, ours, rollout.select(some), reference, theirs,
                                use_reentrant=x.requires_grad))
    return Stats(*map(torch.cat, zip(*parts)))


# ---- text ----------------------------------------------------------------------------------------
class PretrainedTokenizer(Tokenizer):
    """The tokenizer of a folder, `theirs`, as a Tokenizer."""

    def __init__(self, folder, causal):
        self.theirs = theirs = transformers.AutoTokenizer.from_pretrained(folder, **SAFE)
        self.causal = causal
        ids = theirs.get_vocab()
        self.vocab_size = 1 + max(ids.values())
        self.blank, self.bos, self.pad = range(self.vocab_size, self.vocab_size + 3)
        eos = theirs.eos_token or theirs.sep_token
        expect(eos in ids, "its tokenizer has no token that ends a text: set eos_token in "
               "tokenizer_config.json")
        expect(causal or theirs.mask_token, "its tokenizer has no token for a blank: set "
               "mask_token in tokenizer_config.json")
        self.eos = ids[eos]
        self.vocabulary = {'ids': ids, 'eos': self.eos}
        whole = theirs.encode('0')
        self.before = whole[:whole.index(self.ids_of('0')[0])]      # <s>, [CLS], or nothing

    def ids_of(self, text):
        return self.theirs.encode(text, add_special_tokens=False)

    def encode(self, text):
        """Return the ids of a text that follows another text. Llama 2 puts a space before a text
        that stands alone. So encode a line feed and the text, and cut the line feed off, if it has
        not become one token with the text."""
        feed, ids = self.ids_of('\n'), self.ids_of('\n' + text)
        return ids[len(feed):] if ids[:len(feed)] == feed else self.ids_of(text)

    def prompt_ids(self, text):
        """Return the ids of a prompt. For a masked network each _, and each mask token, is a blank.
        For a causal network _ is a character, and the prompt begins with <s>, or is in a chat."""
        if not self.causal:
            return super().prompt_ids(text.replace(self.theirs.mask_token, BLANK))
        if chat_template:
            return self.ids_of(self.chat_of(text))
        ids = self.ids_of(text)
        if ids[:len(self.before)] != self.before:       # a prompt may have brought its own <s>
            ids = self.before + ids
        expect(ids, "an empty prompt, and the tokenizer puts nothing before it: the network cannot "
               "predict a first token")
        return ids

    def chat_of(self, text):
        """Return a prompt in the chat template: the turn of a user, and where an answer begins."""
        try:
            chat = self.theirs.apply_chat_template(
                [{'role': 'user', 'content': text}], tokenize=False, add_generation_prompt=True,
                chat_template=ANY_DAY + self.theirs.get_chat_template(), **chat_options)
        except Exception as e:                  # no template, or one that refuses this prompt
            raise Mistake(f"chat_template = True: {e!r:.200}") from None
        expect(text.strip() in chat, f"the chat template leaves out the prompt: {chat!r:.200}")
        return chat

    def decode(self, ids):
        """Return the text of a list of ids, without special tokens. (TRL gives the same text to
        rewards.)"""
        parts = [[]]                            # between blanks; a character can be several ids
        for i in ids:
            if i == self.blank:
                parts.append([])
            elif i < self.blank:                # bos and pad are larger
                parts[-1].append(i)
        return BLANK.join(self.theirs.decode(part, skip_special_tokens=True,
                                             clean_up_tokenization_spaces=False) for part in parts)

    show = decode


include('plugins/hf_cpu.py')                    # makes it faster on a CPU
