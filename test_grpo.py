"""Lessons: each part of GRPO, compared with something that is not the code: an enumeration of all
outcomes, finite differences, or slow loops over one token at a time. Read from top to bottom.

    python -m pytest -q test_grpo.py

  tools               toy policies, prompts by hand, and two slow oracles: completing a sequence,
                      and the loss of a completion, one sampled token at a time
  advantages          three rules, and whose gradient each follows
  drawing             an id of probability 0 never comes
  the ratio           1 before the policy moves, then a bound on how far it moves
  KL                  near the start, and finite
  the loss            how much a token weighs; a whole step equals that of the slow loops: modes,
                      norms, filters, micro-steps
  passes              a blank sees what earlier passes filled: exact log-probs, exact gradients
  it learns           toy policies find what a toy reward likes; the numbers of an evaluation

(The papers of config/papers/ have their lessons in tests/test_papers.py.)

Letters: P prompts of a step, B of a micro-step | k completions of each | N = B * k sequences
T positions | V vocabulary | M sampled tokens | G groups"""
import collections
import copy
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import run.batching
import train_grpo
from dataset import Dataset, Tokenizer
from judge import Scorer
from model import GPT, make_optimizers
from rollout import (Prompts, Rollout, TokenStats, draw, kept_set, log_probs, stats_of,
                     token_stats)
from run.batching import distinct_rows
from run.command import configure
from train_grpo import (act, all_equal, collect, evaluate, group_advantages,
                        grpo_loss, k3, learn)

torch.set_num_threads(1)        # at this size two threads would only wait for each other
RULES = pytest.mark.parametrize('rule', ['none', 'std', 'batch'])
CAUSAL = pytest.mark.parametrize('causal', [False, True])
TOK = Tokenizer('char', 'abcd')     # ids 1 to 4; 0 ends a text; 5 is a blank, 6 bos, 7 padding


# ---- tools ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def knobs(monkeypatch):
    """knobs(clip_low=0.1, ...) sets knobs of train_grpo, as a notebook would, for one test. Config
    files may come first: knobs('config/papers/gspo.py', clip_low=0.1)."""
    def change(*files, **values):
        if files:
            everything = dict(vars(train_grpo))
            values, functions = configure(everything, [*files, values])
            for knob in train_grpo.RULES:
                if values[knob] in functions:
                    monkeypatch.setattr(train_grpo.rules, knob, functions[values[knob]])
        for name, value in values.items():
            monkeypatch.setattr(train_grpo, name, value)

    change(**copy.deepcopy(train_grpo.DEFAULTS) | {'entropy_coef': 0.0})
    torch.manual_seed(0)
    return change


def close(actual, expected, atol=1e-9, **more):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=1e-6, **more)


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


def tiny(causal=False, seed=0, V=5, T=6, n_layer=1, **more):
    """Return a GPT all of whose weights matter. In a new one the output is zero."""
    torch.manual_seed(seed)
    model = GPT(V, T, n_layer, 2, 8, causal, **more).double()
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    return model


def network(seed=0, bias=-0.14, **more):
    """Return a tiny GPT that decides an order, with scores on both sides of 0."""
    model = tiny(seed=seed, **more)
    model.decide_order(4)
    nn.init.normal_(model.order.weight, std=0.03)
    nn.init.constant_(model.order.bias, bias)
    return model


def toy_data(causal=False, P=4, tok=TOK, reply=None, **columns):
    """Return what Prompts of P rows need of a Dataset. columns: lists of P values."""
    data = Dataset.__new__(Dataset)
    examples = [dict(zip(columns, values)) for values in zip(*columns.values())] or [{}] * P
    vars(data).update(tok=tok, causal=causal, reply=reply, examples=examples, world_ids=[])
    return data


def toy_prompts(causal=False, P=4, k=3, seed=1):
    """Return Prompts of six positions and five ids, with 1, 2, 3, 4, 1, ... blanks: anywhere, or at
    the end if causal. The last position is padding; of the third prompt the last two are, which can
    cost it a blank. The first prompt has id 0 (eos) among its given ids, which ends nothing there.
    Id 1, the letter a, is never given."""
    torch.manual_seed(seed)
    tokens = torch.randint(2, 5, (P, 6))
    tokens[0, 3] = TOK.eos
    tokens[:, 5] = TOK.pad
    rank = torch.rand(P, 5).argsort(1)
    if causal:
        rank = torch.arange(4, -1, -1)
    blank = nn.functional.pad(rank <= torch.arange(P)[:, None] % 4, (0, 1))
    blank[2, 4] = False
    tokens[2, 4] = TOK.pad
    uniforms = torch.rand(P, k, 6).double()
    return Prompts(tokens, blank, uniforms, torch.rand(P, 6),
                   torch.zeros(P, k, 0, 6), torch.arange(P), toy_data(causal, P))


def rollout_of(ids):
    """Return a Rollout of M sampled ids by hand: sequences of one token."""
    ids = ids[:, None]
    return Rollout(None, ids, 0 * ids, torch.zeros(ids.shape))


def two_sequences(*lengths):
    """Return a Rollout of two sequences by hand, of so many sampled tokens. Each token is id 0."""
    pass_of = -(torch.arange(4) >= torch.tensor(lengths)[:, None]).long()       # 0 or -1
    prompts = SimpleNamespace(blank=torch.ones(1, 4), k=2)
    return Rollout(prompts, torch.zeros(2, 4).long(), pass_of, torch.zeros(2, 4))


def loss_of(z, r, advantages, logp_old=None, z_ref=None, beta=0.0):
    """Return the summed loss of a Rollout by hand, whose tokens have logits z (M, V)."""
    actions = r.sequences[r.is_sampled]                                         # (M,)
    zeros = torch.zeros(r.sequences.shape, dtype=z.dtype)
    stats = TokenStats(*[zeros.masked_scatter(r.is_sampled, values) for values in stats_of(
        z, torch.arange(len(z)), actions, z_ref, r.kept, train_grpo.temperature)])
    if logp_old is not None:
        r.stats_old = stats._replace(logp=logp_old)
    return grpo_loss(stats, r, advantages, beta)


Token = collections.namedtuple('Token', 'i state t id kept logp')


def slow_softmax(z):
    """Return the probabilities (V,) with which ids are sampled from logits z (V,), and the ids that
    are kept."""
    p = (z / train_grpo.temperature).softmax(0)
    likeliest = p.topk(train_grpo.top_k or len(p)).indices
    enough = train_grpo.top_p * p[likeliest].sum()      # top_p is a share of what top_k leaves
    kept = likeliest[:sum(p[likeliest[:i]].sum() < enough for i in range(len(likeliest)))]
    return torch.zeros_like(p).scatter(0, kept, p[kept]) / p[kept].sum(), kept


def slow_logits(model, state, t):
    """Return the logits (V,) of a model for position t of a state (T,) that may have blanks."""
    return model.logits(model(state[None])[0, t])


def slow_choice(model, prompts, b, j, state, i, greedy):
    """Return which blanks of a state (T,) pass i fills, and {t: log-probability} of the decisions
    of a learned order."""
    is_open = (state == model.blank_id).nonzero().flatten().tolist()    # from left to right
    if model.causal:
        return is_open[:1], {}
    if i == train_grpo.n_fill_steps - 1:
        return is_open, {}
    x = model(state[None])[0]
    if train_grpo.fill_order == 'learned':
        chance = model.order_scores(x).sigmoid()
        now = [t for t in is_open if prompts.more_uniforms[b, j, i, t] < chance[t]]
        if greedy:
            best = max(is_open, key=lambda t: chance[t])
            now = [t for t in is_open if chance[t] > 0.5 or t == best]
        return now, {t: (chance[t] if t in now else 1 - chance[t]).log() for t in is_open}
    key = prompts.order[b]
    if train_grpo.fill_order == 'left':
        key = range(len(state))
    if train_grpo.fill_order == 'confident':
        key = -model.logits(x).softmax(1).amax(1)
    n_blanks = int(prompts.blank[b].sum())
    filled = math.ceil((i + 1) * n_blanks / min(n_blanks, train_grpo.n_fill_steps))
    return sorted(is_open, key=lambda t: key[t])[:filled - n_blanks + len(is_open)], {}


def slow_completion(model, prompts, b, j, greedy=False):
    """Complete prompt b for the j-th time, one blank at a time. Return the sequence (T,); its
    Tokens in the order they were sampled: the pass, the state, the position, the id, the kept ids,
    and the log-probability, with graph; and (t, log-probability) of decisions."""
    sequence = prompts.tokens[b].masked_fill(prompts.blank[b], model.blank_id)
    tokens, decisions = [], []
    for i in itertools.count():
        if not (sequence == model.blank_id).any():
            return sequence, tokens, decisions
        state = sequence.clone()
        now, decided = slow_choice(model, prompts, b, j, state, i, greedy)
        decisions += decided.items()
        for t in now:
            p, kept = slow_softmax(slow_logits(model, state, t))
            a = int((p.cumsum(0) <= prompts.uniforms[b, j, t]).sum())   # the inverse CDF
            sequence[t] = a
            tokens.append(Token(i, state, t, a, kept, p[a].log()))
            if model.causal and a == TOK.eos:
                sequence[t + 1:] = TOK.pad


def slow_rollout(model, prompts, greedy=False):
    """Return completions (sequence, Tokens, decisions) of Prompts, a list of N."""
    return [slow_completion(model, prompts, b, j, greedy)
            for b in range(len(prompts)) for j in range(prompts.k)]


def slow_logp(model, token):
    """Return log-probs (V,) of any model at a Token, unfiltered."""
    return (slow_logits(model, token.state, token.t) / train_grpo.temperature).log_softmax(0)


def slow_loss(policy, reference, completions, advantages, kl_beta, n_blanks):
    """Return the loss of completions, see slow_rollout(), from its definition and the knobs.
    n_blanks: tokens that they could have had."""
    knob = train_grpo
    high = 1 + knob.clip_high
    losses = []                                 # of the tokens, for each completion
    for (_, tokens, _), A in zip(completions, advantages.flatten()):
        losses.append([])
        full = [slow_logp(policy, c) for c in tokens]
        sampled = [logp[c.id] - logp[c.kept].logsumexp(0) for logp, c in zip(full, tokens)]
        for c, logp, now in zip(tokens, full, sampled):
            ratio = (now - c.logp.detach()).exp()
            gain = torch.min(ratio * A, ratio.clamp(1 - knob.clip_low, high) * A)
            logp_ref = slow_logp(reference, c).detach()
            gap = (logp_ref - logp)[c.id]
            kl = {
                'exact': logp.exp() @ (logp - logp_ref),
                'k3': gap.exp() - 1 - gap,
            }[knob.kl_type]
            losses[-1].append(kl_beta * kl - gain + knob.entropy_coef * logp.exp() @ logp)
    tokens = torch.stack(sum(losses, []))
    return {
        'token': tokens.mean(),
        'sequence': sum(sum(values) / len(values) for values in losses) / len(losses),
        'constant': tokens.sum() / n_blanks,
    }[knob.loss_norm]


# ---- advantages: better than its group -----------------------------------------------------------


# None: the function does not apply, or has no answer.
SOME_MISSING = [[1.0, None, 0.5, -1.0], [None, 3.0, None, None], [2.1, 2.1, None, 2.1], [None] * 4]


@RULES
def test_a_missing_reward_is_left_out_of_mean_and_std_and_does_not_learn(rule, knobs):
    knobs(adv_norm=rule, rewards={'mine': 2.0}, batch_size=2)
    parts = iter([sum(SOME_MISSING[:2], []), sum(SOME_MISSING[2:], [])])
    scorer = Scorer(functions={'mine': lambda completions: next(parts)})
    _, scores, advantages = collect(tiny(), scorer, toy_prompts(k=4))
    del scores['tokens'], scores['ended']
    groups = [[2 * x for x in row if x is not None] for row in SOME_MISSING]
    everything = torch.tensor(sum(groups, []))
    means = train_grpo.means_of(scores, 'mean_')
    mean = torch.tensor([sum(group) / len(group) for group in groups if group]).mean()
    close(means, {'mean_mine': mean / 2, 'mean_reward': mean})
    for row, group, values in zip(SOME_MISSING, groups, advantages):
        for x, A in zip(row, values):
            expected = 0
            if x is not None and max(group) > min(group):
                values = torch.tensor(group)
                scale = {'none': 1, 'std': values.std() + 1e-4, 'batch': everything.std() + 1e-4}
                expected = (2 * x - values.mean()) / scale[rule]
            assert A == pytest.approx(expected)
    assert all_equal(advantages)[:, 0].tolist() == [False, True, True, True]
    assert train_grpo.means_of({'mine': scores['mine'][3:]}, 'mean_') == {}


def test_of_several_rewards_each_counts_where_it_applies(knobs):
    """A missing one moves nothing: it counts as the mean of its group."""
    knobs(rewards={'a': 1.0, 'b': -2.0})
    b = torch.tensor([[math.nan if x is None else x for x in row] for row in SOME_MISSING])
    a = torch.rand(4, 4)
    a[0, 1] = a[3, 3] = math.nan
    b[3, 2] = math.nan
    filled = b.clone()
    filled[0, 1], filled[1], filled[2, 2], filled[3] = 0.5 / 3, 3.0, 2.1, 0.0
    expected = a - 2 * filled
    expected[0, 1] = math.nan
    close(train_grpo.weighted_sum({'a': a, 'b': b}), expected, equal_nan=True)


def test_a_rule_that_forgets_missing_rewards_is_refused(knobs, monkeypatch):
    knobs(adv_norm='mine', rewards={'mine': 1.0}, batch_size=4)
    scorer = Scorer(functions={'mine': lambda completions: [None] + 15 * [1.0]})
    monkeypatch.setattr(train_grpo.rules, 'adv_norm',
                        lambda reward, scores: reward - reward.mean(1, keepdim=True))
    with pytest.raises(AssertionError, match='NaN where a reward is missing'):
        collect(tiny(), scorer, toy_prompts(k=4))


@RULES
def test_equal_rewards_have_advantage_exactly_0(rule, knobs):
    knobs(adv_norm=rule, rewards={'level': 1.0}, batch_size=4)
    level = [77.7] * 28                 # in float32 their mean is another number
    level[12] += 0.01
    scorer = Scorer(functions={'level': lambda completions: level})
    _, scores, advantages = collect(tiny(), scorer, toy_prompts(k=7))
    is_dead = all_equal(scores['reward'])[:, 0]
    assert is_dead.tolist() == [True, False, True, True]
    assert not advantages[is_dead].any() and advantages[1].any()


def expected_step(z, reward_of, k, advantages_of):
    """Return minus the loss's gradient (V,), on average over all groups of k ids that can be drawn
    from logits z (V,). reward_of: ids (G, k) -> their rewards (G, k). advantages_of: rewards (G, k)
    -> advantages."""
    groups = torch.tensor(list(itertools.product(range(len(z)), repeat=k)))     # (G, k)
    logp = (z / train_grpo.temperature).log_softmax(0)
    chance = logp[groups].sum(1, keepdim=True).exp()                            # (G, 1)
    advantages = advantages_of(reward_of(groups)) * chance
    z = z.clone().requires_grad_()
    terms, _ = loss_of(z.expand(groups.numel(), -1), rollout_of(groups.flatten()), advantages)
    return -torch.autograd.grad(terms['loss'] / k, z)[0]


def centred(reward):
    """Advantages of the rule 'none'."""
    return reward - reward.mean(1, keepdim=True)


def unbiased(reward):
    """Reward minus the mean of the others (G, k)."""
    k = reward.size(1)
    return torch.stack([reward[:, j] - reward[:, torch.arange(k) != j].mean(1)
                        for j in range(k)], 1)


@pytest.mark.parametrize('k', [2, 3])
def test_mean_baseline_scales_the_gradient_of_the_expected_reward_by_k_minus_1_over_k(k, knobs):
    """The mean of the others leaves the gradient as it is. The group's mean contains 1/k of the
    completion itself, so (k - 1) / k is left. Dividing by the std bends the gradient."""
    knobs(temperature=0.7)
    z = randn(4)
    table = randn(4)
    exact = slope(lambda z: (z / 0.7).softmax(0) @ table, z)

    def step(rule):
        knobs(adv_norm=rule)
        return expected_step(z, lambda ids: table[ids], k, group_advantages)

    close(step('none'), exact * (k - 1) / k)
    assert 0.5 < torch.cosine_similarity(step('std'), exact, dim=0) < 0.9999
    close(expected_step(z, lambda ids: table[ids], k, unbiased), exact)


# ---- drawing -------------------------------------------------------------------------------------


@pytest.mark.parametrize('V', [5, 50257])
def test_an_id_of_probability_0_is_never_drawn_and_ties_do_not_widen_top_k(V):
    u = torch.tensor([0.0, 1e-30, 0.5, 1 - 2 ** -24]).repeat(16)
    kept = torch.rand(16, V) < 0.5
    kept[:, [0, -1]] = False
    kept[:, V // 2] = True
    kept = kept.repeat_interleave(4, 0)                     # all uniforms for each of 16
    z = torch.randn(16, V).repeat_interleave(4, 0)
    actions = draw(log_probs(z, 1.0, kept), u)
    assert kept.gather(1, actions[:, None]).all()
    assert kept_set(torch.zeros(3, V).log_softmax(-1), 4).sum(1).tolist() == [4, 4, 4]


# ---- the ratio: how much likelier is a token than when it was sampled? ---------------------------


CLIPPED = {                     # by advantage and new probability: is the gradient cut?
    (1.0, 0.2): False,          # it has not moved
    (1.0, 0.23): False,
    (1.0, 0.25): True,          # more than 1.2 times as likely
    (1.0, 0.05): False,
    (-1.0, 0.17): False,
    (-1.0, 0.15): True,         # less than 0.8 times
    (-1.0, 0.45): False,
}


@pytest.mark.parametrize('A, p_new', CLIPPED)
def test_ppo_clips_the_gradient_of_a_token_that_moved_too_far_but_not_on_its_way_back(
        A, p_new, knobs):
    """The old probability is 0.2. At ratio 1 the gradient is that of REINFORCE. PPO's min() ends
    it, and the log counts what it ends."""
    z = torch.tensor([[p_new, 0.5 - p_new, 0.5]]).log().requires_grad_()
    score = torch.eye(3)[0] - z.detach().exp()              # the gradient of log p of id 0
    is_cut = CLIPPED[A, p_new]
    terms, sums = loss_of(z, rollout_of(torch.tensor([0])), torch.tensor([[A]]),
                          torch.tensor([[0.2]]).log())
    weight = 0 if is_cut else p_new / 0.2
    close(torch.autograd.grad(terms['loss'], z)[0], -weight * A * score, atol=1e-6)
    assert sums['objective/clip_frac'] == is_cut
    close(sums['objective/ratio_off'], torch.tensor(abs(p_new / 0.2 - 1)), atol=1e-6)
    # k3 of log-probabilities 0, when it was sampled, and log 0.2, in the pass that learns
    close(sums['sampler_gap'], torch.tensor(0.2 - 1) - torch.tensor(0.2).log())


# ---- KL: near the start --------------------------------------------------------------------------


@pytest.mark.parametrize('kl_type', ['exact', 'k3'])
def test_extreme_log_probs_leave_the_gradient_finite(kl_type, knobs):
    knobs(kl_type=kl_type, entropy_coef=0.1)
    z = torch.tensor([[300.0, 0, -300.0]], requires_grad=True)
    z_ref = z.detach().flip(1)
    terms, _ = loss_of(z.expand(3, -1), rollout_of(torch.arange(3)), torch.ones(1, 3), None,
                       z_ref.expand(3, -1), 0.1)
    assert torch.autograd.grad(terms['loss'], z)[0].isfinite().all()


def test_a_token_that_the_policy_gave_up_is_never_pushed_further_away():
    """Far below the reference k3 is constant: without a slope, where -gap alone would push."""
    for gap in (1.0, 19.0, 21.0, 300.0):
        logp = torch.tensor(-gap, requires_grad=True)
        assert torch.autograd.grad(k3(logp, torch.tensor(0.0)), logp)[0] <= 0


# ---- the loss: a whole step equals that of the slow loops ----------------------------------------


def letters(completions):
    """A reward: how many a's there are."""
    return [text.count('a') for text in completions]


def toy_scorer(reference):
    return Scorer(functions={'letters': letters}, reference=reference)


# The simplest step: all prompts in one micro-step, one pass, one update. Then every ratio is 1 and
# nothing is clipped. With adv_norm = 'none' the loss is minus the mean over all tokens of
#
#     (reward - mean reward of the group) * log p(token)  -  kl_beta * KL
#
# Every other case names the knobs that differ. Three names are no knobs: causal; dead, if groups of
# equal rewards are there; and beta, 0.3 if nothing is said. A case with several updates must clip.
# The reward 'kl' makes all rewards different, so dead groups have none, or one of weight 0.
FOUR = {'batch_size': 1, 'gradient_accumulation_steps': 4}
TWO = {'batch_size': 2, 'gradient_accumulation_steps': 2}
STEPS = {
    'one pass': {'batch_size': 4, 'adv_norm': 'none'},
    'micro-steps, tempered': {**TWO, 'temperature': 1.3, 'adv_norm': 'std', 'kl_type': 'k3'},
    'filtered, by sequence': {**FOUR, 'top_p': 0.8, 'loss_norm': 'sequence', 'entropy_coef': 0.2},
    'updates, clipped': {'batch_size': 4, 'epochs': 3, 'clip_low': 0.01, 'clip_high': 0.02},
    'updates, by a constant': {**TWO, 'epochs': 2, 'kl_type': 'k3', 'loss_norm': 'constant',
                               'clip_high': 0.01},
    'mini-batches, filtered': {**FOUR, 'mini_batches': 2, 'epochs': 2, 'top_k': 3, 'kl_type': 'k3',
                               'clip_high': 0.01},
    'mini-batches': {**FOUR, 'mini_batches': 4, 'clip_low': 0.01, 'loss_norm': 'sequence',
                     'rewards': {'letters': 1.0}},
    'two passes': {**TWO, 'n_fill_steps': 2, 'loss_norm': 'sequence', 'temperature': 0.7},
    'three passes': {**FOUR, 'n_fill_steps': 3, 'top_p': 0.9, 'epochs': 2,
                     'clip_low': 0.01, 'kl_type': 'k3', 'adv_norm': 'batch'},
    'causal': {'causal': True, **TWO, 'entropy_coef': 0.1},
    'causal, by a constant': {'causal': True, **TWO, 'loss_norm': 'constant'},
    'causal, filtered': {'causal': True, **TWO, 'top_p': 0.8, 'temperature': 1.2, 'mini_batches': 2,
                         'adv_norm': 'std', 'epochs': 2, 'loss_norm': 'sequence',
                         'clip_high': 0.01},
    # without KL and entropy, groups of equal rewards are left out
    'dead groups': {'dead': True, 'beta': 0.0, **TWO, 'epochs': 2, 'top_k': 3,
                    'rewards': {'letters': 1.0, 'kl': 0.0}},
    'dead groups, three passes': {'dead': True, 'beta': 0.0, 'batch_size': 4, 'n_fill_steps': 3},
    'dead groups, causal': {'dead': True, 'beta': 0.0, 'causal': True, **TWO, 'top_p': 0.8,
                            'mini_batches': 2},
    'dead groups, but a KL': {'dead': True, **TWO, 'epochs': 2},
    'dead groups, but an entropy bonus': {'dead': True, 'beta': 0.0, 'entropy_coef': 0.2, **TWO},
}


@pytest.mark.parametrize('name', STEPS)
def test_a_step_equals_slow_loops_over_prompts_completions_and_tokens(name, knobs, monkeypatch):
    """Plain gradient descent moves the weights by the gradient, so the weights show the gradient.
    Every update is divided once, whatever number of micro-steps it has."""
    case = {'causal': False, 'dead': False, 'beta': 0.3} | STEPS[name]
    causal, dead, beta = [case.pop(key) for key in ('causal', 'dead', 'beta')]
    knobs(grad_clip=0.0, rewards={'letters': 1.0} if dead else {'letters': 1.0, 'kl': -0.5})
    knobs(**case)
    if 'filtered' in name:                      # logits of two tokens at a time
        monkeypatch.setattr(run.batching, 'NUMBERS_AT_ONCE', 14)
    kl_weight = train_grpo.rewards.get('kl', 0.0)
    policy = tiny(causal)
    reference = tiny(causal, seed=3).requires_grad_(False)
    by_hand = copy.deepcopy(policy)
    calls = []                                  # how often the reference is
    reference.register_forward_hook(lambda *_: calls.append(1))
    sgd, sgd_by_hand = [torch.optim.SGD(model.parameters(), 0.1) for model in (policy, by_hand)]
    prompts = toy_prompts(causal, seed=8 if dead and not causal else 1)
    micro_steps, scores, advantages = collect(policy, toy_scorer(reference), prompts)
    metrics = learn(policy, Scorer(reference=reference), [sgd], micro_steps, advantages, 0.1, beta,
                    train_grpo.entropy_coef)
    assert all_equal(scores['reward']).any() or not dead
    assert dead or len(calls) == train_grpo.gradient_accumulation_steps
    if name == 'dead groups':                   # not dead is one with a completion at the mean
        assert ((advantages == 0) & advantages.any(1, keepdim=True)).any()

    # Act and judge. The reward 'kl' is k1 of the whole completion, unfiltered.
    completions = slow_rollout(by_hand, prompts)                # 12: 4 prompts, 3 of each
    for (sequence, tokens, _), reward in zip(completions, scores['reward'].double().flatten()):
        k1 = sum((slow_logp(by_hand, c) - slow_logp(reference, c))[c.id] for c in tokens)
        close(reward, (sequence == 1).sum() + kl_weight * k1.detach(), atol=1e-5)
    close(advantages, group_advantages(scores['reward']))

    # Learn: each update of an epoch uses its own share of the prompts.
    # The log has means over the tokens that learn, however they are cut into micro-steps.
    learns = advantages.any(1) | (beta > 0) | (train_grpo.entropy_coef > 0)
    logps = [slow_logp(by_hand, c).detach() for n, (_, tokens, _) in enumerate(completions)
             if learns[n // 3] for c in tokens]
    entropy = -sum(logp.exp() @ logp for logp in logps) / len(logps)    # a token, whatever the norm
    size = 4 // train_grpo.mini_batches
    losses, norms = [], []
    for first in list(range(0, 4, size)) * train_grpo.epochs:
        part = slice(first, first + size)
        loss = slow_loss(by_hand, reference, completions[3 * first:][:3 * size], advantages[part],
                         beta, 3 * prompts.blank[part].sum())
        losses.append(loss.detach())
        sgd_by_hand.zero_grad()
        loss.backward()
        norms.append(nn.utils.get_total_norm([p.grad for p in by_hand.parameters()]))
        sgd_by_hand.step()
    close(list(policy.parameters()), list(by_hand.parameters()), atol=1e-7)
    assert metrics['loss'] == pytest.approx(torch.stack(losses).mean().item(), abs=1e-5)
    assert metrics['grad_norm'] == pytest.approx(torch.stack(norms).mean().item(), abs=1e-5)
    if len(losses) == 1:
        assert metrics['entropy'] == pytest.approx(entropy.item(), abs=1e-5)
    assert dead or (metrics['objective/clip_frac'] > 0) == (len(losses) > 1)
    assert abs(metrics['sampler_gap']) < 1e-9  # also after several updates


# ---- passes: a blank sees what earlier passes filled ---------------------------------------------


def everything(policy, order):
    """Return the Tokens of all 8 completions of a prompt of three blanks that is filled in an
    order; their log p (8,), with graph; all groups (G, 2) of two of them; the chance (G, 1) of
    each; and a Rollout in which each group is a prompt of its own."""
    ids = torch.tensor(list(itertools.product(range(2), repeat=3)))             # (8, 3)
    groups = torch.tensor(list(itertools.product(range(8), repeat=2)))          # (G, 2)
    tokens = torch.zeros(len(groups), 3).long()
    uniforms = (1 - 1e-6) * ids.double()        # 0 draws id 0, and nearly 1 draws id 1
    prompts = Prompts(tokens, tokens == 0, uniforms[groups],
                      torch.tensor(order).expand(len(groups), 3),
                      torch.zeros(len(groups), 2, 0, 3), groups[:, 0], toy_data())
    outcomes = [slow_completion(policy, prompts, 8 * i, 0)[1] for i in range(8)]
    logp = torch.stack([sum(c.logp for c in tokens) for tokens in outcomes])
    chance = logp[groups].sum(1, keepdim=True).exp().detach()
    return outcomes, logp, groups, chance, act(policy, prompts)


ROLLOUTS = {
    'one pass': {'temperature': 0.8},
    'two passes': {'n_fill_steps': 2, 'top_k': 4, 'top_p': 0.7},
    'from left to right, three passes': {'fill_order': 'left', 'n_fill_steps': 3},
    'three passes, greedy': {'greedy': True, 'n_fill_steps': 3},
    'five passes, the last is empty': {'n_fill_steps': 5},
    'causal': {'causal': True, 'temperature': 0.8, 'top_k': 4, 'top_p': 0.7},
    'causal, greedy': {'causal': True, 'greedy': True},
    'surest first, filtered': {'fill_order': 'confident', 'n_fill_steps': 2, 'top_k': 3},
    'surest first, six passes': {'fill_order': 'confident', 'n_fill_steps': 6, 'temperature': 0.6},
    'surest first, greedy': {'greedy': True, 'fill_order': 'confident', 'n_fill_steps': 3},
    'learned order': {'fill_order': 'learned', 'n_fill_steps': 4, 'temperature': 0.6},
    'learned order, filtered': {'fill_order': 'learned', 'n_fill_steps': 2, 'top_k': 3},
    'learned order, greedy': {'greedy': True, 'fill_order': 'learned', 'n_fill_steps': 4},
}


@pytest.mark.parametrize('name', ROLLOUTS)
def test_a_rollout_equals_a_slow_loop_over_one_blank_at_a_time(name, knobs):
    """Greedy decoding keeps one id. A prompt without blanks stays as it is. The network is never
    asked about nothing. The Rollout tells which tokens were sampled, and what the network saw."""
    case = {'causal': False, 'greedy': False} | ROLLOUTS[name]
    causal, greedy = [case.pop(key) for key in ('causal', 'greedy')]
    knobs(**case)
    policy = network(causal=causal)
    prompts = toy_prompts(causal, P=9, k=8)
    prompts.more_uniforms = torch.rand(9, 8, 5, 6).double()
    prompts.blank[3] &= causal
    sizes = []
    policy.embed.register_forward_hook(lambda embed, inputs, x: sizes.append(len(x)))
    r = act(policy, prompts, greedy)
    assert min(sizes) > 0
    if greedy:
        knobs(top_k=1)
    completions = slow_rollout(policy, prompts, greedy)
    assert torch.equal(r.sequences, torch.stack([sequence for sequence, *_ in completions]))
    slow = {(n, c.t): c for n, (_, tokens, _) in enumerate(completions) for c in tokens}
    places = list(map(tuple, r.is_sampled.nonzero().tolist()))
    assert sorted(slow) == places
    if not greedy:
        expected = torch.zeros(r.sequences.shape).double()
        for n, (_, tokens, decisions) in enumerate(completions):
            for t, logp in [(c.t, c.logp) for c in tokens] + decisions:
                expected[n, t] += logp.detach()
        with torch.no_grad():
            close(token_stats(r, policy).logp, expected)
        close(r.logp_sampled, expected)
    assert causal or all(r.pass_of[place] == c.i for place, c in slow.items())
    states, state_of = r.states, r.state_of     # (S, T), (I, N); if causal the first row has all
    for n, t in places:
        stop = t if causal else 6               # a causal network sees what is to the left
        state = states[state_of[0 if causal else r.pass_of[n, t], n], :stop]
        assert state.equal(slow[n, t].state[:stop])
    if not causal:                              # completions that are equal so far share a state
        assert len(states) < len(r.sequences) * (int(r.pass_of.max()) + 1)


def test_distinct_rows_equal_a_slow_loop():
    x = torch.randint(3, (200, 3)) * 25_000     # ids of a large vocabulary
    is_used = torch.rand(200) < 0.8
    for used in (is_used, None):
        first, number = distinct_rows(x, used)
        rows = x[first]
        if used is None:
            used = is_used | True
        expected = set(map(tuple, x[used].tolist()))
        assert len(rows) == len(expected) + (not used.all())
        assert set(map(tuple, rows.tolist())) == expected
        assert rows[number[used]].equal(x[used])


@pytest.mark.parametrize('order', [
    [0.7, 0.1, 0.4],                # 'random'
    [0.1, 0.2, 0.3]])               # 'left'
@pytest.mark.parametrize('n', [1, 2, 3, 7])
def test_exact_kl_misses_the_gradient_through_states_and_k1_reward_has_it(n, order, knobs):
    """Over all groups the gradient is that of the expected reward: the order of the blanks does not
    depend on the samples, so the chance of a completion is the product over its tokens.

    The mean of the closed form over the visited states is the KL of whole completions. Its gradient
    has two parts: the distributions change, and so does how often each state is visited. The closed
    form has only the first. With one pass there is one state, and nothing is missing."""
    knobs(n_fill_steps=n)
    policy = tiny(V=2, T=3)
    reference = tiny(V=2, T=3, seed=1)
    outcomes, logp, groups, chance, r = everything(policy, order)
    now = token_stats(r, policy, reference)
    close(now.logp.sum(1), logp[groups].flatten())
    close(chance.sum().item(), 1.0)
    k1 = torch.stack([sum(c.logp - slow_logp(reference, c)[c.id] for c in tokens)
                      for tokens in outcomes]).detach()                      # (8,)
    for reward in (randn(8), -k1):
        advantages = unbiased(reward[groups]) * chance
        terms, _ = grpo_loss(now, r, advantages, 0.0)
        whole = gradient(logp.exp() @ reward, policy)
        close(gradient(-terms['loss'] / 2, policy), whole)

    closed = chance.flatten() @ now.kl.sum(1).view(-1, 2).mean(1)
    close(closed, logp.exp() @ k1)
    missing = (whole + gradient(closed, policy)).norm() / whole.norm()
    assert missing < 1e-9 if n == 1 else missing > 1e-3


# ---- it learns -----------------------------------------------------------------------------------


def share_of_a(policy, kl_beta=0.0, kind='muon', learning_rate=1e-2):
    """Train a policy. Return the share of a's among the ids that it samples: 1/5 at the start."""
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizers = make_optimizers(policy, kind, 0.0)
    scorer = toy_scorer(reference)
    for step in range(40):
        prompts = toy_prompts(policy.causal, P=16, k=8, seed=step)
        micro_steps, _, advantages = collect(policy, scorer, prompts)
        learn(policy, scorer, optimizers, micro_steps, advantages, learning_rate, kl_beta)
        _, r = micro_steps[0]
    return (r.sequences[r.is_sampled] == 1).float().mean()


@pytest.mark.parametrize('causal, kl_beta', [(False, 0.0), (True, 0.0), (False, 20.0)])
def test_a_policy_learns_the_letter_that_a_toy_reward_likes(causal, kl_beta, knobs):
    """Under a strong KL it learns nothing."""
    knobs(rewards={'letters': 1.0})
    share = share_of_a(GPT(5, 6, 1, 2, 16, causal), kl_beta)
    assert 0.05 < share < 0.4 if kl_beta else share > 0.7


def toy_run(causal, goal, **more):
    """Return what evaluate() needs of a Run. Its held-out prompts are toy prompts."""
    data = toy_data(causal, 20, secret=[i > 16 for i in range(20)])
    data.prompts = lambda split, n, k, seed: toy_prompts(causal, n, k, seed)
    return SimpleNamespace(data=data, scorer=Scorer(**more), goal=goal)


@CAUSAL
def test_an_evaluation_is_the_mean_over_prompts_of_four_samples_and_of_greedy_decoding(
        causal, knobs):
    """True is a completion that the verifier gives 1: less is not."""
    knobs(rewards={'judge': 0.5, 'letters': 2.0}, eval_prompts=20)
    policy = tiny(causal)
    run = toy_run(causal, 'verify', judge=tiny(True, seed=5), functions={'letters': letters},
                  verify=lambda completion: min(1, completion.count('a') / 2))
    means = {}
    goals = {'verify': [], 'reward': []}        # of each prompt: sampled, greedy
    for kind in ('eval', 'greedy'):
        r = act(policy, toy_prompts(causal, 20, 4, seed=0), greedy=kind == 'greedy')
        names = ['judge', 'letters', 'distinct', 'verify', 'tokens']
        names.append('ended' if causal else 'passes')
        scores = run.scorer.score(names, r)
        scores['reward'] = 0.5 * scores['judge'] + 2 * scores['letters']        # (20, 4)
        means |= {f'{kind}/{name}': values.mean().item() for name, values in scores.items()}
        for goal in goals:
            goals[goal].append(pytest.approx(scores[goal].mean(1).tolist(), abs=1e-6))
        if kind == 'eval':
            means['eval/pass@4'] = sum(1 in group for group in scores['verify'].tolist()) / 20
    for run.goal in goals:
        *now, known, samples = evaluate(policy, run)
        assert now == [pytest.approx(means), *goals[run.goal]]
    r = act(policy, toy_prompts(causal, 20, 4, seed=0))
    assert [sample['completion'] for sample in samples] == [      # of the first prompts, to read
        case['completion'] for case in r.cases()[:32]]
    shown = [(case['prompt'], i > 16) for i, case in enumerate(r.cases()[::4])]  # and the column
    assert len({prompt for prompt, _ in shown}) < len(set(shown)) < 21 - causal
    assert [[a == b for a in known] for b in known] == [[a == b for a in shown] for b in shown]
