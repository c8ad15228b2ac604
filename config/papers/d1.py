# diffu-GRPO of d1, arXiv:2504.12216, 3.2, and its train.yaml: the likelihood of one pass over all
# blanks and a prompt of which 0.15 is blank, drawn anew in each of 12 epochs; wide clips
# Behind an experiment that fills blanks, such as config/grpo_passes.py, and with the paper's flags:
# --fill_order=confident --epochs=12
# Left out: blanks are filled in blocks of 32, the surest of a block first; here they are one block
adv_norm = 'none'           # the paper and its code do not divide by the std
loss_norm = 'sequence'      # eq. 4; the code takes 'token'
objective, ratio_level = 'ppo', 'token'
clip_low, clip_high = 0.5, 0.5
kl_beta, kl_type = 0.04, 'k3'
entropy_coef = 0.0
likelihood = 'one_pass'
