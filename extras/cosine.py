"""How much of the exact gradient has a paper's estimate of the likelihood? The cosine between them,
on the same completions of a run, before and after GRPO.

    python -m extras.cosine out-passes config/papers/d1.py
    python -m extras.cosine out-passes config/papers/diffucoder.py --n_fill_steps=2
"""
import copy
from dataclasses import replace

import torch
from torch import nn

from extras.words import words_of
import train_grpo as grpo
from run.machine import print_line
from sample import open_run


def gradient(policy, micro_steps, advantages, likelihood):
    """Return the gradient of the policy loss, one vector. likelihood: a function."""
    policy = copy.deepcopy(policy)
    for index, r in micro_steps:
        r = replace(r, stats_old=None, x_ref={})
        stats = likelihood(r, policy, None)
        terms, _ = grpo.grpo_loss(stats, r, advantages[index], 0.0)
        terms['pg_loss'].backward()
    return nn.utils.parameters_to_vector([p.grad for p in policy.parameters()
                                            if p.grad is not None])


if __name__ == "__main__":
    # What is compared is the likelihood alone. With an estimate the prompts get the random numbers
    # of its masks.
    path, *words = words_of(__doc__, 2)
    run, networks = open_run(path, *words, '--adv_norm=none', '--objective=ppo',
                             '--loss_norm=token')
    name = grpo.likelihood
    estimate = grpo.rules.likelihood
    grpo.rules.likelihood = grpo.token_stats    # of the reward `kl`
    assert name != 'trajectory', "expected the file of a paper that estimates the likelihood"
    for label, network in networks.items():
        cosines = []
        for step in range(4):
            prompts = grpo.get_prompts(run.data, step)
            micro_steps, _, advantages = grpo.collect(network, run.scorer, prompts)
            if not advantages.any():            # all groups are dead: there is no gradient
                continue
            gradients = [gradient(network, micro_steps, advantages, likelihood)
                         for likelihood in (grpo.token_stats, estimate)]
            cosines.append(torch.cosine_similarity(*gradients, 0).item())
        assert cosines, f"{label}: all groups are dead, so there is no gradient"
        print_line(label, [(name, sum(cosines) / len(cosines))])
