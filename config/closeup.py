"""A step of train_grpo.py seen from close: its groups, checks before the first, one group by hand
(--explain), the time that it takes (--benchmark), what broke it. `g`: the script's globals()."""
import math, statistics, timeit, types
import torch
from torch.utils.flop_counter import FlopCounterMode
import model
from sample import table

def show(step, b, scores, reward, advantages, tok, names, groups=3, most=6):
    """Prints groups of a step with rewards, advantages (P, k) and, if several, scores (n, P, k)."""
    values = torch.stack((reward, advantages, *(scores if len(names) > 1 else ())), 1).cpu()
    names = ['reward', 'advantage', *names][:values.size(1)]                # values: (P, n, k)
    for p, rows in enumerate(b['rows'].unflatten(0, (-1, reward.size(1)))[:groups].cpu()):
        table(tok, b['tokens'][p], b['mask'][p], [(f'step {step}', rows, values[p])], names, most)

def seen(t, batch):
    """What the policy now thinks of a batch: log-probs (M, c) of its actions, and the KL (M,)."""
    logits = t.logits_of(t.policy, batch).detach()
    taken = t.log_probs(logits, t.temperature, batch['kept']).gather(1, batch['actions'])
    free = t.log_probs(logits, t.temperature)   # without a reference the KL is 0
    return taken, t.exact_kl(free, t.logp_of(t.reference, batch) if t.reference else free)

@torch.no_grad()
def start_checks(g, step):
    """Says in a line that the machinery is in order, before anything is learned (KL: at step 0)."""
    t = types.SimpleNamespace(**g)
    b = t.rollout(t.policy, *(x[:t.batch_size] for x in t.asked('prompts', 'train', t.P, step)))
    new, kl = seen(t, b)
    off, kl = ((new - b['logp_old']).exp() - 1).abs().max().item(), kl.max().item() * (step == 0)
    reward = t.weighted(t.score(list(t.rewards), b), t.rewards.values())
    total = t.group_advantages(reward, t.adv_norm).sum(1).abs().max().item()
    shape, limit = tuple(b['rows'].shape), 0.5 if t.machine.dtype == 'bfloat16' else 1e-3
    learns = t.judge and any(p.requires_grad for p in t.judge.parameters())
    text = (f"checks: rows {shape} | ratio 1 (within {off:.0e}) | KL to the reference {kl:.0e} | "
            f"advantages sum to 0 (within {total:.0e}) | judge {'frozen' if t.judge else 'none'} | "
            f"rewards differ in {int((~t.dead_groups(reward)).sum())} of {t.batch_size} groups")
    if learns or shape != (t.batch_size * t.k, t.block_size) or total > 1e-2 * t.k or off > limit \
            or kl > 1e-3 and not t.reference_checkpoint:
        t.fail(f"{text}; something is not as it must be")
    t.clock.read()
    if t.machine.main:
        print(text, flush=True)

def explained(g):
    """One group by hand: what a step does to the k completions of a single prompt."""
    t = types.SimpleNamespace(**g)
    (line, _), (b, _, reward, A) = t.take_step(0)
    after, kl = seen(t, b)
    old, new = (t.per_row(x, b['row'], len(b['where'])).view(1, -1) for x in (b['logp_old'], after))
    show(0, b, (old, new, new - old), reward, A, t.data.tok, ['log p', 'after', 'change'], most=t.k)
    then = {'none': '', 'rloo': ' x k / (k - 1)'}.get(t.adv_norm, ' / (std + 1e-4)')
    pg, cost, loss = (round(line[key], 4) + 0.0 for key in ('pg_loss', 'kl_penalty', 'loss'))
    print(f"{t.k} completions: mean reward {reward.mean():.3f}, std {reward.std():.3f}; advantage "
          f"= (reward - mean){then}\nloss = -mean(ratio x advantage) + {t.kl_beta:g} x KL = "
          f"{pg:.4f} + {cost:.4f} = {loss:.4f}\nIt is 0 because every ratio is 1, the KL is 0 and "
          f"advantages sum to 0. Its gradient is not (norm {line['grad_norm']:.4f}).\nAfter the "
          f"update, at learning rate {line['lr']:g}, the KL is {kl.mean():.6f} nats per blank.")

def culprit(g, step, batches, scores, line):
    """Names what first was not finite, keeps the step's batches beside the log, ends the run."""
    t, path = types.SimpleNamespace(**g), f"{g['out_dir']}/nonfinite_rank{g['machine'].rank}.pt"
    torch.save({'step': step, 'line': line, 'scores': scores, 'batches': batches}, path)
    logp = torch.zeros_like(scores[0]).view(-1, t.batch_size, t.k)      # other ranks': 0
    for i, b in zip(t.mine, batches):
        logp[i] = t.per_row(b['logp_old'], b['row'], len(b['where'])).view(-1, t.k)
    bad = (~torch.cat((logp.view(1, -1, t.k), scores)).isfinite().all(2)).nonzero().tolist()
    what = next(key for key, value in line.items() if not math.isfinite(value))
    if bad:
        (i, p), (tokens, mask, _) = bad[0], t.asked('prompts', 'train', t.P, step)
        text = t.data.tok.decode(tokens[p].masked_fill(mask[p], t.data.tok.mask).tolist())
        what = f"prompt {text!r}: " + (f"reward '{t.names[i - 1]}'" if i else "the policy's logits")
    t.fail(f"step {step}, {what} is not finite; the batch is in {path}, no checkpoint was "
           "overwritten; try a smaller --learning_rate, or look at that reward")

def usual_step(t, step):
    """The usual step: sampling, policy and reference passes over all N rows, T through the head."""
    *prompts, u = (x.to(t.here) for x in t.asked('prompts', 'train', t.P, step))
    tokens, mask = (x.repeat_interleave(t.k, 0) for x in prompts)           # (N, T): each k times
    hidden, ids = tokens.masked_fill(mask, t.data.tok.mask), u.transpose(1, 2).flatten()[:, None]
    with t.machine.autocast():
        with torch.no_grad():
            drawn = model.draw(t.policy(hidden).log_softmax(-1).flatten(0, 1), ids).view_as(tokens)
            rows = torch.where(mask, drawn, tokens)                         # (N, T)
            ref = t.reference(hidden).log_softmax(-1).gather(2, rows[..., None])[..., 0]
            A = t.group_advantages(t.judge.raw(rows).view(t.P, t.k), t.adv_norm).view(-1, 1)
        taken = t.policy(hidden).log_softmax(-1).gather(2, rows[..., None])[..., 0]     # (N, T)
    r = (taken - taken.detach()).exp()
    kl, gain = t.sampled_kl(taken, ref, r, 'k3'), t.clipped_surrogate(r, A, t.clip_low, t.clip_high)
    (((t.kl_beta * kl - gain) * mask).sum() / mask.sum()).backward()
    t.update(t.policy, t.opts, 0.0, t.grad_clip)

def timed(function, clock, n):
    """Median ms of n calls after two that warm up; on CUDA clock.read() waits for the device."""
    times = [timeit.timeit(lambda: (function(i), clock.read()), number=1) for i in range(n + 2)]
    return 1e3 * statistics.median_high(times[2:])

def benchmarked(g, steps=20):
    """Times the step by phases and, in fill mode with judge and reference, the usual one beside."""
    t, median = types.SimpleNamespace(**g), statistics.median_high
    found = [t.take_step(step)[0][1] for step in range(steps + 5)][5:]
    whole = [sum(ms.values()) for ms in found]
    mid = median(whole)
    print(f"{t.P} prompts x {t.k} completions, {steps} steps: median {mid:.1f} ms, min "
          f"{min(whole):.1f}, max {max(whole):.1f}")
    for phase in ('prompts', 'forward', 'sampling', 'judge', 'reference', 'learn', 'optimizer'):
        ms = median(parts[phase] for parts in found)
        print(f"  {phase:10} {ms:8.2f} ms {ms / mid:6.1%}")
    with torch.compiler.set_stance('force_eager'), FlopCounterMode(display=False) as counter:
        t.take_step(0)
    flops, a = counter.get_total_flops() / 1e9, torch.randn(1024, 1024, device=t.here)
    with t.machine.autocast():
        rate = 2 * 1024 ** 3 / timed(lambda step: a @ a, t.clock, steps) / 1e6      # GFLOP/s
    speed = 1e3 * t.P * t.k / mid
    print(f"{speed:,.0f} completions/s, {speed * t.block_size:,.0f} tokens/s | {flops:.1f} GFLOP a "
          f"step = {1e3 * flops / mid / rate:.0%} of the {rate:.0f} GFLOP/s of a 1024^3 product | "
          f"peak memory {t.machine.peak_memory():.2f} GB")
    if t.causal or not t.reference or not t.judge:
        return
    print("   k   this step   usual, same products   usual, torch's defaults   ms per completion")
    nets = t.policy, t.reference, t.judge.gpt
    plain = True, 'float32', 'highest', [None] * 3          # torch's defaults
    own = model.FUSED, t.machine.dtype, torch.get_float32_matmul_precision(), [
        net.compiled for net in nets]
    for k in sorted({2, 4, 8, 16, 32, 64, t.k}):
        t.k = g['k'] = t.config['group_size'] = k
        n, ms = 10 if k <= 16 else 3, []
        torch.compiler.reset()                  # it gives up after 8 shapes
        for model.FUSED, t.machine.dtype, precision, trunks in (plain, own):
            torch.set_float32_matmul_precision(precision)
            for net, net.compiled in zip(nets, trunks):
                if net is not t.policy:
                    t.machine.frozen(net.to(net.embed.weight.dtype))
            ms.append(timed(lambda step: usual_step(t, step), t.clock, n))
        (usual, same), ours = ms, timed(t.take_step, t.clock, n)
        print(f"{k:4d} {ours:8.1f} ms   {same:9.1f} ms  {same / ours:5.1f} x   {usual:9.1f} ms  "
              f"{usual / ours:7.1f} x   {ours / t.P / k:9.3f}", flush=True)
        if usual > 8e3:                         # ms: the next line would take minutes
            break
