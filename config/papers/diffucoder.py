# coupled-GRPO of DiffuCoder, arXiv:2506.20639, 5, eq. 4, B.1, and its code: two complementary masks
# beside one that covers all; two epochs. Left out: a new reference every 64 steps; the mean of the
# others as baseline, which makes advantages k / (k - 1) times as large; one share for a batch
# python train_grpo.py config/grpo_passes.py config/papers/diffucoder.py --learning_rate=6e-4 \
#     --max_iters=40 --eval_prompts=512
# verify: start 84.6 %, line to beat 93.2 %, policy 88.2, 88.5, 88.4 %; seeds 1, 2, 3, one thread
# kl, kl_old, entropy of the log are of the estimate, 1.5 times as large: the weights' mean sum
from tasks import random_blanks

include('plugins/passes.py')
include('plugins/masks.py')

fill_order, n_fill_steps, temperature, epochs = 'confident', 99, 1.2, 2         # one blank a pass
adv_norm, loss_norm, clip_low, clip_high = 'none', 'token', 0.5, 0.5
kl_estimate, kl_beta, entropy_coef = 'k3', 0.01, 0.0


def masks(sampled, given):
    """Half of it all blanks at once; and half the one of two masks in which a token is blank,
    divided by its share of the blanks."""
    first = random_blanks(sampled, 0.2, 0.8)
    parts = torch.stack((first, sampled & ~first))                              # (2, N, T)
    share = parts.sum(2, keepdim=True) / sampled.sum(1, keepdim=True)           # (2, N, 1)
    return [(sampled, 0.5 * sampled), *zip(parts, 0.5 * parts / share.clamp(min=1e-9))]
