"""Make networks of transformers fast on a CPU. plugins/hf.py includes this file. Nobody needs to
read it: without it a run takes longer, draws other ids that are as likely, and computes the same
apart from rounding.

This file is executed in the globals of train_grpo.py. It wraps complete() and sample() there
(`inner` is the old function), a function of torch, and a function of transformers."""
import torch.nn.functional as F
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward


def complete(policy, prompts, k, greedy=False, inner=complete):
    """Complete prompts with packed weights, if the processor has AVX-512. A product reads a weight
    in another order than torch keeps it, so usually it is put into this order for each token. Here
    it is done once (under autocast in bfloat16). Without this a token of SmolLM2-135M takes 1.5
    times as long, in float32 1.4 times. The price: F.linear is replaced while a completion is
    written, by two functions of torch that have no public names. (torch.compile calls them, too.)
    """
    packed = {}                                 # {weight: the same, packed}

    def linear(x, weight, bias=None):
        dtype = torch.get_autocast_dtype('cpu') if torch.is_autocast_enabled('cpu') else x.dtype
        if weight not in packed:
            packed[weight] = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype))
        return torch.ops.mkldnn._linear_pointwise(x.to(dtype), packed[weight], bias, 'none', [], '')

    old = F.linear
    if (policy.causal and torch.cpu._is_avx512_supported()
            and policy.head.weight.type() == 'torch.FloatTensor'):      # float32, on a CPU
        F.linear = linear
    try:
        return inner(policy, prompts, k, greedy)
    finally:
        F.linear = old


def sample(logits, k=1, greedy=False, inner=sample):
    """Draw ids. To draw one id, torch makes V random numbers; to draw two, only two. So draw two,
    and drop one."""
    return inner(logits, max(k, 2), greedy)[:, :k]


def attention(module, q, k, v, mask, **options):
    """Return the attention (N, L, H, D) of queries q (N, H, L, D), and no weights. k and v have one
    head for a group of heads of q. With one query, as when a token is written, torch's kernel takes
    eight times as long in bfloat16 on a CPU as the two products below: a third of the time of 200
    tokens. Everything else is left to transformers. (plumbing/sharing.py does this for the GPT.)"""
    if (q.size(2) > 1 or q.device.type != 'cpu'
            or mask is not None or options.get('position_bias') is not None):
        return sdpa_attention_forward(module, q, k, v, mask, **options)
    q = q.reshape(*k.shape[:2], -1, k.size(3))  # a group is a matrix
    weights = (q @ k.mT * options['scaling']).softmax(-1)
    return (weights @ v).reshape(len(q), 1, -1, v.size(3)), None


transformers.AttentionInterface.register('sdpa', attention)     # the usual one, of all networks
