# Dr. GRPO ("GRPO done right"), arXiv:2503.20783, 3.2. GRPO divides twice where it should not.
# Divided by the std, easy and hard prompts count too much. Divided by its length, a long wrong
# answer is punished less than a short one, so wrong answers grow. This file takes both divisions
# out. No KL.
#
#     python train_grpo.py config/grpo_think.py config/papers/dr_grpo.py --max_iters=25
#
# verify 48.3 -> 95.3, 95.5, 94.9 %, with grpo.py 82.5, 88.8, 87.6 % (seeds 1, 2, 3)
#
# Left out: the paper takes eight updates per step, in which the clip acts.

adv_norm = 'none'
loss_norm = 'constant'
kl_beta = 0.0
entropy_coef = 0.0
