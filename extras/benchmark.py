"""Time a step beside one that works the usual way, which sends each prompt k times through all
networks.

    python -m extras.benchmark config/grpo_config.py --group_size=8

Both take turns, at learning rate 0, so that the policy and the cost of a step stay as they are."""
import statistics
import sys
import time

import torch

import train_grpo as grpo
from judge import token_logp
from model import make_optimizers, optimizer_step
from rollout import exact_kl, log_probs


def usual_step(policy, reference, optimizers, judge, prompts):
    """Take a step of one fill pass in the usual way, with k sequences of each prompt."""
    k = prompts.k
    blank = prompts.blank.repeat_interleave(k, 0)                           # (N, T)
    tokens = prompts.tokens.repeat_interleave(k, 0)                         # (N, T)
    tokens = tokens.masked_fill(blank, policy.blank_id)
    # act, judge and reference: no gradient
    with torch.no_grad():
        logp_old = log_probs(policy.logits(policy(tokens)[blank]))           # (M, V)
        actions = torch.multinomial(logp_old.exp(), 1)                      # (M, 1)
        sequences = tokens.masked_scatter(blank, actions)                    # (N, T)
        reward = token_logp(judge, sequences).mean(1).view(-1, k)           # (P, k)
        logp_ref = log_probs(reference.logits(reference(tokens)[blank]))     # (M, V)
    sequence_of = blank.nonzero()[:, 0]                                      # (M,)
    A = grpo.group_advantages(reward, 'none').flatten()[sequence_of]                 # (M,)
    logp = log_probs(policy.logits(policy(tokens)[blank]))                   # (M, V)
    ratio = (logp - logp_old).gather(1, actions)[:, 0].exp()                # (M,)
    pg = -torch.min(ratio * A, ratio.clamp(0.8, 1.2) * A)
    (pg + 0.05 * exact_kl(logp, logp_ref)).mean().backward()
    optimizer_step(policy, optimizers, 0.0, 1.0)


def step_of(policy, scorer, optimizers, prompts):
    """Take a step at learning rate 0."""
    micro_steps, _, advantages = grpo.collect(policy, scorer, prompts)
    grpo.learn(policy, scorer.reference, optimizers, micro_steps, advantages, 0.0, grpo.kl_beta)


def ms_of(function, *arguments):
    """Return the milliseconds that a call takes."""
    began = time.time()
    function(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1000 * (time.time() - began)


if __name__ == "__main__":
    run = grpo.set_up(sys.argv[1:])
    policy = run.policy
    judge = run.scorer.judge
    reference = run.scorer.reference
    optimizers = make_optimizers(policy, grpo.optimizer, 0.0)
    is_one_pass = not policy.causal and grpo.n_fill_steps == 1
    has_usual = is_one_pass and reference and judge and not judge.is_classifier
    times = {'a step': [], 'of it, act and score': [], 'the usual way': []}
    # The first five steps warm up: caches, memory, compilation.
    for step in range(20):
        prompts = grpo.get_prompts(run.data, step).to(policy.device)
        times['a step'].append(ms_of(step_of, policy, run.scorer, optimizers, prompts))
        with torch.no_grad():
            times['of it, act and score'].append(ms_of(grpo.act_and_score, policy, run.scorer,
                                                       prompts, grpo.rewards))
        if has_usual:
            times['the usual way'].append(ms_of(usual_step, policy, reference, optimizers,
                                                judge, prompts))

    print(f"{len(prompts)} prompts x {grpo.group_size} completions, median of the last 15 steps of "
          f"{step + 1}")
    medians = {name: statistics.median(values[5:]) for name, values in times.items() if values}
    for name, median in medians.items():
        print(f"{name:20} {median:8.1f} ms, {median / medians['a step']:.2f} of a step")
    if policy.device.type == 'cuda':
        print(f"peak memory {torch.cuda.max_memory_allocated() / 1e9:.2f} GB")
