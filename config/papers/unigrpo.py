# UniGRPO of MMaDA, arXiv:2505.15809, 2.3.1, eq. 3 to 5: a random share of the completion is blank,
# drawn anew in each epoch, and only these tokens count, also in kl, kl_old, entropy of the log
# python train_grpo.py config/grpo_passes.py config/papers/unigrpo.py --learning_rate=6e-4 \
#     --max_iters=40 --eval_prompts=512
# verify: start 85.8 %, line to beat 93.4 %, policy 88.6, 90.6, 89.8 %; seeds 1, 2, 3
# Left out: its shares of the epochs are spread evenly from a random start (algorithm 1); here each
# is drawn by itself. Means are over the tokens that count (eq. 4); eq. 5 divides by all

from tasks import random_blanks

include('plugins/passes.py')
include('plugins/masks.py')

fill_order = 'confident'
adv_norm = 'std'
loss_norm = 'sequence'
clip_low = clip_high = 0.2  # the paper gives no numbers, neither here
epochs, kl_beta = 4, 0.04   # nor here
entropy_coef = 0.0
kl_estimate = 'k3'


def masks(sampled, given):
    is_blank = random_blanks(sampled, 0, 1)
    return [(is_blank, is_blank)]
