"""Lessons: what each part of GRPO is, shown by something that is not the code: an enumeration of
all that can happen, finite differences, loops over one thing at a time. Read from top to bottom.

    python -m pytest -q test_grpo.py

  tools               toy policies, prompts by hand, and the two slow oracles of all that follows:
                      completing a row, and the loss of a completion, one choice at a time
  advantages          what the rewards of a group say; five rules, and whose gradient each follows
  one distribution    temperature, top-k, top-p: what is drawn is what is scored
  the ratio           1 before the policy moves, and then a bound on how far it is worth moving
  KL and entropy      closed forms; what the sampled estimators follow, and that k1 follows nothing
  the loss            a whole step is that of the slow loops: modes, norms, filters, micro-steps
  passes              a blank sees what earlier passes wrote: exact log-probs, exact gradients
  it learns           toy policies find what a toy reward likes; a page of a notebook

Letters: P prompts of a step, B of a micro-step | k completions of each | N = B * k rows
T positions | V vocabulary | M choices, drawn from U distributions | G groups | X outcomes"""
import collections
import copy
import itertools
import math
import statistics
import types

import pytest
import torch
from torch import nn

import common
import data.dataset
import train_grpo
from data.dataset import Dataset, Prompts, Tokenizer, texts, write_corpus
from judge import Scorer
from model import GPT, Rollout, choose, draw, kept_set, log_probs, make_optimizers
from train_grpo import (adapted_kl_beta, dead_groups, evaluate, exact_entropy, exact_kl,
                        get_prompts, group_advantages, grpo_loss, logp_of, loss_divisor, rollout,
                        sampled_kl, sum_by_owner, take_step)

RULES = pytest.mark.parametrize('rule', ['none', 'std', 'batch', 'mean', 'rloo'])
ORDERS = pytest.mark.parametrize('order', ['random', 'left', 'confident'])


# ---- tools ---------------------------------------------------------------------------------------


@pytest.fixture
def knobs(monkeypatch):
    """knobs(clip_low=0.1, ...) sets knobs of train_grpo, as a notebook would, for one test."""
    def change(**values):
        for name, value in values.items():
            monkeypatch.setattr(train_grpo, name, value)
    return change


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


def close(found, expected, atol=1e-9):
    torch.testing.assert_close(found, expected, atol=atol, rtol=1e-6)


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64)


def slope(f, x, h=1e-5):
    """Gradient of f(x), a number, by central finite differences; x float64 of any shape."""
    steps = h * torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape)
    return torch.stack([f(x + step) - f(x - step) for step in steps]).view_as(x) / (2 * h)


def gradient(loss, model):
    """Gradient of a loss with respect to all weights, one vector."""
    parts = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return nn.utils.parameters_to_vector(parts)


def weights(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


class Table(nn.Module):
    """A policy for rows of three positions and two ids, with a logit of its own for each state of a
    row, position and id. Nothing is more general, so that no error of a gradient can hide in what a
    network shares."""
    causal = False
    device = torch.device('cpu')

    vocab_size = 2
    mask_id = 2

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Parameter(randn(3 ** 3, 3, 2))

    def forward(self, tokens, where=None, copies=1):
        state = tokens @ torch.tensor([9, 3, 1])        # a number with three digits
        logits = self.table[state]                                              # (N, T, V)
        return logits if where is None else logits[where]


def tiny(causal=False, V=5, T=6, seed=0):
    """A GPT whose output layer is not zero, as it is at birth."""
    torch.manual_seed(seed)
    model = GPT(V, T, 1, 2, 16, causal).double()
    nn.init.normal_(model.head.weight, std=0.7)
    nn.init.normal_(model.blocks[0].proj.weight, std=0.3)
    return model


def some_prompts(causal=False, P=4, k=3, seed=1):
    """Prompts of six positions, five ids, and 1, 2, 3, 4, 1, ... blanks: anywhere, or at the end if
    causal. After them comes padding. Id 0 ends a row; neither it nor id 1, an a, is given."""
    torch.manual_seed(seed)
    tokens = torch.randint(2, 5, (P, 6))
    tokens[:, 5] = 7
    rank = torch.rand(P, 5).argsort(1)
    if causal:
        rank = torch.arange(4, -1, -1)
    count = 1 + torch.arange(P)[:, None] % 4                                    # (P, 1)
    mask = nn.functional.pad(rank < count, (0, 1))
    uniforms = torch.rand(P, 6, k).double()
    return Prompts(tokens, mask, uniforms, 0, torch.rand(P, 6))


def choices_at(actions, owner=None):
    """A Rollout of M choices by hand, all from one distribution. owner: their completions, by
    default one each."""
    M = len(actions)
    owner = torch.arange(M) if owner is None else owner
    rows = torch.zeros(owner.max() + 1, 10)
    point = torch.zeros(M, dtype=torch.long)
    return Rollout(None, rows, None, None, owner, None, point, actions, None, None)


Choice = collections.namedtuple('Choice', 'state t id kept logp')


def slow_softmax(z):
    """Probabilities (V,) of what is drawn at logits z (V,), and the ids that the filters keep."""
    p = (z / train_grpo.temperature).softmax(0)
    kept = []                                   # likeliest first, until their mass is reached
    for a in p.topk(train_grpo.top_k or len(p)).indices.tolist():
        if p[kept].sum() < train_grpo.top_p:
            kept.append(a)
    is_kept = torch.zeros_like(p)
    is_kept[kept] = 1.0
    return p * is_kept / p[kept].sum(), kept


def slow_completion(model, prompts, b, pick):
    """One completion of prompt b, one blank at a time. pick(t, p): the id at position t, of
    probabilities p (V,). Returns the row (T,) and its Choices in the order they were made: what the
    policy saw, where it chose what from which ids, and the log-probability, with graph."""
    row = prompts.tokens[b].masked_fill(prompts.mask[b], model.mask_id)
    left = prompts.mask[b].nonzero().flatten().tolist()         # from left to right
    M = len(left)
    n_passes = M if model.causal else train_grpo.n_fill_steps
    order = 'left' if model.causal else train_grpo.fill_order
    if order == 'random':
        left.sort(key=lambda t: prompts.order[b, t])
    choices = []
    for i in range(n_passes):
        state = row.clone()
        logits = model(state[None])[0]                                          # (T, V)
        if order == 'confident':
            sure = logits.log_softmax(-1).amax(-1).tolist()     # ties go from left to right
            left.sort(key=lambda t: (-round(sure[t], 4), t))
        for rank in range(M):
            if rank * n_passes // M == i:
                t = left.pop(0)
                p, kept = slow_softmax(logits[t])
                row[t] = pick(t, p)
                choices.append(Choice(state, t, int(row[t]), kept, p[row[t]].log()))
        if model.causal and row[t] == prompts.eos:
            row[t + 1:] = model.pad_id
            break
    return row, choices


def slow_rollout(model, prompts, greedy=False):
    """Completions (row, Choices) of Prompts, a list of N, from their uniforms."""
    found = []
    for b, group in enumerate(prompts.uniforms.transpose(1, 2)):                # (k, T)
        for u in group[:1] if greedy else group:
            def pick(t, p):
                return p.argmax() if greedy else (p.cumsum(0) <= u[t]).sum()

            found.append(slow_completion(model, prompts, b, pick))
    return found


def slow_logp(model, choice):
    """Log-probs (V,) of a model, any, at a Choice; unfiltered."""
    return (model(choice.state[None])[0, choice.t] / train_grpo.temperature).log_softmax(0)


def slow_loss(policy, reference, completions, advantages, kl_beta):
    """The loss of completions (row, Choices), from its definition and the knobs."""
    knob = train_grpo
    high = 1 + knob.clip_high
    sums = []                                   # of the losses of choices, for each completion
    lengths = []
    for (row, choices), A in zip(completions, advantages.flatten()):
        full = [slow_logp(policy, c) for c in choices]
        taken = [logp[c.id] - logp[c.kept].logsumexp(0) for logp, c in zip(full, choices)]
        log_ratios = torch.stack([now - c.logp.detach() for now, c in zip(taken, choices)])
        loss = 0
        for c, logp, now, log_ratio in zip(choices, full, taken, log_ratios):
            ratio = log_ratio.exp()
            if knob.ratio_level == 'sequence':
                ratio = log_ratios.mean().exp()
            gain = torch.min(ratio * A, ratio.clamp(1 - knob.clip_low, high) * A)
            if knob.objective == 'cispo':
                gain = ratio.detach().clamp(max=high) * A * now
            logp_ref = slow_logp(reference, c).detach()
            gap = (logp_ref - logp)[c.id]
            k3 = gap.exp() - 1 - gap
            kl = {
                'exact': logp.exp() @ (logp - logp_ref),
                'k1': -gap,
                'k2': gap ** 2 / 2,
                'k3': k3,
                'k3_ratio': log_ratio.exp() * k3,
            }[knob.kl_type]
            loss = loss - gain + kl_beta * kl + knob.entropy_coef * logp.exp() @ logp
        sums.append(loss)
        lengths.append(len(choices))
    sums = torch.stack(sums)
    lengths = torch.tensor(lengths)
    return {
        'token': sums.sum() / lengths.sum(),
        'sequence': (sums / lengths).mean(),
        'constant': sums.mean() / len(row),
    }[knob.loss_norm]


# ---- advantages: better than its group -----------------------------------------------------------


@RULES
def test_an_advantage_is_what_a_slow_loop_says(rule):
    reward = torch.rand(5, 4, dtype=torch.float64)
    reward[2] *= 30
    spread_of_all = statistics.stdev(reward.flatten().tolist())
    for group, found in zip(reward.tolist(), group_advantages(reward, rule, eps=0.3)):
        mean = statistics.mean(group)
        scale = {
            'none': 1,
            'std': statistics.stdev(group) + 0.3,
            'batch': spread_of_all + 0.3,
            'mean': mean,
            'rloo': 1,
        }[rule]
        for j, r in enumerate(group):
            others = group[:j] + group[j + 1:]
            baseline = statistics.mean(others) if rule == 'rloo' else mean
            assert found[j].item() == pytest.approx((r - baseline) / scale)


def test_a_mean_that_is_divided_by_must_not_be_negative():
    """It would turn the sign of every advantage: the worst would be pushed up."""
    with pytest.raises(SystemExit, match='-0.5'):
        group_advantages(torch.tensor([[1.0, -0.5]]), 'mean')


@RULES
def test_rescaling_one_groups_rewards_leaves_the_other_groups_alone(rule):
    reward = torch.rand(6, 4)
    before = group_advantages(reward, rule)
    reward[2] *= 10
    after = group_advantages(reward, rule)
    assert torch.equal(before[3:], after[3:]) == (rule != 'batch')      # one scale for all


@RULES
def test_equal_rewards_teach_exactly_nothing_and_a_small_difference_something(rule):
    reward = torch.full((3, 7), 1234.5)
    reward[1, 2] += 0.0002                      # a step of float32
    reward[2, 5] += 0.01
    advantages = group_advantages(reward, rule)
    assert dead_groups(reward).flatten().tolist() == [True, True, False]
    assert (advantages[:2] == 0).all()
    assert (advantages[2] != 0).all()


def expected_step(z, reward_of, k, rule):
    """Where a step goes, (V,), on average over all groups of k ids that can be drawn from logits z
    (V,): minus the loss's gradient. reward_of: ids (G, k) -> their rewards (G, k)."""
    groups = torch.tensor(list(itertools.product(range(len(z)), repeat=k)))     # (G, k)
    p = (z / train_grpo.temperature).softmax(0)
    chance = p[groups].prod(1, keepdim=True)                                    # (G, 1)
    advantages = group_advantages(reward_of(groups), rule, eps=0.0) * chance
    z = z[None].clone().requires_grad_()
    loss, *_ = grpo_loss(z, choices_at(groups.flatten()), advantages, None, None, 0.0)
    return -torch.autograd.grad(loss / k, z)[0][0]


@pytest.mark.parametrize('k', [2, 3])
def test_the_mean_step_is_the_gradient_of_the_expected_reward(k, knobs):
    """Exactly, if each is compared with the mean of the others. A group's own mean has a share of
    1/k of the completion itself, so (k - 1) / k is left. Dividing by the std bends the gradient."""
    knobs(temperature=0.7)
    z = randn(4)
    table = randn(4)
    exact = slope(lambda z: (z / 0.7).softmax(0) @ table, z)

    def step(rule):
        return expected_step(z, lambda ids: table[ids], k, rule)

    close(step('rloo'), exact)
    close(step('none'), exact * (k - 1) / k)
    assert 0.5 < torch.cosine_similarity(step('std'), exact, dim=0) < 0.9999


def pass_at(m, z):
    """P(at least one of m ids is id 0, the right one)."""
    return 1 - (1 - z.softmax(0)[0]) ** m


def is_right(ids):
    return (ids == 0).double()


@pytest.mark.parametrize('k', [2, 3, 4])
def test_maxrl_climbs_pass_at_1_and_a_half_of_pass_at_2_and_a_third_of_pass_at_3(k):
    """Dividing by the mean makes up for how rarely a hard prompt succeeds (arXiv:2602.02710)."""
    z = randn(3)
    exact = slope(lambda z: sum(pass_at(m, z) / m for m in range(1, k)), z)
    close(expected_step(z, is_right, k, 'mean'), exact)


@pytest.mark.parametrize('m', [1, 2, 3, 4])
def test_a_mean_baseline_leaves_of_pass_at_m_as_a_reward_the_share_1_minus_m_over_k(m):
    """Each completion gets the share of the sets of m that it is in that have a right one (PKPO,
    arXiv:2505.15201): an unbiased gradient of pass@m, until the baseline. Of pass@k with groups of
    k nothing is left, for every completion of a group has the same reward."""
    k = 4
    z = randn(3)

    def reward_of(groups):
        reward = torch.zeros(groups.shape, dtype=torch.float64)
        for chosen in map(list, itertools.combinations(range(k), m)):
            best = is_right(groups[:, chosen]).amax(1, keepdim=True)
            reward[:, chosen] += best / math.comb(k, m)
        return reward

    exact = slope(lambda z: pass_at(m, z), z)
    close(k * expected_step(z, reward_of, k, 'none'), (1 - m / k) * exact)


@pytest.mark.parametrize('p, none, std, mean, at_4', [
    (0.05, 0.83, 1.96, 4.52, 3.43),
    (0.3, 0.83, 1.70, 2.77, 1.37),
    (0.5, 0.83, 1.63, 1.94, 0.50),
    (0.9, 0.83, 1.89, 1.11, 0.00)])
def test_how_much_a_prompt_weighs_by_its_pass_rate(p, none, std, mean, at_4):
    """The step on a prompt, in units of the gradient of its pass rate p, for groups of 6. 'std'
    prefers what is nearly always or nearly never right, 'mean' what is hard; pass@4 forgets what
    is easy."""
    z = torch.tensor([p, 1 - p], dtype=torch.float64).log()
    steps = [expected_step(z, is_right, 6, rule) for rule in ('none', 'std', 'mean')]
    steps.append(slope(lambda z: pass_at(4, z), z))
    found = [step[0].item() / (p * (1 - p)) for step in steps]
    assert found == pytest.approx([none, std, mean, at_4], abs=0.0051)


# ---- one distribution: what is drawn is what is scored -------------------------------------------


@pytest.mark.parametrize('temperature, top_k, top_p', [
    (1.0, 0, 1.0),
    (0.5, 3, 1.0),
    (1.0, 0, 0.7),
    (1.3, 4, 0.8),
    (1.0, 0, 1e-6)])
def test_ids_are_drawn_as_often_as_their_log_probs_say(temperature, top_k, top_p, knobs):
    """By inverse CDF, so even uniforms draw an id n * p times, give or take one."""
    knobs(temperature=temperature, top_k=top_k, top_p=top_p)
    n = 20000
    logits = randn(3, 6)
    even = ((torch.arange(n) + 0.5) / n).double().expand(3, n)
    actions, logp, kept = choose(logits, even, temperature, top_k, top_p)       # (3, n) twice
    for z, drawn, found in zip(logits, actions, logp):
        p, _ = slow_softmax(z)
        assert ((torch.bincount(drawn, minlength=6) - n * p).abs() < 1.01).all()
        close(found.exp(), p[drawn])
    close(log_probs(logits, temperature, kept).gather(1, actions), logp)        # learned from


@pytest.mark.parametrize('V', [5, 50257])
def test_an_id_of_probability_0_is_never_drawn_and_ties_do_not_widen_top_k(V):
    u = torch.tensor([0.0, 1e-30, 0.5, 1 - 2 ** -24]).expand(64, 4)
    kept = torch.rand(64, V) < 0.5
    kept[:, [0, -1]] = False
    kept[:, V // 2] = True
    actions = draw(log_probs(torch.randn(64, V), 1.0, kept), u)
    assert kept.gather(1, actions).all()
    assert kept_set(torch.zeros(3, V).log_softmax(-1), 4).sum(1).tolist() == [4, 4, 4]


# ---- the ratio: how much likelier is a choice than when it was made? -----------------------------

MODES = pytest.mark.parametrize('mode', [
    {},
    {'n_fill_steps': 2},
    {'n_fill_steps': 3, 'fill_order': 'confident'},
    {'mode': 'causal'}])
FILTERS = pytest.mark.parametrize('filters', [{}, {'top_k': 4, 'top_p': 0.7}])


@MODES
@FILTERS
def test_before_the_policy_moves_the_ratio_is_1_and_the_gradient_that_of_reinforce(
        mode, filters, knobs):
    knobs(temperature=0.8, **mode, **filters)
    causal = 'mode' in mode
    policy = tiny(causal).float()
    r = rollout(policy, some_prompts(causal))
    z = r.logits_of(policy).detach().requires_grad_()
    logp = log_probs(z, 0.8, r.kept)[r.point, r.actions]
    close(logp, r.logp_old, atol=1e-5 if causal else 0.0)       # with a cache: but for rounding
    A = torch.randn(4, 3)
    expected = -torch.autograd.grad(logp @ A.flatten()[r.owner], z)[0]
    for old in (None, r.logp_old):
        loss, *_ = grpo_loss(z, r, A, old, None, 0.0)
        close(torch.autograd.grad(loss, z)[0], expected, atol=1e-4)


@pytest.mark.parametrize('A, p_new, is_cut', [
    (1.0, 0.23, False),
    (1.0, 0.25, True),                          # more than 1.2 times as likely
    (1.0, 0.05, False),
    (-1.0, 0.17, False),
    (-1.0, 0.15, True),                         # less than 0.8 times
    (-1.0, 0.45, False)])
def test_the_gradient_ends_where_a_choice_has_moved_far_enough_but_not_on_the_way_back(
        A, p_new, is_cut, knobs):
    """The old probability is 0.2. PPO's min() cuts the gradient; CISPO (arXiv:2506.13585) cuts the
    weight, and the gradient of log p goes on for ever."""
    z = torch.tensor([[p_new, 0.5 - p_new, 0.5]]).log().requires_grad_()
    score = torch.eye(3)[0] - z.detach().exp()              # the gradient of log p of id 0
    ratio = p_new / 0.2
    weight = {'ppo': 0 if is_cut else ratio, 'cispo': min(ratio, 1.2)}
    for objective in ('ppo', 'cispo'):
        knobs(objective=objective)
        r = choices_at(torch.tensor([0]))
        old = torch.tensor([0.2]).log()
        loss, *_, sums = grpo_loss(z, r, torch.tensor([[A]]), old, None, 0.0)
        close(torch.autograd.grad(loss, z)[0], -weight[objective] * A * score, atol=1e-6)
        assert objective == 'cispo' or sums['clip_frac'] == is_cut


# ---- KL and entropy: near the start --------------------------------------------------------------


def joint(z):
    """Log-probs (V, V, V) of all completions of three blanks that are filled in one pass."""
    a, b, c = z.log_softmax(-1)
    return a[:, None, None] + b[:, None] + c


def test_sums_over_blanks_are_the_kl_and_the_entropy_of_whole_completions():
    z, ref = randn(2, 3, 4)                     # three blanks, V = 4

    def kl_of_all(z):
        return (joint(z).exp() * (joint(z) - joint(ref))).sum()

    z.requires_grad_()
    logp = log_probs(z)
    kl = exact_kl(logp, log_probs(ref))
    assert (kl > 0).all()
    close(kl.sum(), kl_of_all(z))
    close(torch.autograd.grad(kl.sum(), z, retain_graph=True)[0], slope(kl_of_all, z.detach()))
    close(exact_entropy(logp).sum(), -(joint(z).exp() * joint(z)).sum())


@pytest.mark.parametrize('kind, measures, follows', [
    ('k1', 'reverse', 'nothing'),
    ('k2', 'neither', 'reverse'),
    ('k3', 'reverse', 'forward'),
    ('k3_ratio', 'reverse', 'reverse')])
def test_what_an_estimator_measures_is_not_what_it_follows_as_a_loss(kind, measures, follows):
    """All ids are drawn, each as often as it is likely. k1 is right on average, and holds nothing;
    k2 is wrong on average, and holds like the exact KL(policy || reference)."""
    z, ref = randn(2, 3)
    logp_ref = ref.log_softmax(0)
    kl = {
        'reverse': lambda z: exact_kl(z.log_softmax(0), logp_ref),
        'forward': lambda z: exact_kl(logp_ref, z.log_softmax(0)),
        'nothing': lambda z: 0 * z.sum(),
    }
    z.requires_grad_()
    logp = z.log_softmax(0)
    ratio = (logp - logp.detach()).exp()
    mean = logp.detach().exp() @ sampled_kl(logp, logp_ref, ratio, kind)
    assert (measures == 'reverse') == ((mean - kl['reverse'](z)).abs() < 1e-9)
    close(torch.autograd.grad(mean, z)[0], slope(kl[follows], z.detach()))


@pytest.mark.parametrize('kl_type', ['exact', 'k1', 'k2', 'k3', 'k3_ratio'])
def test_extreme_log_probs_leave_the_gradient_finite(kl_type, knobs):
    knobs(kl_type=kl_type, entropy_coef=0.1)
    z = torch.tensor([[300.0, 0, -300.0]], requires_grad=True)
    logp_ref = (-z).detach().log_softmax(-1)
    loss, *_ = grpo_loss(z, choices_at(torch.arange(3)), torch.ones(1, 3), None, logp_ref, 0.1)
    assert torch.autograd.grad(loss, z)[0].isfinite().all()


def test_the_weight_of_the_kl_finds_the_one_that_holds_the_target():
    beta = 1.0
    for _ in range(2000):
        kl = 0.04 / beta                        # of a policy that it holds like this
        beta = adapted_kl_beta(beta, kl, 0.1, 1000)
    assert beta == pytest.approx(0.4, rel=0.01)
    assert adapted_kl_beta(1.0, 99.0, 0.1, 1000) == pytest.approx(1.02)     # not too fast


# ---- the loss: a whole step is that of the slow loops --------------------------------------------


def letters(prompts, completions):
    """A reward: how many a's there are."""
    return [text.count('a') for text in completions]


def toy_scorer():
    corpus = types.SimpleNamespace(tok=Tokenizer('char', 'abcd'), verify=None)
    return Scorer(corpus, functions={'letters': letters})


FOUR = {'batch_size': 1, 'gradient_accumulation_steps': 4}
TWO = {'batch_size': 2, 'gradient_accumulation_steps': 2}
STEPS = {
    'one pass': {'batch_size': 4, 'adv_norm': 'rloo'},
    'micro-steps, tempered': {**TWO, 'temperature': 1.3, 'adv_norm': 'std', 'kl_type': 'k3'},
    'filtered, by completion': {**FOUR, 'top_p': 0.8, 'loss_norm': 'sequence', 'entropy_coef': 0.2},
    'updates, clipped': {'batch_size': 4, 'inner_updates': 3, 'clip_low': 0.01, 'clip_high': 0.02},
    'sequence ratio': {**TWO, 'inner_updates': 2, 'ratio_level': 'sequence', 'kl_type': 'k3_ratio',
                       'loss_norm': 'constant', 'clip_high': 0.01},
    'cispo, mini-batches': {**FOUR, 'objective': 'cispo', 'mini_batches': 2, 'inner_updates': 2,
                            'top_k': 3, 'kl_type': 'k2', 'clip_high': 0.01},
    'two passes': {**TWO, 'n_fill_steps': 2, 'loss_norm': 'sequence', 'temperature': 0.7},
    'confident': {**FOUR, 'n_fill_steps': 3, 'fill_order': 'confident', 'top_p': 0.9,
                  'inner_updates': 2, 'clip_low': 0.01, 'kl_type': 'k1', 'adv_norm': 'batch'},
    'causal': {**TWO, 'mode': 'causal', 'entropy_coef': 0.1},
    'causal, filtered': {**TWO, 'mode': 'causal', 'top_p': 0.8, 'temperature': 1.2,
                         'mini_batches': 2, 'inner_updates': 2, 'loss_norm': 'sequence',
                         'ratio_level': 'sequence'},
}


@pytest.mark.parametrize('case', STEPS)
def test_a_step_is_that_of_loops_over_prompts_completions_and_choices(case, knobs):
    """Plain gradient descent moves the weights by the gradient: so they tell what it was. Every
    update is divided once, whatever number of micro-steps it has."""
    how = STEPS[case]
    knobs(group_size=3, block_size=6, grad_clip=0.0, rewards={'letters': 1.0, 'kl': -0.5}, **how)
    causal = 'mode' in how
    policy = tiny(causal)
    reference = tiny(causal, seed=3).requires_grad_(False)
    by_hand = copy.deepcopy(policy)
    prompts = some_prompts(causal)
    optimizers = [torch.optim.SGD(policy.parameters())]
    _, _, reward, advantages, stats = take_step(policy, reference, optimizers, toy_scorer(),
                                                prompts, 0.5, 0.3)

    # Act and judge. The reward 'kl' is k1 of the whole completion, unfiltered.
    completions = slow_rollout(by_hand, prompts)                # 12: 4 prompts, 3 of each
    expected = []
    for row, choices in completions:
        k1 = sum((slow_logp(by_hand, c) - slow_logp(reference, c))[c.id] for c in choices)
        expected.append(row.tolist().count(1) - 0.5 * k1.item())
    close(reward.flatten(), torch.tensor(expected), atol=1e-5)
    close(advantages, group_advantages(reward, train_grpo.adv_norm))

    # Learn: the updates of a pass take turns at the prompts.
    size = 4 // train_grpo.mini_batches
    for i in range(train_grpo.inner_updates * train_grpo.mini_batches):
        first = i * size % 4
        own = slice(first, first + size)
        loss = slow_loss(by_hand, reference, completions[3 * first:][:3 * size], advantages[own],
                         0.3)
        after = weights(by_hand) - 0.5 * gradient(loss, by_hand)
        nn.utils.vector_to_parameters(after, by_hand.parameters())
    close(weights(policy), weights(by_hand), atol=1e-7)
    found = stats.read(policy.device)
    assert (found['clip_frac'] > 0) == (train_grpo.inner_updates > 1)
    if train_grpo.inner_updates == 1:           # then there was one update, of this loss
        assert found['loss'] == pytest.approx(loss.item(), abs=1e-5)


def test_each_norm_is_the_mean_that_it_is_called(knobs):
    """Two completions of 3 and 1 choices, with advantages +1 and -1: by choices the longer one has
    three votes of four, by completions one of two."""
    r = choices_at(torch.tensor([0, 1, 2, 1]), owner=torch.tensor([0, 0, 0, 1]))
    for norm, mean in (('token', -2 / 4), ('sequence', 0.0), ('constant', -2 / 20)):
        knobs(loss_norm=norm)
        loss, *_ = grpo_loss(randn(1, 4), r, torch.tensor([[1.0, -1.0]]), None, None, 0.0)
        assert loss.item() / loss_divisor(r) == pytest.approx(mean, abs=1e-6)


# ---- passes: a blank sees what earlier passes wrote ----------------------------------------------


def everything(policy, k):
    """All that can happen to one prompt of three blanks: X = V^3 completions (row, Choices), their
    log p (X,), with graph; all groups (G, k) of k of them, the chance (G, 1) of each; and a Rollout
    in which each group is a prompt of its own."""
    tokens = torch.zeros(1, 3).long()
    prompt = Prompts(tokens, tokens == 0, None, -1, torch.tensor([[0.7, 0.1, 0.4]]))
    outcomes = []
    uniforms = []
    for ids in itertools.product(range(policy.vocab_size), repeat=3):
        u = [0.0, 0.0, 0.0]

        def pick(t, p):
            a = ids[t]
            u[t] = (p[:a].sum() + p[a] / 2).item()          # a uniform that draws it
            return a

        outcomes.append(slow_completion(policy, prompt, 0, pick))
        uniforms.append(u)
    logp = torch.stack([sum(c.logp for c in choices) for _, choices in outcomes])

    groups = torch.tensor(list(itertools.product(range(len(outcomes)), repeat=k)))
    chance = logp[groups].sum(1, keepdim=True).exp().detach()
    uniforms = torch.tensor(uniforms).double()[groups].transpose(1, 2)          # (G, T, k)
    again = [0] * len(groups)
    prompts = Prompts(tokens[again], prompt.mask[again], uniforms, -1, prompt.order[again])
    return outcomes, logp, groups, chance, rollout(policy, prompts, keep_graph=True)


@ORDERS
@pytest.mark.parametrize('n', [1, 2, 3, 7])
def test_the_probabilities_of_all_completions_add_up_to_one(n, order, knobs):
    """The order of the blanks is drawn from nothing that is sampled: so a completion has exactly
    the probability that its choices have, one after the other."""
    knobs(n_fill_steps=n, fill_order=order)
    outcomes, logp, _, chance, r = everything(tiny(V=4, T=3), k=1)
    assert torch.equal(r.rows, torch.stack([row for row, _ in outcomes]))       # each of the 64
    close(sum_by_owner(r.logp_old, r), logp.detach())
    close(chance.sum(), torch.ones(()).double())


@MODES
@FILTERS
@pytest.mark.parametrize('greedy', [False, True])
def test_a_rollout_is_a_slow_loop_over_one_blank_at_a_time(mode, filters, greedy, knobs):
    knobs(temperature=0.8, **mode, **filters)
    causal = 'mode' in mode
    policy = tiny(causal)
    prompts = some_prompts(causal, P=9, k=8)
    r = rollout(policy, prompts, greedy)
    completions = slow_rollout(policy, prompts, greedy)
    assert torch.equal(r.rows, torch.stack([row for row, _ in completions]))

    slow = {(n, c.t): c for n, (_, choices) in enumerate(completions) for c in choices}
    places = list(zip(r.owner.tolist(), r.position.tolist()))
    assert sorted(places) == sorted(slow)       # each choice once
    mine = [slow[place] for place in places]
    logp = torch.stack([c.logp for c in mine])
    close(r.logp_old.double(), logp, atol=1e-6)
    close(log_probs(r.logits_of(policy), 0.8, r.kept)[r.point, r.actions], logp)

    # It saw what earlier passes wrote, or what stands to its left, and nothing of later ones.
    asked = r.where.nonzero()                   # (U, 2) state and position
    state, t = asked[r.point].T                                                 # (M,) each
    assert torch.equal(t, r.position)
    known = torch.arange(6) < t[:, None] if causal else slice(None)
    assert torch.equal(r.states[state][known], torch.stack([c.state for c in mine])[known])
    if not causal:                              # who stands in the same state shares what is asked
        looks = {(n // r.k, t, *c.state.tolist()) for (n, t), c in slow.items()}
        assert len(asked) == len(looks)
        assert greedy or len(looks) < len(mine)


@ORDERS
@pytest.mark.parametrize('n', [1, 2, 3])
def test_over_all_groups_the_gradient_is_that_of_the_expected_reward(n, order, knobs):
    knobs(n_fill_steps=n, fill_order=order)
    policy = Table()
    _, logp, groups, chance, r = everything(policy, k=2)
    reward = randn(8)
    advantages = group_advantages(reward[groups], 'rloo') * chance
    loss, *_ = grpo_loss(r.logits, r, advantages, None, None, 0.0)
    close(-gradient(loss / 2, policy), gradient(logp.exp() @ reward, policy))


@pytest.mark.parametrize('n, order', [
    (1, 'left'),
    (2, 'random'),
    (3, 'left'),
    (2, 'confident')])
def test_of_the_kls_gradient_the_closed_form_lacks_the_states_share_and_k1_as_a_reward_has_it(
        n, order, knobs):
    """The mean of the closed form over the states that are met is the KL of whole completions. Its
    gradient has two parts: the distributions change, and so does how often each state is met. The
    closed form knows the first. In one pass there is one state, and nothing is missing."""
    knobs(n_fill_steps=n, fill_order=order)
    policy = Table(seed=0)
    reference = Table(seed=1)
    outcomes, logp, groups, chance, r = everything(policy, k=2)
    k1 = logp.detach().clone()                                                  # (8,)
    for x, (_, choices) in enumerate(outcomes):
        k1[x] -= sum(slow_logp(reference, c)[c.id].item() for c in choices)
    whole = gradient(logp.exp() @ k1, policy)

    per_choice = exact_kl(log_probs(r.logits), logp_of(reference, r))[r.point]
    closed = chance.flatten()[r.owner // 2] @ per_choice / 2
    close(closed, logp.exp() @ k1)
    missing = (whole - gradient(closed, policy)).norm() / whole.norm()
    assert missing < 1e-9 if n == 1 else missing > 0.05

    advantages = group_advantages(-k1[groups], 'rloo') * chance
    loss, *_ = grpo_loss(r.logits, r, advantages, None, None, 0.0)
    close(gradient(loss / 2, policy), whole)


# ---- it learns -----------------------------------------------------------------------------------


@pytest.mark.parametrize('mode, reward, kl_beta, learns', [
    ('fill', 'letters', 0.0, True),
    ('causal', 'letters', 0.0, True),
    ('fill', 'noise', 0.05, False),
    ('fill', 'letters', 20.0, False)])
def test_a_policy_learns_the_letter_that_the_toy_reward_likes(mode, reward, kl_beta, learns, knobs):
    """And nothing from a reward that is noise, or held by a strong KL."""
    knobs(mode=mode, group_size=8, batch_size=16, block_size=6, rewards={reward: 1.0})
    policy = GPT(5, 6, 1, 2, 16, mode == 'causal')
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizers = make_optimizers(policy, 1e-2, 0.0, 0.9, 0.95)
    scorer = toy_scorer()
    scorer.functions['noise'] = lambda prompts, completions: torch.rand(len(prompts))
    for step in range(60):
        prompts = some_prompts(mode == 'causal', P=16, k=8, seed=step)
        rollouts, *_ = take_step(policy, reference, optimizers, scorer, prompts, 1e-2, kl_beta)
    share = (rollouts[0].actions == 1).float().mean()           # of a's; 1/5 at the start
    assert share > 0.85 if learns else 0.05 < share < 0.4


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A data/toy of the notebook's own, in a temporary folder."""
    folder = tmp_path / 'data' / 'toy'
    monkeypatch.setattr(data.dataset, 'HERE', str(tmp_path / 'data'))
    monkeypatch.setattr(common, 'HOME', str(tmp_path))
    folder.mkdir(parents=True)
    verify = "def verify(prompt, completion): return float('ab' in completion)"
    (folder / 'prepare.py').write_text(verify)
    words = [(''.join(word), '') for word in itertools.permutations('abcd')]
    write_corpus('toy', 'pairs', words, words[:9])
    return Dataset('toy')


@pytest.mark.parametrize('mode, blank_kind', [('fill', 'random'), ('causal', 'suffix')])
def test_a_page_of_a_notebook(mode, blank_kind, corpus, knobs):
    knobs(mode=mode, blank_kind=blank_kind, block_size=6, batch_size=8, group_size=4,
          eval_prompts=20, temperature=2.0, rewards={'letters': 1.0, 'verify': 0.5})
    policy = tiny(mode == 'causal').float()
    reference = copy.deepcopy(policy)
    scorer = Scorer(corpus, functions={'letters': letters})

    # Act: four completions of each of eight prompts. Other steps have other ones.
    prompts = get_prompts(corpus, step=7)
    assert not torch.equal(get_prompts(corpus, step=8).uniforms, prompts.uniforms)
    r = rollout(policy, prompts)

    # Judge: each reward apart, from the text.
    scores = scorer.score(['letters', 'verify'], r)                             # (8, 4) each
    _, completions, _ = texts(corpus.tok, prompts, r.rows, r.causal)
    assert scores['letters'].flatten().tolist() == letters('', completions)
    assert scores['verify'].flatten().tolist() == ['ab' in text for text in completions]

    # Learn: the prompts of step 7 bring their random numbers, so these are the same completions.
    # What beat its group becomes likelier.
    optimizers = [torch.optim.SGD(policy.parameters())]
    prompts = get_prompts(corpus, step=7)
    rollouts, _, reward, advantages, _ = take_step(policy, reference, optimizers, scorer, prompts,
                                                   0.1, 0.0)
    assert torch.equal(rollouts[0].rows, r.rows)
    close(reward, scores['letters'] + 0.5 * scores['verify'])
    change = log_probs(r.logits_of(policy), 2.0)[r.point, r.actions] - r.logp_old
    assert change @ advantages.flatten()[r.owner] > 1e-3

    # Look: means over held-out prompts, of the likeliest completion and of four samples each.
    held_out = get_prompts(corpus, 0, 'val')
    means = evaluate(policy, reference, held_out, scorer)
    for name, greedy in (('verify_argmax', True), ('verify', False)):
        r = rollout(policy, held_out, greedy)
        verify = scorer.score(['verify'], r)['verify']                          # (20, 1 or 4)
        assert means[name] == pytest.approx(verify.mean().item())
    assert means['pass@4'] == pytest.approx(verify.amax(1).mean().item())
    kl = exact_kl(logp_of(policy, r), logp_of(reference, r))[r.point]
    assert means['kl'] == pytest.approx(kl.mean().item(), rel=1e-3)
