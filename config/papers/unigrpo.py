# UniGRPO of MMaDA, arXiv:2505.15809, 2.3.1, eq. 3 to 5: a random share of the completion is blank,
# drawn anew in each epoch, and only these tokens count
# behind an experiment that fills blanks, such as config/grpo_passes.py
# Its shares of the epochs are spread evenly from a random start (algorithm 1); here each is drawn
# by itself

adv_norm = 'std'
objective = 'ppo'
clip_low, clip_high = 0.2, 0.2      # its text gives no numbers
loss_norm = 'sequence'
likelihood, draw_prompts = 'random_share', 'random'
kl_beta, kl_type = 0.04, 'k3'       # nor here
entropy_coef = 0.0
fill_order = 'confident'
epochs = 4                          # ours: the paper gives no number


def random_share(r, policy, reference):
    """The blanks that are not drawn have no gradient; the means in loss and log include them."""
    drawn, share = r.mask_uniforms()
    is_blank = r.is_sampled & (drawn < share)                                   # (N, T)
    stats = stats_with_blanks(is_blank, r, policy, reference)
    return TokenStats(*[values * is_blank for values in stats])
