"""Lessons: each part of GRPO, compared with something that is not the code: an enumeration of all
outcomes, finite differences, or slow loops over one token at a time. Read from top to bottom.

    python -m pytest -q test_grpo.py

  tools               toy policies, prompts by hand, and two slow oracles: completing a sequence,
                      and the loss of a completion, one sampled token at a time
  advantages          five rules, and whose gradient each follows
  one distribution    temperature, top-k, top-p: the distribution that samples also scores
  the ratio           1 before the policy moves, and then a bound on how far it moves
  KL and entropy      closed forms; the gradients of the sampled estimators; k1 has none
  the loss            a whole step equals that of the slow loops: modes, norms, filters, micro-steps
  passes              a blank sees what earlier passes filled: exact log-probs, exact gradients
  it learns           toy policies find what a toy reward likes; a page of a notebook

Letters: P prompts of a step, B of a micro-step | k completions of each | N = B * k sequences
T positions | V vocabulary | M sampled tokens, from U distributions | G groups | X outcomes"""
import collections
import copy
import itertools
import math
import statistics

import pytest
import torch
from torch import nn

import train_grpo
from data.dataset import Dataset, Prompts, Tokenizer
from judge import Scorer
from model import GPT, Rollout, choose, draw, kept_set, log_probs, make_optimizers
from train_grpo import (adapted_kl_beta, dead_groups, evaluate, exact_entropy, exact_kl,
                        get_prompts, group_advantages, grpo_loss, logp_of, loss_divisor, rollout,
                        sampled_kl, take_step)

RULES = pytest.mark.parametrize('rule', ['none', 'std', 'batch', 'mean', 'rloo'])
ORDERS = pytest.mark.parametrize('order', [[0.7, 0.1, 0.4], [0.1, 0.2, 0.3]])   # 'random', 'left'
TOK = Tokenizer('char', 'abcd')     # ids 1 to 4; 0 ends a text; 5 is a blank, 6 bos, 7 padding


# ---- tools ---------------------------------------------------------------------------------------


@pytest.fixture
def knobs(monkeypatch):
    """knobs(clip_low=0.1, ...) sets knobs of train_grpo, as a notebook would, for one test."""
    def change(**values):
        for name, value in values.items():
            monkeypatch.setattr(train_grpo, name, value)
    return change


@pytest.fixture(autouse=True)
def no_entropy_bonus(knobs):
    knobs(entropy_coef=0.0)                     # unless a test asks for it
    torch.manual_seed(0)


def close(actual, expected, atol=1e-9):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=1e-6)


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
    """A policy for sequences of three positions and two ids, with a logit of its own for each state
    of the sequence, position and id. Nothing is more general, so no error of a gradient can hide in
    weights that a network shares."""
    causal = False
    device = torch.device('cpu')
    vocab_size = 2
    mask_id = 2

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Parameter(randn(3 ** 3, 3, 2))

    def forward(self, tokens, where, copies=1):
        digits = tokens.masked_fill(where, self.mask_id)                        # (N, T)
        return self.table[digits @ torch.tensor([9, 3, 1])][where]              # (U, V)


def tiny(causal=False, V=5, T=6, seed=0):
    """Return a GPT whose output layer is not zero, as it is in a new one."""
    torch.manual_seed(seed)
    model = GPT(V, T, 1, 2, 16, causal).double()
    model.vocab_size = V
    nn.init.normal_(model.head.weight, std=0.7)
    nn.init.normal_(model.blocks[0].proj.weight, std=0.3)
    return model


def toy_prompts(causal=False, P=4, k=3, seed=1):
    """Return Prompts of six positions, five ids, and 1, 2, 3, 4, 1, ... blanks: anywhere, or at the
    end if causal. After them comes padding. Id 0 ends a text; neither it nor id 1, an a, is given.
    """
    torch.manual_seed(seed)
    tokens = torch.randint(2, 5, (P, 6))
    tokens[:, 5] = 7
    rank = torch.rand(P, 5).argsort(1)
    if causal:
        rank = torch.arange(4, -1, -1)
    count = 1 + torch.arange(P)[:, None] % 4                                    # (P, 1)
    mask = nn.functional.pad(rank < count, (0, 1))
    uniforms = torch.rand(P, k, 6).double()
    return Prompts(tokens, mask, tokens, uniforms, torch.rand(P, 6), TOK)


def rollout_of(actions, sequence_of=None):
    """Return a Rollout of M sampled tokens by hand, all from one distribution. sequence_of: by
    default each token is a sequence."""
    if sequence_of is None:
        sequence_of = torch.arange(len(actions))
    sequences = torch.zeros(sequence_of.max() + 1, 10)
    return Rollout(None, sequences, None, None, sequence_of, None, torch.zeros_like(actions),
                   actions, None)


Token = collections.namedtuple('Token', 'state t id kept logp')


def slow_softmax(z):
    """Return the probabilities (V,) that sample at logits z (V,), and the ids that are kept."""
    p = (z / train_grpo.temperature).softmax(0)
    likeliest = p.topk(train_grpo.top_k or len(p)).indices.tolist()
    kept = []                                   # top_p is a share of what top_k leaves
    for a in likeliest:
        if p[kept].sum() < train_grpo.top_p * p[likeliest].sum():
            kept.append(a)
    is_kept = torch.zeros_like(p)
    is_kept[kept] = 1.0
    return p * is_kept / p[kept].sum(), kept


def slow_logits(model, state, t):
    """Return the logits (V,) of a model for position t of a state (T,) that may have blanks."""
    blank = state == model.mask_id
    if model.causal:
        blank = torch.arange(len(state)) == t
    return model(state[None], blank[None])[blank[:t].sum()]


def slow_completion(model, prompts, b, pick):
    """Complete prompt b once, one blank at a time. pick(t, p): the id at position t, given
    probabilities p (V,). Return the sequence (T,) and its Tokens in the order they were sampled:
    the state, the position, the id, the kept ids, and the log-probability, with graph."""
    sequence = prompts.tokens[b].masked_fill(prompts.mask[b], model.mask_id)
    blanks = prompts.mask[b].nonzero().flatten().tolist()       # from left to right
    n_passes = len(blanks) if model.causal else train_grpo.n_fill_steps
    if not model.causal:
        blanks.sort(key=lambda t: prompts.order[b, t])
    tokens = []
    for i in range(n_passes):
        state = sequence.clone()
        for rank, t in enumerate(blanks):
            if rank * n_passes // len(blanks) == i:
                p, kept = slow_softmax(slow_logits(model, state, t))
                sequence[t] = pick(t, p)
                tokens.append(Token(state, t, int(sequence[t]), kept, p[sequence[t]].log()))
        if model.causal and sequence[t := blanks[i]] == TOK.eos:
            sequence[t + 1:] = TOK.pad
            break
    return sequence, tokens


def slow_rollout(model, prompts, greedy=False):
    """Return completions (sequence, Tokens) of Prompts, a list of N, from their uniforms."""
    completions = []
    for b, group in enumerate(prompts.uniforms):                                # (k, T)
        for u in group:
            def pick(t, p):
                return p.argmax() if greedy else (p.cumsum(0) <= u[t]).sum()

            completions.append(slow_completion(model, prompts, b, pick))
    return completions


def slow_logp(model, token):
    """Return log-probs (V,) of any model at a Token, unfiltered."""
    return (slow_logits(model, token.state, token.t) / train_grpo.temperature).log_softmax(0)


def slow_loss(policy, reference, completions, advantages, kl_beta):
    """Return the loss of completions (sequence, Tokens), from its definition and the knobs."""
    knob = train_grpo
    high = 1 + knob.clip_high
    sums = []                                   # of the losses of tokens, for each completion
    lengths = []
    for (sequence, tokens), A in zip(completions, advantages.flatten()):
        full = [slow_logp(policy, c) for c in tokens]
        sampled = [logp[c.id] - logp[c.kept].logsumexp(0) for logp, c in zip(full, tokens)]
        log_ratios = torch.stack([now - c.logp.detach() for now, c in zip(sampled, tokens)])
        loss = 0
        for c, logp, now, log_ratio in zip(tokens, full, sampled, log_ratios):
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
        lengths.append(len(tokens))
    sums = torch.stack(sums)
    lengths = torch.tensor(lengths)
    return {
        'token': sums.sum() / lengths.sum(),
        'sequence': (sums / lengths).mean(),
        'constant': sums.mean() / len(sequence),
    }[knob.loss_norm]


# ---- advantages: better than its group -----------------------------------------------------------


@RULES
def test_advantages_equal_a_slow_loop(rule):
    reward = torch.rand(5, 4, dtype=torch.float64)
    reward[2] *= 30
    spread_of_all = statistics.stdev(reward.flatten().tolist())
    for group, advantages in zip(reward.tolist(), group_advantages(reward, rule, eps=0.3)):
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
            assert advantages[j].item() == pytest.approx((r - baseline) / scale)


def test_dividing_by_the_mean_refuses_negative_rewards():
    """A negative mean would turn the sign of every advantage."""
    with pytest.raises(AssertionError, match="adv_norm = 'mean'.*-0.5"):
        group_advantages(torch.tensor([[1.0, -0.5]]), 'mean')


@RULES
def test_rescaling_the_rewards_of_one_group_does_not_change_the_others(rule):
    reward = torch.rand(6, 4)
    before = group_advantages(reward, rule)
    reward[2] *= 10
    after = group_advantages(reward, rule)
    assert torch.equal(before[3:], after[3:]) == (rule != 'batch')      # one scale for all


@RULES
def test_equal_rewards_have_advantage_exactly_0(rule):
    reward = torch.full((2, 7), 1234.1)         # in float32 their mean is another number
    reward[1, 5] += 0.01
    advantages = group_advantages(reward, rule)
    assert dead_groups(reward).flatten().tolist() == [True, False]
    assert (advantages[0] == 0).all()
    assert (advantages[1] != 0).all()


def expected_step(z, reward_of, k, rule):
    """Return minus the loss's gradient (V,), on average over all groups of k ids that can be drawn
    from logits z (V,). reward_of: ids (G, k) -> their rewards (G, k)."""
    groups = torch.tensor(list(itertools.product(range(len(z)), repeat=k)))     # (G, k)
    p = (z / train_grpo.temperature).softmax(0)
    chance = p[groups].prod(1, keepdim=True)                                    # (G, 1)
    advantages = group_advantages(reward_of(groups), rule, eps=0.0) * chance
    z = z[None].clone().requires_grad_()
    terms, _ = grpo_loss(z, rollout_of(groups.flatten()), advantages, None, None, 0.0)
    return -torch.autograd.grad(terms['loss'] / k, z)[0][0]


@pytest.mark.parametrize('k', [2, 3])
def test_mean_baseline_scales_the_gradient_of_the_expected_reward_by_k_minus_1_over_k(k, knobs):
    """The mean of the others ('rloo') leaves the gradient as it is. The group's mean contains 1/k
    of the completion itself, so (k - 1) / k is left. Dividing by the std bends the gradient."""
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
def test_maxrl_follows_the_gradient_of_pass_at_1_plus_pass_at_2_over_2_and_so_on(k):
    """Dividing by the mean gives weight to prompts that seldom succeed (arXiv:2602.02710)."""
    z = randn(3)
    exact = slope(lambda z: sum(pass_at(m, z) / m for m in range(1, k)), z)
    close(expected_step(z, is_right, k, 'mean'), exact)


@pytest.mark.parametrize('m', [1, 2, 3, 4])
def test_mean_baseline_scales_the_pass_at_m_gradient_by_1_minus_m_over_k(m):
    """The reward of a completion is the share of its sets of m completions in which any is right
    (PKPO, arXiv:2505.15201). Without a baseline its gradient is that of pass@m. For m = k nothing
    is left, because every completion of a group has the same reward."""
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
def test_weight_of_a_prompt_depends_on_its_pass_rate(p, none, std, mean, at_4):
    """The step on a prompt, in units of the gradient of its pass rate p, for groups of 6. 'std'
    prefers prompts that are nearly always or nearly never right, 'mean' prefers hard ones; pass@4
    ignores easy ones."""
    z = torch.tensor([p, 1 - p], dtype=torch.float64).log()
    steps = [expected_step(z, is_right, 6, rule) for rule in ('none', 'std', 'mean')]
    steps.append(slope(lambda z: pass_at(4, z), z))
    weight = [step[0].item() / (p * (1 - p)) for step in steps]
    assert weight == pytest.approx([none, std, mean, at_4], abs=0.0051)


# ---- one distribution samples, scores and enters the ratio ---------------------------------------


@pytest.mark.parametrize('temperature, top_k, top_p', [
    (1.0, 0, 1.0),
    (0.5, 3, 1.0),
    (1.0, 0, 0.7),
    (1.3, 4, 0.8),
    (1.0, 0, 1e-6)])
def test_ids_are_drawn_as_often_as_their_log_probabilities_say(temperature, top_k, top_p, knobs):
    """The inverse CDF draws an id n * p times from n even uniforms, give or take one."""
    knobs(temperature=temperature, top_k=top_k, top_p=top_p)
    n = 20000
    logits = randn(3, 6)
    even = ((torch.arange(n) + 0.5) / n).double().expand(3, n)
    actions, kept = choose(logits, even, temperature, top_k, top_p)             # (3, n), (3, 6)
    for z, drawn, logp in zip(logits, actions, log_probs(logits, temperature, kept)):
        p, _ = slow_softmax(z)
        assert ((torch.bincount(drawn, minlength=6) - n * p).abs() < 1.01).all()
        close(logp.exp(), p)


@pytest.mark.parametrize('V', [5, 50257])
def test_an_id_of_probability_0_is_never_drawn_and_ties_do_not_widen_top_k(V):
    u = torch.tensor([0.0, 1e-30, 0.5, 1 - 2 ** -24]).expand(64, 4)
    kept = torch.rand(64, V) < 0.5
    kept[:, [0, -1]] = False
    kept[:, V // 2] = True
    actions = draw(log_probs(torch.randn(64, V), 1.0, kept), u)
    assert kept.gather(1, actions).all()
    assert kept_set(torch.zeros(3, V).log_softmax(-1), 4).sum(1).tolist() == [4, 4, 4]


# ---- the ratio: how much likelier is a token than when it was sampled? ---------------------------

MODES = pytest.mark.parametrize('mode', [
    {},
    {'n_fill_steps': 2},
    {'n_fill_steps': 3},
    {'causal': True}])
FILTERS = pytest.mark.parametrize('filters', [{}, {'top_k': 4, 'top_p': 0.7}])


def use(settings, knobs, **more):
    """Set knobs; return the setting 'causal', which is a property of the network."""
    knobs(**{name: value for name, value in settings.items() if name != 'causal'}, **more)
    return 'causal' in settings


@MODES
@FILTERS
def test_before_the_policy_moves_the_ratio_is_1_and_the_gradient_is_that_of_reinforce(
        mode, filters, knobs):
    causal = use(mode | filters, knobs, temperature=0.8)
    policy = tiny(causal).float()
    r = rollout(policy, toy_prompts(causal))
    z = r.logits_of(policy).detach().requires_grad_()
    logp = log_probs(z, 0.8, r.kept)[r.distribution_of, r.actions]
    A = torch.randn(4, 3)
    expected = -torch.autograd.grad(logp @ A.flatten()[r.sequence_of], z)[0]
    for old in (None, logp.detach()):
        terms, _ = grpo_loss(z, r, A, old, None, 0.0)
        close(torch.autograd.grad(terms['loss'], z)[0], expected, atol=1e-4)


@pytest.mark.parametrize('A, p_new, is_cut', [
    (1.0, 0.23, False),
    (1.0, 0.25, True),                          # more than 1.2 times as likely
    (1.0, 0.05, False),
    (-1.0, 0.17, False),
    (-1.0, 0.15, True),                         # less than 0.8 times
    (-1.0, 0.45, False)])
def test_ppo_clips_the_gradient_of_a_token_that_moved_too_far_but_not_on_its_way_back(
        A, p_new, is_cut, knobs):
    """The old probability is 0.2. PPO's min() ends the gradient; CISPO (arXiv:2506.13585) clips the
    weight of the gradient of log p, above only. Both count what they clip."""
    z = torch.tensor([[p_new, 0.5 - p_new, 0.5]]).log().requires_grad_()
    score = torch.eye(3)[0] - z.detach().exp()              # the gradient of log p of id 0
    ratio = p_new / 0.2
    weight = {'ppo': 0 if is_cut else ratio, 'cispo': min(ratio, 1.2)}
    for objective in ('ppo', 'cispo'):
        knobs(objective=objective)
        r = rollout_of(torch.tensor([0]))
        old = torch.tensor([0.2]).log()
        terms, sums = grpo_loss(z, r, torch.tensor([[A]]), old, None, 0.0)
        close(torch.autograd.grad(terms['loss'], z)[0], -weight[objective] * A * score, atol=1e-6)
        assert sums['clip_frac'] == (is_cut if objective == 'ppo' else ratio > 1.2)


# ---- KL and entropy: near the start --------------------------------------------------------------


def joint(z):
    """Log-probs (V, V, V) of all completions of three blanks that are filled in one pass."""
    a, b, c = z.log_softmax(-1)
    return a[:, None, None] + b[:, None] + c


def test_sums_over_blanks_equal_the_kl_and_entropy_of_whole_completions():
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


@pytest.mark.parametrize('kl_type, mean_is, gradient_is', [
    ('k1', 'reverse', 'nothing'),
    ('k2', 'neither', 'reverse'),
    ('k3', 'reverse', 'forward'),
    ('k3_ratio', 'reverse', 'reverse')])
def test_mean_and_gradient_of_a_kl_estimator_belong_to_different_kls(kl_type, mean_is, gradient_is):
    """Every id counts as often as it is likely. k1 is right on average and has no gradient; k2 is
    wrong on average and has the gradient of the exact KL(policy || reference)."""
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
    mean = logp.detach().exp() @ sampled_kl(logp, logp_ref, ratio, kl_type)
    assert (mean_is == 'reverse') == ((mean - kl['reverse'](z)).abs() < 1e-9)
    close(torch.autograd.grad(mean, z)[0], slope(kl[gradient_is], z.detach()))


@pytest.mark.parametrize('kl_type', ['exact', 'k1', 'k2', 'k3', 'k3_ratio'])
def test_extreme_log_probs_leave_the_gradient_finite(kl_type, knobs):
    knobs(kl_type=kl_type, entropy_coef=0.1)
    z = torch.tensor([[300.0, 0, -300.0]], requires_grad=True)
    logp_ref = (-z).detach().log_softmax(-1)
    terms, _ = grpo_loss(z, rollout_of(torch.arange(3)), torch.ones(1, 3), None, logp_ref, 0.1)
    assert torch.autograd.grad(terms['loss'], z)[0].isfinite().all()


def test_adapted_kl_beta_finds_the_beta_that_holds_the_target():
    beta = 1.0
    for _ in range(2000):
        kl = 0.04 / beta                        # of a toy policy under this beta
        beta = adapted_kl_beta(beta, kl, 0.1, 1000)
    assert beta == pytest.approx(0.4, rel=0.01)
    assert adapted_kl_beta(1.0, 99.0, 0.1, 1000) == pytest.approx(1.02)     # not too fast


# ---- the loss: a whole step equals that of the slow loops ----------------------------------------


def letters(prompts, completions):
    """A reward: how many a's there are."""
    return [text.count('a') for text in completions]


def toy_scorer(policy, reference):
    return Scorer(functions={'letters': letters}, policy=policy, reference=reference,
                  temperature=train_grpo.temperature)


FOUR = {'batch_size': 1, 'gradient_accumulation_steps': 4}
TWO = {'batch_size': 2, 'gradient_accumulation_steps': 2}
STEPS = {
    'one pass': {'batch_size': 4, 'adv_norm': 'rloo'},
    'micro-steps, tempered': {**TWO, 'temperature': 1.3, 'adv_norm': 'std', 'kl_type': 'k3'},
    'filtered, by sequence': {**FOUR, 'top_p': 0.8, 'loss_norm': 'sequence', 'entropy_coef': 0.2},
    'updates, clipped': {'batch_size': 4, 'inner_updates': 3, 'clip_low': 0.01, 'clip_high': 0.02},
    'sequence ratio': {**TWO, 'inner_updates': 2, 'ratio_level': 'sequence', 'kl_type': 'k3_ratio',
                       'loss_norm': 'constant', 'clip_high': 0.01},
    'cispo, mini-batches': {**FOUR, 'objective': 'cispo', 'mini_batches': 2, 'inner_updates': 2,
                            'top_k': 3, 'kl_type': 'k2', 'clip_high': 0.01},
    'mini-batches': {**FOUR, 'mini_batches': 4, 'clip_low': 0.01, 'loss_norm': 'sequence'},
    'two passes': {**TWO, 'n_fill_steps': 2, 'loss_norm': 'sequence', 'temperature': 0.7},
    'three passes': {**FOUR, 'n_fill_steps': 3, 'top_p': 0.9, 'inner_updates': 2,
                     'clip_low': 0.01, 'kl_type': 'k1', 'adv_norm': 'batch'},
    'causal': {**TWO, 'causal': True, 'entropy_coef': 0.1},
    'causal, filtered': {**TWO, 'causal': True, 'top_p': 0.8, 'temperature': 1.2,
                         'mini_batches': 2, 'inner_updates': 2, 'loss_norm': 'sequence',
                         'ratio_level': 'sequence'},
}


@pytest.mark.parametrize('case', STEPS)
def test_a_step_equals_slow_loops_over_prompts_completions_and_tokens(case, knobs):
    """Plain gradient descent moves the weights by the gradient, so the weights show the gradient.
    Every update is divided once, whatever number of micro-steps it has."""
    causal = use(STEPS[case], knobs, grad_clip=0.0, rewards={'letters': 1.0, 'kl': -0.5})
    policy = tiny(causal)
    reference = tiny(causal, seed=3).requires_grad_(False)
    by_hand = copy.deepcopy(policy)
    prompts = toy_prompts(causal)
    optimizers = [torch.optim.SGD(policy.parameters())]
    _, scores, advantages, line = take_step(policy, reference, optimizers,
                                            toy_scorer(policy, reference), prompts, 0.5, 0.3)

    # Act and judge. The reward 'kl' is k1 of the whole completion, unfiltered.
    completions = slow_rollout(by_hand, prompts)                # 12: 4 prompts, 3 of each
    expected = []
    for sequence, tokens in completions:
        k1 = sum((slow_logp(by_hand, c) - slow_logp(reference, c))[c.id] for c in tokens)
        expected.append(sequence.tolist().count(1) - 0.5 * k1.item())
    close(scores['reward'].double().flatten(), torch.tensor(expected).double(), atol=1e-5)
    close(advantages, group_advantages(scores['reward'], train_grpo.adv_norm))

    # Learn: the updates of an epoch take turns at the prompts.
    size = 4 // train_grpo.mini_batches
    for i in range(train_grpo.inner_updates * train_grpo.mini_batches):
        first = i * size % 4
        loss = slow_loss(by_hand, reference, completions[3 * first:][:3 * size],
                         advantages[first:first + size], 0.3)
        after = weights(by_hand) - 0.5 * gradient(loss, by_hand)
        nn.utils.vector_to_parameters(after, by_hand.parameters())
    close(weights(policy), weights(by_hand), atol=1e-7)
    n_updates = train_grpo.inner_updates * train_grpo.mini_batches
    assert (line['clip_frac'] > 0) == (n_updates > 1)
    if n_updates == 1:                          # of this loss
        assert line['loss'].item() == pytest.approx(loss.item(), abs=1e-5)


def test_each_loss_norm_weighs_tokens_and_sequences_as_it_says(knobs):
    """Two completions of 3 and 1 tokens, with advantages +1 and -1: by tokens the longer one has
    three votes of four, by sequences one of two."""
    r = rollout_of(torch.tensor([0, 1, 2, 1]), torch.tensor([0, 0, 0, 1]))
    for norm, mean in (('token', -2 / 4), ('sequence', 0.0), ('constant', -2 / 20)):
        knobs(loss_norm=norm)
        terms, _ = grpo_loss(randn(1, 4), r, torch.tensor([[1.0, -1.0]]), None, None, 0.0)
        assert terms['loss'].item() / loss_divisor(r) == pytest.approx(mean, abs=1e-6)


# ---- passes: a blank sees what earlier passes filled ---------------------------------------------


def everything(policy, k, order):
    """Return all outcomes of one prompt of three blanks, filled in an order: X = V^3 completions
    (sequence, Tokens); their log p (X,), with graph; all groups (G, k) of k of them, the chance (G,
    1) of each; and a Rollout in which each group is a prompt of its own."""
    tokens = torch.zeros(1, 3).long()
    prompt = Prompts(tokens, tokens == 0, tokens, None, torch.tensor([order]), TOK)
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
    logp = torch.stack([sum(c.logp for c in tokens) for _, tokens in outcomes])

    groups = torch.tensor(list(itertools.product(range(len(outcomes)), repeat=k)))
    chance = logp[groups].sum(1, keepdim=True).exp().detach()
    uniforms = torch.tensor(uniforms).double()[groups]                          # (G, k, T)
    copies = [tensor[[0] * len(groups)] for tensor in (tokens, prompt.mask, tokens, prompt.order)]
    prompts = Prompts(*copies[:3], uniforms, copies[3], TOK)
    return outcomes, logp, groups, chance, rollout(policy, prompts)


@ORDERS
@pytest.mark.parametrize('n', [1, 2, 3, 7])
def test_the_probabilities_of_all_completions_add_up_to_one(n, order, knobs):
    """The order of the blanks does not depend on the samples. So the probability of a completion is
    the product over its tokens, one after the other."""
    knobs(n_fill_steps=n)
    policy = tiny(V=4, T=3)
    outcomes, logp, _, chance, r = everything(policy, 1, order)
    assert torch.equal(r.sequences, torch.stack([sequence for sequence, _ in outcomes]))    # all 64
    close(r.sum(logp_of(policy, r)[r.distribution_of, r.actions]), logp.detach())
    close(chance.sum(), torch.ones(()).double())


@MODES
@FILTERS
@pytest.mark.parametrize('greedy', [False, True])
def test_a_rollout_equals_a_slow_loop_over_one_blank_at_a_time(mode, filters, greedy, knobs):
    causal = use(mode | filters, knobs, temperature=0.8)
    policy = tiny(causal)
    prompts = toy_prompts(causal, P=9, k=8)
    r = rollout(policy, prompts, greedy)
    completions = slow_rollout(policy, prompts, greedy)
    assert torch.equal(r.sequences, torch.stack([sequence for sequence, _ in completions]))

    slow = {(n, c.t): c for n, (_, tokens) in enumerate(completions) for c in tokens}
    places = list(zip(r.sequence_of.tolist(), r.position.tolist()))
    assert sorted(places) == sorted(slow)       # each sampled token once
    tokens = [slow[place] for place in places]
    if not greedy:                              # greedy decoding keeps one id, of probability 1
        logp = torch.stack([c.logp for c in tokens])
        close(log_probs(r.logits_of(policy), 0.8, r.kept)[r.distribution_of, r.actions], logp)

    # A state has what earlier passes filled, or what stands to the left, and nothing later.
    places = r.where.nonzero()                  # (U, 2) state and position
    state, t = places[r.distribution_of].T                                      # (M,) each
    assert torch.equal(t, r.position)
    known = torch.stack([c.state for c in tokens])
    given = torch.arange(6) < t[:, None] if causal else known != policy.mask_id
    assert torch.equal(r.states[state][given], known[given])
    if not causal:                              # completions in the same state share a distribution
        distinct = {(n // r.k, t, *c.state.tolist()) for (n, t), c in slow.items()}
        assert len(places) == len(distinct) < len(tokens)


@ORDERS
@pytest.mark.parametrize('n', [1, 2, 3])
def test_over_all_groups_the_gradient_is_that_of_the_expected_reward(n, order, knobs):
    knobs(n_fill_steps=n)
    policy = Table()
    _, logp, groups, chance, r = everything(policy, 2, order)
    reward = randn(8)
    advantages = group_advantages(reward[groups], 'rloo') * chance
    terms, _ = grpo_loss(r.logits_of(policy), r, advantages, None, None, 0.0)
    close(-gradient(terms['loss'] / 2, policy), gradient(logp.exp() @ reward, policy))


@ORDERS
@pytest.mark.parametrize('n', [1, 2, 3])
def test_exact_kl_misses_the_gradient_through_states_and_k1_reward_has_it(n, order, knobs):
    """The mean of the closed form over the visited states is the KL of whole completions. Its
    gradient has two parts: the distributions change, and so does how often each state is visited.
    The closed form has only the first. With one pass there is one state, and nothing is missing."""
    knobs(n_fill_steps=n)
    policy = Table(seed=0)
    reference = Table(seed=1)
    outcomes, logp, groups, chance, r = everything(policy, 2, order)
    k1 = logp.detach().clone()                                                  # (8,)
    for x, (_, tokens) in enumerate(outcomes):
        k1[x] -= sum(slow_logp(reference, c)[c.id].item() for c in tokens)
    whole = gradient(logp.exp() @ k1, policy)

    logits = r.logits_of(policy)
    per_token = exact_kl(log_probs(logits), logp_of(reference, r))[r.distribution_of]
    closed = chance.flatten()[r.sequence_of // 2] @ per_token / 2
    close(closed, logp.exp() @ k1)
    missing = (whole - gradient(closed, policy)).norm() / whole.norm()
    assert missing < 1e-9 if n == 1 else missing > 0.05

    advantages = group_advantages(-k1[groups], 'rloo') * chance
    terms, _ = grpo_loss(logits, r, advantages, None, None, 0.0)
    close(gradient(terms['loss'] / 2, policy), whole)


# ---- it learns -----------------------------------------------------------------------------------


@pytest.mark.parametrize('causal, reward, kl_beta, learns', [
    (False, 'letters', 0.0, True),
    (True, 'letters', 0.0, True),
    (False, 'noise', 0.05, False),
    (False, 'letters', 20.0, False)])
def test_a_policy_learns_the_letter_that_a_toy_reward_likes(causal, reward, kl_beta, learns, knobs):
    """It learns nothing from a reward that is noise, or under a strong KL."""
    knobs(batch_size=16, rewards={reward: 1.0})
    policy = GPT(5, 6, 1, 2, 16, causal)
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizers = make_optimizers(policy, 'muon', 1e-2, 0.0, 0.9, 0.95)
    scorer = toy_scorer(policy, reference)
    scorer.functions['noise'] = lambda prompts, completions: torch.rand(len(prompts))
    for step in range(60):
        prompts = toy_prompts(causal, P=16, k=8, seed=step)
        [(_, r)], *_ = take_step(policy, reference, optimizers, scorer, prompts, 1e-2, kl_beta)
    share = (r.actions == 1).float().mean()     # of a's; 1/5 at the start
    assert share > 0.85 if learns else 0.05 < share < 0.4


@pytest.fixture
def toy_data(tmp_path):
    """Return a Dataset of words, and verify(): is there an 'ab' in it?"""
    path = tmp_path / 'words.jsonl'
    lines = [f'{{"prompt": "{"".join(word)}"}}' for word in itertools.permutations('abcd')]
    path.write_text('\n'.join(lines))
    data = Dataset(str(path), TOK)
    data.verify = lambda prompt, completion: float('ab' in completion)
    return data


@pytest.mark.parametrize('causal, blank_kind', [(False, 'random'), (True, 'suffix')])
def test_a_page_of_a_notebook(causal, blank_kind, toy_data, knobs):
    knobs(blank_kind=blank_kind, batch_size=8, group_size=4, eval_prompts=20, temperature=2.0,
          rewards={'letters': 1.0, 'verify': 0.5})
    policy = tiny(causal).float()
    reference = copy.deepcopy(policy)
    scorer = Scorer(verify=toy_data.verify, functions={'letters': letters})

    # Act: four completions of each of eight prompts. Other steps have other prompts.
    prompts = get_prompts(toy_data, 7, causal)
    assert not torch.equal(get_prompts(toy_data, 8, causal).uniforms, prompts.uniforms)
    r = rollout(policy, prompts)

    # Judge: each reward by itself, from the text.
    scores = scorer.score(['letters', 'verify'], r)                             # (8, 4) each
    _, completions, _ = r.texts()
    assert scores['letters'].flatten().tolist() == letters('', completions)
    assert scores['verify'].flatten().tolist() == ['ab' in text for text in completions]

    # Learn: the prompts of step 7 bring their random numbers, so these are the same completions.
    # Those that beat their group become likelier.
    logp_old = logp_of(policy, r)[r.distribution_of, r.actions]
    optimizers = [torch.optim.SGD(policy.parameters())]
    [(_, again)], step_scores, advantages, _ = take_step(policy, reference, optimizers, scorer,
                                                         prompts, 0.1, 0.0)
    assert torch.equal(again.sequences, r.sequences)
    close(step_scores['reward'], scores['letters'] + 0.5 * scores['verify'])
    change = logp_of(policy, r)[r.distribution_of, r.actions] - logp_old
    assert change @ advantages.flatten()[r.sequence_of] > 1e-3

    # Evaluate: means over held-out prompts, of greedy decoding and of four samples each.
    held_out = get_prompts(toy_data, 0, causal, 'val')
    means = evaluate(policy, scorer, held_out, 'verify')
    for name, greedy in (('verify_greedy', True), ('verify', False)):
        verify = scorer.score(['verify'], rollout(policy, held_out, greedy))['verify']  # (n, 4)
        assert means[name] == pytest.approx(verify.mean().item())
    assert means['pass@4'] == pytest.approx(verify.amax(1).mean().item())
    error = verify.mean(1).std().item() / len(held_out) ** 0.5
    assert means['standard_error'] == pytest.approx(error)
