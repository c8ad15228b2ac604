# process supervision, arXiv:2402.03300, 4.1.3: each step of a thought has a reward of its own, 1 if
# the ball is there after this swap. They are normalised over all steps of a group, and a token gets
# the sum of those from its step on
# behind config/grpo_think.py
# A last letter that is no answer gets 0 for its step, else a thought could stop where it is still
# right. An answer at once is a step. Here the middle can be checked, and no network has to judge it

from data.cups import follow

credit = 'process'


def process(A, r, policy, scorer):
    rows = []
    for is_sampled, case in zip(r.is_sampled, r.cases()):
        row = [torch.nan] * len(is_sampled)
        columns = is_sampled.nonzero()[:, 0].tolist()
        steps = case['sampled']
        if steps.startswith(':'):               # of a thought, and no step
            steps = steps[1:]
            columns = columns[1:]
        cups = follow(case['prompt'])
        for i, (t, step) in enumerate(zip(columns, steps)):
            cup = cups[i:i + 1]
            if i == len(steps) - 1:             # the answer
                cup = cups[-1]
            row[t] = float(step == cup)
        rows.append(row)
    reward = A.new_tensor(rows)                                                 # (N, T)
    groups = reward.view(-1, r.prompts.k * reward.size(1))                      # (B, k * T)
    scaled = (groups - groups.nanmean(1, keepdim=True)) / (nanstd(groups, 1) + 1e-4)
    is_dead = all_equal(groups)
    scaled = scaled.masked_fill(is_dead, 0).nan_to_num().view_as(reward)
    return scaled.flip(1).cumsum(1).flip(1)                                     # (N, T)
