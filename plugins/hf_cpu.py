"""What makes networks of transformers fast on a CPU. plugins/hf.py includes this file. Without it
a run takes longer, draws other ids that are as likely, and computes the same but for rounding.

This file is executed in the globals of train_grpo.py: it wraps complete() and sample()
there (`inner`), a function of torch, and one of transformers."""
import torch.nn.functional as F
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward


def complete(policy, prompts, k, greedy=False, inner=complete):
    """Complete prompts; from left to right with packed weights, if this processor can. A linear
    layer puts its weight once, and not for each token, into the order in which a product reads it
    (under autocast also into bfloat16). Otherwise a token of SmolLM2-135M takes 1.5 times as long,
    in float32 1.4 times. To replace a function of torch is ugly, and the two for this have no
    public names. (torch.compile calls them, too.)"""
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
    """Draw ids. For one id torch needs V random numbers, and for two ids two."""
    return inner(logits, max(k, 2), greedy)[:, :k]


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
