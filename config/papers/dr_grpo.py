# Dr. GRPO ("GRPO done right"), arXiv:2503.20783, 3.2. GRPO divides twice where it should not.
# Divided by the std, easy and hard prompts count too much. Divided by its length, a long wrong
# answer is punished less than a short one, so wrong answers grow. This file takes both divisions
# out. No KL.
#
#     python train_grpo.py config/grpo_think.py config/papers/dr_grpo.py --max_iters=25
#
# verify 47.2 -> 96.0, 96.4, 94.9 %, with grpo.py 88.9, 91.6, 89.3 % (seeds 1, 2, 3)
# (measured with an earlier version, in bfloat16)
#
# Left out: the paper takes eight updates per step, in which the clip acts.

adv_norm = 'none'
loss_norm = 'constant'
kl_beta = 0.0
entropy_coef = 0.0
