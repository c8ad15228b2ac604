"""GRPO from scratch: sample k completions of each prompt, let a frozen judge score them, push up
what beats its group's mean and pull down the rest, and stay near the start. No value network.

    python train_grpo.py config/grpo_config.py --group_size=16
    torchrun --standalone --nproc_per_node=2 train_grpo.py config/grpo_smoke.py

Missing parts are made and kept. Below: knobs, surroundings, set-up; in one piece, the algorithm."""
import math, shlex, sys, time
import torch
from config import closeup
from config.configurator import configure, fail
from config.run import GRPO_RULES, Clock, Log, Machine, check, digest, resumable
from data.dataset import Dataset, draws, prompts
from judge import BUILT_IN, auc, copies, load_judge, reward_scores
from model import (act, complete, load, load_gpt, log_probs, made, optimizers, place, save,
                   scheduled, update)

# knobs, applied by config files and --key=value flags: the task
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
kl_type = 'exact'           # 'exact' | 'k1' | 'k2' | 'k3' | 'k3_ratio' (see sampled_kl)
kl_in_reward = False        # True: KL (detached k1) is part of the reward, not of the loss
target_kl = 0.0             # nats per blank: kl_beta adapts to hold this; 0: fixed
kl_horizon = 10000          # completions over which kl_beta adapts
entropy_coef = 0.0          # weight of the entropy bonus
optimizer = 'muon'          # 'muon': of hidden matrices, AdamW of the rest | 'adamw': of all
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
compile = torch.cuda.is_available()     # torch.compile the trunks
backend = ''                # of torch.distributed; '': nccl on CUDA, else gloo
seed = 1                    # with the step it determines prompts, blanks and samples
benchmark = False           # True: time the step by phases, and against the usual way
explain = False             # True: one group by hand, to be checked with a pocket calculator
# P prompts of a step, B of a micro-step | k completions each | N = B*k rows | T positions | V ids
# M decision points: blanks (fill) or tokens written (causal) | c completions of each: k or 1

def asked(purpose, split, n, step=0):
    """The prompts of a step, or with split 'val' those of every evaluation; see prompts()."""
    found = prompts(data, config, split, n, draws(seed if split == 'train' else 0, purpose, step),
                    _functions.get(prompt_filter))
    return [t.pin_memory() for t in found] if machine.type == 'cuda' else found

def rollout(net, tokens, mask, u):
    """Completes each of B prompts k times, from u (B, T, k), or (k = 0) once, the likeliest way:
    a batch as in grpo_loss, with rows (N, T), where (B or N, T), and maybe logits to learn from."""
    clock.mark('forward')
    prompt = [t.to(here, non_blocking=True) for t in (tokens, mask, u)]
    if causal:
        chunks = zip(*(t.split(gen_batch_size // k or len(t)) for t in prompt))
        with machine.autocast():
            parts = [complete(net, t, m, v if v.size(2) else None, temperature, top_k, top_p,
                              data.tok.eos) for t, m, v in chunks]
        rows, where, logp, kept = (None if x[0] is None else torch.cat(x) for x in zip(*parts))
        actions, logp, logits = rows[where][:, None], logp[where][:, None], None        # (M, 1)
        kept = None if kept is None else kept[where]                        # (M, V)
    else:
        reuse = inner_updates == 1 and len(mine) == 1   # learn from the very pass that samples
        with torch.set_grad_enabled(reuse and torch.is_grad_enabled()), machine.autocast():
            logits = net(prompt[0], where=mask)                             # (M, V)
        clock.mark('sampling')
        u = u[mask].to(here) if u.size(2) else None                         # (M, k)
        actions, logp, kept = act(logits.detach(), u, temperature, top_k, top_p)
        rows, where, logits = place(prompt[0], mask, actions), mask, logits if reuse else None
    return {'tokens': tokens, 'mask': mask, 'rows': rows, 'where': where, 'actions': actions,
            'row': where.nonzero()[:, 0].to(here), 'logp_old': logp, 'kept': kept, 'logits': logits}

def logits_of(net, batch):
    """Logits (M, V) with which a model looks at the decision points of a batch."""
    with machine.autocast():
        if not causal:
            return net(batch['tokens'].to(here), where=batch['where'])
        first = int(batch['mask'].int().argmax(1).min())        # the prefix that all rows share
        return net(batch['rows'], batch['where'], first, len(batch['rows']) // len(batch['tokens']))

@torch.no_grad()
def logp_of(net, batch):
    """The same as log-probabilities (M, V) at the policy's temperature, unfiltered; frozen."""
    clock.mark('reference')
    return log_probs(logits_of(net, batch), temperature)

def score(names, batch):
    """Scores (n, B, k) of the rewards in names; see reward_scores."""
    clock.mark('judge')
    with machine.autocast():
        return reward_scores(names, batch, data, causal, judge, _functions, judge_batch_size)

def weighted(scores, weights):
    """The reward (P, k): the sum of scores (n, P, k) by their n weights."""
    return sum(weight * part for weight, part in zip(weights, scores))

@torch.no_grad()
def evaluate(net, versus=None):
    """Means over held-out prompts with fixed blanks: rewards and verify() of sampled and of
    likeliest completions, distinct, entropy, judge_auc, and with `versus` the exact KL to it."""
    parts, wanted = {}, [*dict.fromkeys([*rewards, *['verify'] * bool(data.verify), 'distinct'])]
    for tokens, mask, u in zip(*(t.split(batch_size) for t in asked('eval', 'val', eval_prompts))):
        for how, n in (('', 4), ('_argmax', 0)):
            batch = rollout(net, tokens, mask, u[..., :n])
            scores = score(wanted, batch)                                   # (n, B, 4 or 1)
            new = {(name if name in ('verify', 'distinct') else f'reward/{name}') + how: values
                   for name, values in zip(wanted, scores) if n or name != 'distinct'}
            new[f'reward{how}'] = weighted(scores, rewards.values())
            if n:
                logp = logp_of(net, batch)
                new['entropy'] = exact_entropy(logp)
                new |= {'kl': exact_kl(logp, logp_of(versus, batch))} if versus else {}
            for key, values in new.items():
                parts.setdefault(key, []).extend(values.flatten().tolist())
    means = {key: torch.tensor(values).mean().item() for key, values in parts.items()}
    if 'reward/judge' in parts and set(parts.get('verify', ())) == {0.0, 1.0}:  # can it still tell?
        means['judge_auc'] = auc(parts['reward/judge'], [v == 1 for v in parts['verify']])
    return means

def report(step, batches, scores, reward, advantages, stats, lr):
    """The log line of a step, over all ranks. Stops the run if anything in it is not finite."""
    turns, norms = inner_updates * mini_batches, stats.pop('grad_norm')
    stats['distinct'] = [(1 / copies(b['rows'].view(batch_size, k, -1))).mean() * turns
                         / gradient_accumulation_steps for b in batches]
    top = torch.stack([max(stats.pop('ratio_max')).float(), machine.stop[0].to(here)])
    ratio_max, machine.stop[1] = machine.sum(top, 'MAX').tolist()   # a signal to one stops all
    sums = machine.sum(torch.stack([sum(v) for v in stats.values()]).float() / turns).tolist()
    ms = clock.read()
    acting, whole = ms['prompts'] + ms['forward'] + ms['sampling'], sum(ms.values())
    line = {'step': step, **dict(zip(stats, sums)), 'grad_norm': sum(norms).item() / turns,
            'mean_reward': reward.mean().item(), 'std_reward': reward.std().item(),
            **{f'reward/{name}': value.mean().item() for name, value in zip(names, scores)},
            'mean_advantage': advantages.mean().item(), 'std_advantage': advantages.std().item(),
            'dead_groups': dead_groups(reward).float().mean().item(), 'lr': lr, 'kl_beta': kl_beta,
            'ratio_max': ratio_max, 'ms_rollout': acting, 'ms_judge': ms['judge'],
            'ms_learn': whole - acting - ms['judge'], 'completions_per_s': P * k / whole * 1e3}
    if not all(map(math.isfinite, line.values())):
        closeup.culprit(globals(), step, batches, scores, line)
    return line | ({} if reference else {'mean_kl': None}), ms      # nothing to compare with

def keep(path, step):
    """Saves all that a run needs to go on exactly from here."""
    if not all(p.isfinite().all() for p in policy.parameters()):
        fail(f"step {step}: weights not finite, {path} not written; lower --learning_rate")
    if machine.main:
        save(path, kind='policy', model_args=policy.args, model=policy.state_dict(), step=step,
             optimizers=[o.state_dict() for o in opts], best=best, config=config, control=control,
             kl_beta=kl_beta, corpus=data.fingerprint, start=start_path, judge=judge_path)

if __name__ == "__main__":      # settings, and whatever is missing: data, generator, judge
    config = configure(globals())
    machine = Machine(device, dtype, backend)
    rules = {f"set(rewards) <= set({(*BUILT_IN, *_functions)})": "config files can define more",
             f"prompt_filter in {('', *_functions)}": "a function of a config file"}
    check(GRPO_RULES | rules, config | {'world': machine.world})
    if explain:                                 # one group, one update
        batch_size = gradient_accumulation_steps = inner_updates = mini_batches = 1
        warmup_iters = 0
    here, causal, clock = machine.device, mode == 'causal', Clock(machine.type == 'cuda')
    k, P, upcoming = group_size, batch_size * gradient_accumulation_steps, {}
    names = [*rewards, *['kl'] * kl_in_reward]
    mine = range(machine.rank, gradient_accumulation_steps, machine.world)
    log = None if explain or benchmark else Log(out_dir, config)            # these write nothing
    data = machine.once(lambda: Dataset(dataset, prepare=True))
    recipe = generator_recipe or f'config/generator_{dataset}.py'
    start_path, make = machine.once(lambda: made(generator_checkpoint, 'model.py', recipe))
    policy = load_gpt(start_path, data, make, block_size, mode, here)
    judge, control, judge_path, start, best = None, None, '', 0, -math.inf
    reference = load_gpt(reference_checkpoint or start_path, data, make, block_size, mode,
                         here) if kl_beta else None
    if 'judge' in rewards:
        recipe = judge_recipe or f'config/judge_{dataset}.py'
        judge_path, make = machine.once(lambda: made(judge_checkpoint, 'judge.py', recipe))
        judge = load_judge(judge_path, data, make, block_size, here)
    config |= {'reference_and_judge': digest(reference, judge)}     # others are not resumed with
    for net in filter(None, (reference, judge)):
        machine.frozen(net)
    opts = optimizers(policy, learning_rate, weight_decay, beta1, beta2, optimizer)
    if resume:
        make = f"python train_grpo.py --out_dir={out_dir}"
        ckpt = load(f'{out_dir}/ckpt.pt', 'policy', data, make)
        resumable(ckpt, config)
        policy.load_state_dict(ckpt['model'])
        for opt, state in zip(opts, ckpt['optimizers']):
            opt.load_state_dict(state)
        start, best, kl_beta, control = (ckpt[x] for x in ('step', 'best', 'kl_beta', 'control'))
    for net in filter(None, (policy, reference, judge and judge.gpt) if compile else ()):
        net.compiled = torch.compile(net.trunk, dynamic=False)
    machine.listen()                            # from here on a signal lets the step end
    if machine.main and log:
        log.begin(start)
        print(f"policy {start_path}, {sum(p.numel() for p in policy.parameters()):,} parameters | "
              f"{P} prompts x {k} completions = {P * k * block_size:,} tokens a step | "
              f"{machine.note} | writes ckpt.pt, best.pt, config.json, log.jsonl to {out_dir}/")
    goal = 'verify' if data.verify else 'reward'            # by which best.pt is the best

# ---- the algorithm -----------------------------------------------------------------------------
def group_advantages(rewards, adv_norm='none', tolerance=1e-6):
    """Advantages (P, k) of rewards (P, k): how much better than its group each completion is.
    none: r - mean (Dr. GRPO, arXiv:2503.20783). std: over the group's unbiased std + 1e-4 (GRPO,
    arXiv:2402.03300, eq. 10). batch: over that of the whole batch. rloo: r - mean of the others
    (arXiv:2402.14740). Groups whose rewards are equal within tolerance get exactly 0."""
    k, advantages = rewards.size(1), rewards - rewards.mean(1, keepdim=True)
    if adv_norm == 'rloo':
        advantages = advantages * k / (k - 1)
    elif adv_norm != 'none':
        std = rewards.std(1, keepdim=True) if adv_norm == 'std' else rewards.std()
        advantages = advantages / (std + 1e-4)
    return advantages.masked_fill(dead_groups(rewards, tolerance), 0.0)

def dead_groups(rewards, tolerance=1e-6):
    """(P, 1) bool: groups that teach nothing, because their rewards (P, k) are equal."""
    spread = rewards.amax(1, keepdim=True) - rewards.amin(1, keepdim=True)
    return spread <= tolerance * rewards.abs().amax(1, keepdim=True).clamp(min=1.0)

def exact_kl(logp, logp_ref):
    """KL(policy || reference) (M,) in nats per decision point, a sum over the vocabulary (M, V).
    Fill: blanks are independent, so summed over blanks it is the KL of whole completions, with
    exact gradient. Causal: it leaves out the prefix's share of the gradient (arXiv:2506.09477)."""
    return (logp.exp() * (logp - logp_ref)).sum(-1)

def exact_entropy(logp):
    """Entropy (M,) in nats of the distributions logp (M, V)."""
    return -(logp.exp() * logp).sum(-1)

def sampled_kl(taken, taken_ref, ratio, kl_type):
    """Estimators of KL(policy || ref) from log-probs (M, c) of samples (Schulman 2020). As losses,
    on-policy, their mean gradient is: k1 0, whatever ref is; k2 that of KL(policy || ref); k3 of
    KL(ref || policy); ratio * k3 of KL(policy || ref) again (arXiv:2506.09477, 2512.02556)."""
    gap = taken_ref - taken
    k3 = gap.clamp(max=20.0).exp() - 1 - gap
    return {'k1': -gap, 'k2': 0.5 * gap.square(), 'k3': k3, 'k3_ratio': ratio * k3}[kl_type]

def clipped_surrogate(ratio, advantages, clip_low, clip_high):
    """Objective per choice, to be maximised (PPO, arXiv:1707.06347, eq. 7); any one shape."""
    return torch.min(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)

def per_row(values, row, n_rows):
    """Sums (n_rows, c) over the decision points of each row, of values (M, c)."""
    return values.new_zeros(n_rows, values.size(1)).index_add(0, row, values)

def grpo_loss(logits, batch, advantages, logp_ref=None, kl_beta=0.0, kl_type='exact',
              entropy_coef=0.0, clip_low=0.2, clip_high=0.2, ratio='token', loss_norm='token',
              temperature=1.0):
    """Summed loss of a micro-step, and what to report of it (arXiv:2402.03300, eq. 3 and 4).
    logits (M, V), with gradient; batch: actions (M, c), logp_old (M, c) or None (the ratio is 1),
    row (M,) whose decision it is, kept (M, V) or None; advantages (rows, c); logp_ref (M, V). The
    caller divides: by decision points ('token'), rows ('sequence', the paper's) or 'constant'."""
    logp = log_probs(logits, temperature, batch['kept'])                    # (M, V)
    free = logp if batch['kept'] is None else log_probs(logits, temperature)
    del logits                                  # with a large V nothing else is as large
    entropy = exact_entropy(logp if entropy_coef else logp.detach())        # (M,)
    taken, row = logp.gather(1, batch['actions']), batch['row']             # (M, c), (M,)
    log_ratio = taken - (taken.detach() if batch['logp_old'] is None else batch['logp_old'])
    token_ratio = r = log_ratio.exp()                                       # (M, c)
    length = per_row(torch.ones_like(taken[:, :1]), row, len(advantages))[row]      # (M, 1) of row
    if ratio == 'sequence':
        r = (per_row(log_ratio, row, len(advantages))[row] / length).exp()
    A = advantages[row]                                                     # (M, c)
    pg = -clipped_surrogate(r, A, clip_low, clip_high).mean(1)              # (M,)
    penalty = kl = torch.zeros_like(pg) if logp_ref is None else exact_kl(free, logp_ref)   # (M,)
    if logp_ref is not None and kl_type != 'exact':
        pair = (x.gather(1, batch['actions']) for x in (free, logp_ref))
        penalty = sampled_kl(*pair, token_ratio, kl_type).mean(1)
    weight = 1.0 / length[:, 0] if loss_norm == 'sequence' else torch.ones_like(pg)
    loss = (weight * (pg + kl_beta * penalty - entropy_coef * entropy)).sum()
    clipped = ((r < 1 - clip_low) & (A < 0)) | ((r > 1 + clip_high) & (A > 0))
    found = {'loss': loss, 'pg_loss': (weight * pg).sum(),
             'kl_penalty': kl_beta * (weight * penalty).sum(), 'mean_kl': kl.sum(),
             'mean_log_prob': taken.mean(1).sum(), 'entropy': entropy.sum(),
             'clip_frac': clipped.to(pg.dtype).mean(1).sum(), 'ratio_max': r.max()}
    return loss, {name: value.detach() for name, value in found.items()}

def adapted_kl_beta(beta, kl, target, completions, horizon):
    """A proportional, clipped step to the target KL (Ziegler et al., arXiv:1909.08593, eq. 3)."""
    return beta * (1 + max(-0.2, min(0.2, kl / target - 1)) * completions / horizon)

def take_step(step):
    """One step of GRPO, from prompts to update; returns its line of the log, and details."""
    # 1. act: k completions of each prompt, in fill mode all from one forward pass
    whole = upcoming.pop(step, None) or asked('prompts', 'train', P, step)
    batches, scores = [], torch.zeros(len(names), P, k, device=here)
    for i in mine:                              # the micro-steps of this rank
        part = slice(i * batch_size, (i + 1) * batch_size)
        batch = rollout(policy, *(t[part] for t in whole))
        # 2. judge them, each reward apart
        scores[:len(rewards), part] = score(list(rewards), batch)
        if kl_in_reward:                        # detached k1, summed over the completion
            batch['k1'] = batch['logp_old'] - logp_of(reference, batch).gather(1, batch['actions'])
            scores[-1, part] = per_row(batch['k1'], batch['row'], len(batch['where'])).view(-1, k)
        batches.append(batch)
    machine.sum(scores)                         # each rank filled in its own
    # 3. compare each completion with its group
    reward = weighted(scores, [*rewards.values(), -kl_beta])                # (P, k)
    advantages = group_advantages(reward, adv_norm)                         # (P, k)
    # 4. learn: an optimizer step sums over its micro-steps and ranks, and divides once
    lr = scheduled(step, learning_rate, min_lr, warmup_iters, lr_decay_iters or max_iters)
    size, turns, stats = len(batches) // mini_batches, inner_updates * mini_batches, {}
    for turn in range(turns):
        mini = list(zip(mine, batches))[turn % mini_batches * size:][:size]
        sizes = [(len(b['row']), len(b['where'])) for _, b in mini]
        n_points, n_rows = machine.sum(torch.tensor(sizes, device=here).sum(0))
        divisor = {'token': n_points, 'sequence': n_rows}.get(loss_norm, n_rows * block_size)
        for i, b in mini:
            A = advantages[i * batch_size:(i + 1) * batch_size].reshape(-1, b['actions'].size(1))
            logp_ref = logp_of(reference, b) if reference and not kl_in_reward else None
            clock.mark('learn')
            loss, found = grpo_loss(            # logp_old None: the ratio is 1, exactly
                logits_of(policy, b) if b['logits'] is None else b.pop('logits'),
                b | ({'logp_old': None} if turns == 1 else {}), A, logp_ref, kl_beta, kl_type,
                entropy_coef, clip_low, clip_high, ratio, loss_norm, temperature)
            del logp_ref
            found |= {'mean_kl': b['k1'].mean(1).sum()} if kl_in_reward else {}
            (loss / divisor).backward()
            per = {'loss': divisor, 'pg_loss': divisor, 'kl_penalty': divisor, 'ratio_max': 1}
            for name, value in found.items():
                stats.setdefault(name, []).append(value / per.get(name, n_points))
        clock.mark('optimizer')
        machine.sum_gradients(policy)
        stats.setdefault('grad_norm', []).append(update(policy, opts, lr, grad_clip))
    clock.mark('prompts')                       # of the next step, while the device still works
    upcoming[step + 1] = asked('prompts', 'train', P, step + 1)
    return report(step, batches, scores, reward, advantages, stats, lr), (
        batches[0], scores, reward, advantages)

if __name__ == "__main__":
    if explain or benchmark:                    # nothing is written
        sys.exit((closeup.explained if explain else closeup.benchmarked)(globals()))
    closeup.start_checks(globals(), start)
    control = control or eval_interval and evaluate(reference or policy)
    began = time.time()
    for step in range(start, max_iters + 1):    # one turn more: the end is evaluated and saved
        stopped, last = int(machine.stop[1]), step == max_iters
        if machine.main and eval_interval and not stopped and (step % eval_interval == 0 or last):
            found = evaluate(policy, reference)
            log({'step': step, **{f'eval/{key}': value for key, value in found.items()},
                 **{f'eval/ref_{key}': value for key, value in control.items()}})
            if found[goal] > best:
                best = found[goal]
                keep(f'{out_dir}/best.pt', step)
            clock.read()
        if step > start and (last or stopped or save_interval and step % save_interval == 0):
            keep(f'{out_dir}/ckpt.pt', step)
        if last or stopped:
            break
        (line, _), details = take_step(step)
        if target_kl:
            kl_beta = adapted_kl_beta(kl_beta, line['mean_kl'], target_kl, P * k, kl_horizon)
        if machine.main and step % log_interval == 0:
            log(line, (time.time() - began) / (step + 1 - start) * (max_iters - step - 1))
        if machine.main and sample_interval and step % sample_interval == 0:
            closeup.show(step, *details, data.tok, names)

    if stopped and machine.main:
        print(f"stopped before step {step}; continue with: python "
              f"{shlex.join([*sys.argv, '--resume=True'])}")
    elif machine.main and eval_interval:
        was, now = (f"{x[goal]:.3f} (argmax {x[goal + '_argmax']:.3f})" for x in (control, found))
        print(f"held-out {goal}: {was} at the start -> {now} | {out_dir}/ckpt.pt | peak memory "
              f"{machine.peak_memory():.2f} GB | look at it: python sample.py --out_dir={out_dir}")
    log.end()
    machine.leave(stopped)
