# GRPO as it was first written down, arXiv:2402.03300, 4.1, eq. 3 and 4. A text is the mean of its
# tokens, and a batch is the mean of its texts. So a token of a long text counts less, and here the
# long texts are those that think. The KL is estimated from the sampled token. With one update a
# step, as in the paper, no clip acts.
#
#     python train_grpo.py config/grpo_think.py config/papers/grpo.py --max_iters=25
#
# verify 48.3 -> 82.5, 88.8, 87.6 %, without this file 95.1, 95.4, 94.7 % (seeds 1, 2, 3)
#
# Left out: a reference that is renewed from time to time (4.1.4).


adv_norm = 'std'
loss_norm = 'sequence'
kl_estimate = 'k3'
kl_beta = 0.04
entropy_coef = 0.0
