# DAPO, arXiv:2503.14476: a higher upper clip (3.1), dynamic sampling (3.2), one mean over all
# tokens (3.3), no KL
# left out: its penalty for overlong answers (3.4); the rewards 'tokens' and 'ended' can take its
# place
# 16 updates of a step (4.1): --mini_batches=16 --gradient_accumulation_steps=16

adv_norm = 'std'
objective = 'ppo'
clip_low, clip_high = 0.2, 0.28
loss_norm = 'token'
likelihood, draw_prompts = 'trajectory', 'dynamic_sampling'
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0


def dynamic_sampling(data, step, policy, scorer):
    """Eq. 11: draw prompts until a step is full of groups in which some completions are right and
    some wrong (without `verify`: whose rewards differ). After three times as many prompts others
    fill it up."""
    # Prompts carry their random numbers. So those that are chosen can simply be completed again,
    # with the same completions, and no Rollouts have to be joined. This costs sampling, not
    # learning.
    P = batch_size * gradient_accumulation_steps
    prompts = data.prompts('train', 3 * P, group_size, seed, step)
    alive = torch.zeros(3 * P, dtype=torch.bool)
    for start in range(0, 3 * P, P):
        part = slice(start, start + P)
        _, scores, _ = collect(policy, scorer, prompts[part])
        goal = scores.get('verify', scores['reward'])
        alive[part] = ~all_equal(goal)[:, 0].cpu()
        if alive.sum() >= P:
            break
    return prompts[(~alive).sort(stable=True).indices[:P]]
