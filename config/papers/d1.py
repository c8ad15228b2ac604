# diffu-GRPO of d1, arXiv:2504.12216, 3.1 and 3.2, and its train.yaml: the likelihood of one pass
# over all blanks and a prompt of which 0.15 is blank, drawn anew in each of 12 epochs; wide clips
# behind an experiment that fills blanks, such as config/grpo_passes.py
# left out: blanks are filled in blocks of 32, the surest of a block first; here they are one block.
# Two blanks a pass: --n_fill_steps=N. Its log-probabilities are at temperature 1, ours at 0.9

adv_norm = 'none'           # eq. 2: not divided by the std
objective = 'ppo'
clip_low, clip_high = 0.5, 0.5
loss_norm = 'sequence'      # eq. 4; the code takes 'token'
likelihood, draw_prompts = 'one_pass', 'random'
kl_beta, kl_type = 0.04, 'k3'
entropy_coef = 0.0
fill_order = 'confident'
temperature = 0.9
epochs = 12


def one_pass(r, policy, reference):
    """All blanks at once, and each token of the prompt is blank with probability 0.15."""
    drawn, _ = r.mask_uniforms()
    is_prompt = ~r.is_sampled & (r.sequences != policy.pad_id)
    is_blank = r.is_sampled | (is_prompt & (drawn < 0.15))                      # (N, T)
    return stats_with_blanks(is_blank, r, policy, reference)
