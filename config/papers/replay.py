# RePO, arXiv:2506.09340: a step learns from what it has sampled, and from groups of the step before
# once more (its recency-based strategy), with the ratio to the policy that sampled them. Both terms
# have advantages of their own, and no KL
# left out: the buffer is asked for other completions of the prompts of this step, of which it has
# none where prompts seldom come twice: here groups come with their prompts. The two terms are one
# mean over all sequences. Each rank keeps its own groups, and only those of the first are saved.
# With --mini_batches the old groups are updates of their own

from dataclasses import fields

from rollout import Prompts, Rollout

adv_norm = 'std'
objective = 'ppo'
clip_low, clip_high = 0.2, 0.2
loss_norm = 'sequence'
likelihood, draw_prompts = 'trajectory', 'random'
experience, credit = 'replay', 'completion'
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0

STATE = {'old': []}         # of each micro-step of the last step; a checkpoint holds no classes


def replay(policy, scorer, prompts):
    micro_steps, scores, advantages = collect(policy, scorer, prompts)
    new = []
    for index, r in micro_steps:
        r.stats_old = stats_now(r, policy, scorer.reference)
        alive = advantages[index].any(1).repeat_interleave(prompts.k)
        new.append(_pack(r.only(alive), advantages[index]))
    for record in STATE['old']:
        r, A = _unpack(record, prompts.data, policy.device)
        micro_steps.append((slice(len(advantages), len(advantages) + len(A)), r))
        advantages = torch.cat((advantages, A))
    STATE['old'] = new
    return micro_steps, scores, advantages


def _pack(r, A):
    """Return a Rollout and its advantages as dicts of tensors and numbers."""
    left_out = ('prompts', 'stats_old', 'x_ref')
    return {'rollout': {f.name: getattr(r, f.name) for f in fields(r) if f.name not in left_out},
            'prompts': {f.name: getattr(r.prompts, f.name) for f in fields(r.prompts)
                        if f.name != 'data'},
            'stats_old': list(r.stats_old), 'advantages': A}


def _unpack(record, data, device):
    """Return the Rollout and its advantages, on the device of the policy."""
    def here(values):
        return {name: value.to(device) if torch.is_tensor(value) else value
                for name, value in values.items()}

    r = Rollout(Prompts(**record['prompts'], data=data).to(device), **here(record['rollout']))
    r.stats_old = TokenStats(*[values.to(device) for values in record['stats_old']])
    return r, record['advantages'].to(device)
