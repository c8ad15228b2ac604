# GiGPO, arXiv:2505.10978: A = A^E + w A^S, w = 1. A step gets the advantage of its episode, A^E,
# plus that among all steps of its group that begin in the same state, A^S. F_norm = 1, so no std
# behind an experiment whose completions have several steps: of a world (config/grpo_guess.py) they
# are its turns; of blanks that are filled in passes (config/grpo_order.py), the passes
# left out: rewards before the end, and the discount of returns. Two states are the same if all that
# was said before is; the paper compares states of the world, which can recur

adv_norm = 'none'
objective = 'ppo'
clip_low, clip_high = 0.2, 0.2
loss_norm = 'sequence'
likelihood, draw_prompts = 'trajectory', 'random'
experience, credit = 'sampled', 'gigpo'
kl_beta, kl_type = 0.01, 'exact'
entropy_coef = 0.0


def gigpo(A, r, policy, scorer):
    """A^S is the reward minus the mean of the completions that were in this state: so is A, and the
    mean of the group cancels."""
    k = r.prompts.k
    total = A.expand(r.pass_of.shape)                                           # (N, T)
    A = A.view(-1, k)                                                           # (B, k)
    for states, is_step in _steps(r, policy.causal):
        states = states.view(len(A), k, -1)                                     # (B, k, T)
        is_same = (states[:, :, None] == states[:, None]).all(3)                # (B, k, k)
        mean = (is_same * A[:, None]).sum(2) / is_same.sum(2)                   # (B, k)
        total = total + is_step * (A - mean).view(-1, 1)
    return total


def _steps(r, causal):
    """Yield the steps of a Rollout, each as the states (N, T) in which it begins, padded with -1,
    and its tokens (N, T), bool."""
    step_of = r.pass_of                         # (N, T)
    if causal:
        before = torch.nn.functional.pad(r.is_sampled[:, :-1], (1, 0))
        begins = r.is_sampled & ~before
        step_of = begins.cumsum(1) - 1          # -1: the prompt
    for i in range(int(step_of.max()) + 1):
        is_step = r.is_sampled & (step_of == i)
        yield r.sequences.masked_fill(step_of >= i, -1), is_step
