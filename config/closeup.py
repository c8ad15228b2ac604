"""A step of train_grpo.py seen from close: checks before the first, one group by hand (--explain),
the time that it takes (--benchmark), and what broke it. `g` is the namespace of that script."""
import time
from types import SimpleNamespace

import torch
from torch.utils.flop_counter import FlopCounterMode

import model
from config.configurator import fail

def start_checks(g, step):
    """Says in a line that the machinery is in order, before anything is learned."""
    t = SimpleNamespace(**g)
    batch = t.rollout(t.policy, *(x[:t.batch_size] for x in t.asked('prompts', 'train', t.P, step)))
    logits, rewards = t.logits_of(t.policy, batch).detach(), t.score(list(t.rewards), batch)
    taken = t.log_probs(logits, t.temperature, batch['kept']).gather(1, batch['actions'])
    off = ((taken - batch['logp_old']).exp() - 1).abs().max().item()
    reward = t.weighted(rewards, t.rewards.values())
    total = t.group_advantages(reward, t.adv_norm).sum(1).abs().max().item()
    kl = t.exact_kl(t.log_probs(logits, t.temperature), t.logp_of(t.reference, batch)).max().item() \
        if t.reference and step == 0 else 0.0
    assert batch['rows'].shape == (t.batch_size * t.k, t.block_size)
    assert t.judge is None or not any(p.requires_grad for p in t.judge.parameters())
    if off > (0.5 if t.machine.dtype == 'bfloat16' else 1e-3) or total > 1e-2 * t.k or (
            kl > 1e-3 and not t.reference_checkpoint):
        fail(f"at the start the ratio is off 1 by {off:.0e}, the KL to the reference is {kl:.0e}, "
             f"advantages sum to {total:.0e}; expected 0")
    t.clock.read()
    if t.machine.main:
        print(f"checks: rows {tuple(batch['rows'].shape)} | ratio 1 (within {off:.0e}) | KL to the "
              f"reference {kl:.0e} | advantages sum to 0 (within {total:.0e}) | judge "
              f"{'frozen' if t.judge else 'none'} | rewards differ in "
              f"{int((~t.dead_groups(reward)).sum())} of {t.batch_size} groups", flush=True)

def explained(g):
    """One group by hand: what a step does to the k completions of a single prompt."""
    t = SimpleNamespace(**g)
    (line, _), (b, _, reward, advantages) = t.take_step(0)
    logits = t.logits_of(t.policy, b).detach()
    after = t.log_probs(logits, t.temperature, b['kept']).gather(1, b['actions'])
    old, new = (t.per_row(logp, b['row'], len(b['where'])).view(1, -1)
                for logp in (b['logp_old'], after))
    t.show(0, b, torch.stack((old, new, new - old)), reward, advantages, t.data.tok,
           ['log p', 'after', 'change'], t.causal, most=t.k)
    kl = t.exact_kl(t.log_probs(logits, t.temperature), t.logp_of(t.reference, b)).mean() \
        if t.reference else 0.0
    print(f"mean reward {reward.mean():.3f}; advantage = reward - mean (adv_norm '{t.adv_norm}')\n"
          f"loss = -mean(ratio x advantage) + {t.kl_beta:g} x KL = {line['pg_loss']:.4f} + "
          f"{line['kl_penalty']:.4f} = {line['loss']:.4f}\nIt is 0 because every ratio is 1, the "
          f"KL is 0 and advantages sum to 0. Its gradient is not (norm {line['grad_norm']:.4f}).\n"
          f"After the update, at learning rate {line['lr']:g}, the KL is {kl:.6f} nats per blank.")

def culprit(g, step, batches, scores, line):
    """Names what first was not finite, keeps the step's batches beside the log, ends the run."""
    t, path = SimpleNamespace(**g), f"{g['out_dir']}/nonfinite_rank{g['machine'].rank}.pt"
    torch.save({'step': step, 'line': line, 'scores': scores,
                'batches': [{**b, 'logits': None} for b in batches]}, path)
    logp = torch.zeros(t.P, t.k)                # of completions of this rank
    for i, b in zip(t.mine, batches):
        logp[i * t.batch_size:(i + 1) * t.batch_size] = t.per_row(
            b['logp_old'].cpu(), b['row'].cpu(), len(b['where'])).view(-1, t.k)
    found, (tokens, mask, _) = None, t.asked('prompts', 'train', t.P, step)
    for what, values in [("the policy's logits", logp), *zip(t.names, scores)]:
        for p in (~values.isfinite()).any(1).nonzero()[:1, 0].tolist() if not found else ():
            what = {'judge': "the judge's score"}.get(what, what if values is logp else
                                                      f"reward '{what}'")
            text = t.data.tok.decode(tokens[p].masked_fill(mask[p], t.data.tok.mask).tolist())
            found = f"prompt {text!r}: {what}"
    found = found or next(key for key, value in line.items() if not abs(value) < float('inf'))
    fail(f"step {step}, {found} is not finite; the batch is in {path}, no checkpoint was "
         "overwritten; try a smaller --learning_rate, or look at that reward")

def usual_step(t, step):
    """The same step as it is usually computed: every prompt repeated k times, for a sampling pass,
    a policy pass and a reference pass over all N rows, with all T positions through the head."""
    tokens, mask, u = t.asked('prompts', 'train', t.P, step)
    tokens, mask = (x.to(t.here).repeat_interleave(t.k, 0) for x in (tokens, mask))     # (N, T)
    hidden = tokens.masked_fill(mask, t.data.tok.mask)

    def log_probs(net):                                                     # (N, T, V)
        return net(hidden).log_softmax(-1)
    with t.machine.autocast():
        with torch.no_grad():
            u = u.transpose(1, 2).flatten()[:, None].to(t.here)             # (N * T, 1)
            drawn = model.draw(log_probs(t.policy).flatten(0, 1), u).view_as(tokens)
            rows = torch.where(mask, drawn, tokens)                         # (N, T)
            ref = log_probs(t.reference).gather(2, rows[..., None])[..., 0]
            A = t.group_advantages(t.judge.raw(rows).view(t.P, t.k), t.adv_norm).view(-1, 1)
        taken = log_probs(t.policy).gather(2, rows[..., None])[..., 0]      # (N, T)
    r = (taken - taken.detach()).exp()
    loss = t.kl_beta * t.sampled_kl(taken, ref, r, 'k3') - t.clipped_surrogate(
        r, A, t.clip_low, t.clip_high)
    ((loss * mask).sum() / mask.sum()).backward()
    t.update(t.policy, t.opts, 0.0, t.grad_clip)

def benchmarked(g, steps=20):
    """Times the real step by phases and, where all is in one pass and a judge scores it, the usual
    step beside it. Writes nothing."""
    t = SimpleNamespace(**g)

    def median(function, n):
        """ms of n calls after two that warm up."""
        times = []
        for step in range(n + 2):
            t.clock.read()                      # on CUDA this waits for the device
            began = time.perf_counter()
            function(step)
            t.clock.read()
            times.append(1e3 * (time.perf_counter() - began))
        return sorted(times[2:])[n // 2]

    found = [t.take_step(step)[0][1] for step in range(steps + 5)][5:]
    whole = sorted(sum(ms.values()) for ms in found)
    print(f"{t.P} prompts x {t.k} completions, {steps} steps: median {whole[steps // 2]:.1f} ms, "
          f"min {whole[0]:.1f}, max {whole[-1]:.1f}")
    for phase in ('prompts', 'forward', 'sampling', 'judge', 'reference', 'learn', 'optimizer'):
        ms = sorted(m.get(phase, 0) for m in found)[steps // 2]
        print(f"  {phase:10} {ms:8.2f} ms {ms / whole[steps // 2]:6.1%}")
    with FlopCounterMode(display=False) as counter:
        t.take_step(0)
    a, b = torch.randn(2, 1024, 1024, device=t.here)
    with t.machine.autocast():
        rate = 2 * 1024 ** 3 / median(lambda step: a @ b, 20) * 1e3
    seconds, flops = whole[steps // 2] / 1e3, counter.get_total_flops()
    print(f"{t.P * t.k / seconds:,.0f} completions/s, {t.P * t.k * t.block_size / seconds:,.0f} "
          f"tokens/s | {flops / 1e9:.1f} GFLOP a step = {flops / seconds / rate:.0%} of the "
          f"{rate / 1e9:.0f} GFLOP/s of a 1024^3 product | peak memory "
          f"{t.machine.peak_memory():.2f} GB")
    if t.causal or not t.reference or not t.judge:
        return
    print("   k   this step   usual, same products   usual, torch's defaults   ms per completion")
    for k in sorted({2, 4, 8, 16, 32, 64, t.k}):
        t.k = t.take_step.__globals__['k'] = t.config['group_size'] = k
        n = 10 if k <= 16 else 3
        ours, same = median(t.take_step, n), median(lambda step: usual_step(t, step), n)
        before = torch.get_float32_matmul_precision(), model.attention, t.machine.dtype
        torch.set_float32_matmul_precision('highest')
        model.attention, t.machine.dtype = model.fused_attention, 'float32'
        usual = median(lambda step: usual_step(t, step), n)
        torch.set_float32_matmul_precision(before[0])
        _, model.attention, t.machine.dtype = before
        print(f"{k:4d} {ours:8.1f} ms   {same:9.1f} ms  {same / ours:5.1f} x   {usual:9.1f} ms  "
              f"{usual / ours:7.1f} x   {ours / t.P / k:9.3f}")
