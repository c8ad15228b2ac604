# DAPO, arXiv:2503.14476: a higher upper clip (3.1), no groups that teach nothing (3.2, eq. 11), one
# mean over all tokens (3.3), no KL
# It takes 16 updates of a step: --batch_size=4 --gradient_accumulation_steps=16 --mini_batches=16
# and a learning_rate that is so many times smaller
# Left out: the penalty of completions that are too long (3.4). It draws until a step is full; here
# the third draw fills it up with whatever comes

adv_norm = 'std'
clip_low = 0.2
clip_high = 0.28
loss_norm = 'token'
kl_beta = 0.0
entropy_coef = 0.0


def collect(networks, task, step, draw=0, inner=collect):
    """Draw up to three times. Each micro-step keeps as many groups as before, the first ones whose
    rewards differ. Scores are those of all groups that were drawn."""
    draws, parts = [], []
    room = batch_size                           # (micro-steps, 1) soon
    for draw in range(3):
        rollouts, scores = inner(networks, task, step, draw)
        # A KL in the reward (rloo.py) differs in each group, so the rewards decide.
        said = torch.stack([scores[name] for name in rewards])          # (names, P, k)
        differs = (said.amax(2) > said.amin(2)).any(0)                  # (P,)
        differs &= scores['advantage'].any(1)
        fits = differs.view(len(rollouts), -1)                          # (micro-steps, batch_size)
        fits |= draw == 2
        fits &= fits.cumsum(1) <= room
        room = room - fits.sum(1, keepdim=True)
        draws.append([_chosen(r, groups.to(r.text_of.device)) for r, groups in zip(rollouts, fits)])
        parts.append(scores)
        if devices.sum_over_ranks(room.sum()) == 0:
            break
    # Micro-step by micro-step, so that mini_batches get equal parts.
    return [r for micro_step in zip(*draws) for r in micro_step], report.join(parts)


def _chosen(r, groups):
    """Return a Rollout of some groups, bool (B,). loss_norm = 'constant' counts blanks of prompts,
    so the others have none."""
    r.prompts = replace(r.prompts, blank=r.prompts.blank & groups[:, None])
    return r.select(groups[r.group])
