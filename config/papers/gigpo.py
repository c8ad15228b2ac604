# GiGPO, arXiv:2505.10978: A = A^E + w A^S, w = 1. A step gets the advantage of its episode, A^E,
# plus that among all steps of its group that begin in the same state, A^S. F_norm = 1, so no std
# It stands behind an experiment whose completions have several steps: of a world
# (config/grpo_guess.py) they are its turns; of blanks that are filled in passes
# (config/grpo_order.py), the passes. And it stands before tis.py
# python train_grpo.py config/grpo_guess.py config/papers/gigpo.py
# verify: start and line to beat 60.8 %, policy 97.1, 97.1, 97.1 %; seeds 1, 2, 3
# (the experiment as it is: 97.5, 97.9, 96.2 %)
# Left out: rewards before the end, the discount of returns, and, of a learned order, the states in
# which the policy decided to wait. Two states are the same if all that was said before is; the
# paper compares states of the world, which can recur

from torch.nn.functional import pad

from model import unique_rows

adv_norm = 'none'
clip_low = 0.2
clip_high = 0.2
loss_norm = 'sequence'
kl_beta = 0.01
entropy_coef = 0.0


def collect(networks, task, step, draw=0, inner=collect):
    """A^S is the reward minus the mean of the completions that were in this state: so is A, and the
    mean of the group cancels."""
    rollouts, scores = inner(networks, task, step, draw)
    for r in rollouts:
        A = r.advantage.cpu().double()          # (M,) the mean of equal ones is exact
        text_of = r.text_of.cpu()
        of_text = A.new_zeros(len(r.texts)).index_copy(0, text_of, A)           # (N,)
        assert of_text[text_of].equal(A), (
            "gigpo.py: tokens of a text have different advantages: expected it before the files "
            "that weigh tokens, such as tis.py")
        seen = r.views[r.view_of]                                                  # (M, T)
        if networks.policy.causal:              # a view is a whole text: seen is what is before
            is_sampled = torch.zeros_like(r.texts, dtype=bool)
            is_sampled[r.text_of, r.place] = True
            begins = is_sampled & ~pad(is_sampled, (1, -1))                     # (N, T) a turn
            at = torch.arange(begins.size(1), device=begins.device)
            begin = (begins * at).cummax(1).values[r.text_of, r.place]             # (M,)
            seen = seen.masked_fill(at >= begin[:, None], -1)
        group = r.text_of[:, None] // r.k
        rows, kind = unique_rows(torch.cat((group, seen), 1))                   # of states, (M,)
        # A step counts once in the mean, however many tokens it has.
        steps, _ = unique_rows(torch.stack((kind, r.text_of), 1))       # a token of each step
        kind, steps = kind.cpu(), steps.cpu()
        sums = A.new_zeros(len(rows)).index_add(0, kind[steps], A[steps])
        mean = sums / kind[steps].bincount()
        r.advantage = (A + (A - mean[kind])).to(r.advantage)
    return rollouts, scores
