# GRPO, arXiv:2402.03300, 4.1, eq. 3 and 4: the mean over texts of the means of their tokens, and an
# estimate of the KL in the loss. With one update a step, as there, no clip acts
# python train_grpo.py config/grpo_think.py config/papers/grpo.py --max_iters=25
# verify: start and line to beat 47.2 %, policy 88.9, 91.6, 89.3 %; seeds 1, 2, 3, one thread
# (without this file 95.1, 95.3, 94.6 %: texts that think are long, so a token of them counts less)
# Left out: a reference that is renewed from time to time (4.1.4)


adv_norm = 'std'
loss_norm = 'sequence'
kl_estimate = 'k3'
kl_beta = 0.04
entropy_coef = 0.0
