# coupled-GRPO of DiffuCoder, arXiv:2506.20639, 5, eq. 4, B.1, and its code: two complementary masks
# beside one that covers all; two epochs; one blank a pass; the mean of the others is the baseline
# behind an experiment that fills blanks, such as config/grpo_passes.py
# left out: its reference becomes the policy every 64 steps, here it stays. Its share of blanks,
# uniform in 0.2 to 0.8, is drawn for each batch; here for each sequence

adv_norm = 'rloo'
objective = 'ppo'
clip_low, clip_high = 0.5, 0.5
loss_norm = 'token'
likelihood, draw_prompts = 'coupled', 'random'
kl_beta, kl_type = 0.01, 'k3'
entropy_coef = 0.0
fill_order = 'confident'
n_fill_steps = 99                   # one blank a pass
temperature = 1.2
epochs = 2


def rloo(reward, scores):
    k = (~reward.isnan()).sum(1, keepdim=True, dtype=reward.dtype).clamp(min=2)
    deviation = reward - reward.nanmean(1, keepdim=True)
    return deviation / ((k - 1) / k)


def coupled(r, policy, reference):
    """Half of it all blanks at once; and half one of two random masks that complete each other,
    divided by its share of the blanks. A token's weights sum to 1.5 on average, so KL and entropy
    are that much larger."""
    drawn, share = r.mask_uniforms()
    share = 0.2 + 0.6 * share                                                   # (N, 1)
    is_first = drawn < share                                                    # (N, T)
    whole, first, second = [
        stats_with_blanks(mask & r.is_sampled, r, policy, reference)
        for mask in (True, is_first, ~is_first)]
    weight = 0.5 / torch.where(is_first, share, 1 - share)                      # (N, T)
    stats = []
    for all_blank, a, b in zip(whole, first, second):
        stats.append(0.5 * all_blank + weight * torch.where(is_first, a, b))
    return TokenStats(*stats)
