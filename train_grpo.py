"""GRPO from scratch: sample k completions of each prompt, let a frozen judge score them, push up
what beats its group's mean and pull down the rest, and stay near the start. No value network.

    python train_grpo.py config/grpo_config.py --group_size=16
    torchrun --standalone --nproc_per_node=2 train_grpo.py config/grpo_smoke.py

Missing data, generator and judge are made on the way and kept. --help lists the knobs.
"""
import json
import math
import os
import shlex
import signal
import sys
import time

import torch

import model as gpt
from config.configurator import check, configure, fail
from data.dataset import Dataset, draws, prompts, texts
from judge import BUILT_IN, auc, copies, load_judge, reward_scores
from model import RULES as SHARED_RULES
from model import (Clock, Machine, act, complete, draw, load, load_gpt, log_probs, made, optimizers,
                   place, save, scheduled, update)
from sample import show

# ------------------------------------------------------------------------------------------------
# knobs, applied by config files and --key=value flags
# the task
dataset = 'arithmetic'      # a folder of data/
mode = 'fill'               # 'fill': all blanks in one pass | 'causal': left to right
block_size = 10             # T, tokens in a row
blank_kind = 'random'       # 'random' positions | 'span': runs | 'suffix': a completion
blank_low = 0.2             # smallest share of a row that is blank
blank_high = 0.6            # largest share
blank_span = 4              # length of a run, for 'span'
max_new_tokens = 0          # causal suffix: longest completion; 0: up to the end of the row
prompt_filter = ''          # function of the config file, (prompt, original) -> bool: use this row?
rewards = {'judge': 1.0}    # weights of judge, verify, distinct, length or functions of the config
# checkpoints: '' trains one with the recipe (arguments of model.py or judge.py), and keeps it
generator_checkpoint = ''   # the start of the policy
judge_checkpoint = ''       # the judge; none is loaded unless rewards name it
reference_checkpoint = ''   # what the KL holds the policy near; '': its start
generator_recipe = ''       # '': config/generator_<dataset>.py
judge_recipe = ''           # '': config/judge_<dataset>.py
# sampling
group_size = 16             # k, completions per prompt; the baseline is their mean reward
batch_size = 64             # prompts per micro-step
gradient_accumulation_steps = 1     # micro-steps per step, shared out among ranks
temperature = 1.0           # of the policy, while sampling and while learning
top_k = 0                   # sample from the k likeliest ids; 0: all
top_p = 1.0                 # sample from the fewest ids with this mass; 1: all
gen_batch_size = 0          # causal: rows sampled at a time; 0: all
judge_batch_size = 0        # rows judged at a time; 0: as many as fit the cache
# learning
adv_norm = 'none'           # 'none': r - mean | 'std': / group std | 'batch': / batch std | 'rloo'
clip_low = 0.2              # ratio is clipped at 1 - clip_low
clip_high = 0.2             # and at 1 + clip_high
ratio = 'token'             # 'token' | 'sequence': geometric mean over the completion (GSPO)
loss_norm = 'token'         # mean over 'token' | 'sequence', then rows | 'constant' (Dr. GRPO)
inner_updates = 1           # passes over the completions of a step
mini_batches = 1            # optimizer steps per pass; divides the accumulation steps
kl_beta = 0.05              # weight of the KL to the reference; 0 loads no reference
kl_type = 'exact'           # 'exact' | 'k1' | 'k2' | 'k3' | 'k3_ratio' (see kl_penalty)
kl_in_reward = False        # True: KL (detached k1) is part of the reward, not of the loss
target_kl = 0.0             # nats per blank: kl_beta adapts to hold this; 0: fixed
kl_horizon = 10000          # completions over which kl_beta adapts
entropy_coef = 0.0          # weight of the entropy bonus
learning_rate = 1e-3        # peak
min_lr = 1e-4               # end of the cosine
warmup_iters = 10           # steps of linear warm-up
lr_decay_iters = 0          # end of the cosine in steps; 0: max_iters
max_iters = 400             # steps
weight_decay = 0.0          # of weights, towards 0
beta1 = 0.9                 # AdamW
beta2 = 0.95                # AdamW
grad_clip = 1.0             # largest gradient norm; 0 switches it off
# looking and keeping
out_dir = 'out-grpo'        # ckpt.pt, best.pt, config.json, log.jsonl
resume = False              # True: continue from out_dir/ckpt.pt, exactly
log_interval = 1            # steps between lines of the log
eval_interval = 100         # steps between evaluations; 0: none
eval_prompts = 512          # held-out prompts, with fixed blanks
save_interval = 100         # steps between checkpoints; 0: at the end only
sample_interval = 100       # steps between printed groups; 0: none
wandb_log = False           # also log to Weights & Biases
wandb_project = 'grpo'      # its project
wandb_run_name = ''         # and run; '': out_dir
# machine
device = 'auto'             # 'auto' | 'cpu' | 'cuda' | 'mps'
dtype = 'auto'              # products in 'float32' | 'bfloat16' | 'float64' (checks) | 'auto'
compile = False             # torch.compile the trunks
backend = ''                # of torch.distributed; '': nccl on CUDA, else gloo
seed = 1                    # with the step it determines prompts, blanks and samples
benchmark = False           # True: time the step by phases, and against the usual way
explain = False             # True: one group by hand, to be checked with a pocket calculator
# ------------------------------------------------------------------------------------------------
# letters: P prompts of a step | B prompts of a micro-step | k completions each | N = B*k rows
# T positions | V vocabulary | M decision points: blanks, or in causal mode tokens written
# c completions per decision point: k in fill mode (one forward serves all), 1 in causal mode

RULES = {       # what knobs must fulfil, and why; `world` is the number of ranks
    **SHARED_RULES, "mode in ('fill', 'causal')": '', "backend in ('', 'gloo', 'nccl')": '',
    "adv_norm in ('none', 'std', 'batch', 'rloo')": '', "ratio in ('token', 'sequence')": '',
    "loss_norm in ('token', 'sequence', 'constant')": '',
    "kl_type in ('exact', 'k1', 'k2', 'k3', 'k3_ratio')": '',
    "group_size >= 2": "a group of one is its own mean and teaches nothing",
    "gradient_accumulation_steps >= 1 and mini_batches >= 1": '',
    "gradient_accumulation_steps % (mini_batches * world) == 0":
        "each of the ranks takes its share of the micro-steps of each mini-batch",
    "temperature > 0": '', "0 < top_p <= 1": '', "top_k >= 0 and judge_batch_size >= 0": "0 is off",
    "rewards and all(type(weight) in (int, float) for weight in rewards.values())": '',
    "gen_batch_size == 0 or gen_batch_size >= group_size": '',
    "kl_beta >= 0 and target_kl >= 0 and entropy_coef >= 0": "0 is off",
    "kl_horizon > 0 and clip_high >= 0 and 0 <= clip_low <= 1": '',
    "kl_beta > 0 or not (kl_in_reward or target_kl)": "0 loads no reference",
    "inner_updates >= 1 and log_interval >= 1 and eval_prompts >= 1": ''}
# what may change when a run is resumed
HARMLESS = set("""out_dir resume log_interval eval_interval eval_prompts save_interval device
    sample_interval wandb_log wandb_project wandb_run_name compile backend gen_batch_size
    judge_batch_size generator_recipe judge_recipe benchmark explain""".split())

def asked(purpose, split, n, step=0):
    """The prompts of a step, or with split 'val' those of every evaluation; see prompts()."""
    rng = draws(seed if split == 'train' else 0, purpose, step)
    return prompts(data, config, split, n, rng, _functions.get(prompt_filter))

def rollout(tokens, mask, u):
    """Samples k completions of each of B prompts. Per decision point: actions (M, c), logp_old
    (M, c), kept (M, V) or None, and row (M,), whose decision it was; and rows (N, T)."""
    batch = {'tokens': tokens, 'mask': mask, 'logits': None}
    prompt = tokens.to(here), mask.to(here)
    if causal:
        chunk = gen_batch_size // k or len(tokens)
        with machine.autocast():
            parts = [complete(policy, *part, temperature, top_k, top_p, data.tok.eos)
                     for part in zip(*(t.split(chunk) for t in (*prompt, u.to(here))))]
        rows, where, logp, kept = (None if part[0] is None else torch.cat(part)
                                   for part in zip(*parts))
        return batch | {'rows': rows, 'where': where, 'row': where.nonzero()[:, 0],
                        'actions': rows[where][:, None], 'logp_old': logp[where][:, None],
                        'kept': None if kept is None else kept[where]}
    reuse = inner_updates == 1 and len(mine) == 1       # learn from the very pass that samples
    with torch.set_grad_enabled(reuse), machine.autocast():
        logits = policy(prompt[0], where=mask)                              # (M, V)
    clock.mark('sampling')
    actions, logp, kept = act(logits.detach(), u[mask].to(here), temperature, top_k, top_p)
    return batch | {'rows': place(*prompt, actions), 'where': mask, 'actions': actions,
                    'row': mask.nonzero()[:, 0].to(here), 'logp_old': logp, 'kept': kept,
                    'logits': logits if reuse else None}

def logits_of(net, batch):
    """Logits (M, V) with which a model looks at the decision points of a batch."""
    with machine.autocast():
        if not causal:
            return net(batch['tokens'].to(here), where=batch['where'])
        first = int(batch['mask'].int().argmax(1).min())        # the prefix that all rows share
        copies_ = 1 if compile else len(batch['rows']) // len(batch['tokens'])  # compiled: 1 shape
        return net(batch['rows'], batch['where'], first, copies_)

def reference_log_probs(batch):
    """Log-probabilities (M, V) of the frozen reference at the policy's temperature, unfiltered."""
    with torch.no_grad():
        return log_probs(logits_of(reference, batch), temperature)

def score(names, batch):
    """Scores (n, B, k) of the rewards in names; see reward_scores."""
    with machine.autocast():
        return reward_scores(names, batch, data, causal, judge, _functions, judge_batch_size)

def weighted(scores, weights):
    """The reward (P, k): the sum of scores (n, P, k) by their n weights."""
    return sum(weight * part for weight, part in zip(weights, scores))

@torch.no_grad()
def evaluate(net, versus=None):
    """Means over held-out prompts with fixed blanks: rewards and verify() of sampled and of
    likeliest completions, distinct, entropy, judge_auc, and with `versus` the exact KL to it."""
    wanted = list(dict.fromkeys([*rewards, *(['verify'] if data.verify else []), 'distinct']))
    total, count, seen = {}, {}, {'judge': [], 'verify': []}

    def add(key, values):
        total[key] = total.get(key, 0.0) + values.sum().item()
        count[key] = count.get(key, 0) + values.numel()

    whole = asked('eval', 'val', eval_prompts)
    for tokens, mask, u in zip(*(t.split(batch_size) for t in whole)):
        for how, uniforms in (('', u[..., :4].to(here)), ('_argmax', None)):
            with machine.autocast():
                rows, acted, *_ = complete(net, tokens.to(here), mask.to(here), uniforms,
                                           temperature, top_k, top_p, data.tok.eos)
            batch = {'tokens': tokens, 'mask': mask, 'rows': rows,
                     'where': acted if causal else mask}
            values = dict(zip(wanted, score(wanted, batch)))                # each (B, 4 or 1)
            add(f'reward{how}', sum(weight * values[name] for name, weight in rewards.items()))
            for name in [*rewards, *(['verify'] if data.verify else [])]:
                add(f"{'' if name == 'verify' else 'reward/'}{name}{how}", values[name])
            if not how:
                add('distinct', values['distinct'])
                for name in seen:
                    seen[name] += values[name].flatten().tolist() if name in values else []
                logp = log_probs(logits_of(net, batch), temperature)
                add('entropy', exact_entropy(logp))
                if versus:
                    add('kl', exact_kl(logp, log_probs(logits_of(versus, batch), temperature)))
    means = {key: total[key] / count[key] for key in total}
    if set(seen['verify']) == {0.0, 1.0} and seen['judge']:     # can the judge still tell?
        means['judge_auc'] = auc(seen['judge'], [v == 1 for v in seen['verify']])
    return means

def report(step, batches, scores, reward, advantages, totals, lr):
    """The log line of a step, over all ranks. Stops the run if anything in it is not finite."""
    turns = inner_updates * mini_batches
    totals['distinct'] = [turns / gradient_accumulation_steps * (1 / copies(
        b['rows'].view(batch_size, k, block_size))).mean() for b in batches]
    top = torch.stack([max(totals.pop('ratio_max')).float(), stop_signal[0].to(here)])
    top, norm = machine.sum(top, 'MAX').tolist(), sum(totals.pop('grad_norm')).item() / turns
    sums = machine.sum(torch.stack([sum(v) for v in totals.values()]).float() / turns).tolist()
    line = {'step': step, **dict(zip(totals, sums)), 'ratio_max': top[0], 'grad_norm': norm,
            'mean_reward': reward.mean().item(), 'std_reward': reward.std().item(),
            **{f'reward/{name}': value.mean().item() for name, value in zip(names, scores)},
            'mean_advantage': advantages.mean().item(), 'std_advantage': advantages.std().item(),
            'dead_groups': dead_groups(reward).float().mean().item(), 'lr': lr, 'kl_beta': kl_beta}
    stop_signal[1] = top[1]                     # a signal to one rank stops all, after this step
    if not all(map(math.isfinite, line.values())):
        culprit(step, batches, scores, line)
    if reference is None:
        line['mean_kl'] = None                  # nothing is there to compare with
    ms = clock.read()
    line |= {'ms_rollout': sum(ms.get(phase, 0) for phase in ('prompts', 'forward', 'sampling')),
             'ms_judge': ms['judge'], 'completions_per_s': P * k / sum(ms.values()) * 1e3}
    return line | {'ms_learn': sum(ms.values()) - line['ms_rollout'] - line['ms_judge']}, ms

def culprit(step, batches, scores, line):
    """Names what first was not finite, keeps the step's batches beside the log, ends the run."""
    path = os.path.join(out_dir, f'nonfinite_rank{machine.rank}.pt')
    torch.save({'step': step, 'line': line, 'scores': scores,
                'batches': [{**b, 'logits': None} for b in batches]}, path)
    found = [("the policy's logits", i * batch_size + row * batch_size // len(b['where']))
             for i, b in zip(mine, batches)
             for row in b['row'][~b['logp_old'].isfinite().all(1)][:1].tolist()]
    found += [("the judge's score" if name == 'judge' else f"reward '{name}'", p)
              for name, values in zip(names, scores)
              for p in (~values.isfinite()).any(1).nonzero()[:1, 0].tolist()]
    found += [(key, None) for key, value in line.items() if not math.isfinite(value)]
    what, at = found[0]
    prompt = ''
    if at is not None and at // batch_size in mine:
        b = batches[mine.index(at // batch_size)]
        left, _ = texts(data.tok, b['tokens'], b['mask'], b['rows'], causal)
        prompt = f", prompt {left[at % batch_size * k]!r}"
    fail(f"step {step}{prompt}: {what} is not finite; the batch is in {path}, no checkpoint was "
         "overwritten; try a smaller --learning_rate, or look at that reward")

def start_checks(step):
    """Says in a line that the machinery is in order, before anything is learned."""
    batch = rollout(*(t[:batch_size] for t in asked('prompts', 'train', P, step)))
    logits, scores = logits_of(policy, batch).detach(), score(list(rewards), batch)
    taken = log_probs(logits, temperature, batch['kept']).gather(1, batch['actions'])
    off = ((taken - batch['logp_old']).exp() - 1).abs().max().item()
    reward = weighted(scores, rewards.values())
    total = group_advantages(reward, adv_norm).sum(1).abs().max().item()
    kl = exact_kl(log_probs(logits, temperature), reference_log_probs(batch)).max().item() \
        if reference and step == 0 else 0.0
    assert batch['rows'].shape == (batch_size * k, block_size) and reward.shape == (batch_size, k)
    assert judge is None or not (judge.training or any(p.requires_grad for p in judge.parameters()))
    if off > (0.5 if machine.dtype == 'bfloat16' else 1e-3) or total > 1e-2 * k or (
            kl > 1e-3 and not reference_checkpoint):
        fail(f"at the start the ratio is off 1 by {off:.0e}, the KL to the reference is {kl:.0e}, "
             f"advantages sum to {total:.0e}; expected 0")
    clock.read()
    return (f"checks: rows {tuple(batch['rows'].shape)} | ratio 1 (within {off:.0e}) | KL to the "
            f"reference {kl:.0e} | advantages sum to 0 (within {total:.0e}) | judge "
            f"{'frozen' if judge else 'none'} | rewards differ in "
            f"{batch_size - int(dead_groups(reward).sum())} of {batch_size} groups")

def explained():
    """One group by hand: what a step does to the k completions of a single prompt."""
    line, (b, scores, reward, advantages, _) = take_step(0)
    after = log_probs(logits_of(policy, b), temperature, b['kept']).gather(1, b['actions'])
    old, new = (per_row(logp, b['row'], len(b['where'])).flatten().tolist()
                for logp in (b['logp_old'], after))
    prompts_, completions = texts(data.tok, b['tokens'], b['mask'], b['rows'], causal)
    print(f"\nprompt {prompts_[0]}, {k} completions; reward = "
          + ' + '.join(f"{weight:g} x {name}" for name, weight in rewards.items())
          + "; advantage = reward - mean, " + f"adv_norm '{adv_norm}'\n"
          + "completion           reward  advantage  log p before  after one update  change")
    for j in sorted(range(k), key=lambda j: -reward[0, j]):
        print(f"{completions[j]:18} {reward[0, j]:8.4f}  {advantages[0, j]:+9.4f}  {old[j]:12.4f}  "
              f"{new[j]:16.4f}  {new[j] - old[j]:+6.4f}")
    with torch.no_grad():
        kl = exact_kl(log_probs(logits_of(policy, b), temperature), reference_log_probs(b)).mean() \
            if reference else torch.zeros(())
    print(f"mean{'':14} {reward.mean():8.4f}  {advantages.mean():+9.4f}\n"
          f"loss = -mean(ratio x advantage) + {kl_beta:g} x KL = {line['pg_loss']:.4f} + "
          f"{line['kl_penalty']:.4f} = {line['loss']:.4f}\nIt is 0 because every ratio is 1, the "
          f"KL is 0 and advantages sum to 0. Its gradient is not (norm {line['grad_norm']:.4f}).\n"
          f"After the update, at learning rate {line['lr']:g}, the KL is {kl:.6f} nats per blank.")

def usual_step(step):
    """The same step as it is usually computed: every prompt repeated k times, for a sampling pass,
    a policy pass and a reference pass over all N rows, with all T positions through the head."""
    tokens, mask, u = asked('prompts', 'train', P, step)
    tokens, mask = (x.to(here).repeat_interleave(k, 0) for x in (tokens, mask))     # (N, T)
    hidden = tokens.masked_fill(mask, data.tok.mask)
    with machine.autocast():
        with torch.no_grad():
            logp = policy(hidden).log_softmax(-1)                           # (N, T, V)
            u = u.transpose(1, 2).flatten(0, 1).to(here)[..., None]
            drawn = draw(logp.flatten(0, 1), u.flatten(0, 1)).view_as(tokens)
            rows = torch.where(mask, drawn, tokens)                         # (N, T)
            rewards_ = judge.raw(rows).view(P, k)
        A = group_advantages(rewards_, adv_norm).view(-1, 1)
        taken = policy(hidden).log_softmax(-1).gather(2, rows[..., None])[..., 0]
        with torch.no_grad():
            ref = reference(hidden).log_softmax(-1).gather(2, rows[..., None])[..., 0]
    r = (taken - taken.detach()).exp()
    loss = -clipped_surrogate(r, A, clip_low, clip_high) + kl_beta * sampled_kl(taken, ref, r, 'k3')
    ((loss * mask).sum() / mask.sum()).backward()
    update(policy, opts, 0.0, grad_clip)

def benchmarked(steps=20):
    """Times the real step by phases, and the usual one beside it; writes nothing."""
    global k
    def median(function, n):
        times = []
        for step in range(n + 2):
            clock.read()
            began = time.perf_counter()
            function(step)
            clock.read()
            times.append(1e3 * (time.perf_counter() - began))
        return sorted(times[2:])[n // 2]

    found = [take_step(step)[1][4] for step in range(steps + 5)][5:]
    whole = sorted(sum(ms.values()) for ms in found)
    print(f"{P} prompts x {k} completions, {steps} steps: median {whole[steps // 2]:.1f} ms, min "
          f"{whole[0]:.1f}, max {whole[-1]:.1f}")
    for phase in ('prompts', 'forward', 'sampling', 'judge', 'reference', 'learn', 'optimizer'):
        ms = sorted(m.get(phase, 0) for m in found)[steps // 2]
        print(f"  {phase:10} {ms:8.2f} ms {ms / whole[steps // 2]:6.1%}")
    from torch.utils.flop_counter import FlopCounterMode
    with FlopCounterMode(display=False) as counter:
        take_step(0)
    a, b = torch.randn(2, 1024, 1024, device=here)
    with machine.autocast():
        rate = 2 * 1024 ** 3 / median(lambda step: a @ b, 20) * 1e3
    seconds, flops = whole[steps // 2] / 1e3, counter.get_total_flops()
    print(f"{P * k / seconds:,.0f} completions/s, {P * k * block_size / seconds:,.0f} tokens/s | "
          f"{flops / 1e9:.1f} GFLOP a step = {flops / seconds / rate:.0%} of the {rate / 1e9:.0f} "
          f"GFLOP/s of a 1024^3 product | peak memory {peak_memory():.2f} GB")
    if causal or not reference or not judge:
        return
    print("   k   this step   usual, same products   usual, torch's defaults   ms per completion")
    fast = torch.get_float32_matmul_precision()
    for k in sorted({2, 4, 8, 16, 32, 64, group_size}):
        config['group_size'], n = k, 10 if k <= 16 else 3
        ours, same = median(take_step, n), median(usual_step, n)
        torch.set_float32_matmul_precision('highest')
        plain, machine.dtype, dtype_ = gpt.attention, 'float32', machine.dtype
        gpt.attention = gpt.fused_attention
        usual = median(usual_step, n)
        gpt.attention, machine.dtype = plain, dtype_
        torch.set_float32_matmul_precision(fast)
        print(f"{k:4d} {ours:8.1f} ms   {same:9.1f} ms  {same / ours:5.1f} x   {usual:9.1f} ms  "
              f"{usual / ours:7.1f} x   {ours / P / k:9.3f}")

def peak_memory():
    """GB: of the GPU, or of this process."""
    if machine.type == 'cuda':
        return torch.cuda.max_memory_allocated() / 1e9
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9

def log(line):
    """One dict, three readers: log.jsonl, wandb, and the console, which shows a part of it."""
    try:
        with open(log_path, 'a', encoding='utf-8') as f:
            f.write(json.dumps(line) + '\n')
    except OSError as e:
        fail(f"cannot write {log_path}: {e.strerror}; the last checkpoint is whole")
    if wandb_run is not False:
        to_wandb(line)
    left = (time.time() - began) / (line['step'] + 1 - start) * (max_iters - line['step'] - 1)
    keys = 'mean_reward mean_kl entropy dead_groups distinct grad_norm completions_per_s'.split()
    if 'loss' not in line:
        keys = [f'eval/{key}' for key in 'verify verify_argmax ref_verify ref_verify_argmax reward '
                'ref_reward kl distinct judge_auc'.split()]
    shown = ' | '.join(f"{key.removeprefix('mean_').removeprefix('eval/')} {line[key]:.4g}"
                       for key in keys if line.get(key) is not None)
    print(f"step {line['step']:5d} | {shown}" + (f" | {left:.0f} s left" if 'loss' in line else ''),
          flush=True)

def keep(path, step):
    """Saves all that a run needs to go on exactly from here."""
    if not all(p.isfinite().all() for p in policy.parameters()):
        fail(f"step {step}: weights are not finite, {path} was not written; try a smaller "
             "--learning_rate")
    if machine.main:
        save(path, kind='policy', model_args=policy.args, model=policy.state_dict(), step=step,
             optimizers=[opt.state_dict() for opt in opts], best=best, kl_beta=kl_beta,
             control=control, config=config, corpus=data.fingerprint, start=start_path,
             judge=judge_path)

def resumed(path):
    """The checkpoint to continue from, if its settings are those of this run; trims the log."""
    ckpt = load(path, 'policy', data, f"python train_grpo.py --out_dir={out_dir}")
    was, free = ckpt['config'], HARMLESS | ({'max_iters'} if lr_decay_iters else set())
    differ = [f"{key} {was.get(key)!r} -> {value!r}" for key, value in config.items()
              if was.get(key) != value and key not in free]
    if differ:
        fail(f"{path} was made with other settings: {', '.join(differ)}; continue with the old "
             "ones, or start anew in another --out_dir")
    if ckpt['step'] > max_iters:
        fail(f"{path} is of step {ckpt['step']}, max_iters = {max_iters}")
    return ckpt

def trim_log(path, before):
    """Takes out of the log what is later than the checkpoint or was torn by a crash."""
    kept = []
    for text in open(path, encoding='utf-8', errors='replace'):
        try:
            kept += [text] if json.loads(text)['step'] < before else []
        except (ValueError, KeyError, TypeError):
            pass
    part = f'{path}.{os.getpid()}.tmp'
    with open(part, 'w', encoding='utf-8') as f:
        f.writelines(kept)
    os.replace(part, path)

def to_wandb(line):
    """Sends a line; the first failure is told once, and is the end of wandb, not of the run."""
    global wandb_run
    try:
        if wandb_run is None:
            import wandb
            wandb_run = wandb.init(project=wandb_project, name=wandb_run_name or out_dir,
                                   config=config, settings=wandb.Settings(init_timeout=30))
        wandb_run.log(line, step=line['step'])
    except Exception as e:
        wandb_run = False
        print(f"warning: no wandb ({repr(e)[:80]}); {log_path} has everything")

def on_signal(number, frame):
    """The first signal lets the step end and saves; a second one stops at once."""
    if stop_signal[0]:
        raise SystemExit(128 + number)
    stop_signal[0] = 128 + number
    if machine.main:                            # a print here may interrupt another, and fail
        os.write(1, b"\nfinishing this step and saving; once more to stop at once\n")

# ------------------------------------------------------------------------------------------------
# the algorithm

def group_advantages(rewards, adv_norm='none', tolerance=1e-6):
    """Advantages (P, k) from rewards (P, k): how much better than its group each completion is.

    none: r - mean (Dr. GRPO, arXiv:2503.20783). std: that over the group's unbiased std + 1e-4
    (GRPO, arXiv:2402.03300, eq. 10). batch: over the std of the whole batch. rloo: r - mean of
    the others (arXiv:2402.14740). Groups whose rewards are equal within tolerance get exactly 0.
    """
    k = rewards.size(1)
    advantages = rewards - rewards.mean(1, keepdim=True)
    if adv_norm == 'std':
        advantages = advantages / (rewards.std(1, keepdim=True) + 1e-4)
    elif adv_norm == 'batch':
        advantages = advantages / (rewards.std() + 1e-4)
    elif adv_norm == 'rloo':
        advantages = advantages * k / (k - 1)
    return advantages.masked_fill(dead_groups(rewards, tolerance), 0.0)

def dead_groups(rewards, tolerance=1e-6):
    """(P, 1) bool: groups that teach nothing, because their rewards (P, k) are equal."""
    spread = rewards.amax(1, keepdim=True) - rewards.amin(1, keepdim=True)
    return spread <= tolerance * rewards.abs().amax(1, keepdim=True).clamp(min=1.0)

def exact_kl(logp, logp_ref):
    """KL(policy || reference) (M,) in nats per decision point, a sum over the vocabulary (M, V).

    In fill mode blanks are independent given the prompt, so the sum over blanks is the KL of
    whole completions, and autograd's gradient of it is exact. In causal mode it is the KL given
    the sampled prefix; its gradient leaves out the prefix's own (arXiv:2506.09477).
    """
    return (logp.exp() * (logp - logp_ref)).sum(-1)

def exact_entropy(logp):
    """Entropy (M,) in nats of the distributions logp (M, V)."""
    return -(logp.exp() * logp).sum(-1)

def sampled_kl(taken, taken_ref, ratio, kl_type):
    """Estimators of KL(policy || reference) from log-probs (M, c) of what was sampled.

    As losses, on-policy: k1's expected gradient is 0 and ignores the reference; k2's is the
    gradient of KL(policy || ref); k3's that of KL(ref || policy); ratio * k3 again the former
    (Schulman 2020 for values; arXiv:2506.09477, arXiv:2512.02556 for gradients).
    """
    gap = taken_ref - taken
    if kl_type == 'k1':
        return -gap
    if kl_type == 'k2':
        return 0.5 * gap.square()
    k3 = gap.clamp(max=20.0).exp() - 1 - gap
    return k3 if kl_type == 'k3' else ratio * k3

def clipped_surrogate(ratio, advantages, clip_low, clip_high):
    """Objective per choice, to be maximised (PPO, arXiv:1707.06347, eq. 7); any one shape."""
    return torch.min(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)

def per_row(values, row, n_rows):
    """Sums (n_rows, c) over the decision points of each row, of values (M, c)."""
    return values.new_zeros(n_rows, values.size(1)).index_add(0, row, values)

def grpo_loss(logits, batch, advantages, logp_ref=None, kl_beta=0.0, kl_type='exact',
              entropy_coef=0.0, clip_low=0.2, clip_high=0.2, ratio='token', loss_norm='token',
              temperature=1.0):
    """Summed loss of a micro-step, and what to report of it (DeepSeekMath, eq. 3 and 4).

    logits (M, V), with gradient; batch: actions (M, c), logp_old (M, c), row (M,) the completion
    set that a decision belongs to, kept (M, V) or None; advantages (rows, c); logp_ref (M, V).
    The caller divides by the step's normaliser: decision points ('token'), rows ('sequence'), or
    rows * constant ('constant'). The paper's is 'sequence'; it is the same while all rows have
    equally many blanks.
    """
    logp = log_probs(logits, temperature, batch['kept'])                    # (M, V)
    taken = logp.gather(1, batch['actions'])                                # (M, c)
    old = taken.detach() if batch['logp_old'] is None else batch['logp_old']
    row, n_rows = batch['row'], len(advantages)
    length = torch.bincount(row, minlength=n_rows)[row]                     # (M,) of its row
    log_ratio = taken - old
    if ratio == 'sequence':
        log_ratio = per_row(log_ratio, row, n_rows)[row] / length[:, None]
    r = log_ratio.exp()                                                     # (M, c)
    A = advantages[row]                                                     # (M, c)
    pg = -clipped_surrogate(r, A, clip_low, clip_high).mean(1)              # (M,)
    full = logp if batch['kept'] is None else log_probs(logits, temperature)
    kl = torch.zeros_like(pg) if logp_ref is None else exact_kl(full, logp_ref)
    penalty = kl
    if logp_ref is not None and kl_type != 'exact':
        free, free_ref = (x.gather(1, batch['actions']) for x in (full, logp_ref))
        penalty = sampled_kl(free, free_ref, (taken - old).exp(), kl_type).mean(1)
    entropy = exact_entropy(logp)                                           # (M,)
    weight = 1.0 / length if loss_norm == 'sequence' else torch.ones_like(pg)
    per_point = pg + kl_beta * penalty - entropy_coef * entropy
    clipped = ((r < 1 - clip_low) & (A < 0)) | ((r > 1 + clip_high) & (A > 0))
    report = {'loss': (weight * per_point).sum(), 'pg_loss': (weight * pg).sum(),
              'kl_penalty': kl_beta * (weight * penalty).sum(), 'mean_kl': kl.sum(),
              'mean_log_prob': taken.mean(1).sum(), 'entropy': entropy.sum(),
              'clip_frac': clipped.to(pg.dtype).mean(1).sum(), 'ratio_max': r.max()}
    return report['loss'], {name: value.detach() for name, value in report.items()}

def adapted_kl_beta(beta, kl, target, completions, horizon):
    """The classic controller (Ziegler et al., arXiv:1909.08593, eq. 3): a proportional step
    towards the target KL, at most 20 % of `completions / horizon`."""
    return beta * (1 + max(-0.2, min(0.2, kl / target - 1)) * completions / horizon)

def take_step(step):
    """One step of GRPO, from prompts to update; returns its line of the log, and details."""
    # 1. act: k completions of each prompt, in fill mode all from one forward pass
    clock.mark('prompts')
    whole = asked('prompts', 'train', P, step)
    batches, scores = [], torch.zeros(len(names), P, k, device=here)
    for i in mine:                              # the micro-steps of this rank
        part = slice(i * batch_size, (i + 1) * batch_size)
        clock.mark('forward')
        batch = rollout(*(t[part] for t in whole))
        # 2. judge them, each reward apart
        clock.mark('judge')
        scores[:len(rewards), part] = score(list(rewards), batch)
        if kl_in_reward:                        # detached k1, summed over the completion
            clock.mark('reference')
            batch['k1'] = batch['logp_old'] - reference_log_probs(batch).gather(1, batch['actions'])
            scores[-1, part] = per_row(batch['k1'], batch['row'], len(batch['where'])).view(-1, k)
        batches.append(batch)
    machine.sum(scores)                         # each rank filled in its own
    # 3. compare each completion with its group
    reward = weighted(scores, [*rewards.values(), -kl_beta][:len(names)])   # (P, k)
    advantages = group_advantages(reward, adv_norm)                         # (P, k)
    # 4. learn: an optimizer step sums over its micro-steps and ranks, and divides once
    lr = scheduled(step, learning_rate, min_lr, warmup_iters, lr_decay_iters or max_iters)
    size, totals = len(batches) // mini_batches, {}
    for turn in range(inner_updates * mini_batches):
        mini = list(zip(mine, batches))[turn % mini_batches * size:][:size]
        points, rows = machine.sum(torch.tensor(
            [[len(b['row']), len(b['where'])] for _, b in mini], device=here).sum(0))
        divisor = {'token': points, 'sequence': rows, 'constant': rows * block_size}[loss_norm]
        for i, b in mini:
            A = advantages[i * batch_size:(i + 1) * batch_size].reshape(-1, b['actions'].size(1))
            clock.mark('reference')
            logp_ref = reference_log_probs(b) if reference and not kl_in_reward else None
            clock.mark('learn')
            logits = logits_of(policy, b) if b['logits'] is None else b.pop('logits')
            if inner_updates * mini_batches == 1:
                b = b | {'logp_old': None}      # nothing was learned since: the ratio is exactly 1
            loss, stats = grpo_loss(logits, b, A, logp_ref, kl_beta, kl_type, entropy_coef,
                                    clip_low, clip_high, ratio, loss_norm, temperature)
            if kl_in_reward:
                stats['mean_kl'] = b['k1'].mean(1).sum()
            (loss / divisor).backward()
            per = {'loss': divisor, 'pg_loss': divisor, 'kl_penalty': divisor, 'ratio_max': 1}
            for name, value in stats.items():
                totals.setdefault(name, []).append(value / per.get(name, points))
        clock.mark('optimizer')
        machine.sum_gradients(policy)
        totals.setdefault('grad_norm', []).append(update(policy, opts, lr, grad_clip))
    line, ms = report(step, batches, scores, reward, advantages, totals, lr)
    return line, (batches[0], scores, reward, advantages, ms)


if __name__ == "__main__":
    # settings, and whatever is missing: data, generator, judge
    _functions = {}
    config = configure(globals())
    machine = Machine(device, dtype, backend)
    check(RULES, {**config, 'world': machine.world})
    for name in [*rewards, *([prompt_filter] if prompt_filter else [])]:
        if name not in _functions and (name not in BUILT_IN or name == prompt_filter):
            fail(f"'{name}' is neither a reward ({', '.join(BUILT_IN)}) nor a function of a config "
                 f"file ({', '.join(_functions) or 'they define none'})")
    if explain:
        batch_size = gradient_accumulation_steps = inner_updates = mini_batches = 1
        config['batch_size'], warmup_iters = 1, 0
    here, causal, clock = machine.device, mode == 'causal', Clock(machine.type == 'cuda')
    k, P = group_size, batch_size * gradient_accumulation_steps
    names = [*rewards, *(['kl'] if kl_in_reward else [])]
    mine = range(machine.rank, gradient_accumulation_steps, machine.world)
    ckpt_path, best_path, log_path = (
        os.path.join(out_dir, name) for name in ('ckpt.pt', 'best.pt', 'log.jsonl'))
    if not (explain or benchmark):
        try:
            os.makedirs(out_dir, exist_ok=True)
            open(log_path, 'a').close()
        except OSError as e:
            fail(f"out_dir = {out_dir}: {e.strerror}; choose another with --out_dir=DIR")
    data = machine.once(lambda: Dataset(dataset, prepare=True))
    start_path, make = machine.once(lambda: made(
        generator_checkpoint, 'model.py', generator_recipe or f'config/generator_{dataset}.py'))
    policy = load_gpt(start_path, data, make, block_size, mode, here)
    judge = reference = control = None
    wandb_run = None if wandb_log else False    # None: begins with the first line
    judge_path, start, best = '', 0, -math.inf
    if kl_beta:
        reference = load_gpt(reference_checkpoint or start_path, data, make, block_size, mode, here)
    if 'judge' in rewards:
        judge_path, make = machine.once(lambda: made(
            judge_checkpoint, 'judge.py', judge_recipe or f'config/judge_{dataset}.py'))
        judge = load_judge(judge_path, data, make, block_size, here)
    opts = optimizers(policy, learning_rate, weight_decay, beta1, beta2)
    if resume:
        ckpt = resumed(ckpt_path)
        policy.load_state_dict(ckpt['model'])
        for opt, state in zip(opts, ckpt['optimizers']):
            opt.load_state_dict(state)
        start, best = ckpt['step'], ckpt['best']
        kl_beta, control = ckpt['kl_beta'], ckpt['control']
    if explain or benchmark:                    # nothing is written
        stop_signal = torch.zeros(2)
        explained() if explain else benchmarked()
        sys.exit()
    for net in filter(None, (policy, reference, judge and judge.gpt) if compile else ()):
        net.compiled = torch.compile(net.trunk, dynamic=False)
    stop_signal = torch.zeros(2)                # heard by this rank | agreed on by all
    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    if machine.main:
        trim_log(log_path, start)
        with open(os.path.join(out_dir, 'config.json'), 'w') as f:
            json.dump(config, f, indent=1)
        print(f"policy {start_path}, {sum(p.numel() for p in policy.parameters()):,} parameters | "
              f"{P} prompts x {k} completions = {P * k * block_size:,} tokens a step | "
              f"{machine.note} | writes ckpt.pt, best.pt, config.json, log.jsonl to {out_dir}/")
    checked = start_checks(start)
    if machine.main:
        print(checked, flush=True)
    if eval_interval and control is None:
        control = evaluate(reference or policy)

    # the loop
    began = time.time()
    for step in range(start, max_iters + 1):    # one turn more: the end is evaluated and saved
        stopped, last = int(stop_signal[1]), step == max_iters
        if machine.main and eval_interval and not stopped and (step % eval_interval == 0 or last):
            found = evaluate(policy, reference)
            log({'step': step, **{f'eval/{key}': value for key, value in found.items()},
                 **{f'eval/ref_{key}': value for key, value in control.items()}})
            quality = found.get('verify', found['reward'])
            if quality > best:
                best = quality
                keep(best_path, step)
            clock.read()
        if step > start and (last or stopped or save_interval and step % save_interval == 0):
            keep(ckpt_path, step)
        if last or stopped:
            break
        line, details = take_step(step)
        if target_kl:
            kl_beta = adapted_kl_beta(kl_beta, line['mean_kl'], target_kl, P * k, kl_horizon)
        if machine.main and step % log_interval == 0:
            log(line)
        if machine.main and sample_interval and step % sample_interval == 0:
            show(step, *details[:4], data.tok, names, causal)

    # the end
    if stopped:
        if machine.main:
            print(f"stopped before step {step}; continue with: python "
                  f"{shlex.join([*sys.argv, '--resume=True'])}")
        sys.exit(stopped)
    if machine.main and eval_interval:
        what = 'verify' if data.verify else 'reward'
        most = what + '_argmax'
        print(f"held-out {what}: {control[what]:.3f} (argmax {control[most]:.3f}) at the start -> "
              f"{found[what]:.3f} (argmax {found[most]:.3f}) | {ckpt_path} | peak memory "
              f"{peak_memory():.2f} GB | look at it: python sample.py --out_dir={out_dir}")
