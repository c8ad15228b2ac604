# process supervision, arXiv:2402.03300, 4.1.3: each step of a thought has a reward of its own, 1 if
# the ball is there after this swap. They are normalised over all steps of a group, and a token gets
# the sum of those from its step on
# behind config/grpo_think.py: python train_grpo.py config/grpo_think.py extras/studies/think_process.py
# A last letter that is no answer gets 0 for its step, else a thought could stop where it is still
# right. An answer at once is a step. Here the middle can be checked, and no network has to judge it

from data.cups import follow

credit = 'process'


def process(A, r, policy, scorer):
    reward = torch.full(r.sequences.shape, torch.nan, device=A.device)          # (N, T)
    for row, where, case in zip(reward, r.is_sampled, r.cases()):
        text = case['sampled']
        truth = follow(case['prompt'])
        start = int(text.startswith(':'))
        t = where.nonzero()[start:len(text), 0]                     # the columns of the steps
        right = [char == cup for char, cup in zip(text[start:], truth)] + 99 * [False]
        if len(t):
            row[t] = torch.tensor(right[:len(t)], device=A.device).to(row.dtype)
            row[t[-1]] = float(text[-1] == truth[-1])
    groups = reward.view(-1, r.prompts.k * reward.size(1))                      # (B, k * T)
    scaled = (groups - groups.nanmean(1, keepdim=True)) / (nanstd(groups, 1) + 1e-4)
    is_dead = all_equal(groups)
    scaled = scaled.masked_fill(is_dead, 0).nan_to_num().view_as(reward)
    return scaled.flip(1).cumsum(1).flip(1)                                     # (N, T)
