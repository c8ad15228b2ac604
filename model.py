"""The GPT, in one file: the network, its checkpoint, the device, its optimizers. One class is
generator and judge. It has no dropout: sampling and learning must see the same network."""
import atexit
import functools
import math
import os
import pickle

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from muon import Muon
from tasks import Tokenizer

# sizes: N sequences | T tokens, L of them in one pass | V ids | C channels | H heads | D = C / H


def norm(x):
    """Normalize x over the channels, without weights."""
    return F.layer_norm(x, x.shape[-1:])


def linear(n_in, n_out, std):
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(layer.weight, std=std)
    return layer


def attention(q, k, v, mask):
    """Return the attention of q (N, H, L, D) to k, v (N, H, keys, D). mask: added to the scores."""
    if q.device.type != 'cpu':
        return F.scaled_dot_product_attention(q, k, v, mask.to(q.dtype))
    # On a CPU the fused kernel is slower for heads as small as ours: a default step takes 1.35
    # times as long. This is softmax(q k / sqrt(D) + mask) v, with the scores written once.
    mask = mask.to(q.dtype).expand(len(q), q.size(1), -1, -1).flatten(0, 1)
    scores = torch.baddbmm(mask, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=q.size(-1) ** -0.5)
    return (scores.softmax(-1) @ v.flatten(0, 1)).view_as(q)


class Block(nn.Module):
    """x + proj(attention(norm(x))), then x + down(relu(up(norm(x))))."""

    def __init__(self, n_layer, n_head, n_embd):
        super().__init__()
        self.n_head = n_head
        small = 0.02 / math.sqrt(2 * n_layer)   # the residual stream adds up 2 * n_layer of them
        self.qkv = linear(n_embd, 3 * n_embd, n_embd ** -0.5)
        self.proj = linear(n_embd, n_embd, small)
        self.up = linear(n_embd, 4 * n_embd, n_embd ** -0.5)
        self.down = linear(4 * n_embd, n_embd, small)

    def forward(self, x, mask, rotary, cache):
        qkv = self.qkv(norm(x)).unflatten(2, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        qkv = qkv.contiguous()                                              # (3, N, H, L, D)
        if rotary is not None:
            # Halves a, b of a head of q and k become a cos - b sin, b cos + a sin.
            cos, sin = rotary                                               # (L, D) each
            a, b = qkv[:2].chunk(2, -1)
            qk = qkv[:2] * cos + torch.cat((-b, a), -1) * sin
            qkv = torch.cat((qk.to(qkv.dtype), qkv[2:]))
        q, k, v = qkv                                                       # (N, H, L, D) each
        if cache is not None:                   # it has keys and values of the tokens to the left
            kv = torch.cat((cache[self], qkv[1:]), -2) if self in cache else qkv[1:]
            cache[self] = kv
            k, v = kv
        y = attention(q, k, v, mask)
        x = x + self.proj(y.transpose(1, 2).flatten(2))                     # heads side by side
        return x + self.down(self.up(norm(x)).relu_())


class Network(nn.Module):
    """A network as GRPO sees it: trunk(inputs, cache) returns features, logits(features) logits."""

    @property
    def device(self):
        return next(self.parameters()).device

    def forward(self, tokens):
        """Return features (N, T, C) of tokens (N, T); logits() of those at t predict token t. A
        bidirectional network predicts blanks. A causal one sees what is to the left of t, so of
        a b c its trunk reads bos a b."""
        if not self.causal:
            return self.trunk(tokens)
        n = max(2, int((tokens != self.pad_id).any(0).sum()))       # of the longest text, or 2
        x = self.read(F.pad(tokens[:, :n - 1], (1, 0), value=self.bos_id))
        return F.pad(x, (0, 0, 0, tokens.size(1) - n))

    def read(self, inputs):
        """Return trunk(inputs) of a causal network, in less time: beginnings that texts have in
        common, their prompts, are computed once, with the gradient of all."""
        L = shared_length(inputs)
        example, row = distinct(inputs[:, :L])
        cache = {}
        x = self.trunk(inputs[example, :L], cache)[row]
        if L < inputs.size(1):
            cache = {layer: kv[:, row] for layer, kv in cache.items()}
            x = torch.cat((x, self.trunk(inputs[:, L:], cache)), 1)
        return x


class GPT(Network):
    """Pre-norm transformer without biases, bidirectional or causal. It reads V base ids, and behind
    them blank_id, bos_id and pad_id, which it never predicts."""

    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd, causal,
                 positions='learned'):
        super().__init__()
        self.args = {'vocab_size': vocab_size, 'block_size': block_size, 'n_layer': n_layer,
                     'n_head': n_head, 'n_embd': n_embd, 'causal': causal,
                     'positions': positions}
        assert n_embd % n_head == 0, f"n_embd = {n_embd}: expected a multiple of n_head = {n_head}"
        self.causal = causal
        self.blank_id, self.bos_id, self.pad_id = range(vocab_size, vocab_size + 3)
        self.embed = nn.Embedding(vocab_size + 3, n_embd)
        if positions == 'learned':
            self.position = nn.Embedding(block_size, n_embd)
        else:
            # 'rotary' (arXiv:2104.09864): pairs of channels are turned by an angle that is
            # proportional to the position, so a head sees distances.
            D = n_embd // n_head
            speeds = 1e4 ** (-torch.arange(0, D, 2) / D).repeat(2)              # (D,)
            angles = torch.outer(torch.arange(block_size), speeds)              # (T, D)
            self.rotary = nn.Buffer(torch.stack((angles.cos(), angles.sin())), persistent=False)
        self.blocks = nn.ModuleList(Block(n_layer, n_head, n_embd) for _ in range(n_layer))
        self.head = linear(n_embd, vocab_size, 0.0)         # the first guess is uniform
        # A token of a causal network sees itself and the tokens to its left.
        mask = torch.full((block_size, block_size), -1e9).triu(1)
        self.mask = nn.Buffer(mask, persistent=False)

    def trunk(self, inputs, cache=None):
        """Return features (N, L, C) of inputs (N, L). cache: a dict, which has keys and values
        (2, N, H, length, D) of the inputs to their left by layer, if causal, and gets theirs."""
        start = next(iter(cache.values())).size(3) if cache else 0      # (empty at first)
        stop = start + inputs.size(1)
        assert stop <= len(self.mask), (
            f"a text has {stop} tokens: the network can read {len(self.mask)}")
        if self.causal:
            mask = self.mask[start:stop, :stop]
        else:                                   # all but padding is seen
            mask = -1e9 * (inputs == self.pad_id)[:, None, None]
        x, rotary = self.embed(inputs), None
        if self.args['positions'] == 'learned':
            x = x + self.position.weight[start:stop]
        else:
            rotary = self.rotary[:, start:stop]                             # (2, L, D)
        x = norm(x)
        for block in self.blocks:
            x = block(x, mask, rotary, cache)
        return norm(x)

    def logits(self, x):
        """Return logits (..., V) of features (..., C), in float32 also under autocast."""
        with torch.autocast(x.device.type, enabled=False):
            return self.head(x)


@functools.cache
def random_numbers(n, device):
    """Return n random integers, always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-2 ** 62, 2 ** 62, (n,), generator=generator).to(device)


def shared_length(inputs):
    """Return how many columns L of inputs (N, n) are best computed once for texts that are equal
    there. This saves L tokens for each copy. Of a b c d, a b c e, a b f g two columns have two
    copies (2 * 2 tokens), and three have one (3 * 1), so L = 2."""
    # Equal beginnings have equal sums with random weights, and stand side by side when sorted.
    sums = (inputs * random_numbers(inputs.size(1), inputs.device)).cumsum(1).sort(0).values
    n_copies = (sums[1:] == sums[:-1]).sum(0).tolist()      # of the first 1, 2, ... columns
    # (at least 2: some networks of plugins/hf.py read nothing in the column of bos)
    return max(range(2, inputs.size(1) + 1), key=lambda L: L * n_copies[L - 1])


def distinct(rows):
    """Group equal rows of integers (n, T) into S kinds, in any order. Return the index of one row
    of each kind, (S,), and the kind of each row, (n,): rows[index][kind] equals rows."""
    # Equal rows have equal sums with random weights; others in 1 of 2 ** 60 cases. torch.unique is
    # many times as fast with numbers as with rows.
    sums = (rows * random_numbers(rows.size(1), rows.device)).sum(1)
    kinds, kind = sums.unique(return_inverse=True)
    index = torch.arange(len(rows), device=rows.device)
    return kind.new_empty(len(kinds)).scatter_(0, kind, index), kind


# ---- checkpoints ---------------------------------------------------------------------------------


def save_network(path, network, tok, **more):
    assert all(weight.isfinite().all() for weight in network.state_dict().values()), (
        f"the weights are not finite, so {path} was not written: is learning_rate too large?")
    temporary = f'{path}.{os.getpid()}.tmp'     # two runs can make one network at the same time
    torch.save({'args': network.args, 'model': network.state_dict(),
                'vocabulary': tok.vocabulary, **more}, temporary)
    try:
        torch.load(temporary, map_location='cpu', weights_only=True, mmap=True)
    except pickle.UnpicklingError as e:
        os.remove(temporary)
        raise AssertionError("`state` has something else than numbers of Python, texts, tensors, "
                             f"lists and dicts: {str(e).split('GLOBAL ')[-1].split()[0]}")
    os.replace(temporary, path)                 # a checkpoint is whole or not there


def load_network(path, device):
    """Return a network, its tokenizer, and all that was saved with it."""
    # weights_only: a checkpoint is somebody's file, and a pickle can run any code.
    saved = torch.load(path, map_location='cpu', weights_only=True)
    assert 'args' in saved, f"{path} is no checkpoint of this project: it has {[*saved]}"
    network = GPT(**saved['args']).to(device)
    # (a checkpoint of plugins/passes.py has weights that a GPT has not)
    missing, _ = network.load_state_dict(saved['model'], strict=False)
    assert not missing, f"{path} lacks weights: {missing}"
    tok = Tokenizer(**saved['vocabulary'])
    tok.block_size = network.args['block_size']
    return network, tok, saved


# ---- the device, and ranks -----------------------------------------------------------------------

RANK = int(os.environ.get('RANK', 0))           # torchrun sets these
N_RANKS = int(os.environ.get('WORLD_SIZE', 1))


def sum_over_ranks(x):
    """Return the sum of x over all ranks; of a tensor in place."""
    if N_RANKS > 1:
        x = torch.as_tensor(x, device='cuda' if dist.get_backend() == 'nccl' else 'cpu')
        dist.all_reduce(x)
    return x


def means_of(scores, prefix=''):
    """Return {prefix + name: mean} of tensors, over all ranks, which have as many numbers each."""
    return {prefix + name: sum_over_ranks(x.mean()).item() / N_RANKS for name, x in scores.items()}


def init_device(device, dtype):
    """Set torch up for the knobs device and dtype, and for several ranks. Return the device."""
    fastest = str(torch.accelerator.current_accelerator(check_available=True) or 'cpu')
    assert device in ('auto', 'cpu', fastest), f"device = {device}: expected 'auto' or {fastest}"
    device = fastest if device == 'auto' else device
    if device == 'cuda':                        # torchrun gives each rank a GPU
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        torch.cuda.set_device(device)
    kind = torch.device(device).type
    torch.set_default_dtype(torch.float64 if dtype == 'float64' else torch.float32)
    assert N_RANKS == 1 or kind != 'mps', "a run on an Apple GPU has one rank"
    if N_RANKS > 1 and not dist.is_initialized():
        dist.init_process_group('nccl' if kind == 'cuda' else 'gloo')
        atexit.register(dist.destroy_process_group)
    return torch.device(device)


def set_precision(network, dtype):
    """Set torch up for matrix products of the knob dtype. 'auto': in bfloat16 on a CPU that has it,
    and on a GPU if the network has 256 channels."""
    kind = network.device.type
    is_small = network.head.in_features < 256
    if is_small and 'OMP_NUM_THREADS' not in os.environ:
        torch.set_num_threads(1)                # threads would wait for each other
    if dtype == 'auto':
        # Small networks wait for a GPU's launches, and casts to bfloat16 are more launches.
        pays = kind == 'cpu' and torch.cpu._is_avx512_bf16_supported() or (
            kind == 'cuda' and not is_small and torch.cuda.is_bf16_supported())
        dtype = 'bfloat16' if pays else 'float32'
    # bfloat16 is for matrix products; softmax and sums stay float32. Casts of weights are not kept,
    # because they would outlive the next update of the weights.
    torch.set_autocast_enabled(kind, dtype == 'bfloat16')
    torch.set_autocast_dtype(kind, torch.bfloat16)
    torch.set_autocast_cache_enabled(False)
    precision = 'medium' if dtype == 'bfloat16' else 'highest'
    torch.set_float32_matmul_precision('high' if kind == 'cuda' else precision)         # high: TF32


# ---- optimizers ----------------------------------------------------------------------------------


def make_optimizers(network, name, weight_decay=0.0):
    """Return optimizers. 'muon': for the hidden matrices, AdamW for the rest | 'adamw': for all."""
    matrices = list(network.blocks.parameters()) if name == 'muon' else []
    others = [p for p in network.parameters() if not any(p is matrix for matrix in matrices)]
    optimizers = [torch.optim.AdamW(others, betas=(0.9, 0.95), fused=True,
                                    weight_decay=weight_decay)]
    if matrices:
        optimizers.append(Muon(matrices, weight_decay))
    return optimizers


def get_lr(step, peak, floor, warmup, n_steps):
    """Return the learning rate of a step: linear warm-up, then a cosine from peak to floor."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    progress = (step - warmup) / (n_steps - warmup)
    floor = min(floor, peak)
    return floor + 0.5 * (1 + math.cos(math.pi * progress)) * (peak - floor)


def optimizer_step(network, optimizers, lr, grad_clip):
    """Take a step. Return the norm of the gradient before clipping."""
    grad_norm = nn.utils.clip_grad_norm_(network.parameters(), grad_clip or math.inf)
    assert grad_norm.isfinite(), (
        "the gradient is not finite: is learning_rate, or a reward, too large?")
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group['lr'] = lr
        # Without a gradient momentum must not move the policy. Muon would step at full length.
        if grad_norm > 0:
            optimizer.step()
        optimizer.zero_grad()
    return grad_norm
