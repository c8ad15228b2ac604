"""Tests that judge by an oracle which is not the code: enumeration of all outcomes, central finite
differences, slow loops, a second implementation. No network, no GPU.

    python -m pytest -q test_grpo.py                      # everything but the long tests
    LONG=1 python -m pytest -q test_grpo.py -k long -s    # 40 kills, 2,000 steps: minutes
    python test_grpo.py                                   # a step beside the usual way of taking it

The lessons come first, and can be read without the rest:

  advantages          what a group of rewards says; equal rewards say nothing
  the loss            its value and gradient are those of the written-out formula, and over all
                      groups there are, its mean gradient is that of the expected reward
  KL and entropy      closed forms; what each estimator's gradient follows, and that k1's is 0
  one distribution    what samples also scores, and enters the ratio
  fill-in             one pass serves all completions of a prompt
  the usual way       each prompt repeated k times: the slow oracle of the shared pass
  several passes      exact log-probabilities and gradients; which order is safe; LLaDA's remasking
  causal              left to right with a cache is full recomputation; the end is a choice

Then the parts:

  the judge, rewards  scores of rows; a reward by its name
  the step            rollout, score, take_step, evaluate as from a notebook; a stand-in model
  it learns           toy policies find what a toy reward likes, and nothing where nothing is
  data                tokenizer, corpora, blanks, prompts, text
  optimizers          learning rate, parameter groups, checkpoints
  knobs               config files, flags, checks; what a machine does not have

Last, whole runs of the real scripts at toy size:

  nothing silently    the control is the control, a part knows what it was made of, damage is found
  exact resume        pieces, kills, ranks and micro-steps end with the same bits
  signals, damage     Ctrl-C anywhere, numbers that are none, torn files, full disks
  bad input           one line that names the fault, and nothing half-written
  seen from close     --explain, by pocket calculator
  long runs           only with LONG=1
"""
import contextlib
import copy
import ctypes
import errno
import functools
import hashlib
import importlib.util
import inspect
import itertools
import json
import math
import multiprocessing.forkserver
import os
import pathlib
import random
import re
import runpy
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import symtable
import sys
import time
import types
from dataclasses import replace

if __name__ != '__main__':
    os.environ.setdefault('OMP_NUM_THREADS', '1')       # tiny tensors: threads would only wait

    # Importing torch takes longer than a toy run. So one process imports it once, the "fork server"
    # of Python's multiprocessing, and each run is a fork of that process, which executes PLAY. It
    # starts here, to import torch while we do.
    FORKS = multiprocessing.get_context('forkserver')
    FORKS.set_forkserver_preload(['numpy', 'torch', 'torch._dynamo', 'torch.distributed', 'pytest'])
    multiprocessing.forkserver.ensure_running()

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import common
import data.dataset
import judge
import model
import model as model_script
import sample
import train_grpo
from common import (Statistics, Stopped, above, at_least, autocast, between,
                    choose_matmul_precision, configure, digest_of, init_device, knobs, new_file,
                    one_of, read_json, read_json_lines)
from data.dataset import (Dataset, Prompts, Tokenizer, blanks, call_user, draw_prompts, draws,
                          known_words, n_arguments, prompts_of_texts, texts, texts_and_originals,
                          write_corpus)
from judge import Judge, Scorer, auc, copies, load_judge, read_labels
from model import (GPT, Rollout, choose, complete, complete_texts, decision_logits, draw,
                   ensure_checkpoint, fill, fill_in_passes, freeze, get_lr, kept_set,
                   load_checkpoint, load_gpt, log_probs, log_probs_of, make_optimizers,
                   recipe_digest, save_checkpoint, update, whole_recipe)
from train_grpo import (adapted_kl_beta, advantages_of, clipped_surrogate, dead_groups,
                        exact_entropy, exact_kl, group_advantages, grpo_loss, loss_divisor,
                        sampled_kl, sum_by_owner, take_step)

if __name__ != '__main__':
    torch.set_num_threads(1)
HOME = os.path.dirname(os.path.abspath(__file__))
HERE = pathlib.Path(HOME)
SCRIPTS = ('train_grpo.py', 'model.py', 'judge.py')
close = torch.testing.assert_close
long = pytest.mark.skipif(not os.environ.get('LONG'), reason="minutes; run with LONG=1")
# letters: P prompts of a step, B of them at a time | k completions of each | N = B * k rows
# T positions | V vocabulary | M decisions, c choices at each, from U distributions | G groups
# X different completions of a row


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


@pytest.fixture
def torch_settings():
    """Puts back afterwards what init_device() changes."""
    dtype = torch.get_default_dtype()
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision(precision)


# ---- oracles -------------------------------------------------------------------------------------


def tiny(causal=False, vocab=5, T=6, layers=2, seed=0, dtype=torch.float64):
    """A GPT whose output layer is not zero, as it is at birth, so that places differ."""
    torch.manual_seed(seed)
    model = GPT(vocab, T, layers, 2, 16, causal).to(dtype)
    nn.init.normal_(model.head.weight, std=0.5)
    for block in model.blocks:
        nn.init.normal_(block.proj.weight, std=0.3)
        nn.init.normal_(block.down.weight, std=0.3)
    return model


def slope(f, x, h=1e-5):
    """Gradient of f(x), a number, by central finite differences; x float64 of any shape."""
    gradient = torch.zeros_like(x)
    for i in range(x.numel()):
        step = torch.zeros_like(x)
        step.view(-1)[i] = h
        gradient.view(-1)[i] = (f(x + step) - f(x - step)) / (2 * h)
    return gradient


def gradients(loss, model):
    """Gradients of all parameters, as one vector."""
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    parts = []
    for gradient, parameter in zip(found, model.parameters()):
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        parts.append(gradient.flatten())
    return torch.cat(parts)


def weights(model):
    """All parameters as one vector, a copy."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def cosine(a, b):
    return F.cosine_similarity(a.flatten(), b.flatten(), dim=0).item()


def kl_divergence(logits, logits_ref):
    """KL (M,) of the distributions of two tensors of logits (M, V), by torch's own formula."""
    p = torch.distributions.Categorical(logits=logits)
    q = torch.distributions.Categorical(logits=logits_ref)
    return torch.distributions.kl_divergence(p, q)


def slow_log_softmax(z, temperature=1.0, kept=None):
    """Log-probabilities of a list of logits; an id that is not kept has -inf."""
    if kept is None:
        kept = [True] * len(z)
    total = math.log(sum(math.exp(x / temperature) for x, keep in zip(z, kept) if keep))
    return [x / temperature - total if keep else -math.inf for x, keep in zip(z, kept)]


def slow_loss(z, actions, advantages, owner, logp_old, logp_ref, kept, *, temperature, ratio_level,
              clip_low, clip_high, loss_norm, kl_beta, kl_type, entropy_coef):
    """The summed loss of a micro-step, a number, from the definitions and with loops."""
    M = len(z)
    z, actions, advantages, owner, logp_old, logp_ref = [
        tensor.tolist() for tensor in (z, actions, advantages, owner, logp_old, logp_ref)]
    kept = kept.tolist() if kept is not None else [None] * M
    logp = [slow_log_softmax(z[m], temperature, kept[m]) for m in range(M)]     # what samples
    full = [slow_log_softmax(z[m], temperature) for m in range(M)]              # unfiltered

    total = 0.0
    for m in range(M):
        mates = [i for i in range(M) if owner[i] == owner[m]]       # the points of the same row
        point = 0.0
        for j, a in enumerate(actions[m]):
            token_ratio = math.exp(logp[m][a] - logp_old[m][j])
            ratio = token_ratio
            if ratio_level == 'sequence':
                off = [logp[i][actions[i][j]] - logp_old[i][j] for i in mates]
                ratio = math.exp(statistics.mean(off))
            clipped = max(1 - clip_low, min(1 + clip_high, ratio))
            point -= min(ratio * advantages[m][j], clipped * advantages[m][j])

            gap = logp_ref[m][a] - full[m][a]
            k3 = math.exp(gap) - 1 - gap
            exact = sum(math.exp(p) * (p - q) for p, q in zip(full[m], logp_ref[m]))
            estimates = {'exact': exact, 'k1': -gap, 'k2': gap ** 2 / 2, 'k3': k3,
                         'k3_ratio': token_ratio * k3}
            point += kl_beta * estimates[kl_type]
            point += entropy_coef * sum(math.exp(p) * p for p in full[m])
        point /= len(actions[m])
        if loss_norm == 'sequence':
            point /= len(mates)
        total += point
    return total


def every_completion(M, V):
    """All V^M choices of ids at M points, (V^M, M)."""
    return torch.tensor(list(itertools.product(range(V), repeat=M)))


def joint(logits, temperature=1.0, kept=None):
    """Log-probabilities (V^M,) of all completions, from logits (M, V) of independent points."""
    M, V = logits.shape
    z = logits / temperature
    if kept is not None:
        z = torch.where(kept, z, -torch.inf)
    logp = z - z.exp().sum(1, keepdim=True).log()
    return logp[torch.arange(M), every_completion(M, V)].sum(1)


def expected_gradient(theta, table, k, adv_norm='none', temperature=1.0, kept=None):
    """Exact expectation (M, V) of the loss's gradient over all groups of k completions, whose
    rewards are in table (V^M,). theta (M, V): the logits."""
    M, V = theta.shape
    every = every_completion(M, V)
    groups = torch.tensor(list(itertools.product(range(len(every)), repeat=k)))     # (G, k)
    G = len(groups)
    chance = joint(theta, temperature, kept)[groups].sum(1).exp()                   # (G,)
    advantages = group_advantages(table[groups], adv_norm) * chance[:, None]        # (G, k)

    # Each group is a prompt of its own, with M decision points and k choices at each.
    actions = every[groups].transpose(1, 2).reshape(G * M, k)
    owner = torch.arange(G).repeat_interleave(M)
    if kept is not None:
        kept = kept.repeat(G, 1)
    z = theta.clone().requires_grad_()
    loss, _ = grpo_loss(z.repeat(G, 1), actions, advantages[owner], owner, kept=kept,
                        temperature=temperature)
    return torch.autograd.grad(loss, z)[0]


def slow_complete(model, prompt, mask, u, temperature, top_k, top_p, eos):
    """One causal completion of one prompt (T,) without cache, batch or shortcut; u (T,), or None:
    the likeliest. Returns row (T,), where it chose (T,), log-probs (T,), kept ids per position."""
    row = prompt.clone()
    where = mask.clone()
    logp = torch.zeros(len(prompt))
    kept = {}
    given = [t for t in range(len(row)) if not mask[t] and row[t] != model.pad_id]
    last_given = max(given, default=-1)
    for t in range(len(row)):
        if not where[t]:
            continue
        p = (model(row[None])[0, t] / temperature).softmax(-1).tolist()
        ids = range(len(p))

        kept[t] = set()
        mass = 0.0
        for i in sorted(ids, key=lambda i: -p[i])[:top_k or len(p)]:
            if mass < top_p:
                kept[t].add(i)
            mass += p[i]
        p = [p[i] if i in kept[t] else 0.0 for i in ids]
        p = [x / sum(p) for x in p]

        if u is None:
            a = p.index(max(p))
        else:
            a = next(i for i in ids if u[t] < sum(p[:i + 1]) or i == max(kept[t]))
        row[t] = a
        logp[t] = math.log(p[a])
        if a == eos and t > last_given:
            row[t + 1:] = model.pad_id
            where[t + 1:] = False
    return row, where, logp, kept


def count_calls(model):
    """Shapes of the inputs of every later pass through the model's trunk, as a growing list."""
    trunk = model.trunk
    shapes = []

    def counting(inputs, *args, **kwargs):
        shapes.append(tuple(inputs.shape))
        return trunk(inputs, *args, **kwargs)

    model.trunk = counting
    return shapes


# ---- advantages: better than the mean of its group -----------------------------------------------


def slow_advantages(rewards, adv_norm, eps=1e-4):
    """Advantages of a list of groups of rewards, by the statistics module."""
    flat = [r for group in rewards for r in group]
    advantages = []
    for group in rewards:
        scale = {'none': 1,
                 'std': 1 / (statistics.stdev(group) + eps),
                 'batch': 1 / (statistics.stdev(flat) + eps),
                 'rloo': len(group) / (len(group) - 1)}[adv_norm]
        mean = statistics.mean(group)
        advantages.append([(r - mean) * scale for r in group])
    return torch.tensor(advantages, dtype=torch.float64)


@pytest.mark.parametrize('adv_norm', ['none', 'std', 'batch', 'rloo'])
def test_advantages_are_those_of_a_slow_loop(adv_norm):
    rewards = torch.rand(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rewards[2] *= 30
    close(group_advantages(rewards, adv_norm), slow_advantages(rewards.tolist(), adv_norm))
    close(group_advantages(rewards, adv_norm, 0.3),
          slow_advantages(rewards.tolist(), adv_norm, 0.3))


def test_rloo_compares_each_completion_with_the_mean_of_the_others():
    rewards = torch.tensor([[1.0, 4.0, 7.0]], dtype=torch.float64)
    expected = torch.tensor([[1 - 5.5, 4 - 4, 7 - 2.5]], dtype=torch.float64)
    close(group_advantages(rewards, 'rloo'), expected)


@pytest.mark.parametrize('adv_norm', ['none', 'std', 'batch', 'rloo'])
def test_groups_do_not_see_each_other_and_their_order_does_not_matter(adv_norm):
    rewards = torch.rand(6, 4, generator=torch.Generator().manual_seed(2))
    advantages = group_advantages(rewards, adv_norm)
    louder = rewards.clone()
    louder[3] *= 10
    others = torch.arange(6) != 3
    same = torch.equal(group_advantages(louder, adv_norm)[others], advantages[others])
    assert same == (adv_norm != 'batch')            # one scale for the batch is the exception
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    close(group_advantages(rewards[order], adv_norm), advantages[order])


@pytest.mark.parametrize('adv_norm', ['none', 'std', 'batch', 'rloo'])
@pytest.mark.parametrize('level', [0.1, -3.7, 1234.5])
def test_rewards_that_are_equal_up_to_rounding_teach_exactly_nothing(adv_norm, level):
    level = torch.tensor(level)
    rewards = level.repeat(4, 7)
    rewards[1, 2] = torch.nextafter(level, level + 1)       # one step of float32 apart
    rewards[2, ::2] = torch.nextafter(level, level - 1)
    rewards[3, 5] = level + 1.0                             # one winner
    advantages = group_advantages(rewards, adv_norm)
    assert dead_groups(rewards).flatten().tolist() == [True, True, True, False]
    assert (advantages[:3] == 0).all()
    assert (advantages[3] != 0).all() and advantages[3].argmax() == 5
    assert advantages.abs().max() < 8


def test_a_small_but_real_difference_is_not_a_dead_group():
    rewards = torch.tensor([[-2.001, -2.0], [0.5, 0.5001]])
    assert not dead_groups(rewards).any()
    assert (group_advantages(rewards, 'std').abs() > 0.2).all()


def test_how_much_nearly_equal_rewards_count_is_a_matter_of_adv_eps():
    # a judge's scores of four good completions: they differ in the fourth digit
    rewards = [[0.9001, 0.9000, 0.9002, 0.9001]]
    largest = []
    for eps in (1e-4, 1e-2):
        expected = slow_advantages(rewards, 'std', eps)
        found = group_advantages(torch.tensor(rewards, dtype=torch.float64), 'std', eps)
        close(found, expected)
        largest.append(found.abs().max().item())
    assert largest[0] == pytest.approx(0.55, abs=0.005) and largest[1] < 0.01


def test_a_reward_that_is_not_a_number_is_not_hidden_by_the_advantages():
    rewards = torch.tensor([[0.0, float('nan')], [1.0, 2.0]])
    advantages = group_advantages(rewards)
    assert advantages[0].isnan().any() and advantages[1].isfinite().all()


# ---- the loss: make what beat its group more likely ----------------------------------------------

AT_RATIO_ONE = {'logp_old': None}           # changes of what some_choices() gives
NO_REFERENCE = {'logp_ref': None}
FIRST_UPDATE = AT_RATIO_ONE | NO_REFERENCE


def some_choices(seed=0, c=3, filtered=False, dtype=torch.float64):
    """Logits (M, V), and all that grpo_loss asks about the choices made at these M = 6 points.
    They are of three completions (or prompts, if c > 1), which have 1, 2 and 3 of them."""
    M, V = 6, 4
    owner = torch.tensor([0, 1, 1, 2, 2, 2])
    rng = torch.Generator().manual_seed(seed)
    logits, other, ref = torch.randn(3, M, V, generator=rng, dtype=torch.float64).to(dtype)
    kept = None
    shares = torch.ones(M, V)
    if filtered:
        kept = torch.rand(M, V, generator=rng) < 0.5
        kept[:, 1] = True
        shares = kept.float()
    actions = torch.multinomial(shares, c, replacement=True, generator=rng)         # (M, c)
    before = log_probs(logits + 0.3 * other, 1.0, kept)                             # (M, V)
    advantages = torch.randn(3, c, generator=rng, dtype=torch.float64).to(dtype)
    return logits, {
        'actions': actions, 'advantages': advantages[owner], 'owner': owner, 'kept': kept,
        'logp_old': before.gather(1, actions), 'logp_ref': ref.log_softmax(-1)}


def report_of(logits, choices, **settings):
    """What the loss reports of itself, {name: number}."""
    _, sums = grpo_loss(logits, **choices, **settings)
    return sums['as_the_loss'] | sums['per_decision'] | {'ratio_max': sums['ratio_max']}


def gradient_at(logits, choices, **settings):
    """Gradient (M, V) of the loss with respect to the logits."""
    z = logits.detach().clone().requires_grad_()
    loss, _ = grpo_loss(z, **choices, **settings)
    return torch.autograd.grad(loss, z)[0]


@pytest.mark.parametrize('kl_type', ['exact', 'k1', 'k2', 'k3', 'k3_ratio'])
@pytest.mark.parametrize('loss_norm', ['token', 'sequence', 'constant'])
@pytest.mark.parametrize('ratio_level', ['token', 'sequence'])
def test_loss_and_gradient_are_those_of_the_written_out_formula(ratio_level, loss_norm, kl_type):
    settings = {'ratio_level': ratio_level, 'loss_norm': loss_norm, 'kl_type': kl_type,
                'kl_beta': 0.3, 'entropy_coef': 0.1, 'clip_low': 0.1, 'clip_high': 0.25,
                'temperature': 1.3}
    for filtered, c in ((False, 3), (True, 1)):
        logits, choices = some_choices(3, c, filtered)
        loss, _ = grpo_loss(logits, **choices, **settings)
        close(loss.item(), slow_loss(logits, **choices, **settings))
        expected = slope(lambda x: slow_loss(x, **choices, **settings), logits)
        close(gradient_at(logits, choices, **settings), expected, atol=1e-8, rtol=1e-6)

        # What is reported apart adds up.
        pg = slow_loss(logits, **choices, **settings | {'kl_beta': 0.0, 'entropy_coef': 0.0})
        both = slow_loss(logits, **choices, **settings | {'entropy_coef': 0.0})
        report = report_of(logits, choices, **settings)
        close(report['loss'].item(), loss.item())
        close(report['pg_loss'].item(), pg)
        close(report['kl_penalty'].item(), both - pg)


def test_sum_by_owner_sums_the_decision_points_of_each_owner():
    values = torch.arange(12.0).view(6, 2)
    owner = torch.tensor([0, 2, 2, 3, 3, 3])
    expected = []
    for n in range(4):
        mine = [m for m in range(6) if owner[m] == n]
        expected.append([sum(values[m, j].item() for m in mine) for j in range(2)])
    assert sum_by_owner(values, owner, 4).tolist() == expected


def test_what_is_reported_is_what_the_definitions_say():
    logits, choices = some_choices(4)
    report = report_of(logits.requires_grad_(), choices, kl_beta=0.5, kl_type='k2', clip_low=0.1,
                       clip_high=0.05)
    assert not any(value.requires_grad for value in report.values())
    logits = logits.detach()
    taken = logits.log_softmax(-1).gather(1, choices['actions'])
    ratio = (taken - choices['logp_old']).exp()
    clipped = 0
    for r, a in zip(ratio.flatten().tolist(), choices['advantages'].flatten().tolist()):
        clipped += (r < 0.9 and a < 0) or (r > 1.05 and a > 0)
    assert 0 < clipped < ratio.numel()
    close(report['clip_frac'].item() * 3, float(clipped))           # c = 3 choices per point
    close(report['ratio_max'], ratio.max())
    close(report['mean_log_prob'], taken.sum() / 3)
    close(report['mean_kl'], kl_divergence(logits, choices['logp_ref']).sum())  # always the exact
    close(report['entropy'], torch.distributions.Categorical(logits=logits).entropy().sum())


def test_advantages_of_zero_leave_exactly_the_gradient_of_the_kl():
    logits, choices = some_choices(5)
    choices['advantages'] = torch.zeros_like(choices['advantages'])
    z = logits.clone().requires_grad_()
    kl = (z.softmax(-1) * (z.log_softmax(-1) - choices['logp_ref'])).sum()
    expected = 0.7 * torch.autograd.grad(kl, z)[0]
    for ratio in ({}, AT_RATIO_ONE):
        assert (gradient_at(logits, choices | ratio | NO_REFERENCE) == 0).all()
        close(gradient_at(logits, choices | ratio, kl_beta=0.7), expected)


def test_before_an_update_the_ratio_is_exactly_one_and_the_loss_zero_but_not_its_gradient():
    logits, choices = some_choices(6, dtype=torch.float32)
    choices['advantages'] -= choices['advantages'].mean(1, keepdim=True)
    logp_old = logits.log_softmax(-1).gather(1, choices['actions'])
    for old in (None, logp_old):
        for ratio_level in ('token', 'sequence'):
            ask = choices | NO_REFERENCE | {'logp_old': old}
            report = report_of(logits, ask, ratio_level=ratio_level)
            assert report['ratio_max'].item() == 1.0 and report['clip_frac'].item() == 0
            assert abs(report['loss'].item()) < 1e-6
            assert gradient_at(logits, ask, ratio_level=ratio_level).norm() > 0.1


@pytest.mark.parametrize('temperature', [1.0, 0.6])
def test_the_surrogates_gradient_at_ratio_one_is_that_of_reinforce(temperature):
    logits, choices = some_choices(7)
    expected = torch.zeros_like(logits)             # -mean of A * d log p / dz, by its formula
    for m in range(len(logits)):
        p = (logits[m] / temperature).softmax(-1)
        for a, advantage in zip(choices['actions'][m], choices['advantages'][m]):
            expected[m] -= advantage * (torch.eye(4)[a] - p) / temperature / 3
    close(gradient_at(logits, choices | FIRST_UPDATE, temperature=temperature), expected)


def test_clipping_stops_the_gradient_in_just_two_of_four_corners():
    low, high = 0.1, 0.3
    for r in (0.5, 0.85, 0.95, 1.0, 1.2, 1.4, 3.0):
        for a in (-2.0, 2.0):
            ratio = torch.tensor(r, dtype=torch.float64, requires_grad=True)
            advantage = torch.tensor(a, dtype=torch.float64)
            value = clipped_surrogate(ratio, advantage, low, high)
            stopped = (a > 0 and r > 1 + high) or (a < 0 and r < 1 - low)
            assert torch.autograd.grad(value, ratio)[0].item() == (0 if stopped else a), (r, a)
            bound = (1 + high) * a if r > 1 else (1 - low) * a
            close(value.item(), bound if stopped else r * a)


def test_a_step_raises_what_beat_its_group_and_lowers_the_rest():
    logits = torch.zeros(3, 4)                      # one prompt, three blanks, two completions
    actions = torch.tensor([[0, 1], [1, 2], [3, 0]])
    advantages = group_advantages(torch.tensor([[1.0, 0.0]])).expand(3, 2)
    choices = {'actions': actions, 'advantages': advantages, 'owner': torch.zeros(3).long()}
    after = (logits - 0.5 * gradient_at(logits, choices)).log_softmax(-1).gather(1, actions)
    before = math.log(1 / 4)
    assert (after[:, 0] > before).all() and (after[:, 1] < before).all()


@pytest.mark.parametrize('k', [2, 3])
@pytest.mark.parametrize('case', ['plain', 'tempered', 'filtered'])
def test_the_expected_gradient_over_all_groups_is_that_of_the_expected_reward(case, k):
    rng = torch.Generator().manual_seed(8)
    theta = torch.randn(2, 3, generator=rng, dtype=torch.float64)
    table = torch.randn(9, generator=rng, dtype=torch.float64)
    temperature = 0.7 if case == 'tempered' else 1.0
    kept = None
    if case == 'filtered':
        kept = torch.tensor([[True, True, False], [True, True, True]])
    ask = (temperature, kept)
    exact = slope(lambda x: (joint(x, *ask).exp() * table).sum(), theta)
    close(-expected_gradient(theta, table, k, 'rloo', *ask), exact, atol=1e-8, rtol=1e-6)
    close(-expected_gradient(theta, table, k, 'none', *ask), (k - 1) / k * exact,
          atol=1e-8, rtol=1e-6)
    bent = cosine(-expected_gradient(theta, table, k, 'std', *ask), exact)
    assert 0.8 < bent < 0.9999          # dividing by the group's std bends the direction


def test_a_kl_in_the_reward_pulls_along_the_gradient_of_the_exact_kl():
    rng = torch.Generator().manual_seed(9)
    theta, ref = torch.randn(2, 2, 3, generator=rng, dtype=torch.float64)
    k1 = joint(theta) - joint(ref)                                              # (9,) detached
    kl_slope = slope(lambda x: (joint(x).exp() * (joint(x) - joint(ref))).sum(), theta)
    close(expected_gradient(theta, -k1, 2, 'rloo'), kl_slope, atol=1e-8, rtol=1e-6)


def test_with_centred_advantages_a_forgotten_temperature_only_scales_the_gradient():
    # shared logits and advantages that sum to 0: every normaliser drops out
    logits, choices = some_choices(10)
    T = 0.6
    uneven = choices | FIRST_UPDATE
    mean = choices['advantages'].mean(1, keepdim=True)
    centred = uneven | {'advantages': choices['advantages'] - mean}
    close(gradient_at(logits, centred), T * gradient_at(logits, centred, temperature=T))
    assert cosine(gradient_at(logits, uneven), gradient_at(logits, uneven, temperature=T)) < 0.999


@pytest.mark.parametrize('kl_type', ['exact', 'k1', 'k2', 'k3', 'k3_ratio'])
def test_extreme_log_probabilities_leave_loss_and_gradient_finite(kl_type):
    logits = torch.tensor([[300.0, 0, 0], [0, -300.0, 0]])
    logp_ref = torch.tensor([[-300.0, 0, 0], [0, 300.0, 0]]).log_softmax(-1)
    choices = {'actions': torch.tensor([[0, 1], [1, 2]]), 'owner': torch.tensor([0, 0]),
               'advantages': torch.tensor([[1.0, -1.0]]).expand(2, 2), 'logp_ref': logp_ref}
    for beta, coef in ((0.1, 0.0), (0.0, 0.1)):
        settings = {'kl_beta': beta, 'kl_type': kl_type, 'entropy_coef': coef}
        loss, _ = grpo_loss(logits, **choices, **settings)
        assert loss.isfinite() and gradient_at(logits, choices, **settings).isfinite().all()


def ragged_prompts(B=8, T=6, V=5, k=3, seed=11):
    """Prompts whose blanks are all positions from some place on, which differs between them."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(V, (B, T), generator=rng)
    first = torch.tensor([1, 5, 2, 4, 3, 5, 1, 3])[:B, None]
    uniforms = torch.rand(B, T, k, generator=rng, dtype=torch.float64)
    return Prompts(tokens, torch.arange(T) >= first, uniforms, eos=4)


def choices_of(r, advantages):
    """What grpo_loss asks about a Rollout with advantages (B, k), before the policy has moved."""
    return {'actions': r.actions, 'advantages': advantages_of(r, advantages), 'owner': r.owner,
            'kept': r.kept, 'n_owners': len(r.where)}


@pytest.mark.parametrize('causal', [False, True])
def test_each_choice_has_the_advantage_of_its_completion(causal):
    prompts = ragged_prompts()
    r = complete(tiny(causal), prompts)
    advantages = torch.arange(24.0).view(8, 3)
    found = advantages_of(r, advantages)                                        # (M, c)
    for m, (n, _) in enumerate(r.where.nonzero().tolist()):
        expected = [advantages.flatten()[n].item()] if causal else advantages[n].tolist()
        assert found[m].tolist() == expected


@pytest.mark.parametrize('loss_norm', ['token', 'sequence', 'constant'])
@pytest.mark.parametrize('causal', [False, True])
def test_one_batch_of_eight_is_four_of_two_is_eight_of_one(causal, loss_norm):
    model = tiny(causal)
    prompts = ragged_prompts()
    advantages = group_advantages(torch.rand(8, 3, dtype=torch.float64))

    def loss_of(part):
        r = complete(model, prompts[part])
        logits = decision_logits(model, r)
        choices = choices_of(r, advantages[part])
        choices['logp_ref'] = logits.log_softmax(-1).roll(1, -1).detach()
        loss, _ = grpo_loss(logits, **choices, kl_beta=0.3, entropy_coef=0.1, loss_norm=loss_norm)
        return loss, loss_divisor(r, loss_norm, 6)

    whole, divisor = loss_of(slice(0, 8))
    expected = gradients(whole, model)
    for size in (2, 1):
        parts = [loss_of(slice(i, i + size)) for i in range(0, 8, size)]
        close(sum(loss for loss, _ in parts), whole)
        close(sum(gradients(loss, model) for loss, _ in parts), expected, rtol=1e-6, atol=1e-9)
        assert sum(own for _, own in parts) == divisor


def rollout_of(prompts, rows, where, causal):
    """A Rollout of completions that are written down in a test."""
    return Rollout(prompts, rows, where, owner=where.nonzero()[:, 0], actions=None, logp_old=None,
                   point=None, kept=None, logits=None, causal=causal)


def test_the_three_normalisers_are_the_means_that_they_are_called():
    # three causal completions of 1, 2 and 3 tokens in rows of 10; at ratio 1 a token's loss is -A
    T = 10
    _, choices = some_choices(12, c=1)
    where = torch.arange(T) < torch.tensor([[1], [2], [3]])
    r = rollout_of(None, None, where, causal=True)
    assert r.owner.tolist() == choices['owner'].tolist()
    advantages = choices['advantages'][[0, 1, 3], 0].tolist()
    tokens = [-a for a, length in zip(advantages, [1, 2, 3]) for _ in range(length)]

    mean = {}
    for loss_norm in ('token', 'sequence', 'constant'):
        loss, _ = grpo_loss(torch.zeros(6, 4), **choices | FIRST_UPDATE, loss_norm=loss_norm)
        mean[loss_norm] = loss.item() / loss_divisor(r, loss_norm, T)
    close(mean['token'], statistics.mean(tokens))
    close(mean['sequence'], statistics.mean(-a for a in advantages))
    close(mean['constant'], sum(tokens) / 3 / T)


def test_the_kl_coefficient_follows_its_target_and_is_bounded_per_step():
    for beta, kl, target, completions, horizon in itertools.product(
            (0.01, 0.5), (0.0, 0.09, 0.1, 0.11, 50.0), (0.1,), (64, 1024), (10000,)):
        error = min(max(kl / target - 1, -0.2), 0.2)
        close(adapted_kl_beta(beta, kl, target, completions, horizon),
              beta + beta * error * completions / horizon)
    assert adapted_kl_beta(0.3, 0.1, 0.1, 64, 100) == 0.3
    beta = 1.0
    for _ in range(2000):           # a policy whose KL falls as the coefficient rises is held
        beta = adapted_kl_beta(beta, 0.04 / beta, 0.1, 100, 1000)
    close(beta, 0.4, rtol=1e-2, atol=0)


# ---- KL and entropy: near the start, and how to measure that -------------------------------------


def two_policies(M=3, V=3, seed=13):
    """Logits (M, V) of a policy and of a reference."""
    return torch.randn(2, M, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_sum_over_blanks_is_the_kl_of_whole_completions_in_value_and_gradient():
    theta, ref = two_policies()
    z = theta.clone().requires_grad_()
    found = exact_kl(log_probs(z), log_probs(ref)).sum()
    kl = lambda x: (joint(x).exp() * (joint(x) - joint(ref))).sum()     # over all 27 completions
    close(found, kl(theta))
    close(torch.autograd.grad(found, z)[0], slope(kl, theta), atol=1e-8, rtol=1e-6)


def test_the_kl_is_zero_just_between_equals():
    theta, ref = two_policies(M=50)
    assert (exact_kl(log_probs(theta), log_probs(ref)) > 1e-3).all()
    assert (exact_kl(log_probs(theta), log_probs(theta)) == 0).all()
    close(exact_kl(log_probs(theta), log_probs(theta + 3)), torch.zeros(50).double(), atol=1e-12,
          rtol=0)


def test_of_the_sampled_estimators_k1_and_k3_have_the_kl_as_mean():
    theta, ref = two_policies(M=1)
    p = theta.softmax(-1)
    logp = theta.log_softmax(-1)
    logp_ref = ref.log_softmax(-1)
    kl = (p * (logp - logp_ref)).sum()
    mean = lambda kl_type: (p * sampled_kl(logp, logp_ref, torch.ones(1, 3), kl_type)).sum()
    close(mean('k1'), kl)
    close(mean('k3'), kl)
    close(mean('k3_ratio'), kl)
    assert abs(mean('k2') - kl) > 0.05 * kl
    assert (sampled_kl(logp, logp_ref, torch.ones(1, 3), 'k3') >= 0).all()


@pytest.mark.parametrize('kl_type, follows', [
    ('k1', 'nothing'), ('k2', 'KL(policy || reference)'), ('k3', 'KL(reference || policy)'),
    ('k3_ratio', 'KL(policy || reference)')])
def test_the_expected_gradient_of_each_estimator_is_that_of(kl_type, follows):
    theta, ref = two_policies(M=1)
    p = lambda x: x.softmax(-1)
    q = ref.softmax(-1)
    what = {'nothing': lambda x: 0.0,
            'KL(policy || reference)': lambda x: (p(x) * (p(x) / q).log()).sum(),
            'KL(reference || policy)': lambda x: (q * (q / p(x)).log()).sum()}[follows]
    exact = slope(what, theta)
    z = theta.clone().requires_grad_()
    logp = z.log_softmax(-1)                        # every id is drawn once: c = V, (1, V)
    ratio = (logp - logp.detach()).exp()
    mean = (p(theta) * sampled_kl(logp, ref.log_softmax(-1), ratio, kl_type)).sum()
    close(torch.autograd.grad(mean, z)[0], exact, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize('ratio_level', ['token', 'sequence'])
def test_expected_kl_gradient_is_that_of_the_exact_reverse_kl(ratio_level):
    # through the loss, over all completions of three blanks, each in its share
    theta, ref = two_policies()
    exact = slope(lambda x: (joint(x).exp() * (joint(x) - joint(ref))).sum(), theta)
    for kl_type in ('exact', 'k2', 'k3_ratio'):
        settings = {'kl_beta': 1.0, 'kl_type': kl_type, 'ratio_level': ratio_level}
        mean = 0
        for completion, share in zip(every_completion(3, 3), joint(theta).exp()):
            choices = {'actions': completion[:, None], 'advantages': torch.zeros(3, 1),
                       'owner': torch.zeros(3).long(), 'logp_ref': ref.log_softmax(-1)}
            mean = mean + share * gradient_at(theta, choices, **settings)
        close(mean, exact, atol=1e-8, rtol=1e-6)


def test_per_token_kl_on_sampled_prefixes_has_the_kl_of_whole_causal_rows_as_mean():
    policy = tiny(True, 3, 4, seed=1)
    reference = tiny(True, 3, 4, seed=2)
    rows = torch.cat((torch.ones(27, 1).long(), every_completion(3, 3)), 1)     # (27, T), 1 given
    where = torch.arange(4).expand(27, 4) > 0
    with torch.no_grad():
        logp = policy(rows, where).log_softmax(-1)                              # (81, V)
        logp_ref = reference(rows, where).log_softmax(-1)
    actions = rows[where][:, None]
    taken = logp.gather(1, actions).view(27, 3).sum(1)                          # (27,)
    taken_ref = logp_ref.gather(1, actions).view(27, 3).sum(1)
    close(taken.exp().sum(), torch.tensor(1.0).double())        # these are all rows there are
    whole = (taken.exp() * (taken - taken_ref)).sum()
    per_row = exact_kl(logp, logp_ref).view(27, 3).sum(1)
    close((taken.exp() * per_row).sum(), whole)


def test_entropy_is_that_of_all_completions_and_its_bonus_raises_it():
    theta, _ = two_policies()
    close(exact_entropy(log_probs(theta)).sum(), -(joint(theta).exp() * joint(theta)).sum())
    choices = {'actions': torch.zeros(3, 2).long(), 'advantages': torch.zeros(3, 2),
               'owner': torch.zeros(3).long()}
    after = theta - 0.1 * gradient_at(theta, choices, entropy_coef=0.5)
    assert (exact_entropy(log_probs(after)) > exact_entropy(log_probs(theta))).all()


def test_entropy_of_a_filtered_distribution_is_finite_and_that_of_the_kept_ids():
    theta = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    kept = torch.tensor([True, False, True, True, False, False]).expand(4, 6)
    entropy = exact_entropy(log_probs(theta, 1.0, kept))
    close(entropy, exact_entropy(log_probs(theta[:, [0, 2, 3]])))
    gradient = torch.autograd.grad(entropy.sum(), theta)[0]
    assert gradient.isfinite().all() and (gradient[~kept] == 0).all()


# ---- one distribution samples, scores, and enters the ratio --------------------------------------


def test_log_probs_are_those_of_a_slow_softmax():
    logits = torch.randn(5, 4, dtype=torch.float64)
    some = torch.rand(5, 4) < 0.6
    some[:, 0] = True
    for temperature, kept in ((1.0, None), (0.3, None), (1.7, some)):
        expected = []
        for m, z in enumerate(logits.tolist()):
            own = None if kept is None else kept[m].tolist()
            expected.append(slow_log_softmax(z, temperature, own))
        found = log_probs(logits, temperature, kept)
        close(found.exp(), torch.tensor(expected).double().exp(), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize('top_k', [0, 1, 3, 6, 50])
@pytest.mark.parametrize('top_p', [1.0, 0.9, 0.5, 1e-6])
def test_kept_are_the_fewest_likeliest_ids_that_reach_the_mass(top_k, top_p):
    logp = (2 * torch.randn(40, 6, dtype=torch.float64)).log_softmax(-1)
    kept = kept_set(logp, top_k, top_p)
    for p, found in zip(logp.exp().tolist(), kept.tolist()):
        ranked = sorted(range(6), key=lambda i: -p[i])
        expected = set()
        mass = lambda: sum(p[i] for i in expected)
        while len(expected) < min(top_k or 6, 6) and (top_p == 1 or mass() < top_p):
            expected.add(ranked[len(expected)])
        assert {i for i in range(6) if found[i]} == expected


def test_top_k_keeps_that_many_even_of_equals():
    assert kept_set(torch.zeros(3, 8).log_softmax(-1), 5, 1.0).sum(1).tolist() == [5, 5, 5]


@pytest.mark.parametrize('ask', [(1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 3, 1.0), (1.0, 0, 0.7),
                                 (1.3, 4, 0.8)])
def test_draws_have_the_shares_that_their_log_probs_say(ask):
    n, V = 20000, 6
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(14), dtype=torch.float64)
    even = ((torch.arange(n) + 0.5) / n).double().expand(3, n)      # every share of [0, 1) alike
    actions, logp, kept = choose(logits, even, *ask)
    p = []
    for m in range(3):
        own = None if kept is None else kept[m].tolist()
        p.append([math.exp(x) for x in slow_log_softmax(logits[m].tolist(), ask[0], own)])
        counts = torch.bincount(actions[m], minlength=V).tolist()
        assert all(abs(count - n * x) <= 1.01 for count, x in zip(counts, p[m]))
    close(logp.exp(), torch.tensor(p).double().gather(1, actions))


@pytest.mark.parametrize('V', [5, 50257])
def test_ids_of_probability_zero_are_never_drawn_even_at_the_ends(V):
    u = torch.tensor([0.0, 1e-30, 0.5, 1 - 2 ** -24]).expand(64, 4)
    logits = torch.randn(64, V, generator=torch.Generator().manual_seed(15))
    kept = torch.rand(64, V, generator=torch.Generator().manual_seed(16)) < 0.5
    kept[:, 0] = False
    kept[:, -1] = False
    kept[:32] = False
    kept[:, V // 2] = True                          # in half of the rows the only one
    actions = draw(log_probs(logits, 1.0, kept), u)
    assert kept.gather(1, actions).all()
    assert (actions[:32] == V // 2).all()
    sure = torch.full((64, V), -1e9)
    sure[:, 2] = 0.0
    assert (draw(sure.log_softmax(-1), u) == 2).all()


def test_the_likeliest_ids_are_taken_without_uniforms():
    logits = torch.randn(20, 7)
    actions, logp, _ = choose(logits)
    assert actions.tolist() == [[max(range(7), key=lambda i: z[i])] for z in logits.tolist()]
    close(logp, logits.log_softmax(-1).amax(1, keepdim=True))


def test_logits_that_are_not_numbers_draw_some_id_and_show_in_the_log_prob():
    logits = torch.tensor([[0.0, float('nan'), 1.0]])
    actions, logp, _ = choose(logits, torch.tensor([[0.3, 0.9]]))
    assert ((actions >= 0) & (actions < 3)).all() and logp.isnan().all()


@pytest.mark.parametrize('top_k, top_p', [(0, 1.0), (3, 1.0), (0, 0.6), (3, 0.8)])
def test_with_a_frozen_kept_set_the_ratio_is_exactly_one_before_any_update(top_k, top_p):
    model = tiny(dtype=torch.float32)
    T = 0.8
    prompts = prompts_to_fill(B=7, seed=17)
    r = complete(model, prompts, temperature=T, top_k=top_k, top_p=top_p)
    choices = choices_of(r, group_advantages(torch.rand(7, 4))) | {'logp_old': r.logp_old}
    logits = decision_logits(model, r)
    report = report_of(logits, choices, temperature=T)
    assert report['ratio_max'].item() == 1.0 and abs(report['pg_loss'].item()) < 1e-5
    again = log_probs(logits, T, r.kept).gather(1, r.actions)
    assert torch.equal(again, r.logp_old)
    assert (r.kept is None) == (top_k == 0 and top_p == 1)
    if r.kept is not None:                      # the set stays frozen while the policy moves away
        moved = report_of(-logits, choices, temperature=T)
        assert moved['ratio_max'].isfinite() and moved['loss'].isfinite()


@pytest.mark.parametrize('top_k, top_p', [(0, 1.0), (3, 1.0), (0, 0.6)])
def test_causal_sampling_and_learning_agree_on_every_log_prob(top_k, top_p):
    model = tiny(True, T=8, dtype=torch.float32)
    rng = torch.Generator().manual_seed(18)
    tokens = torch.randint(5, (6, 8), generator=rng)
    mask = torch.arange(8) >= torch.tensor([2, 3, 5, 4, 2, 7])[:, None]
    prompts = Prompts(tokens, mask, torch.rand(6, 8, 3, generator=rng), eos=4)
    r = complete(model, prompts, temperature=0.9, top_k=top_k, top_p=top_p)
    assert (r.kept is None) == (top_k == 0 and top_p == 1)
    learned = log_probs(decision_logits(model, r), 0.9, r.kept).gather(1, r.actions)
    close(learned, r.logp_old, atol=1e-5, rtol=0)
    assert torch.equal(r.actions[:, 0], r.rows[r.where])


# ---- fill-in: one pass serves all completions of a prompt ----------------------------------------


def prompts_to_fill(B=5, T=6, V=5, k=4, seed=19):
    """Prompts with random blanks, at least one each."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(V, (B, T), generator=rng)
    mask = torch.rand(B, T, generator=rng) < 0.5
    mask[:, 1] = True
    uniforms = torch.rand(B, T, k, generator=rng, dtype=torch.float64)
    return Prompts(tokens, mask, uniforms, eos=V - 1)


def test_completion_j_of_prompt_b_takes_uniforms_j_and_stands_in_row_b_times_k_plus_j():
    model = tiny()
    prompts = prompts_to_fill(k=3)
    before = prompts.tokens.clone()
    r = complete(model, prompts)
    expected = prompts.tokens.repeat_interleave(3, 0)
    for m, (b, t) in enumerate(prompts.mask.nonzero().tolist()):
        assert r.owner[m] == b
        for j in range(3):
            expected[b * 3 + j, t] = r.actions[m, j]
    assert torch.equal(r.rows, expected) and torch.equal(prompts.tokens, before)
    for j in range(3):
        alone = Prompts(prompts.tokens, prompts.mask, prompts.uniforms[:, :, j:j + 1], prompts.eos)
        assert torch.equal(complete(model, alone).rows, r.rows[j::3])


def test_filling_leaves_what_is_given_and_writes_no_special_ids():
    model = tiny()
    prompts = prompts_to_fill()
    prompts.tokens[3, 4:] = model.pad_id
    prompts.mask[3, 4:] = False
    prompts.mask[4] = False                                     # nothing to do in this row
    r = complete(model, prompts)
    given = prompts.tokens.repeat_interleave(4, 0)
    where = prompts.mask.repeat_interleave(4, 0)
    assert r.rows.shape == (20, 6) and torch.equal(r.where, prompts.mask) and r.k == 4
    assert torch.equal(r.rows[~where], given[~where])
    assert (r.rows[where] < 5).all() and torch.equal(r.rows[16:], given[16:])


def test_all_completions_of_a_prompt_come_from_one_pass_over_one_row():
    model = tiny()
    calls = count_calls(model)
    complete(model, prompts_to_fill())
    assert calls == [(5, 6)]


def test_the_shared_pass_has_the_gradient_of_k_repeated_rows():
    model = tiny()
    prompts = prompts_to_fill()
    k = 4
    r = complete(model, prompts)
    advantages = group_advantages(torch.rand(5, k, dtype=torch.float64))        # (B, k)
    shared, _ = grpo_loss(decision_logits(model, r), **choices_of(r, advantages))

    # The same by hand from N rows: M * k decision points, one choice at each.
    tokens = prompts.tokens.repeat_interleave(k, 0)
    where = prompts.mask.repeat_interleave(k, 0)
    owner = where.nonzero()[:, 0]
    repeated, _ = grpo_loss(model(tokens, where=where), r.rows[where][:, None],
                            advantages.view(-1, 1)[owner], owner)
    expected = gradients(repeated / k, model)
    assert expected.norm() > 1e-3
    close(gradients(shared, model), expected, rtol=1e-9, atol=1e-12)


def test_prompts_without_a_blank_are_as_if_they_were_not_there():
    # an empty line of a corpus of rows has nothing to fill, and may come before those that have
    model = tiny()
    prompts = prompts_to_fill()
    prompts.mask[:] = False
    prompts.mask[3:, 1] = True
    advantages = group_advantages(torch.rand(5, 4, dtype=torch.float64))
    expected = []
    for part in (slice(3, 5), slice(0, 5)):
        r = complete(model, prompts[part])
        loss, _ = grpo_loss(decision_logits(model, r), **choices_of(r, advantages[part]),
                            loss_norm='sequence', ratio_level='sequence')
        expected.append(gradients(loss, model))
    close(expected[1], expected[0])


def test_completions_of_blanks_have_the_enumerated_shares():
    model = tiny(vocab=3, T=3)
    tokens = torch.tensor([[0, 2, 1]])
    mask = torch.tensor([[True, False, True]])
    n = 30000
    u = torch.rand(1, 3, n, generator=torch.Generator().manual_seed(20))
    rows = complete(model, Prompts(tokens, mask, u, eos=-1)).rows
    counts = torch.bincount(rows[:, 0] * 3 + rows[:, 2], minlength=9)
    with torch.no_grad():
        p = joint(model(tokens, where=mask)).exp()
    chi2 = ((counts - n * p) ** 2 / (n * p)).sum().item()
    assert chi2 < 26.1          # 8 degrees of freedom: one in a thousand is higher


def test_a_blank_sees_both_sides_but_no_other_blank_and_not_itself():
    model = tiny()
    tokens = prompts_to_fill(B=1).tokens
    mask = torch.tensor([[False, True, False, True, False, False]])
    before = model(tokens, where=mask)                                          # (2, V)
    for t in range(6):
        changed = tokens.clone()
        changed[0, t] = (changed[0, t] + 1) % 5
        moved = (model(changed, where=mask) - before).abs().amax(1)             # (2,)
        assert (moved == 0).all() if mask[0, t] else (moved > 1e-6).all()


def test_a_causal_position_sees_just_what_stands_left_of_it():
    model = tiny(True)
    tokens = prompts_to_fill(B=1).tokens
    before = model(tokens)                                                      # (1, T, V)
    for t in range(6):
        changed = tokens.clone()
        changed[0, t] = (changed[0, t] + 1) % 5
        moved = (model(changed) - before).abs().amax(2)[0]                      # (T,)
        assert (moved[:t + 1] == 0).all() and (moved[t + 1:] > 1e-6).all()


@pytest.mark.parametrize('causal', [False, True])
def test_padding_changes_nothing_in_the_row_that_it_fills_up(causal):
    model = tiny(causal, T=9)
    prompts = prompts_to_fill()
    expected = model(prompts.tokens, where=prompts.mask)
    padded = F.pad(prompts.tokens, (0, 3), value=model.pad_id)
    wide = F.pad(prompts.mask, (0, 3))
    close(model(padded, where=wide), expected)
    mixed = torch.cat((padded, torch.randint(5, (1, 9))))       # one row has no padding
    where = torch.cat((wide, torch.ones(1, 9).bool()))
    close(model(mixed, where=where)[:len(expected)], expected)


@pytest.mark.parametrize('causal', [False, True])
def test_logits_at_decision_points_are_those_of_the_whole_pass(causal):
    model = tiny(causal)
    prompts = prompts_to_fill()
    shown = prompts.tokens
    if not causal:
        shown = shown.masked_fill(prompts.mask, model.mask_id)
    close(model(prompts.tokens, where=prompts.mask), model(shown)[prompts.mask])
    with pytest.raises(ValueError, match='block_size is 6'):
        model(torch.zeros(1, 7).long())


@pytest.mark.parametrize('causal', [False, True])
def test_log_probs_are_float32_also_when_products_are_bfloat16(causal):
    model = tiny(causal, dtype=torch.float32)
    prompts = prompts_to_fill()
    exact = log_probs(model(prompts.tokens, where=prompts.mask))
    with torch.autocast('cpu', torch.bfloat16):
        rough = log_probs(model(prompts.tokens, where=prompts.mask))
        r = complete(model, prompts)
    assert rough.dtype == torch.float32 and r.logp_old.dtype == torch.float32
    close(rough.exp().sum(1), torch.ones(len(rough)))           # to float32's accuracy
    close(rough, exact, atol=0.2, rtol=0)
    assert tiny(causal)(prompts.tokens).dtype == torch.float64


@pytest.mark.parametrize('causal', [False, True])
def test_the_output_layer_of_a_large_vocabulary_is_computed_at_decision_points_only(causal):
    V, k = 50257, 3
    torch.manual_seed(0)
    model = GPT(V, 8, 1, 2, 8, causal)
    shapes = []
    model.head.register_forward_hook(lambda head, x, y: shapes.append(tuple(y.shape)))
    mask = torch.arange(8) >= torch.tensor([[6], [7], [5], [7]])
    prompts = Prompts(torch.randint(V, (4, 8)), mask, torch.rand(4, 8, k), eos=V - 1)
    r = complete(model, prompts)
    M = 21 if causal else 7
    assert sum(shape[0] for shape in shapes) <= (12 * 3 if causal else 7)       # while sampling
    del shapes[:]
    logits = decision_logits(model, r)
    loss, _ = grpo_loss(logits, **choices_of(r, group_advantages(torch.rand(4, k))))
    loss.backward()
    assert shapes == [(M, V)] and len(r.owner) == M


# ---- the usual way of taking a step: a slow oracle, and what it costs ----------------------------


def usual_step(policy, reference, optimizers, judge, prompts, lr):
    """A step as most code takes it: each prompt is repeated k times, and the pass that samples, the
    pass that learns and the reference's each run over all N rows and all T positions of them.
    KL: k3. Fill mode; knobs: those of train_grpo."""
    device = policy.device
    P, T, k = prompts.uniforms.shape
    tokens = prompts.tokens.to(device).repeat_interleave(k, 0)                  # (N, T)
    mask = prompts.mask.to(device).repeat_interleave(k, 0)                      # (N, T)
    uniforms = prompts.uniforms.to(device).transpose(1, 2).reshape(-1, 1)       # (N * T, 1)
    hidden = tokens.masked_fill(mask, policy.mask_id)                           # (N, T)

    with autocast(device, train_grpo.dtype):
        with torch.no_grad():
            logp = policy(hidden).log_softmax(-1)                               # (N, T, V)
            actions = draw(logp.flatten(0, 1), uniforms).view(-1, T)            # (N, T)
            rows = torch.where(mask, actions, tokens)
            rewards = judge.raw(rows).float().view(P, k)
            advantages = group_advantages(rewards, train_grpo.adv_norm, train_grpo.adv_eps)
            logp_ref = reference(hidden).log_softmax(-1)
            taken_ref = logp_ref.gather(2, actions[:, :, None])[:, :, 0]        # (N, T)
        logp = policy(hidden).log_softmax(-1)
        taken = logp.gather(2, actions[:, :, None])[:, :, 0]

    ratio = (taken - taken.detach()).exp()
    clipped = ratio.clamp(1 - train_grpo.clip_low, 1 + train_grpo.clip_high)
    gain = torch.min(ratio * advantages.view(-1, 1), clipped * advantages.view(-1, 1))
    gap = taken_ref - taken
    kl = gap.exp() - 1 - gap
    loss = ((train_grpo.kl_beta * kl - gain) * mask).sum() / mask.sum()
    loss.backward()
    update(policy, optimizers, lr, train_grpo.grad_clip)


@pytest.mark.parametrize('adv_norm', ['none', 'std'])
def test_a_step_of_ours_is_the_usual_one_with_k_times_the_rows(adv_norm, notebook):
    n = notebook('fill', dtype='float64', rewards={'judge': 1.0}, kl_type='k3', kl_beta=0.3,
                 adv_norm=adv_norm)
    n.reference = tiny(vocab=n.data.tok.base, seed=5)
    judge = Judge('likelihood', vocab_size=n.data.tok.base, block_size=6, n_layer=1, n_head=2,
                  n_embd=16, causal=True).double()
    nn.init.normal_(judge.gpt.head.weight, std=0.5)
    # Scores are float32: rounded, so that the last bits of a float64 cannot make another one.
    raw = judge.raw
    judge.raw = lambda rows: raw(rows).mul(64).round().div(64)
    n.scorer.judge = judge

    start = weights(n.policy)
    other = copy.deepcopy(n.policy)
    ours = n.step(lr=1.0)                       # plain gradient descent: it moves by the gradient
    usual_step(other, n.reference, [torch.optim.SGD(other.parameters())], judge, n.prompts, lr=1.0)
    assert (~dead_groups(ours.reward)).sum() > 3
    assert (weights(other) - start).norm() > 0.1
    close(weights(n.policy), weights(other), atol=1e-12, rtol=0)


def sizes_of(file, recipe):
    """The arguments of a GPT that a recipe for model.py or judge.py asks for."""
    script = fresh(file)
    configure(vars(script), recipe.split(), quiet=True)
    return {'n_layer': script.n_layer, 'n_head': script.n_head, 'n_embd': script.n_embd}


@contextlib.contextmanager
def torch_defaults():
    """Products of float32, by torch's own library, and its fused attention, also on a CPU."""
    own = (train_grpo.dtype, model_script.attention, torch.get_float32_matmul_precision())

    def fused_attention(q, k, v, bias, causal):
        return F.scaled_dot_product_attention(q, k, v, None if causal else bias, is_causal=causal)

    train_grpo.dtype = 'float32'
    model_script.attention = fused_attention
    torch.set_float32_matmul_precision('highest')
    try:
        yield
    finally:
        train_grpo.dtype, model_script.attention, precision = own
        torch.set_float32_matmul_precision(precision)


def benchmark_usual_way(argv, ks=(2, 4, 8, 16, 32, 64), rounds=7):
    """Prints the median time of a step of ours and of the usual one: with the products that we use
    (dtype, attention, library) and with torch's defaults. Nothing is trained, written or compiled.

    argv: config files and flags of train_grpo.py; models are new ones of the sizes that its recipes
    ask for. The three take turns, so that whatever else the machine does hits all alike."""
    _, functions = configure(vars(train_grpo), argv)
    train_grpo.check_knobs(functions)
    if train_grpo.mode != 'fill':
        sys.exit("mode = 'causal': the usual way is written for mode = 'fill' alone")
    device, note = init_device(train_grpo.device, train_grpo.dtype)
    data = Dataset(train_grpo.dataset, prepare=True)
    generator = sizes_of('model.py', train_grpo.generator_recipe
                         or f'config/generator_{train_grpo.dataset}.py')
    judge = sizes_of('judge.py', train_grpo.judge_recipe
                     or f'config/judge_{train_grpo.dataset}.py')
    common_sizes = {'vocab_size': data.tok.base, 'block_size': train_grpo.block_size}

    def parts(dtype):
        """Policy, reference, optimizers and judge, whose products are of a dtype."""
        policy = GPT(**common_sizes, **generator, causal=False).to(device)
        reference = copy.deepcopy(policy)
        frozen_judge = Judge('likelihood', **common_sizes, **judge, causal=True).to(device)
        freeze(reference, dtype)
        freeze(frozen_judge, dtype)
        optimizers = make_optimizers(policy, 1e-3, 0.0, 0.9, 0.95, train_grpo.optimizer)
        return policy, reference, optimizers, frozen_judge

    products = parts(getattr(torch, common.resolve_dtype(device.type, train_grpo.dtype)))
    defaults = parts(torch.float32)
    train_grpo.rewards = {'judge': 1.0}
    n_prompts = train_grpo.batch_size * train_grpo.gradient_accumulation_steps

    def our_way(prompts):
        policy, reference, optimizers, judge = products
        take_step(policy, reference, optimizers, Scorer(data, judge), prompts, lr=0.0)

    def same_products(prompts):
        usual_step(*products, prompts, lr=0.0)

    def default_products(prompts):
        with torch_defaults():
            usual_step(*defaults, prompts, lr=0.0)

    print(f"{n_prompts} prompts of {train_grpo.block_size} tokens, {note}; medians of {rounds} "
          f"steps, of {min(rounds, 3)} from k = 32 on")
    print("   k   this step   usual, same products   usual, torch's defaults   ms per completion")
    for k in ks:
        train_grpo.group_size = k
        ms = {our_way: [], same_products: [], default_products: []}
        for i in range(1 + (rounds if k < 32 else min(rounds, 3))):     # the first one warms up
            for way, found in ms.items():
                began = time.perf_counter()
                way(train_grpo.get_prompts(data, 'train', n_prompts, i))
                train_grpo.clock.read()                                 # waits for a GPU
                found.append(1e3 * (time.perf_counter() - began))
        ours, same, default = [statistics.median(found[1:]) for found in ms.values()]
        print(f"{k:4d} {ours:8.1f} ms   {same:9.1f} ms  {same / ours:5.1f} x   {default:9.1f} ms  "
              f"{default / ours:7.1f} x   {ours / n_prompts / k:9.3f}", flush=True)


def test_the_benchmark_beside_the_usual_way_prints_a_line_for_each_k(
        corpus, monkeypatch, capsys, torch_settings):
    for name, value in knobs(vars(train_grpo)).items():
        monkeypatch.setattr(train_grpo, name, value)            # to be put back after the test
    corpus('windows', ['the cat sat on the mat'] * 9, ['a cat'] * 9)
    recipe = '--n_layer=1 --n_head=2 --n_embd=8'
    benchmark_usual_way(['--dataset=toy', '--block_size=8', '--batch_size=4', '--device=cpu',
                         f'--generator_recipe={recipe}', f'--judge_recipe={recipe}'], (2, 3), 1)
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert lines[0].split()[0] == 'k'
    for k, line in zip((2, 3), lines[1:]):
        found, ours, same, same_ratio, default, default_ratio, each = map(
            float, re.findall(r'[\d.]+', line))
        assert found == k and same / ours == pytest.approx(same_ratio, rel=0.1, abs=0.1)
        assert default / ours == pytest.approx(default_ratio, rel=0.1, abs=0.1)
        assert each == pytest.approx(ours / 4 / k, abs=0.02)


# ---- several passes: oracles ---------------------------------------------------------------------


class ToyData(Dataset):
    """A corpus without text: what is asked of it is tokenizer and verify()."""

    def __init__(self, chars='\n-=abcde', verify=None):
        self.name = 'toy'
        self.tok = Tokenizer('char', chars)
        self.verify = verify


@pytest.fixture
def set_knobs(monkeypatch):
    """set_knobs(group_size=4, ...) sets knobs of train_grpo, as a notebook would, for one test."""
    def change(**values):
        for name, value in values.items():
            assert name in knobs(vars(train_grpo)), name
            monkeypatch.setattr(train_grpo, name, value)

    return change


# ---- several passes: a blank sees what the passes before it wrote --------------------------------

ORDERS = ('random', 'left', 'confident')
PLAIN = {'temperature': 1.0, 'top_k': 0, 'top_p': 1.0}


class StateTable(nn.Module):
    """A policy with a logit of its own for every state, position and id: nothing is more general,
    so that no error of a gradient can hide in what a network shares."""
    causal = False
    device = torch.device('cpu')

    def __init__(self, T=3, V=2, seed=0):
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        self.vocab_size = V
        self.mask_id = V
        self.place = (V + 1) ** torch.arange(T)
        table = torch.randn((V + 1) ** T, T, V, generator=rng, dtype=torch.float64)
        self.table = nn.Parameter(0.8 * table)

    def forward(self, tokens, where=None):
        if where is not None:
            tokens = tokens.masked_fill(where, self.mask_id)
        logits = self.table[(tokens * self.place).sum(1)]                       # (N, T, V)
        return logits if where is None else logits[where]


def without_unlikely(p, top_k, top_p):
    """A list of probabilities, after top-k and top-p."""
    kept = set()
    mass = 0.0
    for a in sorted(range(len(p)), key=lambda a: -p[a])[:top_k or len(p)]:
        if mass < top_p:
            kept.add(a)
        mass += p[a]
    total = sum(p[a] for a in kept)
    return [p[a] / total if a in kept else 0.0 for a in range(len(p))]


@torch.no_grad()
def look(model, state, memory):
    """Logits (T, V) of one state (T,); memory: of the states that were asked for before."""
    ids = tuple(state.tolist())
    if ids not in memory:
        memory[ids] = model(state[None])[0]
    return memory[ids]


def slow_passes(model, tokens, mask, key, n, order, pick, memory, temperature=1.0, top_k=0,
                top_p=1.0):
    """Fills one row (T,) one blank at a time. key (T,): of the random order; pick(t, p): the id at
    position t, given the probabilities p there; memory: see look(). Returns the row and, by
    position, the pass that filled it, the state (T,) that it saw, its log-prob, and a uniform that
    would pick it too."""
    row = tokens.masked_fill(mask, model.mask_id)
    left = mask.nonzero().flatten().tolist()
    M = len(left)
    if order == 'random':
        left.sort(key=lambda t: key[t].item())
    w = types.SimpleNamespace(row=row, turn={}, state={}, logp={}, uniform={})
    for step in range(n):
        now = sum(rank * n // M == step for rank in range(M))
        state = row.clone()
        if order == 'confident' and now > 0:
            sure = look(model, state, memory).softmax(-1).amax(-1).tolist()
            left.sort(key=lambda t: -sure[t])
        for t in [left.pop(0) for _ in range(now)]:
            p = (look(model, state, memory)[t] / temperature).softmax(-1).tolist()
            p = without_unlikely(p, top_k, top_p)
            a = pick(t, p)
            row[t] = a
            w.turn[t] = step
            w.state[t] = state
            w.logp[t] = math.log(p[a])
            w.uniform[t] = sum(p[:a]) + p[a] / 2
    assert left == [] and sorted(w.turn) == mask.nonzero().flatten().tolist()
    return w


def by_uniforms(u):
    """A pick() for slow_passes(), from uniforms (T,)."""
    return lambda t, p: next(a for a in range(len(p)) if u[t] < sum(p[:a + 1]))


def likeliest(t, p):
    return p.index(max(p))


def slow_rollout(model, prompts, n, order, greedy=False, **how):
    """What slow_passes() makes of each of the N completions of Prompts, a list."""
    walks = []
    memory = {}
    for b, u in enumerate(prompts.uniforms.transpose(1, 2)):                    # (k, T)
        for j in range(1 if greedy else len(u)):
            pick = likeliest if greedy else by_uniforms(u[j])
            key = None if prompts.order is None else prompts.order[b]
            walks.append(slow_passes(model, prompts.tokens[b], prompts.mask[b], key, n, order, pick,
                                     memory, **how))
    return walks


def decisions_of(r):
    """(completion, position) of the M decisions of a Rollout in passes, in its order."""
    places = [tuple(place) for place in r.where.nonzero().tolist()]
    return sorted(places, key=lambda place: r.turn[place].item())       # pass by pass


def prompts_in_order(B=5, T=6, V=5, k=4, seed=19, most=5):
    """Prompts with 1 to `most` blanks, and a random order of them."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(V, (B, T), generator=rng)
    count = 1 + torch.arange(B)[:, None] % most                                 # (B, 1)
    mask = torch.rand(B, T, generator=rng).argsort(1) < count
    uniforms = torch.rand(B, T, k, generator=rng, dtype=torch.float64)
    order = torch.rand(B, T, generator=rng, dtype=torch.float64)
    return Prompts(tokens, mask, uniforms, V - 1, order)


def row_to_fill(T=4, V=3, seed=28):
    """A row (T,) whose second token is given, its blanks, and keys of a random order."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(V, (T,), generator=rng)
    return tokens, torch.arange(T) != 1, torch.rand(T, generator=rng)


def every_outcome(model, tokens, mask, key, n, order):
    """All that can become of a row (T,): completions (X, T), their log-probs (X,), uniforms (X, T)
    that lead to them, and what slow_passes() tells of each."""
    M = int(mask.sum())
    rows = tokens.repeat(model.vocab_size ** M, 1)
    rows[:, mask] = every_completion(M, model.vocab_size)
    walks = []
    memory = {}
    uniforms = torch.full(rows.shape, 0.5, dtype=torch.float64)
    for x, row in enumerate(rows.tolist()):
        w = slow_passes(model, tokens, mask, key, n, order, lambda t, p: row[t], memory)
        walks.append(w)
        for t, u in w.uniform.items():
            uniforms[x, t] = u
    logp = torch.tensor([sum(w.logp.values()) for w in walks], dtype=torch.float64)
    return rows, logp, uniforms, walks


def log_prob_of_rows(r, logp):
    """Log-probs (N,) of the completions of a Rollout, from those (M, c) of its decisions."""
    c = logp.size(1)
    total = [0.0] * len(r.rows)
    for owner, values in zip(r.owner.tolist(), logp.tolist()):
        for j in range(c):
            total[owner * c + j] += values[j]
    return torch.tensor(total, dtype=torch.float64)


@pytest.mark.parametrize('order', ORDERS)
@pytest.mark.parametrize('n', [1, 2, 3, 7])
def test_the_probabilities_of_all_completions_in_passes_add_up_to_one(n, order):
    model = tiny(vocab=3, T=4, layers=1)
    tokens, mask, key = row_to_fill()
    rows, logp, uniforms, _ = every_outcome(model, tokens, mask, key, n, order)
    prompts = Prompts(tokens[None], mask[None], uniforms.T[None], -1, key[None])
    for r in (complete(model, prompts, n_fill_steps=n, fill_order=order),
              fill_in_passes(model, prompts, n, order, False, False, **PLAIN)):
        assert torch.equal(r.rows, rows)                # each of the 27 once
        found = log_prob_of_rows(r, r.logp_old)
        assert found.exp().sum().item() == pytest.approx(1.0, abs=1e-8)
        close(found, logp, atol=1e-12, rtol=0)
    assert logp.exp().max() > 1.5 * logp.exp().min()    # there is something to tell apart


ASKS = {'plain': {}, 'greedy': {'greedy': True}, 'tempered': {'temperature': 0.6},
        'filtered': {'temperature': 1.3, 'top_k': 4, 'top_p': 0.7}}


@pytest.mark.parametrize('order', ORDERS)
@pytest.mark.parametrize('ask', ASKS)
def test_filling_in_passes_is_a_slow_loop_over_one_blank_at_a_time(ask, order):
    model = tiny()
    for n in (2, 3, 8):
        prompts = prompts_in_order(seed=n)
        r = complete(model, prompts, n_fill_steps=n, fill_order=order, **ASKS[ask])
        walks = slow_rollout(model, prompts, n, order, **ASKS[ask])
        assert len(walks) == len(r.rows) and len(r.owner) == r.where.sum()
        again = log_probs(decision_logits(model, r), ASKS[ask].get('temperature', 1.0), r.kept)
        again = log_probs_of(r.actions, again, r.point)                         # (M, 1)
        for i, w in enumerate(walks):
            assert torch.equal(r.rows[i], w.row)
            assert r.turn[i].tolist() == [w.turn.get(t, -1) for t in range(6)]
        for m, (i, t) in enumerate(decisions_of(r)):
            assert r.owner[m] == i and r.actions[m, 0] == walks[i].row[t]
            assert r.logp_old[m].item() == pytest.approx(walks[i].logp[t], abs=1e-12)
            assert again[m].item() == pytest.approx(walks[i].logp[t], abs=1e-12)


@pytest.mark.parametrize('order', ORDERS)
@pytest.mark.parametrize('n', [2, 3])
def test_draws_in_passes_have_the_enumerated_shares(n, order):
    model = tiny(vocab=3, T=4, layers=1)
    with torch.no_grad():
        model.head.weight *= 0.2                        # every completion is drawn some times
    tokens, mask, key = row_to_fill()
    rows, logp, _, _ = every_outcome(model, tokens, mask, key, n, order)
    draws = 20000
    u = torch.rand(1, 4, draws, generator=torch.Generator().manual_seed(29), dtype=torch.float64)
    prompts = Prompts(tokens[None], mask[None], u, -1, key[None])
    found = complete(model, prompts, n_fill_steps=n, fill_order=order).rows
    place = 3 ** torch.arange(4)
    number = {value: x for x, value in enumerate((rows * place).sum(1).tolist())}
    counts = torch.zeros(27)
    for value, count in zip(*torch.unique((found * place).sum(1), return_counts=True)):
        counts[number[value.item()]] = count
    expected = draws * logp.exp()
    assert expected.min() > 10
    chi2 = ((counts - expected) ** 2 / expected).sum().item()
    assert chi2 < 54.1          # 26 degrees of freedom: one in a thousand is higher


def test_as_many_passes_as_blanks_from_left_to_right_is_the_chain_rule():
    model = tiny()
    prompts = prompts_in_order(B=1, k=5)
    prompts.mask[0] = torch.tensor([True, False, True, True, False, True])
    r = complete(model, prompts, n_fill_steps=4, fill_order='left')
    expected = torch.zeros(5, dtype=torch.float64)
    for j, row in enumerate(r.rows):
        for t in (0, 2, 3, 5):                          # log p(x_t | x_<t, what is given)
            hidden = prompts.mask[0] & (torch.arange(6) >= t)
            z = model(row.masked_fill(hidden, model.mask_id)[None])[0, t]
            expected[j] += z.detach().log_softmax(-1)[row[t]]
    close(log_prob_of_rows(r, r.logp_old), expected, atol=1e-12, rtol=0)
    assert len(set(map(tuple, r.rows.tolist()))) > 2 and len(r.passes) == 4


@pytest.mark.parametrize('order', ORDERS)
@pytest.mark.parametrize('greedy', [False, True])
def test_one_pass_through_the_general_code_is_the_shared_pass(greedy, order):
    model = tiny()
    prompts = prompts_in_order()
    how = {'temperature': 0.9, 'top_k': 4, 'top_p': 0.8}
    many = fill_in_passes(model, prompts, 1, order, False, greedy, **how)
    one = fill(model, prompts, False, greedy, **how)
    assert torch.equal(many.rows, one.rows)
    assert len(many.passes) == 1 and len(many.passes[0][0]) == 5        # a state per prompt
    k = one.k
    number = {tuple(place): m for m, place in enumerate(prompts.mask.nonzero().tolist())}
    for m, (i, t) in enumerate(decisions_of(many)):
        shared = number[i // k, t]
        close(many.logp_old[m, 0], one.logp_old[shared, i % k], atol=1e-12, rtol=0)
        assert torch.equal(many.kept[many.point[m]], one.kept[shared])


def test_one_fill_step_is_the_path_without_passes_bit_for_bit(monkeypatch):
    def broken(*args, **how):
        raise AssertionError("one pass needs no passes")

    monkeypatch.setattr(model_script, 'fill_in_passes', broken)
    model = tiny(dtype=torch.float32)
    prompts = prompts_in_order()
    for order in ORDERS:
        r = complete(model, prompts, n_fill_steps=1, fill_order=order, keep_graph=True)
        expected = fill(model, prompts, True, False, **PLAIN)
        for name in ('rows', 'where', 'owner', 'actions', 'logp_old', 'logits'):
            assert torch.equal(getattr(r, name), getattr(expected, name)), name
        assert r.logp_old.shape == (prompts.mask.sum(), 4)
        assert r.passes is None and r.turn is None and r.point is None and r.kept is None


# ---- several passes: the gradient is that of the expected reward ---------------------------------


def all_groups(model, tokens, mask, keys, n, order, k=2):
    """Prompts, one for each random order and each group of k completions that can be drawn, with
    uniforms that draw it; the group, numbers (G, k) of completions; and the chance of each (G,)."""
    chosen = []
    chances = []
    orders = []
    for key in keys:
        rows, logp, uniforms, _ = every_outcome(model, tokens, mask, key, n, order)
        groups = torch.tensor(list(itertools.product(range(len(rows)), repeat=k)))      # (G, k)
        chosen.append(uniforms[groups].transpose(1, 2))                                 # (G, T, k)
        chances.append(logp[groups].sum(1).exp() / len(keys))
        orders.append(key.expand(len(groups), -1))
    groups = groups.repeat(len(keys), 1)
    G = len(groups)
    prompts = Prompts(tokens.expand(G, -1), mask.expand(G, -1), torch.cat(chosen), -1,
                      torch.cat(orders))
    return prompts, groups, torch.cat(chances)


def gradient_over_groups(model, r, reward, chance, adv_norm):
    """Expectation of the loss's gradient, a mean over completions, from a Rollout of all groups,
    with graph; their reward (G, k) and chance (G,)."""
    advantages = group_advantages(reward, adv_norm) * chance[:, None]
    loss, _ = grpo_loss(r.logits, r.actions, advantages_of(r, advantages), r.owner, point=r.point)
    return gradients(loss / r.k, model)


def orders_of(T):
    """Keys (T,) of all orders of T positions."""
    return [torch.tensor(key, dtype=torch.float64) for key in itertools.permutations(range(T))]


def expected_reward(model, tokens, mask, keys, n, order, table):
    """The mean of a table (X,) of rewards over all orders and completions."""
    total = 0.0
    for key in keys:
        _, logp, _, _ = every_outcome(model, tokens, mask, key, n, order)
        total += (logp.exp() * table).sum().item() / len(keys)
    return total


def slopes(model, f, gradient, n=8, h=1e-4):
    """Central finite differences (n,) of f(model), a number, along random directions in the space
    of its weights, and what a gradient, one vector, says that they are. A gradient that is wrong
    anywhere is wrong along any of them, but for a set of directions of measure 0."""
    rng = torch.Generator().manual_seed(38)
    start = weights(model)
    other = copy.deepcopy(model)
    directions = F.normalize(torch.randn(n, len(start), generator=rng, dtype=torch.float64))
    found = []
    for direction in directions:
        values = []
        for way in (h, -h):
            nn.utils.vector_to_parameters(start + way * direction, other.parameters())
            values.append(f(other))
        found.append((values[0] - values[1]) / (2 * h))
    return torch.tensor(found, dtype=torch.float64), directions @ gradient


@pytest.mark.parametrize('policy', ['table', 'network'])
@pytest.mark.parametrize('n', [2, 3])
@pytest.mark.parametrize('order', ORDERS)
def test_the_expected_gradient_in_passes_is_that_of_the_expected_reward(order, n, policy):
    tokens, mask, key = row_to_fill(V=2)
    model = StateTable(T=4) if policy == 'table' else tiny(vocab=2, T=4, layers=1)
    keys = [key]
    if order == 'random':                               # all six; one of the tokens is given
        keys = [key for key in orders_of(4) if key[1] == 3]
    reward = torch.randn(8, generator=torch.Generator().manual_seed(30), dtype=torch.float64)

    prompts, groups, chance = all_groups(model, tokens, mask, keys, n, order)
    assert len(groups) == 64 * len(keys) and chance.sum().item() == pytest.approx(1.0, abs=1e-9)
    found = []
    for adv_norm in ('none', 'rloo'):
        r = complete(model, prompts, n_fill_steps=n, fill_order=order, keep_graph=True)
        assert torch.equal(r.rows[:, mask], every_completion(3, 2)[groups.flatten()])
        found.append(-gradient_over_groups(model, r, reward[groups], chance, adv_norm))
    with_own_mean, with_mean_of_others = found

    def reward_of(other):
        return expected_reward(other, tokens, mask, keys, n, order, reward)

    exact, said = slopes(model, reward_of, with_mean_of_others)
    assert exact.norm() > 1e-2
    close(said, exact, atol=1e-8, rtol=1e-5)
    close(with_own_mean, with_mean_of_others / 2)       # (k - 1) / k: each is part of its mean


def test_of_samples_of_which_the_surest_is_kept_all_must_be_scored_not_just_the_kept_one():
    """LLaDA's "low-confidence remasking" samples every open blank in each pass, keeps the sample
    whose own probability is highest, and blanks the others again. Here all that can happen is
    enumerated: 3 blanks, 3 ids, one blank kept in each pass, a table of logits per state.

    It is tempting to score the tokens that were kept, for they make up the completion. But which
    one is kept depends on what the others were: the action of a pass is all that it sampled, and
    what is kept is a function of the action. Scored that way, thrown-away samples included, the
    policy gradient is exact. Scored by the kept tokens alone it points elsewhere. (Our own
    'confident' order looks at distributions, not at samples, and has no such problem.)"""
    M, V = 3, 3
    rng = torch.Generator().manual_seed(0)
    table = {}
    for state in itertools.product(range(V + 1), repeat=M):
        if V in state:
            z = 0.8 * torch.randn(M, V, generator=rng, dtype=torch.float64)
            table[state] = z.requires_grad_()
    reward = {}
    for row in itertools.product(range(V), repeat=M):
        luck = torch.rand((), generator=rng, dtype=torch.float64)
        reward[row] = luck + 1.5 * (sum(row) % V == 0)
    logp_at = {state: z.log_softmax(-1) for state, z in table.items()}

    # From the end backwards: what a state is worth, and two scores whose gradients are compared.
    worth = dict(reward)
    kept_only = dict.fromkeys(reward, 0.0)
    all_sampled = dict.fromkeys(reward, 0.0)
    for state in sorted(table, key=lambda state: state.count(V)):
        logp = logp_at[state]
        blank = [i for i in range(M) if state[i] == V]
        for values in (worth, kept_only, all_sampled):
            values[state] = 0.0
        for ids in itertools.product(range(V), repeat=len(blank)):
            sampled = {i: logp[i, a] for i, a in zip(blank, ids)}
            kept = max(blank, key=lambda i: sampled[i].item())
            after = list(state)
            after[kept] = ids[blank.index(kept)]
            after = tuple(after)
            p = sum(sampled.values()).exp()
            worth[state] = worth[state] + p * worth[after]
            # Sums over trajectories: p(trajectory) R times the score of each of their passes.
            value = (p * worth[after]).detach()
            score = value * sampled[kept]
            kept_only[state] = kept_only[state] + score + p.detach() * kept_only[after]
            score = value * sum(sampled.values())
            all_sampled[state] = all_sampled[state] + score + p.detach() * all_sampled[after]

    def slope_of(total):
        found = torch.autograd.grad(total, list(table.values()), allow_unused=True,
                                    retain_graph=True)
        return torch.cat([torch.zeros(M * V) if g is None else g.flatten() for g in found])

    start = (V,) * M
    exact = slope_of(worth[start])
    close(slope_of(all_sampled[start]), exact, atol=1e-12, rtol=1e-9)
    wrong = slope_of(kept_only[start])
    assert cosine(wrong, exact) == pytest.approx(0.80, abs=0.01)
    assert (wrong - exact).norm() > 0.5 * exact.norm()


# ---- several passes: only another way to compute the same ----------------------------------------


def loss_in_passes(model, prompts, n, order, **settings):
    """A Rollout and its loss, with advantages that depend on nothing."""
    r = complete(model, prompts, n_fill_steps=n, fill_order=order)
    rng = torch.Generator().manual_seed(33)
    reward = torch.rand(len(prompts), r.k, generator=rng, dtype=torch.float64)
    logits = decision_logits(model, r)
    logp_ref = logits.log_softmax(-1).roll(1, -1).detach()
    loss, _ = grpo_loss(logits, r.actions, advantages_of(r, group_advantages(reward)), r.owner,
                        logp_ref=logp_ref, kept=r.kept, point=r.point, kl_beta=0.3, **settings)
    return r, loss


@pytest.mark.parametrize('order', ORDERS)
def test_sharing_equal_states_changes_nothing(order, monkeypatch):
    model = tiny()
    with torch.no_grad():
        model.head.weight *= 3                          # surer, so that more states are equal
    prompts = prompts_in_order(k=6)
    r, loss = loss_in_passes(model, prompts, 3, order, entropy_coef=0.1)
    shared = gradients(loss, model)

    def alone(rows, dim, return_inverse):
        return rows, torch.arange(len(rows))

    monkeypatch.setattr(torch, 'unique', alone)
    own, own_loss = loss_in_passes(model, prompts, 3, order, entropy_coef=0.1)
    count = [sum(len(states) for states, _, _ in passes) for passes in (r.passes, own.passes)]
    assert count[0] < 0.8 * count[1]
    assert len(decision_logits(model, own)) == len(own.owner) == len(r.owner)
    for name in ('rows', 'turn', 'owner', 'actions'):
        assert torch.equal(getattr(r, name), getattr(own, name)), name
    close(r.logp_old, own.logp_old, atol=1e-12, rtol=0)
    close(loss, own_loss, atol=1e-10, rtol=0)
    close(shared, gradients(own_loss, model), atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize('order', ORDERS)
def test_the_logits_of_equal_states_are_there_once(order):
    model = tiny()
    rows_of_logits = []
    for sure in (0.1, 1, 100):
        with torch.no_grad():
            model.head.weight.copy_(tiny().head.weight * sure)
        prompts = prompts_in_order(k=8)
        r = complete(model, prompts, n_fill_steps=3, fill_order=order, keep_graph=True)
        distributions = set()
        for i, w in enumerate(slow_rollout(model, prompts, 3, order)):
            for t, state in w.state.items():
                distributions.add((i // 8, t, *state.tolist()))
        M = len(r.owner)
        U = len(distributions)
        assert M == 8 * prompts.mask.sum() and r.point.shape == (M,)
        assert r.logits.shape == decision_logits(model, r).shape == (U, 5)
        assert U < M and r.point.unique().tolist() == list(range(U))
        rows_of_logits.append(U)
    # The surer the policy the fewer there are, down to one per blank.
    assert rows_of_logits[0] > rows_of_logits[1] > rows_of_logits[2] < 1.3 * M / 8


KNOBS = {'mode': 'fill', 'dtype': 'float64', 'block_size': 6, 'rewards': {'letters': 1.0},
         'grad_clip': 0.0, 'kl_beta': 0.2, 'n_fill_steps': 3, 'group_size': 4}


def learned(policy, prompts, advantages):
    """The gradient of a step whose policy is then left as it is, its rows, and its statistics."""
    rollouts = train_grpo.act(policy, prompts)
    stats = train_grpo.learn(policy, tiny(seed=3), [], rollouts, advantages, lr=1.0)
    gradient = nn.utils.parameters_to_vector(p.grad for p in policy.parameters())
    return gradient, torch.cat([r.rows for r in rollouts]), stats


SPREAD = pytest.mark.parametrize('order, loss_norm', [
    ('random', 'token'), ('random', 'sequence'), ('confident', 'token'), ('left', 'constant')])


@SPREAD
def test_micro_steps_in_passes_are_only_another_way_to_compute_a_step(
        order, loss_norm, set_knobs):
    prompts = prompts_in_order(B=4, seed=34)
    advantages = group_advantages(torch.rand(4, 4, dtype=torch.float64))
    found = []
    for micro_steps in (1, 2, 4):
        set_knobs(**KNOBS, fill_order=order, loss_norm=loss_norm, entropy_coef=0.1,
                  gradient_accumulation_steps=micro_steps, batch_size=4 // micro_steps)
        gradient, rows, stats = learned(tiny(), prompts, advantages)
        found.append((gradient, rows, stats.read(torch.device('cpu'))))
    assert found[0][0].norm() > 1e-2 and found[0][2]['mean_kl'] > 1e-2
    for gradient, rows, numbers in found[1:]:
        assert torch.equal(rows, found[0][1])
        close(gradient, found[0][0], atol=1e-10, rtol=1e-8)
        del numbers['grad_norm'], numbers['ratio_max']
        for key, value in numbers.items():
            assert value == pytest.approx(found[0][2][key], rel=1e-5, abs=1e-7), key


@SPREAD
def test_two_ranks_in_passes_learn_together_what_one_learns(
        order, loss_norm, set_knobs, monkeypatch):
    prompts = prompts_in_order(B=4, seed=34)
    advantages = group_advantages(torch.rand(4, 4, dtype=torch.float64))
    set_knobs(**KNOBS, fill_order=order, loss_norm=loss_norm, batch_size=1,
              gradient_accumulation_steps=4)
    expected, rows, _ = learned(tiny(), prompts, advantages)
    counts = {'token': int(4 * prompts.mask.sum()), 'sequence': 16, 'constant': 16 * 6}
    whole = torch.tensor(counts[loss_norm])

    # Each rank with its own micro-steps, and the divisor that both would have agreed on.
    monkeypatch.setattr(train_grpo, 'n_ranks', lambda: 2)
    monkeypatch.setattr(train_grpo, 'all_reduce_sum', lambda own: whole)
    monkeypatch.setattr(train_grpo, 'all_reduce_gradients', lambda model: None)
    total = 0
    for rank in (0, 1):
        monkeypatch.setattr(train_grpo, 'rank', lambda rank=rank: rank)
        gradient, own_rows, _ = learned(tiny(), prompts, advantages)
        mine = [rows.view(4, 4, 6)[i] for i in (rank, rank + 2)]
        assert torch.equal(own_rows, torch.cat(mine))
        total = total + gradient
    close(total, expected, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize('order', ORDERS)
def test_the_order_does_not_depend_on_what_is_sampled(order):
    model = tiny()
    prompts = prompts_in_order(k=4)
    other = prompts_in_order(k=4)
    other.uniforms = torch.rand(5, 6, 7, dtype=torch.float64)
    one = complete(model, prompts, n_fill_steps=3, fill_order=order)
    two = complete(model, other, n_fill_steps=3, fill_order=order)
    few = complete(model, prompts.for_k(2), n_fill_steps=3, fill_order=order)
    assert torch.equal(few.turn, one.turn.view(5, 4, 6)[:, :2].flatten(0, 1))
    assert not torch.equal(one.rows[::4], two.rows[::7])
    if order != 'confident':                            # all completions take the same turns
        assert torch.equal(one.turn.view(5, 4, 6), one.turn[::4, None].expand(5, 4, 6))
        assert torch.equal(one.turn[::4], two.turn[::7])
    positions = {}                                      # and any order is the state's, not theirs
    for r in (one, two):
        for i in range(len(r.rows)):
            for step in range(3):
                later = r.turn[i] >= step
                state = tuple(r.rows[i].masked_fill(later, model.mask_id).tolist())
                filled = (r.turn[i] == step).tolist()
                assert positions.setdefault((i // r.k, step, state), filled) == filled
    assert len(positions) < 2 * 3 * (len(one.rows) + len(two.rows))


class RandomRows(ToyData):
    """A corpus of random ids."""

    def batch(self, split, n, block_size, rng):
        return torch.from_numpy(rng.integers(1, 8, size=(n, block_size))), None


def test_the_random_order_is_a_matter_of_seed_and_step_and_not_of_the_number_of_samples(
        set_knobs):
    set_knobs(**KNOBS, seed=5, blank_kind='random')
    data = RandomRows()
    prompts = train_grpo.get_prompts(data, 'train', 600, step=2)
    for k in (2, 5):
        set_knobs(group_size=k)
        other = train_grpo.get_prompts(data, 'train', 600, step=2)
        assert other.uniforms.shape == (600, 6, k)
        for name in ('tokens', 'mask', 'order'):
            assert torch.equal(getattr(other, name), getattr(prompts, name)), name
    assert prompts.order.shape == (600, 6)
    same = torch.isin(prompts.order, prompts.uniforms).sum()
    assert same < 20                # a stream of its own; float32 has 2^24 numbers in [0, 1)
    assert not torch.equal(train_grpo.get_prompts(data, 'train', 600, step=3).order, prompts.order)
    set_knobs(seed=6)
    assert not torch.equal(train_grpo.get_prompts(data, 'train', 600, step=2).order, prompts.order)

    # Every order of three positions is as frequent as any other.
    counts = [0] * 6
    for key in prompts.order[:, 1:4].tolist():
        places = sorted(range(3), key=lambda t: key[t])
        counts[list(itertools.permutations(range(3))).index(tuple(places))] += 1
    assert sum((count - 100) ** 2 / 100 for count in counts) < 20.5     # 5 degrees: 1 in 1000

    # A slice of the prompts, as a micro-step or a rank takes it, keeps its orders.
    model = tiny(vocab=8)
    whole = complete(model, prompts[:8], n_fill_steps=3)
    part = complete(model, prompts[:8].split(3)[1], n_fill_steps=3)
    assert torch.equal(part.turn, whole.turn[3 * prompts.uniforms.size(2):][:len(part.turn)])
    assert torch.equal(part.rows, whole.rows[3 * prompts.uniforms.size(2):][:len(part.turn)])


@pytest.mark.parametrize('order', ORDERS)
def test_more_passes_than_blanks_skip_the_empty_ones(order):
    model = tiny()
    prompts = prompts_in_order(B=6, most=3)             # of 10 passes 0; 0, 5; 0, 3, 6 have work
    expected = {}
    for i, w in enumerate(slow_rollout(model, prompts, 10, order)):
        for t, state in w.state.items():
            expected.setdefault(w.turn[t], set()).add((i // 4, *state.tolist()))
    assert sorted(expected) == [0, 3, 5, 6]
    shapes = [(len(expected[step]), 6) for step in sorted(expected)]

    calls = count_calls(model)
    r = complete(model, prompts, n_fill_steps=10, fill_order=order)
    if order == 'confident':                            # asked where it is surest, then filled
        assert len(calls) == 8 and calls[1::2] == shapes
    else:
        assert calls == shapes
    assert calls[-1] < (24, 6)                          # only rows with a blank to fill
    calls.clear()
    decision_logits(model, r)
    assert calls == shapes
    assert r.turn.unique().tolist() == [-1, 0, 3, 5, 6]


def test_after_an_update_the_ratio_is_of_the_states_and_positions_that_were_met():
    old = tiny()
    new = tiny(seed=4)
    prompts = prompts_in_order()
    for order in ORDERS:
        r = complete(old, prompts, n_fill_steps=3, fill_order=order)
        walks = slow_rollout(old, prompts, 3, order)
        logp = log_probs_of(r.actions, log_probs(decision_logits(new, r)), r.point)
        for m, (i, t) in enumerate(decisions_of(r)):
            z = new(walks[i].state[t][None])[0, t].log_softmax(-1)
            assert logp[m].item() == pytest.approx(z[r.rows[i, t]].item(), abs=1e-12)
        now = complete(new, prompts, n_fill_steps=3, fill_order=order)
        assert torch.equal(now.turn, r.turn) == (order != 'confident')  # it would go elsewhere now


@pytest.mark.parametrize('order', ORDERS)
@pytest.mark.parametrize('top_k, top_p', [(0, 1.0), (3, 1.0), (0, 0.6), (3, 0.8)])
def test_in_passes_the_ratio_is_exactly_one_before_any_update(top_k, top_p, order):
    model = tiny(dtype=torch.float32)
    with torch.no_grad():
        model.head.weight *= 0.3                        # several ids are likely
    prompts = prompts_in_order(B=7, seed=35)
    r = complete(model, prompts, temperature=0.8, top_k=top_k, top_p=top_p, n_fill_steps=3,
                 fill_order=order)
    logits = decision_logits(model, r)
    again = log_probs_of(r.actions, log_probs(logits, 0.8, r.kept), r.point)
    assert torch.equal(again, r.logp_old)
    advantages = advantages_of(r, group_advantages(torch.rand(7, 4)))
    for ratio_level in ('token', 'sequence'):
        _, sums = grpo_loss(logits, r.actions, advantages, r.owner, r.logp_old, kept=r.kept,
                            point=r.point, temperature=0.8, ratio_level=ratio_level)
        assert sums['ratio_max'].item() == 1.0 and sums['per_decision']['clip_frac'] == 0
    assert (r.kept is None) == (top_k == 0 and top_p == 1)
    if r.kept is not None:                              # the sets are those of the states
        assert r.kept.shape == logits.shape
        for kept, z in zip(r.kept.tolist(), logits.tolist()):
            p = without_unlikely((torch.tensor(z) / 0.8).softmax(-1).tolist(), top_k, top_p)
            assert kept == [x > 0 for x in p]
        moved, sums = grpo_loss(-logits, r.actions, advantages, r.owner, r.logp_old, kept=r.kept,
                                point=r.point, temperature=0.8)
        assert moved.isfinite() and sums['ratio_max'].isfinite() and sums['ratio_max'] > 1


def shared_choices(filtered):
    """Logits (U, V), and what grpo_loss asks about M = 9 choices from them. Distribution 2 was met
    by nobody; the decisions of a completion do not lie together, as in passes."""
    rng = torch.Generator().manual_seed(36)
    point = torch.tensor([3, 0, 0, 4, 1, 1, 1, 0, 3])
    owner = torch.tensor([2, 0, 1, 2, 1, 0, 2, 2, 0])           # of 3, 2 and 4 decisions
    logits, other, ref = torch.randn(3, 5, 4, generator=rng, dtype=torch.float64)
    kept = None
    shares = torch.ones(5, 4)
    if filtered:
        kept = torch.rand(5, 4, generator=rng) < 0.5
        kept[:, 1] = True
        shares = kept.float()
    actions = torch.multinomial(shares[point], 1, generator=rng)                        # (M, 1)
    before = log_probs(logits + 0.4 * other, 1.0, kept)                                 # (U, V)
    advantages = torch.randn(3, 1, generator=rng, dtype=torch.float64)[owner]
    return logits, {
        'actions': actions, 'advantages': advantages, 'owner': owner, 'point': point, 'kept': kept,
        'logp_old': before[point].gather(1, actions), 'logp_ref': ref.log_softmax(-1)}


@pytest.mark.parametrize('filtered', [False, True])
@pytest.mark.parametrize('kl_type', ['exact', 'k1', 'k2', 'k3', 'k3_ratio'])
def test_decisions_that_point_to_distributions_are_decisions_with_one_each(kl_type, filtered):
    logits, choices = shared_choices(filtered)
    point = choices['point']
    each = choices | {'point': None, 'logp_ref': choices['logp_ref'][point]}
    if filtered:
        each['kept'] = choices['kept'][point]
    for ratio_level, loss_norm, old in itertools.product(
            ('token', 'sequence'), ('token', 'sequence', 'constant'), (True, False)):
        settings = {'ratio_level': ratio_level, 'loss_norm': loss_norm, 'kl_type': kl_type,
                    'kl_beta': 0.3, 'entropy_coef': 0.1, 'clip_low': 0.1, 'clip_high': 0.15,
                    'temperature': 1.3}
        if not old:
            settings['logp_old'] = None
        found = []
        for ask, expand in ((choices, False), (each, True)):
            z = logits.clone().requires_grad_()
            loss, sums = grpo_loss(z[point] if expand else z, **ask | settings)
            sums = sums['as_the_loss'] | sums['per_decision'] | {'ratio_max': sums['ratio_max']}
            found.append((loss, torch.autograd.grad(loss, z)[0], sums))
        (loss, gradient, sums), (loss_each, gradient_each, sums_each) = found
        close(loss, loss_each)
        close(gradient, gradient_each, atol=1e-12, rtol=1e-9)
        assert (gradient[2] == 0).all() and (gradient[[0, 1, 3, 4]] != 0).any(1).all()
        assert set(sums) == set(sums_each) and len(sums) == 8
        for name, value in sums.items():
            close(value, sums_each[name], msg=name)
        assert sums['mean_kl'] > 0.1 and (not old or sums['clip_frac'] > 0)


# ---- several passes: the KL ----------------------------------------------------------------------


@pytest.mark.parametrize('order', ORDERS)
def test_the_kl_in_passes_is_that_of_each_blank_given_the_state_it_was_filled_in(order, set_knobs):
    policy = tiny()
    reference = tiny(seed=3)
    prompts = prompts_in_order()
    temperature = 0.7
    r = complete(policy, prompts, temperature=temperature, top_k=4, n_fill_steps=3,
                 fill_order=order)
    walks = slow_rollout(policy, prompts, 3, order, temperature=temperature, top_k=4)
    expected = 0.0
    k1 = torch.zeros(20, dtype=torch.float64)
    for i, w in enumerate(walks):
        for t, state in w.state.items():                # of unfiltered distributions
            z = policy(state[None])[0, t].detach() / temperature
            z_ref = reference(state[None])[0, t].detach() / temperature
            expected += kl_divergence(z, z_ref).item()
            k1[i] += z.log_softmax(-1)[w.row[t]] - z_ref.log_softmax(-1)[w.row[t]]
    set_knobs(group_size=4, temperature=temperature, dtype='float64')
    close(train_grpo.completion_kl(policy, reference, r), k1.view(5, 4), atol=1e-10, rtol=0)
    logp_ref = log_probs(decision_logits(reference, r), temperature).detach()
    for loss_norm in ('token', 'constant'):
        loss, sums = grpo_loss(decision_logits(policy, r), r.actions, torch.zeros_like(r.logp_old),
                               r.owner, logp_ref=logp_ref, kept=r.kept, point=r.point,
                               temperature=temperature, kl_beta=0.5, loss_norm=loss_norm)
        close(sums['per_decision']['mean_kl'].item(), expected, atol=1e-9, rtol=0)
        close(loss.item(), 0.5 * expected, atol=1e-9, rtol=0)


def trajectory_kl(policy, reference, tokens, mask, key, n, order):
    """KL of what can become of a row, in nats: both networks at the policy's states and turns."""
    rows, logp, _, walks = every_outcome(policy, tokens, mask, key, n, order)
    total = 0.0
    for row, own, w in zip(rows, logp.tolist(), walks):
        other = 0.0
        for t, state in w.state.items():
            other += reference(state[None])[0, t].log_softmax(-1)[row[t]].item()
        total += math.exp(own) * (own - other)
    return total


@pytest.mark.parametrize('n, order', [(1, 'left'), (2, 'random'), (3, 'left'), (2, 'confident')])
def test_of_the_kls_gradient_the_closed_form_lacks_the_states_share_and_k1_in_the_reward_has_it(
        n, order, set_knobs):
    """The mean of the closed form over the policy's states is the KL of whole trajectories. Its
    gradient has two parts: the distributions change, and so does how often each state is met. The
    closed form knows the first. In one pass there is one state, and nothing is missing."""
    set_knobs(group_size=2, dtype='float64')
    policy = StateTable()
    reference = StateTable(seed=1).requires_grad_(False)
    tokens = torch.zeros(3, dtype=torch.long)
    mask = torch.ones(3, dtype=torch.bool)
    key = torch.tensor([0.7, 0.1, 0.4], dtype=torch.float64)
    how = {'n_fill_steps': n, 'fill_order': order, 'keep_graph': True}

    # The closed form, of every completion, each as often as it is drawn.
    rows, logp, uniforms, _ = every_outcome(policy, tokens, mask, key, n, order)
    closed = torch.zeros_like(weights(policy))
    share_of_states = torch.zeros_like(closed)
    mean = 0.0
    for p, u in zip(logp.exp().tolist(), uniforms):
        prompts = Prompts(tokens[None], mask[None], u[None, :, None], -1, key[None])
        parts = []
        for advantage, kl_beta in ((0.0, 1.0), (1.0, 0.0)):
            r = complete(policy, prompts, **how)
            logp_ref = log_probs(decision_logits(reference, r))
            loss, sums = grpo_loss(r.logits, r.actions, torch.full_like(r.logp_old, advantage),
                                   r.owner, logp_ref=logp_ref, point=r.point, kl_beta=kl_beta)
            parts.append(gradients(loss, policy))
        kl = sums['per_decision']['mean_kl'].item()
        mean += p * kl
        closed += p * parts[0]
        share_of_states -= p * kl * parts[1]            # parts[1]: -d log p(completion)

    def kl_of(other):
        return trajectory_kl(other, reference, tokens, mask, key, n, order)

    assert mean == pytest.approx(kl_of(policy))
    whole = closed + share_of_states
    exact, said = slopes(policy, kl_of, whole)
    close(said, exact, atol=1e-8, rtol=1e-5)
    if n == 1:
        assert share_of_states.norm() < 1e-9
    else:
        assert share_of_states.norm() > 0.1 * whole.norm()

    # Minus k1 as the reward, over all groups of two, with the baseline of the others' mean.
    prompts, groups, chance = all_groups(policy, tokens, mask, [key], n, order)
    r = complete(policy, prompts, **how)
    k1 = train_grpo.completion_kl(policy, reference, r)                         # (G, 2)
    assert k1.shape == groups.shape and not k1.requires_grad
    advantages = group_advantages(-k1, 'rloo') * chance[:, None]
    loss, _ = grpo_loss(r.logits, r.actions, advantages_of(r, advantages), r.owner, point=r.point)
    # A mean over completions: in one pass that of the k choices at each blank is taken inside.
    found = gradients(loss * len(groups) / loss_divisor(r, 'constant', 1), policy)
    close(found, whole, atol=1e-9, rtol=1e-6)


# ---- several passes: evaluation, and whole runs --------------------------------------------------


def sum_of_letters(prompt, completion):
    """verify(): 0, a half or 1, which is what is true."""
    return sum(ord(letter) for letter in completion if letter in 'abcde') % 3 / 2


@pytest.mark.parametrize('order', ORDERS)
def test_an_evaluation_in_passes_is_the_mean_of_what_slow_loops_find(order, set_knobs):
    set_knobs(**KNOBS | {'group_size': 3, 'rewards': {'verify': 1.0}}, batch_size=5,
              temperature=0.8, fill_order=order)
    chars = '\n-=abcde'
    scorer = Scorer(ToyData(chars, sum_of_letters))
    policy = tiny(vocab=8)
    reference = tiny(vocab=8, seed=3)
    prompts = prompts_in_order(B=13, V=8, k=6, seed=37)
    found = train_grpo.evaluate(policy, prompts, scorer, reference)

    def verified(w):
        return sum_of_letters('', ''.join(chars[a] for a in w.row.tolist()))

    walks = slow_rollout(policy, prompts.for_k(4), 3, order, temperature=0.8)
    verify = [verified(w) for w in walks]
    assert found['verify'] == pytest.approx(statistics.mean(verify))
    groups = [verify[i:i + 4] for i in range(0, len(verify), 4)]
    share = statistics.mean(1.0 in group for group in groups)
    assert found['pass@4'] == pytest.approx(share)
    assert share < 1 and share < statistics.mean(max(group) > 0 for group in groups)
    best = slow_rollout(policy, prompts, 3, order, greedy=True, temperature=0.8)
    assert found['verify_argmax'] == pytest.approx(statistics.mean(map(verified, best)))
    assert 'pass@4_argmax' not in found

    kl = []
    entropy = []
    for w in walks:
        for t, state in w.state.items():
            z = policy(state[None])[0, t] / 0.8
            kl.append(kl_divergence(z, reference(state[None])[0, t] / 0.8).item())
            entropy.append(torch.distributions.Categorical(logits=z).entropy().item())
    assert found['kl'] == pytest.approx(statistics.mean(kl), rel=1e-6)
    assert found['entropy'] == pytest.approx(statistics.mean(entropy), rel=1e-6)


RUN_IN_PASSES = """# seconds
def digits(prompts, completions):
    return [sum(map(int, filter(str.isdecimal, text))) / 50 for text in completions]
dataset = 'toy'
rewards = {'digits': 1.0}
generator_checkpoint = 'generator.pt'
n_fill_steps = 3
fill_order = 'confident'
inner_updates = 2
mini_batches = 2
gradient_accumulation_steps = 2
batch_size = 2
group_size = 4
block_size = 8
blank_low = 0.4
max_iters = 4
lr_decay_iters = 4
warmup_iters = 0
eval_interval = 2
eval_prompts = 4
sample_interval = 0
device = 'cpu'
dtype = 'float32'
compile = False
"""


def bits_of(value):
    """Anything out of a checkpoint, in a form that is equal only if every bit is."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits_of(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits_of(v) for v in value]
    return repr(value)


def what_a_run_left(folder):
    """Bits of its checkpoint and lines of its log, without names of folders and without times."""
    found = torch.load(folder / 'ckpt.pt', weights_only=True)
    del found['config'], found['checksum']
    lines = []
    for text in (folder / 'log.jsonl').read_text().splitlines():
        line = json.loads(text)
        lines.append({key: value for key, value in line.items()
                      if not key.startswith('ms_') and key != 'completions_per_s'})
    return bits_of(found), lines


def test_a_run_in_passes_with_several_updates_resumes_bit_for_bit(clone, tmp_path):
    # a copy of the repository, with a corpus and a generator of its own
    for path in pathlib.Path(HOME).glob('*.py'):
        if not path.name.startswith('test'):
            shutil.copy(path, tmp_path)
    corpus = tmp_path / 'data/toy'
    corpus.mkdir(parents=True)
    shutil.copy(f'{HOME}/data/dataset.py', tmp_path / 'data')
    (corpus / 'prepare.py').write_text('')
    rows = [f'{a}+{b}={a + b}' for a in range(10, 40) for b in range(10, 40)]
    write_corpus(str(corpus), 'rows', rows, rows[::7])
    meta = (corpus / 'meta.json').read_bytes()
    fingerprint = hashlib.sha256(meta).hexdigest()[:16]
    vocabulary = {'kind': 'char', 'chars': json.loads(meta)['chars']}
    model = tiny(vocab=13, T=8, layers=1, dtype=torch.float32)
    save_checkpoint(tmp_path / 'generator.pt', kind='generator', model_args=model.args,
                    model=model.state_dict(), config={'dataset': 'toy'}, corpus=fingerprint,
                    vocabulary=vocabulary, unit='rows')
    (tmp_path / 'run.py').write_text(RUN_IN_PASSES)

    runs = [['straight'], ['resumed', '--max_iters=2'], ['resumed', '--resume=True']]
    for out, *flags in runs:
        clone.run('train_grpo.py', 'run.py', f'--out_dir={out}', *flags, folder=tmp_path).good()
    weights_of_run, lines = what_a_run_left(tmp_path / 'straight')
    assert (weights_of_run, lines) == what_a_run_left(tmp_path / 'resumed')
    steps = [line for line in lines if 'loss' in line]
    assert len(steps) == 4 and steps[-1]['ratio_max'] > 1 and steps[-1]['mean_kl'] > 0
    assert bits_of(model.state_dict()) != weights_of_run['model']       # something was learned


# ---- causal: left to right, with a cache ---------------------------------------------------------


def prompts_to_continue(T=7, V=4, B=24, seed=21):
    """Prompts of all kinds: suffixes of several lengths, gaps, padding after them."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(V, (B, T), generator=rng)
    mask = torch.rand(B, T, generator=rng) < 0.5
    first = torch.randint(T, (B, 1), generator=rng)
    mask[::2] = (torch.arange(T) >= first)[::2]                 # a completion to the end of the row
    mask[1::4, -1] = True
    mask[:, 2] |= ~mask.any(1)
    padded = (torch.arange(T) >= first + 3) & (torch.arange(B) % 4 == 0)[:, None]
    mask &= ~padded
    tokens = tokens.masked_fill(padded, V + 2)
    uniforms = torch.rand(B, T, 3, generator=rng, dtype=torch.float64)
    return Prompts(tokens, mask, uniforms, eos=V - 1)


@pytest.mark.parametrize('ask', [(1.0, 0, 1.0), (0.7, 2, 1.0), (1.2, 0, 0.7), (1.0, 3, 0.8)])
@torch.no_grad()
def test_sampling_with_a_cache_is_sampling_by_full_recomputation(ask):
    model = tiny(True, 4, 7)
    prompts = prompts_to_continue()
    temperature, top_k, top_p = ask
    for greedy in (False, True):
        r = complete(model, prompts, greedy, temperature, top_k, top_p)
        at = {(n, t): m for m, (n, t) in enumerate(r.where.nonzero().tolist())}
        for n in range(len(r.rows)):
            b, j = divmod(n, r.k)
            u = None if greedy else prompts.uniforms[b, :, j]
            row, where, logp, kept = slow_complete(
                model, prompts.tokens[b], prompts.mask[b], u, *ask, prompts.eos)
            assert r.rows[n].tolist() == row.tolist() and r.where[n].tolist() == where.tolist(), n
            mine = [at[n, t] for t in range(7) if where[t]]
            assert r.owner[mine].tolist() == [n] * len(mine)
            assert r.actions[mine, 0].tolist() == row[where].tolist()
            close(r.logp_old[mine, 0], logp[where], atol=1e-5, rtol=0)
            if r.kept is not None:
                sets = [set(ids.nonzero()[:, 0].tolist()) for ids in r.kept[mine]]
                assert sets == [kept[t] for t in range(7) if where[t]]


@pytest.mark.parametrize('top_p', [1.0, 0.8])
def test_ragged_prompts_get_the_completions_in_a_batch_that_they_get_alone(top_p):
    model = tiny(True, 4, 7, seed=3)
    prompts = prompts_to_continue(seed=22)
    r = complete(model, prompts, top_p=top_p)
    assert len(set(prompts.mask.int().argmax(1).tolist())) > 3
    for b in range(len(prompts)):
        own = complete(model, prompts[b:b + 1], top_p=top_p)
        part = slice(b * 3, b * 3 + 3)
        assert torch.equal(r.rows[part], own.rows) and torch.equal(r.where[part], own.where)
        mine = (r.owner >= part.start) & (r.owner < part.stop)
        close(r.logp_old[mine], own.logp_old)

    # The same for a batch that is completed a few prompts at a time, to save memory.
    shapes = count_calls(model)
    parts = complete(model, prompts, top_p=top_p, prompts_at_a_time=5)
    assert max(n for n, _ in shapes) == 15
    for name in ('rows', 'where', 'owner', 'actions', 'kept'):
        whole, found = getattr(r, name), getattr(parts, name)
        assert found is whole is None or torch.equal(found, whole), name
    close(parts.logp_old, r.logp_old)


def test_a_causal_completion_ends_with_a_chosen_end_of_row_and_then_padding():
    T, eos = 12, 3
    model = tiny(True, 4, T)
    tokens = torch.zeros(40, T).long()
    mask = torch.arange(T).expand(40, T) >= 2
    r = complete(model, Prompts(tokens, mask, torch.rand(40, T, 2), eos))
    ended = 0
    for row, where in zip(r.rows.tolist(), r.where.tolist()):
        stop = row.index(eos, 2) if eos in row[2:] else T - 1
        ended += stop < T - 1
        assert where == [2 <= t <= stop for t in range(T)]      # the end is a decision too
        assert row[stop + 1:] == [model.pad_id] * (T - 1 - stop)
    assert ended > 20
    assert len(r.logp_old) == r.where.sum() and (r.logp_old < 0).all()


def test_an_end_of_row_before_text_that_is_given_does_not_end_the_row():
    model = tiny(True, 4, 8)
    model.head.weight.data.zero_()                          # uniform: ids by the uniforms alone
    tokens = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1]])
    mask = torch.tensor([[False, True, False, False, True, False, False, True]])
    r = complete(model, Prompts(tokens, mask, torch.full((1, 8, 1), 0.9), eos=3))
    assert r.rows[0].tolist() == [0, 3, 2, 0, 3, 2, 0, 3] and torch.equal(r.where, mask)


def test_rows_that_ended_are_computed_no_further():
    T, eos = 32, 3
    model = tiny(True, 4, T, layers=1)
    model.head.weight.data.zero_()                          # the uniforms decide: 0.9 ends a row
    tokens = torch.zeros(10, T).long()
    mask = torch.arange(T).expand(10, T) >= 1
    calls = count_calls(model)
    complete(model, Prompts(tokens, mask, torch.full((10, T, 2), 0.9), eos))
    assert len(calls) == 1 and calls[0][0] == 10            # the prompt, once per prompt, no more
    del calls[:]
    uniforms = torch.full((10, T, 2), 0.1)
    uniforms[:5, 3] = 0.9                                   # half end early, the rest at 9
    uniforms[5:, 9] = 0.9
    r = complete(model, Prompts(tokens, mask, uniforms, eos))
    assert r.where.sum(1).tolist() == [3] * 10 + [9] * 10
    assert len(calls) <= 10 and calls[-1][0] == 10 and calls[1] == (20, 1)


def test_causal_log_probs_add_up_to_the_probability_of_the_row():
    model = tiny(True, 3, 4, seed=5)
    n = 30000
    every = torch.cat((torch.ones(27, 1).long(), every_completion(3, 3)), 1)    # (27, T)
    p = torch.ones(27, dtype=torch.float64)     # a product over prefixes, each passed by itself
    with torch.no_grad():
        for i, row in enumerate(every):
            for t in range(1, 4):
                p[i] *= model(row[None, :t + 1])[0, t].softmax(-1)[row[t]]
    close(p.sum().item(), 1.0)
    tokens = torch.tensor([[1, 0, 0, 0]])
    mask = torch.tensor([[False, True, True, True]])
    rng = torch.Generator().manual_seed(23)
    uniforms = torch.rand(1, 4, n, generator=rng, dtype=torch.float64)
    r = complete(model, Prompts(tokens, mask, uniforms, eos=-1))
    code = (r.rows[:, 1:] * torch.tensor([9, 3, 1])).sum(1)
    total = sum_by_owner(r.logp_old, r.owner, n)[:, 0]
    close(total.double(), p.log()[code], atol=1e-5, rtol=0)
    counts = torch.bincount(code, minlength=27)
    assert ((counts - n * p) ** 2 / (n * p)).sum() < 54.1   # 26 degrees of freedom, 1 in 1000


@pytest.mark.parametrize('prefix', range(6))
def test_the_shared_prefix_pass_is_the_plain_pass_in_value_and_gradient(prefix):
    B, k, T = 3, 4, 6
    model = tiny(True, 5, T, layers=3)
    rng = torch.Generator().manual_seed(24)
    rows = torch.randint(5, (B * k, T), generator=rng)
    rows[:, :prefix] = rows[::k, :prefix].repeat_interleave(k, 0)
    where = (torch.rand(B * k, T, generator=rng) < 0.8) & (torch.arange(T) >= prefix)
    direction = torch.randn(int(where.sum()), 5, generator=rng, dtype=torch.float64)
    shapes = count_calls(model)
    plain = model(rows, where)
    shared = model(rows, where, prefix, k)
    assert shapes[1] == (B, prefix + 1)                     # once per prompt
    close(shared, plain)
    close(gradients((shared * direction).sum(), model), gradients((plain * direction).sum(), model))
    close(model.features(rows, None, prefix, k), model.features(rows))


def test_what_stands_after_the_end_of_a_row_changes_neither_loss_nor_gradient():
    model = tiny(True, 4, 7)
    r = complete(model, prompts_to_continue()[::2])
    advantages = torch.randn(len(r.owner), 1, dtype=torch.float64)
    stop = (r.where * torch.arange(7)).amax(1, keepdim=True)
    junk = torch.where(torch.arange(7) > stop, 1, r.rows)
    assert (junk != r.rows).any()

    def gradient(rows):
        loss, _ = grpo_loss(model(rows, r.where), r.actions, advantages, r.owner)
        return gradients(loss, model)

    close(gradient(junk), gradient(r.rows))


@pytest.mark.parametrize('causal', [False, True])
def test_a_compiled_trunk_is_not_compiled_again_when_the_number_of_blanks_changes(causal):
    from torch._dynamo.testing import CompileCounter
    torch._dynamo.reset()
    model = tiny(causal=causal)
    counter = CompileCounter()
    rows = torch.randint(model.vocab_size, (6, model.block_size))
    rows[:, 0] = 0                      # causal: pairs of rows share a prefix of one token
    expected = []
    for run in ('plain', 'compiled'):
        for blank in (1, 2, 4):
            where = torch.arange(model.block_size).expand(6, -1) >= model.block_size - blank
            logits = model(rows, where, 1, 2)
            assert logits.shape == (6 * blank, model.vocab_size)
            if run == 'plain':
                expected.append(logits)
            else:
                close(logits, expected.pop(0))
        model.compiled = torch.compile(model.trunk, backend=counter, dynamic=False)
    assert counter.frame_count == 1


@pytest.mark.parametrize('S, room', [(5, 5), (1, 1), (1, 3), (2, 4)])
def test_a_cache_that_is_filled_in_pieces_holds_what_one_pass_over_whole_rows_gives(S, room):
    model = tiny(True, T=8, seed=4)
    ids = torch.randint(5, (4, 8))
    ids[1::2, :3] = ids[::2, :3]                            # pairs of rows share a prefix
    whole = model.new_cache()
    expected = model.trunk(ids, whole)

    cache = model.new_cache()
    found = [model.trunk(ids[::2, :3], cache).repeat_interleave(2, 0)]
    cache.expand(2)
    for start in range(3, 8, S):
        stop = min(8, start + S)
        if cache.width < stop:
            cache.reserve(min(room, 8 - start))
        found.append(model.trunk(ids[:, start:stop], cache))
        assert cache.length == stop
        for part, all_of_it in zip(cache.keys + cache.values, whole.keys + whole.values):
            assert part.is_contiguous()                     # products would copy a slice
            close(part[:, :, :stop], all_of_it[:, :, :stop])
            assert not part[:, :, stop:].any()              # room
    close(torch.cat(found, 1), expected)
    close(model.trunk(ids), expected)


def test_rows_that_are_selected_go_on_as_they_would_have_in_company():
    model = tiny(True, T=8, seed=4)
    ids = torch.randint(5, (6, 8))
    some = torch.tensor([True, False, True, True, False, True])
    cache = model.new_cache()
    model.next_logits(ids[:, :4], cache)
    cache.select(some)
    cache.reserve(3)
    for t in range(4, 7):
        found = model.next_logits(ids[some, t, None], cache)
        close(found, model.logits(model.trunk(ids[some, :t + 1]))[:, -1])


# ---- the judge: scores of rows -------------------------------------------------------------------


def tiny_judge(kind='likelihood', dtype=torch.float32, T=8):
    torch.manual_seed(2)
    judge = Judge(kind, vocab_size=6, block_size=T, n_layer=2, n_head=2, n_embd=16,
                  causal=kind == 'likelihood').to(dtype)
    nn.init.normal_(judge.gpt.head.weight, std=0.5)
    return judge.eval().requires_grad_(False)


def rows_to_judge(N=12, T=8, seed=25):
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randint(6, (N, T), generator=rng)
    length = torch.randint(1, T + 1, (N, 1), generator=rng)
    return rows.masked_fill(torch.arange(T) >= length, 8)       # 8: padding


def test_the_likelihood_score_is_that_of_a_slow_loop_over_prefixes():
    judge = tiny_judge(dtype=torch.float64)
    rows = rows_to_judge()
    for row, score in zip(rows.tolist(), judge.score(rows).tolist()):
        real = [i for i in row if i != 8]
        logps = []
        for t, i in enumerate(real):
            prefix = torch.tensor([real[:t + 1]])
            logps.append(math.log(judge.gpt(prefix)[0, t].softmax(-1)[i]))
        close(score, statistics.mean(logps), atol=1e-6, rtol=0)


def test_the_classifiers_score_is_a_probability_from_the_mean_of_real_positions():
    judge = tiny_judge('classifier', torch.float64)
    rows = rows_to_judge()
    head = judge.gpt.head
    for row, score in zip(rows.tolist(), judge.score(rows).tolist()):
        real = torch.tensor([[i for i in row if i != 8]])
        pooled = judge.gpt.features(real)[0].mean(0)
        logit = (head.weight[0] * pooled).sum() + head.bias[0]
        close(score, 1 / (1 + math.exp(-logit)), atol=1e-6, rtol=0)


@pytest.mark.parametrize('kind', ['likelihood', 'classifier'])
def test_a_score_does_not_depend_on_batch_mates_order_padding_or_chunks(kind, monkeypatch):
    judge = tiny_judge(kind, T=12)
    rows = torch.cat((rows_to_judge(), rows_to_judge()[:5]))
    scores = judge.score(rows)
    assert torch.equal(scores[12:], scores[:5])                 # equal rows, equal bits
    assert len(scores[:12].unique()) > 6
    order = torch.randperm(17, generator=torch.Generator().manual_seed(1))
    assert torch.equal(judge.score(rows[order]), scores[order])
    for n in range(17):
        close(judge.score(rows[n:n + 1]), scores[n:n + 1], atol=1e-6, rtol=0)
    close(judge.score(F.pad(rows, (0, 4), value=8)), scores, atol=1e-6, rtol=0)
    for chunk in (1, 2, 5, 100):
        monkeypatch.setattr(judge, 'rows_at_a_time', lambda rows: chunk)
        close(judge.score(rows), scores, atol=1e-6, rtol=0)


@pytest.mark.parametrize('kind', ['likelihood', 'classifier'])
def test_a_score_is_float32_and_without_gradient_also_under_autocast(kind):
    rows = rows_to_judge()
    for dtype in (torch.float32, torch.float64):
        score = tiny_judge(kind, dtype).score(rows)
        assert score.dtype == torch.float32 and not score.requires_grad
    judge = tiny_judge(kind)
    heads = []
    judge.gpt.head.register_forward_hook(lambda head, x, y: heads.append((x[0].dtype, y.dtype)))
    exact = judge.score(rows)
    with torch.autocast('cpu', torch.bfloat16):
        score = judge.score(rows)
    assert score.dtype == torch.float32 and heads[-1] == (torch.float32, torch.float32)
    close(score, exact, atol=0.05, rtol=0)


@pytest.mark.parametrize('kind', ['likelihood', 'classifier'])
def test_freezing_casts_the_blocks_once_and_changes_no_score(kind):
    judge = tiny_judge(kind).requires_grad_(True)
    rows = rows_to_judge()
    with torch.autocast('cpu', torch.bfloat16):
        before = judge.score(rows)
    freeze(judge, torch.bfloat16)
    with torch.autocast('cpu', torch.bfloat16):
        assert torch.equal(judge.score(rows), before)
    assert not any(p.requires_grad for p in judge.parameters())
    for name, p in judge.named_parameters():
        assert p.dtype == (torch.bfloat16 if 'blocks.' in name else torch.float32), name


@pytest.mark.parametrize('kind', ['likelihood', 'classifier'])
def test_a_loaded_judge_is_frozen_and_gives_the_scores_that_it_gave(kind, tmp_path):
    judge = tiny_judge(kind)
    rows = rows_to_judge()
    corpus = types.SimpleNamespace(fingerprint='f', name='toy', tok=Tokenizer('char', '\nab'))
    path = str(tmp_path / 'judge.pt')
    save_checkpoint(path, kind='judge', judge_kind=kind, model_args=judge.gpt.args,
                    model=judge.state_dict(), config={'dataset': 'toy'}, corpus='f',
                    vocabulary=corpus.tok.vocabulary)
    loaded = load_judge(path, corpus, 'make')
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())
    assert torch.equal(loaded.score(rows), judge.score(rows))
    before = copy.deepcopy(loaded.state_dict())
    loaded.score(rows)
    assert all(torch.equal(value, before[key]) for key, value in loaded.state_dict().items())


@pytest.mark.parametrize('kind', ['likelihood', 'classifier'])
def test_a_judge_tells_corrupted_rows_after_a_few_steps(kind):
    # the language: each id is one more than the last, modulo 6; a corrupted row breaks that once
    def pairs(n, rng):
        true = (torch.from_numpy(rng.integers(6, size=(n, 1))) + torch.arange(8)) % 6
        at = torch.from_numpy(rng.integers(1, 8, size=(n, 1)))
        off = torch.from_numpy(rng.integers(1, 6, size=(n, 1)))
        return true, torch.where(torch.arange(8) == at, (true + off) % 6, true)

    torch.manual_seed(0)
    judge = Judge(kind, vocab_size=6, block_size=8, n_layer=1, n_head=2, n_embd=32,
                  causal=kind == 'likelihood')
    optimizers = make_optimizers(judge, 1e-2, 0.0, 0.9, 0.95)
    held_out = torch.cat(pairs(100, draws(1, 'held out')))
    labels = [1] * 100 + [0] * 100
    start = auc(judge.score(held_out), labels)
    for step in range(30 if kind == 'likelihood' else 80):
        true, false = pairs(64, draws(0, 'toy', step))
        if kind == 'likelihood':
            loss = F.cross_entropy(judge.gpt(true).flatten(0, 1), true.flatten())
        else:
            target = torch.tensor([1.0] * 64 + [0.0] * 64)
            loss = F.binary_cross_entropy_with_logits(judge.raw(torch.cat((true, false))), target)
        loss.backward()
        update(judge, optimizers, 1e-2, 1.0)
    assert start < 0.7 and auc(judge.score(held_out), labels) > 0.9


def test_auc_is_the_share_of_pairs_in_the_right_order():
    rng = np.random.default_rng(0)
    for n, levels in ((30, 4), (50, 1000), (7, 1)):
        scores = rng.integers(levels, size=n) / levels
        labels = rng.random(n) < 0.4
        labels[:2] = True, False
        pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels] for b in scores[~labels]]
        close(auc(scores, labels), statistics.mean(pairs))
    assert math.isnan(auc([1.0, 2.0], [True, True]))


# ---- rewards: by name, from the judge, a verifier or a function ----------------------------------


def test_copies_counts_equal_rows_of_the_same_group_only():
    rows = torch.randint(2, (5, 8, 3), generator=torch.Generator().manual_seed(26))     # (B, k, T)
    expected = []
    for group in rows.tolist():
        expected.append([group.count(row) for row in group])
    assert copies(rows).tolist() == expected


@pytest.mark.parametrize('causal', [False, True])
def test_each_reward_is_what_its_name_says_and_stands_in_its_own_place(causal):
    data = ToyData(verify=lambda prompt, completion: completion.count('a') / 4)
    tok = data.tok
    ids = lambda text: tok.encode(text) + [tok.pad] * (5 - len(text))
    tokens = torch.tensor([ids('abcde'), ids('ab\n')])
    mask = torch.tensor([[False, False, True, True, False], [False, True, False, False, False]])
    rows = torch.tensor([ids('abaae'), ids('abaae'), ids('aa\n'), ids('ac\n')])
    where = mask
    if causal:
        where = torch.tensor([[0, 0, 1, 1, 0], [0, 0, 1, 1, 0], [0, 1, 1, 0, 0],
                              [0, 1, 0, 0, 0]]) == 1
    prompts = Prompts(tokens, mask, torch.rand(2, 5, 2), tok.eos)
    judge = tiny_judge(T=5)
    judge.score = lambda rows: rows[:, 0] + 10.0 * rows[:, 1]
    seen = []

    def mine(prompts, completions):
        seen.append((prompts, completions))
        return [float(len(prompt)) for prompt in prompts]

    scorer = Scorer(data, judge, {'mine': mine})
    found = scorer.score(['length', 'mine', 'judge', 'verify', 'distinct'],
                         rollout_of(prompts, rows, where, causal))
    assert list(found) == ['length', 'mine', 'judge', 'verify', 'distinct']
    for values in found.values():
        assert values.shape == (2, 2) and values.dtype == torch.float32

    wrote = [2, 2, 2, 1] if causal else [2, 2, 1, 1]
    shown = ['ab', 'ab', 'a', 'a'] if causal else ['ab__e', 'ab__e', 'a_', 'a_']
    full = ['aae', 'aae', 'a', 'c'] if causal else ['abaae', 'abaae', 'aa', 'ac']
    assert seen == [(shown, full)]
    close(found['length'].flatten(), torch.tensor(wrote) / 5)
    close(found['mine'].flatten(), torch.tensor([float(len(prompt)) for prompt in shown]))
    close(found['judge'].flatten(), (rows[:, 0] + 10 * rows[:, 1]).float())
    close(found['verify'].flatten(), torch.tensor([text.count('a') / 4 for text in full]))
    assert found['distinct'].tolist() == [[0.5, 0.5], [1.0, 1.0]]
    mixed = rollout_of(prompts, rows[[0, 2, 2, 0]], where, causal)
    assert (scorer.score(['distinct'], mixed)['distinct'] == 1).all()   # other groups' rows: none


def test_verify_is_asked_once_per_pair():
    asked = []

    def verify(prompt, completion):
        asked.append((prompt, completion))
        return 1.0

    data = ToyData(verify=verify)
    tokens = torch.tensor([data.tok.encode('abc')])
    mask = torch.tensor([[False, True, False]])
    prompts = Prompts(tokens, mask, torch.rand(1, 3, 6), data.tok.eos)
    r = rollout_of(prompts, tokens.expand(6, 3), mask, causal=False)
    assert Scorer(data).score(['verify'], r)['verify'].tolist() == [[1.0] * 6]
    assert asked == [('a_c', 'abc')]


@pytest.mark.parametrize('function, says', [
    (lambda p, c: 1 / 0, "raised ZeroDivisionError: division by zero"),
    (lambda p, c: [1.0], "gave 1 values for 2 completions"),
    (lambda p, c: None, "gave None"),
    (lambda p, c: 'xy', "gave 'xy'"),
    (lambda p, c: ['1', '2'], "gave '1'"),
    (lambda p, c: [1.0, None], "gave None"),
    (lambda p, c: sys.exit('bye'), "raised SystemExit: bye")])
def test_a_reward_function_that_misbehaves_is_named_with_a_prompt(function, says):
    with pytest.raises(SystemExit, match=f"error: reward 'mine' {says}.*'[ab]_'") as error:
        call_user("reward 'mine'", function, ['a_', 'b_'], ['aa', 'bb'], ['ab', 'ba'])
    assert '\n' not in str(error.value)


def test_a_verifier_that_gives_no_share_is_named_with_prompt_and_completion():
    data = ToyData(verify=lambda prompt, completion: len(completion))
    assert data.check(['_', '_'], ['a', ''], ['b', 'b']) == [1.0, 0.0]
    with pytest.raises(SystemExit, match=r"verify\(\) of data/toy/.* gave 2.0 for '__', 'ab'"):
        data.check(['_', '__'], ['a', 'ab'], ['b', 'ba'])


def test_a_reward_function_may_return_any_sequence_of_numbers():
    as_tensor = lambda prompts, completions: torch.tensor([1, 0])
    as_tuple = lambda prompts, completions: (True, np.float32(2))
    lists = (['a', 'b'], ['', ''], ['c', 'd'])
    assert call_user('', as_tensor, *lists) == [1.0, 0.0]
    assert call_user('', as_tuple, *lists) == [1.0, 2.0]


def test_a_reward_function_that_changes_its_lists_does_not_change_those_of_the_next():
    def clear(prompts, completions):
        n = len(prompts)
        prompts.clear()
        completions.sort(reverse=True)
        return [1.0] * n

    prompts = ['a', 'b']
    completions = ['x', 'y']
    assert call_user('', clear, prompts, completions, prompts) == [1.0, 1.0]
    assert prompts == ['a', 'b'] and completions == ['x', 'y']


def test_labelled_texts_are_read_and_a_bad_line_is_named(tmp_path):
    tok = ToyData().tok
    path = tmp_path / 'labels.jsonl'
    good = [{'text': 'abcde'[:1 + i % 5], 'label': i % 2} for i in range(24)]
    path.write_text('\n'.join(map(json.dumps, good)))
    rows, marks = read_labels(str(path), tok, 3)
    assert rows.shape == (24, 3) and marks.tolist() == [float(item['label']) for item in good]
    assert rows[0].tolist() == tok.encode('a') + [tok.pad] * 2
    assert rows[4].tolist() == tok.encode('abc')                # cut to the row
    for bad, says in (({'text': 'ab', 'label': 2}, 'line 25: label 2'), ({'text': 'ab'}, 'line 25'),
                      ({'text': 'xyz', 'label': 1}, 'line 25: characters')):
        path.write_text('\n'.join(map(json.dumps, good + [bad])))
        with pytest.raises(SystemExit, match=says):
            read_labels(str(path), tok, 3)
    path.write_text('\n'.join(json.dumps(item | {'label': 1}) for item in good))
    with pytest.raises(SystemExit, match='both labels'):
        read_labels(str(path), tok, 3)
    with pytest.raises(SystemExit, match='No such file'):
        read_labels(str(tmp_path / 'none'), tok, 3)


# ---- the step, taken in this process as from a notebook ------------------------------------------


def vowels(prompts, completions):
    """A reward: the share of vowels in what was written."""
    shares = []
    for prompt, completion in zip(prompts, completions):
        written = completion
        if '_' in prompt:
            written = [new for old, new in zip(prompt, completion) if old == '_']
        shares.append(sum(letter in 'ae' for letter in written) / max(1, len(written)))
    return shares


@pytest.fixture
def notebook(set_knobs, corpus):
    """notebook(mode, **knobs): the objects of a step, each made by hand, and

    step(lr) takes a step of P = 6 prompts with k = 4 completions each; see take_step()
    line(step) is its line of the log"""
    def build(mode='fill', dtype='float32', **changes):
        causal = mode == 'causal'
        set_knobs(mode=mode, dtype=dtype, block_size=6, blank_kind='suffix' if causal else 'random',
                  blank_low=0.5, blank_high=0.8, group_size=4, batch_size=6,
                  rewards={'vowels': 1.0}, grad_clip=0.0)
        set_knobs(**changes)
        n = types.SimpleNamespace()
        words = [''.join(letters) for letters in itertools.permutations('abcde')]
        n.data = corpus('windows', words, words[:9])
        n.policy = tiny(causal, vocab=n.data.tok.base, T=6, dtype=getattr(torch, dtype))
        n.reference = copy.deepcopy(n.policy).requires_grad_(False)
        n.optimizers = [torch.optim.SGD(n.policy.parameters())]
        n.scorer = Scorer(n.data, functions={'vowels': vowels})
        n_prompts = train_grpo.batch_size * train_grpo.gradient_accumulation_steps
        n.prompts = train_grpo.get_prompts(n.data, 'train', n_prompts)

        def step(lr=0.5):
            train_grpo.clock.read()
            found = take_step(n.policy, n.reference, n.optimizers, n.scorer, n.prompts, lr)
            names = ('rollouts', 'scores', 'reward', 'advantages', 'stats')
            step = types.SimpleNamespace(**dict(zip(names, found)))
            step.line = train_grpo.log_line(0, step.stats, step.scores, step.reward,
                                            step.advantages, lr, train_grpo.clock.read())
            return step

        n.step = step
        return n

    return build


@pytest.mark.parametrize('mode', ['fill', 'causal'])
def test_a_notebook_can_roll_out_score_learn_and_evaluate(mode, notebook):
    n = notebook(mode, adv_norm='std', adv_eps=0.05, inner_updates=2)
    tok = n.data.tok

    # Act: what is given stays, and the blanks are filled.
    r = train_grpo.rollout(n.policy, n.prompts)
    given = ~n.prompts.mask.repeat_interleave(4, 0) & (r.rows != tok.pad)
    assert r.rows.shape == (24, 6) and r.k == 4 and r.causal == (mode == 'causal')
    assert torch.equal(r.rows[given], n.prompts.tokens.repeat_interleave(4, 0)[given])

    # Judge: the function has read the very text that the rows are.
    score = n.scorer.score(['vowels'], r)['vowels']
    for row, where, found in zip(r.rows, n.prompts.mask.repeat_interleave(4, 0), score.flatten()):
        written = tok.decode(row[where].tolist())
        if mode == 'causal':
            written = written.removesuffix('\n')
        share = sum(letter in 'ae' for letter in written) / max(1, len(written))
        assert found.item() == pytest.approx(share)

    # Learn: from the same rollout, since the prompts bring their random numbers along.
    before = weights(n.policy)
    step = n.step()
    assert torch.equal(step.rollouts[0].rows, r.rows)
    assert torch.equal(step.reward, score) and torch.equal(step.scores['vowels'], score)
    close(step.advantages.double(), slow_advantages(score.tolist(), 'std', 0.05), atol=1e-5, rtol=0)
    assert step.advantages.abs().max() > 0.5
    assert (weights(n.policy) - before).norm() > 1e-3
    assert step.line['mean_reward'] == pytest.approx(score.mean().item())
    assert step.line['mean_kl'] > 0 and step.line['ratio_max'] > 1      # of the second update
    assert step.line['distinct'] == pytest.approx((1 / copies(r.rows.view(6, 4, 6))).mean().item())


@pytest.mark.parametrize('mode', ['fill', 'causal'])
def test_evaluation_is_the_mean_of_what_each_completion_gets(mode, notebook):
    n = notebook(mode, kl_beta=0.1, batch_size=5, group_size=3, temperature=0.7)
    n.reference = tiny(mode == 'causal', vocab=n.data.tok.base, dtype=torch.float32, seed=3)
    n.data.verify = lambda prompt, completion: float('bd' in completion)
    held_out = train_grpo.get_prompts(n.data, 'val', 13)
    found = train_grpo.evaluate(n.policy, held_out, n.scorer, n.reference)
    for suffix, greedy, k in (('', False, 4), ('_argmax', True, 1)):
        r = train_grpo.rollout(n.policy, held_out.for_k(4), greedy=greedy)
        assert len(r.rows) == 13 * k
        pairs = texts(n.data.tok, held_out.tokens, held_out.mask, r.rows, r.causal)
        expected = statistics.mean(vowels(*pairs))
        assert found[f'reward{suffix}'] == pytest.approx(expected)
        assert found[f'reward/vowels{suffix}'] == pytest.approx(expected)
        has_it = ['bd' in completion for completion in pairs[1]]
        assert found[f'verify{suffix}'] == pytest.approx(statistics.mean(has_it))
        if not greedy:
            logits = decision_logits(n.policy, r).detach() / 0.7
            logits_ref = decision_logits(n.reference, r).detach() / 0.7
            entropy = torch.distributions.Categorical(logits=logits).entropy().mean().item()
            assert found['entropy'] == pytest.approx(entropy, rel=1e-4)
            kl = kl_divergence(logits, logits_ref).mean().item()
            assert found['kl'] == pytest.approx(kl, rel=1e-4)
            groups = r.rows.view(13, 4, 6).tolist()
            different = [len({tuple(row) for row in group}) for group in groups]
            assert found['distinct'] == pytest.approx(statistics.mean(different) / 4)
            one_of_four = [any(has_it[i:i + 4]) for i in range(0, 52, 4)]
            assert 0 < statistics.mean(one_of_four) < 1
            assert found['pass@4'] == pytest.approx(statistics.mean(one_of_four))


@pytest.mark.parametrize('mode', ['fill', 'causal'])
@pytest.mark.parametrize('loss_norm', ['token', 'sequence', 'constant'])
def test_three_micro_steps_of_two_prompts_are_one_of_six(mode, loss_norm, notebook):
    found = []
    for batch_size, micro_steps in ((6, 1), (2, 3)):
        n = notebook(mode, 'float64', batch_size=batch_size, loss_norm=loss_norm, adv_norm='std',
                     gradient_accumulation_steps=micro_steps, entropy_coef=0.1, kl_beta=0.2)
        n.reference = tiny(mode == 'causal', vocab=n.data.tok.base, seed=3)
        step = n.step()
        assert len(step.rollouts) == micro_steps
        numbers = [value for key, value in step.line.items()
                   if not key.startswith(('ms_', 'completions'))]
        found.append((step.reward, step.advantages, weights(n.policy), numbers))
    for one, three in zip(*found):
        close(three, one, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize('inner_updates', [1, 2])
def test_learning_from_the_pass_that_sampled_is_learning_from_a_second_one(
        inner_updates, notebook, monkeypatch):
    n = notebook('fill', inner_updates=inner_updates)
    calls = count_calls(n.policy)
    n.step()
    assert len(calls) == (1 if inner_updates == 1 else 3)       # a pass serves once
    learned = weights(n.policy)

    n = notebook('fill', inner_updates=inner_updates)
    rollout = train_grpo.rollout
    monkeypatch.setattr(train_grpo, 'rollout', lambda *args, keep_graph: rollout(*args))
    calls = count_calls(n.policy)
    n.step()
    assert len(calls) == 1 + inner_updates
    assert torch.equal(weights(n.policy), learned)


@pytest.mark.parametrize('kl_in_reward', [False, True])
def test_the_reference_is_asked_once_per_rollout_however_many_updates_there_are(
        kl_in_reward, notebook, monkeypatch):
    ask = {'inner_updates': 3, 'mini_batches': 2, 'gradient_accumulation_steps': 2, 'batch_size': 3,
           'kl_in_reward': kl_in_reward, 'kl_beta': 0.3}
    n = notebook('fill', **ask)
    calls = count_calls(n.reference)
    n.step()
    assert sum(rows for rows, _ in calls) == 6                  # every prompt once
    learned = weights(n.policy)

    def asked_anew(reference, r):
        return train_grpo.logp_of(reference, r)

    monkeypatch.setattr(train_grpo, 'reference_logp', asked_anew)
    n = notebook('fill', **ask)
    calls = count_calls(n.reference)
    n.step()
    assert sum(rows for rows, _ in calls) == 3 * 6 + 6 * kl_in_reward
    assert torch.equal(weights(n.policy), learned)


def test_lengths_3_and_1_with_advantages_of_plus_and_minus_one_are_no_loss_of_zero(notebook):
    # by tokens the longer completion has three votes of four, by completions one of two
    for loss_norm, expected in (('token', -0.5), ('sequence', 0.0)):
        n = notebook('causal', batch_size=1, group_size=2, loss_norm=loss_norm, kl_beta=0.0)
        nn.init.zeros_(n.policy.head.weight)            # all ids alike: the uniforms decide
        n.prompts.tokens[0] = 1
        n.prompts.mask[0] = torch.arange(6) >= 2
        n.prompts.uniforms.fill_(0.9)
        n.prompts.uniforms[0, 4, 0] = 0.0               # eos, as the third token, is id 0
        n.prompts.uniforms[0, 2, 1] = 0.0               # and here as the first
        n.reference = None
        n.scorer.functions = {'vowels': lambda prompts, completions: [1.0, -1.0]}
        step = n.step()
        assert torch.bincount(step.rollouts[0].owner).tolist() == [3, 1]
        assert step.advantages.tolist() == [[1.0, -1.0]]
        assert step.line['pg_loss'] == pytest.approx(expected, abs=1e-6)
        assert step.line['ratio_max'] == pytest.approx(1.0, abs=1e-5)


FILTERS = [{}, {'top_k': 2}, {'top_p': 0.5}, {'top_k': 3, 'top_p': 0.8}]


@pytest.mark.parametrize('mode', ['fill', 'causal'])
@pytest.mark.parametrize('filters', FILTERS)
def test_a_kl_in_the_reward_is_of_unfiltered_distributions_and_zero_at_the_start(
        mode, filters, notebook):
    n = notebook(mode, kl_in_reward=True, kl_beta=0.5, temperature=0.8, **filters)
    if mode == 'causal' and not filters:        # one token at a time rounds unlike a whole row
        assert n.step().scores['kl'].abs().max() < 1e-5
    else:
        step = n.step()
        assert (step.scores['kl'] == 0).all()
        assert torch.equal(step.reward, step.scores['vowels'])
        assert step.line['mean_kl'] == 0.0

    # Once the policy has moved: log p - log q of what was written, by a slow softmax.
    n.policy = tiny(mode == 'causal', vocab=n.data.tok.base, dtype=torch.float32, seed=3)
    n.optimizers = [torch.optim.SGD(n.policy.parameters())]
    [r] = train_grpo.act(n.policy, n.prompts)
    logits = decision_logits(n.policy, r).detach()
    logits_ref = decision_logits(n.reference, r).detach()
    expected = torch.zeros(6 * 4)
    for m, actions in enumerate(r.actions.tolist()):
        p = slow_log_softmax(logits[m].tolist(), 0.8)
        q = slow_log_softmax(logits_ref[m].tolist(), 0.8)
        for j, a in enumerate(actions):
            row = r.owner[m] if r.causal else 4 * r.owner[m] + j
            expected[row] += p[a] - q[a]
    step = n.step()
    close(step.scores['kl'].flatten(), expected, atol=1e-4, rtol=1e-4)
    close(step.reward, step.scores['vowels'] - 0.5 * step.scores['kl'])
    exact = kl_divergence(logits / 0.8, logits_ref / 0.8).mean().item()
    assert exact > 0.1 and step.line['mean_kl'] == pytest.approx(exact, rel=1e-4)
    assert step.line['kl_penalty'] == 0


@pytest.mark.parametrize('mode', ['fill', 'causal'])
@pytest.mark.parametrize('filters', FILTERS)
def test_entropy_means_the_same_while_learning_and_in_an_evaluation(mode, filters, notebook):
    n = notebook(mode, temperature=2.5, **filters)
    # An evaluation takes four samples, and so does this step, of the same prompts.
    evaluated = train_grpo.evaluate(n.policy, n.prompts, n.scorer)['entropy']
    step = n.step()
    assert step.line['entropy'] == pytest.approx(evaluated, rel=1e-5)
    n = notebook(mode, temperature=2.5, **filters)
    logits = decision_logits(n.policy, step.rollouts[0]).detach() / 2.5
    unfiltered = torch.distributions.Categorical(logits=logits).entropy().mean().item()
    assert unfiltered > math.log(3)             # more than three ids that are kept can have
    assert evaluated == pytest.approx(unfiltered, rel=1e-5)


def test_the_entropy_bonus_is_of_the_unfiltered_distribution_too():
    logits, choices = some_choices(9, filtered=True)
    choices['advantages'] = torch.zeros_like(choices['advantages'])
    z = logits.clone().requires_grad_()
    entropy = torch.distributions.Categorical(logits=z).entropy().sum()
    expected = -0.3 * torch.autograd.grad(entropy, z)[0]
    close(gradient_at(logits, choices | NO_REFERENCE, entropy_coef=0.3), expected)
    close(report_of(logits, choices)['entropy'], entropy.detach())


# A group by hand, checks before the first step, and a warning: what they say must be true.


def explained(n, capsys):
    """What explain_one_group() prints, and the step that it took, as n.step() tells of it."""
    start = copy.deepcopy(n.policy.state_dict())
    found = n.step()
    n.policy.load_state_dict(start)
    capsys.readouterr()
    train_grpo.explain_one_group(n.policy, n.reference, n.optimizers, n.scorer, n.prompts, 0.5)
    return capsys.readouterr().out, found


def one_prompt(notebook, mode='fill', **changes):
    """A notebook whose step is that of --explain: one prompt, one update."""
    return notebook(mode, batch_size=1, group_size=6, kl_beta=0.1, temperature=3.0, **changes)


CANCELS = "They cancel: it is 0,\nbut its gradient is not."
DOES_NOT = "They do not cancel here."
DEAD = "the group teaches nothing"


def test_explained_is_that_advantages_of_equally_long_completions_cancel(notebook, capsys):
    said, step = explained(one_prompt(notebook), capsys)
    assert (step.reward != step.reward.mean()).any() and abs(step.line['pg_loss']) < 1e-6
    assert step.line['grad_norm'] > 1e-3
    assert CANCELS in said and DOES_NOT not in said and DEAD not in said
    assert "-mean(ratio x advantage) + 0.1 x KL = 0.0000 + 0.0000 = 0.0000\n" in said
    assert f"The norm of the loss's gradient is {step.line['grad_norm']:.4f}." in said


def test_explained_is_no_loss_of_zero_if_completions_are_not_equally_long(notebook, capsys):
    said, step = explained(one_prompt(notebook, 'causal'), capsys)
    lengths = torch.bincount(step.rollouts[0].owner)
    assert lengths.min() < lengths.max() and abs(step.line['loss']) > 1e-3
    assert f"= {step.line['loss']:.4f}\n" in said
    assert DOES_NOT in said and CANCELS not in said and DEAD not in said

    said, step = explained(one_prompt(notebook, 'causal', loss_norm='sequence'), capsys)
    assert abs(step.line['loss']) < 1e-5 and CANCELS in said and DOES_NOT not in said


@pytest.mark.parametrize('mode', ['fill', 'causal'])
def test_explained_is_that_equal_rewards_teach_nothing(mode, notebook, capsys):
    n = one_prompt(notebook, mode)
    n.scorer.functions = {'vowels': lambda prompts, completions: [0.25] * len(prompts)}
    said, step = explained(n, capsys)
    assert step.line['grad_norm'] < 1e-6
    assert f"Every advantage is 0: {DEAD}." in said
    assert CANCELS not in said and DOES_NOT not in said and "gradient is not 0" not in said
    assert "The norm of the loss's gradient is 0.0000." in said


def test_explained_are_a_strange_reference_and_an_entropy_bonus(notebook, capsys):
    n = one_prompt(notebook, entropy_coef=0.3)
    n.reference = tiny(vocab=n.data.tok.base, dtype=torch.float32, seed=3)
    said, step = explained(n, capsys)
    assert CANCELS in said and abs(step.line['loss']) > 0.01
    terms = r"loss = .* \+ 0.1 x KL - 0.3 x entropy = (\S+) \+ (\S+) - (\S+) = (\S+)\n"
    pg, kl, entropy, loss = map(float, re.search(terms, said).groups())
    assert loss == round(step.line['loss'], 4)
    assert pg + kl - entropy == pytest.approx(loss, abs=2e-4)


def plain_reinforce(reward, *args):
    """A rule of one's own, whose advantages do not add up to 0."""
    return reward.clone()


@pytest.mark.parametrize('mode', ['fill', 'causal'])
def test_explained_is_an_advantage_rule_of_ones_own_without_lies(
        mode, notebook, capsys, monkeypatch):
    monkeypatch.setattr(train_grpo, 'group_advantages', plain_reinforce)
    said, step = explained(one_prompt(notebook, mode), capsys)
    assert step.line['pg_loss'] < -0.01
    assert f"= {step.line['pg_loss']:.4f} + " in said
    assert DOES_NOT in said and CANCELS not in said and DEAD not in said


@pytest.mark.parametrize('case', ['equal rewards that teach', 'unequal ones that do not'])
def test_explained_is_what_a_rule_of_ones_own_teaches(case, notebook, capsys, monkeypatch):
    n = one_prompt(notebook)
    if case == 'equal rewards that teach':
        monkeypatch.setattr(train_grpo, 'group_advantages', plain_reinforce)
        n.scorer.functions = {'vowels': lambda prompts, completions: [0.25] * len(prompts)}
    else:
        monkeypatch.setattr(train_grpo, 'group_advantages', lambda reward, *args: 0 * reward)
    said, step = explained(n, capsys)
    teaches = step.line['grad_norm'] > 1e-6
    assert teaches == (case == 'equal rewards that teach')
    assert (DEAD in said) == (not teaches)
    assert "gradient is not 0" not in said or teaches


@pytest.mark.parametrize('mode', ['fill', 'causal'])
def test_the_checks_before_the_first_step_accept_any_advantage_rule(
        mode, notebook, capsys, monkeypatch):
    monkeypatch.setattr(train_grpo, 'group_advantages', plain_reinforce)
    n = notebook(mode, gradient_accumulation_steps=2)
    before = weights(n.policy)
    capsys.readouterr()
    train_grpo.check_start(n.policy, n.reference, n.prompts, n.scorer, is_first_step=True)
    said = capsys.readouterr().out
    assert said.count('\n') == 1 and "the ratio is 1" in said and "of 6 groups" in said
    r = train_grpo.rollout(n.policy, n.prompts[:6])
    differ = (~dead_groups(n.scorer.score(['vowels'], r)['vowels'])).sum()
    assert f"rewards differ in {differ} of 6 groups" in said and differ > 0
    assert torch.equal(weights(n.policy), before)


def test_the_checks_before_the_first_step_find_a_policy_that_starts_elsewhere(notebook):
    n = notebook('fill')
    n.reference = tiny(vocab=n.data.tok.base, dtype=torch.float32, seed=3)
    ask = (n.policy, n.reference, n.prompts, n.scorer)
    with pytest.raises(SystemExit, match="the KL is .*is not the network"):
        train_grpo.check_start(*ask, is_first_step=True)
    train_grpo.check_start(*ask, is_first_step=False)           # later that is as it must be


@pytest.mark.parametrize('mode', ['fill', 'causal'])
def test_the_checks_before_the_first_step_find_a_model_that_learns_from_other_logits(
        mode, notebook, monkeypatch):
    n = notebook(mode)
    logits_of = train_grpo.logits_of
    monkeypatch.setattr(train_grpo, 'logits_of', lambda model, r: 1.1 * logits_of(model, r))
    with pytest.raises(SystemExit, match="the ratio is off 1 by 1?[0-9]e.*does not learn from"):
        train_grpo.check_start(n.policy, n.reference, n.prompts, n.scorer, is_first_step=True)


def test_a_warning_is_printed_just_if_no_group_has_different_rewards(notebook, capsys):
    for rewards, warned in (([0.5, 0.5, 0.5, 0.5], True), ([0.5, 0.5, 0.5, 0.6], False)):
        n = notebook('fill')
        some = itertools.cycle([0.5] * 20 + rewards)            # groups of four, the last but
        n.scorer.functions = {'vowels': lambda prompts, completions: [next(some) for _ in prompts]}
        line = n.step().line
        capsys.readouterr()
        train_grpo.warn_if_nothing_to_learn(line)
        said = capsys.readouterr().out
        assert (line['dead_groups'] == 1) == warned
        assert said.count('\n') == warned and ('nothing can be learned' in said) == warned


# ---- it learns -----------------------------------------------------------------------------------

TOY_CHARS = 'aebcdf\n'                  # models have no id for the last: rows end at T
TOY_IDS = 6
VOWELS = 2                              # of these


def learn(set_knobs, policy, seed, steps=60, scorer=None, **changes):
    """Takes steps of GRPO; the reward is the share of vowels in what was written. Returns the mean
    reward of the last ten steps, the last KL per decision, and the reference: the start."""
    B, T, k = 16, 6, 8
    set_knobs(mode='causal' if policy.causal else 'fill', dtype='float32', block_size=T,
              batch_size=B, group_size=k, rewards={'vowels': 1.0}, kl_beta=0.0)
    set_knobs(**changes)
    if scorer is None:
        scorer = Scorer(ToyData(TOY_CHARS), functions={'vowels': vowels})
    reference = copy.deepcopy(policy).requires_grad_(False)
    start = weights(policy)
    optimizers = make_optimizers(policy, 1e-2, 0.0, 0.9, 0.95)
    history = []
    for step in range(steps):
        rng = draws(seed, 'toy', step)
        tokens = torch.from_numpy(rng.integers(TOY_IDS, size=(B, T)))
        mask = torch.from_numpy(rng.random((B, T)) < 0.5)
        mask |= ~mask.any(1, keepdim=True)
        if policy.causal:
            mask = torch.arange(T).expand(B, T) >= 3
        uniforms = torch.from_numpy(rng.random((B, T, k), dtype='float32'))
        prompts = Prompts(tokens, mask, uniforms, scorer.data.tok.eos)
        _, _, reward, _, stats, _ = take_step(policy, reference, optimizers, scorer, prompts, 1e-2)
        history.append(reward.mean().item())
        kl = stats.read(policy.device)['mean_kl']
        assert step > 0 or kl == 0.0            # the start is its own reference, bit for bit
    assert torch.equal(weights(reference), start)
    assert all(p.grad is None for p in reference.parameters())
    return statistics.mean(history[-10:]), kl, reference


def toy_gpt(seed, causal=False):
    torch.manual_seed(seed)
    return GPT(TOY_IDS, 6, 1, 2, 16, causal)


@pytest.mark.parametrize('seed', [1, 2, 3])
@pytest.mark.parametrize('causal', [False, True])
def test_the_policy_learns_the_letters_that_the_toy_reward_likes(causal, seed, set_knobs):
    reward, kl, _ = learn(set_knobs, toy_gpt(seed, causal), seed)
    assert reward > 0.9 and kl > 0.5


@pytest.mark.parametrize('seed', [1, 2, 3])
def test_rewards_dealt_out_at_random_teach_nothing(seed, set_knobs):
    class Shuffled(Scorer):
        def score(self, names, rollout):
            found = super().score(names, rollout)['vowels'].flatten()
            return {'vowels': found[torch.randperm(len(found))].view(-1, rollout.k)}

    scorer = Shuffled(ToyData(TOY_CHARS), functions={'vowels': vowels})
    reward, _, _ = learn(set_knobs, toy_gpt(seed), seed, scorer=scorer, kl_beta=0.05)
    assert abs(reward - VOWELS / TOY_IDS) < 0.15


@pytest.mark.parametrize('kl_type', ['exact', 'k2', 'k3_ratio'])
def test_a_strong_kl_holds_the_policy_at_its_start(kl_type, set_knobs):
    reward, kl, _ = learn(set_knobs, toy_gpt(1), 1, kl_beta=20.0, kl_type=kl_type)
    assert kl < 0.01 and reward < 0.5


def test_k1_as_a_loss_holds_nothing_however_strong(set_knobs):
    _, kl, _ = learn(set_knobs, toy_gpt(1), 1, kl_beta=20.0, kl_type='k1')
    assert kl > 0.5             # its expected gradient is 0: only noise is left


class BagOfIds(nn.Module):
    """No GPT: it guesses an id from the sum of the vectors of all ids that it may see and from the
    position. It has what GPT's docstring says that GRPO needs of a model, and nothing else."""

    def __init__(self, vocab_size, block_size, causal):
        super().__init__()
        self.vocab_size = vocab_size
        self.block_size = block_size
        self.causal = causal
        self.mask_id, self.bos_id, self.pad_id = range(vocab_size, vocab_size + 3)
        self.ids = nn.Embedding(vocab_size + 3, 8)
        self.positions = nn.Embedding(block_size, 8)
        self.output = nn.Linear(8, vocab_size)
        nn.init.zeros_(self.output.weight)                          # the first guess is uniform
        nn.init.zeros_(self.output.bias)

    @property
    def device(self):
        return self.output.weight.device

    def forward(self, tokens, where, prefix=0, copies=1):
        if self.causal:                         # the sum of all to the left
            inputs = F.pad(tokens[:, :-1], (1, 0), value=self.bos_id)
            seen = self.ids(inputs).cumsum(1)                                   # (N, T, 8)
        else:                                   # the sum of all that is given
            seen = self.ids(tokens.masked_fill(where, self.mask_id)).sum(1, keepdim=True)
        return self.output(seen + self.positions.weight[:tokens.size(1)])[where]

    def new_cache(self):
        return SeenIds()

    def next_logits(self, tokens, cache):
        cache.tokens = torch.cat((cache.tokens, tokens), 1) if cache.tokens is not None else tokens
        t = cache.tokens.size(1) - 1            # BOS is one of them
        return self.output(self.ids(cache.tokens).sum(1) + self.positions.weight[t])


class SeenIds:
    """The cache of a model that computes everything anew."""
    tokens = None

    def expand(self, copies):
        self.tokens = self.tokens.repeat_interleave(copies, 0)

    def select(self, rows):
        self.tokens = self.tokens[rows]

    def reserve(self, more):
        pass


@pytest.mark.parametrize('causal', [False, True])
def test_a_model_that_is_no_gpt_learns_too(causal, set_knobs, capsys):
    torch.manual_seed(1)
    policy = BagOfIds(TOY_IDS, 6, causal)
    reward, kl, reference = learn(set_knobs, policy, 1, steps=120)
    assert reward > 0.9 and kl > 0.5

    # It can be evaluated and checked like any other, also if rows end before T, with id 0. The
    # check is that it samples with the log-probs that it learns with.
    scorer = Scorer(ToyData(TOY_CHARS), functions={'vowels': vowels})
    tokens = torch.randint(TOY_IDS, (32, 6))
    mask = torch.arange(6).expand(32, 6) >= 3
    prompts = Prompts(tokens, mask, torch.rand(32, 6, 8), eos=0)
    before = train_grpo.evaluate(reference, prompts, scorer, reference)
    after = train_grpo.evaluate(policy, prompts, scorer, reference)
    assert before['reward'] < 0.5 and after['reward'] > 0.9 and after['reward_argmax'] > 0.9
    assert before['kl'] == 0 and after['kl'] > 0.5
    train_grpo.check_start(policy, reference, prompts, scorer, is_first_step=False)
    assert "the ratio is 1" in capsys.readouterr().out


# ---- data: tokenizer, corpora, blanks, prompts, text ---------------------------------------------


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """corpus(unit, train, val) prepares a data/toy/ in a temporary place and opens it."""
    monkeypatch.setattr(data.dataset, 'HERE', str(tmp_path))

    def build(unit, train, val=('ab', 'ba'), source=''):
        folder = tmp_path / 'toy'
        folder.mkdir(exist_ok=True)
        (folder / 'prepare.py').write_text(source)
        write_corpus(str(folder), unit, list(train), list(val))
        return Dataset('toy')

    return build


def test_draws_depend_on_seed_purpose_and_step_and_on_nothing_else():
    first = draws(1, 'prompts', 5).random(8).tolist()
    np.random.seed(7)
    torch.manual_seed(7)
    np.random.random(3), torch.rand(3), draws(1, 'prompts', 4).random(3)
    assert draws(1, 'prompts', 5).random(8).tolist() == first
    others = [draws(*key).random(8).tolist() for key in (
        (2, 'prompts', 5), (1, 'eval', 5), (1, 'prompts', 6), (1, 'prompts'))]
    assert all(other != first for other in others) and len(set(map(tuple, others))) == 4


def test_tokenizer_and_model_give_the_special_ids_the_same_places():
    tok = Tokenizer('char', '\n abcd')
    model = tiny(vocab=tok.base)
    assert (model.mask_id, model.bos_id, model.pad_id) == (tok.mask, tok.bos, tok.pad)
    assert model.embed.num_embeddings == tok.size
    assert model.head.out_features == model.vocab_size == tok.base


def test_text_survives_the_tokenizer():
    tok = Tokenizer('char', '\n -abc')
    assert (tok.base, tok.mask, tok.bos, tok.pad, tok.size) == (6, 6, 7, 8, 9)
    text = 'cab -a'
    assert tok.decode(tok.encode(text)) == text
    assert tok.encode('a_b_', blanks=True) == [3, tok.mask, 4, tok.mask]
    assert tok.encode('_', blanks=True) == [tok.mask] and tok.encode('', blanks=True) == []
    assert tok.decode([tok.bos, 3, tok.mask, 4, tok.eos, tok.pad]) == 'a_b\n'
    with pytest.raises(ValueError, match="'xy'"):
        tok.encode('xyax')


@pytest.mark.skipif(not os.environ.get('TIKTOKEN_CACHE_DIR'), reason='needs TIKTOKEN_CACHE_DIR')
def test_text_survives_the_byte_pairs_of_gpt2():
    tok = Tokenizer('gpt2')
    assert (tok.base, tok.eos, tok.mask, tok.bos, tok.pad) == (50257, 50256, 50257, 50258, 50259)
    for text in ('Hello, world!', 'naïve café 世界 🙂', ' <|endoftext|> <|mask|> ', '\n\n'):
        ids = tok.encode(text)
        assert tok.decode(ids) == text and max(ids) < tok.eos and max(ids) < 2 ** 16
    ids = tok.encode('The _ rose_', blanks=True)
    assert ids.count(tok.mask) == 2 and tok.decode(ids + [tok.eos, tok.pad]) == 'The _ rose_\n'


def test_rows_begin_at_their_start_and_are_padded_after_their_end(corpus):
    train = ['abc', 'b', 'cabca', 'aa']
    data = corpus('rows', train)
    T = 5
    count = {}
    for text in train:
        ids = (data.tok.encode(text) + [data.tok.eos])[:T]
        count[tuple(ids + [data.tok.pad] * (T - len(ids)))] = 0
    rows, answer = data.batch('train', 400, T, np.random.default_rng(0))
    assert answer is None
    for row in rows.tolist():
        count[tuple(row)] += 1                  # a KeyError: a row that is none
    assert all(60 < n < 140 for n in count.values())


def test_windows_are_pieces_of_the_text_and_reach_both_of_its_ends(corpus):
    data = corpus('windows', ['abcab', 'cccb', 'bab'])
    text = data.ids['train'].tolist()
    every = {tuple(text[i:i + 4]) for i in range(len(text) - 3)}
    rows, _ = data.batch('train', 600, 4, np.random.default_rng(0))
    found = {tuple(row) for row in rows.tolist()}
    assert found <= every
    assert tuple(text[:4]) in found and tuple(text[-4:]) in found


def test_an_underscore_of_the_text_cannot_be_mistaken_for_a_blank(corpus):
    data = corpus('windows', ['a_b', 'ab'], ['b_'])
    assert data.tok.decode(data.ids['train']) == 'a-b\nab\n' and data.ids['val'].dtype == np.uint16
    assert data.meta['train']['texts'] == 2


def rows_with_ends(n=300, T=20, seed=27):
    """Rows of lengths 2..T (their end-of-row id included), then padding."""
    tok = Tokenizer('char', '\nabcdef')
    rng = np.random.default_rng(seed)
    tokens = torch.from_numpy(rng.integers(1, 7, size=(n, T)))
    length = torch.from_numpy(rng.integers(2, T + 1, size=(n, 1)))
    at = torch.arange(T)
    tokens = tokens.masked_fill(at == length - 1, tok.eos).masked_fill(at >= length, tok.pad)
    return tok, tokens, length[:, 0]


@pytest.mark.parametrize('kind', ['random', 'span', 'suffix'])
def test_blanks_are_never_none_never_padding_and_as_many_as_asked(kind):
    tok, tokens, length = rows_with_ends()
    free = length - int(kind != 'suffix')        # the end of the row is blank in a suffix alone
    for share in (0.0, 0.25, 0.5, 1.0):
        mask = blanks(tokens, tok, draws(0, 'test'), kind, share, share, 3)
        assert mask.shape == tokens.shape and mask.dtype == torch.bool
        assert not (mask & (tokens == tok.pad)).any()
        assert kind == 'suffix' or not (mask & (tokens == tok.eos)).any()
        for count, n in zip(mask.sum(1).tolist(), free.tolist()):
            assert count >= 1 and abs(count - max(1, share * n)) <= 0.5
    mask = blanks(tokens, tok, draws(0, 'test'), kind, 0.2, 0.6, 3)
    shares = (mask.sum(1) / free)[free > 10]
    assert shares.min() < 0.3 and shares.max() > 0.5
    assert shares.min() > 0.15 and shares.max() < 0.66


def runs(mask):
    """Lengths of the runs of True in a row, from left to right."""
    return [len(list(group)) for value, group in itertools.groupby(mask.tolist()) if value]


def test_a_suffix_is_everything_from_some_place_to_the_end_of_the_row():
    tok, tokens, length = rows_with_ends()
    mask = blanks(tokens, tok, draws(0, 'test'), 'suffix', 0.1, 0.9)
    for row, n in zip(mask, length.tolist()):
        assert len(runs(row)) == 1 and row[n - 1] and not row[n:].any()


def test_spans_are_runs_and_random_blanks_are_not():
    tokens = torch.ones(2000, 64).long()
    tok = Tokenizer('char', '\nabc')
    for span in (2, 4, 8):
        mask = blanks(tokens, tok, draws(0, 'test'), 'span', 0.25, 0.25, span)
        assert (mask.sum(1) == 16).all()
        # 16 / span whole runs, and at most two more that an edge or the count cut short
        assert all(len(runs(row)) <= 16 // span + 2 for row in mask)
        assert all(max(runs(row)) >= span for row in mask)
        assert (mask.float().mean(0) - 0.25).abs().max() < 0.06     # anywhere alike
        begins = (mask[:, 1:] & ~mask[:, :-1]).float().mean(0)      # and they begin anywhere
        assert begins.min() > 0.3 * begins.mean()
    mask = blanks(tokens, tok, draws(0, 'test'), 'random', 0.25, 0.25)
    assert statistics.mean(len(runs(row)) for row in mask) > 10
    assert (mask.float().mean(0) - 0.25).abs().max() < 0.06


def test_blanks_that_cannot_be_are_refused():
    tok, tokens, _ = rows_with_ends(4)
    for wrong in (('other', 0.1, 0.2, 2), ('random', 0.5, 0.2, 2), ('random', -0.1, 0.2, 2),
                  ('random', 0.1, 1.2, 2), ('span', 0.1, 0.2, 0)):
        with pytest.raises(ValueError):
            blanks(tokens, tok, draws(0, 'test'), *wrong)


def test_texts_show_blanks_to_fill_and_split_prompts_from_completions():
    tok = Tokenizer('char', '\nabc')
    tokens = torch.tensor([[1, 2, 3, 0], [3, 3, 0, tok.pad]])
    mask = torch.tensor([[False, True, True, False], [True, False, False, False]])
    rows = torch.tensor([[1, 3, 3, 0], [1, 1, 1, 0], [2, 3, 0, tok.pad], [1, 3, 0, tok.pad]])
    assert list(texts(tok, tokens, mask, rows, False)) == [['a__', 'a__', '_c', '_c'],
                                                           ['acc', 'aaa', 'bc', 'ac']]
    assert list(texts(tok, tokens, mask, rows, True)) == [['a', 'a', '', ''],
                                                          ['cc', 'aa', 'bc', 'ac']]


def test_an_end_of_row_inside_a_window_separates_words():
    tok = Tokenizer('char', '\nabc')
    tokens = torch.tensor([[1, 0, 2, 3]])                           # "a\nbc", cut anywhere
    mask = torch.tensor([[False, False, False, True]])
    assert list(texts(tok, tokens, mask, tokens, False)) == [['a\nb_'], ['a\nbc']]
    assert list(texts(tok, tokens, mask, tokens, True)) == [['a\nb'], ['c']]


PROMPT_KNOBS = {'block_size': 6, 'mode': 'fill', 'blank_kind': 'random', 'blank_low': 0.3,
                'blank_high': 0.6, 'blank_span': 2}


def test_prompts_are_what_the_knobs_ask_for(corpus):
    data = corpus('rows', ['abca', 'bb', 'cab', 'ccc'], ['aaaa'])
    ask = lambda split, n, **changes: draw_prompts(
        data, split, n, 3, draws(1, 'prompts', 3), **PROMPT_KNOBS, **changes)
    prompts = ask('train', 50)
    u = prompts.uniforms
    assert prompts.tokens.shape == prompts.mask.shape == (50, 6) and u.shape == (50, 6, 3)
    assert len(prompts) == 50 and prompts.eos == data.tok.eos
    assert u.dtype == torch.float32 and u.unique().numel() > 850 and ((u >= 0) & (u < 1)).all()
    assert prompts.mask.any(1).all()
    assert not (prompts.mask & (prompts.tokens >= data.tok.base)).any()
    assert all(map(torch.equal, fields(ask('train', 50)), fields(prompts)))

    held_out = ask('val', 9)
    assert (held_out.tokens == torch.tensor(data.tok.encode('aaaa\n') + [data.tok.pad])).all()


def fields(prompts):
    """The tensors of Prompts."""
    return prompts.tokens, prompts.mask, prompts.uniforms


def test_parts_of_prompts_are_those_rows_with_their_uniforms():
    prompts = prompts_to_fill()
    parts = prompts.split(2)
    assert [len(part) for part in parts] == [2, 2, 1]
    assert {part.eos for part in parts} == {prompts.eos}
    for name in ('tokens', 'mask', 'uniforms'):
        whole = getattr(prompts, name)
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), whole)
        assert torch.equal(getattr(prompts[1:4], name), whole[1:4])
    fewer = prompts.for_k(3)
    assert torch.equal(fewer.uniforms, prompts.uniforms[:, :, :3]) and len(fewer) == 5


@pytest.mark.parametrize('most', [0, 2])
def test_a_causal_completion_may_be_longer_than_the_original_was(corpus, most):
    data = corpus('rows', ['abca', 'bb', 'cab', 'ccc'])
    ask = PROMPT_KNOBS | {'mode': 'causal', 'blank_kind': 'suffix', 'max_new_tokens': most}
    prompts = draw_prompts(data, 'train', 50, 3, draws(1, 'prompts', 3), **ask)
    for row, blank in zip(prompts.tokens, prompts.mask):
        first = blank.int().argmax().item()
        stop = min(6, first + (most or 6))
        assert blank.tolist() == [first <= t < stop for t in range(6)]
        assert (row[:first] < data.tok.base).all() and (row[stop:] == data.tok.pad).all()


def test_known_words_counts_the_words_that_a_blank_touches(corpus):
    folder = corpus('windows', ['the cat sat on the mat', 'a catalogue of mats']).folder
    for prompt, completion, share in (
            ('the c_t sat', 'the cat sat', 1.0), ('the c_t sat', 'the czt sat', 0.0),
            ('the c_t s_t on', 'the cat szt on', 0.5), ('xyz c_t sat', 'xyz cat sat', 1.0),
            ('the_cat sat', 'thexcat sat', 0.0), ('the_cat sat', 'the cat sat', 1.0),
            ('the_cab sat', 'the cab sat', 0.5),                # beside a word is touching it
            (' 12_45 ', ' 12345 ', 1.0),                        # no word at all
            ('_ogue of', 'logue of', 1.0), ('_ogue of', 'zogue of', 0.0),       # cut on the left
            ('of ma_', 'of mat', 1.0), ('of catal_', 'of catalo', 1.0),         # cut on the right
            ('of catal_ ', 'of catalo ', 0.0),
            ('the ca', 't sat', 1.0), ('the ca', 'b sat', 0.5), ('the cat ', 'zz on the', 2 / 3),
            ('the _ sat', 'the cat sat', 1.0), ('the _ sat', 'the caz sat', 0.0)):
        assert known_words(prompt, completion, folder) == pytest.approx(share), (prompt, completion)


@pytest.mark.parametrize('causal', [False, True])
def test_the_corpus_itself_has_known_words_only(causal, corpus):
    data = corpus('windows', ['the cat', 'sat on', 'the mat and on', 'a catalogue of mats'] * 9)
    rng = draws(0, 'test')
    tokens, _ = data.batch('train', 200, 16, rng)
    mask = blanks(tokens, data.tok, rng, 'suffix' if causal else 'random', 0.2, 0.6)
    for pair in zip(*texts(data.tok, tokens, mask, tokens, causal)):
        assert known_words(*pair, data.folder) == 1.0, pair


# ---- learning rate, optimizers, checkpoints ------------------------------------------------------


def test_the_learning_rate_warms_up_then_follows_a_cosine_to_its_floor():
    rate = lambda step: get_lr(step, 1.0, 0.1, 10, 110)
    close([rate(s) for s in range(10)], [(s + 1) / 11 for s in range(10)])
    assert rate(10) == 1.0 and rate(60) == pytest.approx(0.55) and rate(110) == pytest.approx(0.1)
    assert rate(35) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)
    assert all(rate(s) > rate(s + 1) for s in range(10, 110))
    assert rate(10 ** 6) == pytest.approx(0.1)
    assert get_lr(0, 1.0, 0.1, 0, 100) == 1.0
    assert all(math.isfinite(get_lr(s, 1.0, 0.1, 10, 10)) for s in range(20))


def test_every_parameter_has_one_optimizer_and_hidden_matrices_have_muon():
    model = tiny(dtype=torch.float32)
    optimizers = make_optimizers(model, 1e-3, 0.1, 0.9, 0.95)
    names = {id(p): name for name, p in model.named_parameters()}
    seen = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            assert (group['lr'], group['weight_decay']) == (1e-3, 0.1)
            assert group.get('betas', (0.9, 0.95)) == (0.9, 0.95)
            for p in group['params']:
                is_hidden = names[id(p)].startswith('blocks.')
                assert is_hidden == isinstance(optimizer, torch.optim.Muon)
                seen.append(names[id(p)])
    assert sorted(seen) == sorted(names.values())


def test_with_adamw_for_all_a_step_is_adamws_for_hidden_matrices_too():
    model = tiny(dtype=torch.float64)
    lr, decay = 1e-2, 0.1
    optimizers = make_optimizers(model, lr, decay, 0.9, 0.95, 'adamw')
    assert [type(optimizer) for optimizer in optimizers] == [torch.optim.AdamW]
    before = [p.detach().clone() for p in model.parameters()]
    slopes = [torch.randn_like(p) for p in model.parameters()]
    for p, g in zip(model.parameters(), slopes):
        p.grad = g.clone()
    update(model, optimizers, lr, 0.0)
    for p, old, g in zip(model.parameters(), before, slopes):   # first step: m / sqrt(v) = sign
        expected = old * (1 - lr * decay) - lr * g / (g.abs() + 1e-8)
        close(p.detach(), expected, rtol=1e-9, atol=1e-12)


def test_an_update_clips_the_gradient_and_reports_it_unclipped():
    for grad_clip, applied in ((0.5, 0.5), (0.0, 5.0), (100.0, 5.0)):
        model = nn.Linear(2, 1, bias=False)
        before = model.weight.detach().clone()
        model.weight.grad = torch.tensor([[3.0, 4.0]])
        norm = update(model, [torch.optim.SGD(model.parameters(), lr=123.0)], 0.1, grad_clip)
        assert norm.item() == pytest.approx(5.0)
        close((before - model.weight).norm().item(), 0.1 * applied, rtol=1e-4, atol=1e-6)
        assert model.weight.grad is None or not model.weight.grad.any()


def test_an_update_sets_the_rate_of_every_parameter_group_times_its_scale():
    model = nn.ParameterList([torch.zeros(2) for _ in range(4)])
    groups = [{'params': [model[0]]}, {'params': [model[1]], 'scale': 0.1}, {'params': [model[2]]}]
    optimizers = [torch.optim.SGD(groups, lr=123.0), torch.optim.SGD([model[3]], lr=7.0)]
    for lr in (0.5, 0.2):
        before = [p.detach().clone() for p in model]
        for p in model:
            p.grad = torch.ones(2)
        update(model, optimizers, lr, 0.0)
        rates = [group['lr'] for optimizer in optimizers for group in optimizer.param_groups]
        assert rates == [lr, 0.1 * lr, lr, lr]
        for p, old, rate in zip(model, before, rates):
            close(p.detach(), old - rate)


def kept_model(tmp_path, **changes):
    """The path of a checkpoint, and the model in it."""
    model = tiny(dtype=torch.float32)
    path = str(tmp_path / 'kept' / 'model.pt')
    content = {'kind': 'generator', 'model_args': model.args, 'model': model.state_dict(),
               'config': {'dataset': 'toy'}, 'corpus': 'f', 'unit': 'rows',
               'vocabulary': {'kind': 'char', 'chars': '\nabc'}}
    save_checkpoint(path, **content | changes)
    return path, model


SAME_TEXT = types.SimpleNamespace(fingerprint='f', name='toy', tok=Tokenizer('char', '\nabc'))


def test_a_checkpoint_gives_the_model_back_and_leaves_nothing_else(tmp_path):
    path, model = kept_model(tmp_path)
    loaded = load_gpt(path, SAME_TEXT, 'make', 6, 'fill')
    tokens = torch.randint(5, (3, 6))
    assert torch.equal(loaded(tokens), model(tokens))
    assert os.listdir(os.path.dirname(path)) == ['model.pt']
    assert torch.load(path, weights_only=True)['version'] == model_script.VERSION


def test_a_save_that_fails_half_way_leaves_the_old_checkpoint_whole(tmp_path, monkeypatch):
    path, model = kept_model(tmp_path)

    def full(content, file):
        file.write(b'half a checkpoint')
        raise OSError(28, 'No space left on device')

    with monkeypatch.context() as patch, pytest.raises(SystemExit, match='No space left'):
        patch.setattr(torch, 'save', full)
        save_checkpoint(path, kind='generator')
    assert os.listdir(os.path.dirname(path)) == ['model.pt']
    assert load_checkpoint(path, 'generator', SAME_TEXT, 'make')['model_args'] == model.args


def test_a_checkpoint_that_does_not_fit_is_refused_with_the_command_that_makes_one(tmp_path):
    path, _ = kept_model(tmp_path)
    other = types.SimpleNamespace(fingerprint='g', name='other', tok=Tokenizer('char', '\nabde'))
    for ask, says in (((path, 'judge', SAME_TEXT, 'cmd'), 'is a generator, expected a judge'),
                      ((path, 'generator', other, 'cmd'),
                       "'toy', not that of 'other': characters only there: 'c', only here: 'de'"),
                      ((path, 'generator', SAME_TEXT, 'cmd', 7), 'of 6 tokens, block_size is 7'),
                      ((path, 'generator', SAME_TEXT, 'cmd', 6, 'causal'), 'is not a causal model'),
                      ((path + 'x', 'generator', SAME_TEXT, 'cmd'), 'no generator at')):
        with pytest.raises(SystemExit, match=f'error: .*{says}.*cmd'):
            load_checkpoint(*ask)
    policy, _ = kept_model(tmp_path, kind='policy')
    assert load_checkpoint(policy, 'generator', SAME_TEXT, 'cmd')['kind'] == 'policy'   # will do
    other_text = types.SimpleNamespace(fingerprint='g', name='other', tok=SAME_TEXT.tok)
    assert load_checkpoint(policy, 'generator', other_text, 'cmd')      # the same vocabulary
    with pytest.raises(SystemExit, match='error: .*toy-f.*other-g.*cmd'):
        load_checkpoint(policy, 'policy', other_text, 'cmd')            # but a run has its text
    with open(path, 'r+b') as file:
        file.truncate(1000)
    with pytest.raises(SystemExit, match='damaged.*cmd'):
        load_checkpoint(path, 'generator', SAME_TEXT, 'cmd')
    torch.save({'model_args': types.SimpleNamespace()}, path)
    with pytest.raises(SystemExit, match='was not opened.*cmd'):
        load_checkpoint(path, 'generator', SAME_TEXT, 'cmd')
    path, _ = kept_model(tmp_path)
    content = torch.load(path, weights_only=True)
    torch.save(content | {'version': 77}, path)
    with pytest.raises(SystemExit, match='of version 77, expected .*cmd'):
        load_checkpoint(path, 'generator', SAME_TEXT, 'cmd')
    content['model']['head.weight'][0, 0] += 1e-6           # one number is not what was saved
    torch.save(content, path)
    with pytest.raises(SystemExit, match='damaged: its checksum.*cmd'):
        load_checkpoint(path, 'generator', SAME_TEXT, 'cmd')


# ---- knobs: config files, flags, checks ----------------------------------------------------------

SCRIPT = '''"""A script that does this."""
alpha = 1           # how many
beta = 0.5          # share, in [0, 1]
name = 'x'          # what to call it
on = False          # True: switched on
weights = {'a': 1.0}        # of rewards
_private = 3
LIMIT = 4
'''


@pytest.fixture
def script(tmp_path):
    """script(*argv) configures a small script; a word 'file: ...' becomes a config file. Returns
    all knobs, functions, and the script's globals()."""
    (tmp_path / 'script.py').write_text(SCRIPT)

    def apply(*argv):
        names = {'__file__': str(tmp_path / 'script.py')}
        exec(SCRIPT, names)
        argv = list(argv)
        for i, word in enumerate(argv):
            if word.startswith('file: '):
                path = tmp_path / f'config{i}.py'
                path.write_text(word.removeprefix('file: '))
                argv[i] = str(path)
        config, functions = configure(names, argv, quiet=True)
        return config, functions, names

    return apply


def fresh(file):
    """One of our scripts as a new module, whose knobs a test may change."""
    spec = importlib.util.spec_from_file_location('fresh', os.path.join(HOME, file))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_files_and_flags_apply_in_the_order_given(script):
    assert script()[0] == {'alpha': 1, 'beta': 0.5, 'name': 'x', 'on': False, 'weights': {'a': 1.0}}
    config, _, names = script('file: alpha = 2\nbeta = 0.25', '--alpha=3')
    assert (config['alpha'], config['beta'], names['alpha'], names['beta']) == (3, 0.25, 3, 0.25)
    assert script('--alpha=3', 'file: alpha = 2')[0]['alpha'] == 2
    assert script('--alpha=3', '--alpha=4')[0]['alpha'] == 4
    assert script('file: alpha = 2', 'file: beta = 0.1')[0]['alpha'] == 2
    assert script('file: alpha = 7', 'file: alpha = 1')[0]['alpha'] == 1    # the default again


@pytest.mark.parametrize('how', ['--{}={}', 'file: {} = {}'])
def test_an_unknown_key_or_a_wrong_type_is_refused_from_file_and_flag_alike(script, how):
    for key, value, says in (
            ('alhpa', '2', "unknown key 'alhpa'; did you mean 'alpha'"),
            ('weigths', '{}', "unknown key 'weigths'; did you mean 'weights'"),
            ('alpha', '2.5', 'alpha = 2.5 is of type float, expected int'),
            ('alpha', 'True', 'alpha = True is of type bool, expected int'),
            ('on', '1', 'on = 1 is of type int, expected bool'),
            ('beta', "'0.5'", "beta = '0.5' is of type str, expected float"),
            ('beta', 'None', 'beta = None is of type NoneType, expected float'),
            ('weights', '[1]', 'is of type list, expected dict')):
        with pytest.raises(SystemExit, match=re.escape(says)) as error:
            script(how.format(key, value))
        assert str(error.value).startswith('error: ') and '\n' not in str(error.value)
    assert script(how.format('on', 'True'))[0]['on'] is True
    beta = script(how.format('beta', '1'))[0]['beta']
    assert beta == 1.0 and type(beta) is float
    assert script(how.format('weights', "{'b': 2.0}"))[0]['weights'] == {'b': 2.0}


def test_a_value_may_hold_equals_signs_and_text_needs_no_quotes(script):
    assert script('--name=a=b==c')[0]['name'] == 'a=b==c'
    assert script('--name=12')[0]['name'] == '12' and script('--name=')[0]['name'] == ''
    with pytest.raises(SystemExit, match='expected --alpha=VALUE, such as --alpha=1'):
        script('--alpha')
    with pytest.raises(SystemExit, match="unknown key '_private'"):
        script('--_private=4')


def test_a_config_file_may_define_functions_imports_and_helpers(script):
    config, functions, _ = script(
        'file: import math\nfrom math import floor\n_half = 0.5\nMOST = 3\n'
        'beta = _half / 2\nalpha = alpha + MOST\n'
        'def vowels(prompts, completions):\n'
        '    return [floor(min(MOST, len(c)) * _half) for c in completions]\n')
    assert config['beta'] == 0.25 and config['alpha'] == 4
    assert set(config) == {*script()[0], 'functions'}       # the latter stands for their code
    assert functions['vowels'](['', ''], ['abcde', 'a']) == [1, 0]


def test_what_stands_for_the_functions_changes_with_their_code_and_not_with_knobs(script):
    code = ('LIMIT = 3\n'
            'def short(prompts, completions):\n'
            '    return [len(text) < LIMIT for text in completions]\n')
    same = [code, '# a comment\n' + code, code + 'alpha = 7\n', 'beta = 0.1\n' + code]
    found = {script('file: ' + source)[0]['functions'] for source in same}
    assert len(found) == 1
    for other in (code.replace('<', '<='), code.replace('3', '4')):
        assert script('file: ' + other)[0]['functions'] not in found
    assert 'functions' not in script('file: alpha = 7')[0]


def test_a_broken_config_file_is_named_with_its_line(script):
    for source, says in (('alpha = 2\nbeta = = 3', r'config0\.py.*line 2'),
                         ('alpha = 1 / 0', r'config0\.py: ZeroDivisionError'),
                         ('def alpha():\n    pass', 'alpha = <function alpha .*, expected int')):
        with pytest.raises(SystemExit, match=says):
            script('file: ' + source)
    with pytest.raises(SystemExit, match='no config file config/none.py; there are'):
        script('config/none.py')


@pytest.mark.parametrize('source', [
    'class Mine:\n    pass', 'if __name__ == "__main__":\n    alpha = 3',
    'def main():\n    class Inner:\n        pass', 'alpha = 3 if __name__ == "x" else 2'])
def test_a_program_given_as_a_config_file_is_refused_and_not_executed(source, script, tmp_path):
    trace = tmp_path / 'trace'
    run = f'open({str(trace)!r}, "w").close()\nalpha = 2\n'
    script('file: ' + run)
    assert trace.exists()                       # so much for a config file
    trace.unlink()
    with pytest.raises(SystemExit, match=r'^error: .*config0\.py is a program; expected') as error:
        script('file: ' + run + source)
    assert not trace.exists() and '\n' not in str(error.value)


@pytest.mark.parametrize('file', ['model.py', 'judge.py', 'train_grpo.py', 'sample.py', 'common.py',
                                  'data/dataset.py', 'data/arithmetic/prepare.py',
                                  os.path.basename(__file__)])
def test_the_files_of_this_repository_are_programs(file, script, monkeypatch):
    monkeypatch.setattr(runpy, 'run_path', None)            # what executes a config file
    with pytest.raises(SystemExit, match='is a program; expected a config file') as error:
        script(os.path.join(HOME, file))
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('source', ['', '# nothing yet', '"""Words."""', 'import math',
                                    '_half = 0.5', 'MOST = 3'])
def test_a_config_file_that_configures_nothing_is_refused(source, script):
    with pytest.raises(SystemExit, match='defines no knob and no function; expected') as error:
        script('file: ' + source)
    assert str(error.value).startswith('error: ') and '\n' not in str(error.value)


def test_help_lists_each_knob_with_its_default_and_gloss(script, capsys):
    with pytest.raises(SystemExit) as end:
        script('--help')
    shown = capsys.readouterr().out
    assert end.value.code == 0 and 'A script that does this.' in shown
    for words in ('alpha 1 how many', 'beta 0.5 share, in [0, 1]', "name 'x' what to call it",
                  'on False True: switched on', "weights {'a': 1.0} of rewards"):
        assert words in ' '.join(shown.split())
    assert '_private' not in shown and 'LIMIT' not in shown


@pytest.mark.parametrize('file', SCRIPTS)
def test_help_has_a_gloss_for_every_knob_of(file, capsys):
    names = vars(fresh(file))
    with pytest.raises(SystemExit):
        configure(names, ['--help'])
    lines = capsys.readouterr().out.split('knobs (--key=value')[1].splitlines()[1:]
    shown = {line.split()[0]: line for line in lines}
    assert list(shown) == list(knobs(names)) and len(shown) > 20
    for key, value in knobs(names).items():
        assert shown[key].split(repr(value), 1)[1].strip(), f"{key} has no gloss"


def test_a_check_names_knob_value_and_what_was_expected():
    one_of(('a', 'b'), name='a')
    at_least(2, alpha=2, beta=5)
    above(0, alpha=1e-9)
    between(0, 1, alpha=0, beta=1.0)
    nan, inf = float('nan'), float('inf')
    for check, says in (
            (lambda: one_of(('a', 'b'), name='c'), "name = 'c': expected one of 'a', 'b'"),
            (lambda: at_least(2, alpha=2, beta=1), "beta = 1: expected beta >= 2"),
            (lambda: at_least(2, 'one is no group', alpha=1), "alpha >= 2 (one is no group)"),
            (lambda: at_least(0, alpha=nan), "alpha = nan: expected alpha >= 0"),
            (lambda: at_least(0, alpha=inf), "alpha = inf: expected alpha >= 0"),
            (lambda: above(0, alpha=0.0), "alpha = 0.0: expected alpha > 0"),
            (lambda: above(0, alpha=inf), "alpha = inf: expected alpha > 0"),
            (lambda: between(0, 0.5, alpha=0.51), "alpha = 0.51: expected 0 <= alpha <= 0.5"),
            (lambda: between(0, 1, alpha=nan), "alpha = nan: expected 0 <= alpha <= 1")):
        with pytest.raises(SystemExit, match=re.escape(says)) as error:
            check()
        assert str(error.value).startswith('error: ') and '\n' not in str(error.value)


def checked(file, *argv):
    """Configures one of our scripts with arguments, and checks its knobs as it would itself."""
    script = fresh(file)
    _, functions = configure(vars(script), argv, quiet=True)
    script.check_knobs(*[functions] if file == 'train_grpo.py' else [])


@pytest.mark.parametrize('file', SCRIPTS)
def test_the_defaults_pass_the_checks(file):
    checked(file)


def test_knobs_that_may_change_when_a_run_goes_on_exist():
    assert set(train_grpo.MAY_CHANGE) <= set(knobs(vars(train_grpo)))


@pytest.mark.parametrize('flag', [
    'group_size=1', 'mode=both', 'adv_norm=median', 'kl_type=k4', 'top_p=0.0', 'top_p=1.1',
    'temperature=0.0', 'loss_norm=row', 'ratio_level=row', 'blank_low=0.8', 'blank_high=1.5',
    'batch_size=3 gradient_accumulation_steps=3 mini_batches=2', 'kl_beta=0.0 kl_in_reward=True',
    'kl_beta=0.0 target_kl=0.1', 'gen_batch_size=3', 'clip_low=1.5', 'max_iters=0', 'adv_eps=-1.0',
    'optimizer=sgd', 'dtype=float16', 'backend=mpi', 'learning_rate=1e999',
    'beta2=1.0', 'seed=-1', 'rewards={}'])
def test_settings_that_cannot_be_meant_are_refused(flag):
    with pytest.raises(SystemExit, match='^error: .*expected') as error:
        checked('train_grpo.py', *[f'--{word}' for word in flag.split()])
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('file', ['model.py', 'judge.py'])
@pytest.mark.parametrize('flag', [
    'block_size=1', 'n_layer=0', 'blank_kind=word', 'blank_low=0.8', 'max_iters=0', 'batch_size=0',
    'learning_rate=-1.0', 'beta1=1.0', 'dtype=int8', 'seed=-1'])
def test_settings_of_generator_and_judge_that_cannot_be_meant_are_refused(file, flag):
    with pytest.raises(SystemExit, match='^error: .*expected'):
        checked(file, f'--{flag}')


def test_each_rank_must_have_an_equal_share_of_the_micro_steps(monkeypatch):
    monkeypatch.setenv('WORLD_SIZE', '2')
    with pytest.raises(SystemExit, match=r'expected a multiple of the 2 ranks'):
        checked('train_grpo.py')
    checked('train_grpo.py', '--gradient_accumulation_steps=4', '--mini_batches=2')


def test_rewards_are_names_that_are_known_with_numbers_as_weights(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text("rewards = {'mine': 1, 'judge': 0.5}\ndef mine(prompts, completions): pass\n")
    checked('train_grpo.py', str(path))
    for rewards, says in (("{'mine': 1.0}", "no reward 'mine'; there are judge, verify"),
                          ("{'judge': '1'}", "the weight of 'judge' is not a number"),
                          ("{'judge': True}", "the weight of 'judge' is not a number"),
                          ("{'judge': 1e999}", "the weight of 'judge' is not a number")):
        with pytest.raises(SystemExit, match=says):
            checked('train_grpo.py', f'--rewards={rewards}')


@pytest.mark.parametrize('file', SCRIPTS)
def test_every_knob_is_read_somewhere(file):
    def scopes(table):
        yield table
        for child in table.get_children():
            if child.get_name() != 'check_knobs':           # to be checked is not to be used
                yield from scopes(child)

    with open(os.path.join(HOME, file), encoding='utf-8') as source:
        top = symtable.symtable(source.read(), file, 'exec')
    read = set()
    for scope in scopes(top):
        for symbol in scope.get_symbols():
            if symbol.is_referenced() and (scope is top or symbol.is_global()):
                read.add(symbol.get_name())
    if file != 'train_grpo.py':                             # fit() takes knobs by name
        read |= set(re.findall(r"config\['(\w+)'\]", inspect.getsource(model_script.fit)))
    assert [key for key in knobs(vars(fresh(file))) if key not in read] == []


CONFIG_FILES = sorted(name for name in os.listdir(f'{HOME}/config') if name.endswith('.py'))


@pytest.mark.parametrize('name', CONFIG_FILES)
def test_config_files_set_knobs_that_exist_to_values_that_can_be_meant(name):
    scripts = {'grpo': 'train_grpo.py', 'generator': 'model.py', 'judge': 'judge.py'}
    checked(scripts[name.split('_')[0]], f'{HOME}/config/{name}')


@pytest.mark.parametrize('file', [*SCRIPTS, 'sample.py'])
def test_importing_a_script_does_nothing(file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'argv', [file, '--no_such_knob=1', 'no_such_file.py'])
    state = lambda: (torch.get_rng_state().tolist(), str(np.random.get_state()), os.environ.copy(),
                     torch.get_default_dtype(), torch.get_float32_matmul_precision(),
                     signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    before = state()
    fresh(file)
    shown = capsys.readouterr()
    assert state() == before and os.listdir(tmp_path) == [] and shown.out + shown.err == ''


# ---- device and statistics -----------------------------------------------------------------------


class OtherLibrary:
    """A C library without mallopt()."""


@pytest.mark.parametrize('library', ['none', 'not glibc'])
def test_where_resource_or_glibc_is_missing_memory_is_just_not_known(
        library, monkeypatch, capfd, torch_settings):
    def load(name):
        if library == 'none':
            raise OSError('no such library')
        return OtherLibrary()

    monkeypatch.setitem(sys.modules, 'resource', None)      # its import fails, as on Windows
    monkeypatch.setattr(ctypes, 'CDLL', load)
    common.keep_freed_memory()
    device, note = init_device('cpu', 'float32')
    assert device.type == 'cpu' and note.startswith('cpu, products in float32')
    assert common.peak_memory(device) is None
    assert capfd.readouterr() == ('', '')


@pytest.mark.skipif(not os.path.exists('/proc/self/status'), reason='needs Linux')
def test_peak_memory_is_what_the_kernel_counts_in_gb():
    with open('/proc/self/status') as file:
        kilobytes = int(re.search(r'VmHWM:\s+(\d+) kB', file.read())[1])
    found = common.peak_memory(torch.device('cpu'))
    assert found == pytest.approx(1024 * kilobytes / 1e9, rel=0.05)


def test_statistics_are_weighted_means_and_maxima():
    stats = Statistics()
    values = [1.0, 4.0, 10.0]
    counts = [1, 2, 5]
    for value, count in zip(values, counts):
        stats.add(count, mean=torch.tensor(value * count))
        stats.add_max(top=torch.tensor(-value))
    stats.add(1, single=3.0)
    found = stats.read(torch.device('cpu'))
    expected = sum(v * n for v, n in zip(values, counts)) / sum(counts)
    assert found == {'mean': pytest.approx(expected), 'single': 3.0, 'top': -1.0}


# ---- processes and a toy repository --------------------------------------------------------------

PLAY = '''
import atexit, os, resource, runpy, signal, sys
os.setpgid(0, 0)                            # a group, for signals that children get too
signal.signal(signal.SIGHUP, signal.SIG_DFL)    # nohup for the tests is not for the run
for fd, path in ((1, out), (2, err)):
    os.dup2(os.open(path, os.O_WRONLY), fd)
sys.stdout.reconfigure(line_buffering=True)     # as on a terminal
sys.dont_write_bytecode = False             # the next run shall not parse our modules again
os.chdir(folder)
for name in [name for name in os.environ if name.startswith('WANDB')]:
    del os.environ[name]
os.environ.update(env)
sys.path[:] = [*modules, folder] + [path for path in sys.path if path != tested]
sys.argv = argv
if most_bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
exec(sabotage)
try:
    runpy.run_path(argv[0], run_name='__main__')
except Exception:
    sys.excepthook(*sys.exc_info())
    sys.exit(1)
finally:
    atexit._run_exitfuncs()                 # multiprocessing would not, here and above
'''


def until(ready, seconds, what):
    """ready()'s first true value, asked for at most so many seconds."""
    end = time.time() + seconds
    while time.time() < end:
        value = ready()
        if value:
            return value
        time.sleep(0.002)
    raise AssertionError(f"waited {seconds} s for {what}")


class Job:
    """A script running in a process of its own."""

    def __init__(self, base, argv, folder, env, modules, sabotage, most_bytes):
        self.argv = [str(arg) for arg in argv]
        self.paths = {}
        for name in ('out', 'err'):
            self.paths[name] = f'{base}.{name}'
            pathlib.Path(self.paths[name]).touch()
        given = {'argv': self.argv, 'folder': str(folder), 'tested': str(HERE),
                 'env': {key: str(value) for key, value in env.items()},
                 'modules': [str(path) for path in modules], 'sabotage': sabotage,
                 'most_bytes': most_bytes}
        self.process = FORKS.Process(target=exec, args=(PLAY, given | self.paths), daemon=True)
        self.process.start()
        self.pid = self.process.pid
        self.code = None

    @property
    def out(self):
        return pathlib.Path(self.paths['out']).read_text()

    @property
    def err(self):
        return pathlib.Path(self.paths['err']).read_text()

    def ended(self, seconds=0):
        """Has it ended, after waiting so long at most? Then its exit code is known."""
        if self.code is None:
            self.process.join(seconds)
            self.code = self.process.exitcode
            if self.code is not None:
                self.process.close()        # gives back its file descriptors
        return self.code is not None

    def send(self, number, group=False):
        """Sends a signal, unless the process has ended; to its children too, as Ctrl-C does."""
        kill = os.killpg if group else os.kill
        if not self.ended():
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, number)
        return self

    def wait(self, seconds=120):
        """The exit code, negative for a signal."""
        if not self.ended(seconds):
            self.send(signal.SIGKILL, group=True)
            raise AssertionError(f"waited {seconds} s for the end of {self.argv}\n{self.err}")
        return self.code

    def good(self):
        """Waits; asserts that all went well."""
        assert self.wait() == 0, f"{self.argv}\n{self.out[-2000:]}\n{self.err[-4000:]}"
        return self

    def refused(self, *words):
        """Waits; asserts the one clear line that a user's mistake ends with."""
        code = self.wait()
        lines = self.err.strip().splitlines()
        assert code == 1 and len(lines) == 1 and lines[0].startswith('error: '), \
            f"{self.argv} ended with {code}:\n{self.err}"
        assert len(lines[0]) < 1000 and all(word in lines[0] for word in words), \
            f"{words} not all in: {lines[0]}"
        return self

    def until_it_says(self, text):
        until(lambda: self.ended() or text in self.out, 120, f"{text!r} of {self.argv}")

    def until_it_logs(self, out, n):
        """Waits until n lines of the log are written, or the run has ended."""
        until(lambda: self.ended() or len(whole_lines(out)) >= n, 120, f"{n} lines in {out}")


TOY = '''# a run of seconds
generator_checkpoint = 'toy/generator.pt'
judge_checkpoint = 'toy/judge.pt'
batch_size = 4
group_size = 4
max_iters = 12
lr_decay_iters = 12
warmup_iters = 2
eval_interval = 4
eval_prompts = 16
save_interval = 4
sample_interval = 0
blank_low = 0.1
blank_high = 0.9
device = 'cpu'
dtype = 'float32'
compile = False
'''
SMALL = '''n_layer = 1
n_head = 2
n_embd = 16
batch_size = 32
max_iters = 10
eval_interval = 10
warmup_iters = 2
device = 'cpu'
dtype = 'float32'
compile = False
'''


class Toy:
    """A copy of the repository with prepared data and tiny models, in which scripts are run."""
    knobs = TOY
    recipe = SMALL

    def __init__(self, scratch):
        self.scratch = scratch
        self.repo = scratch / 'repo'
        self.jobs = []
        self.count = 0
        left_out = shutil.ignore_patterns('.*', 'venv', 'out*', '*.bin', 'meta.json', 'wandb',
                                          '__pycache__')        # a .venv may hold gigabytes
        shutil.copytree(HERE, self.repo, ignore=left_out)
        (self.repo / 'config/toy.py').write_text(self.knobs)
        for name in ('generator_toy', 'judge_toy'):
            (self.repo / f'config/{name}.py').write_text(self.recipe)
        self.run('data/arithmetic/prepare.py').good()
        jobs = [self.run('model.py', 'config/generator_toy.py', '--out=toy/generator.pt'),
                self.run('model.py', 'config/generator_toy.py', '--out=toy/causal.pt',
                         '--mode=causal'),
                self.run('judge.py', 'config/judge_toy.py', '--out=toy/judge.pt')]
        for job in jobs:
            job.good()

    def run(self, *argv, folder=None, modules=(), sabotage='', most_bytes=0, **env):
        """Starts a script. modules: folders in which it looks for modules first; sabotage: code
        that breaks something in the process before the script runs; most_bytes: of a file that the
        script writes, 0: any; env: changes to its environment."""
        job = Job(self.scratch / f'job{len(self.jobs)}', argv, folder or self.repo, env, modules,
                  sabotage, most_bytes)
        self.jobs.append(job)
        return job

    def train(self, out, *flags, **how):
        return self.run('train_grpo.py', 'config/toy.py', f'--out_dir={out}', *flags, **how)

    def ranks(self, out, *flags, **how):
        """The same on two ranks, as torchrun would start them."""
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            port = free.getsockname()[1]
        return [self.train(out, *flags, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=2,
                           MASTER_ADDR='127.0.0.1', MASTER_PORT=port, **how) for rank in (0, 1)]

    def new(self, name='run'):
        """A name that is not taken."""
        self.count += 1
        return self.scratch / f'{name}{self.count}'

    def copy(self, folder):
        """A copy of a folder, such as that of a run."""
        path = self.new('copy')
        shutil.copytree(folder, path)
        return path

    def config(self, text):
        """A config file with this text."""
        path = self.new('config').with_suffix('.py')
        path.write_text(text)
        return path

    def close(self):
        for job in self.jobs:
            job.send(signal.SIGKILL, group=True)


@pytest.fixture(scope='module')
def toy(tmp_path_factory):
    toy = Toy(tmp_path_factory.mktemp('system'))
    yield toy
    toy.close()


@pytest.fixture(scope='module')
def stopped(toy):
    """The folder of a run that was stopped at step 6 of 12; tests take copies."""
    out = toy.new()
    toy.train(out, '--max_iters=6').good()
    return out


def checkpoint(out, name='ckpt.pt'):
    return torch.load(f'{out}/{name}', weights_only=True)


def whole_lines(out):
    """The lines of a log, as they are so far: the last one may be torn."""
    path = pathlib.Path(out, 'log.jsonl')
    text = path.read_text() if path.exists() else ''
    return [json.loads(line) for line in text[:text.rfind('\n') + 1].splitlines()]


def log_lines(out):
    """The log without times."""
    lines = []
    for text in pathlib.Path(out, 'log.jsonl').read_text().splitlines():
        line = json.loads(text)
        lines.append({key: value for key, value in line.items()
                      if not key.startswith('ms_') and key != 'completions_per_s'})
    return lines


def steps_logged(out):
    return [line['step'] for line in log_lines(out) if 'loss' in line]


def bits(value):
    """Anything out of a checkpoint, in a form that is equal only if every bit is."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(v) for v in value]
    return repr(value)


def state(out, name='ckpt.pt'):
    """All that a run computed: weights, optimizers, step, best score; bit by bit."""
    found = checkpoint(out, name)
    del found['config'], found['checksum']      # they know the name of the folder
    return {key: bits(value) for key, value in found.items()}


def alter_checkpoint(path, new_path, alter):
    """Saves the checkpoint at a path as another one, whole and signed, after alter(weights)."""
    content = torch.load(path, weights_only=True)
    del content['checksum']
    alter(content['model'])
    model.save_checkpoint(new_path, **content)


def weights_differ(out, other):
    """The largest difference between the weights of two runs."""
    one = checkpoint(out)['model']
    two = checkpoint(other)['model']
    return max((one[key].double() - two[key].double()).abs().max().item() for key in one)


def files(folder):
    """Every file below a folder, with its bytes; caches of Python aside."""
    return {str(path.relative_to(folder)): path.read_bytes()
            for path in pathlib.Path(folder).rglob('*')
            if path.is_file() and '__pycache__' not in path.parts}


def all_refused(toy, run, cases):
    """Runs each case, flags and the words of its one line, some at a time; asserts that line, and
    that nothing was written into the repository."""
    before = files(toy.repo)
    problems = []
    for i in range(0, len(cases), 4):
        jobs = [(run(*flags), words) for flags, words in cases[i:i + 4]]
        for job, words in jobs:
            try:
                job.refused(*words)
            except AssertionError as e:
                problems.append(str(e).split('\nassert')[0][-600:])
    after = files(toy.repo)
    for name in set(after) | set(before):
        if before.get(name) != after.get(name):
            problems.append(f"{name} was changed or left behind")
    assert not problems, '\n\n'.join(problems)


# ---- exact resume --------------------------------------------------------------------------------

VARIANTS = {
    'fill': ['--gradient_accumulation_steps=2', '--kl_beta=0', '--dtype=bfloat16'],
    'causal': ['--mode=causal', '--blank_kind=suffix', '--generator_checkpoint=toy/causal.pt',
               '--inner_updates=2', '--mini_batches=2', '--gradient_accumulation_steps=2',
               '--target_kl=0.001', '--adv_norm=std', '--top_p=0.9']}


def straight_or_not(toy, flags, steps, first, kills):
    """A run in one piece, one in two, and one that is killed when its log holds so many lines;
    asserts that nobody can tell them apart."""
    whole = [*flags, f'--lr_decay_iters={steps}', f'--max_iters={steps}']
    straight, two, killed = toy.new(), toy.new(), toy.new()
    jobs = [toy.train(straight, *whole), toy.train(two, *whole, f'--max_iters={first}')]
    for i, n_lines in enumerate(kills):
        job = toy.train(killed, *whole, f'--resume={i > 0}')
        job.until_it_logs(killed, n_lines)
        time.sleep(random.random() * 0.02)
        assert job.send(signal.SIGKILL).wait() in (-signal.SIGKILL, 0)
    for job in jobs:
        job.good()
    assert checkpoint(two)['step'] == first
    jobs = [toy.train(out, *whole, '--resume=True') for out in (two, killed)]
    for job in jobs:
        job.good()

    for out in (two, killed):
        assert state(out) == state(straight)
        assert state(out, 'best.pt') == state(straight, 'best.pt')
        assert log_lines(out) == log_lines(straight)
    expected = []                               # an evaluation stands before its step
    for step in range(steps + 1):
        expected += [(step, 'evaluation')] * (step % 4 == 0) + [(step, 'step')] * (step < steps)
    assert expected == [(line['step'], 'step' if 'loss' in line else 'evaluation')
                        for line in log_lines(straight)]


@pytest.mark.parametrize('variant', VARIANTS)
def test_a_run_in_two_pieces_and_one_that_was_killed_end_like_one_in_one_piece(toy, variant):
    straight_or_not(toy, VARIANTS[variant], 12, 5, [random.randint(8, 9), random.randint(8, 14)])


def killed_often(toy, kills):
    """SIGKILL at random moments of a run that saves at every step; every newest checkpoint
    must load and be of a step that the log has reached. Returns how far the run got."""
    out = toy.new()
    path = out / 'ckpt.pt'
    flags = ['--save_interval=1', '--max_iters=100000', '--lr_decay_iters=100000']
    steps = []
    for i in range(kills):
        before = checkpoint(out)['step'] if i else 0
        saved = path.stat().st_mtime_ns if i else 0
        job = toy.train(out, *flags, f'--resume={i > 0}')
        job.until_it_says('\nstep ')
        if i % 2 or i == 0:                     # every second run gets further
            until(lambda: job.ended() or path.exists() and path.stat().st_mtime_ns > saved, 120,
                  "a new checkpoint")
        time.sleep(random.random() * 0.3)
        assert job.send(signal.SIGKILL).wait() == -signal.SIGKILL, job.err
        found = checkpoint(out)                 # raises if it is not whole
        assert before <= found['step'] <= whole_lines(out)[-1]['step'] + 1
        assert all(p.isfinite().all() for p in found['model'].values())
        steps.append(found['step'])
    assert steps == sorted(steps) and len(set(steps)) > kills // 2
    toy.train(out, *flags, f'--max_iters={steps[-1] + 2}', '--resume=True').good()
    assert set(files(out)) - {'.lock'} == {'best.pt', 'ckpt.pt', 'config.json', 'log.jsonl',
                                           'samples.jsonl'}
    return steps


def test_after_sigkill_at_random_moments_the_newest_checkpoint_loads(toy):
    killed_often(toy, 4)


def test_two_runs_of_one_command_are_equal_and_looking_saving_or_logging_changes_nothing(toy):
    outs = [toy.new() for _ in range(4)]
    jobs = [toy.train(outs[0]), toy.train(outs[1]),
            toy.train(outs[2], '--eval_interval=0', '--save_interval=0', '--log_interval=100'),
            toy.train(outs[3], '--eval_interval=1', '--save_interval=1', '--sample_interval=1',
                      '--eval_prompts=7')]
    for job in jobs:
        job.good()
    assert state(outs[0]) == state(outs[1]) and log_lines(outs[0]) == log_lines(outs[1])
    for other in outs[2:]:
        for key in ('model', 'optimizers', 'step'):
            assert state(other)[key] == state(outs[0])[key]
    training = [line for line in log_lines(outs[0]) if 'loss' in line]
    assert training == [line for line in log_lines(outs[3]) if 'loss' in line]
    assert len(training) == 12 and checkpoint(outs[0])['step'] == 12
    start = torch.load(toy.repo / 'toy/generator.pt', weights_only=True)['model']
    assert bits(start) != bits(checkpoint(outs[0])['model'])            # something was learned


def test_the_choice_of_the_matrix_library_does_not_depend_on_how_busy_the_machine_is(monkeypatch):
    """It once did, by a stopwatch: two runs of one command could differ in the last bits."""
    before = torch.get_float32_matmul_precision()
    chosen = []
    for slow in ('highest', 'medium'):
        now = 0.0

        def clock():
            nonlocal now
            now += 1.0 if torch.get_float32_matmul_precision() == slow else 0.01
            return now
        monkeypatch.setattr(time, 'perf_counter', clock)
        choose_matmul_precision()
        chosen.append(torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision(before)
    assert chosen[0] == chosen[1]


# ---- ranks and micro-steps -----------------------------------------------------------------------

RECORD = '''
import json, os
def record(prompts, completions):
    with open(os.environ['RECORD'] + os.environ.get('RANK', '0'), 'a') as file:
        file.write(json.dumps([prompts, completions]) + '\\n')
    return [float(sum(map(int, filter(str.isdecimal, c)))) / 100 for c in completions]
rewards = {'judge': 1.0, 'record': 0.5}
'''


def recorded(out, n_ranks):
    """The pairs (prompt, completion) that the ranks of a run were rewarded for, in their order."""
    calls_by_rank = []
    for rank in range(n_ranks):
        calls = [json.loads(line) for line in open(f'{out}-{rank}')]
        calls_by_rank.append(calls[1:])         # the first was the check before the first step
    pairs = []
    for micro_steps in zip(*calls_by_rank):
        for prompts, completions in micro_steps:
            pairs += zip(prompts, completions)
    return pairs


def spread(toy, flags):
    """5 steps of 8 micro-steps as 1 process x 8, 1 x 1 of eight times the batch, 2 ranks x 4;
    returns their folders after asserting that all took the same completions."""
    micro, whole, ranks = outs = [toy.new() for _ in range(3)]
    flags = [toy.config(RECORD), '--max_iters=5', '--eval_interval=0', '--kl_beta=0.1', *flags]
    small = ['--batch_size=3', '--gradient_accumulation_steps=8']
    jobs = [toy.train(micro, *flags, *small, RECORD=f'{micro}-'),
            toy.train(whole, *flags, '--batch_size=24', RECORD=f'{whole}-'),
            *toy.ranks(ranks, *flags, *small, RECORD=f'{ranks}-')]
    for job in jobs:
        job.good()
    seen = recorded(micro, 1)
    assert len(seen) == 5 * 24 * 4              # steps, prompts, completions of each
    assert seen == recorded(whole, 1) == recorded(ranks, 2)

    # The ranks had different numbers of blanks, so that a wrong divisor would have shown.
    blanks = [prompt.count('_') for prompt, _ in seen]
    of_rank = [0, 0]
    for i in range(24 * 4):
        of_rank[i // 12 % 2] += blanks[i]       # a micro-step has 3 prompts, 12 completions
    assert len(set(blanks)) > 3 and of_rank[0] != of_rank[1]
    return outs


@pytest.mark.parametrize('adv_norm', ['none', 'std', 'batch', 'rloo'])
def test_micro_steps_and_ranks_are_only_another_way_to_compute_the_same_step(toy, adv_norm):
    # AdamW and Muon turn last bits of small gradients into steps of up to the learning rate: after
    # 5 steps float32 agrees to 3e-6 at a rate of 1e-5, 6e-4 at 1e-3; float64 to 1e-14 at any
    for dtype, rate, tolerance in (('float64', 1e-3, 1e-9), ('float32', 1e-5, 3e-6)):
        outs = spread(toy, [f'--adv_norm={adv_norm}', f'--dtype={dtype}', '--min_lr=1e-6',
                            f'--learning_rate={rate}'])
        for out in outs[1:]:
            assert weights_differ(outs[0], out) < tolerance
            for one, other in zip(log_lines(outs[0]), log_lines(out)):
                for key, value in one.items():
                    assert value == pytest.approx(other[key], rel=1e-4, abs=1e-5), key


def torchrun(toy, *argv):
    """Starts a run on two ranks as a user would. It takes seconds: Python imports torch thrice."""
    env = {key: value for key, value in os.environ.items() if 'RANK' not in key}
    return subprocess.Popen([sys.executable, '-m', 'torch.distributed.run', '--standalone',
                             '--nproc_per_node=2', 'train_grpo.py', *map(str, argv)],
                            cwd=toy.repo, env=env | {'OMP_NUM_THREADS': '1'}, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture(scope='module')
def torchrun_run(toy):
    """A run that torchrun started, and its folder."""
    out = toy.new()
    flags = ['config/toy.py', '--gradient_accumulation_steps=2', f'--out_dir={out}']
    with torchrun(toy, *flags) as process:
        yield process, out


def test_two_ranks_make_what_is_missing_once_and_only_rank_0_speaks_and_writes(toy, torchrun_run):
    # (torchrun_run takes seconds, as this does; it is at work beside it)
    folder, out = toy.new('clone'), toy.new()
    shutil.copytree(toy.repo, folder, ignore=shutil.ignore_patterns('*.bin', 'meta.json', 'toy'))
    flags = ['--generator_checkpoint=', '--generator_recipe=config/generator_toy.py',
             '--judge_checkpoint=', '--judge_recipe=config/judge_toy.py', '--max_iters=3',
             '--gradient_accumulation_steps=2']
    first, second = toy.ranks(out, *flags, folder=folder)
    first.good()
    second.good()
    made = [line for line in first.out.splitlines() if line.startswith('$')]
    assert [line.split()[2] for line in made] == ['data/arithmetic/prepare.py', 'model.py',
                                                  'judge.py']
    assert second.out == '' and 'Traceback' not in first.err + second.err
    assert steps_logged(out) == [0, 1, 2]
    before = files(folder)
    again = toy.train(out, *flags, folder=folder).good()            # and what was made is kept
    assert '$' not in again.out and files(folder) == before


def test_torchrun_with_two_ranks_runs_to_the_end(toy, torchrun_run):
    process, out = torchrun_run
    alone = toy.new()
    toy.train(alone, '--gradient_accumulation_steps=2').good()
    shown, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert shown.count('held-out verify: ') == 1 and 'Traceback' not in errors
    assert len(log_lines(out)) == len(log_lines(alone)) == 12 + 4
    assert log_lines(out)[1] == pytest.approx(log_lines(alone)[1], rel=1e-4, abs=1e-6)


LATE = """
import json, time
dumps = json.dumps
def slowly(*args, **how):       # a long while between the end of a step and the next
    time.sleep(0.2)
    return dumps(*args, **how)
json.dumps = slowly
"""


def test_a_signal_to_any_rank_at_any_moment_stops_all_ranks_after_the_same_step(toy):
    runs = []
    for targets in ((0,), (1,), (0, 1)):
        out = toy.new()
        jobs = toy.ranks(out, '--max_iters=500', '--eval_interval=0',
                         '--gradient_accumulation_steps=2', sabotage=LATE)
        runs.append((targets, out, jobs))
    for targets, out, jobs in runs:
        jobs[0].until_it_logs(out, 2)
        time.sleep(random.random() * 0.2)
        for rank in targets:
            jobs[rank].send(signal.SIGTERM)
    for targets, out, jobs in runs:
        assert [job.wait() for job in jobs] == [143, 143], jobs[0].err + jobs[1].err
        assert steps_logged(out) == list(range(checkpoint(out)['step']))
        assert jobs[0].out.splitlines()[-1].endswith('--resume=True')


FRAGILE = """
import os
def fragile(prompts, completions):
    fragile.calls += 1
    if fragile.calls == 3 and os.environ.get('RANK') == '1':
        raise RuntimeError('the disk of rank 1 is gone')
    return [0.0] * len(prompts)
fragile.calls = 0
rewards = {'judge': 1.0, 'fragile': 1.0}
"""
GONE = "error: reward 'fragile' raised RuntimeError: the disk of rank 1 is gone"


def test_if_a_rank_fails_the_others_end_too_and_nothing_hangs(toy):
    out = toy.new()
    jobs = toy.ranks(out, toy.config(FRAGILE), '--eval_interval=0', '--save_interval=1',
                     '--gradient_accumulation_steps=2')
    jobs[1].refused(GONE)
    assert jobs[0].wait(20) == 1
    assert checkpoint(out)['step'] == 1 and steps_logged(out) == [0]


# ---- signals -------------------------------------------------------------------------------------

FOREVER = ['--max_iters=100000', '--lr_decay_iters=100000', '--eval_interval=0']
SAVES = """
import time, torch
save = torch.save
calls = []
def broken(content, file):                      # half of save number {at}, and then
    calls.append(file)
    if len(calls) < {at}:
        return save(content, file)
    file.write(b'half of a checkpoint')
    file.flush()
    {what}
torch.save = broken
"""
SLEEP = 'time.sleep(30)'
SLOW = """
import time
def slow(prompts, completions):
    slow.calls += 1
    time.sleep(30 if slow.calls == 6 else 0)            # in step 4
    return [0.0] * len(prompts)
slow.calls = 0
rewards = {'judge': 1.0, 'slow': 1.0}
"""


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_step_end_saves_and_ends_with_the_command_to_resume(toy, number):
    out = toy.new('a run of ')                  # a name that a shell would tear apart
    job = toy.train(out, *FOREVER, '--save_interval=0', "--rewards={'judge': 1.0, 'length': 0.1}")
    job.until_it_logs(out, 3)
    assert job.send(number).wait() == 128 + number, job.err
    assert job.err == '' and checkpoint(out)['step'] == len(log_lines(out)) >= 3
    last = job.out.splitlines()[-1]
    command = shlex.split(last[last.index('python '):])
    assert command[0] == 'python' and '--resume=True' in command
    steps = checkpoint(out)['step'] + 2
    toy.run(*command[1:], f'--max_iters={steps}').good()
    assert steps_logged(out) == list(range(steps)) == [line['step'] for line in log_lines(out)]


@pytest.mark.parametrize('where, step', [('in a step', 4), ('in a save', 2)])
def test_a_second_signal_stops_at_once_and_leaves_the_previous_checkpoint_whole(toy, where, step):
    out = toy.new()
    flags = [*FOREVER, '--save_interval=1']
    if where == 'in a step':
        job = toy.train(out, toy.config(SLOW), *flags)
    else:
        job = toy.train(out, *flags, sabotage=SAVES.format(at=3, what=SLEEP))
    job.until_it_logs(out, 3)
    until(lambda: checkpoint(out)['step'] == step, 60, "checkpoints")
    time.sleep(0.1)                             # now it sleeps
    before = {name: content for name, content in files(out).items() if '.tmp' not in name}
    began = time.time()
    job.send(signal.SIGTERM)
    until(lambda: 'once more' in job.out or time.time() > began + 0.3, 1, "the first")
    assert job.send(signal.SIGINT).wait(10) == 130 and time.time() - began < 5
    after = files(out)
    assert after['ckpt.pt'] == before['ckpt.pt'] and set(after) == set(before)
    assert 'Traceback' not in job.err


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize('script, recipe', [('model.py', 'config/generator_toy.py'),
                                            ('judge.py', 'config/judge_toy.py')])
def test_a_generator_or_judge_that_is_interrupted_writes_nothing_and_says_how_to_go_on(
        toy, script, recipe, number):
    out = toy.new().with_suffix('.pt')
    job = toy.run(script, recipe, '--max_iters=100000', f'--out={out}')
    job.until_it_says('\nstep ')
    assert job.send(number).wait() == 128 + number
    assert f'python {script} {recipe}' in job.out.splitlines()[-1] and job.err == ''
    assert not out.exists() and not list(out.parent.glob(f'{out.name}*'))


def test_interrupted_in_the_save_a_generator_is_not_written_by_half(toy):
    for number, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        out = toy.new().with_suffix('.pt')
        job = toy.run('model.py', 'config/generator_toy.py', f'--out={out}',
                      sabotage=SAVES.format(at=1, what=SLEEP))
        until(lambda: job.ended() or list(out.parent.glob(f'{out.name}*')), 120, "the save")
        assert job.send(number).wait() == code and not out.exists()
        assert number == signal.SIGKILL or not list(out.parent.glob(f'{out.name}*'))


def test_interrupted_while_it_trains_its_generator_grpo_takes_it_down_and_says_so(toy):
    jobs = []
    for n in (1, 2):
        recipe = f'config/generator_toy.py --max_iters={n}000000'
        jobs.append(toy.train(toy.new(), '--generator_checkpoint=', f'--generator_recipe={recipe}'))
    # Ctrl-C reaches the children too, a SIGTERM does not.
    for job, number, group in zip(jobs, (signal.SIGINT, signal.SIGTERM), (True, False)):
        job.until_it_says('\nstep ')
        assert job.send(number, group).wait() == 128 + number
        length = len(job.out)
        assert 'python train_grpo.py config/toy.py' in job.out.splitlines()[-1]
        assert 'Traceback' not in job.err
        time.sleep(0.3)
        assert len(job.out) == length           # nobody goes on behind our back
        assert not list((toy.repo / 'out').glob('*000000*'))


def test_ctrl_c_while_everything_is_set_up_is_no_traceback_either(toy):
    for _ in range(4):
        job = toy.train(toy.new(), *FOREVER)
        job.until_it_says('overrides')
        time.sleep(random.random() * 0.15)
        assert job.send(signal.SIGINT).wait() == 130 and job.err == ''
        assert 'python train_grpo.py config/toy.py' in job.out.splitlines()[-1]


def test_a_run_goes_on_to_its_end_when_nobody_reads_its_output_any_more(toy):
    whole, out = toy.new(), toy.new()
    jobs = [toy.train(whole), toy.train(out, sabotage='''
r, w = os.pipe()
os.close(r)                                     # as `| head` does, at some time
os.dup2(w, 1)
''')]
    for job in jobs:
        job.good()
    assert jobs[1].out == '' == jobs[1].err and state(out) == state(whole)


# ---- not a number --------------------------------------------------------------------------------

MOODY = """
import os
def moody(prompts, completions):
    moody.calls += 1
    values = [c.count('1') / 10 for c in completions]
    if moody.calls == {call} and os.environ.get('RANK', '0') == '{rank}':
        values[9] = float('{value}')
        os.write(2, b'CULPRIT ' + prompts[9].encode() + b'\\n')
    return values
moody.calls = 0
rewards = {{'judge': 1.0, 'moody': 1.0}}
"""


@pytest.mark.parametrize('value', ['nan', 'inf'])
def test_a_reward_that_is_not_finite_stops_the_run_by_name_and_spares_the_checkpoint(toy, value):
    whole, out = toy.new(), toy.new()
    config = toy.config(MOODY.format(call=6, rank=0, value=value))      # in step 4
    flags = [config, '--eval_interval=0', '--save_interval=1']
    jobs = [toy.train(whole, *flags, '--max_iters=4'), toy.train(out, *flags)]
    jobs[0].good()
    assert jobs[1].wait() == 1
    culprit, error = jobs[1].err.splitlines()
    assert error.startswith('error: step 4, prompt ') and "reward 'moody' is not finite" in error
    assert culprit.removeprefix('CULPRIT ') in error and '_' in culprit
    assert state(out) == state(whole) and log_lines(out) == log_lines(whole)


def test_a_nan_on_one_rank_stops_both_and_names_its_prompt(toy):
    config = toy.config(MOODY.format(call=4, rank=1, value='nan'))      # in step 2
    out = toy.new()
    jobs = toy.ranks(out, config, '--eval_interval=0', '--gradient_accumulation_steps=2')
    assert [job.wait() for job in jobs] == [1, 1]
    culprit = jobs[1].err.splitlines()[0].removeprefix('CULPRIT ')
    assert '_' in culprit
    for job in jobs:
        error = job.err.splitlines()[-1]
        assert 'step 2' in error and 'moody' in error and culprit in error
    assert not (out / 'ckpt.pt').exists()


def test_a_judge_or_policy_that_is_not_finite_is_named_and_nothing_is_saved(toy):
    for name, words in (('judge', ['step 0', 'prompt', '_', "reward 'judge'"]),
                        ('generator', ['step 0', 'loss', 'not finite'])):
        path, out = toy.new().with_suffix('.pt'), toy.new()
        alter_checkpoint(toy.repo / f'toy/{name}.pt', path,
                         lambda weights: next(iter(weights.values())).fill_(float('nan')))
        job = toy.train(out, f'--{name}_checkpoint={path}', '--save_interval=1',
                        '--eval_interval=0')
        job.refused(*words)
        assert not (out / 'ckpt.pt').exists() and log_lines(out) == []


def test_another_number_that_is_not_finite_is_named_by_its_key_in_the_log(toy):
    out = toy.new()
    job = toy.train(out, '--save_interval=1', '--eval_interval=0', sabotage="""
import torch
clip = torch.nn.utils.clip_grad_norm_
calls = []
def infinite(*args):                            # in step 2
    calls.append(args)
    return clip(*args) * (float('inf') if len(calls) == 3 else 1.0)
torch.nn.utils.clip_grad_norm_ = infinite
""")
    job.refused('step 2', 'grad_norm', 'not finite')
    assert checkpoint(out)['step'] == 2 and steps_logged(out) == [0, 1]


RUIN = """
import torch
adamw = torch.optim.AdamW.step
calls = []
def ruin(self, *args, **kwargs):                # the third update leaves a weight infinite
    adamw(self, *args, **kwargs)
    calls.append(self)
    if len(calls) == 3:
        self.param_groups[0]['params'][0].data[0] = float('inf')
torch.optim.AdamW.step = ruin
"""


def test_a_policy_that_is_destroyed_while_it_learns_is_never_saved(toy):
    every = ['--save_interval=1', '--eval_interval=1']
    out = toy.new()
    toy.train(out, *every, sabotage=RUIN).refused('step 3', 'not finite')
    assert checkpoint(out)['step'] == 2
    for rate in ('1e20', '1e29'):
        wild = toy.new()
        toy.train(wild, f'--learning_rate={rate}', *every, '--kl_beta=0').refused('step')
        for path in [*wild.glob('ckpt.pt'), *wild.glob('best.pt')]:
            weights = checkpoint(wild, path.name)['model']
            assert all(p.isfinite().all() for p in weights.values())


# ---- checkpoints and logs that were damaged, changed, or could not be written --------------------

def test_a_checkpoint_cut_off_or_with_a_bit_turned_is_refused_with_a_sentence(toy, stopped):
    whole = (stopped / 'ckpt.pt').read_bytes()
    weight = checkpoint(stopped)['model']['embed.weight'].numpy().tobytes()
    at = whole.index(weight) + len(weight) // 2
    turned = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:]
    cuts = [whole[:n] for n in (*range(0, len(whole), 1000), len(whole) - 100, len(whole) - 1)]
    path = toy.new().with_suffix('.pt')
    saved = checkpoint(stopped)
    data = types.SimpleNamespace(name='arithmetic', fingerprint=saved['corpus'],
                                 tok=Tokenizer(**saved['vocabulary']))
    for content in (turned, *cuts):
        path.write_bytes(content)
        with pytest.raises(SystemExit, match=f'{path} is damaged.*; make one with: make it'):
            model.load_checkpoint(path, 'policy', data, 'make it')
    path.write_bytes(whole)
    model.load_checkpoint(path, 'policy', data, 'make it')

    cases = []
    for content in (turned, cuts[0], cuts[20], cuts[-2]):
        out = toy.copy(stopped)
        (out / 'ckpt.pt').write_bytes(content)
        cases.append(([f'--out_dir={out}', '--resume=True'],
                      ['ckpt.pt', 'damaged', 'python train_grpo.py']))
    for name, knob in (('generator', 'generator_checkpoint'), ('judge', 'judge_checkpoint'),
                       ('generator', 'reference_checkpoint')):
        cut = toy.new().with_suffix('.pt')
        cut.write_bytes((toy.repo / f'toy/{name}.pt').read_bytes()[:-100])
        cases.append(([f'--out_dir={toy.new()}', f'--{knob}={cut}'], [cut.name, 'damaged']))
    all_refused(toy, lambda *flags: toy.run('train_grpo.py', 'config/toy.py', *flags), cases)


def test_a_checkpoint_that_would_run_code_is_refused_and_runs_nothing(toy, stopped):
    trap, trace = toy.new().with_suffix('.pt'), toy.new('trace')

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(trace),)
    torch.save({**checkpoint(stopped), 'kind': 'generator', 'config': Trap()}, trap)
    out = toy.copy(stopped)
    shutil.copy(trap, out / 'ckpt.pt')
    for job in (toy.train(out, '--resume=True'),
                toy.train(toy.new(), f'--generator_checkpoint={trap}'),
                toy.train(toy.new(), f'--judge_checkpoint={trap}'),
                toy.train(toy.new(), f'--reference_checkpoint={trap}')):
        job.refused('more than tensors and plain values')
    assert not trace.exists()
    with contextlib.suppress(Exception):
        torch.load(trap, weights_only=False)
    assert trace.exists()                       # the trap was a trap


def test_a_log_with_a_torn_last_line_is_continued_without_gap_or_repeat(toy, stopped):
    whole = toy.new()
    jobs = [toy.train(whole)]
    outs = []
    for torn in ('{"step": 6, "loss": 0.1', '{"step": 6, "loss": 0.1, "ms_learn": 3.0}\n{"st',
                 '\x00\x00\x00\n[1, 2]\n'):
        outs.append(toy.copy(stopped))
        with open(outs[-1] / 'log.jsonl', 'a') as file:
            file.write(torn)
        jobs.append(toy.train(outs[-1], '--resume=True'))
    for job in jobs:
        job.good()
    for out in outs:                            # step 6 was the end once, and was evaluated
        again = [line for line in log_lines(out) if line['step'] != 6 or 'loss' in line]
        assert again == log_lines(whole)


def test_resuming_refuses_knobs_that_change_the_maths_and_accepts_harmless_ones(toy, stopped):
    found = checkpoint(stopped)
    maths = {'temperature': 0.5, 'seed': 2, 'batch_size': 8, 'learning_rate': 2e-3, 'adv_eps': 0.01,
             'lr_decay_iters': 20, 'rewards': {'verify': 1}, 'dtype': 'float64', 'beta2': 0.9,
             'gradient_accumulation_steps': 2, 'ratio_level': 'sequence', 'kl_type': 'k2'}
    for name, value in maths.items():
        with pytest.raises(SystemExit, match=f'{name} .* -> '):
            train_grpo.check_resumable(found, found['config'] | {name: value})
    train_grpo.check_resumable(found, found['config'] | {'max_iters': 12, 'device': 'cuda'})

    before = files(stopped)
    job = toy.train(stopped, '--resume=True', '--kl_beta=0.3', '--adv_norm=std', '--eval_prompts=8')
    job.refused("kl_beta 0.05 -> 0.3", "adv_norm 'none' -> 'std'")
    assert 'eval_prompts' not in job.err and files(stopped) == before

    out, moved, plain = toy.new(), toy.copy(stopped), toy.new()
    harmless = ['--eval_interval=3', '--eval_prompts=8', '--log_interval=2', '--save_interval=0',
                '--sample_interval=3']
    jobs = [toy.train(out), toy.train(moved, '--resume=True', *harmless),
            toy.train(plain, '--lr_decay_iters=0', '--max_iters=6')]
    for job in jobs:
        job.good()
    for key in ('model', 'optimizers', 'step'):
        assert state(moved)[key] == state(out)[key]
    toy.train(moved, '--resume=True').good()                        # done is done
    assert state(moved)['model'] == state(out)['model']
    toy.train(moved, '--resume=True', '--max_iters=8').refused('12', '8')
    # A run whose schedule ended with it would have had another one, had it been longer.
    toy.train(plain, '--lr_decay_iters=0', '--resume=True').refused('max_iters 6 -> 12')


def test_resuming_refuses_a_judge_that_was_trained_anew_under_the_old_name(toy):
    path, out = toy.new().with_suffix('.pt'), toy.new()
    shutil.copy(toy.repo / 'toy/judge.pt', path)
    toy.train(out, f'--judge_checkpoint={path}').good()
    toy.train(out, f'--judge_checkpoint={path}', '--resume=True').good()

    def alter(weights):
        next(iter(weights.values()))[0, 0] += 1e-6      # the smallest of changes
    alter_checkpoint(path, path, alter)
    job = toy.train(out, f'--judge_checkpoint={path}', '--resume=True')
    job.refused('reference_and_judge', '->')


REWARD = '''
def ones(prompts, completions): return [c.count('1') / {by} for c in completions]
rewards = {{'judge': 1.0, 'ones': 1.0}}
'''


def test_resuming_refuses_a_reward_that_was_changed_under_the_old_name_until_told_otherwise(toy):
    out = toy.new()
    config = toy.config(REWARD.format(by=10))
    toy.train(out, config, '--max_iters=6').good()
    config.write_text(REWARD.format(by=5))
    job = toy.train(out, config, '--resume=True')
    job.refused('ckpt.pt, at step 6', 'functions', '--resume_changed=True')
    toy.train(out, config, '--resume=True', '--resume_changed=True').good()
    assert checkpoint(out)['step'] == 12


def test_a_folder_that_is_in_use_is_refused_and_a_run_that_stands_there_is_moved_aside(toy):
    out = toy.new()
    first = toy.train(out, *FOREVER)
    first.until_it_logs(out, 2)
    toy.train(out).refused('another run is writing', f'{out}', '--out_dir')
    toy.train(out, '--resume=True').refused('another run is writing')
    assert first.send(signal.SIGTERM).wait() == 143
    before = files(out)
    assert f'{out}-1' in toy.train(out, '--max_iters=2').good().out
    assert files(f'{out}-1') == before and checkpoint(out)['step'] == 2


FULL = 'raise OSError(28, "No space left on device")'


def test_a_full_disk_ends_a_run_with_a_line_and_the_previous_checkpoint_survives(toy, stopped):
    resume = ['--resume=True', '--eval_interval=0']
    out = toy.copy(stopped)                     # full in the second save
    job = toy.train(out, *resume, '--save_interval=1', sabotage=SAVES.format(at=2, what=FULL))
    job.refused('ckpt.pt', 'cannot write')
    assert checkpoint(out)['step'] == 7 and not list(out.glob('*.tmp'))
    toy.train(out, *resume).good()
    assert checkpoint(out)['step'] == 12

    out = toy.copy(stopped)                     # no room for a checkpoint, but for all the rest
    whole = (stopped / 'ckpt.pt').read_bytes()
    room = len(whole) - 1000
    job = toy.train(out, *resume, '--save_interval=1', most_bytes=room)
    job.refused('ckpt.pt', 'cannot write')
    assert files(out)['ckpt.pt'] == whole and not list(out.glob('*.tmp'))
    toy.train(out, *resume).good()
    assert checkpoint(out)['step'] == 12

    out = toy.new()                             # no room for a line of the log
    job = toy.train(out, '--eval_interval=0', '--save_interval=0', most_bytes=3000)
    job.refused('log.jsonl')


def test_killed_in_the_middle_of_a_save_the_checkpoint_before_is_whole(toy, stopped):
    out = toy.copy(stopped)
    job = toy.train(out, '--resume=True', '--save_interval=1', '--eval_interval=0',
                    sabotage=SAVES.format(at=1, what=SLEEP))
    until(lambda: job.ended() or list(out.glob('ckpt.pt.*')), 120, "the save")
    assert job.send(signal.SIGKILL).wait() == -signal.SIGKILL
    assert files(out)['ckpt.pt'] == files(stopped)['ckpt.pt']
    toy.train(out, '--resume=True').good()
    assert not list(out.glob('*.tmp')) and checkpoint(out)['step'] == 12


def test_data_of_another_corpus_is_named_before_anything_is_computed(toy, stopped):
    folder, out = toy.copy(toy.repo), toy.copy(stopped)
    path = folder / 'data/arithmetic/meta.json'
    meta = json.loads(path.read_text())
    other = {**meta, 'chars': meta['chars'] + 'abc'}
    del other['checksum']
    path.write_text(json.dumps({**other, 'checksum': digest_of(other)}))
    for flags, file in ((['--resume=True'], 'ckpt.pt'), ([], 'generator.pt')):
        toy.train(out, *flags, folder=folder).refused(file, "only here: 'abc'")
    path.write_text('{"tokenizer": "char", ')
    toy.run('judge.py', 'config/judge_toy.py', '--out=x.pt', folder=folder).refused('prepare.py')
    path.write_text(json.dumps(meta))
    text = folder / 'data/arithmetic/train.bin'
    text.write_bytes(text.read_bytes()[:-2])
    toy.run('model.py', 'config/generator_toy.py', '--out=x.pt', folder=folder).refused(
        'train.bin', 'prepare.py')
    text.unlink()
    toy.train(out, folder=folder).refused('train.bin', 'prepare.py')
    assert not (folder / 'x.pt').exists()


# ---- wandb ---------------------------------------------------------------------------------------

WANDB = {'missing': "raise ImportError('no module named wandb')",
         'silent failure': "def init(**_): raise RuntimeError()",
         'breaks later': """
class init:
    def __init__(self, **_): self.count = 0
    def log(self, line, **_):
        self.count += 1
        if self.count > 3: raise ConnectionError('the network is gone')
    def finish(self): raise ConnectionError('the network is gone')
""", 'works': """
import json
class init:
    def __init__(self, **given): print('INIT', given['config']['max_iters'], given['project'])
    def log(self, line, step):
        if 'step' in line: print('WANDB', step, json.dumps(line))
    def finish(self): pass
def Table(columns, data): return data
"""}


def test_wandb_absent_failing_or_fine_changes_nothing_but_a_warning_line(toy):
    plain = toy.new()
    first = toy.train(plain)
    jobs = {}
    for name, text in WANDB.items():
        folder, out = toy.new('wandb'), toy.new()
        folder.mkdir()
        (folder / 'wandb.py').write_text(text)
        jobs[name] = out, toy.train(out, '--wandb_log=True', modules=[folder])
    first.good()
    for name, (out, job) in jobs.items():
        job.good()
        assert state(out) == state(plain) and log_lines(out) == log_lines(plain), name
        warnings = [line for line in job.out.splitlines() if line.startswith('warning: ')]
        assert len(warnings) == (name != 'works') and job.err == '', name
        assert all('wandb' in line and 'log.jsonl' in line for line in warnings)
    out, job = jobs['works']
    told = [line.split(' ', 2) for line in job.out.splitlines() if line.startswith('WANDB ')]
    assert [json.loads(text) for _, _, text in told] == whole_lines(out)
    assert [int(step) for _, step, _ in told] == [line['step'] for line in whole_lines(out)]
    assert 'INIT 12 grpo' in job.out


def test_wandb_offline_works_with_the_real_package(toy):
    pytest.importorskip('wandb')
    plain, out, where = toy.new(), toy.new(), toy.new('wandb')
    where.mkdir()
    job = toy.train(out, '--max_iters=3', '--wandb_log=True', WANDB_MODE='offline',
                    WANDB_DIR=where, WANDB_SILENT='true')
    toy.train(plain, '--max_iters=3').good()
    assert 'warning: ' not in job.good().out
    assert log_lines(out) == log_lines(plain) and state(out) == state(plain)
    assert list(where.rglob('*.wandb'))


# ---- bad input -----------------------------------------------------------------------------------

BAD_KNOBS = [       # values of train_grpo.py that cannot be meant, and how the one line begins
    (['--group_size=1'], 'group_size = 1: expected group_size >= 2 (a group of one'),
    (['--group_size=0'], 'group_size = 0: expected group_size >= 2'),
    (['--block_size=1'], 'block_size = 1: expected block_size >= 2'),
    (['--top_p=0'], 'top_p = 0.0: expected top_p > 0'),
    (['--top_p=1.5'], 'top_p = 1.5: expected 0 <= top_p <= 1'),
    (['--top_k=-1'], 'top_k = -1: expected'),
    (['--temperature=0'], 'temperature = 0.0: expected'),
    (['--temperature=-1'], 'temperature = -1.0: expected'),
    (['--kl_beta=-0.1'], 'kl_beta = -0.1: expected'),
    (['--kl_beta=0', '--kl_in_reward=True'], 'kl_beta = 0, kl_in_reward = True, target_kl'),
    (['--kl_beta=0', '--target_kl=0.1'], 'kl_beta = 0, kl_in_reward = False, target_kl = 0.1'),
    (['--batch_size=0'], 'batch_size = 0: expected'),
    (['--gradient_accumulation_steps=0'], 'gradient_accumulation_steps = 0: expected'),
    (['--gradient_accumulation_steps=4', '--mini_batches=3'],
     'mini_batches = 3: expected a divisor of the 256 prompts of a step'),
    (['--gen_batch_size=8'], 'gen_batch_size = 8: expected gen_batch_size >= 16'),
    (['--max_iters=0'], 'max_iters = 0: expected'),
    (['--seed=-1'], 'seed = -1: expected'),
    (['--learning_rate=-0.1'], 'learning_rate = -0.1: expected'),
    (['--learning_rate=1e999'], 'learning_rate = inf: expected'),
    (['--weight_decay=-1'], 'weight_decay = -1.0: expected'),
    (['--beta1=1.5'], 'beta1 = 1.5: expected'),
    (['--grad_clip=-1'], 'grad_clip = -1.0: expected'),
    (['--adv_eps=-1'], 'adv_eps = -1.0: expected'),
    (['--blank_low=0.9', '--blank_high=0.1'], 'blank_low = 0.9: expected 0 <= blank_low <= 0.1'),
    (['--blank_kind=zigzag'], "blank_kind = 'zigzag': expected one of 'random', 'span', 'suffix'"),
    (['--mode=diagonal'], "mode = 'diagonal': expected one of 'fill', 'causal'"),
    (['--adv_norm=loud'], "adv_norm = 'loud': expected one of 'none', 'std', 'batch', 'mean'"),
    (['--ratio_level=word'], "ratio_level = 'word': expected one of 'token', 'sequence'"),
    (['--loss_norm=word'], "loss_norm = 'word': expected one of 'token', 'sequence', 'constant'"),
    (['--optimizer=sgd'], "optimizer = 'sgd': expected one of 'muon', 'adamw'"),
    (['--kl_type=k9'], "kl_type = 'k9': expected one of 'exact', 'k1'"),
    (['--dtype=int8'], "dtype = 'int8': expected one of 'auto', 'float32', 'bfloat16'"),
    (['--backend=pigeon'], "backend = 'pigeon': expected one of '', 'gloo', 'nccl'"),
    (["--rewards={'niceness': 1.0}"], "rewards = {'niceness': 1.0}: no reward 'niceness'; there "
                                      "are judge, verify, distinct, length"),
    (['--rewards={}'], 'rewards = {}: expected at least one'),
    (["--rewards={'judge': 'much'}"], "rewards = {'judge': 'much'}: the weight of 'judge'"),
]
BAD_KNOBS_OF_MODEL = [
    (['--mode=diagonal'], "mode = 'diagonal': expected one of"),
    (['--blank_kind=zigzag'], "blank_kind = 'zigzag': expected one of"),
    (['--block_size=0'], 'block_size = 0: expected'),
    (['--batch_size=0'], 'batch_size = 0: expected'),
    (['--max_iters=0'], 'max_iters = 0: expected'),
    (['--eval_interval=-1'], 'eval_interval = -1: expected'),
    (['--learning_rate=-1'], 'learning_rate = -1.0: expected'),
    (['--seed=-1'], 'seed = -1: expected'),
]
BAD_KNOBS_OF_JUDGE = [
    (['--kind=zen'], "kind = 'zen': expected one of 'likelihood', 'classifier'"),
    (['--batch_size=0'], 'batch_size = 0: expected'),
    (['--labels=some.jsonl'], "labels = 'some.jsonl': expected kind = 'classifier'"),
]


@pytest.mark.parametrize('script, cases', [(train_grpo, BAD_KNOBS), (model, BAD_KNOBS_OF_MODEL),
                                           (judge, BAD_KNOBS_OF_JUDGE)])
def test_a_value_that_cannot_be_meant_is_named_with_what_was_expected(script, cases):
    for flags, beginning in cases:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in knobs(vars(script)).items():
                patch.setattr(script, name, value)      # configure() sets it, this puts it back
            _, functions = configure(vars(script), flags, quiet=True)
            with pytest.raises(SystemExit) as end:
                script.check_knobs(*[functions] * (script is train_grpo))
        message = str(end.value)
        assert message.startswith(f'error: {beginning}') and '\n' not in message


FUNCTIONS = """
def raises(prompts, completions): return [1 / 0]
def short(prompts, completions): return [1.0]
def words(prompts, completions): return ['much'] * len(prompts)
def none(prompt, original): return False
"""
BAD = [             # arguments of train_grpo.py, and what the one line must contain
    (['--grop_size=4'], ["'grop_size'", "'group_size'"]),
    (['config/typo.py'], ['config/typo.py', "'grop_size'", "'group_size'"]),
    (['config/wrong.py'], ['config/wrong.py', 'learning_rate', 'str', 'float']),
    (['config/raises.py'], ['config/raises.py', 'ZeroDivisionError']),
    (['config/syntax.py'], ['config/syntax.py', 'line 2']),
    (['config/missing.py'], ['config/missing.py', 'config/toy.py']),
    (['--group_size=4.5'], ['group_size', 'float', 'int']),
    (['--group_size=many'], ['group_size', "'many'"]),
    (['--group_size=True'], ['group_size', 'bool', 'int']),
    (['--group_size=1'], ['group_size = 1']),
    (['--learning_rate=fast'], ['learning_rate', "'fast'", 'float']),
    (['--resume=1'], ['resume', 'int', 'bool']),
    (['--group_size'], ['--group_size', '16']),
    (['--dataset=nope'], ["'nope'", 'arithmetic']),
    (['--generator_checkpoint=nope.pt'], ['nope.pt', 'python model.py']),
    (['--judge_checkpoint=nope.pt'], ['nope.pt', 'python judge.py']),
    (['--reference_checkpoint=nope.pt'], ['nope.pt', 'python model.py']),
    (['--generator_checkpoint=toy'], ['toy', 'python model.py']),
    (['--generator_checkpoint=', '--generator_recipe=config/nope.py'], ['config/nope.py']),
    (['--resume=True'], ['nothing to resume', 'python train_grpo.py']),
    (['--generator_checkpoint=toy/vocabulary.pt'], ['vocabulary.pt', 'python model.py']),
    (['--judge_checkpoint=toy/vocabulary.pt'], ['vocabulary.pt', 'python judge.py']),
    (['--judge_checkpoint=toy/generator.pt'], ['generator.pt', 'generator', 'expected a judge']),
    (['--generator_checkpoint=toy/judge.pt'], ['judge.pt', 'expected a generator']),
    (['--generator_checkpoint=toy/causal.pt'], ['causal.pt', 'fill']),
    (['--mode=causal'], ['generator.pt', 'causal']),
    (['--generator_checkpoint=toy/version.pt'], ['version.pt', 'version 99']),
    (['--generator_checkpoint=toy/other.pt'], ['other.pt', 'python model.py']),
    (['--generator_checkpoint=toy/list.pt'], ['list.pt', 'python model.py']),
    (['--block_size=12'], ['10', '12', 'block_size']),
    (['--learning_rate=1e42'], ['learning_rate']),
    (['--device=tpu'], ['tpu', 'cpu']),
    (['--device=cuda:99'], ['cuda:99']),
    (["--rewards={'raises': 1.0}", 'config/functions.py'], ['raises', 'ZeroDivisionError']),
    (["--rewards={'short': 1.0}", 'config/functions.py'], ['short', '1 value', '16']),
    (["--rewards={'words': 1.0}", 'config/functions.py'], ['words', "'much'", 'number']),
    (['--out_dir=config/toy.py/run'], ['config/toy.py/run', '--out_dir']),
    (['--out_dir=/proc/nowhere'], ['/proc/nowhere', '--out_dir']),
]
BAD_MODEL = [
    (['--nlayer=2'], ["'nlayer'", "'n_layer'"]),
    (['--n_layer=two'], ['n_layer', "'two'"]),
    (['config/missing.py'], ['config/missing.py']),
    (['--dataset=nope'], ["'nope'", 'arithmetic']),
    (['--dataset=docstrings'], ['docstrings', 'python data/docstrings/prepare.py']),
    (['--n_embd=15'], ['n_embd = 15']),
    (['--batch_size=0'], ['batch_size = 0']),
    (['--device=tpu'], ['tpu', 'cpu']),
    (['--out=config/toy.py/x.pt'], ['config/toy.py/x.pt']),
]
BAD_JUDGE = [
    (['--lables=x'], ["'lables'", "'labels'"]),
    (['--kind=classifier', '--labels=nope.jsonl'], ['nope.jsonl']),
    (['--kind=classifier', '--labels=toy/torn.jsonl'], ['torn.jsonl', 'line 2']),
    (['--kind=classifier', '--labels=toy/few.jsonl'], ['few.jsonl', '20']),
    (['--kind=classifier', '--generator_checkpoint=nope.pt'], ['nope.pt', 'python model.py']),
    (['--dataset=docstrings'], ['python data/docstrings/prepare.py']),
    (['--n_embd=15'], ['n_embd = 15']),
    (['--batch_size=0'], ['batch_size = 0']),
    (['--out=config/toy.py/x.pt'], ['config/toy.py/x.pt']),
]


@pytest.fixture(scope='module')
def bad(toy):
    """The toy repository with config files and checkpoints that are wrong in some way."""
    for name, text in {'typo': 'grop_size = 4', 'wrong': "learning_rate = 'fast'",
                       'raises': '_x = 1\nbatch_size = 1 // 0', 'syntax': '_x = 1\nbatch size = 1',
                       'functions': FUNCTIONS}.items():
        (toy.repo / f'config/{name}.py').write_text(text)
    good = torch.load(toy.repo / 'toy/generator.pt', weights_only=True)
    args = good['model_args']
    for name, content in {
            'vocabulary': {**good, 'model_args': {**args, 'vocab_size': 65}, 'corpus': '0' * 16},
            'version': {**good, 'version': 99}, 'other': {'model_args': args, 'x': 1},
            'list': [1, 2, 3]}.items():
        torch.save(content, toy.repo / f'toy/{name}.pt')
    (toy.repo / 'toy/torn.jsonl').write_text('{"text": "1", "label": 1}\n{"text": "2", "la')
    (toy.repo / 'toy/few.jsonl').write_text('{"text": "1", "label": 1}\n' * 3)
    return toy


def test_bad_input_to_grpo_ends_with_one_clear_line_and_nothing_half_written(bad):
    outs = []

    def run(*flags):
        outs.append(bad.new())
        return bad.train(outs[-1], '--max_iters=2', *flags)
    all_refused(bad, run, BAD)
    for out in outs:
        written = [name for name, content in files(out).items() if content]
        assert written in ([], ['config.json'])
    jobs = bad.ranks(bad.new(), '--gradient_accumulation_steps=3')
    for job in jobs:
        job.refused('gradient_accumulation_steps = 3', 'the 2 ranks')


def test_bad_input_to_model_and_judge_ends_with_one_clear_line_and_no_checkpoint(bad):
    all_refused(bad, lambda *flags: bad.run('model.py', 'config/generator_toy.py', '--out=x.pt',
                                            *flags), BAD_MODEL)
    all_refused(bad, lambda *flags: bad.run('judge.py', 'config/judge_toy.py', '--out=x.pt',
                                            *flags), BAD_JUDGE)


def test_bad_input_to_sample_ends_with_one_clear_line(toy, stopped):
    all_refused(toy, lambda *flags: toy.run('sample.py', f'--out_dir={stopped}', *flags), [
        (['--prompt=1x+3_=__7'], ["'x'"]), (['--prompt=' + '1_+3_=__7' * 5], ['45', '10']),
        (['--promt=1'], ["'promt'", "'prompt'"]), (['--out_dir=nope'], ['nope'])])


def test_a_program_as_config_file_is_refused_and_does_not_run(toy):
    programs = ['model.py', 'sample.py', 'common.py', 'data/arithmetic/prepare.py']
    all_refused(toy, lambda *flags: toy.run('train_grpo.py', *flags), [
        ([path], [path, 'is a program', 'expected a config file']) for path in programs])


ONE_REWARD = """
def reward(prompts, completions): return [{value} for completion in completions]
rewards = {{'reward': 1.0}}
"""


def test_a_reward_that_never_differs_is_warned_of_once_and_the_run_goes_on_and_learns_nothing(toy):
    out, other = toy.new(), toy.new()
    flags = [toy.config(ONE_REWARD.format(value='0.7')), '--kl_beta=0']     # no KL that moves it
    lively = toy.config(ONE_REWARD.format(value="float('0' in completion)"))
    jobs = [toy.train(out, *flags, '--max_iters=3'), toy.train(other, lively, '--max_iters=3')]
    for job in jobs:
        job.good()
    warnings = [line for line in jobs[0].out.splitlines() if line.startswith('warning: ')]
    assert len(warnings) == 1 and 'step 0' in warnings[0] and 'group_size' in warnings[0]
    assert steps_logged(out) == [0, 1, 2] and checkpoint(out)['step'] == 3
    assert all(line['dead_groups'] == 1 for line in log_lines(out) if 'loss' in line)
    start = torch.load(toy.repo / 'toy/generator.pt', weights_only=True)['model']
    assert bits(start) == bits(checkpoint(out)['model'])

    assert 0 < log_lines(other)[1]['dead_groups'] < 1       # some difference is enough
    assert 'warning: ' not in jobs[1].out
    again = toy.train(out, *flags, '--max_iters=5', '--resume=True').good()
    assert 'warning: ' not in again.out and steps_logged(out) == [0, 1, 2, 3, 4]


# ---- a step seen from close ----------------------------------------------------------------------

def groups_shown(text):
    """The groups that a run prints: a list of pairs, the prompt and its completions, each a dict
    of 'count', the columns by their names, and the 'text' of the row."""
    groups = []
    head = None
    for line in text.splitlines():
        row = re.fullmatch(r'( *\d+) x((?: *-?\d+\.\d{3})+)   (.*)', line)
        if line.startswith('step ') and '|' not in line:
            head = line
            groups.append(None)
        elif row:
            values = [float(value) for value in row[2].split()]
            edges = range(9, 9 + 10 * len(values), 10)          # columns are 10 wide
            names = [head[edge:edge + 10].strip() for edge in edges]
            if groups[-1] is None:
                prompt = head[9 + 10 * len(values) + 3:]
                groups[-1] = prompt.partition('   mean ')[0], []
            groups[-1][1].append({'count': int(row[1]), **dict(zip(names, values)), 'text': row[3]})
    return groups


def fits(text, prompt):
    """Has a completed row all that its prompt gives? Ends of row in its last blanks do not show."""
    text = text.ljust(len(prompt), '\n')
    return len(text) == len(prompt) and all(p in ('_', t) for p, t in zip(prompt, text))


def column(rows, name):
    return np.array([row[name] for row in rows])


def test_the_groups_that_a_run_prints_are_complete_sorted_and_add_up(toy):
    job = toy.train(toy.new(), "--rewards={'judge': 1.0, 'distinct': 0.5}", '--sample_interval=1',
                    '--group_size=6', '--max_iters=2', '--blank_high=0.3').good()
    groups = groups_shown(job.out)
    assert len(groups) == 2 * 3                 # three groups of each step
    for prompt, rows in groups:
        count, reward, advantage = (column(rows, x) for x in ('count', 'reward', 'advantage'))
        assert count.sum() == 6 and (reward[:-1] >= reward[1:]).all()
        assert len({row['text'] for row in rows}) == len(rows)
        assert np.abs(column(rows, 'distinct') - 1 / count).max() < 1e-3
        parts = column(rows, 'judge') + 0.5 * column(rows, 'distinct')
        assert np.abs(parts - reward).max() < 1.6e-3
        assert np.abs(reward - (count * reward).sum() / 6 - advantage).max() < 1.6e-3
        assert all(fits(row['text'], prompt) for row in rows)
    assert max(column(rows, 'count').max() for _, rows in groups) > 1       # some came twice


def by_hand(text, adv_norm='none', causal=False, by_length=True):
    """Checks one group as --explain prints it, as far as printed digits allow: every number that
    follows from others, and that each sentence is true of the numbers. Returns the loss, its first
    term, the norm of its gradient, and the words, without numbers and completions."""
    (prompt, rows), = groups_shown(text)
    count, reward, advantage, change = (column(rows, name) for name in (
        'count', 'reward', 'advantage', 'change'))
    k, mean, std = map(float, re.search(
        rf"^(\d+) completions: mean reward (\S+), std (\S+); adv_norm = '{adv_norm}'$", text,
        re.M).groups())
    assert count.sum() == k and (reward[:-1] >= reward[1:]).all()
    assert abs((count * reward).sum() / k - mean) < 1.1e-3
    assert abs(np.repeat(reward, count).std(ddof=1) - std) < 1.6e-3
    factor = {'none': 1, 'std': 1 / (std + 1e-4), 'rloo': k / (k - 1)}[adv_norm]
    assert np.abs((reward - mean) * factor - advantage).max() < 2e-3 * max(1, factor)
    assert abs((count * advantage).sum()) < 1e-3 * k
    assert all(fits(row['text'], prompt) for row in rows)
    assert np.abs(column(rows, 'after') - column(rows, 'log p') - change).max() < 1.6e-3

    # The loss: a mean over choices, and every choice has the advantage of its completion.
    n_given = len(prompt.rstrip('_'))
    length = np.ones(len(rows))                 # in proportion: all fill the same blanks
    if causal:                                  # the end of a row is a choice too, if there is room
        length = np.array([min(len(row['text']) + 1, len(prompt)) - n_given for row in rows])
    _, formula, numbers, loss = re.search(r'^loss = .*', text, re.M)[0].split(' = ')
    first, *others = numbers.split()
    terms = [float(number) * (1 if sign == '+' else -1)
             for sign, number in zip(others[::2], others[1::2])]
    assert len(terms) == formula.count(' x ') - 1
    first, loss = float(first), float(loss)
    assert abs(first + sum(terms) - loss) < 1.1e-4 * (1 + len(terms))
    weight = count * length if by_length else count
    assert abs(first + (weight * advantage).sum() / weight.sum()) < 1.1e-3

    # The sentences.
    norm = float(re.search(r"^The norm of the loss's gradient is (\S+)\.$", text, re.M)[1])
    is_dead = reward.min() == reward.max()
    assert ('Every advantage is 0: the group teaches nothing.' in text) == is_dead
    cancels = 'They cancel: it is 0,\nbut its gradient is not.' in text
    assert cancels == (first == 0 and not is_dead)
    assert ('They do not cancel here.' in text) == (first != 0)
    if is_dead:
        assert (advantage == 0).all() and first == 0
    elif loss == first:                         # nothing but the advantages moves the policy
        assert norm > 0
        assert change[advantage.argmax()] > 0 and (change * count * advantage).sum() > 0
    words = re.sub(r'^(step| *\d+ x).*\n', '', text, flags=re.M)
    return loss, first, norm, re.sub(r'-?\d+(\.\d+)?', '#', words)


FLAT = ["--rewards={'length': 1.0}"]            # all completions fill the same blanks
WRITE = ['--mode=causal', '--blank_kind=suffix', '--generator_checkpoint=toy/causal.pt',
         '--blank_low=0.5', '--blank_high=0.5']
EXPLAINED = {       # flags; how by_hand() is to read the output; is the first term 0? the loss?
    'fill': ([], {}, True, True),
    'std': (['--adv_norm=std'], {'adv_norm': 'std'}, True, True),
    'rloo, no reference': (['--adv_norm=rloo', '--kl_beta=0'], {'adv_norm': 'rloo'}, True, True),
    'causal, unequal lengths': (WRITE, {'causal': True}, False, False),
    'causal, a mean over rows': ([*WRITE, '--loss_norm=sequence'],
                                 {'causal': True, 'by_length': False}, True, True),
    'entropy bonus': (['--entropy_coef=0.1'], {}, True, False),
    'causal, entropy bonus': ([*WRITE, '--entropy_coef=0.1'], {'causal': True}, False, False),
    'another reference': (['--reference_checkpoint=toy/near.pt'], {}, True, False),
    'constant reward': (FLAT, {}, True, True),
    'constant reward, entropy bonus': ([*FLAT, '--entropy_coef=0.1'], {}, True, False),
}


@pytest.fixture(scope='module')
def explained_runs(toy):
    """The runs of EXPLAINED, all started at once."""
    def alter(weights):
        for weight in weights.values():
            weight += 0.1 * torch.randn(weight.shape)
    alter_checkpoint(toy.repo / 'toy/generator.pt', toy.repo / 'toy/near.pt', alter)
    return {case: toy.train(toy.new('explained'), '--explain=True', '--group_size=8', *flags)
            for case, (flags, *_) in EXPLAINED.items()}


@pytest.mark.parametrize('case', EXPLAINED)
def test_a_step_that_is_explained_adds_up_and_every_sentence_is_true(toy, explained_runs, case):
    _, how, first_is_0, loss_is_0 = EXPLAINED[case]
    shown = explained_runs[case].good().out
    loss, first, norm, words = by_hand(shown[shown.index('step 0'):], **how)
    assert (first == 0) == first_is_0 and (loss == 0) == loss_is_0
    assert (norm == 0) == (case == 'constant reward')
    assert ('teaches nothing' in words) == ('constant' in case)
    assert not list(toy.scratch.glob('explained*'))         # nothing is written


def test_the_worked_example_of_the_readme_is_output_that_a_pocket_calculator_confirms(toy):
    readme = (HERE / 'README.md').read_text()
    command, block = re.search(r'`python (train_grpo\.py [^`]*--explain=True[^`]*)`'
                               r'.*?```text\n(.*?)```', readme, re.S).groups()
    flags = [flag for flag in command.split()[1:] if flag.startswith('--')]
    shown = toy.train(toy.new(), *flags).good().out
    *_, words = by_hand(block)
    *_, expected = by_hand(shown[shown.index('step 0'):])
    assert words == expected


def test_the_benchmark_tells_the_time_of_each_phase_and_writes_nothing(toy):
    out = toy.new()
    shown = toy.train(out, '--benchmark=True').good().out
    phases = re.findall(r'^ +(\w+) +([\d.]+) ms +([\d.]+)%$', shown, re.M)
    assert [name for name, _, _ in phases] == ['prompts', 'act', 'judge', 'reference', 'learn',
                                               'optimizer']
    median, least, most = map(float, re.search(
        r'^4 prompts x 4 completions, 20 steps: median ([\d.]+) ms, min ([\d.]+), max ([\d.]+)$',
        shown, re.M).groups())
    assert least <= median <= most
    for _, ms, share in phases:
        assert 0 < float(ms) < most and abs(float(ms) / median - float(share) / 100) < 0.02
    per_second = re.search(r'^([\d,]+) completions/s', shown, re.M)[1].replace(',', '')
    assert int(per_second) == pytest.approx(16e3 / median, rel=0.02)
    assert 'peak memory' in shown and not out.exists()


def test_a_run_without_judge_and_verifier_can_be_looked_at(toy):
    folder, out = toy.repo / 'data/plain', toy.new()
    folder.mkdir()
    source = (toy.repo / 'data/arithmetic/prepare.py').read_text()
    (folder / 'prepare.py').write_text(source.replace('def verify', 'def unused'))
    toy.run('data/plain/prepare.py').good()
    toy.run('model.py', 'config/judge_toy.py', '--dataset=plain', '--out=toy/plain.pt').good()
    toy.train(out, '--dataset=plain', '--generator_checkpoint=toy/plain.pt', '--max_iters=2',
              "--rewards={'distinct': 1.0}").good()
    shown = toy.run('sample.py', f'--out_dir={out}', '--num_samples=1').good().out
    assert 'reference  distinct' in shown and 'policy     distinct' in shown


def test_a_causal_policy_in_float64_completes_rows_with_its_own_log_probs():
    """float64 once met float32 there, and raised."""
    tokens = torch.zeros(4, 6, dtype=torch.long)
    prompts = Prompts(tokens, torch.arange(6).expand(4, 6) >= 2, torch.rand(4, 6, 2), eos=4)
    torch.set_default_dtype(torch.float64)
    try:
        policy = model.GPT(5, 6, n_layer=2, n_head=2, n_embd=8, causal=True)
        torch.nn.init.normal_(policy.head.weight, std=0.2)
        r = model.complete(policy, prompts)
        whole = policy(r.rows).log_softmax(-1)
    finally:
        torch.set_default_dtype(torch.float32)
    expected = whole[r.where].gather(1, r.actions).detach()
    assert r.logp_old.dtype == torch.float64 and len(set(r.actions.flatten().tolist())) > 1
    torch.testing.assert_close(r.logp_old, expected, rtol=1e-9, atol=1e-12)


# ---- nothing silently wrong: processes in a clone ------------------------------------------------

TOY_CLONE = '''
generator_checkpoint = 'toy/generator.pt'
judge_checkpoint = 'toy/judge.pt'
batch_size = 4
group_size = 4
learning_rate = 0.01
max_iters = 12
lr_decay_iters = 12
warmup_iters = 0
eval_interval = 4
eval_prompts = 16
save_interval = 4
sample_interval = 0
device = 'cpu'
dtype = 'float32'
compile = False
'''
SMALL_CLONE = '''
n_layer = 1
n_head = 2
n_embd = 16
batch_size = 32
max_iters = 10
device = 'cpu'
dtype = 'float32'
compile = False
'''


class Clone(Toy):
    """A toy repository with a larger learning rate, in which evaluations soon differ."""
    knobs = TOY_CLONE
    recipe = SMALL_CLONE


@pytest.fixture(scope='module')
def clone(tmp_path_factory):
    clone = Clone(tmp_path_factory.mktemp('robust'))
    yield clone
    clone.close()


@pytest.fixture(scope='module')
def finished(clone):
    """The folder of a run that has ended after 4 steps; tests take copies."""
    out = clone.new()
    clone.train(out, '--max_iters=4').good()
    return out


def controls(out):
    """{step: what an evaluation says of the control} of a run."""
    found = {}
    for line in log_lines(out):
        if 'eval/reward' in line:
            found[line['step']] = {key: value for key, value in line.items() if '/ref_' in key}
    return found


def files_in(folder):
    """Every file below a folder, with its bytes; caches of Python aside."""
    return {str(path.relative_to(folder)): path.read_bytes()
            for path in pathlib.Path(folder).rglob('*')
            if path.is_file() and '__pycache__' not in path.parts}


def one_line(call, *words):
    """Asserts that a call ends the script with one line that has these words; returns the line."""
    with pytest.raises(SystemExit) as error:
        call()
    line = str(error.value)
    assert line.startswith('error: ') and '\n' not in line
    assert all(word in line for word in words), f"{words} not all in: {line}"
    return line


# ---- a corpus of one's own, in this process ------------------------------------------------------

PREPARE = '''
def verify(prompt, completion):
    return float(completion == 'abca')
'''


@pytest.fixture
def small_corpus(tmp_path, monkeypatch):
    """A repository with the corpus 'tiny', which is the working folder; nothing is trained in it:
    run_script() writes, instead of a network, what it would have learned from."""
    folder = tmp_path / 'data/tiny'
    folder.mkdir(parents=True)
    (folder / 'prepare.py').write_text(PREPARE)
    write_corpus(str(folder), 'rows', ['abca', 'bcab', 'cabc'] * 20, ['abcc', 'cbaa'] * 5)
    (tmp_path / 'config').mkdir()
    (tmp_path / 'config/generator_tiny.py').write_text("dataset = 'tiny'\nn_layer = 1\n")
    monkeypatch.setattr(data.dataset, 'HERE', str(tmp_path / 'data'))
    monkeypatch.chdir(tmp_path)
    made = []

    def make(command):
        config, _ = configure(runpy.run_path(f'{HERE}/{command[1]}'), command[2:], quiet=True)
        read = {name: pathlib.Path(value).read_text() for name, value in config.items()
                if name == 'labels' and value}
        save_checkpoint(config['out'], made_of=recipe_digest(config),
                        learned={'seed': config['seed']} | read)
        made.append(config['out'])

    monkeypatch.setattr(model, 'run_script', make)
    return tmp_path, made


def what_was_made(path):
    return torch.load(path, weights_only=True)['learned']


# ---- the control is the control ------------------------------------------------------------------


def test_1_with_other_held_out_prompts_the_control_and_the_best_are_made_anew(clone, finished):
    out, fresh = clone.copy(finished), clone.new()
    content = checkpoint(out)
    del content['checksum']
    save_checkpoint(f'{out}/ckpt.pt', **content | {'best': 0.99})       # on the few prompts
    more = '--eval_prompts=40'
    clone.train(out, more, '--max_iters=8', '--resume=True').good()
    clone.train(fresh, more, '--max_iters=1').good()
    found = controls(out)
    assert found[4] == found[8] == controls(fresh)[0] != found[0]
    scores = [line['eval/verify'] for line in log_lines(out)
              if 'eval/verify' in line and line['step'] >= 4]
    assert checkpoint(out)['best'][0] == max(scores) < 0.99


def test_2_without_a_reference_the_control_is_the_start_though_it_was_not_evaluated_then(clone):
    out, fresh = clone.new(), clone.new()
    clone.train(out, '--kl_beta=0', '--eval_interval=0', '--max_iters=4').good()
    clone.train(out, '--kl_beta=0', '--max_iters=5', '--resume=True').good()
    clone.train(fresh, '--kl_beta=0', '--max_iters=1').good()
    control = controls(out)[4]
    assert control == controls(fresh)[0]
    line = [line for line in log_lines(out) if 'eval/reward' in line][0]
    assert line['eval/reward'] != line['eval/ref_reward']       # the policy has moved


def test_a_start_that_was_trained_anew_under_its_name_is_no_control_and_not_compared_with(clone):
    out = clone.new()
    start = clone.repo / 'toy/other.pt'
    flags = ['--kl_beta=0', '--generator_checkpoint=toy/other.pt']
    shutil.copy(clone.repo / 'toy/generator.pt', start)
    clone.train(out, *flags, '--max_iters=4').good()
    look = ['sample.py', f'--out_dir={out}', '--num_samples=1', '--device=cpu']
    clone.run(*look).good()
    clone.run('model.py', 'config/generator_toy.py', '--seed=2', '--out=toy/other.pt').good()
    clone.train(out, *flags, '--max_iters=8', '--resume=True').refused('reference_and_judge')
    clone.run(*look).refused('toy/other.pt', 'not the one')


# ---- a part's name says what it was made of ------------------------------------------------------


def test_3_a_part_made_from_other_files_of_the_same_names_is_made_anew(small_corpus, capsys):
    folder, made = small_corpus
    for seed, name in enumerate(('one', 'two')):
        (folder / name).mkdir()
        (folder / name / 'labels.jsonl').write_text(name)
        (folder / name / 'generator_tiny.py').write_text(f"dataset = 'tiny'\nseed = {seed}\n")

    for script, recipe in (
            ('judge.py', '--dataset=tiny --kind=classifier --labels={}/labels.jsonl'),
            ('model.py', '{}/generator_tiny.py')):
        paths = [ensure_checkpoint('', script, recipe.format(name))[0] for name in ('one', 'two')]
        assert paths[0] != paths[1] and what_was_made(paths[0]) != what_was_made(paths[1])
        said = capsys.readouterr().out
        assert paths[0] in said and paths[1] in said
        count = len(made)
        again = [ensure_checkpoint('', script, recipe.format(name))[0] for name in ('one', 'two')]
        assert again == paths and len(made) == count            # nothing is made twice


def test_an_edited_recipe_or_label_file_or_another_text_makes_another_part(small_corpus):
    folder, made = small_corpus
    recipe = folder / 'config/generator_tiny.py'
    labels = folder / 'labels.jsonl'
    labels.write_text('first')
    words = '--dataset=tiny --kind=classifier --labels=labels.jsonl'

    def both():
        return (ensure_checkpoint('', 'model.py', 'config/generator_tiny.py')[0],
                ensure_checkpoint('', 'judge.py', words)[0])

    generator, first_judge = both()
    labels.write_text('second')
    assert both()[0] == generator
    second_judge = both()[1]
    assert second_judge != first_judge and what_was_made(second_judge)['labels'] == 'second'
    recipe.write_text(recipe.read_text() + 'seed = 5\n')
    assert both()[0] != generator and what_was_made(both()[0])['seed'] == 5
    write_corpus('data/tiny', 'rows', ['aabb'] * 30, ['bbaa'] * 3)
    count = len(made)
    both()
    assert len(made) == count + 2
    for path in made:               # whatever its recipe was called, a part is what its name says
        assert os.path.exists(path)


@pytest.mark.parametrize('length', [10, 100, 200, 254, 255, 300, 5000])
def test_the_name_of_a_part_fits_into_a_file_system_and_differs_with_the_recipe(length):
    one = '--seed=1 ' * (length // 9) + '--max_iters=1'
    two = '--seed=1 ' * (length // 9) + '--max_iters=2'
    paths = [model.checkpoint_path('model.py', recipe.split()) for recipe in (one, two)]
    for path in paths:              # and so does the one that has a digest of its own
        assert len(os.path.basename(path)) + len('-0123456789abcdef') <= 255 - len('.1234567.tmp')
    assert paths[0] != paths[1]


# ---- what resumes is what ran --------------------------------------------------------------------

REWARD_CLONE = '''
def _count(text):
    return {what}

def mine(prompts, completions):
    return [float(_count(text)) for text in completions]

rewards = {{'mine': 1.0}}
'''


def test_7_a_reward_that_has_changed_is_noticed_and_the_printed_command_goes_on(clone):
    out = clone.new()
    path = clone.config(REWARD_CLONE.format(what='len(set(text))'))
    clone.train(out, path, '--max_iters=4').good()
    changed = REWARD_CLONE.format(what='len(set(text))')
    path.write_text('# a remark\n' + changed + 'log_interval = 2\n')
    clone.train(out, path, '--max_iters=5', '--resume=True').good()       # nothing has changed
    path.write_text(REWARD_CLONE.format(what='-len(set(text))'))              # of a helper
    flags = [path, '--max_iters=6', '--resume=True']
    job = clone.train(out, *flags).refused('functions', 'changed', '--resume_changed=True')
    command = shlex.split(re.search('the new ones: python (.*)', job.err)[1])
    clone.run(*command).good()
    clone.train(out, *flags).good()                                       # they are the run's now
    line = [line for line in log_lines(out) if line['step'] == 5][0]
    assert line['mean_reward'] < 0 < log_lines(out)[0]['eval/ref_reward']


def test_a_reward_that_is_imported_is_noticed_too_and_so_is_verify(clone):
    repo = clone.copy(clone.repo)
    out = clone.new()
    module = repo / 'my_rewards.py'
    module.write_text("def mine(p, c):\n    return [float(len(set(x))) for x in c]\n")
    path = clone.config("from my_rewards import mine\nrewards = {'mine': 1.0}\n")
    clone.train(out, path, '--max_iters=2', folder=repo).good()
    again = [path, '--max_iters=3', '--resume=True']
    module.write_text("def mine(p, c):\n    return [float(len(x)) for x in c]\n")
    clone.train(out, *again, folder=repo).refused('functions', 'changed')
    module.write_text("def mine(p, c):\n    return [float(len(set(x))) for x in c]\n")
    prepare = repo / 'data/arithmetic/prepare.py'
    text = prepare.read_text()
    prepare.write_text(text + "\n\ndef verify(prompt, completion):\n    return 0.0\n")
    clone.train(out, *again, folder=repo).refused('verify', 'changed')
    prepare.write_text(text)
    clone.train(out, *again, folder=repo).good()


def test_10_a_second_run_is_refused_while_the_first_lives_and_not_when_it_was_killed(tmp_path):
    folder = str(tmp_path / 'run')
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:                  # a run that writes, until it is killed
        common.lock_folder(folder)
        os.write(writer, b'locked')
        time.sleep(60)
        os._exit(0)
    os.read(reader, 6)
    one_line(lambda: common.lock_folder(folder), folder, 'another run', '--out_dir')
    one_line(lambda: common.lock_folder(folder + '/.'), 'another run')
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    common.lock_folder(folder)
    common.open_locks.pop().close()


def test_11_a_start_moves_the_trained_run_aside_and_when_killed_resumes_nothing_of_it(
        clone, finished):
    out = clone.copy(finished)
    before = files_in(out)
    kill = "import os\ndef deadly(p, c):\n    os.kill(os.getpid(), 9)\nrewards = {'deadly': 1.0}\n"
    job = clone.train(out, clone.config(kill))
    assert job.wait() == -signal.SIGKILL
    assert f'{out} held another run, which is now {out}-1; delete what' in job.out
    assert files_in(f'{out}-1') == before
    clone.train(out, '--resume=True').refused('no policy', f'{out}/ckpt.pt', '--resume=False')

    clone.train(out, '--group_size=2', '--max_iters=4').good()
    assert checkpoint(out)['config']['group_size'] == 2
    clone.train(f'{out}/', '--group_size=3', '--max_iters=0').refused('max_iters')
    assert checkpoint(out)['config']['group_size'] == 2         # a refused start moves nothing
    clone.train(f'{out}/', '--group_size=3', '--max_iters=1').good()
    assert [checkpoint(folder)['config']['group_size'] for folder in
            (out, f'{out}-1', f'{out}-2')] == [3, 4, 2]
    clone.train(f'{out}-1', '--resume=True', '--max_iters=5').good()      # it is whole


def test_11_a_folder_that_is_no_run_is_never_moved_aside_nor_made_to_resume_from(
        clone, finished, tmp_path):
    parts = tmp_path / 'parts'
    parts.mkdir()
    (parts / 'generator_mine.pt').write_bytes(b'precious')
    clone.train(parts).refused('something else than a run', 'generator_mine.pt', '--out_dir')
    assert files_in(parts) == {'generator_mine.pt': b'precious'}
    missing = tmp_path / 'out-mispelt'
    clone.train(missing, '--resume=True').refused('nothing to resume', 'there are:')
    assert not missing.exists()
    torn = clone.copy(finished)                 # killed while it wrote its first config.json
    for path in torn.iterdir():
        path.unlink()
    (torn / 'config.json.123.tmp').write_text('{')
    clone.train(torn, '--max_iters=1').good()
    assert not (torn / 'config.json.123.tmp').exists()


def test_a_graphics_card_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    one_line(lambda: common.resolve_device('cuda:99'), 'cuda:99', 'cuda:0 to cuda:1')
    one_line(lambda: common.resolve_device('cuda:x'), 'cuda:0 to cuda:1')
    one_line(lambda: common.resolve_device('cpu:7'), 'cpu:0 to cpu:0')
    assert common.resolve_device('cuda:1') == torch.device('cuda:1')


@pytest.mark.parametrize('content', [b'', b'a', b'ab', b'abc', b'\x80\x02'])
def test_a_checkpoint_of_a_few_bytes_is_told_as_damaged(content, tmp_path):
    path = tmp_path / 'short.pt'
    path.write_bytes(content)
    one_line(lambda: model.load_checkpoint(str(path), 'generator', None, 'python model.py'),
             'short.pt', 'damaged', 'python model.py')


def test_in_several_passes_prompts_without_a_blank_are_refused_with_their_name():
    net = GPT(5, 4, 1, 1, 8, False)
    prompts = Prompts(torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 4, dtype=torch.bool),
                      torch.rand(2, 4, 3), 0, torch.rand(2, 4))
    with pytest.raises(ValueError, match='without a blank'):
        complete(net, prompts, n_fill_steps=2)


WRITER = '''
import sys
from model import save_checkpoint
for n in range(40):
    save_checkpoint(sys.argv[1], n=n, who=sys.argv[2], body=[sys.argv[2]] * 5000)
'''


def test_12_two_that_make_the_same_file_at_once_leave_it_whole_at_every_moment(clone):
    (clone.repo / 'writer.py').write_text(WRITER)
    path = clone.new('shared') / 'part.pt'
    jobs = [clone.run('writer.py', path, who) for who in ('one', 'two')]
    seen = set()
    while any(not job.ended() for job in jobs):
        if path.exists():
            content = torch.load(path, weights_only=True)
            assert content.pop('checksum') == common.digest_of(content)
            assert set(content['body']) == {content['who']}
            seen.add((content['who'], content['n']))
    for job in jobs:
        job.good()
    assert len(seen) > 1
    assert os.listdir(path.parent) == ['part.pt']


@long
def test_long_two_first_runs_at_once_in_a_fresh_clone_both_end_well(clone):
    repo = clone.new('clone')
    shutil.copytree(clone.repo, repo, ignore=shutil.ignore_patterns('*.bin', 'meta.json', 'toy'))
    small = 'toy.py --max_iters=10'
    recipes = [f'--generator_recipe=config/generator_{small}',
               f'--judge_recipe=config/judge_{small}', '--max_iters=4',
               '--generator_checkpoint=', '--judge_checkpoint=']
    outs = [clone.new(), clone.new()]
    jobs = [clone.train(out, *recipes, folder=repo) for out in outs]
    for job in jobs:
        job.wait(300)
        job.good()
    assert log_lines(outs[0]) == log_lines(outs[1])
    assert not list(repo.rglob('*.tmp'))


# ---- variants, each one line: what it does to the gradient ---------------------------------------


def pass_at(theta, right, n):
    """P(at least one of n completions is right); theta (M, V), right (V^M,) 0 or 1."""
    p = (joint(theta).exp() * right).sum()
    return 1 - (1 - p) ** n


@pytest.mark.parametrize('k', [2, 3, 4])
def test_the_expected_gradient_of_maxrl_is_that_of_the_sum_of_pass_at_j_over_j(k):
    theta = torch.randn(2, 3, generator=torch.Generator().manual_seed(k)).double()
    right = torch.tensor([0, 1, 0, 0, 0, 1, 0, 0, 0]).double()
    z = theta.clone().requires_grad_()
    whole = sum(pass_at(z, right, j) / j for j in range(1, k))
    expected, = torch.autograd.grad(whole, z)
    close(-expected_gradient(theta, right, k, 'mean'), expected, atol=1e-9, rtol=1e-9)


def test_maxrl_divides_by_the_mean_and_refuses_a_reward_below_0():
    reward = torch.tensor([[0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    close(group_advantages(reward, 'mean'), torch.tensor(
        [[-1.0, 1.0, 1.0, -1.0], [-1.0, -1.0, -1.0, 3.0], [0.0, 0.0, 0.0, 0.0]]))
    one_line(lambda: group_advantages(reward - 0.5, 'mean'), "adv_norm = 'mean'", '-0.5', '>= 0')


def pass_at_m_rewards(right, m):
    """Rewards (k,) that make mean(reward * grad log p) an unbiased gradient of pass@m: of a group
    with c right ones, a right one is worth m / k, a wrong one m / k times the chance that m - 1
    others have a right one among them (PKPO, arXiv:2505.15201)."""
    k, c = len(right), int(right.sum())
    wrong_others = max(0, k - 1 - c)
    if_wrong = 1 - math.comb(wrong_others, m - 1) / math.comb(k - 1, m - 1)
    return m / k * (right + (1 - right) * if_wrong)


@pytest.mark.parametrize('m', [1, 2, 3, 4])
def test_a_mean_baseline_leaves_of_pass_at_m_as_a_reward_the_share_1_minus_m_over_k(m):
    """So pass@k with groups of k teaches exactly nothing: a lesson, not a knob."""
    k = 4
    theta = torch.randn(1, 3, generator=torch.Generator().manual_seed(1)).double()
    right = torch.tensor([0, 1, 0]).double()
    z = theta.clone().requires_grad_()
    expected, = torch.autograd.grad(pass_at(z, right, m), z)
    found = torch.zeros_like(theta)
    for group in itertools.product(range(3), repeat=k):
        z = theta.clone().requires_grad_()
        logp = joint(z)[list(group)]
        rewards_of_group = pass_at_m_rewards(right[list(group)], m)
        centred = rewards_of_group - rewards_of_group.mean()
        slope, = torch.autograd.grad((centred * logp).sum(), z)
        found += logp.detach().sum().exp() * slope
    close(found, (k - m) / k * expected, atol=1e-9, rtol=1e-9)
    assert m < k or found.abs().max() < 1e-12


def prompt_weight(pass_rate, k, rule):
    """How much a prompt weighs: its expected gradient, over that of its pass rate. The reward is 0
    or 1. rule: of group_advantages(), or 'pass@4': the gradient of that.

    Of a right completion the mean gradient of log p is (slope of the pass rate) / pass_rate, of a
    wrong one minus it / (1 - pass_rate)."""
    weight = 0.0
    for c in range(k + 1):
        chance = math.comb(k, c) * pass_rate ** c * (1 - pass_rate) ** (k - c)
        right = torch.tensor([1] * c + [0] * (k - c)).double()
        if rule == 'pass@4':
            advantages = k * pass_at_m_rewards(right, 4)    # their gradient is a sum, not a mean
        else:
            advantages = group_advantages(right[None], rule, eps=0.0)[0]
        slopes = torch.where(right > 0, 1 / pass_rate, -1 / (1 - pass_rate))
        weight += chance * (advantages * slopes).mean().item()
    return weight


PROMPT_WEIGHTS = {0.05: (.83, 1.96, 4.52, 3.43), 0.3: (.83, 1.70, 2.77, 1.37),
                  0.5: (.83, 1.63, 1.94, .50), 0.9: (.83, 1.89, 1.11, .00)}


@pytest.mark.parametrize('pass_rate', PROMPT_WEIGHTS)
def test_how_much_a_prompt_weighs_by_its_pass_rate_is_what_the_table_says(pass_rate):
    row = [prompt_weight(pass_rate, 6, rule) for rule in ('none', 'std', 'mean', 'pass@4')]
    assert row == pytest.approx(PROMPT_WEIGHTS[pass_rate], abs=0.0051)
    cells = ' | '.join(f'{value:.2f}' for value in row)
    pages = ''.join(path.read_text() for path in (HERE / 'README.md', HERE / 'config/README.md')
                    if path.exists())
    assert f'| {pass_rate} | {cells} |' in pages


def loss_of(objective, theta, actions, advantages, old=None, **how):
    """Gradient (M, V) of the loss, and clip_frac, of points that are each an owner."""
    z = theta.clone().requires_grad_()
    given = {}
    if old is not None:
        logp_old = old.log_softmax(-1)
        given = {'logp_old': logp_old.gather(1, actions)}
        if objective == 'dppo':
            given['all_old'] = logp_old
    loss, sums = grpo_loss(z, actions, advantages, torch.arange(len(z)), objective=objective,
                           **given, **how)
    return torch.autograd.grad(loss, z)[0], sums['per_decision']['clip_frac'] / len(z)


@pytest.mark.parametrize('given', [False, True])
def test_before_the_policy_moves_all_three_objectives_have_one_gradient(given):
    rng = torch.Generator().manual_seed(2)
    theta = torch.randn(5, 4, generator=rng).double()
    actions = torch.randint(4, (5, 3), generator=rng)
    advantages = torch.randn(5, 3, generator=rng).double()
    old = theta if given else None
    ppo, _ = loss_of('ppo', theta, actions, advantages, old)
    for objective in ('cispo', 'dppo'):
        found, cut = loss_of(objective, theta, actions, advantages, old)
        close(found, ppo, atol=1e-12, rtol=0)
        assert cut == 0


def moved(p_old, p_new):
    """Logits (1, 3) of two policies under which id 0 has these probabilities, and id 2 a half."""
    return [torch.tensor([[p, 0.5 - p, 0.5]], dtype=torch.float64).log() for p in (p_old, p_new)]


@pytest.mark.parametrize('advantage, p_new, cut', [
    (1.0, 0.23, {'ppo': False, 'dppo': False}), (1.0, 0.25, {'ppo': True, 'dppo': False}),
    (1.0, 0.31, {'ppo': True, 'dppo': True}), (1.0, 0.05, {'ppo': False, 'dppo': False}),
    (-1.0, 0.17, {'ppo': False, 'dppo': False}), (-1.0, 0.15, {'ppo': True, 'dppo': False}),
    (-1.0, 0.09, {'ppo': True, 'dppo': True}), (-1.0, 0.45, {'ppo': False, 'dppo': False})])
def test_on_both_sides_of_each_bound_the_gradient_is_what_it_is_by_hand(advantage, p_new, cut):
    """The old probability is .2, all bounds are .2 of ppo and .1 of dppo: ppo cuts at .16 and .24,
    dppo, whose total variation is |p_new - .2|, at .1 and .3; never on the way back."""
    old, new = moved(0.2, p_new)
    actions = torch.tensor([[0]])
    advantages = torch.tensor([[advantage]], dtype=torch.float64)
    ratio = p_new / 0.2
    score = torch.tensor([[1 - p_new, -(0.5 - p_new), -0.5]], dtype=torch.float64)  # of log p
    for objective, bound in (('ppo', 0.2), ('dppo', 0.1)):
        found, share = loss_of(objective, new, actions, advantages, old, clip_low=bound,
                               clip_high=bound)
        expected = 0.0 if cut[objective] else -ratio * advantage
        close(found, expected * score, atol=1e-12, rtol=1e-9)
        assert share == cut[objective]
    found, share = loss_of('cispo', new, actions, advantages, old)
    close(found, -min(ratio, 1.2) * advantage * score, atol=1e-12, rtol=1e-9)
    assert share == 0                           # a weight is cut, no gradient


def test_the_divergence_of_dppo_is_the_largest_change_of_any_set_of_ids():
    rng = torch.Generator().manual_seed(4)
    logp, old = torch.randn(2, 6, 5, generator=rng).double().log_softmax(-1)
    found = train_grpo.total_variation(logp, old)
    for m in range(6):
        change = (logp[m].exp() - old[m].exp()).tolist()
        sets = itertools.chain.from_iterable(
            itertools.combinations(change, n) for n in range(6))
        assert found[m].item() == pytest.approx(max(abs(sum(some)) for some in sets), abs=1e-12)


@pytest.mark.parametrize('mode, n_fill_steps', [('fill', 1), ('fill', 2), ('causal', 1)])
def test_dppo_remembers_the_old_distribution_of_every_choice(mode, n_fill_steps, notebook):
    n = notebook(mode, objective='dppo', inner_updates=2, mini_batches=2, top_k=4,
                 n_fill_steps=n_fill_steps, dtype='float64')
    rollouts = train_grpo.act(n.policy, n.prompts)
    dealt = train_grpo.deal(rollouts)
    train_grpo.remember_old(n.policy, dealt)
    for batch in dealt:
        for _, r in batch:
            found = log_probs_of(r.actions, r.all_old, r.point).to(r.logp_old.dtype)
            close(found, r.logp_old, atol=1e-6, rtol=0)
    start = weights(n.policy)
    step = n.step()
    assert step.line['ratio_max'] > 1 and (weights(n.policy) - start).norm() > 1e-3


def test_oversampling_learns_from_the_groups_that_differ_most_and_says_how_many_it_replaced(
        notebook):
    n = notebook('fill', oversample=3, batch_size=4, gradient_accumulation_steps=2)
    prompts = train_grpo.get_prompts(n.data, 'train', 24)
    n.prompts = prompts
    rollouts = train_grpo.act(n.policy, prompts)
    reward = train_grpo.judge_all(rollouts, n.policy, n.reference, n.scorer)['vowels']
    assert reward.shape == (24, 4)
    chosen = []
    replaced = 0
    for first in (0, 12):
        by_spread = sorted(range(first, first + 12), key=lambda p: -reward[p].std().item())
        if (reward[by_spread[3]].std() - reward[by_spread[4]].std()).abs() < 1e-6:
            by_spread[:12] = sorted(by_spread, key=lambda p: (-round(reward[p].std().item(), 5), p))
        chosen += sorted(by_spread[:4])
        replaced += sum(p >= first + 4 for p in by_spread[:4])
    step = n.step()
    close(step.reward, reward[chosen])
    assert step.line['replaced'] == pytest.approx(replaced / 8) and replaced > 0
    tokens = torch.cat([r.prompts.tokens for r in step.rollouts])
    assert torch.equal(tokens, prompts.tokens[chosen])
    assert step.advantages.shape == (8, 4)
    rows = torch.cat([r.rows for r in step.rollouts])
    prompts_seen, completions = texts(n.data.tok, tokens, torch.cat(
        [r.prompts.mask for r in step.rollouts]), rows, False)
    close(step.reward.flatten(), torch.tensor(vowels(prompts_seen, completions)))


def test_oversampling_takes_live_groups_before_dead_ones(set_knobs):
    set_knobs(oversample=2, batch_size=2, gradient_accumulation_steps=1, group_size=2)
    reward = torch.tensor([[1.0, 1.0], [0.0, 1e-3], [2.0, 2.0], [0.0, 5.0]])

    class Fake:
        def part(self, numbers):
            return numbers.tolist()

    found = train_grpo.most_telling([Fake()], {'a': reward * 2}, reward)
    assert found[0] == [[1, 3]] and torch.equal(found[2], reward[[1, 3]])
    assert torch.equal(found[1]['a'], 2 * reward[[1, 3]]) and found[3].tolist() == [1, 3]
    set_knobs(oversample=1)
    rollouts = [object()]
    assert train_grpo.most_telling(rollouts, {}, reward)[0] is rollouts


def test_two_ranks_that_oversample_take_the_step_of_one(toy):
    flags = ['--oversample=2', '--gradient_accumulation_steps=2', '--max_iters=2',
             '--eval_interval=0', '--dtype=float64']
    alone, out = toy.new(), toy.new()
    toy.train(alone, *flags).good()
    for job in toy.ranks(out, *flags):
        job.good()
    one, two = [checkpoint(folder)['model'] for folder in (alone, out)]
    assert all(torch.allclose(one[name], two[name], atol=1e-10) for name in one)


# ---- your own task: pairs, originals, one vocabulary for several texts ---------------------------

PAIRS = [('ab=', 'ba'), ('b=', ''), ('abc=', 'cba'), ('', 'a'), ('cab=', 'bac')]


def test_a_row_of_pairs_is_prompt_and_answer_and_knows_where_the_answer_begins(corpus):
    data = corpus('pairs', PAIRS, [('a=', 'a')])
    rows, answer = data.batch('train', 200, 8, draws(0, 'test'))
    seen = set()
    for row, begin in zip(rows.tolist(), answer.tolist()):
        text = data.tok.decode(row[:begin]), data.tok.decode(row[begin:]).removesuffix('\n')
        seen.add(text)
    assert seen == set(PAIRS)
    assert data.has_answers() and not data.has_answers(every=True)


def test_an_answer_is_blanked_exactly_or_written_to_the_end_of_its_row(corpus):
    data = corpus('pairs', [pair for pair in PAIRS if pair[1]], [('a=', 'a')])
    knobs = PROMPT_KNOBS | {'blank_kind': 'answer', 'block_size': 9}
    for mode, longest, beyond in (('fill', 0, 0), ('causal', 0, 9), ('causal', 4, 4)):
        ask = knobs | {'mode': mode, 'max_new_tokens': longest}
        prompts = draw_prompts(data, 'train', 60, 2, draws(0, 'test'), **ask)
        for tokens, mask, original in zip(prompts.tokens, prompts.mask, prompts.original):
            text = data.tok.decode(original).removesuffix('\n')
            begin = text.find('=') + 1
            stop = len(text) if mode == 'fill' else min(9, begin + beyond)
            assert mask.tolist() == [begin <= t < stop for t in range(9)]
            assert data.tok.decode(tokens[:begin]) == text[:begin]
            assert (tokens[stop:] >= data.tok.eos).all() or mode == 'fill'


def test_pairs_without_an_answer_are_prompts_to_be_continued_and_nothing_to_fill(corpus):
    data = corpus('pairs', [('abc', ''), ('ba', '')], [('ab', '')])
    knobs = PROMPT_KNOBS | {'blank_kind': 'answer', 'mode': 'causal', 'block_size': 7}
    prompts = draw_prompts(data, 'train', 20, 2, draws(0, 'test'), **knobs)
    shown, _, originals = texts_and_originals(data.tok, prompts, prompts.tokens, True)
    assert set(shown) == {'abc', 'ba'} and set(originals) == {''}
    assert prompts.mask.sum(1).tolist() == [7 - len(prompt) for prompt in shown]
    data.check_rows(7, 'causal', 'answer')
    one_line(lambda: data.check_rows(7, 'fill', 'answer'), 'nothing to fill', '--mode=causal')


def test_pairs_that_are_too_long_are_skipped_and_told_and_other_rows_are_cut(corpus, capsys):
    data = corpus('pairs', [('ab=', 'ba'), ('abcabc=', 'abc')], [('a=', 'a')])
    rows, answer = data.batch('train', 50, 6, draws(0, 'test'))
    assert {data.tok.decode(row) for row in rows.tolist()} == {'ab=ba\n'}
    data.check_rows(6, 'causal', 'answer')
    assert "up to 11 tokens with their end; block_size = 6 skips 50.0%" in capsys.readouterr().out
    one_line(lambda: data.check_rows(5), 'the shortest row of train has 6 tokens', '>= 6')
    rows = corpus('rows', ['abcabc', 'ab'])
    rows.check_rows(5)
    assert 'block_size = 5 cuts 50.0%' in capsys.readouterr().out
    one_line(lambda: rows.check_rows(5, 'causal', 'answer'), "made of rows", 'prepare.py')


def test_original_is_what_the_text_itself_has_in_the_form_of_a_completion(corpus):
    data = corpus('pairs', [('abc=', 'cba')], [('a=', 'a')])
    for mode, longest in (('causal', 0), ('causal', 1), ('fill', 0)):
        knobs = PROMPT_KNOBS | {'blank_kind': 'answer', 'mode': mode, 'block_size': 9,
                                'max_new_tokens': longest}
        prompts = draw_prompts(data, 'train', 3, 2, draws(0, 'test'), **knobs)
        rows = prompts.original.repeat_interleave(2, 0)
        shown, completions, originals = texts_and_originals(data.tok, prompts, rows,
                                                            mode == 'causal')
        expected = 'cba' if mode == 'causal' else 'abc=cba'
        assert originals == completions == [expected] * 6
        assert shown == ['abc=' if mode == 'causal' else 'abc=___'] * 6


def test_originals_reach_the_rewards_and_the_verifier_that_ask_for_them(notebook):
    n = notebook('causal', rewards={'same': 1.0, 'vowels': 1.0})
    asked = []

    def same(prompts, completions, originals):
        asked.extend(zip(prompts, completions, originals))
        return [float(c == o) for c, o in zip(completions, originals)]

    n.scorer.functions['same'] = same
    n.data.verify = lambda prompt, completion, original: float(completion == original)
    prompts = n.prompts
    r = train_grpo.rollout(n.policy, prompts)
    own = replace(r, rows=prompts.original.repeat_interleave(4, 0))
    assert (n.scorer.score(['same', 'verify'], own)['same'] == 1).all()
    scores = n.scorer.score(['same', 'verify', 'vowels'], r)
    assert torch.equal(scores['same'], scores['verify'])
    assert len(asked) == 48
    decoded = [n.data.tok.decode(row) for row in prompts.original]
    for i, (prompt, _, original) in enumerate(asked[24:]):
        assert prompt + original == decoded[i // 4].removesuffix('\n')


@pytest.mark.parametrize('function, n', [
    (lambda p, c: 1, 2), (lambda p, c, o: 1, 3), (lambda p, c, scale=2: 1, 2),
    (lambda prompts, completions, originals=None: 1, 3), (lambda p, c, *rest: 1, 2),
    (lambda prompts, completions, **columns: 1, 2), (functools.partial(lambda x, p, c: 1, 0), 2),
    (functools.partial(known_words, folder='x'), 2), (max, 2),
    (lambda p: 1, 'arguments are (p)'), (lambda: 1, 'arguments are ()'),
    (lambda a, b, c, d: 1, 'arguments are (a, b, c, d)'), (lambda *, x: 1, 'arguments are (*, x)')])
def test_the_arguments_of_a_reward_are_checked_before_it_is_called(function, n):
    if type(n) is int:
        assert n_arguments('it', function) == n
    else:
        one_line(lambda: n_arguments("reward 'mine'", function), "reward 'mine'", n,
                 'expected (prompts, completions), or (prompts, completions, originals)')


def test_a_run_with_a_reward_that_cannot_be_called_ends_at_once(clone):
    path = clone.config("def mine(completions):\n    return [1.0]\nrewards = {'mine': 1.0}\n")
    job = clone.train(clone.new(), path).refused("'mine'", '(completions)', 'originals')
    assert 'policy' not in job.out


def test_a_corpus_takes_the_vocabulary_of_another_and_lists_what_that_does_not_have(corpus,
                                                                                    tmp_path):
    data = corpus('rows', ['abcde', 'ace'])
    folder = tmp_path / 'small'
    folder.mkdir()
    (folder / 'prepare.py').write_text('')
    write_corpus(str(folder), 'pairs', [('a', 'b')], [('b', 'a')], vocabulary='toy')
    small = Dataset('small')
    assert small.tok.vocabulary == data.tok.vocabulary and small.tok.base == 6
    assert data.tok.difference(small.tok) == ''
    one_line(lambda: write_corpus(str(folder), 'pairs', [('ax', 'y')], [('b', 'a')],
                                  vocabulary='toy'), "'xy'", "'toy'")
    assert small.fingerprint == Dataset('small').fingerprint        # nothing was overwritten
    one_line(lambda: write_corpus(str(folder), 'rows', ['a'], ['b'], vocabulary='nowhere'),
             'nowhere', 'small, toy')


GOOD_LINES = [json.dumps({'prompt': f'{a}+{b}=', 'answer': str(a + b)})
              for a in range(6) for b in range(6)]


@pytest.mark.parametrize('line, says', [
    ('{"prompt": "a"', 'line 4: Expecting'), ('[1, 2]', 'line 4: no object with a prompt'),
    ('{"answer": "a"}', 'line 4: no object with a prompt'), ('7', 'line 4: no object'),
    ('{"prompt": 7, "answer": "a"}', 'line 4: the prompt is 7, no text'),
    ('{"prompt": "a", "answer": null}', 'line 4: the answer is None, no text'),
    ('{"prompt": "a\\nb", "answer": "c"}', 'line 4: the prompt has a line feed'),
    ('{"prompt": "", "answer": ""}', 'line 4: prompt and answer are empty')])
def test_a_bad_line_of_a_file_of_pairs_is_named_with_its_number(line, says, clone, tmp_path):
    path = tmp_path / 'mine.jsonl'
    path.write_text('\n'.join(GOOD_LINES[:3] + [line] + GOOD_LINES[3:]))
    clone.run('data/pairs/prepare.py', f'--input={path}').refused(str(path), says, 'JSON lines')
    assert not (clone.repo / 'data/pairs/meta.json').exists()


def test_files_of_pairs_that_cannot_be_used_are_named(clone, tmp_path):
    path = tmp_path / 'mine.jsonl'
    run = functools.partial(clone.run, 'data/pairs/prepare.py')
    run().refused('--input=mine.jsonl')
    run(f'--input={path}').refused(str(path), 'No such file')
    path.write_bytes(b'{"prompt": "\xff"}\n')
    run(f'--input={path}').refused(str(path), 'utf-8')
    path.write_text('\n'.join(GOOD_LINES[:7]))
    run(f'--input={path}').refused('7 different prompts', 'at least 10')
    path.write_text('\n'.join(GOOD_LINES))
    run(f'--input={path}', '--vocabulary=nowhere').refused('nowhere', 'arithmetic')
    run(f'--input={path}', '--tokenizer=word').refused('char', 'gpt2')
    clone.train(clone.new(), '--dataset=pairs', '--generator_checkpoint=').refused(
        '--input=mine.jsonl')


def test_from_a_file_of_pairs_to_a_run_that_learns_its_answers(clone, tmp_path):
    path = tmp_path / 'mine.jsonl'
    twice = [json.dumps({'prompt': '5+5=', 'answer': 'ten'})]       # one prompt, two answers
    path.write_text('\ufeff' + '\n\n'.join(GOOD_LINES + twice))
    repo = clone.copy(clone.repo)
    clone.run('data/pairs/prepare.py', f'--input={path}', folder=repo).good()
    meta = json.loads((repo / 'data/pairs/meta.json').read_text())
    assert meta['train']['texts'] + meta['val']['texts'] == 37 and 3 <= meta['val']['texts'] <= 4
    small = repo / 'config/generator_small.py'
    small.write_text("blank_kind = 'answer'\nn_layer = 1\nn_embd = 16\nbatch_size = 8\n"
                     "max_iters = 3\n")
    out = clone.new()
    recipe = '--generator_recipe=config/generator_small.py'
    job = clone.train(out, 'config/grpo_pairs.py', recipe, '--generator_checkpoint=',
                      '--block_size=9', '--max_iters=2', f'--out_dir={out}', folder=repo).good()
    flags = '--dataset=pairs --mode=causal --block_size=9'
    assert f'$ python model.py config/generator_small.py {flags}' in job.out
    assert (repo / 'out/generator_small-dataset=pairs-mode=causal-block_size=9.pt').exists()
    assert 'held-out verify: reference ' in job.out
    last = [line for line in log_lines(out) if 'eval/verify' in line][-1]
    shown = clone.run('sample.py', f'--out_dir={out}', '--device=cpu', folder=repo).good().out
    for key in ('verify', 'verify_argmax'):
        means = f"verify {last[f'eval/ref_{key}']:.3f} -> {last[f'eval/{key}']:.3f}"
        assert means in shown, (means, shown)           # the same prompts, the same numbers


def test_generator_judge_and_prompts_may_come_from_three_texts_of_one_vocabulary(clone):
    repo = clone.copy(clone.repo)
    for name in ('one', 'two'):
        (repo / f'data/{name}').mkdir()
        (repo / f'data/{name}/prepare.py').write_text('')
    script = ("import sys\nsys.path.insert(0, '.')\nfrom data.dataset import write_corpus\n"
              "write_corpus('data/one', 'windows', ['12+34=046'] * 9, ['55'] * 9, "
              "vocabulary='arithmetic')\n"
              "write_corpus('data/two', 'pairs', [('1+1=', '2')], [('2+2=', '4')], "
              "vocabulary='arithmetic')\n")
    (repo / 'make.py').write_text(script)
    clone.run('make.py', folder=repo).good()
    small = repo / 'config/small.py'
    small.write_text("dataset = 'one'\nn_layer = 1\nn_head = 2\nn_embd = 16\nbatch_size = 8\n"
                     "max_iters = 3\n")
    out = clone.new()
    asked = ['--dataset=two', '--blank_kind=answer', '--generator_checkpoint=', '--max_iters=2',
             '--generator_recipe=config/small.py', "--rewards={'judge': 1.0}"]
    job = clone.train(out, *asked, folder=repo).good()
    assert 'pretrained on one' in job.out and 'a likelihood of arithmetic' in job.out
    assert 'prompts of two' in job.out
    clone.run('sample.py', f'--out_dir={out}', '--device=cpu', folder=repo).good()
    (repo / 'make.py').write_text(script.replace(", vocabulary='arithmetic'", ''))
    clone.run('make.py', folder=repo).good()
    clone.train(out, *asked, '--generator_checkpoint=toy/generator.pt', folder=repo).refused(
        'toy/generator.pt', "vocabulary of 'arithmetic'", "characters only there: '0356789'")


def test_a_recipe_takes_dataset_mode_and_block_size_from_the_run_unless_it_sets_them(tmp_path):
    run = {'dataset': 'docstrings', 'mode': 'causal', 'block_size': 64}
    path = tmp_path / 'mine.py'
    path.write_text('n_layer = 2\n')
    words, config = whole_recipe('model.py', f'{path} --out=x.pt', run)
    assert words == [str(path), '--dataset=docstrings', '--mode=causal', '--block_size=64']
    assert (config['dataset'], config['mode'], config['block_size']) == tuple(run.values())
    assert config['n_layer'] == 2
    path.write_text("dataset = 'shakespeare'\nmode = 'fill'\nblock_size = 8\n")
    words, config = whole_recipe('model.py', str(path), run)
    assert config['dataset'] == 'shakespeare' and config['block_size'] == 8
    assert config['mode'] == 'fill'
    words, _ = whole_recipe('judge.py', 'config/judge_docstrings.py', run)     # knows no mode
    assert words == ['config/judge_docstrings.py']


def test_a_name_from_elsewhere_is_answered_with_our_knob():
    for script in (train_grpo, model_script, judge):
        table = script.ELSEWHERE
        ours = knobs(vars(script))
        for knob, names in table.items():
            assert knob in ours and not set(names.split()) & set(ours), knob
    for theirs, ours in (
            ('num_generations', 'group_size'), ('num_completions_per_prompt', 'group_size'),
            ('normalize_advantages', 'adv_norm'), ('kl_penalty_coef', 'kl_beta'),
            ('kl_coef', 'kl_beta'), ('mini_batch_size', 'mini_batches'),
            ('num_epochs', 'inner_updates'), ('lr', 'learning_rate'), ('beta', 'kl_beta'),
            ('epsilon', 'clip_low'), ('clip_range', 'clip_low'),
            ('max_completion_length', 'max_new_tokens'), ('num-generations', 'group_size'),
            ('generation_max_length', 'max_new_tokens'), ('reward_model', 'judge_checkpoint')):
        one_line(lambda: configure(dict(vars(train_grpo)), [f'--{theirs}=3']),
                 f"unknown key '{theirs}'; did you mean '{ours}'?")


def rollout_fields(r):
    names = ('rows', 'where', 'owner', 'actions', 'logp_old', 'point', 'kept', 'turn', 'logp_ref')
    return {name: getattr(r, name) for name in names if getattr(r, name) is not None}


@pytest.mark.parametrize('mode, n_fill_steps', [('fill', 1), ('fill', 3), ('causal', 1)])
def test_a_part_of_a_rollout_is_the_rollout_of_these_prompts(mode, n_fill_steps, notebook):
    n = notebook(mode, n_fill_steps=n_fill_steps, top_k=4, dtype='float64')
    whole = train_grpo.rollout(n.policy, n.prompts)
    whole.logp_ref = train_grpo.logp_of(n.reference, whole)
    numbers = torch.tensor([0, 2, 5])
    part = whole.part(numbers)
    alone = train_grpo.rollout(n.policy, n.prompts[numbers])
    alone.logp_ref = train_grpo.logp_of(n.reference, alone)
    for name in ('rows', 'where', 'owner', 'actions'):
        assert torch.equal(getattr(part, name), getattr(alone, name)), name
    close(part.logp_old, alone.logp_old, atol=1e-12, rtol=0)
    logp, other = [log_probs(decision_logits(n.policy, r)) for r in (part, alone)]
    close(log_probs_of(part.actions, logp, part.point),
          log_probs_of(alone.actions, other, alone.point), atol=1e-12, rtol=0)
    close(log_probs_of(part.actions, part.logp_ref, part.point),
          log_probs_of(alone.actions, alone.logp_ref, alone.point), atol=1e-12, rtol=0)
    if part.turn is not None:
        assert torch.equal(part.turn, alone.turn)
    assert rollout_fields(part).keys() == rollout_fields(alone).keys()


def test_a_part_of_a_part_is_the_part(notebook):
    n = notebook('fill', n_fill_steps=3, dtype='float64')
    whole = train_grpo.rollout(n.policy, n.prompts)
    twice = whole.part(torch.tensor([1, 3, 4, 5])).part(torch.tensor([1, 3]))
    once = whole.part(torch.tensor([3, 5]))
    for name, value in rollout_fields(once).items():
        assert torch.equal(getattr(twice, name), value), name
    for one, two in zip(once.passes, twice.passes):
        assert all(map(torch.equal, one, two))
    assert len(once.passes) == len(twice.passes) == 3


@pytest.mark.parametrize('mode, n_fill_steps', [('fill', 1), ('fill', 2), ('causal', 1)])
def test_mini_batches_are_the_same_however_many_micro_steps_there_are(mode, n_fill_steps, notebook):
    learned = []
    for batch_size, micro_steps in ((12, 1), (3, 4), (1, 12)):
        n = notebook(mode, batch_size=batch_size, gradient_accumulation_steps=micro_steps,
                     n_fill_steps=n_fill_steps, mini_batches=4, inner_updates=2, kl_beta=0.1,
                     dtype='float64')
        start = weights(n.policy)
        step = n.step()
        learned.append(weights(n.policy))
        assert step.line['clip_frac'] >= 0 and (learned[-1] - start).norm() > 1e-3
    close(learned[0], learned[1], atol=1e-12, rtol=0)
    close(learned[0], learned[2], atol=1e-12, rtol=0)


def test_a_mini_batch_is_every_so_many_th_prompt_with_its_own_divisor(notebook):
    n = notebook('fill', mini_batches=3, kl_beta=0.0, dtype='float64')
    expected = copy.deepcopy(n.policy)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.5)
    rollouts = train_grpo.act(n.policy, n.prompts)
    scores = train_grpo.judge_all(rollouts, n.policy, None, n.scorer)
    advantages = group_advantages(scores['vowels'])
    old = rollouts[0].logp_old
    first = 0
    of_prompt = {}                              # its rows of decisions
    for p, count in enumerate(n.prompts.mask.sum(1).tolist()):
        of_prompt[p] = range(first, first + count)
        first += count
    for j in range(3):
        loss = 0.0
        count = 0
        logp = decision_logits(expected, rollouts[0]).log_softmax(-1)
        for p in (j, j + 3):
            for m in of_prompt[p]:
                taken = logp[m, rollouts[0].actions[m]]
                ratio = (taken - old[m]).exp()
                gain = torch.minimum(ratio * advantages[p],
                                     ratio.clamp(0.8, 1.2) * advantages[p])
                loss = loss - gain.mean()
                count += 1
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
    n.reference = None
    n.step(lr=0.5)
    close(weights(n.policy), weights(expected), atol=1e-12, rtol=0)


def test_what_others_fill_with_a_learning_batch_of_32_completions_are_8_mini_batches(notebook):
    n = notebook('fill', batch_size=64, group_size=4, mini_batches=8)
    dealt = train_grpo.deal(train_grpo.act(n.policy, n.prompts))
    assert [sum(len(r.rows) for _, r in batch) for batch in dealt] == [32] * 8
    numbers = torch.cat([part for batch in dealt for part, _ in batch])
    assert sorted(numbers.tolist()) == list(range(64))


# ---- what a run leaves, and the way out ----------------------------------------------------------

OWN_REWARD = '''
def wide(prompts, completions):
    return [len(set(completion)) / 10 for completion in completions]

rewards = {'judge': 1.0, 'wide': 0.5}
'''


def samples_in(out):
    return [json.loads(line) for line in (out / 'samples.jsonl').read_text().splitlines()]


@pytest.fixture(scope='module')
def two_rewards(clone):
    """The folder of a run with a reward of its own, that kept its checkpoints, and what it said."""
    out = clone.new()
    job = clone.train(out, clone.config(OWN_REWARD), '--max_iters=8', '--sample_interval=2',
                      '--keep_checkpoints=True', '--save_interval=2').good()
    return out, job.out


def test_samples_are_whole_groups_with_reward_advantage_and_each_score(two_rewards):
    out, _ = two_rewards
    samples = samples_in(out)
    steps = [(line['step'], line['split']) for line in samples]
    assert steps == [(step, split) for step, split in (
        (0, 'val'), (0, 'train'), (2, 'train'), (4, 'val'), (4, 'train'), (6, 'train'), (8, 'val'))
        for _ in range(3 * 4)]                  # three prompts, four completions of each
    for i in range(0, len(samples), 4):
        group = samples[i:i + 4]
        assert len({line['prompt'] for line in group}) == 1
        mean = statistics.mean(line['reward'] for line in group)
        for line in group:
            assert len(line['completion']) == len(line['prompt']) and '_' in line['prompt']
            assert line['wide'] == pytest.approx(len(set(line['completion'])) / 10)
            assert line['reward'] == pytest.approx(line['judge'] + 0.5 * line['wide'])
            if line['split'] == 'train':
                assert line['advantage'] == pytest.approx(line['reward'] - mean, abs=1e-5)
            else:
                assert line['advantage'] is None and 'verify' in line


def test_samples_of_a_resumed_run_are_those_of_one_that_never_stopped(two_rewards, clone):
    whole, _ = two_rewards
    out = clone.new()
    flags = [clone.config(OWN_REWARD), '--sample_interval=2', '--save_interval=2']
    clone.train(out, *flags, '--max_iters=4').good()
    with open(out / 'samples.jsonl', 'a') as file:          # later than the checkpoint: is cut
        file.write(json.dumps({'step': 5, 'completion': 'lost'}) + '\n')
    clone.train(out, *flags, '--max_iters=8', '--resume=True').good()
    assert samples_in(out) == samples_in(whole)


def test_kept_checkpoints_are_what_the_run_was_then_and_can_be_looked_at(two_rewards, clone):
    out, _ = two_rewards
    names = sorted(path.name for path in out.glob('ckpt-*.pt'))
    assert names == [f'ckpt-00000{step}.pt' for step in (2, 4, 6, 8)]
    last, kept = checkpoint(out), checkpoint(out, 'ckpt-000008.pt')
    assert kept.pop('checksum') and last.pop('checksum') and digest_of(kept) == digest_of(last)
    assert checkpoint(out, 'ckpt-000004.pt')['step'] == 4
    shown = [clone.run('sample.py', f'--out_dir={out}', f'--checkpoint={name}', '--device=cpu',
                       '--num_samples=2').good().out for name in ('ckpt-000002.pt', 'ckpt.pt')]
    assert shown[0] != shown[1] and 'policy' in shown[0]


def test_a_reward_of_ones_own_is_shown_by_its_name_wherever_numbers_are(two_rewards, clone):
    out, console = two_rewards
    last = [line for line in log_lines(out) if 'eval/reward' in line][-1]
    steps = [line for line in console.splitlines() if re.match(r'step +\d+ \| reward', line)]
    assert len(steps) == 8 and all('| judge ' in line and '| wide ' in line for line in steps)
    looks = re.findall(r'^step +\d+ \| held-out .*\n {11}\|.*', console, re.M)
    assert len(looks) == 3 and all(' reward ' in look for look in looks)
    assert all('| judge ' in line and '| wide ' in line for line in looks)
    for name in ('verify', 'reward', 'judge', 'wide'):
        key = name if name in ('verify', 'reward') else f'reward/{name}'
        was, now = last[f'eval/ref_{key}'], last[f'eval/{key}']
        assert f"held-out {name}: reference {was:.3f} (" in console
        assert f"-> policy {now:.3f} (" in console
    shown = clone.run('sample.py', f'--out_dir={out}', '--device=cpu').good().out
    means = shown.splitlines()[-2]
    for name in ('reward', 'judge', 'wide', 'verify'):
        key = name if name in ('verify', 'reward') else f'reward/{name}'
        assert f"{name} {last[f'eval/ref_{key}']:.3f} -> {last[f'eval/{key}']:.3f}" in means
    assert means.index('reward') < means.index('judge')     # the weighted sum comes first


def test_a_reward_whose_file_is_gone_or_changed_is_told_when_a_run_is_looked_at(clone):
    path = clone.config(OWN_REWARD)
    out = clone.new()
    clone.train(out, path, '--max_iters=1', '--eval_interval=0').good()
    look = ['sample.py', f'--out_dir={out}', '--device=cpu', '--num_samples=1']
    assert 'warning' not in clone.run(*look).good().out
    path.write_text(OWN_REWARD.replace('/ 10', '/ 20'))
    assert 'not those of the run any more' in clone.run(*look).good().out
    path.unlink()
    shown = clone.run(*look).good().out
    assert 'not those of the run any more' in shown and ' wide ' not in shown


def test_group_std_is_the_mean_deviation_within_the_groups():
    reward = torch.tensor([[0.0, 1.0], [3.0, 3.0], [5.0, 9.0]])
    stats = Statistics()
    stats.add(1, mean_kl=0.0)
    ms = dict.fromkeys(('prompts', 'act', 'judge', 'learn'), 1.0)
    line = train_grpo.log_line(0, stats, {}, reward, reward, 0.1, ms)
    assert line['group_std'] == pytest.approx((0.5 ** 0.5 + 0 + 8 ** 0.5) / 3)
    assert line['std_reward'] == pytest.approx(statistics.stdev([0, 1, 3, 3, 5, 9]))


FAKE_WANDB = '''
import json, os
calls = []
class Run:
    def log(self, line, step): tell({'step': step, 'keys': sorted(line)})
    def finish(self): pass
class Table:
    def __init__(self, columns, data): self.size = len(columns), len(data)
def tell(what):
    with open(os.environ['TOLD'], 'a') as file: file.write(json.dumps(what) + '\\n')
def init(**how):
    tell({'id': how['id'], 'resume': how['resume']})
    return Run()
'''


def test_a_resumed_run_goes_on_with_the_same_wandb_run_and_tables_are_told(clone, monkeypatch):
    repo = clone.copy(clone.repo)
    (repo / 'wandb.py').write_text(FAKE_WANDB)
    told = clone.new('told')
    sabotage = f"import os\nos.environ['TOLD'] = {str(told)!r}\n"
    out = clone.new()
    flags = ['--wandb_log=True', '--sample_interval=2']
    clone.train(out, *flags, '--max_iters=4', folder=repo, sabotage=sabotage).good()
    clone.train(out, *flags, '--max_iters=8', '--resume=True', folder=repo,
                sabotage=sabotage).good()
    clone.train(clone.new(), *flags, '--max_iters=1', folder=repo, sabotage=sabotage).good()
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    ids = [line['id'] for line in lines if 'id' in line]
    assert len(ids) == 3 and ids[0] == ids[1] != ids[2]
    assert all(line['resume'] == 'allow' for line in lines if 'id' in line)
    tables = [line for line in lines if 'samples/train' in line.get('keys', [])]
    assert [line['step'] for line in tables] == [0, 2, 4, 6, 0]


def test_a_generator_alone_can_be_looked_at_without_a_run_and_a_judge(clone, tmp_path):
    look = ['sample.py', '--checkpoint=toy/generator.pt', '--device=cpu']
    shown = clone.run(*look, '--num_samples=2').good().out
    assert shown.count('generator ') == 2 and 'judge' not in shown and 'reference' not in shown
    shown = clone.run(*look, '--prompt=12+3_=_47', '--k=3').good().out
    assert '12+3_=_47' in shown
    clone.run('sample.py', '--checkpoint=toy/judge.pt').refused('is a judge, expected a generator')
    clone.run('sample.py', '--checkpoint=toy/nothing.pt').refused('out-grpo')


def test_many_prompts_come_from_a_file_and_a_bad_one_is_named(clone, finished, tmp_path):
    path = tmp_path / 'prompts.txt'
    path.write_text('12+3_=_47\n\n__+11=0__\n')
    look = ['sample.py', f'--out_dir={finished}', '--device=cpu', f'--prompts={path}']
    shown = clone.run(*look).good().out
    assert shown.count('12+3_=_47') == shown.count('__+11=0__') == 2
    assert 'mean over 2 prompt(s)' in shown
    path.write_text('12+3_=_47\n12+35=047\n')
    clone.run(*look).refused("'12+35=047'", "write '_' for a blank")
    path.write_text('12+3_=_47\n12+3x=_47\n')
    clone.run(*look).refused("'12+3x=_47'", "'x'")
    path.write_text('\n')
    clone.run(*look).refused('no prompt in it')
    path.unlink()
    clone.run(*look).refused(str(path), 'No such file')


def test_texts_are_completed_without_a_dataset_as_they_are_with_one(clone, monkeypatch):
    monkeypatch.chdir(clone.repo)
    policy = load_gpt('toy/generator.pt')
    found = complete_texts(policy, ['12+3_=_47', '__+11=0__'], k=3, seed=4)
    assert [len(group) for group in found] == [3, 3]
    assert all(re.fullmatch(r'12\+3.=.47', text, re.DOTALL) for text in found[0])
    rng = draws(4, 'texts')
    prompts = prompts_of_texts(['12+3_=_47', '__+11=0__'], policy.tok, 'pairs', 3, rng,
                               block_size=10, mode='fill')
    rows = complete(policy, prompts).rows.view(2, 3, 10)
    assert found == [[policy.tok.decode(row).removesuffix('\n') for row in group.tolist()]
                     for group in rows]
    assert complete_texts(policy, ['12+3_=_47'], k=2) == complete_texts(policy, ['12+3_=_47'], k=2)
    for text, says in (('12', "write '_'"), ('1' * 11 + '_', '12 symbols'), ('q_', "'q'")):
        with pytest.raises(ValueError, match=says):
            complete_texts(policy, [text])


def qwen3(weights, config, ids, bias):
    """Logits (N, S, V) of a Qwen3, by its definition in slow loops over layers and heads."""
    eps, D, H = config['rms_norm_eps'], config['head_dim'], config['num_attention_heads']

    def rms(x, name):
        return weights[name] * x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()

    def rotate(x):
        angle = torch.arange(x.size(1))[:, None] / config['rope_theta'] ** (
            torch.arange(0, D, 2) / D)
        angle = torch.cat((angle, angle), -1)
        half = torch.cat((-x[..., D // 2:], x[..., :D // 2]), -1)
        return x * angle.cos() + half * angle.sin()

    x = weights['model.embed_tokens.weight'][ids]
    for i in range(config['num_hidden_layers']):
        at = f'model.layers.{i}.'
        y = rms(x, at + 'input_layernorm.weight')
        q, k, v = [y @ weights[f'{at}self_attn.{name}_proj.weight'].T for name in 'qkv']
        heads = []
        for h in range(H):
            part = slice(h * D, (h + 1) * D)
            qh = rotate(rms(q[..., part], at + 'self_attn.q_norm.weight'))
            kh = rotate(rms(k[..., part], at + 'self_attn.k_norm.weight'))
            heads.append((qh @ kh.transpose(1, 2) / D ** 0.5 + bias).softmax(-1) @ v[..., part])
        x = x + torch.cat(heads, -1) @ weights[at + 'self_attn.o_proj.weight'].T
        y = rms(x, at + 'post_attention_layernorm.weight')
        gate = (y @ weights[at + 'mlp.gate_proj.weight'].T).relu()
        up = y @ weights[at + 'mlp.up_proj.weight'].T
        x = x + (gate * up) @ weights[at + 'mlp.down_proj.weight'].T
    return rms(x, 'model.norm.weight') @ weights['lm_head.weight'].T


def exported(causal):
    """A model, and tokens, where (N, T), ids of the export, their bias, and our logits."""
    torch.manual_seed(3)
    ours = tiny(causal, vocab=7, T=9, layers=2, dtype=torch.float32)
    ours.tok = Tokenizer('char', '\nabcdef')
    tokens = torch.randint(7, (5, 9))
    if causal:
        ids = F.pad(tokens[:, :-1], (1, 0), value=ours.bos_id)
        return ours, ids, torch.full((9, 9), -math.inf).triu(1), ours(tokens)
    where = torch.rand(5, 9) < 0.4
    where[:, 0] = True
    ids = tokens.masked_fill(where, ours.mask_id)
    return ours, ids, torch.zeros(9, 9), (where, ours(tokens, where=where))


@pytest.mark.parametrize('causal', [True, False])
def test_the_exported_weights_are_a_qwen3_with_the_same_logits(causal):
    ours, ids, bias, expected = exported(causal)
    logits = qwen3(sample.qwen3_weights(ours), sample.qwen3_config(ours), ids, bias)
    assert (logits[..., 7:] == 0).all()
    logits = logits[..., :7]
    if not causal:
        where, expected = expected
        logits = logits[where]
    close(logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('causal', [True, False])
def test_transformers_loads_the_exported_folder_with_the_same_logits(causal, tmp_path):
    transformers = pytest.importorskip('transformers')
    pytest.importorskip('safetensors')
    ours, ids, bias, expected = exported(causal)
    folder = str(tmp_path / 'folder')
    sample.export_to(folder, ours)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    assert tok('fab').input_ids == [ours.bos_id, *ours.tok.encode('fab')]
    assert tok.decode(tok('fab').input_ids, skip_special_tokens=True) == 'fab'
    if causal:
        close(theirs(ids).logits[..., :7], expected, atol=1e-5, rtol=1e-5)
        asked = tok('fab', return_tensors='pt')
        found = theirs.generate(**asked, max_new_tokens=5, num_return_sequences=40)
        assert (found[:, 4:] < 7).logical_or(found[:, 4:] == ours.pad_id).all()
    else:
        where, expected = expected
        logits = theirs(ids, attention_mask=torch.zeros(1, 1, 9, 9)).logits[..., :7][where]
        close(logits, expected, atol=1e-5, rtol=1e-5)


def test_without_safetensors_an_export_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, 'safetensors.torch', None)
    one_line(lambda: sample.export_to(str(tmp_path / 'folder'), None), 'pip install safetensors')
    assert not (tmp_path / 'folder').exists()


# ---- the pages: every command runs as written ----------------------------------------------------

PAGES = ('README.md', 'config/README.md', 'data/README.md')
# Files that a page itself writes.
CREATED = {'config/mine.py', 'data/palindromes/prepare.py', 'config/topics.py'}


def blocks_of(page, kind):
    return re.findall(rf'^```{kind}\n(.*?)^```', (HERE / page).read_text(), re.M | re.S)


def commands_of(page):
    """The commands of our scripts on a page, each a list of words."""
    found = []
    for block in blocks_of(page, 'sh'):
        block = re.sub(r"<<'END'\n.*?\nEND\n", '\n', block, flags=re.S).replace('\\\n', ' ')
        for line in block.splitlines():
            for part in re.split(r'&&|;|\bdo\b', line):
                words = shlex.split(part, comments=True)
                while words and ('=' in words[0] or words[0] in ('torchrun', 'python')
                                 or (words[0].startswith('--') and '.py' not in words[0])):
                    words = words[1:]
                if words and words[0].endswith('.py') and not words[0].startswith('assets'):
                    found.append(words)
    return found


@pytest.mark.parametrize('page', PAGES)
def test_every_command_of_a_page_names_files_and_knobs_that_exist(page):
    commands = commands_of(page)
    assert len(commands) >= 5
    for script, *words in commands:
        if script == 'test_grpo.py' or script in CREATED:
            continue
        assert (HERE / script).exists(), script
        names = knobs(runpy.run_path(str(HERE / script)))
        for word in words:
            if word.startswith('--'):
                assert word[2:].partition('=')[0] in names, (page, script, word)
            else:
                assert word in CREATED or (HERE / word).is_file(), (page, script, word)


@pytest.mark.parametrize('page', PAGES)
def test_links_and_anchors_of_a_page_lead_somewhere(page):
    text = (HERE / page).read_text()
    for target in re.findall(r'\]\(([^)]+)\)', text):
        if target.startswith('http'):
            continue
        path, _, anchor = target.partition('#')
        file = (HERE / page).parent / path if path else HERE / page
        assert file.exists(), target
        if anchor:
            heads = re.findall(r'^#+ (.*)', file.read_text(), re.M)
            slugs = [re.sub(r'[^a-z0-9 -]', '', head.lower()).replace(' ', '-') for head in heads]
            assert anchor in slugs, (target, slugs)
    for name in re.findall(r'`(test_\w+)`', text):
        assert name in globals() or name == 'test_grpo', name


@pytest.fixture(scope='module')
def page_repo(clone):
    """A repository in which the default run has happened, at toy size."""
    repo = clone.copy(clone.repo)
    (repo / 'out').mkdir()
    for part in ('generator', 'judge'):
        saved = torch.load(repo / f'toy/{part}.pt', weights_only=True)
        del saved['checksum'], saved['made_of']             # nobody knows what it was made of
        save_checkpoint(repo / f'out/{part}_arithmetic.pt', **saved)
    clone.run('train_grpo.py', 'config/grpo_config.py', '--max_iters=2', '--eval_prompts=16',
              '--device=cpu', folder=repo).good()
    return repo


def test_the_quick_commands_of_the_front_page_run_as_written(page_repo, clone):
    quick = [words for words in commands_of('README.md') if words[0] == 'sample.py'
             and not any('export' in word or 'passes' in word for word in words)]
    quick += [words for words in commands_of('README.md') if '--explain=True' in words]
    assert len(quick) >= 4
    for words in quick:
        if '--curves=True' in words and importlib.util.find_spec('matplotlib') is None:
            continue
        clone.run(*words, folder=page_repo).good()


def test_no_line_of_the_default_run_is_wider_than_120_columns_and_nothing_is_coloured(
        page_repo, clone):
    job = clone.run('train_grpo.py', 'config/grpo_config.py', '--max_iters=1', '--device=cpu',
                    '--eval_prompts=16', folder=page_repo).good()
    lines = job.out.splitlines()
    assert len(lines) > 20 and max(map(len, lines)) <= 120, max(lines, key=len)
    assert '\033' not in job.out
    assert 'held-out verify' in job.out and 'the line to beat' in job.out


def run_block(code, folder, shell=True):
    command = ['bash', '-c', code] if shell else [sys.executable, '-c', code]
    env = {**os.environ, 'PATH': f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    job = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert job.returncode == 0, job.stderr
    return job.stdout


def test_the_python_of_the_front_page_completes_prompts(page_repo):
    code, = [block for block in blocks_of('README.md', 'python') if 'complete_texts' in block]
    assert len(code.strip().splitlines()) <= 5
    shown = run_block(code, page_repo, shell=False)
    assert len(shown.splitlines()) == 2 and shown.count('=') >= 4


def test_files_that_the_pages_write_are_good_ones(page_repo, clone):
    page = '\n'.join(blocks_of('README.md', 'sh'))
    heredocs = re.findall(r"(?:cat > (\S+)|python -) <<'END'\n(.*?)\nEND\n", page, re.S)
    assert [name for name, _ in heredocs] == ['config/mine.py', '']
    (page_repo / 'config/mine.py').write_text(heredocs[0][1])
    run_block(heredocs[1][1], page_repo, shell=False)
    clone.run('data/pairs/prepare.py', '--input=mine.jsonl', folder=page_repo).good()
    clone.run('train_grpo.py', 'config/grpo_config.py', 'config/mine.py', '--max_iters=1',
              '--eval_interval=0', f'--out_dir={clone.new()}', folder=page_repo).good()
    page = '\n'.join(blocks_of('data/README.md', 'sh'))
    palindromes = dict(re.findall(r"cat > (\S+) <<'END'\n(.*?)\nEND\n", page, re.S))
    (page_repo / 'data/palindromes').mkdir()
    for name, text in palindromes.items():
        (page_repo / name).write_text(text)
    clone.run('data/palindromes/prepare.py', folder=page_repo).good()


# ---- damage is found -----------------------------------------------------------------------------


def test_8_a_flipped_byte_of_a_corpus_is_found_wherever_it_is(small_corpus):
    folder = small_corpus[0] / 'data/tiny'
    whole = files_in(folder)
    rng = random.Random(8)
    for name in ('train.bin', 'val.bin'):
        for at in rng.sample(range(len(whole[name])), 20):
            flipped = bytearray(whole[name])
            flipped[at] ^= 1 << rng.randrange(8)
            (folder / name).write_bytes(flipped)
            one_line(lambda: Dataset('tiny'), name, 'damaged', 'python data/tiny/prepare.py')
        (folder / name).write_bytes(whole[name])
    Dataset('tiny')
    text = whole['meta.json'].decode()
    for old, new in (('abc', 'acb'), ('abc', 'abd'), ('abc', ''), ('char"', 'word"'),
                     ('rows', 'windows'), ('"tokens": 300', '"tokens": 301')):
        assert old in text
        (folder / 'meta.json').write_text(text.replace(old, new, 1))
        one_line(lambda: Dataset('tiny'), 'meta.json', 'prepare.py')


def test_a_flipped_bit_of_a_checkpoint_is_found_or_changes_nothing(clone, finished):
    path = finished / 'ckpt.pt'
    whole = path.read_bytes()
    saved = torch.load(path, weights_only=True)
    saved.pop('checksum')
    digest = common.digest_of(saved)
    text = type('text', (), {'fingerprint': saved['corpus'], 'name': 'arithmetic',
                             'tok': Tokenizer(**saved['vocabulary'])})
    flipped_path = clone.new('flipped')
    rng = random.Random(9)

    def is_found(at):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << rng.randrange(8)
        flipped_path.write_bytes(flipped)
        try:
            content = load_checkpoint(flipped_path, 'policy', text, 'make it')
        except SystemExit as e:
            assert str(e).startswith(f'error: {flipped_path} is damaged'), e
            assert str(e).endswith('make one with: make it')
            return True
        assert common.digest_of(content) == digest      # a byte that nobody reads, of padding
        return False

    assert sum(map(is_found, rng.sample(range(len(whole)), 40))) > 15
    for tensor in (saved['model']['embed.weight'],
                   saved['optimizers'][0]['state'][0]['momentum_buffer']):
        assert is_found(whole.index(tensor.numpy().tobytes()) + rng.randrange(tensor.numel()))


def test_every_weight_and_number_of_a_checkpoint_enters_its_checksum():
    rng = torch.Generator().manual_seed(1)
    content = {'model': {'w': torch.randn(2, 3, generator=rng)}, 'step': 4, 'best': 0.5,
               'optimizers': [{'state': {0: {'m': torch.zeros(2)}}, 'lr': 1e-3}], 'control': None}

    def digests():
        yield common.digest_of(content)
        for change in (lambda: content['model']['w'][1, 2].mul_(1.000001),
                       lambda: content['model'].update(w=content['model']['w'].view(3, 2)),
                       lambda: content['model'].update(w=content['model']['w'].view(torch.int32)),
                       lambda: content.update(step=5), lambda: content.update(best=0.5000001),
                       lambda: content['optimizers'][0].update(lr=2e-3),
                       lambda: content['optimizers'][0]['state'][0]['m'][1].fill_(1),
                       lambda: content.update(control={'verify': 0.1})):
            change()
            yield common.digest_of(content)

    found = list(digests())
    assert len(set(found)) == len(found)


@pytest.mark.parametrize('text', ['[]', 'null', '3', '"x"', '{}', '{"dataset": 3}', '{"dataset"',
                                  '', '\x00\xff', None])
def test_json_that_is_not_what_we_wrote_is_one_line_with_the_command_that_makes_it(text, tmp_path):
    path = tmp_path / 'config.json'
    if text is None:
        path.mkdir()
    else:
        path.write_text(text, encoding='latin-1')
    one_line(lambda: read_json(str(path), {'dataset': str}, 'make it'), str(path), 'with: make it')
    assert str(path) in one_line(lambda: read_json(f'{path}x', {}, 'make it'), 'No such file')


def test_garbage_within_a_log_is_told_of_left_out_and_neither_stops_curves_nor_a_run(
        clone, finished):
    out = clone.copy(finished)
    path = out / 'log.jsonl'
    lines = path.read_text().splitlines(keepends=True)
    bad = ['\x00\x07garbage\n', '[]\n', 'null\n', '3\n', '{"step": "x"}\n', '{"step": null}\n',
           '{"eval/reward": 1.0}\n', '{"step": 1, "torn": \n']
    path.write_text(''.join(lines[:2] + bad + lines[2:]) + '{"step": 4')
    clone.run('sample.py', f'--out_dir={out}', '--curves=True').good()
    job = clone.train(out, '--max_iters=4', '--resume=True').good()
    assert f'{path}, line 3: ' in job.out and '8 such line(s)' in job.out
    assert log_lines(out) == log_lines(finished)
    assert read_json_lines(str(path)) == [json.loads(line) for line in path.open()]


def test_a_run_that_has_one_line_so_far_or_equal_rewards_has_curves(tmp_path, monkeypatch):
    evaluation = {'step': 0, 'eval/reward': 1.0}
    step = {'step': 0, 'mean_reward': 1.0, 'std_reward': 0.0}
    monkeypatch.chdir(tmp_path)
    for name, lines in (('one', [evaluation]), ('two', [evaluation, step]), ('three', [])):
        pathlib.Path(name).mkdir()
        text = ''.join(json.dumps(line) + '\n' for line in lines)
        pathlib.Path(name, 'log.jsonl').write_text(text)
    sample.draw_curves(['one', 'two', 'three'])
    sample.draw_curves(['three'])
    assert pathlib.Path('one/compare.png').read_bytes().startswith(b'\x89PNG')
    pathlib.Path('two/curves.png').mkdir()
    one_line(lambda: sample.draw_curves(['two']), 'two/curves.png')


# ---- a knob has a range, and a controller stays in it --------------------------------------------


def test_4_kl_beta_stays_above_zero_however_many_completions_a_step_has():
    for completions in (100, 51_200, 10 ** 6, 10 ** 9):
        for kl in (0.0, 0.01, 0.05, 1.0, 1e9):
            beta = 0.05
            for _ in range(300):
                new = train_grpo.adapted_kl_beta(beta, kl, 0.05, completions, 10_000)
                assert 0 < 0.799 * beta < new < 1.201 * beta
                assert (new > beta) == (kl > 0.05)
                beta = new


@pytest.mark.parametrize('name, value', [
    ('min_lr', -1e-5), ('warmup_iters', -1), ('lr_decay_iters', -1), ('save_interval', -1),
    ('sample_interval', -1), ('max_new_tokens', -1), ('kl_beta', -0.1), ('kl_beta', math.nan),
    ('learning_rate', math.inf), ('temperature', 1e-300), ('temperature', 0.0), ('top_p', 0.0),
    ('top_p', 1.1), ('top_p', math.nan), ('n_fill_steps', 10 ** 12), ('n_fill_steps', 0),
    ('beta1', 1.0), ('blank_low', 0.7), ('group_size', 1), ('seed', -1), ('target_kl', -0.1),
    ('kl_horizon', 0), ('log_interval', 0),
    ('rewards', {'judge': 1e300}), ('rewards', {'judge': True}), ('rewards', {'judge': math.nan})])
def test_a_knob_out_of_its_range_is_named_with_its_value(name, value, monkeypatch):
    train_grpo.check_knobs({})
    monkeypatch.setattr(train_grpo, name, value)
    one_line(lambda: train_grpo.check_knobs({}), f'{name} = {value!r}')


@pytest.mark.parametrize('script', ['train_grpo.py', 'model.py', 'judge.py', 'sample.py'])
def test_a_number_that_no_computer_holds_is_refused_from_flag_and_file(script, tmp_path):
    knobs = runpy.run_path(f'{HERE}/{script}')
    path = tmp_path / 'giant.py'
    path.write_text(f'seed = {10 ** 400}\n')
    for arg in ('--seed=1' + '0' * 400, '--seed=' + '9' * 30, str(path)):
        one_line(lambda: configure(dict(knobs), [arg], quiet=True), 'seed', 'too large')
    configure(dict(knobs), ['--seed=1' + '0' * 9], quiet=True)


def test_the_smallest_top_p_keeps_the_likeliest_id_and_no_other():
    logp = torch.tensor([[0.1, 0.2, 0.7], [0.25, 0.5, 0.25]]).log()
    kept = model.kept_set(logp, top_p=1e-300)
    assert kept.tolist() == [[False, False, True], [False, True, False]]


@pytest.mark.parametrize('error', [
    MemoryError('Unable to allocate 7.3 TiB for an array with shape (1000000000000, 1)'),
    RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried to "
                 "allocate 7.3 TiB\nException raised from"),
    RuntimeError('Storage size calculation overflowed with sizes=[7.3 TiB]'),
    ValueError('array is too big; 7.3 TiB is larger than the maximum possible size')])
def test_memory_that_cannot_be_had_is_one_line_with_what_was_asked_for(error, capsys):
    common.on_error(type(error), error, None)
    said = capsys.readouterr().err
    assert said.count('\n') == 1 and said.startswith('error: out of memory: ')
    assert '7.3 TiB' in said and 'Exception raised' not in said and 'ask for less' in said


# ---- a function of the user's is called with care ------------------------------------------------


@pytest.mark.parametrize('name', ['judge', 'verify', 'distinct', 'length', 'kl'])
def test_5_a_function_with_the_name_of_a_built_in_reward_is_refused(name):
    functions = {name: lambda prompts, completions: [0.0] * len(prompts)}
    one_line(lambda: train_grpo.check_knobs(functions), f"'{name}'", 'another name')


def test_6_a_reward_that_sorts_its_lists_spoils_nothing_of_the_next_one():
    class Text:
        tok = data.dataset.Tokenizer('char', '\nab')
        verify = None

    def sorts(prompts, completions):
        prompts.sort()
        completions.sort(reverse=True)
        completions.append('more')
        return [1.0] * len(prompts)

    def first_letter(prompts, completions):
        return [float(text[0] == 'a') for text in completions]

    tokens = torch.tensor([[1, 2], [2, 1]])
    mask = torch.tensor([[True, False], [False, True]])
    prompts = Prompts(tokens, mask, torch.rand(2, 2, 1), 0, torch.rand(2, 2))
    rows = torch.tensor([[1, 2], [2, 1]])
    rollout = model.Rollout(prompts, rows, mask, torch.tensor([0, 1]), None, None, None, None, None,
                            causal=False)
    scorer = judge.Scorer(Text, functions={'sorts': sorts, 'first_letter': first_letter})
    both = scorer.score(['sorts', 'first_letter'], rollout)
    assert both['first_letter'].tolist() == [[1.0], [0.0]]
    assert both['sorts'].tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize('returned, says', [
    ("float('nan')", 'gave nan'), ('2', 'gave 2'), ('-0.5', 'gave -0.5'), ('None', 'gave None'),
    ("'1.0'", "gave '1.0'"), ('[1.0]', 'gave [1.0]'), ('1 / 0', 'raised ZeroDivisionError'),
    ('sys.exit(0)', 'raised SystemExit'), ('verify(prompt)', 'raised TypeError')])
def test_9_a_verify_that_gives_no_share_ends_the_run_with_its_name_and_a_clean_log(
        returned, says, small_corpus):
    path = small_corpus[0] / 'data/tiny/prepare.py'
    path.write_text(f"import sys\ndef verify(prompt, completion):\n    return {returned}\n")
    tiny = Dataset('tiny')
    one_line(lambda: tiny.check(['ab__'], ['abca'], ['abab']), 'verify() of data/tiny/prepare.py',
             says, "'ab__'")


def test_nothing_of_an_evaluation_is_logged_before_it_is_checked(clone):
    for text, name in (("def mine(p, c): return [float('inf')] * len(p)\n", 'mine'),
                       ("def mine(p, c): return [1e300] * len(p)\n", 'mine')):
        out = clone.new()
        clone.train(out, clone.config(text + "rewards = {'mine': 1.0}\n")).refused('step 0', name)
        assert (out / 'log.jsonl').read_text() == ''
        assert not list(out.glob('*.pt'))


@pytest.mark.parametrize('function, says', [
    (lambda p, c: None, 'gave None'),
    (lambda p, c: 1.0, 'gave 1.0'),
    (lambda p, c: 'no', "gave 'no'"),
    (lambda p, c: b'no', "gave b'no'"),
    (lambda p, c: ['1', '2'], "gave '1'"),
    (lambda p, c: [1.0, None], 'gave None'),
    (lambda p, c: [1.0, 1j], 'gave 1j'),
    (lambda p, c: [1.0, 10 ** 400], 'gave 1000'),
    (lambda p, c: [1.0], 'gave 1 values for 2'),
    (lambda p, c: [1.0] * 3, 'gave 3 values for 2'),
    (lambda p, c: {0: 1.0, 1: 1.0}, 'gave {0: 1.0, 1: 1.0}'),       # its keys would be numbers
    (lambda p, c: {0.5, 1.0}, 'gave {0.5, 1.0}'),                   # and a set has no order
    (lambda p, c: np.ones((2, 2)), 'gave [1.0, 1.0]'),
    (lambda p, c: torch.ones(2, 2), 'gave [1.0, 1.0]'),
    (lambda p, c: torch.tensor(1.0), 'gave 1.0'),
    (lambda p, c: iter([1.0, 1.0]), 'gave <list_iterat'),
    (lambda p, c: [][0], 'raised IndexError'),
    (lambda p, c: sys.exit(), 'raised SystemExit'),
    (lambda p, c: open('nowhere'), 'raised FileNotFoundError'),
    (lambda p, c: exec('raise ValueError("a\\nb")'), 'raised ValueError: a b'),
    (3, 'raised TypeError')])
def test_14_what_a_reward_does_wrong_is_one_line_with_its_name_and_what_was_expected(
        function, says):
    lists = (['a_', 'b_'], ['aa', 'bb'], ['ab', 'ba'])
    one_line(lambda: call_user("reward 'mine'", function, *lists),
             "reward 'mine'", says, 'expected a list of one number per completion', '_')


@pytest.mark.parametrize('values', [[1, 0], (1.0, 0.0), [True, False], np.array([1.0, 0.0]),
                                    torch.tensor([1.0, 0.0], requires_grad=True),
                                    [torch.tensor(1.0), np.float32(0)]])
def test_all_that_is_a_list_of_numbers_will_do(values):
    lists = (['a', 'b'], ['c', 'd'], ['e', 'f'])
    assert call_user('', lambda p, c: values, *lists) == [1.0, 0.0]


def test_a_signal_that_comes_within_a_function_of_the_users_is_no_fault_of_the_function(
        monkeypatch):
    monkeypatch.setattr(common.atexit, 'register', lambda *arguments, **how: None)

    def interrupted(prompts, completions):
        common.on_early_signal(signal.SIGTERM, None)

    for one_by_one in (False, True):
        with pytest.raises(Stopped) as error:
            call_user('', interrupted, ['a'], ['b'], ['c'], one_by_one)
        assert error.value.code == 128 + signal.SIGTERM


def test_a_config_file_that_ends_the_script_is_named_and_one_with_a_bom_is_read(tmp_path):
    knobs = {'seed': 1, '__doc__': '', '__file__': __file__}
    path = tmp_path / 'mine.py'
    path.write_text('import sys\nseed = 2\nsys.exit(0)\n')
    one_line(lambda: configure(dict(knobs), [str(path)]), str(path), 'SystemExit')
    path.write_text('\ufeffseed = 2\n', encoding='utf-8')
    assert configure(dict(knobs), [str(path)])[0]['seed'] == 2


# ---- what cannot be done is said before the work -------------------------------------------------


def test_13_a_held_out_text_that_is_shorter_than_a_row_is_said_before_anything_is_trained(
        small_corpus):
    write_corpus('data/tiny', 'windows', ['abcabcabcabc'] * 9, ['abc'])
    tiny = Dataset('tiny')
    tiny.check_rows(4)
    one_line(lambda: tiny.check_rows(5), "'tiny'", 'val', '4 tokens', 'block_size = 5')


def test_what_a_corpus_cannot_be_is_said_when_it_is_written_and_nothing_is_left(tmp_path):
    folder = str(tmp_path / 'mine')
    symbols = [chr(code) for code in range(0x100, 0x100 + 2 ** 16 + 0x900)
               if not 0xd800 <= code < 0xe000]
    for rows, unit, tokenizer, words in (
            (['a\nb'], 'rows', 'char', ['line feed', "'a\\nb'"]),
            (['ab', ''], 'rows', 'char', ['empty']),
            (['ab'], 'lines', 'char', ["unit = 'lines'", "'rows', 'windows'"]),
            (['ab'], 'rows', 'word', ["tokenizer = 'word'"]),
            ([], 'rows', 'char', ['0 texts to train on']),
            (symbols, 'windows', 'char', ['different characters', '65536'])):
        one_line(lambda: write_corpus(folder, unit, rows, ['ab'], tokenizer), *words)
    assert not os.path.exists(folder)


def test_rows_that_are_cut_are_told_and_a_byte_order_mark_is_no_letter(small_corpus, capsys):
    Dataset('tiny').check_rows(4)               # rows of 5 with their end
    assert 'block_size = 4 cuts 100.0%' in capsys.readouterr().out
    Dataset('tiny').check_rows(5)
    assert capsys.readouterr().out == ''
    item = '{"text": "ab", "label": 1}\n{"text": "ba", "label": 0}\n'
    pathlib.Path('bom.jsonl').write_text('\ufeff' + item * 15, encoding='utf-8')
    rows, marks = judge.read_labels('bom.jsonl', Dataset('tiny').tok, 5)
    assert len(rows) == 30 and marks.sum() == 15


def test_a_prepare_script_that_writes_nothing_or_cannot_be_read_is_named(small_corpus, monkeypatch):
    path = small_corpus[0] / 'data/tiny/prepare.py'
    path.write_text('raise ValueError("no text")\n')
    one_line(lambda: Dataset('tiny'), 'data/tiny/prepare.py', 'ValueError: no text')
    (small_corpus[0] / 'data/tiny/meta.json').unlink()
    monkeypatch.setattr(data.dataset, 'run_script', lambda command: None)
    one_line(lambda: Dataset('tiny', prepare=True), 'data/tiny/prepare.py', 'write_corpus()')


def test_verify_as_a_reward_where_there_is_none_is_said_before_a_network_is_loaded(clone):
    repo = clone.copy(clone.repo)
    with open(repo / 'data/arithmetic/prepare.py', 'a') as file:
        file.write('\ndel verify\n')
    shutil.rmtree(repo / 'toy')                 # no network to load
    flags = ["--rewards={'verify': 1.0}"]
    clone.train(clone.new(), *flags, folder=repo).refused("'verify'", 'no function verify()')


def test_15_a_full_disk_is_one_line_and_leaves_nothing_half_written(clone, finished):
    # At the start: config.json has 1.6 kB.
    out = clone.new()
    clone.train(out, most_bytes=1000).refused('cannot write', f'{out}/config.json')
    assert set(os.listdir(out)) == {'.lock', 'log.jsonl'}
    # In a save: a checkpoint has about 50 kB, the log less than 10.
    out = clone.copy(finished)
    before = files_in(out)
    job = clone.train(out, '--max_iters=8', '--resume=True', most_bytes=20_000)
    job.refused('cannot write', '.pt', 'whole', 'room')
    assert not list(out.glob('*.tmp')) and files_in(out)['ckpt.pt'] == before['ckpt.pt']
    clone.train(out, '--max_iters=8', '--resume=True').good()
    # In the preparation of a text: train.bin has 180 kB.
    repo = clone.copy(clone.repo)
    for name in ('train.bin', 'val.bin', 'meta.json'):
        (repo / 'data/arithmetic' / name).unlink()
    job = clone.run('data/arithmetic/prepare.py', folder=repo, most_bytes=50_000)
    job.refused('cannot write', 'train.bin')
    assert set(files_in(repo / 'data/arithmetic')) == {'prepare.py'}


@pytest.mark.parametrize('error', [OSError(errno.ENOSPC, 'No space left on device'),
                                   RuntimeError('[enforce fail] unexpected pos 64 vs 0\nmore')])
def test_a_file_that_cannot_be_written_leaves_the_old_one_and_no_other(error, tmp_path):
    path = tmp_path / 'file'
    path.write_text('old')

    def write():
        with new_file(str(path), 'w') as file:
            file.write('new')
            raise error

    one_line(write, str(path), 'whole', 'room')
    assert files_in(tmp_path) == {'file': b'old'}
    with pytest.raises(Stopped), new_file(str(path), 'w') as file:      # nor does a signal
        file.write('new')
        raise Stopped(130)
    assert files_in(tmp_path) == {'file': b'old'}


# ---- signals end it well, wherever they come -----------------------------------------------------

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize('script', ['train_grpo.py', 'model.py', 'judge.py', 'sample.py'])
def test_a_signal_while_torch_is_imported_is_answered_with_the_command(script, clone):
    slow = clone.new('slow') / 'torch'
    slow.mkdir(parents=True)
    (slow / '__init__.py').write_text("import time\nprint('here', flush=True)\ntime.sleep(60)\n")
    for number in SIGNALS:
        process = subprocess.Popen(
            [sys.executable, script, "--out_dir=a b"], cwd=clone.repo, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=os.environ | {'PYTHONPATH': str(slow.parent)},
            preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in SIGNALS])
        assert process.stdout.readline() == 'here\n'
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (128 + number, '')
        assert out == f"\nstopped; again with: python {script} '--out_dir=a b'\n"


SLOW_CLONE = '''
import os, time
def slow(prompts, completions):
    with open({marks!r}, 'a') as file:
        file.write('.')
    if os.path.getsize({marks!r}) > {quick}:
        time.sleep(0.5)
    return [float(len(set(text))) for text in completions]
rewards = {{'slow': 1.0}}
'''


def slow_config(clone, quick=0):
    """A config file of a reward that takes its time, but for the first calls, and a function: how
    often it was called."""
    marks = clone.new('marks')
    marks.touch()
    config = clone.config(SLOW_CLONE.format(marks=str(marks), quick=quick))
    return config, lambda: marks.stat().st_size


# An evaluation of 100 prompts, 4 at a time, sampled and greedy, calls it 50 times. First comes that
# of the control, then one call of check_start(), then the first one of the policy.
@pytest.mark.parametrize('number, quick', [(signal.SIGINT, 0), (signal.SIGTERM, 51),
                                           (signal.SIGHUP, 51)])
def test_a_signal_in_a_long_evaluation_is_answered_at_once_and_the_command_goes_on(
        clone, number, quick):
    out = clone.new()
    config, calls = slow_config(clone, quick)
    job = clone.train(out, config, '--eval_prompts=100', '--max_iters=2')
    until(lambda: calls() > quick + 1, 60, 'the evaluation')
    began = time.time()
    job.send(number)
    assert job.wait() == 128 + number and time.time() - began < 12      # of 25 s
    assert job.err == ''
    command = re.search(r'(?:again|continue) with: python (.*)', job.out)[1]
    words = shlex.split(command)
    assert words == job.argv + ['--resume=True'] * (quick > 0)
    assert not [line for line in log_lines(out) if 'eval/reward' in line]
    clone.run(*words, '--eval_interval=0').good()
    assert checkpoint(out)['step'] == 2


def test_a_signal_in_a_benchmark_ends_it(clone):
    config, calls = slow_config(clone)
    job = clone.train(clone.new(), config, '--benchmark=True')
    until(lambda: calls() > 2, 60, 'the benchmark')
    began = time.time()
    assert job.send(signal.SIGHUP).wait() == 129 and time.time() - began < 8        # of 12 s
    assert 'again with: python train_grpo.py' in job.out and job.err == ''


def test_under_nohup_a_closed_terminal_does_not_end_a_run(clone):
    config, calls = slow_config(clone)
    ignore = 'import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n'
    out = clone.new()
    job = clone.train(out, config, '--eval_interval=0', '--max_iters=3', sabotage=ignore)
    until(lambda: calls() > 1, 60, 'the first step')
    job.send(signal.SIGHUP).good()
    assert checkpoint(out)['step'] == 3


def test_a_run_whose_output_nobody_reads_goes_on_to_its_end(clone, finished):
    closed = 'reader, writer = os.pipe()\nos.close(reader)\nos.dup2(writer, 1)\n'
    out = clone.new()
    clone.train(out, '--max_iters=4', '--sample_interval=1', sabotage=closed).good()
    assert log_lines(out) == log_lines(finished)


def test_letters_that_a_terminal_does_not_have_are_no_error(clone, finished):
    ascii_only = "sys.stdout.reconfigure(encoding='ascii')\n"
    out = clone.new()
    clone.train(out, '--max_iters=4', '--sample_interval=1', sabotage=ascii_only).good()
    assert log_lines(out) == log_lines(finished)


def test_the_command_to_go_on_is_the_one_that_was_used(monkeypatch):
    argv = ['train_grpo.py', 'my configs/a.py', "--rewards={'judge': 1.0}", '--out_dir=it\'s "x"']
    monkeypatch.setattr(sys, 'argv', argv)
    resume = '--resume=True'
    assert shlex.split(common.go_on_command(resume)) == ['python', *argv, resume]
    monkeypatch.setattr(sys, 'argv', argv + [resume])
    assert shlex.split(common.go_on_command(resume)) == ['python', *argv, resume]
    for name, value in (('WORLD_SIZE', '2'), ('LOCAL_WORLD_SIZE', '2'), ('RANK', '0')):
        monkeypatch.setenv(name, value)
    assert shlex.split(common.go_on_command()) == [
        'torchrun', '--nproc_per_node=2', '--standalone', *argv, resume]


# ---- a message names the fault -------------------------------------------------------------------


@pytest.mark.parametrize('text, says', [
    ('12+35=', 'there is nothing to fill'), ('12+x_', "'x'"), ('_' * 11, '11 symbols'),
    ('', '0 symbols')])
def test_a_prompt_that_cannot_be_filled_is_told_why(text, says):
    tok = data.dataset.Tokenizer('char', '\n+0123456789=')
    knobs = {'mode': 'fill', 'block_size': 10, 'max_new_tokens': 0}
    knobs['rng'] = draws(0, 'test')
    with pytest.raises(ValueError) as error:
        prompts_of_texts([text], tok, 'rows', 2, **knobs)
    line = str(error.value)
    assert repr(text) in line and says in line
    assert ('symbols' in line) == ('symbols' in says)           # one fault, not another


def test_the_advice_for_a_network_of_another_size_leads_to_a_run(clone):
    flags = ['--block_size=12', "--rewards={'verify': 1.0}", '--max_iters=1',
             '--generator_recipe=config/generator_toy.py']
    job = clone.train(clone.new(), *flags).refused('rows of 10 tokens', 'block_size is 12')
    make, use = re.search('make one with: python (.*), and use it: (.*)', job.err).groups()
    clone.run(*shlex.split(make)).good()
    clone.train(clone.new(), *flags, *shlex.split(use)).good()


def test_the_advice_for_a_damaged_part_makes_that_part_and_no_other(small_corpus):
    folder, made = small_corpus
    recipe = 'config/generator_tiny.py'
    ensure_checkpoint('', 'model.py', recipe)
    pathlib.Path(recipe).write_text("dataset = 'tiny'\nseed = 3\n")
    path, make = ensure_checkpoint('', 'model.py', recipe)
    assert path == made[1] != made[0] and make.endswith(f'--out={path}')
    missing, make = ensure_checkpoint('mine/x.pt', 'model.py', recipe)
    assert missing == 'mine/x.pt' and make.endswith('--out=mine/x.pt')


# ---- long runs -----------------------------------------------------------------------------------

@long
@pytest.mark.parametrize('variant', VARIANTS)
def test_long_thirty_steps_are_ten_and_twenty_are_any_three_pieces_after_kills(toy, variant):
    for trial in range(5):
        moments = sorted(random.sample(range(8, 37), 2))
        straight_or_not(toy, VARIANTS[variant], 32, 10, moments)
        print(f"\n{variant}: 32 steps = 10 + 22 = killed at log lines {moments}: bit-identical")


@long
def test_long_after_sigkill_at_forty_random_moments_the_newest_checkpoint_loads(toy):
    steps = killed_often(toy, 40)
    print(f"\n40 kills, 40 newest checkpoints loaded; the run got to step {steps[-1]}")


@long
def test_long_if_a_rank_fails_torchrun_ends_with_its_error(toy):
    began = time.time()
    process = torchrun(toy, 'config/toy.py', toy.config(FRAGILE), '--eval_interval=0',
                       '--gradient_accumulation_steps=2', f'--out_dir={toy.new()}')
    _, errors = process.communicate(timeout=120)
    print(f"\ntorchrun ended {time.time() - began:.0f} s after its start")
    assert process.returncode != 0 and GONE in errors and time.time() - began < 60


@long
def test_long_two_thousand_steps_need_no_more_memory_and_time_than_the_first_ones(toy):
    """Peak memory is the kernel's VmHWM, time is processor time: the machine may be busy. The
    cache of oneDNN and the heap grow for some 800 steps; then memory is flat. Every row has equally
    many blanks here: where tensors differ in size from step to step, the heap's largest gaps set
    records for thousands of steps, ever more rarely, though nothing is kept."""
    out = toy.new()
    peak, cpu = {}, {}
    with open(f'{out}.txt', 'w') as console:    # a process of its own: what torch needs counts too
        job = subprocess.Popen([
            sys.executable, 'train_grpo.py', 'config/grpo_smoke.py', f'--out_dir={out}',
            '--generator_checkpoint=toy/generator.pt', '--judge_checkpoint=toy/judge.pt',
            '--device=cpu', '--max_iters=2010', '--log_interval=1', '--eval_interval=100',
            '--save_interval=100', '--sample_interval=100', '--blank_low=0.4',
            '--blank_high=0.4'], cwd=toy.repo, stdout=console,
            env={**os.environ, 'OMP_NUM_THREADS': '1'})
        for step in (200, 600, 1000, 1600, 2000):
            n_lines = step + step // 100        # with those of evaluations
            until(lambda: job.poll() is not None or len(whole_lines(out)) >= n_lines, 600,
                  f"step {step}")
            status = pathlib.Path(f'/proc/{job.pid}/status').read_text()
            peak[step] = int(status.split('VmHWM:')[1].split()[0])
            ticks = pathlib.Path(f'/proc/{job.pid}/stat').read_text().rpartition(')')[2].split()
            cpu[step] = (int(ticks[11]) + int(ticks[12])) / os.sysconf('SC_CLK_TCK')
        assert job.wait(60) == 0
    early = 1e3 * (cpu[600] - cpu[200]) / 400
    late = 1e3 * (cpu[2000] - cpu[1600]) / 400
    print(f"\npeak memory in kB at steps {peak}; ms of processor a step: {early:.2f}, {late:.2f}")
    assert peak[2000] < 1.02 * peak[200] and peak[2000] < 1.005 * peak[1000]
    assert late < 1.2 * early


if __name__ == '__main__':
    benchmark_usual_way(sys.argv[1:] or ['config/grpo_benchmark.py'])
