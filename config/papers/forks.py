# Forking tokens, arXiv:2506.01939: in its objective only the fifth of the tokens with the highest
# entropy learns, with DAPO's upper clip and its mean over all tokens; no KL. The batch whose fifth
# it is is a micro-step, and of it the groups that learn. So other micro-steps and ranks change it
# left out: DAPO's dynamic sampling (dapo.py, then this file, then --draw_prompts=dynamic_sampling),
# and its penalty for overlong answers

adv_norm = 'std'
objective = 'forks'
clip_low, clip_high = 0.2, 0.28
loss_norm = 'token'
likelihood, draw_prompts = 'trajectory', 'random'
experience, credit = 'sampled', 'completion'
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0


def forks(stats, logp_old, A, r):
    pg, numbers = ppo(stats, logp_old, A, r)
    entropy = stats.entropy.detach()[r.is_sampled]                              # (M,)
    n_forks = -(-len(entropy) // 5)             # a fifth, rounded up
    lowest = entropy.sort(descending=True).values[:n_forks].amin() if n_forks else 0.0
    is_fork = stats.entropy >= lowest                                           # (N, T)
    return is_fork * pg, numbers | {'fork_frac': is_fork}
