# DAPO, arXiv:2503.14476: a higher upper clip (3.1), no groups that teach nothing (3.2, eq. 11), one
# mean over all tokens (3.3), no KL
# It takes 16 updates of a step: --batch_size=4 --gradient_accumulation_steps=16 --mini_batches=16
# and a learning_rate that is so many times smaller
# Left out: the penalty of completions that are too long (3.4). It draws until a step is full; here
# the third draw fills it up with whatever comes. loss_norm = 'constant' would count all draws

adv_norm = 'std'
clip_low = 0.2
clip_high = 0.28
loss_norm = 'token'
kl_beta = 0.0
entropy_coef = 0.0


def collect(networks, task, step, inner=collect):
    """Draw up to three times. Each micro-step keeps as many groups as before, the first ones whose
    rewards differ. Scores and advantages are those of all groups that were drawn."""
    draws, scores, As = [], [], []
    room = batch_size                           # (micro-steps, 1) soon
    for i in range(3):
        # Random numbers depend on the step, so a draw is a step between two steps.
        rollouts, numbers, A = inner(networks, task, step + i / 3)
        fits = A.any(1).view(len(rollouts), -1) | (i == 2)          # (micro-steps, batch_size)
        fits &= fits.cumsum(1) <= room
        room = room - fits.sum(1, keepdim=True)
        texts = fits.repeat_interleave(group_size, 1)               # (micro-steps, N)
        draws.append([part_of(r, chosen) for r, chosen in zip(rollouts, texts)])
        scores.append(numbers)
        As.append(A)
        if sum_over_ranks(room.sum()) == 0:
            break
    scores = {name: torch.cat([part[name] for part in scores]) for name in numbers}
    # (micro-step by micro-step, so that mini_batches get equal parts)
    return [r for parts in zip(*draws) for r in parts], scores, torch.cat(As)
