# UniGRPO of MMaDA, arXiv:2505.15809, 3.3: a random share of the completion is blank, drawn anew in
# each epoch, and only these tokens count
# Behind an experiment that fills blanks, such as config/grpo_passes.py, and with the paper's flags:
# --fill_order=confident --epochs=4
# Its shares of the epochs are spread evenly from a random start; here each is drawn by itself. Its
# mean is over the tokens that count; here over all sampled ones, which AdamW and Muon hardly see
adv_norm = 'std'
loss_norm = 'sequence'
objective, ratio_level = 'ppo', 'token'
clip_low, clip_high = 0.2, 0.2      # its text gives no numbers
kl_beta, kl_type = 0.04, 'k3'       # nor here
entropy_coef = 0.0
likelihood = 'random'
