# GRPO, arXiv:2402.03300, 4.1, eq. 3 and 4: the mean over texts of the means of their tokens, and an
# estimate of the KL in the loss. With one update a step, as there, no clip acts
# Left out: a reference that is renewed from time to time (4.1.4)

include('config/kl/k3.py')

adv_norm = 'std'
loss_norm = 'sequence'
kl_beta = 0.04
entropy_coef = 0.0
