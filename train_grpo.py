"""GRPO from scratch: sample k completions of each prompt, let a frozen judge score them, push up
what beats its group's mean and pull down the rest, and stay near the start. No value network.

    python train_grpo.py config/grpo_config.py --group_size=16
    torchrun --standalone --nproc_per_node=2 train_grpo.py config/grpo_smoke.py

Missing data, generator and judge are made on the way and kept. --help lists the knobs.
"""
import json
import math
import os
import signal
import subprocess
import sys
import time

import torch

from config.configurator import configure, fail
from data.dataset import Dataset, blanks, draws, texts
from judge import auc, load_judge
from model import (Machine, act, complete, load, load_gpt, log_probs, optimizers, place,
                   recipe_out, save, scheduled, update)

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
# ------------------------------------------------------------------------------------------------
# letters: P prompts of a step | B prompts of a micro-step | k completions each | N = B*k rows
# T positions | V vocabulary | M decision points: blanks, or in causal mode tokens written
# c completions per decision point: k in fill mode (one forward serves all), 1 in causal mode


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


def completion_mean(values, row, n_rows):
    """Means (n_rows, c) over each completion's decision points, of values (M, c)."""
    total = values.new_zeros(n_rows, values.size(1)).index_add(0, row, values)
    return total / torch.bincount(row, minlength=n_rows).clamp(min=1)[:, None]


def grpo_loss(logits, batch, advantages, logp_ref=None, kl_beta=0.0, kl_type='exact',
              entropy_coef=0.0, clip_low=0.2, clip_high=0.2, ratio='token', loss_norm='token',
              temperature=1.0, constant=1):
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
    n_rows, row = len(advantages), batch['row']
    if ratio == 'token':
        r = (taken - old).exp()
    else:
        r = completion_mean(taken - old, row, n_rows).exp()[row]
    A = advantages[row]                                                     # (M, c)
    pg = -clipped_surrogate(r, A, clip_low, clip_high).mean(1)              # (M,)
    full = logp if batch['kept'] is None else log_probs(logits, temperature)
    kl = torch.zeros_like(pg) if logp_ref is None else exact_kl(full, logp_ref)
    penalty = kl
    if logp_ref is not None and kl_type != 'exact':
        free, free_ref = (x.gather(1, batch['actions']) for x in (full, logp_ref))
        penalty = sampled_kl(free, free_ref, r, kl_type).mean(1)
    entropy = exact_entropy(logp)                                           # (M,)
    weight = torch.ones_like(pg)
    if loss_norm == 'sequence':
        weight = 1.0 / torch.bincount(row, minlength=n_rows)[row]
    per_point = pg + kl_beta * penalty - entropy_coef * entropy
    clipped = ((r < 1 - clip_low) & (A < 0)) | ((r > 1 + clip_high) & (A > 0))
    report = {'loss': (weight * per_point).sum(), 'pg_loss': (weight * pg).sum(),
              'kl_penalty': kl_beta * (weight * penalty).sum(), 'mean_kl': kl.sum(),
              'mean_log_prob': taken.mean(1).sum(), 'entropy': entropy.sum(),
              'clip_frac': clipped.to(pg.dtype).mean(1).sum(), 'ratio_max': r.max()}
    return report['loss'], {name: value.detach() for name, value in report.items()}


# ------------------------------------------------------------------------------------------------
BUILT_IN = ('judge', 'verify', 'distinct', 'length')
HARMLESS = {'out_dir', 'resume', 'log_interval', 'eval_interval', 'eval_prompts', 'save_interval',
            'sample_interval', 'wandb_log', 'wandb_project', 'wandb_run_name', 'device', 'compile',
            'backend', 'gen_batch_size', 'judge_batch_size', 'generator_recipe', 'judge_recipe'}


def check_knobs(c, functions, world):
    """Ends with one line if a knob makes no sense; `functions` are those of the config files."""
    P = c['batch_size'] * c['gradient_accumulation_steps']
    share = c['gradient_accumulation_steps'] / c['mini_batches'] if c['mini_batches'] > 0 else 0.5
    choices = {'mode': ('fill', 'causal'), 'adv_norm': ('none', 'std', 'batch', 'rloo'),
               'ratio': ('token', 'sequence'), 'loss_norm': ('token', 'sequence', 'constant'),
               'kl_type': ('exact', 'k1', 'k2', 'k3', 'k3_ratio'),
               'blank_kind': ('random', 'span', 'suffix')}
    for key, allowed in choices.items():
        if c[key] not in allowed:
            fail(f"{key} = {c[key]!r}: expected {', '.join(allowed)}")
    for good, text in (
            (c['group_size'] > 1, f"group_size = {c['group_size']}: a group of one is its own "
             "mean, and teaches nothing; expected at least 2"),
            (c['temperature'] > 0, f"temperature = {c['temperature']}: expected more than 0"),
            (0 < c['top_p'] <= 1, f"top_p = {c['top_p']}: expected 0 < top_p <= 1"),
            (c['top_k'] >= 0, f"top_k = {c['top_k']}: expected 0 (off) or more"),
            (c['kl_beta'] >= 0, f"kl_beta = {c['kl_beta']}: expected 0 or more"),
            (c['target_kl'] >= 0, f"target_kl = {c['target_kl']}: expected 0 (off) or more"),
            (min(c['batch_size'], c['gradient_accumulation_steps'], c['inner_updates'],
                 c['max_iters'], c['log_interval'], c['eval_prompts'], c['block_size']) > 0,
             "batch_size, gradient_accumulation_steps, inner_updates, max_iters, log_interval, "
             "eval_prompts and block_size must be at least 1"),
            (0 <= c['clip_low'] <= 1 and c['clip_high'] >= 0,
             "expected 0 <= clip_low <= 1 and clip_high >= 0"),
            (0 <= c['blank_low'] <= c['blank_high'] <= 1 and c['blank_span'] > 0,
             "expected 0 <= blank_low <= blank_high <= 1 and blank_span >= 1"),
            (share % world == 0 and share >= 1,
             f"{P} prompts a step in gradient_accumulation_steps = "
             f"{c['gradient_accumulation_steps']} micro-steps, mini_batches = {c['mini_batches']}, "
             f"{world} ranks: the micro-steps of a mini-batch must divide over the ranks; try "
             f"--gradient_accumulation_steps={max(1, c['mini_batches']) * world}"),
            (not c['gen_batch_size'] or c['gen_batch_size'] >= c['group_size'],
             "gen_batch_size must be 0 or at least group_size"),
            (c['rewards'] and all(type(w) in (int, float) for w in c['rewards'].values()),
             f"rewards = {c['rewards']}: expected names with weights, such as {{'judge': 1.0}}"),
            (not c['prompt_filter'] or c['prompt_filter'] in functions,
             f"prompt_filter = '{c['prompt_filter']}' is not a function of a config file")):
        if not good:
            fail(text)
    for name in c['rewards']:
        if name not in BUILT_IN and name not in functions:
            fail(f"reward '{name}' is neither {', '.join(BUILT_IN)} nor a function of a config "
                 f"file ({', '.join(functions) or 'they define none'})")


def ensure(path, script, recipe):
    """Path of a checkpoint: as given, or out/<recipe>.pt, made by the script if missing."""
    words = recipe.split()
    made = path or recipe_out(words)
    command = [sys.executable, script, *words]
    if not path and not os.path.exists(made):
        run([*command, f'--out={made}'])
    return made, ' '.join(['python', *command[1:]])


def run(command):
    """Runs one of our scripts in sight of the user; ends with its exit code if it fails."""
    print('$ ' + ' '.join(['python', *command[1:]]), flush=True)
    env = {k: v for k, v in os.environ.items() if k not in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')}
    code = subprocess.run(command, env=env).returncode
    if code:
        sys.exit(code if code > 0 else 128 - code)


class Clock:
    """Milliseconds per phase of a step; on CUDA by events, so that nothing waits."""

    def __init__(self, cuda):
        self.cuda, self.marks = cuda, []

    def mark(self, phase):
        """What follows, up to the next mark, is this phase."""
        now = torch.cuda.Event(enable_timing=True) if self.cuda else time.perf_counter()
        if self.cuda:
            now.record()
        self.marks.append((phase, now))

    def read(self):
        """Sums per phase since the last call."""
        if self.cuda:
            torch.cuda.synchronize()
        total = {}
        for (phase, a), (_, b) in zip(self.marks, self.marks[1:]):
            ms = a.elapsed_time(b) if self.cuda else 1e3 * (b - a)
            total[phase] = total.get(phase, 0.0) + ms
        self.marks = []
        return total


if __name__ == "__main__":
    config = configure(globals())
    functions = globals().get('_functions', {})
    machine = Machine(device, dtype, backend)
    check_knobs(config, functions, machine.world)
    here, main, causal, k = machine.device, machine.main, mode == 'causal', group_size
    P, names = batch_size * gradient_accumulation_steps, list(rewards)
    lr_decay_iters = lr_decay_iters or max_iters
    try:
        os.makedirs(out_dir, exist_ok=True)
        if not os.access(out_dir, os.W_OK):
            raise PermissionError(13, 'not writable')
    except OSError as e:
        fail(f"out_dir = {out_dir}: {e.strerror}; choose another with --out_dir=DIR")

    # -- data, generator, judge: whatever is missing is made once, by rank 0
    recipes = {'model.py': generator_recipe or f'config/generator_{dataset}.py',
               'judge.py': judge_recipe or f'config/judge_{dataset}.py'}
    if main:
        prepare = os.path.join('data', dataset, 'prepare.py')
        if not Dataset.prepared(dataset) and os.path.exists(prepare):
            run([sys.executable, prepare])
    machine.barrier()
    data = Dataset(dataset)
    tok = data.tok
    if main:
        ensure(generator_checkpoint, 'model.py', recipes['model.py'])
        if 'judge' in rewards:
            ensure(judge_checkpoint, 'judge.py', recipes['judge.py'])
    machine.barrier()
    start_path, make = ensure(generator_checkpoint, 'model.py', recipes['model.py'])
    policy = load_gpt(start_path, data, block_size, make, here, mode)
    reference = load_gpt(reference_checkpoint or start_path, data, block_size, make, here, mode)
    judge = None
    if 'judge' in rewards:
        judge_path, make = ensure(judge_checkpoint, 'judge.py', recipes['judge.py'])
        judge = load_judge(judge_path, data, block_size, make, here)
    opts = optimizers(policy, learning_rate, weight_decay, beta1, beta2)
    if compile:
        for net in (policy, reference, judge.gpt if judge else policy):
            net.trunk = torch.compile(net.trunk, dynamic=False)

    # -- continue, or start a new log
    ckpt_path, log_path = (os.path.join(out_dir, f) for f in ('ckpt.pt', 'log.jsonl'))
    start, best, lines = 0, -math.inf, []
    if resume:
        ckpt = load(ckpt_path, 'policy', data, f"python train_grpo.py --out_dir={out_dir} ...")
        was, now = ckpt['config'], dict(config)
        differ = [f"{key} {was.get(key)!r} -> {value!r}" for key, value in now.items()
                  if was.get(key) != value and key not in HARMLESS
                  and not (key == 'max_iters' and now['lr_decay_iters'])]
        if differ:
            fail(f"{ckpt_path} was made with other settings: {', '.join(differ)}; continue with "
                 "the old ones, or start anew in another --out_dir")
        policy.load_state_dict(ckpt['model'])
        for opt, state in zip(opts, ckpt['optimizers']):
            opt.load_state_dict(state)
        start, best, kl_beta = ckpt['step'], ckpt['best'], ckpt['kl_beta']
    if main:
        if resume and os.path.exists(log_path):
            for line in open(log_path):
                try:
                    if json.loads(line)['step'] < start:
                        lines.append(line)
                except (ValueError, KeyError):
                    pass                                    # torn by a crash
        with open(log_path + '.tmp', 'w') as f:
            f.writelines(lines)
        os.replace(log_path + '.tmp', log_path)
        with open(os.path.join(out_dir, 'config.json'), 'w') as f:
            json.dump(config, f, indent=1)

    def prompts(purpose, step, split, n):
        """n prompts of a step: tokens (n, T), mask (n, T) bool, uniforms (n, T, k); on the CPU."""
        rng, kept = draws(seed if split == 'train' else 0, purpose, step), []
        while sum(len(part[0]) for part in kept) < n:
            tokens = data.batch(split, n, block_size, rng)
            mask = blanks(tokens, tok, rng, blank_kind, blank_low, blank_high, blank_span)
            good = torch.ones(n, dtype=torch.bool)
            if prompt_filter:
                pairs = zip(*texts(tok, tokens, mask, tokens, causal))
                good = torch.tensor([bool(functions[prompt_filter](*pair)) for pair in pairs])
            kept.append((tokens[good], mask[good]))
            if len(kept) == 200:
                fail(f"prompt_filter {prompt_filter} takes fewer than {n} of {200 * n} rows")
        tokens, mask = (torch.cat(part)[:n] for part in zip(*kept))
        if causal and blank_kind == 'suffix':           # the completion may be longer than it was
            at, first = torch.arange(block_size), mask.int().argmax(1, keepdim=True)
            stop = first + (max_new_tokens or block_size)
            mask = (at >= first) & (at < stop)
            tokens = tokens.masked_fill(at >= stop, tok.pad)
        return tokens, mask, torch.from_numpy(rng.random((n, block_size, k), dtype='float32'))

    def rollout(part):
        """Samples k completions of each prompt: rows (N, T), and per decision point what the
        policy chose, its log-probability, the kept set, and whose choice it was."""
        tokens, mask, u = part
        tokens_here, mask_here = tokens.to(here), mask.to(here)
        batch = {'tokens': tokens, 'mask': mask, 'first': int(mask.any(0).nonzero()[0])}
        if causal:
            rows, acted, logp, kept = complete(policy, tokens_here, mask_here, u.to(here),
                                               temperature, top_k, top_p, tok.eos)
            batch |= {'rows': rows, 'where': acted, 'actions': rows[acted][:, None],
                      'row': acted.nonzero()[:, 0], 'logp_old': logp[acted][:, None],
                      'kept': None if kept is None else kept[acted]}
        else:
            once = inner_updates * gradient_accumulation_steps == machine.world
            with torch.set_grad_enabled(once), machine.autocast():
                logits = policy(tokens_here, where=mask)                    # (M, V)
            clock.mark('sampling')
            actions, logp, kept = act(logits.detach(), u[mask].to(here), temperature, top_k, top_p)
            batch |= {'rows': place(tokens_here, mask_here, actions), 'where': mask,
                      'actions': actions, 'row': mask.nonzero()[:, 0].to(here), 'kept': kept,
                      'logp_old': logp, 'logits': logits if once else None}
        if inner_updates * mini_batches == 1:
            batch['logp_old'] = None
        return batch

    def logits_of(net, batch):
        with machine.autocast():
            if causal:
                return net(batch['rows'], batch['where'], batch['first'], k)
            return net(batch['tokens'].to(here), batch['where'])

    def score(batch, step):
        """Every reward of a micro-step by its name: (n_rewards, B, k), float32."""
        B, found, pairs = len(batch['tokens']), [], None
        for name in names:
            if name == 'judge':
                with machine.autocast():
                    found.append(judge.score(batch['rows'], None, judge_batch_size).view(B, k))
                continue
            if name == 'length':
                acted = batch['where'].to(here)
                found.append(acted.float().sum(1).view(B, -1).expand(B, k) / block_size)
                continue
            pairs = pairs or texts(tok, batch['tokens'], batch['mask'], batch['rows'], causal)
            if name == 'distinct':
                groups = [pairs[1][b * k:b * k + k] for b in range(B)]
                values = [1.0 / g.count(text) for g in groups for text in g]
            elif name == 'verify':
                values = [data.verify(*pair) for pair in zip(*pairs)]
            else:
                values = functions[name](*pairs)
            found.append(torch.tensor(values, dtype=torch.float32, device=here).view(B, k))
        return torch.stack(found)

    def part_of(whole, i):
        return tuple(t[i * batch_size:(i + 1) * batch_size] for t in whole)

    # -- the loop
    clock = Clock(machine.type == 'cuda')
    mine = range(machine.rank, gradient_accumulation_steps, machine.world)
    weights = torch.tensor([float(rewards[name]) for name in names], device=here)

    def evaluate(step):
        whole = prompts('eval', 0, 'val', eval_prompts)
        line = {'step': step}
        for who, net in (('', policy), ('ref_', reference)):
            for how in ('', '_argmax'):
                u = whole[2][:, :, :1].to(here) if how == '' else None
                rows = complete(net, whole[0].to(here), whole[1].to(here), u, temperature, top_k, top_p, tok.eos)[0]
                pairs = texts(tok, whole[0], whole[1], rows, causal)
                if data.verify:
                    v = [data.verify(*p) for p in zip(*pairs)]
                    line[f'eval/{who}verify{how}'] = sum(v) / len(v)
                if judge:
                    s = judge.score(rows)
                    line[f'eval/{who}reward{how}'] = s.mean().item()
                    if data.verify: line[f'eval/{who}auc{how}'] = auc(s.cpu(), torch.tensor(v) == 1)
        return line

    t0 = time.time()
    for step in range(start, max_iters + 1):
        if eval_interval and (step % eval_interval == 0 or step == max_iters):
            print({k: round(v, 4) for k, v in evaluate(step).items()}, flush=True)
        if step == max_iters:
            break
        clock.mark('prompts')
        whole = prompts('prompts', step, 'train', P)
        clock.mark('forward')
        batches, scores = [], torch.zeros(len(names), P, k, device=here)
        for i in mine:
            batches.append(rollout(part_of(whole, i)))
            clock.mark('judge')
            scores[:, i * batch_size:(i + 1) * batch_size] = score(batches[-1], step)
            clock.mark('forward')
        machine.sum(scores)
        reward = torch.einsum('n,npk->pk', weights, scores)
        advantages = group_advantages(reward, adv_norm)
        total = {}
        for _ in range(inner_updates):
            for m in range(mini_batches):
                share = len(batches) // mini_batches
                mini = batches[m * share:(m + 1) * share]
                count = torch.tensor([sum(len(b['row']) for b in mini), 0.0], device=here)
                machine.sum(count)
                for j, b in enumerate(mini):
                    i = mine[m * share + j]
                    A = advantages[i * batch_size:(i + 1) * batch_size].reshape(-1, b['actions'].size(1))
                    clock.mark('reference')
                    with torch.no_grad():
                        logp_ref = log_probs(logits_of(reference, b), temperature) if kl_beta else None
                    clock.mark('learn')
                    logits = b.pop('logits', None)
                    logits = logits if logits is not None else logits_of(policy, b)
                    loss, report = grpo_loss(logits, b, A, logp_ref, kl_beta, kl_type, entropy_coef,
                                     clip_low, clip_high, ratio, loss_norm, temperature)
                    (loss / count[0]).backward()
                    for n, v in report.items():
                        total[n] = total.get(n, 0) + v / count[0]
                clock.mark('optimizer')
                lr = scheduled(step, learning_rate, min_lr, warmup_iters, lr_decay_iters)
                g = update(policy, opts, lr, grad_clip)
        clock.mark('report')
        ms = clock.read()
        if step % 50 == 0:
            print(step, f'{time.time()-t0:.1f}', {n: round(float(v), 4) for n, v in total.items()}, 'r', reward.mean().item(), 'dead', dead_groups(reward).float().mean().item(), 'g', float(g), {n: round(v, 1) for n, v in ms.items()}, flush=True)
