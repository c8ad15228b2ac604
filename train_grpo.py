"""GRPO from scratch: sample k completions of each prompt, let a frozen judge score them, make what
beat its group's mean more likely and the rest less, and stay near the start.

    python train_grpo.py config/grpo_config.py --group_size=16
    torchrun --standalone --nproc_per_node=2 train_grpo.py config/grpo_smoke.py

Missing parts (data, generator, judge) are made first, and kept. What the keys of the log mean, and
what each experiment gave, stands in config/README.md. Left out: a value network (the
group's mean takes its place), replayed or asynchronous rollouts (one network samples and learns,
so there is nothing to correct), dropout, LoRA, sharding.

From top to bottom: knobs and their checks; the algorithm, pure functions; the step: act, judge,
compare, learn; evaluation; a step up close; set-up and the loop."""
import functools
import math
import statistics
import sys
import time

from common import (Log, Statistics, StopSignal, above, all_reduce_gradients, all_reduce_sum,
                    at_least, autocast, between, clock, configure, digest_of, fail, go_on_command,
                    init_device, is_main, leave, main_rank_first, n_ranks, one_of, peak_memory,
                    rank, resolve_dtype)

import torch

from data.dataset import (BLANK_KINDS, Dataset, draw_prompts, draws, n_arguments, print_group,
                          texts)
from judge import BUILT_IN, Scorer, auc, copies, load_judge
from model import (at_decisions, complete, decision_logits, default_recipe, ensure_checkpoint,
                   freeze, get_lr, load_checkpoint, load_gpt, log_probs, log_probs_of,
                   make_optimizers, save_checkpoint, update)

# ---- knobs, changed by config files and --key=value ----------------------------------------------
# the task
dataset = 'arithmetic'      # a folder of data/
mode = 'fill'               # 'fill': all blanks in one pass | 'causal': left to right
block_size = 10             # T, tokens in a row
blank_kind = 'random'       # 'random' positions | 'span': runs | 'suffix' | 'answer' of a pair
blank_low = 0.2             # smallest share of a row that is blank
blank_high = 0.6            # largest share
blank_span = 4              # length of a run, for 'span'
max_new_tokens = 0          # causal suffix, answer: longest completion; 0: to the end of the row
rewards = {'judge': 1.0}    # weights of judge, verify, distinct, length or functions of the config
# the parts: '' trains one with the recipe (arguments of model.py or judge.py), and keeps it
generator_checkpoint = ''   # the start of the policy
judge_checkpoint = ''       # the judge; none is loaded unless rewards name it
reference_checkpoint = ''   # what the KL holds the policy near; '': its start
generator_recipe = ''       # '': config/generator_<dataset>.py
judge_recipe = ''           # '': config/judge_<dataset>.py
# sampling
group_size = 16             # k, completions per prompt; the baseline is their mean reward
batch_size = 64             # prompts per micro-step
gradient_accumulation_steps = 1     # micro-steps per step, shared out among ranks
oversample = 1              # c: c times as many prompts are judged, the most telling groups learned
temperature = 1.0           # of the policy, while sampling and while learning
top_k = 0                   # sample from the k likeliest ids; 0: all
top_p = 1.0                 # sample from the fewest ids with this mass; 1: all
n_fill_steps = 1            # fill: passes over a row, each of which fills its share of the blanks
fill_order = 'random'       # of blanks: 'random', one order per prompt | 'left' | 'confident' first
gen_batch_size = 0          # causal: rows sampled at a time; 0: all
# learning
adv_norm = 'none'           # 'none': r - mean | that over 'std', 'batch' std or 'mean' | 'rloo'
adv_eps = 1e-4              # added to that std; more makes nearly equal rewards count less
objective = 'ppo'           # 'ppo' clips the ratio | 'cispo' its weight | 'dppo' bounds the change
clip_low = 0.2              # ratio is clipped at 1 - clip_low; dppo: largest total variation, A < 0
clip_high = 0.2             # and at 1 + clip_high; dppo: for A > 0
ratio_level = 'token'       # 'token' | 'sequence': geometric mean over the completion (GSPO)
loss_norm = 'token'         # mean over 'token' | 'sequence', then rows | 'constant' (Dr. GRPO)
inner_updates = 1           # passes over the completions of a step
mini_batches = 1            # optimizer steps per pass, each from an equal share of the prompts
kl_beta = 0.05              # weight of the KL to the reference; 0 loads no reference
kl_type = 'exact'           # 'exact' | 'k1' | 'k2' | 'k3' | 'k3_ratio' (see sampled_kl)
kl_in_reward = False        # True: KL (detached k1) is part of the reward, not of the loss
target_kl = 0.0             # nats per decision: kl_beta adapts to hold this; 0: fixed
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
out_dir = 'out-grpo'        # ckpt.pt, best.pt, config.json, log.jsonl, samples.jsonl
resume = False              # True: continue from out_dir/ckpt.pt, exactly
resume_changed = False      # True: also if reward functions or verify have changed
log_interval = 1            # steps between lines of the log
eval_interval = 100         # steps between evaluations; 0: none
eval_prompts = 512          # held-out prompts, with fixed blanks
save_interval = 100         # steps between checkpoints; 0: at the end only
keep_checkpoints = False    # True: each of them stays, as ckpt-000100.pt and so on
sample_interval = 100       # steps between printed groups, also kept in samples.jsonl; 0: none
wandb_log = False           # also log to Weights & Biases
wandb_project = 'grpo'      # its project
wandb_run_name = ''         # and run; '': out_dir
# machine
device = 'auto'             # 'auto' | 'cpu' | 'cuda' | 'mps'
dtype = 'auto'              # products in 'float32' | 'bfloat16' | 'float64' (checks) | 'auto'
compile = torch.cuda.is_available()     # torch.compile the trunks
backend = ''                # of torch.distributed; '': nccl on CUDA, else gloo
seed = 1                    # with the step it determines prompts, blanks and samples
benchmark = False           # True: print the time of the step by phases; write nothing
explain = False             # True: one group by hand, to be checked with a pocket calculator

# letters: P prompts of a step, B of a micro-step | k completions of each | N = B * k rows
# T positions | V vocabulary | M decisions, c choices at each (fill in one pass: c = k, else c = 1)
# U distributions that decisions are drawn from (U = M but in several passes, which share some)

# Knobs that do not change what is learned, but for rounding (compile, device). All others must be
# the same when a run is resumed.
MAY_CHANGE = ('out_dir', 'resume', 'resume_changed', 'log_interval', 'eval_interval',
              'eval_prompts', 'save_interval', 'keep_checkpoints', 'sample_interval', 'wandb_log',
              'wandb_project', 'wandb_run_name', 'device', 'compile', 'backend', 'gen_batch_size',
              'generator_recipe', 'judge_recipe', 'benchmark', 'explain')

# What other libraries call our knobs: whoever types one of these names is told ours.
ELSEWHERE = {
    'num_generations': 'group_size', 'num_completions_per_prompt': 'group_size',
    'n_samples_per_prompt': 'group_size', 'num_samples_per_prompt': 'group_size',
    'num_rollouts': 'group_size', 'normalize_advantages': 'adv_norm', 'scale_rewards': 'adv_norm',
    'advantage_estimator': 'adv_norm', 'kl_penalty_coef': 'kl_beta', 'kl_coef': 'kl_beta',
    'kl_loss_coef': 'kl_beta', 'init_kl_coef': 'kl_beta', 'init_kl_coeff': 'kl_beta',
    'beta': 'kl_beta', 'kl_estimator': 'kl_type', 'mini_batch_size': 'mini_batches',
    'num_mini_batches': 'mini_batches', 'ppo_mini_batch_size': 'mini_batches',
    'num_epochs': 'inner_updates', 'ppo_epochs': 'inner_updates',
    'num_iterations': 'inner_updates', 'num_ppo_epochs': 'inner_updates',
    'epsilon': 'clip_low', 'clip_range': 'clip_low', 'cliprange': 'clip_low',
    'clip_eps': 'clip_low', 'epsilon_low': 'clip_low', 'epsilon_high': 'clip_high',
    'importance_sampling_level': 'ratio_level', 'loss_type': 'loss_norm',
    'loss_agg_mode': 'loss_norm', 'max_completion_length': 'max_new_tokens',
    'generation_max_length': 'max_new_tokens', 'response_length': 'max_new_tokens',
    'max_length': 'block_size', 'max_seq_length': 'block_size', 'reward_model': 'judge_checkpoint',
    'reward_model_path': 'judge_checkpoint', 'reward_funcs': 'rewards',
    'reward_weights': 'rewards', 'model_name': 'generator_checkpoint',
    'model_name_or_path': 'generator_checkpoint', 'ref_model': 'reference_checkpoint',
    'prompts_per_step': 'batch_size', 'rollout_batch_size': 'batch_size',
    'per_device_train_batch_size': 'batch_size', 'lr': 'learning_rate', 'max_steps': 'max_iters',
    'num_train_steps': 'max_iters', 'total_steps': 'max_iters', 'warmup_steps': 'warmup_iters',
    'lr_warmup_steps': 'warmup_iters', 'max_grad_norm': 'grad_clip',
    'clip_grad_norm': 'grad_clip', 'entropy_coeff': 'entropy_coef',
    'entropy_bonus': 'entropy_coef', 'output_dir': 'out_dir', 'logging_steps': 'log_interval',
    'save_steps': 'save_interval', 'eval_steps': 'eval_interval', 'report_to': 'wandb_log',
    'use_wandb': 'wandb_log', 'bf16': 'dtype', 'torch_compile': 'compile',
    'resume_from_checkpoint': 'resume', 'diffusion_steps': 'n_fill_steps'}


def check_knobs(functions):
    """Ends with one line if a knob has an invalid value. functions: of config files."""
    one_of(('fill', 'causal'), mode=mode)
    one_of(BLANK_KINDS, blank_kind=blank_kind)
    one_of(('none', 'std', 'batch', 'mean', 'rloo'), adv_norm=adv_norm)
    one_of(('ppo', 'cispo', 'dppo'), objective=objective)
    one_of(('token', 'sequence'), ratio_level=ratio_level)
    one_of(('token', 'sequence', 'constant'), loss_norm=loss_norm)
    one_of(('exact', 'k1', 'k2', 'k3', 'k3_ratio'), kl_type=kl_type)
    one_of(('muon', 'adamw'), optimizer=optimizer)
    one_of(('random', 'left', 'confident'), fill_order=fill_order)
    one_of(('auto', 'float32', 'bfloat16', 'float64'), dtype=dtype)
    one_of(('', 'gloo', 'nccl'), backend=backend)
    at_least(2, 'a group of one is its own mean and teaches nothing', group_size=group_size)
    at_least(2, block_size=block_size)
    at_least(1, n_fill_steps=n_fill_steps, blank_span=blank_span, batch_size=batch_size,
             gradient_accumulation_steps=gradient_accumulation_steps, mini_batches=mini_batches,
             inner_updates=inner_updates, oversample=oversample,
             max_iters=max_iters, eval_prompts=eval_prompts, log_interval=log_interval)
    at_least(0, max_new_tokens=max_new_tokens, top_k=top_k, kl_beta=kl_beta, target_kl=target_kl,
             entropy_coef=entropy_coef, adv_eps=adv_eps, clip_high=clip_high, min_lr=min_lr,
             learning_rate=learning_rate, warmup_iters=warmup_iters, lr_decay_iters=lr_decay_iters,
             weight_decay=weight_decay, grad_clip=grad_clip, eval_interval=eval_interval,
             save_interval=save_interval, sample_interval=sample_interval, seed=seed)
    at_least(1e-6, temperature=temperature)
    above(0, top_p=top_p, kl_horizon=kl_horizon)
    between(0, 1, blank_high=blank_high, top_p=top_p, clip_low=clip_low)
    between(0, blank_high, blank_low=blank_low)
    between(1, block_size, n_fill_steps=n_fill_steps)
    between(0, 0.9999, beta1=beta1, beta2=beta2)
    if n_fill_steps > 1 and mode == 'causal':
        fail(f"n_fill_steps = {n_fill_steps}: expected mode = 'fill'; causal mode writes token by "
             "token anyway")
    if gen_batch_size != 0:
        at_least(group_size, 'whole groups; 0: all', gen_batch_size=gen_batch_size)
    if kl_beta == 0 and (kl_in_reward or target_kl > 0 or reference_checkpoint):
        fail(f"kl_beta = 0, kl_in_reward = {kl_in_reward}, target_kl = {target_kl}, "
             f"reference_checkpoint = {reference_checkpoint!r}: expected kl_beta > 0 (0 loads no "
             "reference)")
    if gradient_accumulation_steps % n_ranks() != 0:
        fail(f"gradient_accumulation_steps = {gradient_accumulation_steps}: expected a multiple of "
             f"the {n_ranks()} ranks, an equal share for each")
    n_prompts = batch_size * gradient_accumulation_steps
    if n_prompts % mini_batches != 0:
        fail(f"mini_batches = {mini_batches}: expected a divisor of the {n_prompts} prompts of a "
             "step, batch_size x gradient_accumulation_steps")
    if explain and n_ranks() > 1:
        fail("--explain=True looks at one prompt; run it as one process, without torchrun")
    if not rewards:
        fail("rewards = {}: expected at least one, such as {'judge': 1.0}")
    for name in functions:
        if name in BUILT_IN + ('kl',):
            fail(f"a function of a config file is called '{name}', like a reward that is built in; "
                 "give it another name")
    for name, weight in rewards.items():
        if name not in BUILT_IN and name not in functions:
            there_are = ', '.join(BUILT_IN + tuple(functions))
            fail(f"rewards = {rewards}: no reward '{name}'; there are {there_are}; config files "
                 "can define more")
        if type(weight) not in (int, float) or not abs(weight) < 1e12:
            fail(f"rewards = {rewards}: the weight of '{name}' is not a number, or is too large")
        if name in functions:
            n_arguments(f"reward '{name}'", functions[name])    # ends if it cannot be called


# ---- the algorithm: tensors in, tensors out ------------------------------------------------------


def group_advantages(reward, adv_norm='none', eps=1e-4, tolerance=1e-6):
    """Advantages (P, k) of reward (P, k): how much better than its group each completion is.

    none:  r - mean (Dr. GRPO, arXiv:2503.20783)
    std:   (r - mean) / (std of the group + eps), the std unbiased (GRPO, arXiv:2402.03300, eq. 10)
    batch: (r - mean) / (std of all rewards + eps)
    mean:  (r - mean) / mean, for rewards >= 0 (MaxRL, arXiv:2602.02710): of a reward that is 0 or
           1, hard prompts weigh more, as if pass@1 + pass@2 / 2 + ... were to be raised
    rloo:  r - mean of the others (arXiv:2402.14740)

    Groups whose rewards are equal within the tolerance get exactly 0."""
    k = reward.size(1)
    centred = reward - reward.mean(1, keepdim=True)                         # (P, k)
    if adv_norm == 'none':
        advantages = centred
    elif adv_norm == 'std':
        advantages = centred / (reward.std(1, keepdim=True) + eps)
    elif adv_norm == 'batch':
        advantages = centred / (reward.std() + eps)
    elif adv_norm == 'mean':
        if (reward < 0).any():
            fail("adv_norm = 'mean' divides by the mean reward, but a reward is "
                 f"{reward.min():.3g}; expected rewards >= 0, such as verify or a classifier's")
        advantages = centred / reward.mean(1, keepdim=True)     # a mean of 0: a dead group
    elif adv_norm == 'rloo':
        advantages = centred * k / (k - 1)
    else:
        raise ValueError(f"adv_norm = {adv_norm!r}")
    return advantages.masked_fill(dead_groups(reward, tolerance), 0.0)


def dead_groups(reward, tolerance=1e-6):
    """(P, 1) bool: groups that teach nothing, because their reward (P, k) is equal. Compared, not
    divided: a std of 1e-8 that is only rounding would make large advantages of nothing."""
    spread = reward.amax(1, keepdim=True) - reward.amin(1, keepdim=True)
    return spread <= tolerance * reward.abs().amax(1, keepdim=True).clamp(min=1.0)


def exact_kl(logp, logp_ref):
    """KL(policy || reference) (M,) in nats of distributions logp, logp_ref (M, V).

    Fill: blanks are independent, so summed over blanks it is the KL of whole completions, with
    exact gradient. Causal: it leaves out the prefix's share of the gradient (arXiv:2506.09477)."""
    return (logp.exp() * (logp - logp_ref)).sum(-1)


def exact_entropy(logp):
    """Entropy (M,) in nats of the distributions logp (M, V)."""
    return -(logp.exp() * logp).sum(-1)


def sampled_kl(taken, taken_ref, ratio, kl_type):
    """Estimators of KL(policy || reference) from log-probs (M, c) of samples (J. Schulman, 2020).

    As losses, on-policy, their mean gradient is: k1: 0, whatever the reference is; k2: that of
    KL(policy || reference); k3: of KL(reference || policy); k3_ratio, k3 times the ratio: of
    KL(policy || reference) again (arXiv:2506.09477, 2512.02556)."""
    gap = taken_ref - taken
    k3 = gap.clamp(max=20.0).exp() - 1 - gap
    if kl_type == 'k1':
        return -gap
    if kl_type == 'k2':
        return 0.5 * gap.square()
    if kl_type == 'k3':
        return k3
    if kl_type == 'k3_ratio':
        return ratio * k3
    raise ValueError(f"kl_type = {kl_type!r}")


def clipped_surrogate(ratio, advantages, clip_low, clip_high):
    """Objective per choice, to be maximised (PPO, arXiv:1707.06347, eq. 7); any one shape."""
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.min(ratio * advantages, clipped * advantages)


def surrogate(objective, ratio, taken, advantages, clip_low, clip_high, divergence=None):
    """What is to be maximised, per choice (M, c), and where it has no gradient, (M, c) bool.

    ratio, taken, the log-probs of the choices, and advantages: (M, c). At ratio 1 all three have
    the gradient of advantages * taken; they differ once the policy has moved.
    ppo:   the clipped surrogate
    cispo: REINFORCE with a clipped weight, so that no choice is silenced (arXiv:2506.13585, eq. 4)
    dppo:  ratio * advantages, but where a step would take a distribution further away that has
           moved beyond its bound already (arXiv:2602.04879). divergence: (M, 1) total variation
           between the distributions of now and then, exact here; None: they have not moved"""
    too_low = (advantages < 0) & (ratio < 1)
    too_high = (advantages > 0) & (ratio > 1)
    if objective == 'ppo':
        is_cut = (too_low & (ratio < 1 - clip_low)) | (too_high & (ratio > 1 + clip_high))
        return clipped_surrogate(ratio, advantages, clip_low, clip_high), is_cut
    if objective == 'cispo':
        weight = ratio.clamp(max=1 + clip_high).detach()
        return weight * advantages * taken, torch.zeros_like(too_low)
    if objective == 'dppo':
        is_cut = torch.zeros_like(too_low)
        if divergence is not None:
            is_cut = (too_low & (divergence > clip_low)) | (too_high & (divergence > clip_high))
        return (ratio * advantages).masked_fill(is_cut, 0.0), is_cut
    raise ValueError(f"objective = {objective!r}")


def total_variation(logp, logp_old):
    """Total variation (M,) in [0, 1] between distributions, log-probs (M, V) both: the largest
    change of the probability of any set of ids."""
    return 0.5 * (logp.exp() - logp_old.exp()).abs().sum(-1)


def sum_by_owner(values, owner, n_owners):
    """Sums (n_owners, c) of values (M, c) over the decisions of each owner, owner (M,)."""
    return values.new_zeros(n_owners, values.size(1)).index_add(0, owner, values)


def grpo_loss(logits, actions, advantages, owner, logp_old=None, logp_ref=None, kept=None,
              point=None, n_owners=None, all_old=None, *, temperature=1.0, objective='ppo',
              ratio_level='token', clip_low=0.2, clip_high=0.2, loss_norm='token', kl_beta=0.0,
              kl_type='exact', entropy_coef=0.0):
    """Loss summed over decisions, and sums to report (arXiv:2402.03300, eq. 3 and 4).

    logits (U, V) of the policy, with gradient; actions (M, c) it chose and advantages (M, c) of
    these choices; owner (M,) whose decision each is; logp_old (M, c) of the actions when they were
    chosen, None: the policy has not moved since, the ratio is 1; logp_ref (U, V) of the reference,
    None: no KL; kept (U, V) bool: what top-k and top-p left when sampling, None: everything; point
    (M,): from which of the U distributions each decision was drawn, None: U = M, from its own;
    n_owners: how many owners there are, None: at most M; all_old (U, V): all of the log-probs under
    which the actions were chosen, for objective 'dppo', None: the policy has not moved since.

    The ratio is of the distributions that sample: tempered, filtered. KL and entropy are of the
    unfiltered ones, at the same temperature. The caller divides: see loss_divisor()."""
    logp_full = log_probs(logits, temperature)                              # (U, V)
    logp = logp_full if kept is None else log_probs(logits, temperature, kept)
    del logits                                  # with a large V nothing else is as large
    entropy = exact_entropy(logp_full if entropy_coef else logp_full.detach())      # (U,)
    entropy = at_decisions(entropy, point)                                  # (M,)

    # How much likelier is each choice than when it was made? Without logp_old the value is 1, but
    # the gradient is that of log-probability all the same.
    taken = log_probs_of(actions, logp, point)                              # (M, c)
    if logp_old is None:
        logp_old = taken.detach()
    log_ratio = taken - logp_old
    token_ratio = log_ratio.exp()                                           # (M, c)
    if n_owners is None:
        n_owners = len(owner)
    ones = torch.ones_like(taken[:, :1])
    length = sum_by_owner(ones, owner, n_owners)[owner]                     # (M, 1) of its owner
    if ratio_level == 'token':
        ratio = token_ratio
    else:                                       # the geometric mean (GSPO, arXiv:2507.18071, eq. 7)
        ratio = (sum_by_owner(log_ratio, owner, n_owners)[owner] / length).exp()

    # Push up what beat its group.
    divergence = None
    if all_old is not None:
        divergence = at_decisions(total_variation(logp.detach(), all_old), point)[:, None]  # (M, 1)
    gain, is_cut = surrogate(objective, ratio, taken, advantages, clip_low, clip_high, divergence)
    pg = -gain.mean(1)                                                      # (M,)

    # Stay near the reference.
    if logp_ref is None:
        kl = torch.zeros_like(pg)                                           # (M,)
    else:
        kl = at_decisions(exact_kl(logp_full, logp_ref), point)             # always reported
    if logp_ref is None or kl_type == 'exact':
        penalty = kl                                                        # what is minimised
    else:
        taken_full = log_probs_of(actions, logp_full, point)
        taken_ref = log_probs_of(actions, logp_ref, point)
        penalty = sampled_kl(taken_full, taken_ref, token_ratio, kl_type).mean(1)

    # Every decision weighs the same, or every completion does.
    weight = torch.ones_like(pg)                                            # (M,)
    if loss_norm == 'sequence':
        weight = 1.0 / length[:, 0]
    loss = (weight * (pg + kl_beta * penalty - entropy_coef * entropy)).sum()

    with torch.no_grad():                       # sums, to be divided as the loss, or by M
        sums = {
            'as_the_loss': {
                'loss': loss.detach(),
                'pg_loss': (weight * pg).sum(),
                'kl_penalty': kl_beta * (weight * penalty).sum(),
            },
            'per_decision': {
                'mean_kl': kl.sum(),
                'mean_log_prob': taken.mean(1).sum(),
                'entropy': entropy.sum(),
                'clip_frac': is_cut.to(pg.dtype).mean(1).sum(),
            },
            'ratio_max': ratio.max(),
        }
    return loss, sums


def loss_divisor(rollout, loss_norm, block_size):
    """What a Rollout counts in the divisor of the loss.

    The loss of an update is divided once, by the sum of this over all its micro-steps on all ranks.
    Were each micro-step divided by its own count, a blank in a row with few would weigh more."""
    # Owners are prompts if one pass fills, since grpo_loss takes the mean over their k completions;
    # else they are completions.
    n_owners = len(rollout.where)
    if loss_norm == 'token':
        return len(rollout.owner)               # every decision weighs the same
    if loss_norm == 'sequence':
        return n_owners                         # every completion weighs the same (the paper's)
    return n_owners * block_size                # 'constant': lengths have no say (Dr. GRPO)


def adapted_kl_beta(beta, kl, target, completions, horizon):
    """A proportional, clipped step to the target KL (Ziegler et al., arXiv:1909.08593, eq. 3). A
    step of more completions than the horizon counts as one: beta changes by a fifth at most."""
    error = max(-0.2, min(0.2, kl / target - 1))
    return beta * (1 + error * min(1, completions / horizon))


# ---- the step: act, judge, compare, learn --------------------------------------------------------
#
# What is computed on how many rows, per micro-step of B prompts (N = B * k):
#
#                     mode = 'fill'                        mode = 'causal'
#   act     policy    B rows, one pass for all k           B prefixes, then N rows token by token
#   judge   judge     the different ones of N rows         the different ones of N rows
#   learn   policy    the pass that sampled, or B rows     N rows, their common prefix once
#           reference B rows                               N rows, their common prefix once
#
#   decisions         M blanks of B prompts, c = k         M tokens of N completions, c = 1
#   owner of each     its prompt, in [0, B)                its completion, in [0, N)
#
# In several passes (n_fill_steps > 1) the first runs on B rows, each later one on the different
# states among N rows; M is the blanks of N completions, c = 1, the owner the completion.


def get_prompts(data, split, n, step=0):
    """n Prompts. Those for training, split 'train', depend on (seed, step) alone. Held-out ones,
    split 'val', are always the same.

    Prompts are drawn for the whole step, and each micro-step and rank takes its slice: so the same
    step is taken by 1 process, 2 ranks, or 4 micro-steps."""
    if split == 'train':
        rng = draws(seed, 'prompts', step)
        k = group_size
    else:
        rng = draws(0, 'eval')
        k = max(group_size, 4)                  # an evaluation takes four samples
    prompts = draw_prompts(
        data, split, n, k, rng, block_size=block_size, mode=mode, blank_kind=blank_kind,
        blank_low=blank_low, blank_high=blank_high, blank_span=blank_span,
        max_new_tokens=max_new_tokens)
    return prompts.pin_memory() if torch.cuda.is_available() else prompts


def my_slices(drawn=1):
    """The micro-steps of this rank, as slices of the P prompts of a step. drawn: `oversample`, for
    slices of all prompts that were drawn, before most_telling() has chosen P of them."""
    micro_steps = range(rank(), gradient_accumulation_steps, n_ranks())
    size = batch_size * drawn
    return [slice(i * size, (i + 1) * size) for i in micro_steps]


def rollout(model, prompts, greedy=False, keep_graph=False):
    """Completes each of B prompts k times; greedy: once, the likeliest way. Returns a Rollout (see
    model.py): rows (N, T), and for each of M decisions actions and log-probs (M, c)."""
    with autocast(model.device, dtype):
        return complete(model, prompts, greedy, temperature, top_k, top_p, n_fill_steps,
                        fill_order, keep_graph, prompts_at_a_time=gen_batch_size // group_size)


def logits_of(model, r):
    """Logits (U, V) of a model, any, at the decisions of a Rollout."""
    with autocast(model.device, dtype):
        return decision_logits(model, r)


@torch.no_grad()
def logp_of(model, r):
    """The same as log-probs (U, V), at the policy's temperature, unfiltered, without gradient."""
    return log_probs(logits_of(model, r), temperature)


def act(policy, prompts):
    """Rollouts of this rank's micro-steps, from the P prompts of the step.

    Fill mode, with one update per step and one micro-step: the policy that learns is the policy
    that sampled, and what it computed to sample is what it must compute to learn. So the logits are
    kept with their graph, which saves a third of the policy's work. With more micro-steps there
    would be as many graphs in memory; causal mode samples token by token, without a graph."""
    clock.mark('act')
    slices = my_slices(oversample)
    keep_graph = False
    if inner_updates * mini_batches * oversample == 1 and len(slices) == 1:
        keep_graph = True
    rollouts = []
    for part in slices:
        r = rollout(policy, prompts[part], keep_graph=keep_graph)
        assert r.rows.shape == (batch_size * oversample * group_size, block_size), r.rows.shape
        assert r.actions.shape == r.logp_old.shape and len(r.owner) == len(r.actions)
        rollouts.append(r)
    return rollouts


def judge_all(rollouts, policy, reference, scorer):
    """Scores {name: (P, k)} of each reward, on every rank. With kl_in_reward also 'kl'."""
    names = list(rewards)
    if kl_in_reward:
        names.append('kl')
    n_prompts = batch_size * gradient_accumulation_steps * oversample
    scores = {name: torch.zeros(n_prompts, group_size, device=policy.device) for name in names}
    for part, r in zip(my_slices(oversample), rollouts):
        clock.mark('judge')
        with autocast(policy.device, dtype):
            found = scorer.score(list(rewards), r)
        if kl_in_reward:
            found['kl'] = completion_kl(policy, reference, r)
        for name in names:
            scores[name][part] = found[name]
    # Each rank filled in its own rows, the others are 0: the sum is whole.
    return {name: all_reduce_sum(values) for name, values in scores.items()}


def completion_kl(policy, reference, r):
    """k1 (B, k) of whole completions, detached: log policy - log reference, both unfiltered."""
    clock.mark('reference')
    r.logp_ref = logp_of(reference, r)                                      # (U, V), used again
    taken = r.logp_old                                                      # (M, c)
    if r.kept is not None:                      # they were sampled from a filtered distribution
        taken = log_probs_of(r.actions, logp_of(policy, r), r.point)
    k1 = taken - log_probs_of(r.actions, r.logp_ref, r.point)               # (M, c)
    # Sums are (B, k) where owners are prompts, and (N, 1) where they are completions.
    return sum_by_owner(k1, r.owner, len(r.where)).view(-1, group_size)


def most_telling(rollouts, scores, reward):
    """With oversample c > 1, of the c * B prompts of each micro-step the B whose rewards differ
    most within their group: dead groups go first (dynamic sampling, DAPO, arXiv:2503.14476, which
    draws anew until none is dead). A prompt then weighs 1 / P(its group is alive) times as much.
    Returns rollouts, scores {name: (P, k)}, reward (P, k), and the chosen prompts' numbers (P,)."""
    if oversample == 1:
        return rollouts, scores, reward, torch.arange(len(reward))
    spread = reward.std(1).masked_fill(dead_groups(reward)[:, 0], -1.0)     # (c * P,)
    groups = spread.view(gradient_accumulation_steps, -1)                   # (micro-steps, c * B)
    chosen = groups.argsort(dim=1, descending=True, stable=True)[:, :batch_size].sort(1).values
    chosen = chosen.cpu()
    micro_steps = range(rank(), gradient_accumulation_steps, n_ranks())
    rollouts = [r.part(chosen[i]) for i, r in zip(micro_steps, rollouts)]
    first = torch.arange(gradient_accumulation_steps)[:, None] * batch_size * oversample
    numbers = (first + chosen).flatten()                                    # (P,) of the c * P
    scores = {name: values[numbers] for name, values in scores.items()}
    return rollouts, scores, reward[numbers], numbers


def learn(policy, reference, optimizers, rollouts, advantages, lr):
    """All updates of a step, from the Rollouts of this rank and advantages (P, k). Statistics."""
    stats = Statistics()
    is_only_update = inner_updates * mini_batches == 1
    dealt = deal(rollouts)
    if objective == 'dppo' and not is_only_update:
        remember_old(policy, dealt)
    for _ in range(inner_updates):
        for mini_batch in dealt:
            own = sum(loss_divisor(r, loss_norm, block_size) for _, r in mini_batch)
            divisor = all_reduce_sum(torch.tensor(own, device=policy.device))   # of all ranks

            for part, r in mini_batch:
                logp_ref = reference_logp(reference, r)                     # (U, V) or None
                clock.mark('learn')
                loss, sums = grpo_loss(
                    take_logits(policy, r), r.actions, advantages_of(r, advantages[part]),
                    r.owner, logp_old=None if is_only_update else r.logp_old, logp_ref=logp_ref,
                    kept=r.kept, point=r.point, n_owners=len(r.where), all_old=r.all_old,
                    temperature=temperature, objective=objective,
                    ratio_level=ratio_level, clip_low=clip_low, clip_high=clip_high,
                    loss_norm=loss_norm, kl_beta=0.0 if kl_in_reward else kl_beta,
                    kl_type=kl_type, entropy_coef=entropy_coef)
                del logp_ref                    # (U, V) of memory, before the backward pass
                (loss / divisor).backward()
                stats.add(loss_divisor(r, loss_norm, block_size), **sums['as_the_loss'])
                stats.add(len(r.owner), **sums['per_decision'])
                stats.add_max(ratio_max=sums['ratio_max'])

            clock.mark('optimizer')
            all_reduce_gradients(policy)
            stats.add(1, grad_norm=update(policy, optimizers, lr, grad_clip))
    return stats


def deal(rollouts):
    """For each mini-batch what this rank learns it from: a list of (prompts, Rollout of these).

    Prompts are dealt to mini-batches one by one, by their number in the step: so a mini-batch is
    the same, however many micro-steps and ranks rolled it out."""
    mine = list(zip(my_slices(), rollouts))
    if mini_batches == 1:
        return [mine]
    dealt = [[] for _ in range(mini_batches)]
    for part, r in mine:
        number = torch.arange(part.start, part.stop)                        # (B,) in the step
        for j in range(mini_batches):
            here = (number % mini_batches == j).nonzero().squeeze(1)
            if len(here) > 0:
                dealt[j].append((number[here], r.part(here)))
    return dealt


def take_logits(policy, r):
    """Logits (U, V) with gradient: those of the pass that sampled, if act() kept them. They are
    taken out of the Rollout, so that the loss can drop them once it has their log-probs."""
    logits = r.logits
    r.logits = None
    return logits if logits is not None else logits_of(policy, r)


@torch.no_grad()
def remember_old(policy, dealt):
    """Gives each Rollout of the mini-batches all log-probs (U, V) from which its actions were
    chosen: one more pass, and 4 bytes x U x V."""
    for mini_batch in dealt:
        for _, r in mini_batch:
            r.all_old = log_probs(logits_of(policy, r), temperature, r.kept)


def reference_logp(reference, r):
    """Log-probs (U, V) of the reference. If inner updates will ask for them again, the Rollout
    keeps them: 4 bytes x U x V of every micro-step. Where that is more than about a gigabyte in
    all, they are computed anew each time, which costs one more pass without gradient."""
    if reference is None:
        return None
    if r.logp_ref is not None:
        return r.logp_ref
    clock.mark('reference')
    logp_ref = logp_of(reference, r)
    pieces = mini_batches * len(my_slices())
    if inner_updates > 1 and logp_ref.numel() * pieces <= 2 ** 28:
        r.logp_ref = logp_ref
    return logp_ref


def advantages_of(r, advantages):
    """Advantages (M, c) of the choices, from those of the completions (B, k): each choice has the
    advantage of its completion. What a single token earns would be added here, to A, after the
    group was compared; log and evaluation know of the completion's reward only."""
    c = r.actions.size(1)
    by_owner = advantages.reshape(-1, c)        # (B, k) if owners are prompts, else (N, 1)
    return by_owner[r.owner]


def take_step(policy, reference, optimizers, scorer, prompts, lr):
    """One step of GRPO from P prompts. Returns what it was made of: the Rollouts of this rank,
    scores {name: (P, k)}, reward (P, k), advantages (P, k), Statistics of learning, and the Prompts
    that were learned from (with `oversample`, some of those given).

    policy, reference (or None): models; optimizers: of the policy; scorer: see judge.py. Rows:
    fill mode runs the policy on P of them, k completions each, and the judge on P * k."""
    # 1. act: k completions of each prompt
    rollouts = act(policy, prompts)

    # 2. judge: every reward apart, then their weighted sum
    scores = judge_all(rollouts, policy, reference, scorer)
    reward = weighted_sum(scores)                                           # (P, k)
    if kl_in_reward:
        reward = reward - kl_beta * scores['kl']
    rollouts, scores, reward, numbers = most_telling(rollouts, scores, reward)

    # 3. compare each completion with the others of its prompt: this is the "group relative"
    advantages = group_advantages(reward, adv_norm, adv_eps)                # (P, k)

    # 4. learn: push up what beat its group, stay near the reference
    stats = learn(policy, reference, optimizers, rollouts, advantages, lr)
    for r in rollouts:
        groups = r.rows.view(batch_size, group_size, -1)
        n_different = (1 / copies(groups)).sum()            # each row counts 1 / its copies
        stats.add(batch_size * group_size, distinct=n_different)
    replaced = numbers % (batch_size * oversample) >= batch_size
    stats.add(len(numbers), replaced=replaced.sum())
    return rollouts, scores, reward, advantages, stats, prompts[numbers]


def weighted_sum(scores):
    """The reward: the sum of scores {name: (P, k)} by the weights of `rewards`."""
    return sum(weight * scores[name] for name, weight in rewards.items())


def log_line(step, stats, scores, reward, advantages, lr, ms):
    """The line of a step in the log: {key: number}, over all micro-steps, updates and ranks."""
    line = {'step': step} | stats.read(reward.device)
    if kl_beta == 0:
        line['mean_kl'] = None                  # there is nothing to compare with
    line['mean_reward'] = reward.mean().item()
    line['std_reward'] = reward.std().item()
    line['group_std'] = reward.std(1).mean().item()     # within groups: what GRPO learns from
    for name, values in scores.items():
        line[f'reward/{name}'] = values.mean().item()
    line['mean_advantage'] = advantages.mean().item()
    line['std_advantage'] = advantages.std().item()
    line['dead_groups'] = dead_groups(reward).float().mean().item()
    line['lr'] = lr
    line['kl_beta'] = kl_beta
    whole = sum(ms.values())
    line['ms_rollout'] = ms['prompts'] + ms['act']
    line['ms_judge'] = ms['judge']
    line['ms_learn'] = whole - ms['prompts'] - ms['act'] - ms['judge']
    line['completions_per_s'] = oversample * reward.numel() / whole * 1e3       # all judged
    return line


def step_text(line, seconds_left):
    """The line of a step in words, for the console."""
    parts = [f"step {line['step']:5}", f"reward {line['mean_reward']:.3f}"]
    if len(rewards) > 1:
        parts += [f"{name} {line[f'reward/{name}']:.3f}" for name in rewards]
    if line['mean_kl'] is not None:
        parts.append(f"KL {line['mean_kl']:.3f}")
    parts.append(f"entropy {line['entropy']:.3f}")
    parts.append(f"dead groups {line['dead_groups']:.0%}")
    parts.append(f"distinct {line['distinct']:.0%}")
    parts.append(f"{line['completions_per_s']:,.0f} completions/s")
    parts.append(f"{seconds_left:.0f} s left")
    return ' | '.join(parts)


# ---- evaluation ----------------------------------------------------------------------------------


@torch.no_grad()
def evaluate(policy, prompts, scorer, reference=None, stop=None, samples=None):
    """Means {name: number} over held-out prompts: four samples each, and the likeliest completion
    (names that end in _argmax). KL and entropy are exact, in nats per decision. samples: a list
    that takes the completions of the first prompts, see sample_lines().
    None if a StopSignal came: an evaluation can take minutes."""
    names = list(rewards)
    if 'verify' not in names and scorer.data.verify:
        names.append('verify')
    if 'distinct' not in names:
        names.append('distinct')
    found = {}                                  # {name: list of tensors}
    for part in prompts.for_k(4).split(batch_size):
        for greedy in (False, True):
            if stop is not None and stop.code:
                return None
            suffix = '_argmax' if greedy else ''
            r = rollout(policy, part, greedy)
            with autocast(policy.device, dtype):
                scores = scorer.score(names, r)                             # {name: (B, 4 or 1)}
            values = {}
            for name in names:
                if name in ('verify', 'distinct'):
                    values[name] = scores[name]
                else:
                    values[f'reward/{name}'] = scores[name]
            values['reward'] = weighted_sum(scores)
            if greedy:
                del values['distinct']          # of one completion it says nothing
            else:
                if samples == []:
                    samples += sample_lines(r, scores, values['reward'], None, scorer.data.tok)
                logp = logp_of(policy, r)                                   # (U, V)
                values['entropy'] = at_decisions(exact_entropy(logp), r.point)      # (M,)
                if reference is not None:
                    kl = exact_kl(logp, logp_of(reference, r))              # (U,)
                    values['kl'] = at_decisions(kl, r.point)                # (M,)
                if 'verify' in scores:          # is at least one of the four true?
                    values['pass@4'] = (scores['verify'] == 1).any(1).float()       # (B,)
            for name, value in values.items():
                found.setdefault(name + suffix, []).append(value.flatten().cpu())

    found = {name: torch.cat(parts) for name, parts in found.items()}
    means = {name: values.mean().item() for name, values in found.items()}
    # Can the judge still tell true from false? That is asked where verify() is a yes or a no.
    if 'reward/judge' in found and 'verify' in found:
        if set(found['verify'].tolist()) == {0.0, 1.0}:
            means['judge_auc'] = auc(found['reward/judge'], found['verify'] == 1)
    return means


def reported_rewards(found):
    """The keys of an evaluation that tell of rewards: verify, the weighted sum, and each reward,
    but for those that would say the same twice."""
    names = [name for name in found if name.startswith('reward') and not name.endswith('_argmax')]
    names.sort(key=lambda name: name != 'reward')           # the sum comes first
    if list(rewards) == ['verify']:
        names = []
    elif len(rewards) == 1:
        names = ['reward']
    return ['verify'] * ('verify' in found) + names


def look_text(step, found, control):
    """An evaluation in words, for the console: first what matters most, then the rest. control: the
    same of the reference."""
    goal = 'verify' if found.get('verify') or control.get('verify') else 'reward'

    def number(name, value):
        is_share = not name.startswith('reward') and name not in ('kl', 'entropy')
        return f"{value:.1%}" if is_share else f"{value:.3f}"

    was, best = [number(goal, control[name]) for name in (goal, f'{goal}_argmax')]
    head = (f"step {step:5} | held-out {goal} {number(goal, found[goal])}, was {was} | likeliest "
            f"completions {number(goal, found[f'{goal}_argmax'])} (reference {best}, the line "
            "to beat)")
    rest = []
    for name in reported_rewards(found) + ['pass@4', 'distinct', 'kl', 'entropy', 'judge_auc']:
        if name in found and name != goal:
            rest.append(f"{name.removeprefix('reward/')} {number(name, found[name])}")
    return f"{head}\n{'':10} | {' | '.join(rest)}"


def end_text(found, control):
    """What a run has come to, against the reference and its control: a line for each number."""
    lines = []
    for name in reported_rewards(found):
        was = f"{control[name]:.3f} (argmax {control[f'{name}_argmax']:.3f})"
        now = f"{found[name]:.3f} (argmax {found[f'{name}_argmax']:.3f})"
        lines.append(f"held-out {name.removeprefix('reward/')}: reference {was} -> policy {now}")
    return '\n'.join(lines)


def is_due(step, interval):
    """Every so many steps, and at the end; 0: never."""
    return interval > 0 and (step % interval == 0 or step == max_iters)


# ---- a step up close -----------------------------------------------------------------------------


def print_groups(step, r, scores, reward, advantages, tok, groups=3, most=6):
    """Prints the first groups of a step with reward and advantage and, if there are several, each
    score by itself; of each group at most `most` different completions, the best first."""
    rows = r.rows.view(-1, group_size, block_size).cpu()
    for p in range(min(groups, len(rows))):
        columns = {'reward': reward[p], 'advantage': advantages[p]}
        if len(scores) > 1:
            columns |= {name: values[p] for name, values in scores.items()}
        note = f"   mean {reward[p].mean():.3f}, std {reward[p].std():.3f}"
        print_group(tok, r.prompts.tokens[p], r.prompts.mask[p], rows[p], f'step {step}', columns,
                    most, note)


def sample_lines(r, scores, reward, advantages, tok, groups=3):
    """The first groups of a Rollout for samples.jsonl, a dict per completion: prompt, completion,
    reward, advantage (None: an evaluation), and each score apart."""
    prompts, completions = texts(tok, r.prompts.tokens, r.prompts.mask, r.rows, r.causal)
    lines = []
    for i in range(min(groups, len(r.prompts)) * r.k):
        p, j = divmod(i, r.k)
        line = {'prompt': prompts[i], 'completion': completions[i],
                'reward': reward[p, j].item(),
                'advantage': None if advantages is None else advantages[p, j].item()}
        line |= {name: values[p, j].item() for name, values in scores.items()}
        lines.append(line)
    return lines


@torch.no_grad()
def check_start(policy, reference, prompts, scorer, is_first_step):
    """Says in one line, before anything is learned, whether sampling and learning see the same
    network (the ratio is 1) and whether the policy starts at its reference (the KL is 0)."""
    r = rollout(policy, prompts[:batch_size])
    logits = logits_of(policy, r)                                           # (U, V)
    taken = log_probs_of(r.actions, log_probs(logits, temperature, r.kept), r.point)        # (M, c)
    off = ((taken - r.logp_old).exp() - 1).abs().max().item()
    # Equal weights give equal numbers only if the shapes of all products are equal too. In causal
    # mode one token at a time is another shape than a whole row; bfloat16 shows that most.
    limit = 0.5 if resolve_dtype(policy.device.type, dtype) == 'bfloat16' else 1e-3
    if off > limit:                             # not if it is NaN: the first step will name that
        fail(f"at the start the ratio is off 1 by {off:.0e}: the policy does not learn from the "
             "distribution that it samples from")
    line = f"checks: the ratio is 1 within {off:.0e}"
    if reference is not None and is_first_step:
        kl = exact_kl(log_probs(logits, temperature), logp_of(reference, r)).max().item()
        if kl > 1e-3 and reference_checkpoint == '':
            fail(f"at the start the KL is {kl:.0e}: the reference is not the network that the "
                 "policy starts as")
        line += f", the KL starts at {kl:.0e}"

    with autocast(policy.device, dtype):
        reward = weighted_sum(scorer.score(list(rewards), r))
    line += f", rewards differ in {(~dead_groups(reward)).sum()} of {batch_size} groups"
    if is_main():
        print(f"{line}: fine", flush=True)


def warn_if_nothing_to_learn(line):
    """One line if in the first step of a run no group has two different rewards."""
    if line['dead_groups'] == 1:
        print(f"warning: in step {line['step']} the rewards are equal within every group, so that "
              "nothing can be learned from them; a larger group_size or temperature, more blanks, "
              "or a reward that gives partial credit may help", flush=True)


def stop_if_not_finite(step, line, scores={}, prompts=None, tok=None):
    """Ends the run if a number is NaN or infinite, naming step, key, and a reward's prompt."""
    end = ("is not finite; no checkpoint was overwritten; try a smaller --learning_rate, or look "
           "at that reward")
    for name, values in scores.items():
        bad = (~values.isfinite()).any(1).nonzero()
        if len(bad) > 0:
            p = int(bad[0])
            text = tok.decode(prompts.tokens[p].masked_fill(prompts.mask[p], tok.mask).tolist())
            text = text.removesuffix('\n')
            fail(f"step {step}, prompt {text!r}: reward '{name}' {end}")
    for key, value in line.items():
        if value is not None and not math.isfinite(value):
            fail(f"step {step}: {key} {end}")


def explain_one_group(policy, reference, optimizers, scorer, prompts, lr):
    """One group by hand: what a step does to the k completions of a single prompt."""
    step = take_step(policy, reference, optimizers, scorer, prompts, lr)
    rollouts, scores, reward, advantages, stats, _ = step
    r = rollouts[0]
    line = log_line(0, stats, scores, reward, advantages, lr, clock.read())
    with torch.no_grad():
        logits = logits_of(policy, r)                                       # after the update
        taken = log_probs_of(r.actions, log_probs(logits, temperature, r.kept), r.point)
        before = sum_by_owner(r.logp_old, r.owner, len(r.where)).flatten()  # (k,) of completions
        after = sum_by_owner(taken, r.owner, len(r.where)).flatten()
    columns = {'reward': reward[0], 'advantage': advantages[0], 'log p': before, 'after': after,
               'change': after - before}
    print_group(scorer.data.tok, prompts.tokens[0], prompts.mask[0], r.rows.cpu(), 'step 0',
                columns)

    print(f"{group_size} completions: mean reward {reward.mean():.3f}, std {reward.std():.3f}; "
          f"adv_norm = '{adv_norm}'")
    terms = "-mean(ratio x advantage)"
    if objective == 'cispo':
        terms = "-mean(ratio x advantage x log p of each choice)"
    numbers = f"{round(line['pg_loss'], 4) + 0.0:.4f}"          # + 0.0: no -0.0000
    if reference is not None and not kl_in_reward:
        terms += f" + {kl_beta:g} x KL"
        numbers += f" + {round(line['kl_penalty'], 4) + 0.0:.4f}"
    if entropy_coef > 0:
        terms += f" - {entropy_coef:g} x entropy"
        numbers += f" - {entropy_coef * line['entropy']:.4f}"
    print(f"loss = {terms} = {numbers} = {round(line['loss'], 4) + 0.0:.4f}")

    # Before an update every ratio is 1, under any rule for the advantages.
    if (advantages == 0).all():
        print("Every advantage is 0: the group teaches nothing.")
    elif objective == 'cispo':
        print("Every ratio is 1, and is taken as a number: the gradient is that of the log p.")
    elif abs(line['pg_loss']) < 5e-5:
        print("Every ratio is 1, so the first term is minus the mean advantage. They cancel: it is "
              "0,\nbut its gradient is not.")
    else:
        print("Every ratio is 1, so the first term is minus the mean advantage of all decisions.\n"
              "They do not cancel here.")
    print(f"The norm of the loss's gradient is {line['grad_norm']:.4f}.")
    if reference is not None:
        kl = exact_kl(log_probs(logits, temperature), logp_of(reference, r))
        kl = at_decisions(kl, r.point).mean()
        print(f"After the update, at learning rate {lr:g}, the KL is {kl:.6f} nats per decision.")


def print_benchmark(policy, reference, optimizers, scorer, prompts_of, steps=20):
    """Takes some steps and prints the median time of each phase. prompts_of: step -> Prompts."""
    found = []
    for step in range(5 + steps):               # the first ones warm up
        clock.read()
        clock.mark('prompts')
        prompts = prompts_of(step=step)
        # At rate 0 the policy stays at its start, and so does what a step costs.
        *_, stats, _ = take_step(policy, reference, optimizers, scorer, prompts, lr=0.0)
        stats.read(policy.device)
        found.append(clock.read())
    found = found[5:]
    whole = [sum(ms.values()) for ms in found]
    middle = statistics.median_high(whole)
    n_rows = batch_size * gradient_accumulation_steps * oversample * group_size
    print(f"{n_rows // group_size} prompts x {group_size} completions, {steps} steps: median "
          f"{middle:.1f} ms, min {min(whole):.1f}, max {max(whole):.1f}")
    for phase in ('prompts', 'act', 'judge', 'reference', 'learn', 'optimizer'):
        ms = statistics.median_high(phases[phase] for phases in found)
        print(f"  {phase:10} {ms:8.2f} ms {ms / middle:6.1%}")
    memory = peak_memory(policy.device)
    line = f"{1e3 * n_rows / middle:,.0f} completions/s"
    if memory is not None:
        line += f" | peak memory {memory:.2f} GB"
    print(line)


# ---- set-up and the loop -------------------------------------------------------------------------


def check_resumable(checkpoint, config):
    """Ends with one line if a checkpoint's settings are not those of this run."""
    old = checkpoint['config']
    may_change = set(MAY_CHANGE)
    # Where the schedule has a length of its own, a run may go on for longer.
    if config['lr_decay_iters'] > 0 and checkpoint['step'] <= config['max_iters']:
        may_change.add('max_iters')
    code = {'functions', 'verify'}              # digests of what the user's functions are
    if resume_changed:
        may_change |= code
    differ = []
    if any(old.get(name) != config.get(name) for name in code - may_change):
        fail(f"{out_dir}/ckpt.pt, at step {checkpoint['step']}, was made with other functions "
             "(rewards or verify have changed); to go on with the new ones: "
             f"{go_on_command('--resume=True', '--resume_changed=True')}")
    for name, value in config.items():
        if old.get(name) != value and name not in may_change | code:
            differ.append(f"{name} {old.get(name)!r} -> {value!r}")
    if differ:
        fail(f"{out_dir}/ckpt.pt, at step {checkpoint['step']}, was made with other settings: "
             f"{', '.join(differ)}; continue with the old ones, or start anew in another --out_dir")


if __name__ == "__main__":
    config, functions = configure(globals())
    config_files = [arg for arg in sys.argv[1:] if arg.endswith('.py')]     # for sample.py
    check_knobs(functions)
    if explain:                                 # one prompt, one update, at the full rate
        batch_size = 1
        gradient_accumulation_steps = 1
        oversample = 1
        inner_updates = 1
        mini_batches = 1
        warmup_iters = 0
    torch_device, note = init_device(device, dtype, backend)
    n_prompts = batch_size * gradient_accumulation_steps
    log = None
    if is_main() and not explain and not benchmark:     # these two write nothing
        wandb_settings = {'config': config, 'project': wandb_project,
                          'name': wandb_run_name or out_dir}
        log = Log(out_dir, resume, wandb_settings if wandb_log else None)

    # The parts: the corpus, the policy's start, its frozen reference, the judge.
    data = main_rank_first(lambda: Dataset(dataset, prepare=True))
    data.check_rows(block_size, mode, blank_kind)
    if 'verify' in rewards and data.verify is None:
        fail(f"rewards = {rewards}: data/{dataset}/prepare.py has no function verify()")
    config['verify'] = digest_of(data.code)
    of_run = {'dataset': dataset, 'mode': mode, 'block_size': block_size}    # recipes inherit them
    checkpoint = None
    if resume:
        checkpoint = load_checkpoint(f'{out_dir}/ckpt.pt', 'policy', data,
                                     go_on_command('--resume=False'))
        check_resumable(checkpoint, config)
    n_parts = 3 if 'judge' in rewards else 2
    why = f"{{}} of {n_parts}: training the {{}} (once; later runs use it again); GRPO comes last"
    generator_recipe = generator_recipe or default_recipe('generator', data)
    start_path, make = main_rank_first(lambda: ensure_checkpoint(
        generator_checkpoint, 'model.py', generator_recipe, why.format(1, 'generator'), **of_run))
    policy = load_gpt(start_path, data, make, block_size, mode, torch_device)
    reference = None
    if kl_beta > 0:
        reference = load_gpt(reference_checkpoint or start_path, data, make, block_size, mode,
                             torch_device)
    judge_path = ''
    judge = None
    if 'judge' in rewards:
        judge_recipe = judge_recipe or default_recipe('judge', data)
        judge_path, make = main_rank_first(lambda: ensure_checkpoint(
            judge_checkpoint, 'judge.py', judge_recipe, why.format(2, 'judge'), **of_run))
        judge = load_judge(judge_path, data, make, block_size, torch_device)
    control_network = reference or policy       # the policy is still what it starts as
    config['reference_and_judge'] = digest_of(control_network, judge)
    control_of = digest_of(control_network)
    for network in (reference, judge):
        if network is not None:
            freeze(network, getattr(torch, resolve_dtype(torch_device.type, dtype)))
    scorer = Scorer(data, judge, functions)
    optimizers = make_optimizers(policy, learning_rate, weight_decay, beta1, beta2, optimizer)
    if compile:
        gpts = [policy, reference]
        if judge is not None:
            gpts.append(judge.gpt)
        for gpt in gpts:
            if gpt is not None:
                gpt.compiled = torch.compile(gpt.trunk, dynamic=False)
    train_prompts = functools.partial(get_prompts, data, 'train', n_prompts * oversample)
    schedule = functools.partial(get_lr, peak=learning_rate, floor=min_lr, warmup=warmup_iters,
                                 total=lr_decay_iters or max_iters)

    if explain:
        explain_one_group(policy, reference, optimizers, scorer, train_prompts(step=0), schedule(0))
        sys.exit()
    if benchmark:
        print_benchmark(policy, reference, optimizers, scorer, train_prompts)
        sys.exit()

    # Where to begin: at the start, or exactly where the checkpoint was saved.
    start = 0
    best = (-math.inf, -math.inf)               # verify and reward of best.pt
    control = None
    if checkpoint is not None:
        check_resumable(checkpoint, config)     # again: now reference and judge are known
        start = checkpoint['step']
        kl_beta = checkpoint['kl_beta']
    if is_main():
        log.begin(start, config, resume)
        n_weights = sum(p.numel() for p in policy.parameters())
        print(f"policy:  {start_path}, {n_weights:,} parameters, pretrained on {policy.text}")
        if judge is not None:
            print(f"judge:   {judge_path}, a {judge.kind} of {judge.text}")
        print(f"a step:  {n_prompts} prompts of {dataset} x {group_size} completions = "
              f"{n_prompts * group_size * block_size:,} tokens")
        print(f"machine: {note}")
        print(f"writes:  {out_dir}/ckpt.pt, best.pt, config.json, log.jsonl, samples.jsonl",
              flush=True)

    # The control is the reference, evaluated on the held-out prompts. It is computed again if
    # anything has changed: its weights, the prompts, the rewards. The old best then does not count.
    held_out = get_prompts(data, 'val', eval_prompts)
    control_of = digest_of(control_of, held_out.tokens, held_out.mask, held_out.uniforms, rewards,
                           config.get('functions'), config['verify'])
    if checkpoint is not None and checkpoint['control_of'] == control_of:
        control = checkpoint['control']
        best = checkpoint['best']
    elif eval_interval > 0:
        control = evaluate(control_network, held_out, scorer)
    if checkpoint is not None:
        policy.load_state_dict(checkpoint['model'])
        for opt, state in zip(optimizers, checkpoint['optimizers']):
            opt.load_state_dict(state)
    def save_run(file, step):
        """Saves all that a run needs to go on exactly from here."""
        path = f'{out_dir}/{file}'
        if not all(p.isfinite().all() for p in policy.parameters()):
            fail(f"step {step}: weights not finite, {path} not written; lower --learning_rate")
        if is_main():
            save_checkpoint(
                path, kind='policy', model_args=policy.args, model=policy.state_dict(), step=step,
                optimizers=[opt.state_dict() for opt in optimizers], best=best, control=control,
                control_of=control_of if control else '', kl_beta=kl_beta, config=config,
                corpus=data.fingerprint, vocabulary=data.tok.vocabulary, unit=data.meta['unit'],
                start=start_path, judge=judge_path, config_files=config_files)

    def evaluate_and_log(step):
        """Logs an evaluation beside the control, and keeps the best policy; returns it."""
        global best
        samples = []
        found = evaluate(policy, held_out, scorer, reference, stop, samples)
        if found is not None:
            line = {'step': step} | {f'eval/{name}': value for name, value in found.items()}
            line |= {f'eval/ref_{name}': value for name, value in control.items()}
            stop_if_not_finite(step, line)
            log.write(line, look_text(step, found, control))
            log.write_samples([{'step': step, 'split': 'val'} | sample for sample in samples])
            score = (found.get('verify', 0.0), found['reward'])     # by which best.pt is the best
            if score > best:
                best = score
                save_run('best.pt', step)
        clock.read()                            # this is no part of a step
        return found

    prompts = train_prompts(step=start)
    check_start(policy, reference, prompts, scorer, start == 0)
    stop = StopSignal()                         # from here on a signal lets the step end
    stop.listen()
    began = time.time()
    clock.read()
    for step in range(start, max_iters + 1):    # one extra turn: the end is evaluated and saved
        if is_main() and is_due(step, eval_interval):
            found = evaluate_and_log(step)
        stop_code = stop.agree(torch_device)
        is_over = step == max_iters or stop_code != 0
        if is_over or (is_due(step, save_interval) and step > start):
            save_run('ckpt.pt', step)
            if keep_checkpoints:
                save_run(f'ckpt-{step:06}.pt', step)
        if is_over:
            break

        lr = schedule(step)
        rollouts, scores, reward, advantages, stats, learned_from = take_step(
            policy, reference, optimizers, scorer, prompts, lr)
        clock.mark('prompts')
        next_prompts = train_prompts(step=step + 1)  # while a GPU is still at work on this step
        line = log_line(step, stats, scores, reward, advantages, lr, clock.read())
        stop_if_not_finite(step, line, scores, learned_from, data.tok)
        if target_kl > 0:
            kl_beta = adapted_kl_beta(kl_beta, line['mean_kl'], target_kl, reward.numel(),
                                      kl_horizon)

        if is_main() and step % log_interval == 0:
            seconds_per_step = (time.time() - began) / (step + 1 - start)
            log.write(line, step_text(line, seconds_per_step * (max_iters - step - 1)))
        if is_main() and step == 0:
            warn_if_nothing_to_learn(line)
        if is_main() and is_due(step, sample_interval):
            print_groups(step, rollouts[0], scores, reward, advantages, data.tok)
            samples = sample_lines(rollouts[0], scores, reward, advantages, data.tok)
            log.write_samples([{'step': step, 'split': 'train'} | sample for sample in samples])
        prompts = next_prompts

    if is_main() and stop_code != 0:
        print(f"stopped before step {step}; continue with: {go_on_command('--resume=True')}")
    elif is_main() and eval_interval > 0:
        print(end_text(found, control))
        print(f"the policy is in {out_dir}/ckpt.pt; look at it: python sample.py "
              f"--out_dir={out_dir}")
    if log is not None:
        log.end()
    leave(stop_code)
