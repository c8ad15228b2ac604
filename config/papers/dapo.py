# DAPO, arXiv:2503.14476: a higher upper clip (3.1), no groups that teach nothing (3.2, eq. 11), one
# mean over all tokens (3.3), no KL. It draws until a step is full; here three times at most
# python train_grpo.py config/grpo_think.py config/papers/dapo.py --max_iters=25
# verify: start 47.2 %, line 47.2, policy 96.6, 97.1, 96.6; seeds 1, 2, 3 (without 95.1, 95.3, 94.6)
# mean_*, dead_groups, times, and loss_norm = 'constant' count all groups that were drawn

from types import SimpleNamespace

adv_norm, loss_norm, clip_low, clip_high, kl_beta, entropy_coef = 'std', 'token', 0.2, 0.28, 0, 0


def collect(networks, task, step, inner=collect):
    draws, parts, room = [], [], torch.tensor(batch_size)
    while len(draws) < 3 and devices.sum_over_ranks(room.sum()) > 0:
        micro_steps = iter(range(devices.RANK, gradient_accumulation_steps, devices.N_RANKS))
        def prompts(*words):                    # with the random numbers of this draw
            devices.set_seed(seed, step, len(draws), next(micro_steps))
            return task.prompts(*words)
        rollouts, scores = inner(networks, SimpleNamespace(prompts=prompts), step)
        fits = scores['advantage'].any(1).view(len(rollouts), -1) | (len(draws) == 2)   # or all
        fits &= fits.cumsum(1) <= room          # (micro-steps, batch_size)
        room = room - fits.sum(1, keepdim=True)
        draws += [[r.select(x[r.text_of // r.k]) for r, x in zip(rollouts, fits.to(task.device))]]
        parts += [scores]
    return [r for micro_step in zip(*draws) for r in micro_step], report.join(parts)
