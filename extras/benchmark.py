"""Time a step beside one that works the usual way: k copies of each prompt go through the policy,
the reference and the judge, which has to be one of likelihoods, in one pass.

    python -m extras.benchmark --group_size=8

Both take turns, at learning rate 0, so that the policy and the cost of a step stay as they are."""
import statistics
import sys
import time

import torch

import train_grpo as grpo
from judge import token_logp
from model import make_optimizers, optimizer_step
from rollout import log_probs


def logp_of(network, tokens, blank):
    """Return log-probabilities (M, V) of all tokens in M blanks."""
    return log_probs(network.logits(network(tokens)[blank]))


def usual_step(run, optimizers, prompts):
    """Take a step of one fill pass in the usual way, with k sequences of each prompt."""
    policy, reference = run.policy, run.scorer.reference
    each = torch.arange(len(prompts)).repeat_interleave(prompts.k)
    copies = prompts[each]
    blank = copies.blank                                                    # (N, T)
    tokens = copies.tokens.masked_fill(blank, policy.blank_id)              # (N, T)
    with torch.no_grad():                       # act, judge and compare with the reference
        logp = logp_of(policy, tokens, blank)                               # (M, V)
        actions = torch.multinomial(logp.exp(), 1)                          # (M, 1)
        sequences = tokens.masked_scatter(blank, actions)                    # (N, T)
        reward = token_logp(run.scorer.judge, sequences).mean(1)            # (N,)
        logp_ref = logp_of(reference, tokens, blank)                        # (M, V)
    A = grpo.group_advantages(reward.view(-1, prompts.k)).flatten()          # (N,)
    A = A[blank.nonzero()[:, 0]]                                             # (M,)
    logp = logp_of(policy, tokens, blank)                                   # (M, V)
    # before the first update every ratio is 1
    pg = -A * logp.gather(1, actions)[:, 0]                                 # (M,)
    kl = (logp.exp() * (logp - logp_ref)).sum(1)
    loss = pg + 0.05 * kl
    loss.mean().backward()
    optimizer_step(policy, optimizers, 0.0, 1.0)


def our_step(run, optimizers, prompts):
    micro_steps, _, advantages = grpo.collect(run.policy, run.scorer, prompts)
    grpo.learn(run.policy, run.scorer, optimizers, micro_steps, advantages, 0.0, grpo.kl_beta,
               grpo.entropy_coef)


if __name__ == "__main__":
    run = grpo.set_up(sys.argv[1:])
    optimizers = make_optimizers(run.policy, grpo.optimizer, 0.0)
    times = {our_step: [], usual_step: []}
    for step in range(20):
        prompts = grpo.get_prompts(run.data, step).to(run.policy.device)
        for take_step in times:
            began = time.time()
            take_step(run, optimizers, prompts)             # it ends with a number, which waits
            ms = 1000 * (time.time() - began)
            times[take_step].append(ms)
    # the first five warm up: caches, memory, compilation
    ours, usual = [statistics.median(ms[5:]) for ms in times.values()]
    print(f"{len(prompts)} prompts x {prompts.k} completions: a step takes {ours:.1f} ms, and the "
          f"usual way {usual:.1f} ms, {usual / ours:.2f} times as long")
