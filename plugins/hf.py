"""Networks of transformers: open them, read with them, and translate texts. A network is a folder
that save_pretrained() wrote, a name of the hub, or a run that began with one of the two. If its
class is a ...ForMaskedLM, it fills blanks. Every other network writes from left to right.

    python train_grpo.py plugins/hf.py plugins/causal.py --generator=Qwen/Qwen2.5-0.5B-Instruct ...

Ids below V are the same here and in transformers. We have three more, which theirs_of translates.
Example: V = 6. The tokenizer puts [CLS], 0, before a text, and has [MASK], 1; or it puts <s>, 0.

    our id       0 1 2 3 4 5 blank  bos   pad
    theirs_of    0 1 2 3 4 5 1      0     0     (pad is hidden, or not read, so any id will do)
    a masked network                            a causal network
    tokens             4  blank   5  pad        tokens         <s>  4  5  pad
    inputs      bos    4  blank   5  pad        inputs    bos  <s>  4
    theirs      [CLS]  4  [MASK]  5  0          theirs         <s>  4
    features    cut    x  x       x  x          features  0    x    x  0

Features x of a masked network predict what stands in their own place. Those of a causal one stand
to the right of what it has read: x of <s> is in the place of 4. Nothing predicts the first token,
which is <s> if there is one. So trunk() adds a bos for the one, and drops ours for the other.

This file is executed in the globals of train_grpo.py, and its open_networks(), load_network()
and stats_of() take the place of those there. `inner` is the old function."""
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
from tasks import BLANK, Tokenizer

chat_template = False       # put prompts into the chat template of the tokenizer
chat_options = {}           # what the template is told, such as {"enable_thinking": False}
optimizer = 'adamw'         # 'muon' needs the blocks of a GPT

NUMBERS_AT_ONCE = 2 ** 24   # in a table (tokens, V)
FILES = 'model*.safetensors *.json *.model *.jinja merges.txt vocab.txt'    # to download
DATA = {'trust_remote_code': False, 'local_files_only': True}   # a folder's code is not run
ANY_DAY = '{% macro strftime_now(format) %}2025-01-01{% endmacro %}'    # the same prompt each day
# sizes: N texts of T tokens, L in one pass | V ids of the tokenizer | C channels | M tokens


# ---- open ----------------------------------------------------------------------------------------
def open_networks(paths, dataset, device, files, load_network, inner=open_networks):
    """Find the networks before they are opened. The first rank finds the commit of a name of the
    hub for all, and for the checkpoint, so that a resumed run does not take a newer one."""
    files = files | devices.from_first_rank(
        lambda: {path: file_of(path) for path in paths.values() if path not in {'', *files}})
    return inner(paths, dataset, device, files, load_network)


def file_of(path):
    """Return the checkpoint of a run; OWNER/NAME@COMMIT; or the path, of a folder or a file."""
    folder = folder_of(path)
    ckpt = Path(folder, 'ckpt.pt')
    if ckpt.exists():
        return str(ckpt)
    # In the cache of the hub a folder is .../models--OWNER--NAME/snapshots/COMMIT.
    return re.sub(r'.*models--(.+?)--(.+)/snapshots/', r'\1/\2@', folder)


def folder_of(name):
    """Return the folder of a name of the hub, OWNER/NAME or OWNER/NAME@REVISION, after a download
    of what the local cache lacks. If OWNER is a folder here, it is a path, and stays as it is."""
    if Path(name).parent.exists():
        return name
    repo, _, revision = name.partition('@')
    return hub.snapshot_download(repo, revision=revision or None, allow_patterns=FILES.split())


def load_network(path, device):
    """Return the network of a folder, a name of the hub, or a checkpoint; and the checkpoint."""
    saved = devices.from_first_rank(lambda: load_checkpoint(path) if path.endswith('.pt')
                                    else {'args': {'folder': path}, 'model': {}})
    try:
        network = Pretrained(**saved['args'])   # each machine has a folder of its own
        network.take_features()
    except Exception as e:                      # whatever transformers raises
        raise AssertionError(f"the network of {path} cannot be used: {e!r:.300}") from None
    if saved['model']:
        # The weights of a learned order have no place yet. plugins/order.py loads them.
        network.load_state_dict(saved['model'], strict='order.weight' not in saved['model'])
    total = sum(p.data.view(torch.int32).sum() for p in network.parameters())  # of all bits
    assert total == devices.from_first_rank(lambda: total), "rank 0 has other weights of a network"
    return network.to(device), saved


# ---- the network ---------------------------------------------------------------------------------
class Pretrained(Network):
    """A network of transformers in the place of a GPT. Its weights are float32 (float64, if dtype
    is), however they were stored, because bfloat16 would round an update of 1e-6 away."""

    def __init__(self, folder):
        super().__init__()
        self.args = {'folder': folder}
        folder = folder_of(folder)
        config = transformers.AutoConfig.from_pretrained(folder, **DATA)
        name = config.architectures[0]
        self.kind = 'fill' if name.endswith('MaskedLM') else 'causal'
        self.network = getattr(transformers, name).from_pretrained(
            folder, dtype=torch.get_default_dtype(), **DATA)
        is_new = 'cache' in inspect.signature(self.network.forward).parameters      # since 5.24
        self.cache_name = 'cache' if is_new else 'past_key_values'
        self.tok = tok = PretrainedTokenizer(folder, self.causal)
        self.blank_id, self.bos_id, self.pad_id = tok.blank, tok.bos, tok.pad
        ids = [*range(tok.vocab_size), tok.theirs.mask_token_id or 0, (tok.before + [0])[0], 0]
        self.theirs_of = nn.Buffer(torch.tensor(ids), persistent=False)
        self.n_before = 0 if self.causal else len(tok.before)
        self.block_size = min(getattr(config, 'max_position_embeddings', 1e9),
                              tok.theirs.model_max_length) - self.n_before      # for RoBERTa

    @property
    def head(self):
        return self.network.get_output_embeddings()

    @torch.no_grad()
    @torch.autocast('cpu', enabled=False)       # rounding to bfloat16 could hide a cap
    def take_features(self):
        """Let the output layer, the most expensive one, hand on what it gets. Then .logits of the
        network are features, and our logits() multiplies those by its weights where we need them.
        To replace a method of somebody's object is ugly, but networks call their bodies by many
        names. Refuse a network whose logits are other ones then: it caps logits, looks ahead, keeps
        no keys and values, or sees padding."""
        ids = torch.linspace(5, self.blank_id - 1, 9).long()            # up to the largest
        inputs = F.pad(ids[None], (int(self.causal), 0), value=self.bos_id)
        theirs = self.trunk(inputs, {})[0, 1:9, :self.blank_id]         # still logits
        self.head.forward = lambda x: x
        # With a second row there is padding, and a shared beginning.
        both = torch.stack((F.pad(ids, (0, 2), value=self.pad_id), torch.cat((ids[:4], ids[:7]))))
        ours = self.logits(self.features(both)[0, 1:9])
        assert torch.allclose(ours, theirs, atol=1e-4 * theirs.abs().max()), (
            "expected a linear output layer, and keys and values of each token")

    def features(self, tokens):
        # Networks of transformers cannot read no texts, as a micro-step has them in which nothing
        # learns. So they get one, cut off again: all weights get a gradient of 0, as ranks expect.
        N = len(tokens)
        return super().features(F.pad(tokens, (0, 0, 0, int(N == 0))))[:N]

    def trunk(self, inputs, cache=None):
        """Return features (N, L, C) of inputs (N, L). A causal network needs a cache: a dict, as
        that of a GPT. If the dict is empty, inputs begin with our bos."""
        if not self.causal:
            inputs = F.pad(inputs, (self.n_before, 0), value=self.bos_id)
            is_shown = inputs != self.pad_id
            x = self.network(self.theirs_of[inputs], attention_mask=is_shown).logits
            return x[:, self.n_before:]
        n_bos = 0 if cache else 1
        of_all = {self.cache_name: cache.setdefault('all layers', Cache())}
        if inputs.size(1) == n_bos:             # only our bos: transformers cannot read nothing
            return self.head.weight.new_zeros(len(inputs), 1, self.head.in_features)
        x = self.network(self.theirs_of[inputs[:, n_bos:]], use_cache=True, **of_all).logits
        return F.pad(x, (0, 0, n_bos, 0))

    def logits(self, x):
        """Return logits (..., V) of features (..., C), in float32 also under autocast."""
        with torch.autocast(x.device.type, enabled=False):
            weight = self.head.weight
            return F.linear(x.to(weight.dtype), weight, self.head.bias)[..., :self.blank_id]


class Cache(transformers.DynamicCache):
    """Keys and values of all layers in one object. Of a tensor, kv[:, rows] is a new one. Here it
    keeps these rows in place and returns the same object: ugly, and right as long as nobody uses
    the old kv again. A copy would double the memory."""

    def __getitem__(self, index):
        self.batch_select_indices(index[1])
        return self


def stats_of(policy, x, r, reference=None, x_ref=None, inner=stats_of):
    """Return the Stats of the tokens in parts: a table of all, (M, V), would be too large."""
    # The backward pass makes each part again. The reentrant kind, which warns without a gradient,
    # frees it before the next one. The other kind keeps a KL or an entropy that no loss uses.
    size = 1 + NUMBERS_AT_ONCE // policy.blank_id       # blank_id is V
    rows = torch.arange(len(r.text_of)).split(size)
    parts = [checkpoint(inner, policy, x, r.select(some), reference, x_ref,
                        use_reentrant=x.requires_grad) for some in rows]
    return Stats(*map(torch.cat, zip(*parts)))


# ---- text ----------------------------------------------------------------------------------------
class PretrainedTokenizer(Tokenizer):
    """The tokenizer of a folder, `theirs`. The drawing above has its ids."""

    def __init__(self, folder, causal):
        self.theirs = theirs = transformers.AutoTokenizer.from_pretrained(folder, **DATA)
        self.causal = causal
        ids = theirs.get_vocab()
        self.vocab_size = 1 + max(ids.values())
        self.blank, self.bos, self.pad = range(self.vocab_size, self.vocab_size + 3)
        self.eos = ids[theirs.eos_token or theirs.sep_token]
        self.vocabulary = {'ids': ids, 'eos': self.eos}
        whole = theirs.encode('0')
        self.before = whole[:whole.index(self.ids_of('0')[0])]      # <s>, [CLS], or nothing

    def ids_of(self, text):
        return self.theirs.encode(text, add_special_tokens=False)

    def encode(self, text):
        """Return the ids of a text that follows another text. It is encoded after a line feed, if
        that does not merge with it: Llama 2 puts a space in front of a text that stands alone."""
        feed, ids = self.ids_of('\n'), self.ids_of('\n' + text)
        return ids[len(feed):] if ids[:len(feed)] == feed else self.ids_of(text)

    def prompt_ids(self, text):
        """Return the ids of a prompt: of a causal network as transformers shows it, in the chat
        template, or after what the tokenizer puts before a text.
        To a masked network _ is a blank, and so is the text of its mask token."""
        if not self.causal:
            return super().prompt_ids(text.replace(self.theirs.mask_token, BLANK))
        if chat_template:
            return self.ids_of(self.theirs.apply_chat_template(
                [{'role': 'user', 'content': text}], tokenize=False, add_generation_prompt=True,
                chat_template=ANY_DAY + self.theirs.get_chat_template(), **chat_options))
        ids = self.ids_of(text)                 # a text may have brought what is before it
        return ids if ids[:len(self.before)] == self.before else self.before + ids

    def decode(self, ids):
        """Return the text of a list of ids without special tokens, as TRL hands it to rewards."""
        parts = [[]]                            # between blanks; a character can be several ids
        for i in ids:
            if i == self.blank:
                parts.append([])
            elif i < self.blank:                # bos and pad are larger
                parts[-1].append(i)
        return BLANK.join(self.theirs.decode(part, skip_special_tokens=True,
                                             clean_up_tokenization_spaces=False) for part in parts)

    show = decode


include('plugins/hf_cpu.py')                    # a CPU is faster with it
