# GDPO, arXiv:2601.05242, eq. 4 to 7: each reward is normalised in its group by itself, then they
# are summed, and the sum is normalised over the step. For several rewards: 'std' of their sum
# cannot tell (1, 0) from (0, 1), and a reward of large spread hides the others
# left out: a reward that counts only where a harder one is reached (eq. 8); its experiments take
# four updates of a step: --mini_batches=4 --gradient_accumulation_steps=4

adv_norm = 'gdpo'
objective = 'ppo'
clip_low, clip_high = 0.2, 0.2
loss_norm = 'sequence'
likelihood, draw_prompts = 'trajectory', 'random'
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0
TRL = {'multi_objective_aggregation': 'normalize_then_sum'}


def gdpo(reward, scores):
    total = torch.zeros_like(reward)
    for name, weight in rewards.items():
        score = scores[name]                                                    # (P, k)
        A = (score - score.nanmean(1, keepdim=True)) / (nanstd(score, 1) + 1e-4)        # eq. 4
        total += weight * A.masked_fill(all_equal(score) | score.isnan(), 0.0)        # eq. 7
    total = total.masked_fill(reward.isnan(), torch.nan)
    return total / (nanstd(total) + 1e-4)                               # eq. 6; its mean is 0
