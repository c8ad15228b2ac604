"""How much of the exact gradient has an estimate of the likelihood? The cosine between them, on the
same completions of a run, before and after GRPO.

    python -m extras.cosine out-passes                      # as the run was made
    python -m extras.cosine out-passes --n_fill_steps=2     # with other knobs
"""
import copy
from dataclasses import replace

import torch
from torch import nn

import train_grpo as grpo
from rollout import LIKELIHOODS
from run.command import words_of
from run.machine import print_line
from sample import open_run


def gradient(policy, micro_steps, advantages, likelihood):
    """Return the gradient of the policy loss, one vector."""
    policy = copy.deepcopy(policy)
    for index, r in micro_steps:
        r = replace(r, likelihood=likelihood, stats_old=None, x_ref=None)
        stats = grpo.token_stats(r, policy, None, grpo.temperature)
        terms, _ = grpo.grpo_loss(stats, r, advantages[index], 0.0)
        terms['pg_loss'].backward()
    return nn.utils.parameters_to_vector([p.grad for p in policy.parameters()
                                            if p.grad is not None])


if __name__ == "__main__":
    # with an estimate the prompts get the random numbers of its masks
    run, networks = open_run(*words_of(__doc__, 1), '--likelihood=coupled')
    grpo.likelihood = 'trajectory'              # of the reward `kl`
    for label, network in networks.items():
        cosines = []
        for step in range(4):
            prompts = grpo.get_prompts(run.data, step)
            micro_steps, _, advantages = grpo.collect(network, run.scorer, prompts)
            if not advantages.any():            # all groups are dead: there is no gradient
                continue
            exact, *others = [gradient(network, micro_steps, advantages, name)
                              for name in LIKELIHOODS]
            cosines.append([torch.cosine_similarity(exact, other, 0).item() for other in others])
        assert cosines, f"{label}: all groups are dead, so there is no gradient"
        means = torch.tensor(cosines).mean(0).tolist()
        print_line(label, zip([*LIKELIHOODS][1:], means))
