"""Time a step beside one that works the usual way, which sends each prompt k times through all
networks.

    python -m extras.benchmark config/grpo_config.py --group_size=8

Both take turns, at learning rate 0, so that the policy and the cost of a step stay as they are."""
import statistics
import sys
import time

import torch

import train_grpo as run
from extras.explain import set_up
from judge import token_logp
from model import log_probs, make_optimizers, update


def usual_step(policy, reference, optimizers, judge, prompts):
    """Take a step of one fill pass in the usual way, with k sequences of each prompt."""
    k = prompts.uniforms.size(1)
    tokens = prompts.tokens.repeat_interleave(k, 0).to(policy.device)       # (N, T)
    mask = prompts.mask.repeat_interleave(k, 0).to(policy.device)           # (N, T)
    # act, judge and reference: no gradient
    with torch.no_grad():
        logp_old = log_probs(policy(tokens, mask))                          # (M, V)
        actions = torch.multinomial(logp_old.exp(), 1)                      # (M, 1)
        sequences = tokens.masked_scatter(mask, actions)                    # (N, T)
        reward = token_logp(judge, sequences).mean(1).view(-1, k)           # (P, k)
        logp_ref = log_probs(reference(tokens, mask))                       # (M, V)
    sequence_of = mask.nonzero()[:, 0]                                      # (M,)
    A = run.group_advantages(reward).flatten()[sequence_of]                 # (M,)
    logp = log_probs(policy(tokens, mask))                                  # (M, V)
    ratio = (logp - logp_old).gather(1, actions)[:, 0].exp()                # (M,)
    pg = -torch.min(ratio * A, ratio.clamp(0.8, 1.2) * A)
    (pg + 0.05 * run.exact_kl(logp, logp_ref)).mean().backward()
    update(policy, optimizers, 0.0, 1.0)


def ms_of(function, *arguments):
    """Return the milliseconds that a call takes."""
    began = time.time()
    function(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1000 * (time.time() - began)


if __name__ == "__main__":
    policy, reference, scorer, data = set_up(sys.argv[1:])
    if run.compile:
        for network in (policy, reference):
            network.compile()
    optimizers = make_optimizers(policy, run.optimizer, 0.0, 0.0, run.beta1, run.beta2)
    has_usual = scorer.judge and not policy.causal and run.n_fill_steps == 1
    times = {'a step': [], 'of it, act and judge': [], 'the usual way': []}
    # The first five steps warm up: caches, memory, compilation.
    for step in range(20):
        prompts = run.get_prompts(data, step, policy.causal)
        times['a step'].append(ms_of(run.take_step, policy, reference, optimizers, scorer, prompts,
                                     0.0, run.kl_beta))
        with torch.no_grad():
            times['of it, act and judge'].append(ms_of(run.act_and_judge, policy, scorer, prompts,
                                                       run.rewards))
        if has_usual:
            times['the usual way'].append(ms_of(usual_step, policy, reference, optimizers,
                                                scorer.judge, prompts))

    print(f"{len(prompts)} prompts x {run.group_size} completions, median of the last 15 steps of "
          f"{step + 1}")
    medians = {name: statistics.median(values[5:]) for name, values in times.items() if values}
    for name, median in medians.items():
        print(f"{name:20} {median:8.1f} ms, {median / medians['a step']:.2f} of a step")
    if policy.device.type == 'cuda':
        print(f"peak memory {torch.cuda.max_memory_allocated() / 1e9:.2f} GB")
