# Dr. GRPO, arXiv:2503.20783, 3.2: no std in the advantage, no length of the completion in the loss,
# no KL
# python train_grpo.py config/grpo_think.py config/papers/dr_grpo.py --max_iters=25
# verify: start and line to beat 47.2 %, policy 96.0, 96.4, 94.9 %; seeds 1, 2, 3, one thread (with
# grpo.py in its place 88.9, 91.6, 89.3 %: there a token of a long text counts less)
# Left out: its eight updates of a step, in which a clip acts

adv_norm = 'none'
loss_norm = 'constant'
kl_beta = 0.0
entropy_coef = 0.0
