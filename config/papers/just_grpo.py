# JustGRPO, arXiv:2601.15165, 4.2, and its code: a network that fills blanks learns from left to
# right, one blank a pass, so its likelihood is exact; it sees the blanks that are left. One update
# a step, no KL
# (eq. 8 divides by the length, the code by a constant)

include('plugins/passes.py')

adv_norm = 'std'
loss_norm = 'constant'
kl_beta = 0.0
entropy_coef = 0.0
fill_order = 'left'
n_fill_steps = 99           # one blank a pass

assert 'masks' not in globals(), "just_grpo.py: its likelihood is exact: leave out the masks()"
