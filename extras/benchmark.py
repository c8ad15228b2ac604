"""The time of a step by phases; beside it the usual way, which repeats each prompt k times; and how
much of what this machine can multiply a step reaches.

    python extras/benchmark.py config/grpo_benchmark.py --group_size=8

Our step and the usual one take turns, at learning rate 0, so that the policy and what a step costs
stay as they are. Writes no run."""
import statistics
import sys

from explain import set_up

import torch
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from common import autocast, clock, resolve_dtype
from model import log_probs, update
from train_grpo import exact_kl, get_prompts, group_advantages, take_step


def usual_step(policy, reference, optimizers, scorer, prompts, k):
    """A step in one pass of a fill model in the usual way: k rows per prompt, for all networks."""
    tokens = prompts.tokens.repeat_interleave(k, 0).to(policy.device)       # (N, T)
    mask = prompts.mask.repeat_interleave(k, 0)                             # (N, T)
    with torch.no_grad():
        logp_old = log_probs(policy(tokens, mask))                          # (M, V)
        actions = torch.multinomial(logp_old.exp(), 1)                      # (M, 1)
        rows = tokens.masked_scatter(mask.to(policy.device), actions)       # (N, T)
        reward = scorer.judge.raw(rows).view(-1, k)                         # (P, k)
        logp_ref = log_probs(reference(tokens, mask))                       # (M, V)
    owner = mask.nonzero()[:, 0].to(policy.device)                          # (M,)
    A = group_advantages(reward).flatten()[owner]                           # (M,)
    logp = log_probs(policy(tokens, mask))                                  # (M, V)
    ratio = (logp - logp_old).gather(1, actions)[:, 0].exp()                # (M,)
    pg = -torch.min(ratio * A, ratio.clamp(0.8, 1.2) * A)
    (pg + 0.05 * exact_kl(logp, logp_ref)).mean().backward()
    update(policy, optimizers, 0.0, 1.0)


def product_rate(rows, channels, device, dtype):
    """Floating-point operations per second of a product as large as those of a step."""
    a = torch.randn(rows, channels, device=device, dtype=dtype)
    b = torch.randn(channels, 4 * channels, device=device, dtype=dtype)
    timer = Timer('a @ b', globals={'a': a, 'b': b}, num_threads=torch.get_num_threads())
    return 8 * rows * channels ** 2 / timer.blocked_autorange(min_run_time=0.3).median


def peak_memory(device):
    """Largest memory so far in GB: of the GPU, or of this process."""
    if device.type == 'cuda':
        return torch.cuda.max_memory_allocated() / 1e9
    import resource                             # not on Windows
    unit = 1 if sys.platform == 'darwin' else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


if __name__ == "__main__":
    knobs, *parts = set_up()
    policy, reference, optimizers, scorer = parts
    k = knobs['group_size']
    has_usual = scorer.judge and reference and not policy.causal and knobs['n_fill_steps'] == 1
    ours = []                                   # of each step {phase: ms}
    usual = []                                  # ms of each
    with autocast(policy.device, knobs['dtype']):
        # What is compiled cannot be counted.
        with FlopCounterMode(display=False) as flops, torch.compiler.set_stance('force_eager'):
            take_step(*parts, get_prompts(scorer.data, 0), 0.0, 0.05)
        for step in range(25):                  # the first five warm up, and are ours alone
            clock.read()
            clock.mark('prompts')
            prompts = get_prompts(scorer.data, step)
            take_step(*parts, prompts, 0.0, 0.05)
            ours.append(clock.read())
            if step == 4:
                memory = peak_memory(policy.device)
            if step > 3 and has_usual:
                clock.mark('usual')
                usual_step(*parts, prompts, k)
                usual.append(clock.read()['usual'])

    ms = statistics.median(sum(phases.values()) for phases in ours[5:])
    print(f"{len(prompts)} prompts x {k} completions: {ms:.1f} ms, the median of 20 steps; "
          f"{1e3 * len(prompts) * k / ms:,.0f} completions/s; peak memory {memory:.2f} GB")
    for phase in ours[5]:
        part = statistics.median(phases[phase] for phases in ours[5:])
        print(f"  {phase:10} {part:8.2f} ms {part / ms:6.1%}")
    if has_usual:
        theirs = statistics.median(usual[1:])
        print(f"the usual way: {theirs:.1f} ms, {theirs / ms:.1f} times as long")
    done = flops.get_total_flops() / ms * 1e3
    rate = product_rate(knobs['batch_size'] * knobs['block_size'], policy.args['n_embd'],
                        policy.device,
                        getattr(torch, resolve_dtype(policy.device.type, knobs['dtype'])))
    print(f"{done / 1e9:,.1f} GFLOP/s of the {rate / 1e9:,.1f} that products of this size reach "
          f"here: {done / rate:.0%}")
