# UniGRPO of MMaDA, arXiv:2505.15809, 2.3.1, eq. 3 to 5. Like d1.py, but with a random share of the
# completion blank, drawn anew in each epoch. So the network sees texts that are half finished, as
# in sampling. Only the tokens that are blank count, even for kl, kl_old and entropy in the log.
#
#     python train_grpo.py config/grpo_passes.py config/papers/unigrpo.py --learning_rate=6e-4 \
#         --max_iters=40 --eval_prompts=512
#
# verify 83.4 -> 90.2, 90.9, 90.8 %, +1.5, +2.2, +2.1 above its line (seeds 1, 2, 3, float32)
#
# Left out: the paper spreads the shares of the epochs evenly, from a random start (algorithm 1).
# Here each share is drawn by itself. Means are over the tokens that count (eq. 4); eq. 5 divides by
# all.

from tasks import random_blanks

include('plugins/passes.py')
include('plugins/masks.py')

fill_order = 'confident'
adv_norm = 'std'
loss_norm = 'sequence'
clip_low = clip_high = 0.2  # The paper gives no number here,
epochs, kl_beta = 4, 0.04   # and none here.
entropy_coef = 0.0
kl_estimate = 'k3'


def masks(sampled, given):
    is_blank = random_blanks(sampled, 0, 1)
    return [(is_blank, is_blank)]
