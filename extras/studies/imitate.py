# plain training on what a teacher writes, with as many samples as GRPO takes: the teacher samples,
# and the policy learns all of it
# behind config/grpo_distill.py

experience = 'of_teacher'
objective = 'imitate'
kl_beta = 1e-9              # so that the teacher is loaded


def of_teacher(policy, scorer, prompts):
    micro_steps, scores, advantages = collect(scorer.reference, scorer, prompts)
    return micro_steps, scores, torch.ones_like(advantages)


def imitate(stats, logp_old, A, r):
    return -stats.logp, {}
