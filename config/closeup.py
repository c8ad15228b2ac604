"""A step of train_grpo.py seen from close: its groups, checks before the first, one group by hand
(--explain), the time that it takes (--benchmark), what broke it. `g`: the script's globals()."""
import time
from types import SimpleNamespace

import torch
from torch.utils.flop_counter import FlopCounterMode

import model
from config.configurator import fail
from sample import table

def show(step, batch, scores, reward, advantages, tok, names, groups=3, most=6):
    """Prints groups of a step with rewards, advantages (P, k) and, if several, scores (n, P, k)."""
    tokens, mask, rows = (batch[key].cpu() for key in ('tokens', 'mask', 'rows'))
    values = torch.stack((reward, advantages, *(scores if len(names) > 1 else ()))).cpu()
    names = ['reward', 'advantage', *names][:len(values)]
    for p, group in enumerate(rows.view(len(tokens), -1, rows.size(1))[:groups]):
        table(tok, tokens[p], mask[p], [(f'step {step}', group, values[:, p])], names, most)

def seen(t, batch):
    """What the policy now thinks of a batch: log-probs (M, c) of its actions, KL (M,) or (1,) 0."""
    logits = t.logits_of(t.policy, batch).detach()
    taken = t.log_probs(logits, t.temperature, batch['kept']).gather(1, batch['actions'])
    return taken, t.exact_kl(t.log_probs(logits, t.temperature), t.logp_of(t.reference, batch)) \
        if t.reference else torch.zeros(1)

@torch.no_grad()
def start_checks(g, step):
    """Says in a line that the machinery is in order, before anything is learned."""
    t = SimpleNamespace(**g)
    batch = t.rollout(t.policy, *(x[:t.batch_size] for x in t.asked('prompts', 'train', t.P, step)))
    taken, kl = seen(t, batch)
    reward = t.weighted(t.score(list(t.rewards), batch), t.rewards.values())
    off = ((taken - batch['logp_old']).exp() - 1).abs().max().item()
    total = t.group_advantages(reward, t.adv_norm).sum(1).abs().max().item()
    shape, kl = tuple(batch['rows'].shape), kl.max().item() * (step == 0)   # of the start
    frozen = t.judge is None or not any(p.requires_grad for p in t.judge.parameters())
    text = (f"checks: rows {shape} | ratio 1 (within {off:.0e}) | KL to the reference {kl:.0e} | "
            f"advantages sum to 0 (within {total:.0e}) | judge {'frozen' if t.judge else 'none'} | "
            f"rewards differ in {int((~t.dead_groups(reward)).sum())} of {t.batch_size} groups")
    if not frozen or shape != (t.batch_size * t.k, t.block_size) or total > 1e-2 * t.k or (
            off > (0.5 if t.machine.dtype == 'bfloat16' else 1e-3)) or (
            kl > 1e-3 and not t.reference_checkpoint):
        fail(f"{text}; something is not as it must be")
    t.clock.read()
    if t.machine.main:
        print(text, flush=True)

def explained(g):
    """One group by hand: what a step does to the k completions of a single prompt."""
    t = SimpleNamespace(**g)
    (line, _), (b, _, reward, advantages) = t.take_step(0)
    after, kl = seen(t, b)
    old, new = (t.per_row(logp, b['row'], len(b['where'])).view(1, -1)
                for logp in (b['logp_old'], after))
    show(0, b, torch.stack((old, new, new - old)), reward, advantages, t.data.tok,
         ['log p', 'after', 'change'], most=t.k)
    then = {'none': '', 'rloo': ' x k / (k - 1)'}.get(t.adv_norm, ' / (std + 1e-4)')
    pg, penalty, loss = (round(line[key], 4) + 0.0 for key in ('pg_loss', 'kl_penalty', 'loss'))
    print(f"{t.k} completions: mean reward {reward.mean():.3f}, std {reward.std():.3f}; advantage "
          f"= (reward - mean){then}\n"
          f"loss = -mean(ratio x advantage) + {t.kl_beta:g} x KL = {pg:.4f} + {penalty:.4f} = "
          f"{loss:.4f}\nIt is 0 because every ratio is 1, the KL is 0 and advantages sum to 0. Its "
          f"gradient is not (norm {line['grad_norm']:.4f}).\n"
          f"After the update, at learning rate {line['lr']:g}, the KL is {kl.mean():.6f} nats per "
          "blank.")

def culprit(g, step, batches, scores, line):
    """Names what first was not finite, keeps the step's batches beside the log, ends the run."""
    t, path = SimpleNamespace(**g), f"{g['out_dir']}/nonfinite_rank{g['machine'].rank}.pt"
    torch.save({'step': step, 'line': line, 'scores': scores,
                'batches': [{**b, 'logits': None} for b in batches]}, path)
    table = torch.cat((scores[:1], scores)).cpu()       # (1 + n, P, k): log-probs, and the scores
    table[0] = 0.0                                      # of what another rank completed
    for i, b in zip(t.mine, batches):
        logp = t.per_row(b['logp_old'], b['row'], len(b['where']))
        table[0, i * t.batch_size:(i + 1) * t.batch_size] = logp.view(-1, t.k)
    bad = (~table.isfinite()).any(2).nonzero().tolist()
    what = next(key for key, value in line.items() if not abs(value) < float('inf'))
    if bad:
        (i, p), (tokens, mask, _) = bad[0], t.asked('prompts', 'train', t.P, step)
        prompt = t.data.tok.decode(tokens[p].masked_fill(mask[p], t.data.tok.mask).tolist())
        what = f"prompt {prompt!r}: " + ["the policy's logits", *(
            "the judge's score" if name == 'judge' else f"reward '{name}'" for name in t.names)][i]
    fail(f"step {step}, {what} is not finite; the batch is in {path}, no checkpoint was "
         "overwritten; try a smaller --learning_rate, or look at that reward")

def usual_step(t, step):
    """The same step as it is usually computed: every prompt repeated k times, for a sampling pass,
    a policy pass and a reference pass over all N rows, with all T positions through the head."""
    tokens, mask, u = (x.to(t.here) for x in t.asked('prompts', 'train', t.P, step))
    tokens, mask = (x.repeat_interleave(t.k, 0) for x in (tokens, mask))    # (N, T)
    hidden, ids = tokens.masked_fill(mask, t.data.tok.mask), u.transpose(1, 2).flatten()[:, None]
    with t.machine.autocast():
        with torch.no_grad():
            drawn = model.draw(t.policy(hidden).log_softmax(-1).flatten(0, 1), ids).view_as(tokens)
            rows = torch.where(mask, drawn, tokens)                         # (N, T)
            ref = t.reference(hidden).log_softmax(-1).gather(2, rows[..., None])[..., 0]
            A = t.group_advantages(t.judge.raw(rows).view(t.P, t.k), t.adv_norm).view(-1, 1)
        taken = t.policy(hidden).log_softmax(-1).gather(2, rows[..., None])[..., 0]     # (N, T)
    r = (taken - taken.detach()).exp()
    loss = t.kl_beta * t.sampled_kl(taken, ref, r, 'k3') - t.clipped_surrogate(
        r, A, t.clip_low, t.clip_high)
    ((loss * mask).sum() / mask.sum()).backward()
    t.update(t.policy, t.opts, 0.0, t.grad_clip)

def benchmarked(g, steps=20):
    """Times the real step by phases and, where all is in one pass and a judge scores it, the usual
    step beside it. Writes nothing."""
    t = SimpleNamespace(**g)

    def median(function, n=steps):
        """ms of n calls after two that warm up; on CUDA clock.read() waits for the device."""
        times = []
        for step in range(n + 2):
            t.clock.read()
            began = time.perf_counter()
            function(step)
            t.clock.read()
            times.append(1e3 * (time.perf_counter() - began))
        return sorted(times[2:])[n // 2]

    found = [t.take_step(step)[0][1] for step in range(steps + 5)][5:]
    low, *_, high = whole = sorted(sum(ms.values()) for ms in found)
    mid = whole[steps // 2]
    print(f"{t.P} prompts x {t.k} completions, {steps} steps: median {mid:.1f} ms, min {low:.1f}, "
          f"max {high:.1f}")
    for phase in ('prompts', 'forward', 'sampling', 'judge', 'reference', 'learn', 'optimizer'):
        ms = sorted(m.get(phase, 0) for m in found)[steps // 2]
        print(f"  {phase:10} {ms:8.2f} ms {ms / mid:6.1%}")
    with torch.compiler.set_stance('force_eager'), FlopCounterMode(display=False) as counter:
        t.take_step(0)
    a, b = torch.randn(2, 1024, 1024, device=t.here)
    with t.machine.autocast():
        rate = 2 * 1024 ** 3 / median(lambda step: a @ b) / 1e6     # GFLOP/s
    flops, n = counter.get_total_flops() / 1e9, t.P * t.k
    print(f"{1e3 * n / mid:,.0f} completions/s, {1e3 * n * t.block_size / mid:,.0f} tokens/s | "
          f"{flops:.1f} GFLOP a step = {1e3 * flops / mid / rate:.0%} of the {rate:.0f} GFLOP/s of "
          f"a 1024^3 product | peak memory {t.machine.peak_memory():.2f} GB")
    if t.causal or not t.reference or not t.judge:
        return
    print("   k   this step   usual, same products   usual, torch's defaults   ms per completion")
    nets = t.policy, t.reference, t.judge.gpt
    own = t.machine.dtype, torch.get_float32_matmul_precision(), [net.compiled for net in nets]
    for k in sorted({2, 4, 8, 16, 32, 64, t.k}):
        t.k = t.take_step.__globals__['k'] = t.config['group_size'] = k
        n, ms = 10 if k <= 16 else 3, []
        for model.FUSED in (True, False):       # torch's defaults, then all as in our own step
            t.machine.dtype, precision, trunks = \
                ('float32', 'highest', [None] * 3) if model.FUSED else own
            torch.set_float32_matmul_precision(precision)
            for net, net.compiled in zip(nets, trunks):
                if net is not t.policy:
                    net.blocks.to(getattr(torch, t.machine.dtype))
            ms.append(median(lambda step: usual_step(t, step), n))
        (usual, same), ours = ms, median(t.take_step, n)
        print(f"{k:4d} {ours:8.1f} ms   {same:9.1f} ms  {same / ours:5.1f} x   {usual:9.1f} ms  "
              f"{usual / ours:7.1f} x   {ours / t.P / k:9.3f}", flush=True)
        if usual > 8e3:                         # ms: the next line would take minutes
            break
