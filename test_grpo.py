"""Tests that judge by an oracle which is not the code: enumeration of all outcomes, central finite
differences, slow loops, a second implementation; and, further down, of whole runs: stopped, killed,
resumed, spread over ranks, ill-treated. No network, no GPU.

    python -m pytest -q test_grpo.py                      # everything but the long tests
    LONG=1 python -m pytest -q test_grpo.py -k long -s    # 40 kills, 2,000 steps: minutes
"""
import ast
import contextlib
import copy
import itertools
import json
import math
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

os.environ.setdefault('OMP_NUM_THREADS', '1')      # threads would only wait
import numpy as np
import pytest
import torch

import data.dataset
import train_grpo
from config.configurator import configure, knobs
from config.run import GRPO_RULES, HARMLESS, check, quick_products
from data.dataset import (Dataset, Tokenizer, blanks, draws, known_words, prompts, texts,
                          write_corpus)
from judge import Judge, auc, called, copies, load_judge, read_labels, reward_scores
from model import (GPT, act, complete, draw, kept_set, load, load_gpt, log_probs, optimizers, place,
                   save, scheduled, update)
from train_grpo import (adapted_kl_beta, clipped_surrogate, dead_groups, exact_entropy, exact_kl,
                        group_advantages, grpo_loss, per_row, sampled_kl)

torch.set_num_threads(1)        # tiny tensors: more threads only wait for each other
HOME = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = ('train_grpo.py', 'model.py', 'judge.py')
close = torch.testing.assert_close
# letters: B prompts | k completions each | N = B*k rows | T positions | V vocabulary
# M decision points | c completions per decision point | G groups

@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


# ------------------------------------------------------------------------------------------------
# oracles

def tiny(causal=False, vocab=5, T=6, layers=2, seed=0, dtype=torch.float64):
    """A GPT whose output layer is not zero, as it is at birth, so that places differ."""
    torch.manual_seed(seed)
    model = GPT(vocab, T, layers, 2, 16, causal).to(dtype)
    torch.nn.init.normal_(model.head.weight, std=0.5)
    for block in model.blocks:
        torch.nn.init.normal_(block.proj.weight, std=0.3)
        torch.nn.init.normal_(block.down.weight, std=0.3)
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
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten()
                      for g, p in zip(found, model.parameters())])


def cosine(a, b):
    return torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0).item()


def slow_log_softmax(z, temperature=1.0, kept=None):
    """Log-probabilities of a list of logits; an id that is not kept has -inf."""
    kept = [True] * len(z) if kept is None else kept
    total = math.log(sum(math.exp(x / temperature) for x, keep in zip(z, kept) if keep))
    return [x / temperature - total if keep else -math.inf for x, keep in zip(z, kept)]


def slow_loss(z, batch, A, logp_ref, beta, kl_type, coef, low, high, ratio, norm, temperature):
    """The summed loss of a micro-step, a number, from the definitions and with loops."""
    z, A, logp_ref = z.tolist(), A.tolist(), logp_ref.tolist()
    row, actions, old = (batch[name].tolist() for name in ('row', 'actions', 'logp_old'))
    kept = batch['kept'].tolist() if batch['kept'] is not None else [None] * len(z)
    logp = [slow_log_softmax(z[m], temperature, kept[m]) for m in range(len(z))]
    total = 0.0
    for m, n in enumerate(row):
        mates = [i for i in range(len(z)) if row[i] == n]       # the points of the same row
        point = 0.0
        for j, a in enumerate(actions[m]):
            token_ratio = math.exp(logp[m][a] - old[m][j])
            r = token_ratio if ratio == 'token' else math.exp(
                sum(logp[i][actions[i][j]] - old[i][j] for i in mates) / len(mates))
            point -= min(r * A[n][j], max(1 - low, min(1 + high, r)) * A[n][j])
            whole = slow_log_softmax(z[m], temperature)
            gap = logp_ref[m][a] - whole[a]
            point += beta * {
                'exact': sum(math.exp(p) * (p - q) for p, q in zip(whole, logp_ref[m])),
                'k1': -gap, 'k2': gap ** 2 / 2, 'k3': math.exp(gap) - 1 - gap,
                'k3_ratio': token_ratio * (math.exp(gap) - 1 - gap)}[kl_type]
            point += coef * sum(math.exp(p) * p for p in logp[m] if p > -math.inf)
        total += point / len(actions[m]) / (len(mates) if norm == 'sequence' else 1)
    return total


def every_completion(M, V):
    """All V^M choices of ids at M points, (V^M, M)."""
    return torch.tensor(list(itertools.product(range(V), repeat=M)))


def joint(logits, temperature=1.0, kept=None):
    """Log-probabilities (V^M,) of all completions, from logits (M, V) of independent points."""
    M, V = logits.shape
    z = logits / temperature
    z = z if kept is None else torch.where(kept, z, -torch.inf)
    logp = z - z.exp().sum(1, keepdim=True).log()
    return logp[torch.arange(M), every_completion(M, V)].sum(1)


def expected_gradient(theta, table, k, adv_norm='none', temperature=1.0, kept=None):
    """Exact expectation (M, V) of the loss's gradient over all groups of k completions, whose
    rewards are in table (V^M,). theta (M, V): the logits."""
    M, V = theta.shape
    every, theta = every_completion(M, V), theta.clone().requires_grad_()
    groups = torch.tensor(list(itertools.product(range(len(every)), repeat=k)))     # (G, k)
    G = len(groups)
    weight = joint(theta.detach(), temperature, kept)[groups].sum(1).exp()          # (G,)
    A = group_advantages(table[groups], adv_norm) * weight[:, None]                 # (G, k)
    batch = {'actions': every[groups].transpose(1, 2).reshape(G * M, k), 'logp_old': None,
             'row': torch.arange(G).repeat_interleave(M),
             'kept': None if kept is None else kept.repeat(G, 1)}
    loss, _ = grpo_loss(theta.repeat(G, 1), batch, A, temperature=temperature)
    return torch.autograd.grad(loss, theta)[0]


def slow_complete(model, prompt, mask, u, temperature, top_k, top_p, eos):
    """One causal completion of one prompt (T,) without cache, batch or shortcut; u (T,) or None.

    Returns row (T,), acted (T,), log-probs (T,), kept ids per position."""
    row, acted, logp, kept = prompt.clone(), mask.clone(), torch.zeros(len(prompt)), {}
    V = model.head.out_features
    last_given = max([t for t in range(len(row)) if not mask[t] and row[t] != model.pad_id] + [-1])
    for t in range(len(row)):
        if not acted[t]:
            continue
        p = (model(row[None])[0, t] / temperature).softmax(-1).tolist()
        kept[t], mass = set(), 0.0
        for i in sorted(range(V), key=lambda i: -p[i])[:top_k or V]:
            if mass < top_p:
                kept[t].add(i)
            mass += p[i]
        p = [x if i in kept[t] else 0.0 for i, x in enumerate(p)]
        p = [x / sum(p) for x in p]
        a = p.index(max(p)) if u is None else next(
            i for i in range(V) if u[t] < sum(p[:i + 1]) or i == max(kept[t]))
        row[t], logp[t] = a, math.log(p[a])
        if a == eos and t > last_given:
            row[t + 1:], acted[t + 1:] = model.pad_id, False
    return row, acted, logp, kept


def count_calls(model):
    """Shapes of the inputs of every later pass through the model's trunk, as a growing list."""
    trunk, shapes = model.trunk, []

    def counting(inputs, *args, **kwargs):
        shapes.append(tuple(inputs.shape))
        return trunk(inputs, *args, **kwargs)

    model.trunk = counting
    return shapes


# ------------------------------------------------------------------------------------------------
# advantages

def slow_advantages(rewards, adv_norm):
    flat = [r for group in rewards for r in group]
    scale = {'none': lambda g: 1, 'std': lambda g: 1 / (statistics.stdev(g) + 1e-4),
             'batch': lambda g: 1 / (statistics.stdev(flat) + 1e-4),
             'rloo': lambda g: len(g) / (len(g) - 1)}[adv_norm]
    return [[(r - statistics.mean(group)) * scale(group) for r in group] for group in rewards]


@pytest.mark.parametrize('adv_norm', ['none', 'std', 'batch', 'rloo'])
def test_advantages_are_those_of_a_slow_loop(adv_norm):
    rewards = torch.rand(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rewards[2] *= 30
    expected = torch.tensor(slow_advantages(rewards.tolist(), adv_norm), dtype=torch.float64)
    close(group_advantages(rewards, adv_norm), expected)


def test_rloo_compares_each_completion_with_the_mean_of_the_others():
    rewards = torch.tensor([[1.0, 4.0, 7.0]], dtype=torch.float64)
    close(group_advantages(rewards, 'rloo'),
          torch.tensor([[1 - 5.5, 4 - 4, 7 - 2.5]], dtype=torch.float64))


@pytest.mark.parametrize('adv_norm', ['none', 'std', 'batch', 'rloo'])
def test_groups_do_not_see_each_other_and_their_order_does_not_matter(adv_norm):
    rewards = torch.rand(6, 4, generator=torch.Generator().manual_seed(2))
    louder = rewards.clone()
    louder[3] *= 10
    others = torch.arange(6) != 3
    same = torch.equal(group_advantages(louder, adv_norm)[others],
                       group_advantages(rewards, adv_norm)[others])
    assert same == (adv_norm != 'batch')            # one scale for the batch is the exception
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    close(group_advantages(rewards[order], adv_norm), group_advantages(rewards, adv_norm)[order])


@pytest.mark.parametrize('adv_norm', ['none', 'std', 'batch', 'rloo'])
@pytest.mark.parametrize('level', [0.1, -3.7, 1234.5])
def test_rewards_that_are_equal_up_to_rounding_teach_exactly_nothing(adv_norm, level):
    level = torch.tensor(level)
    rewards = level.repeat(4, 7)
    rewards[1, 2] = torch.nextafter(level, level + 1)       # one step of float32 apart
    rewards[2, ::2] = torch.nextafter(level, level - 1)
    rewards[3, 5] = level + 1.0                             # one winner
    advantages = group_advantages(rewards, adv_norm)
    assert (advantages[:3] == 0).all() and dead_groups(rewards).flatten().tolist() == [
        True, True, True, False]
    assert advantages[3].argmax() == 5 and (advantages[3] != 0).all()
    assert advantages.abs().max() < 8


def test_a_small_but_real_difference_is_not_a_dead_group():
    rewards = torch.tensor([[-2.001, -2.0], [0.5, 0.5001]])
    assert not dead_groups(rewards).any()
    assert (group_advantages(rewards, 'std').abs() > 0.2).all()


def test_a_reward_that_is_not_a_number_is_not_hidden_by_the_advantages():
    rewards = torch.tensor([[0.0, float('nan')], [1.0, 2.0]])
    advantages = group_advantages(rewards)
    assert advantages[0].isnan().any() and advantages[1].isfinite().all()


# ------------------------------------------------------------------------------------------------
# the loss

def some_batch(seed=0, c=3, filtered=False, M=6, V=4, dtype=torch.float64):
    """logits (M, V), batch, advantages (rows, c), logp_ref (M, V): rows of 1, 2 and 3 points."""
    rng = torch.Generator().manual_seed(seed)
    logits, other, ref = torch.randn(3, M, V, generator=rng, dtype=torch.float64).to(dtype)
    kept = None
    if filtered:
        kept = torch.rand(M, V, generator=rng) < 0.5
        kept[:, 1] = True
    weights = torch.ones(M, V) if kept is None else kept.float()
    actions = torch.multinomial(weights, c, replacement=True, generator=rng)        # (M, c)
    near = log_probs(logits + 0.3 * other, 1.0, kept)
    batch = {'actions': actions, 'logp_old': near.gather(1, actions), 'kept': kept,
             'row': torch.tensor([0, 1, 1, 2, 2, 2])}
    A = torch.randn(3, c, generator=rng, dtype=torch.float64).to(dtype)
    return logits, batch, A, ref.log_softmax(-1)


@pytest.mark.parametrize('kl_type', ['exact', 'k1', 'k2', 'k3', 'k3_ratio'])
@pytest.mark.parametrize('norm', ['token', 'sequence', 'constant'])
@pytest.mark.parametrize('ratio', ['token', 'sequence'])
def test_loss_and_gradient_are_those_of_the_written_out_formula(ratio, norm, kl_type):
    for filtered, c in ((False, 3), (True, 1)):
        logits, batch, A, logp_ref = some_batch(3, c, filtered)
        ask = (0.3, kl_type, 0.1, 0.1, 0.25, ratio, norm, 1.3)
        z = logits.clone().requires_grad_()
        loss, report = grpo_loss(z, batch, A, logp_ref, *ask)
        close(loss.item(), slow_loss(logits, batch, A, logp_ref, *ask))
        close(torch.autograd.grad(loss, z)[0],
              slope(lambda x: slow_loss(x, batch, A, logp_ref, *ask), logits), atol=1e-8, rtol=1e-6)
        without = slow_loss(logits, batch, A, logp_ref, 0.0, *ask[1:2], 0.0, *ask[3:])
        close(report['pg_loss'].item(), without)
        close(report['kl_penalty'].item(),
              slow_loss(logits, batch, A, logp_ref, *ask[:2], 0.0, *ask[3:]) - without)


def test_per_row_sums_the_points_of_each_row():
    values, row = torch.arange(12.0).view(6, 2), torch.tensor([0, 2, 2, 3, 3, 3])
    expected = [[sum(values[m, j].item() for m in range(6) if row[m] == n) for j in range(2)]
                for n in range(4)]
    assert per_row(values, row, 4).tolist() == expected


def test_what_is_reported_is_what_the_definitions_say():
    logits, batch, A, logp_ref = some_batch(4)
    _, report = grpo_loss(logits, batch, A, logp_ref, 0.5, 'k2', clip_low=0.1, clip_high=0.05)
    logp = logits.log_softmax(-1)
    taken = logp.gather(1, batch['actions'])
    r, signs = (taken - batch['logp_old']).exp(), A[batch['row']]
    clipped = sum(1 for x, a in zip(r.flatten().tolist(), signs.flatten().tolist())
                  if x < 0.9 and a < 0 or x > 1.05 and a > 0)
    assert 0 < clipped < r.numel()
    close(report['clip_frac'].item() * 3, float(clipped))           # c = 3 completions per point
    close(report['ratio_max'], r.max())
    close(report['mean_log_prob'], taken.sum() / 3)
    close(report['mean_kl'], sum(torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=logits),
        torch.distributions.Categorical(logits=logp_ref))))         # the exact one, always
    close(report['entropy'], torch.distributions.Categorical(logits=logits).entropy().sum())
    assert not any(value.requires_grad for value in report.values())


def test_advantages_of_zero_leave_exactly_the_gradient_of_the_kl():
    logits, batch, A, logp_ref = some_batch(5)
    z = logits.requires_grad_()
    for logp_old in (None, batch['logp_old']):
        b = batch | {'logp_old': logp_old}
        loss, _ = grpo_loss(z, b, 0 * A)
        assert (torch.autograd.grad(loss, z)[0] == 0).all()
        loss, _ = grpo_loss(z, b, 0 * A, logp_ref, kl_beta=0.7)
        kl = (z.softmax(-1) * (z.log_softmax(-1) - logp_ref)).sum()
        close(torch.autograd.grad(loss, z)[0], 0.7 * torch.autograd.grad(kl, z)[0])


def test_before_an_update_the_ratio_is_exactly_one_and_the_loss_zero_but_not_its_gradient():
    logits, batch, A, _ = some_batch(6, dtype=torch.float32)
    A = A - A.mean(1, keepdim=True)
    logp_old = logits.log_softmax(-1).gather(1, batch['actions'])
    for old in (None, logp_old):
        for ratio in ('token', 'sequence'):
            z = logits.clone().requires_grad_()
            loss, report = grpo_loss(z, batch | {'logp_old': old}, A, ratio=ratio)
            assert report['ratio_max'].item() == 1.0 and report['clip_frac'].item() == 0
            assert abs(loss.item()) < 1e-6
            assert torch.autograd.grad(loss, z)[0].norm() > 0.1


@pytest.mark.parametrize('temperature', [1.0, 0.6])
def test_the_surrogates_gradient_at_ratio_one_is_that_of_reinforce(temperature):
    logits, batch, A, _ = some_batch(7)
    z = logits.clone().requires_grad_()
    loss, _ = grpo_loss(z, batch | {'logp_old': None}, A, temperature=temperature)
    expected = torch.zeros_like(logits)             # -mean of A * d log p / dz, by its formula
    for m, n in enumerate(batch['row']):
        p = (logits[m] / temperature).softmax(-1)
        for j, a in enumerate(batch['actions'][m]):
            expected[m] -= A[n, j] * (torch.eye(4)[a] - p) / temperature / 3
    close(torch.autograd.grad(loss, z)[0], expected)


def test_clipping_stops_the_gradient_in_just_two_of_four_corners():
    low, high = 0.1, 0.3
    for r in (0.5, 0.85, 0.95, 1.0, 1.2, 1.4, 3.0):
        for a in (-2.0, 2.0):
            x = torch.tensor(r, dtype=torch.float64, requires_grad=True)
            value = clipped_surrogate(x, torch.tensor(a, dtype=torch.float64), low, high)
            stopped = (a > 0 and r > 1 + high) or (a < 0 and r < 1 - low)
            assert torch.autograd.grad(value, x)[0].item() == (0 if stopped else a), (r, a)
            bound = (1 + high) * a if r > 1 else (1 - low) * a
            close(value.item(), bound if stopped else r * a)


def test_a_step_raises_what_beat_its_group_and_lowers_the_rest():
    logits = torch.zeros(3, 4)
    actions = torch.tensor([[0, 1], [1, 2], [3, 0]])
    batch = {'actions': actions, 'logp_old': None, 'kept': None, 'row': torch.zeros(3).long()}
    z = logits.requires_grad_()
    loss, _ = grpo_loss(z, batch, group_advantages(torch.tensor([[1.0, 0.0]])))
    after = (z - 0.5 * torch.autograd.grad(loss, z)[0]).log_softmax(-1).gather(1, actions)
    before = math.log(1 / 4)
    assert (after[:, 0] > before).all() and (after[:, 1] < before).all()


@pytest.mark.parametrize('k', [2, 3])
@pytest.mark.parametrize('case', ['plain', 'tempered', 'filtered'])
def test_the_expected_gradient_over_all_groups_is_that_of_the_expected_reward(case, k):
    rng = torch.Generator().manual_seed(8)
    theta = torch.randn(2, 3, generator=rng, dtype=torch.float64)
    table = torch.randn(9, generator=rng, dtype=torch.float64)
    temperature = 0.7 if case == 'tempered' else 1.0
    kept = torch.tensor([[True, True, False], [True, True, True]]) if case == 'filtered' else None
    expected_reward = lambda x: (joint(x, temperature, kept).exp() * table).sum()
    exact = slope(expected_reward, theta)
    ask = (temperature, kept)
    close(-expected_gradient(theta, table, k, 'rloo', *ask), exact, atol=1e-8, rtol=1e-6)
    close(-expected_gradient(theta, table, k, 'none', *ask), (k - 1) / k * exact,
          atol=1e-8, rtol=1e-6)
    biased = cosine(-expected_gradient(theta, table, k, 'std', *ask), exact)
    assert 0.8 < biased < 0.9999        # dividing by the group's std bends the direction


def test_a_kl_in_the_reward_pulls_along_the_gradient_of_the_exact_kl():
    rng = torch.Generator().manual_seed(9)
    theta, ref = torch.randn(2, 2, 3, generator=rng, dtype=torch.float64)
    k1 = joint(theta) - joint(ref)                                              # (9,) detached
    kl = lambda x: (joint(x).exp() * (joint(x) - joint(ref))).sum()
    close(expected_gradient(theta, -k1, 2, 'rloo'), slope(kl, theta), atol=1e-8, rtol=1e-6)


def test_with_centred_advantages_a_forgotten_temperature_only_scales_the_gradient():
    # shared logits and advantages that sum to 0: every normaliser drops out
    logits, batch, A, _ = some_batch(10)
    centred, T = A - A.mean(1, keepdim=True), 0.6

    def gradient(A, temperature):
        z = logits.clone().requires_grad_()
        loss, _ = grpo_loss(z, batch | {'logp_old': None}, A, temperature=temperature)
        return torch.autograd.grad(loss, z)[0]

    close(gradient(centred, 1.0), T * gradient(centred, T))
    assert cosine(gradient(A, 1.0), gradient(A, T)) < 0.999


@pytest.mark.parametrize('kl_type', ['exact', 'k1', 'k2', 'k3', 'k3_ratio'])
def test_extreme_log_probabilities_leave_loss_and_gradient_finite(kl_type):
    z = torch.tensor([[300.0, 0, 0], [0, -300.0, 0]], requires_grad=True)
    batch = {'actions': torch.tensor([[0, 1], [1, 2]]), 'logp_old': None, 'kept': None,
             'row': torch.tensor([0, 0])}
    logp_ref = torch.tensor([[-300.0, 0, 0], [0, 300.0, 0]]).log_softmax(-1)
    for beta, coef in ((0.1, 0.0), (0.0, 0.1)):
        loss, _ = grpo_loss(z, batch, torch.tensor([[1.0, -1.0]]), logp_ref, beta, kl_type, coef)
        assert loss.isfinite() and torch.autograd.grad(loss, z)[0].isfinite().all()


@pytest.mark.parametrize('norm', ['token', 'sequence', 'constant'])
@pytest.mark.parametrize('causal', [False, True])
def test_one_batch_of_eight_is_four_of_two_is_eight_of_one(causal, norm):
    model, k, B, T = tiny(causal), 3, 8, 6
    rng = torch.Generator().manual_seed(11)
    tokens = torch.randint(5, (B, T), generator=rng)
    mask = torch.arange(T) >= torch.tensor([1, 5, 2, 4, 3, 5, 1, 3])[:, None]   # first blank
    rows, acted, logp, _ = complete(model, tokens, mask,
                                    torch.rand(B, T, k, generator=rng, dtype=torch.float64), eos=4)
    A = group_advantages(torch.rand(B, k, generator=rng, dtype=torch.float64))
    where = acted if causal else mask

    def loss_of(part):
        wide = slice(part.start * k, part.stop * k)
        if causal:
            w = where[wide]
            logits = model(rows[wide], w, int(mask[part].int().argmax(1).min()), k)
            batch, a = {'actions': rows[wide][w][:, None]}, A[part].reshape(-1, 1)
        else:
            w = where[part]
            logits, a = model(tokens[part], where=w), A[part]
            batch = {'actions': rows[wide].view(-1, k, T).transpose(1, 2)[w]}
        batch |= {'logp_old': None, 'kept': None, 'row': w.nonzero()[:, 0]}
        loss, report = grpo_loss(logits, batch, a, logits.log_softmax(-1).roll(1, -1).detach(), 0.3,
                                 entropy_coef=0.1, loss_norm=norm)
        return loss, report

    whole, _ = loss_of(slice(0, 8))
    expected = gradients(whole, model)
    for size in (2, 1):
        parts = [loss_of(slice(i, i + size))[0] for i in range(0, 8, size)]
        close(sum(parts), whole)
        close(sum(gradients(part, model) for part in parts), expected, rtol=1e-6, atol=1e-9)


def test_the_three_normalisers_are_the_means_that_they_are_called():
    _, batch, A, _ = some_batch(12)
    batch, A = batch | {'actions': batch['actions'][:, :1], 'logp_old': None}, A[:, :1]
    T, a, length = 10, A[:, 0].tolist(), [1, 2, 3]          # at ratio 1 each point's loss is -A
    total = {norm: grpo_loss(torch.zeros(6, 4).double(), batch, A, loss_norm=norm)[0].item()
             for norm in ('token', 'sequence', 'constant')}
    points = [-x for x, n in zip(a, length) for _ in range(n)]
    close(total['token'] / 6, statistics.mean(points))
    close(total['sequence'] / 3, statistics.mean(-x for x in a))
    close(total['constant'] / (3 * T), sum(points) / 3 / T)


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


# ------------------------------------------------------------------------------------------------
# KL and entropy

def two_policies(M=3, V=3, seed=13):
    return torch.randn(2, M, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_sum_over_blanks_is_the_kl_of_whole_completions_in_value_and_gradient():
    theta, ref = two_policies()
    kl = lambda x: (joint(x).exp() * (joint(x) - joint(ref))).sum()     # over all 27 completions
    z = theta.clone().requires_grad_()
    found = exact_kl(log_probs(z), log_probs(ref)).sum()
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
    p, logp, logp_ref = theta.softmax(-1), theta.log_softmax(-1), ref.log_softmax(-1)
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
    p, q = (lambda x: x.softmax(-1)), ref.softmax(-1)
    what = {'nothing': lambda x: 0.0,
            'KL(policy || reference)': lambda x: (p(x) * (p(x) / q).log()).sum(),
            'KL(reference || policy)': lambda x: (q * (q / p(x)).log()).sum()}[follows]
    exact = slope(what, theta)
    z = theta.clone().requires_grad_()
    logp = z.log_softmax(-1)                        # every id is drawn once: c = V, (1, V)
    ratio = (logp - logp.detach()).exp()
    mean = (p(theta) * sampled_kl(logp, ref.log_softmax(-1), ratio, kl_type)).sum()
    close(torch.autograd.grad(mean, z)[0], exact, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize('ratio', ['token', 'sequence'])
def test_expected_kl_gradient_is_that_of_the_exact_reverse_kl(ratio):
    # through the loss, over all completions of three blanks, each in its share
    theta, ref = two_policies()
    every, z = every_completion(3, 3), theta.clone().requires_grad_()           # (27, 3)
    share = joint(theta).exp()
    exact = slope(lambda x: (joint(x).exp() * (joint(x) - joint(ref))).sum(), theta)
    for kl_type in ('exact', 'k2', 'k3_ratio'):
        gradient = 0
        for a, weight in zip(every, share):
            batch = {'actions': a[:, None], 'logp_old': None, 'kept': None,
                     'row': torch.zeros(3).long()}
            loss, _ = grpo_loss(z, batch, torch.zeros(1, 1), ref.log_softmax(-1), 1.0, kl_type,
                                ratio=ratio)
            gradient = gradient + weight * torch.autograd.grad(loss, z)[0]
        close(gradient, exact, atol=1e-8, rtol=1e-6)


def test_per_token_kl_on_sampled_prefixes_has_the_kl_of_whole_causal_rows_as_mean():
    policy, reference = tiny(True, 3, 4, seed=1), tiny(True, 3, 4, seed=2)
    every = every_completion(3, 3)
    rows = torch.cat((torch.ones(27, 1).long(), every), 1)                      # (27, T), 1 given
    where = torch.arange(4).expand(27, 4) > 0
    with torch.no_grad():
        logp, logp_ref = policy(rows, where).log_softmax(-1), reference(rows, where).log_softmax(-1)
    taken, taken_ref = (x.gather(1, rows[where][:, None]).view(27, 3).sum(1)
                        for x in (logp, logp_ref))
    close(taken.exp().sum(), torch.tensor(1.0).double())        # these are all rows there are
    whole = (taken.exp() * (taken - taken_ref)).sum()
    close((taken.exp() * exact_kl(logp, logp_ref).view(27, 3).sum(1)).sum(), whole)


def test_entropy_is_that_of_all_completions_and_its_bonus_raises_it():
    theta, _ = two_policies()
    close(exact_entropy(log_probs(theta)).sum(), -(joint(theta).exp() * joint(theta)).sum())
    batch = {'actions': torch.zeros(3, 2).long(), 'logp_old': None, 'kept': None,
             'row': torch.zeros(3).long()}
    z = theta.clone().requires_grad_()
    loss, _ = grpo_loss(z, batch, torch.zeros(1, 2), entropy_coef=0.5)
    after = z - 0.1 * torch.autograd.grad(loss, z)[0]
    assert (exact_entropy(log_probs(after)) > exact_entropy(log_probs(theta))).all()


def test_entropy_of_a_filtered_distribution_is_finite_and_that_of_the_kept_ids():
    theta = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    kept = torch.tensor([True, False, True, True, False, False]).expand(4, 6)
    entropy = exact_entropy(log_probs(theta, 1.0, kept))
    close(entropy, exact_entropy(log_probs(theta[:, [0, 2, 3]])))
    gradient = torch.autograd.grad(entropy.sum(), theta)[0]
    assert gradient.isfinite().all() and (gradient[~kept] == 0).all()


# ------------------------------------------------------------------------------------------------
# one distribution samples and scores

def test_log_probs_are_those_of_a_slow_softmax():
    logits = torch.randn(5, 4, dtype=torch.float64)
    kept = torch.rand(5, 4) < 0.6
    kept[:, 0] = True
    for temperature, k in ((1.0, None), (0.3, None), (1.7, kept)):
        expected = [slow_log_softmax(z, temperature, None if k is None else k[m].tolist())
                    for m, z in enumerate(logits.tolist())]
        close(log_probs(logits, temperature, k).exp(), torch.tensor(expected).double().exp(),
              atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize('top_k', [0, 1, 3, 6, 50])
@pytest.mark.parametrize('top_p', [1.0, 0.9, 0.5, 1e-6])
def test_kept_are_the_fewest_likeliest_ids_that_reach_the_mass(top_k, top_p):
    logp = (2 * torch.randn(40, 6, dtype=torch.float64)).log_softmax(-1)
    kept = kept_set(logp, top_k, top_p)
    if kept is None:
        assert not top_k and top_p == 1
        return
    for row, found in zip(logp.exp().tolist(), kept.tolist()):
        ranked, expected = sorted(range(6), key=lambda i: -row[i]), set()
        mass = lambda: sum(row[i] for i in expected)
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
    actions, logp, kept = act(logits, even, *ask)
    p = [[0.0] * V for _ in range(3)]
    for m in range(3):
        keep = None if kept is None else kept[m].tolist()
        p[m] = [math.exp(x) for x in slow_log_softmax(logits[m].tolist(), ask[0], keep)]
        counts = torch.bincount(actions[m], minlength=V)
        assert all(abs(count - n * x) <= 1.01 for count, x in zip(counts.tolist(), p[m]))
    close(logp.exp(), torch.tensor(p).double().gather(1, actions))


@pytest.mark.parametrize('V', [5, 50257])
def test_ids_of_probability_zero_are_never_drawn_even_at_the_ends(V):
    u = torch.tensor([0.0, 1e-30, 0.5, 1 - 2 ** -24]).expand(64, 4)
    logits = torch.randn(64, V, generator=torch.Generator().manual_seed(15))
    kept = torch.rand(64, V, generator=torch.Generator().manual_seed(16)) < 0.5
    kept[:, 0], kept[:, -1], kept[:, V // 2] = False, False, True
    kept[:32] = False
    kept[:32, V // 2] = True                        # one id only
    actions = draw(log_probs(logits, 1.0, kept), u)
    assert kept.gather(1, actions).all()
    assert (actions[:32] == V // 2).all()
    sure = torch.full((64, V), -1e9)
    sure[:, 2] = 0.0
    assert (draw(sure.log_softmax(-1), u) == 2).all()


def test_the_likeliest_ids_are_taken_without_uniforms():
    logits = torch.randn(20, 7)
    actions, logp, _ = act(logits)
    assert actions.tolist() == [[max(range(7), key=lambda i: z[i])] for z in logits.tolist()]
    close(logp, logits.log_softmax(-1).amax(1, keepdim=True))


def test_logits_that_are_not_numbers_draw_some_id_and_show_in_the_log_prob():
    logits = torch.tensor([[0.0, float('nan'), 1.0]])
    actions, logp, _ = act(logits, torch.tensor([[0.3, 0.9]]))
    assert ((actions >= 0) & (actions < 3)).all() and logp.isnan().all()


@pytest.mark.parametrize('top_k, top_p', [(0, 1.0), (3, 1.0), (0, 0.6), (3, 0.8)])
def test_with_a_frozen_kept_set_the_ratio_is_exactly_one_before_any_update(top_k, top_p):
    model, k, T = tiny(dtype=torch.float32), 4, 0.8
    rng = torch.Generator().manual_seed(17)
    tokens, mask = torch.randint(5, (7, 6), generator=rng), torch.rand(7, 6, generator=rng) < 0.5
    mask[:, 0] = True
    logits = model(tokens, where=mask)
    u = torch.rand(len(logits), k, generator=rng)
    actions, logp_old, kept = act(logits.detach(), u, T, top_k, top_p)
    batch = {'actions': actions, 'logp_old': logp_old, 'kept': kept, 'row': mask.nonzero()[:, 0]}
    A = group_advantages(torch.rand(7, k, generator=rng))
    loss, report = grpo_loss(logits, batch, A, temperature=T)
    assert report['ratio_max'].item() == 1.0 and abs(report['pg_loss'].item()) < 1e-5
    again = (log_probs(model(tokens, where=mask), T, kept).gather(1, actions) - logp_old).exp()
    assert (again == 1).all()
    if kept is not None:                        # the set stays frozen while the policy moves away
        _, moved = grpo_loss(-logits, batch, A, temperature=T)
        assert math.isfinite(moved['ratio_max'].item()) and moved['loss'].isfinite()


@pytest.mark.parametrize('top_k, top_p', [(0, 1.0), (3, 1.0), (0, 0.6)])
def test_causal_sampling_and_learning_agree_on_every_log_prob(top_k, top_p):
    model, k = tiny(True, T=8, dtype=torch.float32), 3
    rng = torch.Generator().manual_seed(18)
    tokens = torch.randint(5, (6, 8), generator=rng)
    mask = torch.arange(8) >= torch.tensor([2, 3, 5, 4, 2, 7])[:, None]
    rows, acted, logp, kept = complete(model, tokens, mask, torch.rand(6, 8, k, generator=rng), 0.9,
                                       top_k, top_p, eos=4)
    kept = None if kept is None else kept[acted]
    assert (kept is None) == (not top_k and top_p == 1)
    learned = log_probs(model(rows, acted, 2, k), 0.9, kept).gather(1, rows[acted][:, None])
    close(learned[:, 0], logp[acted], atol=1e-5, rtol=0)
    assert (logp[~acted] == 0).all()


# ------------------------------------------------------------------------------------------------
# fill-in

def prompts_to_fill(B=5, T=6, V=5, seed=19):
    rng = torch.Generator().manual_seed(seed)
    tokens, mask = torch.randint(V, (B, T), generator=rng), torch.rand(B, T, generator=rng) < 0.5
    mask[:, 1] = True
    return tokens, mask, torch.rand(B, T, 4, generator=rng, dtype=torch.float64)


def test_place_writes_completion_j_of_prompt_b_into_row_b_times_k_plus_j():
    tokens, mask, _ = prompts_to_fill()
    values = torch.arange(int(mask.sum()) * 3).view(-1, 3) + 100                # (M, k)
    rows, m = tokens.repeat_interleave(3, 0), 0
    for b, t in mask.nonzero().tolist():
        for j in range(3):
            rows[b * 3 + j, t] = values[m, j]
        m += 1
    before = tokens.clone()
    assert torch.equal(place(tokens, mask, values), rows) and torch.equal(tokens, before)


def test_filling_leaves_what_is_given_and_writes_no_special_ids():
    model, (tokens, mask, u) = tiny(), prompts_to_fill()
    tokens[3, 4:], mask[3, 4:] = model.pad_id, False
    mask[4] = False                                             # nothing to do in this row
    rows, acted, *_ = complete(model, tokens, mask, u)
    assert rows.shape == (20, 6) and torch.equal(acted, mask.repeat_interleave(4, 0))
    assert torch.equal(rows[~acted], tokens.repeat_interleave(4, 0)[~acted])
    assert (rows[acted] < 5).all() and torch.equal(rows[16:], tokens[4].expand(4, 6))


def test_all_completions_of_a_prompt_come_from_one_pass_over_one_row():
    model, (tokens, mask, u) = tiny(), prompts_to_fill()
    calls = count_calls(model)
    complete(model, tokens, mask, u)
    assert calls == [(5, 6)]


def test_the_shared_pass_has_the_gradient_of_k_repeated_rows():
    model, (tokens, mask, u), k = tiny(), prompts_to_fill(), 4
    rows, *_ = complete(model, tokens, mask, u)
    A = group_advantages(torch.rand(5, k, dtype=torch.float64))
    wide = mask.repeat_interleave(k, 0)
    shared = {'actions': rows.view(5, k, 6).transpose(1, 2)[mask], 'row': mask.nonzero()[:, 0]}
    repeated = {'actions': rows[wide][:, None], 'row': wide.nonzero()[:, 0]}
    a, _ = grpo_loss(model(tokens, where=mask), shared | {'logp_old': None, 'kept': None}, A)
    b, _ = grpo_loss(model(tokens.repeat_interleave(k, 0), where=wide),
                     repeated | {'logp_old': None, 'kept': None}, A.view(-1, 1))
    expected = gradients(b / k, model)
    assert expected.norm() > 1e-3
    close(gradients(a, model), expected, rtol=1e-9, atol=1e-12)


def test_completions_of_blanks_have_the_enumerated_shares():
    model = tiny(vocab=3, T=3)
    tokens, mask = torch.tensor([[0, 2, 1]]), torch.tensor([[True, False, True]])
    n = 30000
    u = torch.rand(1, 3, n, generator=torch.Generator().manual_seed(20))
    rows, *_ = complete(model, tokens, mask, u)
    counts = torch.bincount(rows[:, 0] * 3 + rows[:, 2], minlength=9)
    with torch.no_grad():
        p = joint(model(tokens, where=mask)).exp()
    chi2 = ((counts - n * p) ** 2 / (n * p)).sum().item()
    assert chi2 < 26.1          # 8 degrees of freedom: one in a thousand is higher


def test_a_blank_sees_both_sides_but_no_other_blank_and_not_itself():
    model, (tokens, mask, _) = tiny(), prompts_to_fill(B=1)
    mask = torch.tensor([[False, True, False, True, False, False]])
    before = model(tokens, where=mask)                                          # (2, V)
    for t in range(6):
        changed = tokens.clone()
        changed[0, t] = (changed[0, t] + 1) % 5
        moved = (model(changed, where=mask) - before).abs().amax(1)             # (2,)
        assert (moved > 1e-6).all() if not mask[0, t] else (moved == 0).all()


def test_a_causal_position_sees_just_what_stands_left_of_it():
    model, (tokens, _, _) = tiny(True), prompts_to_fill(B=1)
    before = model(tokens)                                                      # (1, T, V)
    for t in range(6):
        changed = tokens.clone()
        changed[0, t] = (changed[0, t] + 1) % 5
        moved = (model(changed) - before).abs().amax(2)[0]                      # (T,)
        assert (moved[:t + 1] == 0).all() and (moved[t + 1:] > 1e-6).all()


@pytest.mark.parametrize('causal', [False, True])
def test_padding_changes_nothing_in_the_row_that_it_fills_up(causal):
    model, (tokens, mask, _) = tiny(causal, T=9), prompts_to_fill()
    padded = torch.nn.functional.pad(tokens, (0, 3), value=model.pad_id)
    wide = torch.nn.functional.pad(mask, (0, 3))
    close(model(padded, where=wide), model(tokens, where=mask))
    mixed, longer = torch.cat((padded, torch.randint(5, (1, 9)))), torch.ones(1, 9).bool()
    found = model(mixed, where=torch.cat((wide, longer)))[:int(mask.sum())]
    close(found, model(tokens, where=mask))


@pytest.mark.parametrize('causal', [False, True])
def test_logits_at_decision_points_are_those_of_the_whole_pass(causal):
    model, (tokens, mask, _) = tiny(causal), prompts_to_fill()
    shown = tokens if causal else tokens.masked_fill(mask, model.mask_id)
    close(model(tokens, where=mask), model(shown)[mask])
    with pytest.raises(ValueError, match='block_size is 6'):
        model(torch.zeros(1, 7).long())


@pytest.mark.parametrize('causal', [False, True])
def test_log_probs_are_float32_also_when_products_are_bfloat16(causal):
    model, (tokens, mask, u) = tiny(causal, dtype=torch.float32), prompts_to_fill()
    exact = log_probs(model(tokens, where=mask))
    with torch.autocast('cpu', torch.bfloat16):
        rough = log_probs(model(tokens, where=mask))
        rows, _, logp, _ = complete(model, tokens, mask, u)
    assert rough.dtype == torch.float32 and rows.shape == (20, 6)
    assert logp is None or logp.dtype == torch.float32
    close(rough.exp().sum(1), torch.ones(len(rough)))           # to float32's accuracy
    close(rough, exact, atol=0.2, rtol=0)
    assert tiny(causal)(tokens).dtype == torch.float64


@pytest.mark.parametrize('causal', [False, True])
def test_the_output_layer_of_a_large_vocabulary_is_computed_at_decision_points_only(causal):
    V, k = 50257, 3
    torch.manual_seed(0)
    model = GPT(V, 8, 1, 2, 8, causal)
    shapes = []
    model.head.register_forward_hook(lambda head, x, y: shapes.append(tuple(y.shape)))
    tokens, mask = torch.randint(V, (4, 8)), torch.arange(8) >= torch.tensor([[6], [7], [5], [7]])
    rows, acted, _, _ = complete(model, tokens, mask, torch.rand(4, 8, k), eos=50256)
    assert sum(shape[0] for shape in shapes) <= (12 * 3 if causal else 7)      # while sampling
    del shapes[:]
    where = acted if causal else mask
    logits = model(rows, where, 5, k) if causal else model(tokens, where=mask)
    M = int(where.sum())
    batch = {'actions': rows[where][:, None] if causal else
             rows.view(4, k, 8).transpose(1, 2)[mask],
             'logp_old': None, 'kept': None, 'row': where.nonzero()[:, 0]}
    A = group_advantages(torch.rand(4, k))
    loss, _ = grpo_loss(logits, batch, A.view(-1, 1) if causal else A, kl_beta=0.0)
    loss.backward()
    assert shapes == [(M, V)] and M == (21 if causal else 7)


# ------------------------------------------------------------------------------------------------
# causal

def prompts_to_continue(T=7, V=4, B=24, seed=21):
    """Prompts of all kinds: suffixes of several lengths, gaps, padding after them; and uniforms."""
    rng = torch.Generator().manual_seed(seed)
    tokens, mask = torch.randint(V, (B, T), generator=rng), torch.rand(B, T, generator=rng) < 0.5
    first = torch.randint(T, (B, 1), generator=rng)
    mask[::2] = (torch.arange(T) >= first)[::2]                 # a completion to the end of the row
    mask[1::4, -1] = True
    mask[:, 2] |= ~mask.any(1)
    stop = first + 3
    padded = (torch.arange(T) >= stop) & (torch.arange(B) % 4 == 0)[:, None]
    mask &= ~padded
    u = torch.rand(B, T, 3, generator=rng, dtype=torch.float64)
    return tokens.masked_fill(padded, V + 2), mask, u


@pytest.mark.parametrize('ask', [(1.0, 0, 1.0), (0.7, 2, 1.0), (1.2, 0, 0.7), (1.0, 3, 0.8)])
def test_sampling_with_a_cache_is_sampling_by_full_recomputation(ask):
    model, (tokens, mask, u) = tiny(True, 4, 7), prompts_to_continue()
    with torch.no_grad():
        for uniforms in (u, None):
            rows, acted, logp, kept = complete(model, tokens, mask, uniforms, *ask, eos=3)
            k = 1 if uniforms is None else 3
            for n in range(len(rows)):
                b, own = n // k, None if uniforms is None else u[n // k, :, n % k]
                row, chose, slow_logp, sets = slow_complete(model, tokens[b], mask[b], own, *ask, 3)
                assert rows[n].tolist() == row.tolist() and acted[n].tolist() == chose.tolist(), n
                close(logp[n], slow_logp, atol=1e-5, rtol=0)
                for t, ids in sets.items() if kept is not None else ():
                    if chose[t]:
                        assert set(kept[n, t].nonzero()[:, 0].tolist()) == ids


def test_ragged_prompts_get_the_completions_in_a_batch_that_they_get_alone():
    model, (tokens, mask, u) = tiny(True, 4, 7, seed=3), prompts_to_continue(seed=22)
    rows, acted, logp, _ = complete(model, tokens, mask, u, eos=3)
    assert len(set(mask.int().argmax(1).tolist())) > 3
    for b in range(len(tokens)):
        part = slice(b, b + 1)
        own, own_acted, own_logp, _ = complete(model, tokens[part], mask[part], u[part], eos=3)
        wide = slice(b * 3, b * 3 + 3)
        assert torch.equal(rows[wide], own) and torch.equal(acted[wide], own_acted)
        close(logp[wide], own_logp)


def test_a_causal_completion_ends_with_a_chosen_end_of_row_and_then_padding():
    model, eos, T = tiny(True, 4, 12), 3, 12
    tokens, mask = torch.zeros(40, T).long(), torch.arange(T).expand(40, T) >= 2
    rows, acted, logp, _ = complete(model, tokens, mask, torch.rand(40, T, 2), eos=eos)
    ended = 0
    for row, chose, lp in zip(rows.tolist(), acted.tolist(), logp.tolist()):
        stop = row.index(eos, 2) if eos in row[2:] else T - 1
        ended += stop < T - 1
        assert chose == [2 <= t <= stop for t in range(T)]      # the end is a decision too
        assert row[stop + 1:] == [model.pad_id] * (T - 1 - stop)
        assert all(x < 0 for x in lp[2:stop + 1]) and lp[stop + 1:] == [0] * (T - 1 - stop)
    assert ended > 20


def test_an_end_of_row_before_text_that_is_given_does_not_end_the_row():
    model, eos = tiny(True, 4, 8), 3
    model.head.weight.data.zero_()                          # uniform: ids by the uniforms alone
    tokens = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1]])
    mask = torch.tensor([[False, True, False, False, True, False, False, True]])
    rows, acted, *_ = complete(model, tokens, mask, torch.full((1, 8, 1), 0.9), eos=eos)
    assert rows[0].tolist() == [0, 3, 2, 0, 3, 2, 0, 3] and torch.equal(acted, mask)


def test_rows_that_ended_are_computed_no_further():
    model, T, eos = tiny(True, 4, 32, layers=1), 32, 3
    tokens, mask = torch.zeros(10, T).long(), torch.arange(T).expand(10, T) >= 1
    model.head.weight.data.zero_()                          # the uniforms decide: 0.9 ends a row
    calls = count_calls(model)
    complete(model, tokens, mask, torch.full((10, T, 2), 0.9), eos=eos)
    assert len(calls) == 1 and calls[0][0] == 10            # the prompt, once per prompt, no more
    del calls[:]
    u = torch.full((10, T, 2), 0.1)
    u[:5, 3] = 0.9                                          # half end early, the rest at 9
    u[5:, 9] = 0.9
    rows, acted, *_ = complete(model, tokens, mask, u, eos=eos)
    assert acted.sum(1).tolist() == [3] * 10 + [9] * 10
    assert len(calls) <= 10 and calls[-1][0] == 10 and calls[1] == (20, 1)


def test_causal_log_probs_add_up_to_the_probability_of_the_row():
    model, n = tiny(True, 3, 4, seed=5), 30000
    every = every_completion(3, 3)
    rows = torch.cat((torch.ones(27, 1).long(), every), 1)
    with torch.no_grad():                       # p(row) as a product over prefixes of their own
        p = torch.stack([math.prod(model(row[None, :t + 1])[0, t].softmax(-1)[row[t]]
                                   for t in range(1, 4)) for row in rows])
    close(p.sum().item(), 1.0)
    tokens, mask = torch.tensor([[1, 0, 0, 0]]), torch.tensor([[False, True, True, True]])
    found, acted, logp, _ = complete(model, tokens, mask, torch.rand(
        1, 4, n, generator=torch.Generator().manual_seed(23), dtype=torch.float64))
    code = (found[:, 1:] * torch.tensor([9, 3, 1])).sum(1)
    close(logp.sum(1).double(), p.log()[code], atol=1e-5, rtol=0)
    counts = torch.bincount(code, minlength=27)
    assert ((counts - n * p) ** 2 / (n * p)).sum() < 54.1   # 26 degrees of freedom, 1 in 1000


@pytest.mark.parametrize('prefix', range(6))
def test_the_shared_prefix_pass_is_the_plain_pass_in_value_and_gradient(prefix):
    model, B, k, T = tiny(True, 5, 6, layers=3), 3, 4, 6
    rng = torch.Generator().manual_seed(24)
    rows = torch.randint(5, (B * k, T), generator=rng)
    rows[:, :prefix] = rows[::k, :prefix].repeat_interleave(k, 0)
    where = (torch.rand(B * k, T, generator=rng) < 0.8) & (torch.arange(T) >= prefix)
    weight = torch.randn(int(where.sum()), 5, generator=rng, dtype=torch.float64)
    shapes = count_calls(model)
    plain, shared = model(rows, where), model(rows, where, prefix, k)
    assert shapes[1] == (B, prefix + 1)                     # once per prompt
    close(shared, plain)
    close(gradients((shared * weight).sum(), model), gradients((plain * weight).sum(), model))
    close(model.features(rows, None, prefix, k), model.features(rows))


def test_what_stands_after_the_end_of_a_row_changes_neither_loss_nor_gradient():
    model, (tokens, mask, u) = tiny(True, 4, 7), prompts_to_continue()
    tokens, mask = tokens[::2], mask[::2]
    rows, acted, _, _ = complete(model, tokens, mask, u[::2], eos=3)
    A = torch.randn(len(rows), 1, dtype=torch.float64)
    stop = (acted * torch.arange(7)).amax(1, keepdim=True)
    junk = torch.where(torch.arange(7) > stop, 1, rows)
    assert (junk != rows).any()

    def gradient(rows):
        batch = {'actions': rows[acted][:, None], 'logp_old': None, 'kept': None,
                 'row': acted.nonzero()[:, 0]}
        return gradients(grpo_loss(model(rows, acted), batch, A)[0], model)

    close(gradient(junk), gradient(rows))


@pytest.mark.parametrize('causal', [False, True])
def test_a_compiled_trunk_is_not_compiled_again_when_the_number_of_blanks_changes(causal):
    from torch._dynamo.testing import CompileCounter
    torch._dynamo.reset()
    model, counter = tiny(causal=causal), CompileCounter()
    rows = torch.randint(model.head.out_features, (6, model.block_size))
    rows[:, 0], expected = 0, []        # causal: pairs of rows share a prefix of one token
    for run in ('plain', 'compiled'):
        for blank in (1, 2, 4):
            where = torch.arange(model.block_size).expand(6, -1) >= model.block_size - blank
            logits = model(rows, where, 1, 2)
            assert logits.shape == (6 * blank, model.head.out_features)
            if run == 'plain':
                expected.append(logits)
            else:
                close(logits, expected.pop(0))
        model.compiled = torch.compile(model.trunk, backend=counter, dynamic=False)
    assert counter.frame_count == 1


@pytest.mark.parametrize('S, room', [(5, 5), (1, 1), (1, 3), (2, 4)])
def test_a_cache_that_is_filled_in_pieces_holds_what_one_pass_over_whole_rows_gives(S, room):
    model, ids = tiny(True, T=8, seed=4), torch.randint(5, (4, 8))
    ids[1::2, :3] = ids[::2, :3]                            # pairs of rows share a prefix
    cache, whole = ([[] for _ in model.blocks] for _ in range(2))
    expected = model.trunk(ids, whole)
    found = [model.trunk(ids[::2, :3], cache).repeat_interleave(2, 0)]
    cache = [[t.repeat_interleave(2, 0) for t in kv] for kv in cache]
    for start in range(3, 8, S):
        if cache[0][0].size(2) < min(8, start + S):
            cache = [[torch.nn.functional.pad(t, (0, 0, 0, min(room, 8 - start))) for t in kv]
                     for kv in cache]
        found.append(model.trunk(ids[:, start:start + S], cache, start))
        for kv, both in zip(cache, whole):
            for t, joined in zip(kv, both):
                assert t.is_contiguous()                    # products would copy a slice
                stop = min(8, start + S)
                close(t[:, :, :stop], joined[:, :, :stop])
                assert not t[:, :, stop:].any()             # room
    close(torch.cat(found, 1), expected)
    close(model.trunk(ids), expected)


# ------------------------------------------------------------------------------------------------
# the judge

def tiny_judge(kind='likelihood', dtype=torch.float32, T=8):
    torch.manual_seed(2)
    judge = Judge(kind, vocab_size=6, block_size=T, n_layer=2, n_head=2, n_embd=16,
                  causal=kind == 'likelihood').to(dtype)
    torch.nn.init.normal_(judge.gpt.head.weight, std=0.5)
    return judge.eval().requires_grad_(False)


def rows_to_judge(N=12, T=8, seed=25):
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randint(6, (N, T), generator=rng)
    length = torch.randint(1, T + 1, (N, 1), generator=rng)
    return rows.masked_fill(torch.arange(T) >= length, 8)       # 8: padding


def test_the_likelihood_score_is_that_of_a_slow_loop_over_prefixes():
    judge, rows = tiny_judge(dtype=torch.float64), rows_to_judge()
    for row, score in zip(rows.tolist(), judge.score(rows).tolist()):
        real = [i for i in row if i != 8]
        logps = [math.log(judge.gpt(torch.tensor([real[:t + 1]]))[0, t].softmax(-1)[i])
                 for t, i in enumerate(real)]
        close(score, statistics.mean(logps), atol=1e-6, rtol=0)


def test_the_classifiers_score_is_a_probability_from_the_mean_of_real_positions():
    judge, rows = tiny_judge('classifier', torch.float64), rows_to_judge()
    head = judge.gpt.head
    for row, score in zip(rows.tolist(), judge.score(rows).tolist()):
        real = torch.tensor([[i for i in row if i != 8]])
        pooled = judge.gpt.features(real)[0].mean(0)
        logit = (head.weight[0] * pooled).sum() + head.bias[0]
        close(score, 1 / (1 + math.exp(-logit)), atol=1e-6, rtol=0)


@pytest.mark.parametrize('kind', ['likelihood', 'classifier'])
def test_a_score_does_not_depend_on_batch_mates_order_padding_or_chunks(kind):
    judge, rows = tiny_judge(kind, T=12), torch.cat((rows_to_judge(), rows_to_judge()[:5]))
    scores = judge.score(rows)
    assert torch.equal(scores[12:], scores[:5])                 # equal rows, equal bits
    assert len(scores[:12].unique()) > 6
    order = torch.randperm(17, generator=torch.Generator().manual_seed(1))
    assert torch.equal(judge.score(rows[order]), scores[order])
    for chunk in (1, 2, 5, 100):
        close(judge.score(rows, chunk=chunk), scores, atol=1e-6, rtol=0)
    for n in range(17):
        close(judge.score(rows[n:n + 1]), scores[n:n + 1], atol=1e-6, rtol=0)
    close(judge.score(torch.nn.functional.pad(rows, (0, 4), value=8)), scores, atol=1e-6, rtol=0)


@pytest.mark.parametrize('kind', ['likelihood', 'classifier'])
def test_a_score_is_float32_and_without_gradient_also_under_autocast(kind):
    rows = rows_to_judge()
    for dtype in (torch.float32, torch.float64):
        score = tiny_judge(kind, dtype).score(rows)
        assert score.dtype == torch.float32 and not score.requires_grad
    judge, heads = tiny_judge(kind), []
    judge.gpt.head.register_forward_hook(lambda head, x, y: heads.append((x[0].dtype, y.dtype)))
    exact = judge.score(rows)
    with torch.autocast('cpu', torch.bfloat16):
        score = judge.score(rows)
    assert score.dtype == torch.float32 and heads[-1] == (torch.float32, torch.float32)
    close(score, exact, atol=0.05, rtol=0)


@pytest.mark.parametrize('kind', ['likelihood', 'classifier'])
def test_a_loaded_judge_is_frozen_and_gives_the_scores_that_it_gave(kind, tmp_path):
    judge, rows = tiny_judge(kind), rows_to_judge()
    corpus = types.SimpleNamespace(fingerprint='f', name='toy')
    save(tmp_path / 'j.pt', kind='judge', judge_kind=kind, model_args=judge.gpt.args,
         model=judge.state_dict(), config={'dataset': 'toy'}, corpus='f')
    loaded = load_judge(str(tmp_path / 'j.pt'), corpus, 'make')
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
    opts = optimizers(judge, 1e-2, 0.0, 0.9, 0.95)
    held_out, labels = torch.cat(pairs(100, draws(1, 'held out'))), [1] * 100 + [0] * 100
    start = auc(judge.score(held_out), labels)
    for step in range(30 if kind == 'likelihood' else 80):
        true, false = pairs(64, draws(0, 'toy', step))
        if kind == 'likelihood':
            logits = judge.gpt(true).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, true.flatten())
        else:
            target = torch.tensor([1.0] * 64 + [0.0] * 64)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                judge.raw(torch.cat((true, false))), target)
        loss.backward()
        update(judge, opts, 1e-2, 1.0)
    assert start < 0.7 and auc(judge.score(held_out), labels) > 0.9


def test_auc_is_the_share_of_pairs_in_the_right_order():
    rng = np.random.default_rng(0)
    for n, levels in ((30, 4), (50, 1000), (7, 1)):
        scores, labels = rng.integers(levels, size=n) / levels, rng.random(n) < 0.4
        labels[:2] = True, False
        pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels] for b in scores[~labels]]
        close(auc(scores, labels), statistics.mean(pairs))
    assert math.isnan(auc([1.0, 2.0], [True, True]))


# ------------------------------------------------------------------------------------------------
# rewards

def test_copies_counts_equal_rows_of_the_same_group_only():
    rows = torch.randint(2, (5, 8, 3), generator=torch.Generator().manual_seed(26))     # (B, k, T)
    expected = [[sum(group[i].tolist() == group[j].tolist() for i in range(8)) for j in range(8)]
                for group in rows]
    assert copies(rows).tolist() == expected


def toy_data(chars='\n-=abcde', verify=None):
    return types.SimpleNamespace(tok=Tokenizer('char', chars), verify=verify, name='toy',
                                 fingerprint='f')


@pytest.mark.parametrize('causal', [False, True])
def test_each_reward_is_what_its_name_says_and_stands_in_its_own_place(causal):
    data, k = toy_data(verify=lambda prompt, completion: completion.count('a') / 4), 2
    tok, pad = data.tok, data.tok.pad
    ids = lambda text: tok.encode(text) + [pad] * (5 - len(text))
    tokens = torch.tensor([ids('abcde'), ids('ab\n')])
    mask = torch.tensor([[False, False, True, True, False], [False, True, False, False, False]])
    rows = torch.tensor([ids('abaae'), ids('abaae'), ids('aa\n'), ids('ac\n')])
    acted = torch.tensor([[0, 0, 1, 1, 0], [0, 0, 1, 1, 0], [0, 1, 1, 0, 0], [0, 1, 0, 0, 0]]) == 1
    batch = {'tokens': tokens, 'mask': mask, 'rows': rows, 'where': acted if causal else mask}
    seen = []

    def mine(prompts, completions):
        seen.append((prompts, completions))
        return [float(len(p)) for p in prompts]

    judge = tiny_judge(T=5)
    judge.gpt.pad_id = pad                      # the judge's own vocabulary does not matter here
    judge.score = lambda rows, mask, chunk: rows[:, 0] + 10.0 * rows[:, 1]
    found = reward_scores(['length', 'mine', 'judge', 'verify', 'distinct'], batch, data, causal,
                          judge, {'mine': mine})
    assert found.shape == (5, 2, 2) and found.dtype == torch.float32
    wrote = [2, 2, 2, 1] if causal else [2, 2, 1, 1]
    close(found[0].flatten(), torch.tensor(wrote) / 5)
    shown = ['ab', 'ab', 'a', 'a'] if causal else ['ab__e', 'ab__e', 'a_', 'a_']
    full = ['aae', 'aae', 'a', 'c'] if causal else ['abaae', 'abaae', 'aa', 'ac']
    assert seen == [(shown, full)]
    close(found[1].flatten(), torch.tensor([float(len(p)) for p in shown]))
    close(found[2].flatten(), (rows[:, 0] + 10 * rows[:, 1]).float())
    close(found[3].flatten(), torch.tensor([text.count('a') / 4 for text in full]))
    assert found[4].tolist() == [[0.5, 0.5], [1.0, 1.0]]
    same = batch | {'rows': rows[[0, 2, 2, 0]]}         # the other group's rows are no copies
    assert (reward_scores(['distinct'], same, data, causal) == 1).all()


def test_verify_is_asked_once_per_pair():
    asked = []
    data = toy_data(verify=lambda p, c: asked.append((p, c)) or 1.0)
    tokens = torch.tensor([data.tok.encode('abc')])
    batch = {'tokens': tokens, 'mask': torch.tensor([[False, True, False]]),
             'rows': tokens.expand(6, 3), 'where': None}
    assert reward_scores(['verify'], batch, data, False).tolist() == [[[1.0] * 6]]
    assert asked == [('a_c', 'abc')]


@pytest.mark.parametrize('function, says', [
    (lambda p, c: 1 / 0, r"reward 'mine' raised ZeroDivisionError: division by zero.*'a_'"),
    (lambda p, c: [1.0], r"reward 'mine' gave 1 numbers for 2 completions.*'a_'"),
    (lambda p, c: None, r"reward 'mine' raised TypeError.*'a_'"),
    (lambda p, c: ['x', 'y'], r"reward 'mine' raised ValueError.*'a_'")])
def test_a_reward_function_that_misbehaves_is_named_with_a_prompt(function, says):
    with pytest.raises(SystemExit, match=says):
        called('mine', function, ['a_', 'b_'], ['aa', 'bb'])


def test_a_reward_function_may_return_any_sequence_of_numbers():
    assert called('mine', lambda p, c: torch.tensor([1, 0]), ['a', 'b'], ['', '']) == [1.0, 0.0]
    assert called('mine', lambda p, c: (True, np.float32(2)), ['a', 'b'], ['', '']) == [1.0, 2.0]


def test_labelled_texts_are_read_and_a_bad_line_is_named(tmp_path):
    tok, path = toy_data().tok, tmp_path / 'labels.jsonl'
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


# ------------------------------------------------------------------------------------------------
# data

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
    assert model.embed.num_embeddings == tok.size and model.head.out_features == tok.base


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
    tok, T = data.tok, 5
    found = data.batch('train', 400, T, np.random.default_rng(0)).tolist()
    expected = {}
    for text in train:
        ids = (tok.encode(text) + [tok.eos])[:T]
        expected[tuple(ids + [tok.pad] * (T - len(ids)))] = 0
    for row in found:
        expected[tuple(row)] += 1               # a KeyError: a row that is none
    assert all(60 < n < 140 for n in expected.values())


def test_windows_are_pieces_of_the_text_and_reach_both_of_its_ends(corpus):
    data = corpus('windows', ['abcab', 'cccb', 'bab'])
    text = data.ids['train'].tolist()
    every = {tuple(text[i:i + 4]) for i in range(len(text) - 3)}
    found = {tuple(row) for row in data.batch('train', 600, 4, np.random.default_rng(0)).tolist()}
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
    assert shares.min() < 0.3 and shares.max() > 0.5 and 0.15 < shares.min() and shares.max() < 0.66


def runs(mask):
    """Lengths of the runs of True in a row, from left to right."""
    return [len(list(group)) for value, group in itertools.groupby(mask.tolist()) if value]


def test_a_suffix_is_everything_from_some_place_to_the_end_of_the_row():
    tok, tokens, length = rows_with_ends()
    mask = blanks(tokens, tok, draws(0, 'test'), 'suffix', 0.1, 0.9)
    for row, n in zip(mask, length.tolist()):
        assert len(runs(row)) == 1 and row[n - 1] and not row[n:].any()


def test_spans_are_runs_and_random_blanks_are_not():
    tokens, tok = torch.ones(2000, 64).long(), Tokenizer('char', '\nabc')
    for span in (2, 4, 8):
        mask = blanks(tokens, tok, draws(0, 'test'), 'span', 0.25, 0.25, span)
        assert (mask.sum(1) == 16).all()
        # 16 / span whole runs, and at most two more that an edge or the count cut short
        assert all(len(runs(row)) <= 16 // span + 2 for row in mask)
        longest = [max(runs(row)) for row in mask]
        assert all(n >= span for n in longest)
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


def knobs_for_prompts(**changes):
    return {'mode': 'fill', 'block_size': 6, 'blank_kind': 'random', 'blank_low': 0.3,
            'blank_high': 0.6, 'blank_span': 2, 'group_size': 3, 'max_new_tokens': 0, **changes}


def test_prompts_are_what_the_knobs_ask_for(corpus):
    data = corpus('rows', ['abca', 'bb', 'cab', 'ccc'], ['aaaa'])
    tokens, mask, u = prompts(data, knobs_for_prompts(), 'train', 50, draws(1, 'prompts', 3))
    assert tokens.shape == mask.shape == (50, 6) and u.shape == (50, 6, 3)
    assert u.dtype == torch.float32 and u.unique().numel() > 850 and ((u >= 0) & (u < 1)).all()
    assert mask.any(1).all() and not (mask & (tokens >= data.tok.base)).any()
    again = prompts(data, knobs_for_prompts(), 'train', 50, draws(1, 'prompts', 3))
    assert all(map(torch.equal, (tokens, mask, u), again))
    held_out, *_ = prompts(data, knobs_for_prompts(), 'val', 9, draws(1, 'prompts', 3))
    assert (held_out == torch.tensor(data.tok.encode('aaaa\n') + [data.tok.pad])).all()
    with_c = lambda prompt, original: 'c' in original and '_' in prompt
    tokens, mask, _ = prompts(data, knobs_for_prompts(), 'train', 50, draws(1, 'p'), with_c)
    assert len(tokens) == 50 and all('c' in data.tok.decode(row) for row in tokens)
    with pytest.raises(SystemExit, match='prompt_filter'):
        prompts(data, knobs_for_prompts(), 'train', 2, draws(1, 'p'), lambda *pair: False)


@pytest.mark.parametrize('most', [0, 2])
def test_a_causal_completion_may_be_longer_than_the_original_was(corpus, most):
    data = corpus('rows', ['abca', 'bb', 'cab', 'ccc'])
    ask = knobs_for_prompts(mode='causal', blank_kind='suffix', max_new_tokens=most)
    tokens, mask, _ = prompts(data, ask, 'train', 50, draws(1, 'prompts', 3))
    for row, blank in zip(tokens, mask):
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
    tokens = data.batch('train', 200, 16, rng)
    mask = blanks(tokens, data.tok, rng, 'suffix' if causal else 'random', 0.2, 0.6)
    for pair in zip(*texts(data.tok, tokens, mask, tokens, causal)):
        assert known_words(*pair, data.folder) == 1.0, pair


# ------------------------------------------------------------------------------------------------
# schedule, optimizers, checkpoints

def test_the_learning_rate_warms_up_then_follows_a_cosine_to_its_floor():
    rate = lambda step: scheduled(step, 1.0, 0.1, 10, 110)
    close([rate(s) for s in range(10)], [(s + 1) / 11 for s in range(10)])
    assert rate(10) == 1.0 and rate(60) == pytest.approx(0.55) and rate(110) == pytest.approx(0.1)
    assert rate(35) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)
    assert all(rate(s) > rate(s + 1) for s in range(10, 110))
    assert rate(10 ** 6) == pytest.approx(0.1)
    assert scheduled(0, 1.0, 0.1, 0, 100) == 1.0
    assert all(math.isfinite(scheduled(s, 1.0, 0.1, 10, 10)) for s in range(20))


def test_every_parameter_has_one_optimizer_and_hidden_matrices_have_muon():
    model = tiny(dtype=torch.float32)
    opts = optimizers(model, 1e-3, 0.1, 0.9, 0.95)
    held = [[p for group in opt.param_groups for p in group['params']] for opt in opts]
    names = {id(p): name for name, p in model.named_parameters()}
    assert sorted(names[id(p)] for part in held for p in part) == sorted(names.values())
    for opt, part in zip(opts, held):
        assert all(names[id(p)].startswith('blocks.') == isinstance(opt, torch.optim.Muon)
                   for p in part)
        for group in opt.param_groups:
            assert (group['lr'], group['weight_decay']) == (1e-3, 0.1)
            assert group.get('betas', (0.9, 0.95)) == (0.9, 0.95)


def test_with_adamw_for_all_a_step_is_adamws_for_hidden_matrices_too():
    model, lr, decay = tiny(dtype=torch.float64), 1e-2, 0.1
    opts, model.head.weight.data = optimizers(model, lr, decay, 0.9, 0.95, 'adamw'), torch.randn(
        model.head.weight.shape, dtype=torch.float64)
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    grads = [p.grad.clone() for p in model.parameters()]
    update(model, opts, lr, 0.0)
    assert [type(opt) for opt in opts] == [torch.optim.AdamW]
    for p, old, g in zip(model.parameters(), before, grads):    # first step: m / sqrt(v) = sign
        close(p.detach(), old * (1 - lr * decay) - lr * g / (g.abs() + 1e-8), rtol=1e-9, atol=1e-12)


def test_an_update_clips_the_gradient_and_reports_it_unclipped():
    for grad_clip, applied in ((0.5, 0.5), (0.0, 5.0), (100.0, 5.0)):
        model = torch.nn.Linear(2, 1, bias=False)
        before = model.weight.detach().clone()
        model.weight.grad = torch.tensor([[3.0, 4.0]])
        norm = update(model, [torch.optim.SGD(model.parameters(), lr=123.0)], 0.1, grad_clip)
        assert norm.item() == pytest.approx(5.0)
        close((before - model.weight).norm().item(), 0.1 * applied, rtol=1e-4, atol=1e-6)
        assert model.weight.grad is None or not model.weight.grad.any()


def kept_model(tmp_path, **changes):
    model = tiny(dtype=torch.float32)
    path = str(tmp_path / 'kept' / 'model.pt')
    save(path, **{'kind': 'generator', 'model_args': model.args, 'model': model.state_dict(),
                  'config': {'dataset': 'toy'}, 'corpus': 'f', **changes})
    return path, model


SAME_TEXT = types.SimpleNamespace(fingerprint='f', name='toy')


def test_a_checkpoint_gives_the_model_back_and_leaves_nothing_else(tmp_path):
    path, model = kept_model(tmp_path)
    loaded, tokens = load_gpt(path, SAME_TEXT, 'make', 6, 'fill'), torch.randint(5, (3, 6))
    assert torch.equal(loaded(tokens), model(tokens))
    assert os.listdir(os.path.dirname(path)) == ['model.pt']
    assert torch.load(path, weights_only=True)['version'] == 1


def test_a_save_that_fails_half_way_leaves_the_old_checkpoint_whole(tmp_path, monkeypatch):
    path, model = kept_model(tmp_path)

    def full(content, file):
        file.write(b'half a checkpoint')
        raise OSError(28, 'No space left on device')

    with monkeypatch.context() as patch, pytest.raises(SystemExit, match='No space left'):
        patch.setattr(torch, 'save', full)
        save(path, kind='generator')
    assert os.listdir(os.path.dirname(path)) == ['model.pt']
    assert load(path, 'generator', SAME_TEXT, 'make')['model_args'] == model.args


def test_a_checkpoint_that_does_not_fit_is_refused_with_the_command_that_makes_one(tmp_path):
    path, _ = kept_model(tmp_path)
    other = types.SimpleNamespace(fingerprint='g', name='other')
    for ask, says in (((path, 'judge', SAME_TEXT, 'cmd'), 'is a generator, expected a judge'),
                      ((path, 'generator', other, 'cmd'), 'toy-f.*other-g'),
                      ((path, 'generator', SAME_TEXT, 'cmd', 7), 'of 6 tokens, block_size is 7'),
                      ((path, 'generator', SAME_TEXT, 'cmd', 6, 'causal'), 'is not a causal model'),
                      ((path + 'x', 'generator', SAME_TEXT, 'cmd'), 'no generator at')):
        with pytest.raises(SystemExit, match=f'error: .*{says}.*cmd'):
            load(*ask)
    policy, _ = kept_model(tmp_path, kind='policy')
    assert load(policy, 'generator', SAME_TEXT, 'cmd')['kind'] == 'policy'    # a policy will do
    with open(path, 'r+b') as f:
        f.truncate(1000)
    with pytest.raises(SystemExit, match='damaged.*cmd'):
        load(path, 'generator', SAME_TEXT, 'cmd')
    torch.save({'model_args': types.SimpleNamespace()}, path)
    with pytest.raises(SystemExit, match='was not opened.*cmd'):
        load(path, 'generator', SAME_TEXT, 'cmd')


# ------------------------------------------------------------------------------------------------
# knobs

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
    """script(*argv) configures a small script; a word 'file: ...' becomes a config file."""
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
        return configure(names, argv, quiet=True), names

    return apply


def test_files_and_flags_apply_in_the_order_given(script):
    assert script()[0] == {'alpha': 1, 'beta': 0.5, 'name': 'x', 'on': False, 'weights': {'a': 1.0}}
    config, names = script('file: alpha = 2\nbeta = 0.25', '--alpha=3')
    assert (config['alpha'], config['beta'], names['alpha'], names['beta']) == (3, 0.25, 3, 0.25)
    assert script('--alpha=3', 'file: alpha = 2')[0]['alpha'] == 2
    assert script('--alpha=3', '--alpha=4')[0]['alpha'] == 4
    assert script('file: alpha = 2', 'file: beta = 0.1')[0]['alpha'] == 2
    assert script('file: alpha = 7', 'file: alpha = 1')[0]['alpha'] == 1    # the default again


@pytest.mark.parametrize('how', ['--{} = {}', 'file: {} = {}'])
def test_an_unknown_key_or_a_wrong_type_is_refused_from_file_and_flag_alike(script, how):
    how = how.replace(' = ', '=') if how.startswith('--') else how
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
    config, _ = script(how.format('beta', '1'))
    assert config['beta'] == 1.0 and type(config['beta']) is float
    assert script(how.format('weights', "{'b': 2.0}"))[0]['weights'] == {'b': 2.0}


def test_a_value_may_hold_equals_signs_and_text_needs_no_quotes(script):
    assert script('--name=a=b==c')[0]['name'] == 'a=b==c'
    assert script('--name=12')[0]['name'] == '12' and script('--name=')[0]['name'] == ''
    with pytest.raises(SystemExit, match='expected --alpha=VALUE, such as --alpha=1'):
        script('--alpha')
    with pytest.raises(SystemExit, match="unknown key '_private'"):
        script('--_private=4')


def test_a_config_file_may_define_functions_imports_and_helpers(script):
    config, names = script('file: import math\nfrom math import floor\n_half = 0.5\nMOST = 3\n'
                           'beta = _half / 2\nalpha = alpha + MOST\n'
                           'def vowels(prompts, completions):\n'
                           '    return [floor(min(MOST, len(c)) * _half) for c in completions]\n')
    assert config['beta'] == 0.25 and config['alpha'] == 4 and set(config) == set(script()[0])
    assert names['_functions']['vowels'](['', ''], ['abcde', 'a']) == [1, 0]


def test_a_broken_config_file_is_named_with_its_line(script, tmp_path):
    for source, says in (('alpha = 2\nbeta = = 3', r'config0\.py, line 2'),
                         ('alpha = 1 / 0', r'config0\.py: ZeroDivisionError'),
                         ('def alpha():\n    pass', 'alpha = <function alpha .*, expected int')):
        with pytest.raises(SystemExit, match=says):
            script('file: ' + source)
    with pytest.raises(SystemExit, match='no config file config/none.py; there are'):
        script('config/none.py')


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
    names = runpy.run_path(os.path.join(HOME, file), run_name='imported')
    with pytest.raises(SystemExit):
        configure(names, ['--help'])
    lines = capsys.readouterr().out.split('knobs (--key=value')[1].splitlines()[1:]
    shown = {line.split()[0]: line for line in lines}
    assert list(shown) == list(knobs(names)) and len(shown) > 20
    for key, value in knobs(names).items():
        assert len(shown[key].split(repr(value), 1)[1].split()) >= 1, f"{key} has no gloss"


def test_a_broken_rule_names_knob_value_and_reason():
    rules = {"alpha >= 2": "one is no group", "name in ('a', 'b')": ''}
    check(rules, {'alpha': 2, 'name': 'a'})
    with pytest.raises(SystemExit, match=r"alpha = 1.*alpha >= 2 \(one is no group\)"):
        check(rules, {'alpha': 1, 'name': 'a'})
    with pytest.raises(SystemExit, match="name = 'c'.*in \\('a', 'b'\\)"):
        check(rules, {'alpha': 3, 'name': 'c'})


def test_rules_hold_for_the_defaults_and_name_knobs_that_exist():
    own = knobs(vars(train_grpo))
    check(GRPO_RULES, {**own, 'world': 1})
    for rule in GRPO_RULES:
        used = {node.id for node in ast.walk(ast.parse(rule)) if isinstance(node, ast.Name)}
        assert used <= {*own, 'world', 'all', 'type', 'int', 'float', 'weight'}, rule
    assert HARMLESS <= set(own)


@pytest.mark.parametrize('change', [
    {'group_size': 1}, {'mode': 'both'}, {'adv_norm': 'mean'}, {'kl_type': 'k4'}, {'top_p': 0.0},
    {'temperature': 0.0}, {'loss_norm': 'row'}, {'ratio': 'row'}, {'blank_low': 0.8},
    {'gradient_accumulation_steps': 3, 'mini_batches': 2}, {'kl_beta': 0.0, 'kl_in_reward': True},
    {'gen_batch_size': 3}, {'clip_low': 1.5}, {'max_iters': 0}, {'world': 2}])
def test_settings_that_cannot_be_meant_are_refused(change):
    with pytest.raises(SystemExit, match='expected'):
        check(GRPO_RULES, {**knobs(vars(train_grpo)), 'world': 1, **change})


@pytest.mark.parametrize('file', SCRIPTS)
def test_every_knob_is_read_somewhere(file):
    def scopes(table):
        yield table
        for child in table.get_children():
            yield from scopes(child)

    with open(os.path.join(HOME, file)) as f:
        source = f.read()
    own = [key for key in knobs(runpy.run_path(os.path.join(HOME, file), run_name='imported'))]
    top = symtable.symtable(source, file, 'exec')
    read = {symbol.get_name() for scope in scopes(top) for symbol in scope.get_symbols()
            if symbol.is_referenced() and (scope is top or symbol.is_global())}
    elsewhere = [] if file == 'model.py' else [('data/dataset.py', 'prompts')]
    elsewhere += [('model.py', 'fit')] if file != 'train_grpo.py' else [
        ('config/run.py', '__init__'), ('config/run.py', '__call__')]
    for path, name in elsewhere:                # these take knobs by name
        with open(os.path.join(HOME, path)) as f:
            read |= {node.value for function in ast.walk(ast.parse(f.read()))
                     if isinstance(function, ast.FunctionDef) and function.name == name
                     for node in ast.walk(function) if isinstance(node, ast.Constant)}
    assert [key for key in own if key not in read] == []


@pytest.mark.parametrize('path', sorted(f'config/{name}' for name in os.listdir(f'{HOME}/config')
                                        if re.match(r'(grpo|generator|judge)_.*\.py', name)))
def test_config_files_set_knobs_that_exist(path):
    kind = os.path.basename(path).split('_')[0]
    names = runpy.run_path(os.path.join(HOME, {
        'grpo': 'train_grpo.py', 'generator': 'model.py', 'judge': 'judge.py'}[kind]),
        run_name='imported')
    config = configure(names, [os.path.join(HOME, path)], quiet=True)
    if kind == 'grpo':
        check(GRPO_RULES, {**config, 'world': 1})


@pytest.mark.parametrize('file', [*SCRIPTS, 'sample.py'])
def test_importing_a_script_does_nothing(file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'argv', [file, '--no_such_knob=1', 'no_such_file.py'])
    state = lambda: (torch.get_rng_state().tolist(), str(np.random.get_state()), os.environ.copy(),
                     torch.get_default_dtype(), torch.get_float32_matmul_precision(),
                     signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    before = state()
    runpy.run_path(os.path.join(HOME, file), run_name='imported')
    shown = capsys.readouterr()
    assert state() == before and os.listdir(tmp_path) == [] and shown.out + shown.err == ''


# ------------------------------------------------------------------------------------------------
# it learns

VOWELS, LETTERS = 2, 6          # ids 0 and 1 are vowels: a uniform policy writes a third of them


def learn(seed, causal=False, steps=60, shuffled=False, **loss):
    """GRPO in a few lines; the reward is the share of vowels in what was written. Returns the
    rewards (mean of the last ten steps), the last KL per decision, and the policy's start."""
    torch.manual_seed(seed)
    policy, k, B, T = GPT(LETTERS, 6, 1, 2, 16, causal), 8, 16, 6
    reference = copy.deepcopy(policy).requires_grad_(False)
    opts, history, kl = optimizers(policy, 1e-2, 0.0, 0.9, 0.95), [], None
    for step in range(steps):
        rng = draws(seed, 'toy', step)
        tokens = torch.from_numpy(rng.integers(LETTERS, size=(B, T)))
        mask = torch.from_numpy(rng.random((B, T)) < 0.5)
        mask = torch.arange(T).expand(B, T) >= 3 if causal else mask | ~mask.any(1, keepdim=True)
        u = torch.from_numpy(rng.random((B, T, k), dtype='float32'))
        rows, acted, *_ = complete(policy, tokens, mask, u)
        rewards = ((rows < VOWELS) & acted).sum(1).view(B, k) / acted.sum(1).view(B, k)
        history.append(rewards.mean().item())
        if shuffled:
            rewards = rewards.flatten()[torch.from_numpy(rng.permutation(B * k))].view(B, k)
        A, where = group_advantages(rewards), acted if causal else mask
        logits, ref = (net(rows, acted, 3, k) if causal else net(tokens, where=mask)
                       for net in (policy, reference))
        batch = {'actions': rows[acted][:, None] if causal else
                 rows.view(B, k, T).transpose(1, 2)[mask],
                 'logp_old': None, 'kept': None, 'row': where.nonzero()[:, 0]}
        A = A.view(-1, 1) if causal else A
        total, report = grpo_loss(logits, batch, A, log_probs(ref), **loss)
        (total / len(logits)).backward()
        update(policy, opts, 1e-2, 1.0)
        kl = report['mean_kl'].item() / len(logits)
        if step == 0:
            assert kl == 0.0                    # the start is its own reference, bit for bit
    torch.manual_seed(seed)
    start = GPT(LETTERS, 6, 1, 2, 16, causal).state_dict()
    assert all(torch.equal(p, start[name]) and p.grad is None
               for name, p in reference.state_dict(keep_vars=True).items())
    return statistics.mean(history[-10:]), kl


@pytest.mark.parametrize('seed', [1, 2, 3])
@pytest.mark.parametrize('causal', [False, True])
def test_the_policy_learns_the_letters_that_the_toy_reward_likes(causal, seed):
    reward, kl = learn(seed, causal)
    assert reward > 0.9 and kl > 0.5


@pytest.mark.parametrize('seed', [1, 2, 3])
def test_rewards_dealt_out_at_random_teach_nothing(seed):
    reward, _ = learn(seed, shuffled=True, kl_beta=0.05)
    assert abs(reward - VOWELS / LETTERS) < 0.15


@pytest.mark.parametrize('kl_type', ['exact', 'k2', 'k3_ratio'])
def test_a_strong_kl_holds_the_policy_at_its_start(kl_type):
    reward, kl = learn(1, kl_beta=20.0, kl_type=kl_type)
    assert kl < 0.01 and reward < 0.5


def test_k1_as_a_loss_holds_nothing_however_strong():
    _, kl = learn(1, kl_beta=20.0, kl_type='k1')
    assert kl > 0.5             # its expected gradient is 0: only noise is left


# ------------------------------------------------------------------------------------------------
# the system: the real scripts at toy size, stopped, killed, resumed, spread over ranks, ill-treated

HERE = pathlib.Path(__file__).resolve().parent
long = pytest.mark.skipif(not os.environ.get('LONG'), reason="minutes; run with LONG=1")

# Importing torch takes longer than a toy run, so one process imports it and forks for each run.
# A nanny waits for each run and writes down how it ended, also when that was SIGKILL.
SERVER = '''
import atexit, json, os, resource, runpy, signal, sys, traceback
import numpy, torch, torch._dynamo, torch.distributed
torch.set_num_threads(1)
sys.dont_write_bytecode = False
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def go(job):
    os.setpgid(0, 0)
    for fd, name in ((1, 'out'), (2, 'err')):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
    os.chdir(job['folder'])
    os.environ.update(job['env'])
    if job['fsize']:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job['fsize'], job['fsize']))
    sys.argv = job['argv']
    sys.path[:0] = [*job['path'], job['folder']]
    code = 0
    try:
        runpy.run_path(job['argv'][0], run_name='__main__')
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
        if not isinstance(e.code, (int, type(None))):
            print(e.code, file=sys.stderr)
    except BaseException as e:
        traceback.print_exc()
        code = 130 if isinstance(e, KeyboardInterrupt) else 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)              # to take the interpreter down properly costs half a second
print('ready', flush=True)
for text in sys.stdin:
    job = json.loads(text)
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pid = os.fork()
        if pid == 0:
            go(job)
        for name, value in (('pid', pid), ('rc', None)):
            if value is None:
                value = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with open(job[name] + '.tmp', 'w') as f:
                f.write(str(value))
            os.rename(job[name] + '.tmp', job[name])
        os._exit(0)
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

    def __init__(self, toy, argv, folder, env, fsize, path):
        self.base = toy.scratch / f'job{len(toy.jobs)}'
        toy.jobs.append(self)
        self.argv = [str(a) for a in argv]
        names = {name: f'{self.base}.{name}' for name in ('out', 'err', 'pid', 'rc')}
        job = {**names, 'argv': self.argv, 'folder': str(folder), 'fsize': fsize,
               'env': {key: str(value) for key, value in env.items()},
               'path': [str(p) for p in path]}
        toy.server.stdin.write(json.dumps(job) + '\n')
        toy.server.stdin.flush()

    def text(self, name):
        path = pathlib.Path(f'{self.base}.{name}')
        return path.read_text() if path.exists() else ''

    out = property(lambda self: self.text('out'))
    err = property(lambda self: self.text('err'))
    ended = property(lambda self: bool(self.text('rc')))

    def send(self, number, group=False):
        """Sends a signal, unless the process has ended; to its children too, as Ctrl-C does."""
        pid = int(until(lambda: self.text('pid'), 10, "a process"))
        with contextlib.suppress(ProcessLookupError):
            if not self.ended:
                (os.killpg if group else os.kill)(pid, number)
        return self

    def wait(self, seconds=60):
        """The exit code, negative for a signal."""
        try:
            return int(until(lambda: self.text('rc'), seconds, f"the end of {self.argv}"))
        except AssertionError:
            self.send(signal.SIGKILL)
            raise

    def good(self):
        """Waits; asserts that all went well."""
        assert self.wait() == 0, f"{self.argv}\n{self.out[-2000:]}\n{self.err[-4000:]}"
        return self

    def refused(self, *words):
        """Waits; asserts the one clear line that a user's mistake ends with."""
        code, lines = self.wait(), self.err.strip().splitlines()
        assert code == 1 and len(lines) == 1 and lines[0].startswith('error: '), \
            f"{self.argv} ended with {code}:\n{self.err}"
        assert len(lines[0]) < 1000 and all(word in lines[0] for word in words), \
            f"{words} not all in: {lines[0]}"
        return self


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
'''
SMALL = '''n_layer = 1
n_head = 2
n_embd = 16
batch_size = 32
max_iters = 10
eval_interval = 10
warmup_iters = 2
device = 'cpu'
'''


class Toy:
    """A copy of the repository with prepared data, tiny models, and a server of processes."""

    def __init__(self, scratch):
        self.scratch, self.jobs, self.repo, self.count = scratch, [], scratch / 'repo', 0
        env = {key: value for key, value in os.environ.items() if not key.startswith('WANDB')}
        self.server = subprocess.Popen([sys.executable, '-c', SERVER], text=True, env={
            **env, 'OMP_NUM_THREADS': '1'}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.server.stdout.readline() == 'ready\n'
        shutil.copytree(HERE, self.repo, ignore=shutil.ignore_patterns(
            '.*', 'venv', 'out*', '*.bin', 'meta.json', '__pycache__', 'wandb'))   # .venv: GBs
        (self.repo / 'config/toy.py').write_text(TOY)
        for name in ('generator_toy', 'judge_toy'):
            (self.repo / f'config/{name}.py').write_text(SMALL)
        self.run('data/arithmetic/prepare.py').good()
        for script, *flags in (('model', '--out=toy/generator.pt'),
                               ('model', '--out=toy/causal.pt', '--mode=causal'),
                               ('judge', '--out=toy/judge.pt')):
            self.run(f'{script}.py', 'config/judge_toy.py', *flags).good()

    def run(self, *argv, folder=None, fsize=0, path=(), **env):
        return Job(self, argv, folder or self.repo, env, fsize, path)

    def new(self, name='run'):
        """A fresh folder's name."""
        self.count += 1
        return self.scratch / f'{name}{self.count}'

    def train(self, out, *flags, **how):
        return self.run('train_grpo.py', 'config/toy.py', f'--out_dir={out}', *flags, **how)

    def ranks(self, out, *flags, world=2, **how):
        """The same on several ranks, as torchrun would start it."""
        with socket.socket() as s:
            s.bind(('127.0.0.1', 0))
            port = s.getsockname()[1]
        return [self.train(out, *flags, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world,
                           MASTER_ADDR='127.0.0.1', MASTER_PORT=port, **how)
                for rank in range(world)]

    def config(self, text):
        """A config file with this text."""
        path = self.new('config').with_suffix('.py')
        path.write_text(text)
        return path

    def close(self):
        for job in self.jobs:
            if not job.ended:
                job.send(signal.SIGKILL, group=True)
        self.server.stdin.close()
        self.server.wait()


@pytest.fixture(scope='module')
def toy(tmp_path_factory):
    toy = Toy(tmp_path_factory.mktemp('system'))
    yield toy
    toy.close()


def checkpoint(out, name='ckpt.pt'):
    return torch.load(f'{out}/{name}', weights_only=True)


def log_lines(out):
    """The log without times."""
    with open(f'{out}/log.jsonl') as f:
        lines = [json.loads(text) for text in f]
    return [{key: value for key, value in line.items()
             if not key.startswith('ms_') and key != 'completions_per_s'} for line in lines]


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
    return {key: bits(value) for key, value in checkpoint(out, name).items() if key != 'config'}


def weights_differ(a, b):
    """The largest difference between the weights of two runs."""
    a, b = (checkpoint(out)['model'] for out in (a, b))
    return max((a[key].double() - b[key].double()).abs().max().item() for key in a)


def files(folder):
    """Every file below a folder, with its bytes; caches of Python aside."""
    return {str(path.relative_to(folder)): path.read_bytes()
            for path in pathlib.Path(folder).rglob('*')
            if path.is_file() and '__pycache__' not in path.parts}


VARIANTS = {
    'fill': ['--gradient_accumulation_steps=2', '--kl_beta=0'],
    'causal': ['--mode=causal', '--blank_kind=suffix', '--generator_checkpoint=toy/causal.pt',
               '--inner_updates=2', '--mini_batches=2', '--gradient_accumulation_steps=2',
               '--target_kl=0.001', '--adv_norm=std', '--top_p=0.9']}


def killed_at(job, out, line, delay=0.0):
    """Sends SIGKILL when the log holds so many lines, and a moment later."""
    log = pathlib.Path(out) / 'log.jsonl'
    until(lambda: job.ended or log.exists() and log.read_text().count('\n') >= line, 60, "the log")
    time.sleep(delay)
    return job.send(signal.SIGKILL).wait()


# ------------------------------------------------------------------------------------------------
# exact resume

def straight_or_not(toy, flags, steps, first, lines):
    """A run in one piece, in two, and killed at log lines; asserts that nobody can tell."""
    knobs = [*flags, f'--lr_decay_iters={steps}', f'--max_iters={steps}']
    straight, two, killed = toy.new(), toy.new(), toy.new()
    jobs = [toy.train(straight, *knobs), toy.train(two, *knobs[:-1], f'--max_iters={first}')]
    jobs[0].good(), jobs[1].good()
    assert checkpoint(two)['step'] == first
    toy.train(two, *knobs, '--resume=True').good()
    for i, line in enumerate(lines):
        code = killed_at(toy.train(killed, *knobs, f'--resume={i > 0}'), killed, line,
                         random.random() * 0.02)
        assert code in (-signal.SIGKILL, 0)
    toy.train(killed, *knobs, '--resume=True').good()
    for out in (two, killed):
        assert state(out) == state(straight)
        assert state(out, 'best.pt') == state(straight, 'best.pt')
        assert log_lines(out) == log_lines(straight)
    seen = [(line['step'], 'loss' in line) for line in log_lines(straight)]
    assert seen == [(step, kind) for step in range(steps + 1) for kind in (False, True)
                    if (step % 4 == 0 and not kind) or (kind and step < steps)]


@pytest.mark.parametrize('variant', VARIANTS)
def test_a_run_in_two_pieces_and_one_that_was_killed_end_like_one_in_one_piece(toy, variant):
    straight_or_not(toy, VARIANTS[variant], 12, 5, [random.randint(8, 9), random.randint(8, 14)])


@long
@pytest.mark.parametrize('variant', VARIANTS)
def test_long_thirty_steps_are_ten_and_twenty_are_any_three_pieces_after_kills(toy, variant):
    for trial in range(5):
        moments = sorted(random.sample(range(8, 37), 2))
        straight_or_not(toy, VARIANTS[variant], 32, 10, moments)
        print(f"\n{variant}: 32 steps = 10 + 22 = killed at log lines {moments}: bit-identical")


def killed_often(toy, kills):
    """SIGKILL at random moments of a run that saves at every step; every newest checkpoint
    must load and be of a step that the log has reached. Returns how far the run got."""
    out = toy.new()
    steps, knobs = [], ['--save_interval=1', '--max_iters=100000', '--lr_decay_iters=100000']
    for i in range(kills):
        job = toy.train(out, *knobs, f'--resume={i > 0}')
        before, path = checkpoint(out)['step'] if i else 0, out / 'ckpt.pt'
        old = path.stat().st_mtime_ns if i else 0
        until(lambda: job.ended or 'step ' in job.out.split('checks')[-1], 60, "the loop")
        until(lambda: job.ended or i and i % 2 == 0 or path.exists() and old <
              path.stat().st_mtime_ns, 60, "a new checkpoint")      # every second run gets further
        time.sleep(random.random() * 0.3)
        assert job.send(signal.SIGKILL).wait() == -signal.SIGKILL, job.err
        found = checkpoint(out)                                     # raises if it is not whole
        assert before <= found['step'] <= log_lines_torn(out)[-1]['step'] + 1
        assert all(p.isfinite().all() for p in found['model'].values())
        steps.append(found['step'])
    assert steps == sorted(steps) and len(set(steps)) > kills // 2
    toy.train(out, *knobs[:1], f'--max_iters={steps[-1] + 2}', knobs[-1], '--resume=True').good()
    assert sorted(p.name for p in out.iterdir()) == ['best.pt', 'ckpt.pt', 'config.json',
                                                      'log.jsonl']
    return steps


def log_lines_torn(out):
    """The whole lines of a log whose last one may be torn."""
    text = (pathlib.Path(out) / 'log.jsonl').read_text()
    return [json.loads(line) for line in text[:text.rfind('\n') + 1].splitlines()]


def test_after_sigkill_at_random_moments_the_newest_checkpoint_loads(toy):
    killed_often(toy, 4)


@long
def test_long_after_sigkill_at_forty_random_moments_the_newest_checkpoint_loads(toy):
    steps = killed_often(toy, 40)
    print(f"\n40 kills, 40 newest checkpoints loaded; the run got to step {steps[-1]}")


def test_two_runs_of_one_command_are_equal_and_looking_saving_or_logging_changes_nothing(toy):
    outs = [toy.new() for _ in range(4)]
    jobs = [toy.train(outs[0]), toy.train(outs[1]),
            toy.train(outs[2], '--eval_interval=0', '--save_interval=0', '--log_interval=100'),
            toy.train(outs[3], '--eval_interval=1', '--save_interval=1', '--sample_interval=1',
                      '--eval_prompts=7', '--judge_batch_size=0')]
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
    before, chosen = torch.get_float32_matmul_precision(), []
    for slow in ('highest', 'medium'):
        now = [0.0]

        def clock():
            now[0] += 1.0 if torch.get_float32_matmul_precision() == slow else 0.01
            return now[0]
        monkeypatch.setattr(time, 'perf_counter', clock)
        quick_products()
        chosen.append(torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision(before)
    assert chosen[0] == chosen[1]


# ------------------------------------------------------------------------------------------------
# ranks and micro-steps

RECORD = '''
import json, os
def record(prompts, completions):
    with open(os.environ['RECORD'] + os.environ.get('RANK', '0'), 'a') as f:
        f.write(json.dumps([prompts, completions]) + '\\n')
    return [float(sum(map(int, filter(str.isdecimal, c)))) / 100 for c in completions]
rewards = {'judge': 1.0, 'record': 0.5}
'''


def spread(toy, flags):
    """5 steps of 8 micro-steps as 1 process x 8, 1 x 1 of eight times the batch, 2 ranks x 4;
    returns their folders after asserting that all took the same completions."""
    outs, record = [toy.new() for _ in range(3)], toy.config(RECORD)
    flags = [record, '--max_iters=5', '--eval_interval=0', '--kl_beta=0.1', *flags]
    small, large = [['--batch_size=3', '--gradient_accumulation_steps=8'],
                    ['--batch_size=24', '--gradient_accumulation_steps=1']]
    jobs = [toy.train(outs[0], *flags, *small, RECORD=f'{outs[0]}-'),
            toy.train(outs[1], *flags, *large, RECORD=f'{outs[1]}-'),
            *toy.ranks(outs[2], *flags, *small, RECORD=f'{outs[2]}-')]
    for job in jobs:
        job.good()
    seen = []
    for out, ranks in zip(outs, ('0', '0', '01')):
        calls = [[json.loads(text) for text in open(f'{out}-{rank}')][1:] for rank in ranks]
        calls = [pair for turn in zip(*calls) for pair in turn]     # the first was a check
        prompts, completions = ([text for call in calls for text in call[i]] for i in (0, 1))
        seen.append(list(zip(prompts, completions)))
    assert len(seen[0]) == 5 * 24 * 4 and seen[0] == seen[1] == seen[2]
    blanks = [prompt.count('_') for prompt, _ in seen[0]]
    halves = [sum(blanks[i] for i in range(96) if i // 12 % 2 == rank) for rank in (0, 1)]
    assert len(set(blanks)) > 3 and halves[0] != halves[1]
    return outs


@pytest.mark.parametrize('adv_norm', ['none', 'std', 'batch', 'rloo'])
def test_micro_steps_and_ranks_are_only_another_way_to_compute_the_same_step(toy, adv_norm):
    # AdamW and Muon turn last bits of small gradients into steps of up to the learning rate: after
    # 5 steps float32 agrees to 3e-6 at a rate of 1e-5, 6e-4 at 1e-3; float64 to 1e-14 at any
    for dtype, rate in (('float64', 1e-3), ('float32', 1e-5)):
        outs = spread(toy, [f'--adv_norm={adv_norm}', f'--dtype={dtype}', '--min_lr=1e-6',
                            f'--learning_rate={rate}'])
        for out in outs[1:]:
            assert weights_differ(outs[0], out) < (1e-9 if dtype == 'float64' else 3e-6)
            for one, other in zip(log_lines(outs[0]), log_lines(out)):
                for key, value in one.items():
                    assert value == pytest.approx(other[key], rel=1e-4, abs=1e-5), key


def test_two_ranks_make_what_is_missing_once_and_only_rank_0_speaks_and_writes(toy):
    folder, out = toy.new('clone'), toy.new()
    shutil.copytree(toy.repo, folder, ignore=shutil.ignore_patterns('*.bin', 'meta.json', 'toy'))
    flags = ['--generator_checkpoint=', '--generator_recipe=config/generator_toy.py',
             '--judge_checkpoint=', '--judge_recipe=config/judge_toy.py', '--max_iters=3',
             '--gradient_accumulation_steps=2']
    first, second = toy.ranks(out, *flags, folder=folder)
    first.good(), second.good()
    made = [line for line in first.out.splitlines() if line.startswith('$')]
    assert [line.split()[2] for line in made] == ['data/arithmetic/prepare.py', 'model.py',
                                                  'judge.py']
    assert second.out == '' and 'Traceback' not in first.err + second.err
    assert [line['step'] for line in log_lines(out) if 'loss' in line] == [0, 1, 2]
    before = files(folder)
    again = toy.train(out, *flags, folder=folder).good()            # and what was made is kept
    assert '$' not in again.out and files(folder) == before


LATE = """
import json, os, time
_dumps = json.dumps
def _slowly(*args):             # a long while between the end of a step and the next
    time.sleep(0.2)
    return _dumps(*args)
json.dumps = _slowly
"""


def test_a_signal_to_any_rank_at_any_moment_stops_all_ranks_after_the_same_step(toy):
    for targets in ((0,), (1,), (0, 1)):
        out = toy.new()
        jobs = toy.ranks(out, toy.config(LATE), '--max_iters=500', '--eval_interval=0',
                         '--gradient_accumulation_steps=2')
        until(lambda: (out / 'log.jsonl').exists() and len(log_lines_torn(out)) > 1, 30, "a step")
        time.sleep(random.random() * 0.2)
        for rank in targets:
            jobs[rank].send(signal.SIGTERM)
        assert [job.wait() for job in jobs] == [143, 143], jobs[0].err + jobs[1].err
        assert [line['step'] for line in log_lines(out)] == list(range(checkpoint(out)['step']))
        assert jobs[0].out.splitlines()[-1].endswith('--resume=True')


def torchrun(toy, *argv, folder=None):
    env = {key: value for key, value in os.environ.items() if 'RANK' not in key}
    return subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone',
                           '--nproc_per_node=2', 'train_grpo.py', *map(str, argv)],
                          cwd=folder or toy.repo, env={**env, 'OMP_NUM_THREADS': '1'},
                          capture_output=True, text=True, timeout=120)


def test_torchrun_with_two_ranks_runs_to_the_end(toy):
    alone, out = toy.new(), toy.new()
    toy.train(alone, '--gradient_accumulation_steps=2').good()
    done = torchrun(toy, 'config/toy.py', '--gradient_accumulation_steps=2', f'--out_dir={out}')
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('held-out verify') == 1 and 'Traceback' not in done.stderr
    assert len(log_lines(out)) == len(log_lines(alone)) == 12 + 4
    assert log_lines(out)[1] == pytest.approx(log_lines(alone)[1], rel=1e-4, abs=1e-6)


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
    out, flags = toy.new(), ['--gradient_accumulation_steps=2', '--save_interval=1']
    jobs = toy.ranks(out, toy.config(FRAGILE), '--eval_interval=0', *flags)
    jobs[1].refused(GONE)
    assert jobs[0].wait(20) == 1
    assert checkpoint(out)['step'] == 1 and [line['step'] for line in log_lines(out)] == [0]


@long
def test_long_if_a_rank_fails_torchrun_ends_with_its_error(toy):
    began, out = time.time(), toy.new()
    done = torchrun(toy, 'config/toy.py', toy.config(FRAGILE), '--gradient_accumulation_steps=2',
                    '--eval_interval=0', f'--out_dir={out}')
    print(f"\ntorchrun ended {time.time() - began:.0f} s after its start")
    assert done.returncode != 0 and GONE in done.stderr and time.time() - began < 60


# ------------------------------------------------------------------------------------------------
# signals

SAVES = """
import time, torch
_save, _calls = torch.save, []
def _broken(content, file):
    _calls.append(file)
    if len(_calls) < {at}:
        return _save(content, file)
    file.write(b'half of a checkpoint')
    file.flush()
    {what}
torch.save = _broken
"""
SLEEP = 'time.sleep(30)'
FOREVER = ['--max_iters=100000', '--lr_decay_iters=100000', '--eval_interval=0']
SLOW = """
import time
def slow(prompts, completions):
    slow.calls += 1
    time.sleep(30 if slow.calls == 6 else 0)            # in step 4
    return [0.0] * len(prompts)
slow.calls = 0
rewards = {'judge': 1.0, 'slow': 1.0}
"""


def lines_of(job, out, n, seconds=30):
    """Waits until a run has written so many lines of its log."""
    until(lambda: job.ended or (out / 'log.jsonl').exists() and len(log_lines_torn(out)) >= n,
          seconds, f"{n} lines of the log\n{job.err}")


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_step_end_saves_and_ends_with_the_command_to_resume(toy, number):
    out = toy.new('a run of ')                      # a name that a shell would tear apart
    job = toy.train(out, *FOREVER, '--save_interval=0', "--rewards={'judge': 1.0, 'length': 0.1}")
    lines_of(job, out, 3)
    assert job.send(number).wait() == 128 + number, job.err
    assert job.err == '' and checkpoint(out)['step'] == len(log_lines(out)) >= 3
    last = job.out.splitlines()[-1]
    command = shlex.split(last[last.index('python '):])
    assert command[0] == 'python' and '--resume=True' in command
    steps = checkpoint(out)['step'] + 2
    toy.run(*command[1:], f'--max_iters={steps}').good()
    assert [line['step'] for line in log_lines(out)] == list(range(steps))


def test_a_second_signal_stops_at_once_and_leaves_the_previous_checkpoint_whole(toy):
    for config in (SLOW, SAVES.format(at=3, what=SLEEP)):
        out = toy.new()
        job = toy.train(out, toy.config(config), *FOREVER, '--save_interval=1')
        lines_of(job, out, 3)
        until(lambda: checkpoint(out)['step'] == (4 if config is SLOW else 2), 10, "checkpoints")
        time.sleep(0.1)                             # now it sleeps: in a step, or in a save
        before = files(out)
        began = time.time()
        job.send(signal.SIGTERM)
        until(lambda: 'once more' in job.out or time.time() > began + 0.3, 1, "the first")
        assert job.send(signal.SIGINT).wait(10) == 130 and time.time() - began < 5
        after = files(out)
        assert after['ckpt.pt'] == before['ckpt.pt'] and 'ckpt.pt.tmp' not in after
        assert 'Traceback' not in job.err


@pytest.mark.parametrize('script', ['model', 'judge'])
def test_a_generator_or_judge_that_is_interrupted_writes_nothing_and_says_how_to_go_on(toy, script):
    for number in (signal.SIGINT, signal.SIGTERM):
        out = toy.new().with_suffix('.pt')
        job = toy.run(f'{script}.py', f'config/{script.replace("model", "generator")}_toy.py',
                      '--max_iters=100000', f'--out={out}')
        until(lambda: job.ended or 'step ' in job.out, 30, "a step")
        assert job.send(number).wait() == 128 + number
        assert f'python {script}.py config/' in job.out.splitlines()[-1] and job.err == ''
        assert not out.exists() and not list(out.parent.glob(f'{out.name}*'))


def test_interrupted_in_the_save_a_generator_is_not_written_by_half(toy):
    for number, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        out, config = toy.new().with_suffix('.pt'), toy.config(SAVES.format(at=1, what=SLEEP))
        job = toy.run('model.py', 'config/generator_toy.py', config, f'--out={out}')
        until(lambda: job.ended or list(out.parent.glob(f'{out.name}*')), 30, "the save")
        assert job.send(number).wait() == code and not out.exists()
        assert code < 0 or not list(out.parent.glob(f'{out.name}*'))


def test_interrupted_while_it_trains_its_generator_grpo_takes_it_down_and_says_so(toy):
    jobs = [toy.train(toy.new(), '--generator_checkpoint=', f'--generator_recipe='
                      f'config/generator_toy.py --max_iters={n}000000') for n in (1, 2)]
    for job, number, group in zip(jobs, (signal.SIGINT, signal.SIGTERM), (True, False)):
        until(lambda: job.ended or 'step ' in job.out, 30, "a step of the generator")
        assert job.send(number, group).wait() == 128 + number
        length = len(job.out)
        assert 'python train_grpo.py config/toy.py' in job.out.splitlines()[-1]
        assert 'Traceback' not in job.err
        time.sleep(0.3)
        assert len(job.out) == length               # nobody goes on behind our back
        assert not list((toy.repo / 'out').glob('*000000*'))


def test_ctrl_c_while_everything_is_set_up_is_no_traceback_either(toy):
    for _ in range(4):
        job = toy.train(toy.new(), *FOREVER)
        until(lambda: job.ended or 'overrides' in job.out, 30, "its knobs")
        time.sleep(random.random() * 0.15)
        assert job.send(signal.SIGINT).wait() == 130 and job.err == ''
        assert 'python train_grpo.py config/toy.py' in job.out.splitlines()[-1]


# ------------------------------------------------------------------------------------------------
# not a number

@pytest.mark.parametrize('value', ['nan', 'inf'])
def test_a_reward_that_is_not_finite_stops_the_run_by_name_and_spares_the_checkpoint(toy, value):
    whole, out = toy.new(), toy.new()
    config = toy.config(f"""
def moody(prompts, completions):
    moody.calls += 1
    values = [c.count('1') / 10 for c in completions]
    if moody.calls == 6:                                # in step 4
        values[9] = float('{value}')
        print('CULPRIT', prompts[9])
    return values
moody.calls = 0
rewards = {{'judge': 1.0, 'moody': 1.0}}
""")
    flags = [config, '--eval_interval=0', '--save_interval=1']
    toy.train(whole, *flags, '--max_iters=4').good()
    job = toy.train(out, *flags).refused('step 4', 'moody')
    prompt = job.out.split('CULPRIT ')[1].split('\n')[0]
    assert prompt in job.err
    assert state(out) == state(whole) and log_lines(out) == log_lines(whole)
    (batch,) = out.glob('nonfinite*')
    assert f"{batch.name}" in job.err
    assert torch.load(batch, weights_only=True)['step'] == 4


def test_a_judge_or_policy_that_is_not_finite_is_named_and_nothing_is_saved(toy):
    for name, flag, word in (('judge', '--judge_checkpoint', 'judge'),
                             ('generator', '--generator_checkpoint', 'policy')):
        path, out = toy.new().with_suffix('.pt'), toy.new()
        ckpt = torch.load(toy.repo / f'toy/{name}.pt', weights_only=True)
        next(iter(ckpt['model'].values())).fill_(float('nan'))
        torch.save(ckpt, path)
        job = toy.train(out, f'{flag}={path}', '--save_interval=1', '--eval_interval=0')
        job.refused('step 0', word, 'prompt', '_')
        assert not (out / 'ckpt.pt').exists() and list(out.glob('nonfinite*'))
        assert log_lines(out) == []


RUIN = """
import torch
_step, _calls = torch.optim.AdamW.step, []
def _ruin(self, *args, **kwargs):           # the third update leaves a weight infinite
    _step(self, *args, **kwargs)
    _calls.append(1)
    if len(_calls) == 3:
        self.param_groups[0]['params'][0].data[0] = float('inf')
torch.optim.AdamW.step = _ruin
"""


def test_a_policy_that_is_destroyed_while_it_learns_is_never_saved(toy):
    every = ['--save_interval=1', '--eval_interval=1']
    out = toy.new()
    toy.train(out, toy.config(RUIN), *every).refused('step 3', 'not finite')
    assert checkpoint(out)['step'] == 2
    for rate in ('1e20', '1e29'):
        wild = toy.new()
        toy.train(wild, f'--learning_rate={rate}', *every, '--kl_beta=0').refused('step')
        for path in [*wild.glob('ckpt.pt'), *wild.glob('best.pt')]:
            model = checkpoint(wild, path.name)['model']
            assert all(p.isfinite().all() for p in model.values())


def test_a_nan_on_one_rank_stops_both_and_names_its_prompt(toy):
    config = toy.config("""
import os
def moody(prompts, completions):
    moody.calls += 1
    bad = moody.calls == 4 and os.environ.get('RANK') == '1'
    return [float('nan') if bad else c.count('1') / 10 for c in completions]
moody.calls = 0
rewards = {'judge': 1.0, 'moody': 1.0}
""")
    out = toy.new()
    jobs = toy.ranks(out, config, '--eval_interval=0', '--gradient_accumulation_steps=2')
    assert [job.wait() for job in jobs] == [1, 1]
    assert 'step 2' in jobs[1].err and 'moody' in jobs[1].err and '_' in jobs[1].err
    assert 'step 2' in jobs[0].err and 'moody' in jobs[0].err
    assert not (out / 'ckpt.pt').exists()


# ------------------------------------------------------------------------------------------------
# checkpoints and logs that were damaged, changed, or could not be written

@pytest.fixture(scope='module')
def stopped(toy):
    """The folder of a run that was stopped at step 6 of 12; tests take copies."""
    out = toy.new()
    toy.train(out, '--max_iters=6').good()
    return out


def test_a_checkpoint_cut_off_anywhere_is_refused_with_a_sentence(toy, stopped):
    whole, jobs = (stopped / 'ckpt.pt').read_bytes(), []
    for i in range(20):
        out = toy.new()
        shutil.copytree(stopped, out)
        (out / 'ckpt.pt').write_bytes(whole[:len(whole) * i // 20 + (i == 19) * len(whole) // 21])
        jobs.append(toy.train(out, '--resume=True'))
        if i % 2:
            for job in jobs[-2:]:
                job.refused('ckpt.pt', 'damaged', 'python train_grpo.py')
    cut = toy.new().with_suffix('.pt')
    for name, flag in (('generator', 'generator_checkpoint'), ('judge', 'judge_checkpoint'),
                       ('generator', 'reference_checkpoint')):
        cut.write_bytes((toy.repo / f'toy/{name}.pt').read_bytes()[:-100])
        toy.train(toy.new(), f'--{flag}={cut}').refused(cut.name, 'damaged')


def test_a_checkpoint_that_would_run_code_is_refused_and_runs_nothing(toy, stopped):
    trap, trace = toy.new().with_suffix('.pt'), toy.new('trace')

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(trace),)
    ckpt = checkpoint(stopped)
    torch.save({**ckpt, 'kind': 'generator', 'config': Trap()}, trap)
    out = toy.new()
    shutil.copytree(stopped, out)
    shutil.copy(trap, out / 'ckpt.pt')
    for job in (toy.train(out, '--resume=True'),
                toy.train(toy.new(), f'--generator_checkpoint={trap}'),
                toy.train(toy.new(), f'--judge_checkpoint={trap}'),
                toy.train(toy.new(), f'--reference_checkpoint={trap}')):
        job.refused('more than tensors and plain values')
    assert not trace.exists()
    with contextlib.suppress(Exception):
        torch.load(trap, weights_only=False)
    assert trace.exists()                           # the trap was a trap


def test_a_log_with_a_torn_last_line_is_continued_without_gap_or_repeat(toy, stopped):
    whole = toy.new()
    toy.train(whole).good()
    for torn in ('{"step": 6, "loss": 0.1', '{"step": 6, "loss": 0.1, "ms_learn": 3.0}\n{"st',
                 '\x00\x00\x00\n[1, 2]\n'):
        out = toy.new()
        shutil.copytree(stopped, out)
        with open(out / 'log.jsonl', 'a') as f:
            f.write(torn)
        toy.train(out, '--resume=True').good()
        again = [line for line in log_lines(out) if line['step'] != 6 or 'loss' in line]
        assert again == log_lines(whole)            # step 6 was the end once, and was evaluated


def test_resuming_refuses_knobs_that_change_the_maths_and_accepts_harmless_ones(toy, stopped):
    before = files(stopped)
    job = toy.train(stopped, '--resume=True', '--kl_beta=0.3', '--adv_norm=std')
    job.refused("kl_beta 0.05 -> 0.3", "adv_norm 'none' -> 'std'")
    assert 'eval_prompts' not in job.err
    for flag in ('--temperature=0.5', '--seed=2', '--batch_size=8', '--learning_rate=2e-3',
                 '--lr_decay_iters=20', "--rewards={'verify': 1}",
                 '--dtype=float64', '--gradient_accumulation_steps=2'):
        toy.train(stopped, '--resume=True', flag).refused(flag[2:].split('=')[0], '->')
    assert files(stopped) == before
    plain = toy.new()
    toy.train(plain, '--lr_decay_iters=0', '--max_iters=6').good()
    toy.train(plain, '--lr_decay_iters=0', '--resume=True').refused('max_iters 6 -> 12')
    out, moved = toy.new(), toy.new()
    toy.train(out).good()
    shutil.copytree(stopped, moved)
    toy.train(moved, '--resume=True', '--eval_interval=3', '--eval_prompts=8', '--log_interval=2',
              '--save_interval=0', '--sample_interval=3', '--judge_batch_size=3').good()
    for key in ('model', 'optimizers', 'step'):
        assert state(moved)[key] == state(out)[key]
    toy.train(moved, '--resume=True').good()                        # done is done
    assert state(moved)['model'] == state(out)['model']
    toy.train(moved, '--resume=True', '--max_iters=8').refused('12', '8')


def test_resuming_refuses_a_judge_that_was_trained_anew_under_the_old_name(toy, stopped):
    path, out = toy.repo / 'toy/other_judge.pt', toy.new()
    old = torch.load(toy.repo / 'toy/judge.pt', weights_only=True)
    torch.save(old, path)
    toy.train(out, f'--judge_checkpoint={path}').good()
    toy.train(out, f'--judge_checkpoint={path}', '--resume=True').good()
    name = next(iter(old['model']))
    old['model'][name][0, 0] += 1e-6                # the smallest of changes
    torch.save(old, path)
    job = toy.train(out, f'--judge_checkpoint={path}', '--resume=True')
    job.refused('reference_and_judge', '->')


def test_a_full_disk_ends_a_run_with_a_line_and_the_previous_checkpoint_survives(toy, stopped):
    full = toy.config(SAVES.format(at=2, what='raise OSError(28, "No space left on device")'))
    size = (stopped / 'best.pt').stat().st_size + 4000
    assert size < (stopped / 'ckpt.pt').stat().st_size
    for how in ([full], []):
        out = toy.new()
        shutil.copytree(stopped, out)
        before = files(out)
        toy.train(out, *how, '--resume=True', '--eval_interval=0', '--save_interval=1',
                  fsize=0 if how else size).refused('ckpt.pt', 'cannot write')
        after = files(out)
        if not how:
            assert after['ckpt.pt'] == before['ckpt.pt']
        assert checkpoint(out)['step'] == (7 if how else 6) and 'ckpt.pt.tmp' not in after
        toy.train(out, '--resume=True', '--eval_interval=0').good()
        assert checkpoint(out)['step'] == 12
    out = toy.new()                                 # full while it writes a line of the log
    toy.train(out, '--eval_interval=0', '--save_interval=0', fsize=3000).refused('log.jsonl')


def test_killed_in_the_middle_of_a_save_the_checkpoint_before_is_whole(toy, stopped):
    out = toy.new()
    shutil.copytree(stopped, out)
    before = files(out)
    job = toy.train(out, toy.config(SAVES.format(at=1, what=SLEEP)), '--resume=True',
                    '--save_interval=1', '--eval_interval=0')
    until(lambda: job.ended or (out / 'ckpt.pt.tmp').exists(), 30, "the save")
    assert job.send(signal.SIGKILL).wait() == -signal.SIGKILL
    assert (out / 'ckpt.pt').read_bytes() == before['ckpt.pt']
    toy.train(out, '--resume=True').good()
    assert not (out / 'ckpt.pt.tmp').exists() and checkpoint(out)['step'] == 12


def test_data_of_another_corpus_is_named_before_anything_is_computed(toy, stopped):
    folder, out = toy.new('clone'), toy.new()
    shutil.copytree(toy.repo, folder)
    shutil.copytree(stopped, out)
    path = folder / 'data/arithmetic/meta.json'
    meta = json.loads(path.read_text())
    path.write_text(json.dumps({**meta, 'chars': meta['chars'] + 'abc'}))
    for flags, words in (([], ['generator.pt', 'arithmetic-']),
                         (['--resume=True'], ['generator.pt', 'arithmetic-'])):
        toy.train(out, *flags, folder=folder).refused(*words)
    (folder / 'data/docstrings').mkdir(exist_ok=True)
    path.write_text(json.dumps({**meta, 'train': {**meta['train'], 'tokens': 12345}}))
    toy.run('model.py', 'config/generator_toy.py', '--out=x.pt', folder=folder).refused(
        'train.bin', 'prepare.py')
    path.write_text('{"tokenizer": "char", ')
    toy.run('judge.py', 'config/judge_toy.py', '--out=x.pt', folder=folder).refused('prepare.py')
    path.write_text(json.dumps(meta))
    (folder / 'data/arithmetic/train.bin').unlink()
    toy.train(out, folder=folder).refused('train.bin', 'prepare.py')
    assert not (folder / 'x.pt').exists()


# ------------------------------------------------------------------------------------------------
# wandb

WANDB = {'missing': "raise ImportError('no module named wandb')",
         'silent failure': "Settings = dict\ndef init(**_): raise RuntimeError()",
         'breaks later': """
Settings = dict
class init:
    def __init__(self, **_): self.count = 0
    def log(self, line, **_):
        self.count += 1
        if self.count > 3: raise ConnectionError('the network is gone')
    def finish(self): raise ConnectionError('the network is gone')
""", 'works': """
Settings = dict
import json
class init:
    def __init__(self, **knobs): print('INIT', sorted(knobs['config']) != [])
    def log(self, line, step): print('WANDB', step, json.dumps(line))
    def finish(self): pass
"""}


def test_wandb_absent_failing_or_fine_changes_nothing_but_a_warning_line(toy):
    plain, jobs = toy.new(), {}
    first = toy.train(plain)
    for name, text in WANDB.items():
        path, out = toy.new('wandb'), toy.new()
        path.mkdir()
        (path / 'wandb.py').write_text(text)
        jobs[name] = out, toy.train(out, '--wandb_log=True', path=[path])
    first.good()
    for name, (out, job) in jobs.items():
        job.good()
        assert state(out) == state(plain) and log_lines(out) == log_lines(plain), name
        warnings = [line for line in job.out.splitlines() if line.startswith('warning: ')]
        assert len(warnings) == (name != 'works') and job.err == '', name
        assert all('wandb' in line and 'log.jsonl' in line for line in warnings)
        told = [json.loads(line.split(' ', 2)[2]) for line in job.out.splitlines()
                if line.startswith('WANDB')]
        with open(out / 'log.jsonl') as f:
            assert name != 'works' or told == [json.loads(line) for line in f]


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


# ------------------------------------------------------------------------------------------------
# bad input

FUNCTIONS = """
def raises(prompts, completions): return [1 / 0]
def short(prompts, completions): return [1.0]
def words(prompts, completions): return ['much'] * len(prompts)
def none(prompt, original): return False
"""
BAD = [     # flags, and what the one line must contain
    (['--grop_size=4'], ["'grop_size'", "'group_size'"]),
    (['config/typo.py'], ['config/typo.py', "'grop_size'", "'group_size'"]),
    (['config/wrong.py'], ['config/wrong.py', 'learning_rate', 'str', 'float']),
    (['config/raises.py'], ['config/raises.py', 'ZeroDivisionError']),
    (['config/syntax.py'], ['config/syntax.py', 'line 2']),
    (['config/missing.py'], ['config/missing.py', 'config/toy.py']),
    (['--group_size=4.5'], ['group_size', 'float', 'int']),
    (['--group_size=many'], ['group_size', "'many'"]),
    (['--group_size=True'], ['group_size', 'bool', 'int']),
    (['--learning_rate=fast'], ['learning_rate', "'fast'", 'float']),
    (['--resume=1'], ['resume', 'int', 'bool']),
    (['--group_size'], ['--group_size', '16']),
    (['--group_size=1'], ['group_size = 1']),
    (['--group_size=0'], ['group_size = 0']),
    (['--dataset=nope'], ["'nope'", 'arithmetic']),
    (['--generator_checkpoint=nope.pt'], ['nope.pt', 'python model.py']),
    (['--judge_checkpoint=nope.pt'], ['nope.pt', 'python judge.py']),
    (['--reference_checkpoint=nope.pt'], ['nope.pt', 'python model.py']),
    (['--generator_checkpoint=toy'], ['toy', 'python model.py']),
    (['--generator_checkpoint=', '--generator_recipe=config/nope.py'], ['config/nope.py']),
    (['--resume=True'], ['ckpt.pt', 'python train_grpo.py']),
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
    (['--block_size=1'], ['block_size = 1']),
    (['--top_p=0'], ['top_p = 0']),
    (['--top_p=1.5'], ['top_p = 1.5']),
    (['--top_k=-1'], ['top_k = -1']),
    (['--temperature=0'], ['temperature = 0']),
    (['--temperature=-1'], ['temperature = -1']),
    (['--kl_beta=-0.1'], ['kl_beta = -0.1']),
    (['--kl_beta=0', '--kl_in_reward=True'], ['kl_beta = 0']),
    (['--batch_size=0'], ['batch_size = 0']),
    (['--gradient_accumulation_steps=0'], ['gradient_accumulation_steps = 0']),
    (['--gradient_accumulation_steps=4', '--mini_batches=3'], ['mini_batches = 3']),
    (['--max_iters=0'], ['max_iters = 0']),
    (['--seed=-1'], ['seed = -1']),
    (['--learning_rate=-0.1'], ['learning_rate = -0.1']),
    (['--learning_rate=1e42'], ['learning_rate = 1e+42']),
    (['--weight_decay=-1'], ['weight_decay = -1']),
    (['--beta1=1.5'], ['beta1 = 1.5']),
    (['--grad_clip=-1'], ['grad_clip = -1']),
    (['--judge_batch_size=-1'], ['judge_batch_size = -1']),
    (['--blank_low=0.9', '--blank_high=0.1'], ['blank_low = 0.9']),
    (['--blank_kind=zigzag'], ['zigzag', 'span']),
    (['--mode=diagonal'], ['diagonal', 'causal']),
    (['--adv_norm=loud'], ['loud', 'rloo']),
    (['--optimizer=sgd'], ['sgd', 'adamw']),
    (['--kl_type=k9'], ['k9', 'exact']),
    (['--dtype=int8'], ['int8', 'bfloat16']),
    (['--device=tpu'], ['tpu', 'cpu']),
    (['--device=cuda:99'], ['cuda:99']),
    (['--backend=pigeon'], ['pigeon', 'gloo']),
    (["--rewards={'niceness': 1.0}"], ['niceness', 'verify']),
    (['--rewards={}'], ['rewards']),
    (["--rewards={'judge': 'much'}"], ['rewards', 'much']),
    (["--rewards={'raises': 1.0}", 'config/functions.py'], ['raises', 'ZeroDivisionError']),
    (["--rewards={'short': 1.0}", 'config/functions.py'], ['short', '1 number', '16']),
    (["--rewards={'words': 1.0}", 'config/functions.py'], ['words', 'much']),
    (['--prompt_filter=nope'], ['nope']),
    (['--prompt_filter=none', 'config/functions.py'], ['prompt_filter', '2000']),
    (['--out_dir=config/toy.py/run'], ['config/toy.py/run', '--out_dir']),
    (['--out_dir=/proc/nowhere'], ['/proc/nowhere', '--out_dir']),
]
BAD_MODEL = [
    (['--nlayer=2'], ["'nlayer'", "'n_layer'"]), (['--n_layer=two'], ['n_layer', "'two'"]),
    (['config/missing.py'], ['config/missing.py']), (['--mode=diagonal'], ['diagonal', 'causal']),
    (['--dataset=nope'], ["'nope'", 'arithmetic']), (['--n_embd=15'], ['n_embd = 15']),
    (['--dataset=docstrings'], ['docstrings', 'python data/docstrings/prepare.py']),
    (['--blank_kind=zigzag'], ['zigzag', 'span']), (['--block_size=0'], ['block_size = 0']),
    (['--batch_size=0'], ['batch_size = 0']), (['--max_iters=0'], ['max_iters = 0']),
    (['--eval_interval=-1'], ['eval_interval = -1']), (['--device=tpu'], ['tpu', 'cpu']),
    (['--learning_rate=-1'], ['learning_rate = -1']), (['--seed=-1'], ['seed = -1']),
    (['--out=config/toy.py/x.pt'], ['config/toy.py/x.pt']),
]
BAD_JUDGE = [
    (['--kind=zen'], ['zen', 'classifier']), (['--lables=x'], ["'lables'", "'labels'"]),
    (['--kind=classifier', '--labels=nope.jsonl'], ['nope.jsonl']),
    (['--kind=classifier', '--labels=toy/torn.jsonl'], ['torn.jsonl', 'line 2']),
    (['--kind=classifier', '--labels=toy/few.jsonl'], ['few.jsonl', '20']),
    (['--kind=classifier', '--generator_checkpoint=nope.pt'], ['nope.pt', 'python model.py']),
    (['--dataset=docstrings'], ['python data/docstrings/prepare.py']),
    (['--batch_size=0'], ['batch_size = 0']), (['--n_embd=15'], ['n_embd = 15']),
    (['--out=config/toy.py/x.pt'], ['config/toy.py/x.pt']),
]


@pytest.fixture(scope='module')
def bad(toy):
    """The toy repository with config files and checkpoints that are wrong in some way."""
    for name, text in {'typo': 'grop_size = 4', 'wrong': "learning_rate = 'fast'",
                       'raises': 'x_ = 1\nbatch_size = 1 // 0', 'syntax': 'x_ = 1\nbatch size = 1',
                       'functions': FUNCTIONS}.items():
        (toy.repo / f'config/{name}.py').write_text(text)
    ckpt = torch.load(toy.repo / 'toy/generator.pt', weights_only=True)
    args = ckpt['model_args']
    for name, content in {
            'vocabulary': {**ckpt, 'model_args': {**args, 'vocab_size': 65}, 'corpus': '0' * 16},
            'version': {**ckpt, 'version': 99}, 'other': {'model_args': args, 'x': 1},
            'list': [1, 2, 3]}.items():
        torch.save(content, toy.repo / f'toy/{name}.pt')
    (toy.repo / 'toy/torn.jsonl').write_text('{"text": "1", "label": 1}\n{"text": "2", "la')
    (toy.repo / 'toy/few.jsonl').write_text('{"text": "1", "label": 1}\n' * 3)
    return toy


def all_refused(toy, run, cases):
    """Runs each case, two at a time; asserts its one line and that nothing was written."""
    before, problems = files(toy.repo), []
    for i in range(0, len(cases), 2):
        pair = [(run(*flags), words) for flags, words in cases[i:i + 2]]
        for job, words in pair:
            try:
                job.refused(*words)
            except AssertionError as e:
                problems.append(str(e).split('\nassert')[0][-600:])
    after = files(toy.repo)
    for name in set(after) | set(before):
        if before.get(name) != after.get(name):
            problems.append(f"{name} was changed or left behind")
    assert not problems, '\n\n'.join(problems)


# ------------------------------------------------------------------------------------------------
# a step seen from close

def by_hand(text):
    """Checks the arithmetic of one group as --explain prints it, as far as printed digits allow;
    returns what is left when the numbers are taken out, and how many completions there were."""
    rows = re.findall(r'^ *(\d+) x' + r' +(-?\d+\.\d+)' * 5 + '   (.*)$', text, re.M)
    count, reward, advantage, before, after, change = (
        np.array([float(row[i]) for row in rows]) for i in range(6))
    k = int(re.search(r'(\d+) completions', text).group(1))
    mean = float(re.search(r'mean reward (-?[\d.]+)', text).group(1))
    assert count.sum() == k and (reward[:-1] >= reward[1:]).all()
    assert abs((count * reward).sum() / k - mean) < 1.1e-3
    assert np.abs(reward - mean - advantage).max() < 1.6e-3
    assert np.abs(after - before - change).max() < 1.6e-3
    prompt = re.search(r'change +(.*)$', text, re.M).group(1)
    for *_, completion in rows:
        assert re.fullmatch(re.escape(prompt).replace('_', '.'), completion)
    assert (change[np.argmax(advantage)] > 0) and (change * count * advantage).sum() > 0
    loss, pg, kl = (float(x) for x in re.search(
        r'= (-?[\d.]+) \+ (-?[\d.]+) = (-?[\d.]+)', text).group(3, 1, 2))
    assert abs(pg + kl - loss) < 1.1e-4 and abs((count * advantage).sum()) / k < 1.1e-3
    rest = re.sub(r'^ *\d+ x.*\n', '', text, flags=re.M)
    return re.sub(r'[-\d.+=_e]+', '#', rest).split(), k


def test_the_worked_example_of_the_readme_is_output_that_a_pocket_calculator_confirms(toy):
    readme = (HERE / 'README.md').read_text()
    command, block = re.search(r'`python (train_grpo\.py [^`]*--explain=True[^`]*)`'
                               r'.*?```text\n(.*?)```', readme, re.S).groups()
    flags = [flag for flag in command.split()[1:] if flag.startswith('--')]
    out = toy.new()
    shown = toy.train(out, *flags, '--kl_beta=0.05').good().out
    shown = shown[shown.index('step 0'):]
    assert by_hand(block) == by_hand(shown)
    assert not out.exists()                     # nothing is written


def test_the_benchmark_tells_phases_and_ratios_and_writes_nothing(toy):
    out = toy.new()
    shown = toy.train(out, '--benchmark=True').good().out
    for phase in 'prompts forward sampling judge reference learn optimizer'.split():
        assert re.search(rf'^ +{phase} +[\d.]+ ms +[\d.]+%$', shown, re.M), phase
    ks = re.findall(r'^ +(\d+) +[\d.]+ ms', shown, re.M)
    assert ks == ['2', '4', '8', '16', '32', '64']
    assert 'completions/s' in shown and 'peak memory' in shown and not out.exists()


def test_bad_input_to_grpo_ends_with_one_clear_line_and_nothing_half_written(bad):
    out = bad.new()
    cases = [case for case in BAD if not (case[0] == ['--device=cuda:99']
                                          and torch.cuda.device_count() > 99)]
    all_refused(bad, lambda *flags: bad.train(out, '--max_iters=2', *flags), cases)
    assert {name for name, content in files(out).items() if content} <= {
        'config.json'} and not list(out.glob('*.tmp'))
    jobs = bad.ranks(bad.new(), '--gradient_accumulation_steps=3')
    jobs[0].refused('gradient_accumulation_steps = 3', 'world = 2'), jobs[1].wait()


def test_bad_input_to_model_and_judge_ends_with_one_clear_line_and_no_checkpoint(bad):
    all_refused(bad, lambda *flags: bad.run('model.py', 'config/generator_toy.py', '--out=x.pt',
                                            *flags), BAD_MODEL)
    all_refused(bad, lambda *flags: bad.run('judge.py', 'config/judge_toy.py', '--out=x.pt',
                                            *flags), BAD_JUDGE)


def test_a_causal_policy_in_float64_completes_rows_with_its_own_log_probs():
    model, (N, T) = tiny(causal=True), (4, 6)       # float64 once met float32 there, and raised
    tokens, mask = torch.zeros(N, T, dtype=torch.long), torch.arange(T).expand(N, T) >= 2
    torch.set_default_dtype(torch.float64)
    try:
        rows, acted, logp, _ = complete(model, tokens, mask, torch.rand(N, T, 2))
    finally:
        torch.set_default_dtype(torch.float32)
    whole = model(rows).log_softmax(-1).gather(2, rows[..., None])[..., 0]
    close(logp[acted], whole[acted].detach(), rtol=1e-9, atol=1e-12)


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


def test_bad_input_to_sample_ends_with_one_clear_line(toy, stopped):
    all_refused(toy, lambda *flags: toy.run('sample.py', f'--out_dir={stopped}', *flags), [
        (['--prompt=1x+3_=__7'], ["'x'"]), (['--prompt=' + '1_+3_=__7' * 5], ['45', '10']),
        (['--promt=1'], ["'promt'", "'prompt'"]), (['--out_dir=nope'], ['nope'])])


# ------------------------------------------------------------------------------------------------
# long runs

@long
def test_long_two_thousand_steps_need_no_more_memory_and_time_than_the_first_ones(toy):
    """Peak memory is the kernel's VmHWM, time is processor time: the machine may be busy. The
    cache of oneDNN and the heap grow for some 800 steps; then memory is flat."""
    out, peak, cpu = toy.new(), {}, {}
    with open(f'{out}.txt', 'w') as console:
        job = subprocess.Popen([
            sys.executable, 'train_grpo.py', 'config/grpo_smoke.py', f'--out_dir={out}',
            '--generator_checkpoint=toy/generator.pt', '--judge_checkpoint=toy/judge.pt',
            '--device=cpu', '--max_iters=2010', '--log_interval=1', '--eval_interval=100',
            '--save_interval=100', '--sample_interval=100'], cwd=toy.repo, stdout=console,
            env={**os.environ, 'OMP_NUM_THREADS': '1'})
        for step in (200, 600, 1000, 1600, 2000):
            until(lambda: job.poll() is not None or (out / 'log.jsonl').exists() and len(
                log_lines_torn(out)) >= step + step // 100, 600, f"step {step}")
            text = pathlib.Path(f'/proc/{job.pid}/status').read_text()
            peak[step] = int(text.split('VmHWM:')[1].split()[0])
            ticks = pathlib.Path(f'/proc/{job.pid}/stat').read_text().rpartition(')')[2].split()
            cpu[step] = (int(ticks[11]) + int(ticks[12])) / os.sysconf('SC_CLK_TCK')
        assert job.wait(60) == 0
    early, late = (1e3 * (cpu[b] - cpu[a]) / 400 for a, b in ((200, 600), (1600, 2000)))
    print(f"\npeak memory in kB at steps {peak}; ms of processor a step: {early:.2f}, {late:.2f}")
    assert peak[2000] < 1.02 * peak[200] and peak[2000] < 1.005 * peak[1000]
    assert late < 1.2 * early
