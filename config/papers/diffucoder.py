# coupled-GRPO of DiffuCoder, arXiv:2506.20639, 5, eq. 4, B.1, and its code. Like d1.py, but a
# single pass that sees nothing of the text is a poor guess. So two more passes each see the part
# that is blank in the other one: each token is blank in exactly one of them, and sees a part of the
# text.
#
#     python train_grpo.py config/grpo_passes.py config/papers/diffucoder.py --learning_rate=6e-4 \
#         --max_iters=40 --eval_prompts=512
#
# verify 80.2 -> 87.1, 87.3, 86.2 %, -1.6, -1.4, -2.4 from its line (seeds 1, 2, 3, float32)
# In the log, kl, kl_old and entropy are about the estimate, and 1.5 times as large, because the
# weights of a token add up to 1.5 on average.
#
# Left out: a new reference every 64 steps; the mean of the others as the baseline, which makes
# advantages k / (k - 1) times as large; one share of blanks for a whole batch.
from tasks import random_blanks

include('plugins/passes.py')
include('plugins/masks.py')

fill_order, n_fill_steps, temperature, epochs = 'confident', 99, 1.2, 2         # one blank a pass
adv_norm, loss_norm, clip_low, clip_high = 'none', 'token', 0.5, 0.5
kl_estimate, kl_beta, entropy_coef = 'k3', 0.01, 0.0


def masks(sampled, given):
    """Return three masks. The first covers everything, with weight 1/2. The other two share the
    tokens out, and a mask with a small share gets a large weight: 1/2 / share."""
    first = random_blanks(sampled, 0.2, 0.8)
    parts = torch.stack((first, sampled & ~first))                              # (2, N, T)
    share = parts.sum(2, keepdim=True) / sampled.sum(1, keepdim=True)           # (2, N, 1)
    return [(sampled, 0.5 * sampled), *zip(parts, 0.5 * parts / share.clamp(min=1e-9))]
