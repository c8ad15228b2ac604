"""Do not read texts that teach nothing, from groups whose rewards are all equal. Without a KL
and an entropy bonus their loss is 0, so the gradient is the same without them. plugins/causal.py
and plugins/passes.py include this file. (If the loss of a config file has a term without an
advantage, add a small entropy bonus.)

This file is executed in the globals of train_grpo.py; `inner` is the old function."""
import torch


def token_stats(policy, rollout, reference=None, inner=token_stats):
    """Return the Stats of the tokens. kl and entropy of a token that is not read are nan."""
    can_skip = kl_beta == 0 and entropy_coef == 0 and rollout.advantage is not None
    if not can_skip or not torch.is_grad_enabled():     # log_probs_of() asks about all tokens
        return inner(policy, rollout, reference)
    # All tokens of a text, or none: a loss can couple them (config/papers/gspo.py).
    teaches = rollout.per_text(rollout.advantage.abs()) > 0                             # (N,)
    rows = teaches[rollout.text_of].nonzero()[:, 0]
    part = rollout.select(rows)
    used, view_of = part.view_of.unique(return_inverse=True)
    stats = inner(policy, replace(part, views=part.views[used], view_of=view_of), reference)
    nan = torch.full_like(rollout.advantage, torch.nan)
    # The ratio of the others is 1, so their loss is -advantage, which is 0.
    logp = rollout.logp_old if rollout.logp_old is not None else torch.zeros_like(nan)
    others = Stats(logp, nan, nan, nan)
    return Stats(*[a.index_put((rows,), b) for a, b in zip(others, stats)])
