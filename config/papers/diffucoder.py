# coupled-GRPO of DiffuCoder, arXiv:2506.20639, 5, eq. 4, B.1, and its code: two complementary masks
# beside one that covers all; two epochs; one blank a pass; the mean of the others is the baseline
# python train_grpo.py config/grpo_passes.py config/papers/diffucoder.py --learning_rate=6e-4 \
#     --max_iters=40 --eval_prompts=512
# verify: start 82.5 %, line to beat 93.4 %, policy 87.3, 87.1, 87.4 %; seeds 1, 2, 3
# Left out: its reference becomes the policy every 64 steps, here it stays. Its share of blanks is
# drawn for each batch; here for each text

from tasks import random_blanks

include('plugins/passes.py')
include('plugins/masks.py')
include('config/kl/k3.py')

fill_order = 'confident'
n_fill_steps = 99           # one blank a pass
temperature = 1.2
adv_norm = 'none'
clip_low = 0.5
clip_high = 0.5
loss_norm = 'token'
epochs = 2
kl_beta = 0.01
entropy_coef = 0.0

assert 'masks' not in globals(), "diffucoder.py: another file has masks(): leave one of the two out"
assert globals().setdefault('_others', 'diffucoder.py') == 'diffucoder.py', (
    f"{_others} and diffucoder.py: both have the mean of the others as the baseline, so leave one "
    "out")


def advantages(reward, scores, inner=advantages):
    k = reward.size(1)
    return inner(reward, scores) * k / (k - 1)          # reward - mean of the others


def masks(sampled, given):
    """Half of it all blanks at once; and half the one of two masks, which complete each other, in
    which a token is blank, divided by its share of the blanks. The weights of a token sum to 1.5 on
    average, so KL and entropy are that much larger."""
    first = random_blanks(sampled, 0.2, 0.8)
    looks = [(sampled, 0.5 * sampled)]
    for part in (first, sampled & ~first):
        share = part.sum(1, keepdim=True) / sampled.sum(1, keepdim=True)        # (N, 1)
        looks.append((part, 0.5 * part / share.clamp(min=1e-9)))
    return looks
