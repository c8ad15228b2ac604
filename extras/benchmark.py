"""The time of a step by phases; beside it the usual way, which repeats each prompt k times; and how
much of what this machine can multiply a step reaches.

    python extras/benchmark.py config/grpo_benchmark.py --group_size=8

Our step and the usual one take turns, at learning rate 0, so that the policy and what a step costs
stay as they are. Writes no run."""
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
from common import autocast, clock, configure, init_device, resolve_dtype

import torch
from torch.utils.flop_counter import FlopCounterMode

import train_grpo
from judge import Scorer, check_rewards
from model import log_probs, make_optimizers, update
from train_grpo import (check_knobs, exact_kl, get_prompts, group_advantages, load_parts,
                        take_step)


def usual_step(policy, reference, optimizers, judge, prompts, k):
    """A step in one pass of a fill model in the usual way: k rows per prompt, for all networks."""
    device = policy.device
    tokens = prompts.tokens.repeat_interleave(k, 0).to(device)              # (N, T)
    mask = prompts.mask.repeat_interleave(k, 0)                             # (N, T)
    with torch.no_grad():
        logp_old = log_probs(policy(tokens, mask))                          # (M, V)
        actions = torch.multinomial(logp_old.exp(), 1)                      # (M, 1)
        rows = tokens.masked_scatter(mask.to(device), actions)              # (N, T)
        reward = judge.raw(rows).view(-1, k)                                # (P, k)
        logp_ref = log_probs(reference(tokens, mask))                       # (M, V)
    advantages = group_advantages(reward.float()).flatten()                 # (N,)
    owner = mask.nonzero()[:, 0].to(device)                                 # (M,)
    logp = log_probs(policy(tokens, mask))                                  # (M, V)
    ratio = (logp - logp_old).gather(1, actions)[:, 0].exp()                # (M,)
    A = advantages[owner]
    pg = -torch.min(ratio * A, ratio.clamp(0.8, 1.2) * A)
    (pg + 0.05 * exact_kl(logp, logp_ref)).mean().backward()
    update(policy, optimizers, 0.0, 1.0)


def product_rate(rows, channels, device, dtype, seconds=0.3):
    """Floating-point operations per second of a product of the size that a step has."""
    a = torch.randn(rows, channels, device=device, dtype=dtype)
    b = torch.randn(channels, 4 * channels, device=device, dtype=dtype)
    began = time.perf_counter()
    n = 0
    while time.perf_counter() - began < seconds:
        (a @ b).sum().item()                    # a GPU is waited for
        n += 1
    return n * 2 * rows * channels * 4 * channels / (time.perf_counter() - began)


def peak_memory(device):
    """Largest memory so far in GB: of the GPU, or of this process."""
    if device.type == 'cuda':
        return torch.cuda.max_memory_allocated() / 1e9
    import resource                             # not on Windows
    unit = 1 if sys.platform == 'darwin' else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


if __name__ == "__main__":
    knobs = vars(train_grpo)
    _, functions = configure(knobs)
    check_knobs()
    check_rewards(knobs['rewards'], functions)
    device, note = init_device(knobs['device'], knobs['dtype'])
    data, policy, reference, judge, _ = load_parts(device)
    scorer = Scorer(data, judge, functions)
    optimizers = make_optimizers(policy, 0.0, 0.0, 0.9, 0.95, knobs['optimizer'])
    k = knobs['group_size']
    ours = []                                   # of each step {phase: ms}
    usual = []                                  # ms of each
    can_compare = judge and reference and not policy.causal and knobs['n_fill_steps'] == 1
    flops = FlopCounterMode(display=False)
    for step in range(25):                      # the first five warm up
        with autocast(device, knobs['dtype']):
            clock.read()
            clock.mark('prompts')
            prompts = get_prompts(data, step)
            if step == 4:
                with flops:
                    take_step(policy, reference, optimizers, scorer, prompts, 0.0, 0.05)
            else:
                take_step(policy, reference, optimizers, scorer, prompts, 0.0, 0.05)
            ours.append(clock.read())
            if can_compare:
                clock.mark('usual')
                usual_step(policy, reference, optimizers, judge, prompts, k)
                usual.append(sum(clock.read().values()))

    ms = statistics.median(sum(phases.values()) for phases in ours[5:])
    print(f"{len(prompts)} prompts x {k} completions, 20 steps, {note}: median {ms:.1f} ms")
    for phase in ('prompts', 'act', 'judge', 'reference', 'learn', 'optimizer'):
        part = statistics.median(phases[phase] for phases in ours[5:])
        print(f"  {phase:10} {part:8.2f} ms {part / ms:6.1%}")
    if can_compare:
        theirs = statistics.median(usual[5:])
        print(f"the usual way: {theirs:.1f} ms, {theirs / ms:.1f} times as long")
    rate = product_rate(len(prompts) * knobs['block_size'], policy.args['n_embd'], device,
                        getattr(torch, resolve_dtype(device.type, knobs['dtype'])))
    done = flops.get_total_flops() / ms * 1e3
    print(f"{1e3 * len(prompts) * k / ms:,.0f} completions/s | {done / 1e9:,.1f} GFLOP/s of the "
          f"{rate / 1e9:,.1f} that products of this size reach here, {done / rate:.0%} | peak "
          f"memory {peak_memory(device):.2f} GB")
