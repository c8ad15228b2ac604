# DAPO, arXiv:2503.14476: a higher upper clip (3.1), only groups that teach something (3.2, eq. 11),
# one mean over all tokens (3.3), no KL
# python train_grpo.py config/grpo_think.py config/papers/dapo.py --max_iters=25
# verify: start 47.2 %, line 47.2, policy 96.6, 97.1, 96.6; seeds 1, 2, 3 (without 95.1, 95.3, 94.6)
# Left out: the paper draws prompts until a step is full, here three times at most; and its penalty
# of overlong texts. mean_*, dead_groups, times, and loss_norm = 'constant' count all drawn groups

adv_norm = 'std'
loss_norm = 'token'
clip_low = 0.2
clip_high = 0.28
kl_beta = 0.0
entropy_coef = 0.0


def collect(networks, task, step, inner=collect):
    """Draw prompts until there are enough groups whose rewards are not all equal."""
    draws, parts = [], []
    n = len(devices.share_of_this_rank(gradient_accumulation_steps * mini_batches))
    # Groups that each of n micro-steps still needs. (Ranks cannot share out those of a step.)
    missing = torch.full((n, 1), batch_size)
    for draw in range(3):
        rollouts, scores = inner(networks, task, step, draw)
        # Not all advantages are 0.
        teaches = scores['advantage'].any(1).view(n, batch_size)                # (n, B)
        is_kept = teaches & (teaches.cumsum(1) <= missing)                      # (n, B)
        missing -= is_kept.sum(1, keepdim=True)
        kept = []
        for rollout, of_prompt in zip(rollouts, is_kept):                       # (B,)
            of_text = of_prompt.repeat_interleave(rollout.k).to(rollout.texts.device)   # (N,)
            kept.append(rollout.select(of_text[rollout.text_of]))
        draws.append(kept)
        parts.append(scores)
        if devices.sum_over_ranks(int(missing.sum())) == 0:      # all ranks stop together
            break
    # updates_of() splits this list into updates. So the draws of one micro-step stand side by side.
    rollouts = [rollout for micro_step in zip(*draws) for rollout in micro_step]
    return rollouts, report.concat(parts)
