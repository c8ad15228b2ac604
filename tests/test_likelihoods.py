"""Orders of masked models, and likelihoods: compared with an enumeration of all that happens, with
slow loops over one sequence and one token at a time, and with updates by hand."""
import copy
import functools
import itertools

import pytest
import torch
from torch import nn

import train_grpo
from dataset import Prompts
from judge import Scorer
from fill import fill
from rollout import token_stats
from test_grpo import (TOK, centred, close, gradient, knobs, letters, network,     # noqa: F401
                       randn, tiny, toy_data, toy_prompts)
from train_grpo import act, collect, grpo_loss, learn, stats_now

ESTIMATES = {'one_pass': 'd1', 'coupled': 'diffucoder', 'random_share': 'unigrpo'}     # papers
KINDS = pytest.mark.parametrize('kind', ['confident', 'learned', *ESTIMATES])


def prompts_of(n_more, P=9, k=4):
    """Return toy prompts of 1, 2, 3, 4, 1, ... blanks with n_more random numbers. The fifth has no
    blank at all."""
    prompts = toy_prompts(P=P, k=k)
    prompts.blank[4:5] = False
    numbers = torch.rand(P, k, n_more, 6).double()
    numbers[..., 5] = 0.01                      # padding: an estimate must not hide it
    prompts.more_uniforms = numbers
    return prompts


def choose_kind(knobs, kind, n_fill_steps=3, epochs=2, **more):
    """Set the knobs of an order or of an estimate. Return how many random numbers it needs."""
    is_order = kind not in ESTIMATES
    files = [] if is_order else [f'config/papers/{ESTIMATES[kind]}.py']
    knobs(*files, **{'fill_order': kind if is_order else 'random', 'n_fill_steps': n_fill_steps,
                     'epochs': epochs, 'adv_norm': 'none', 'kl_type': 'exact', 'loss_norm': 'token',
                     **more})
    return {'confident': 0, 'learned': n_fill_steps - 1}.get(kind, 2 * epochs)


# ---- orders: an enumeration ----------------------------------------------------------------------


LETTERS = 3
START = {                       # of a sequence of three tokens: -1 is a blank
    ('confident', 2): [-1, 0, -1], ('learned', 2): [-1, 0, -1], ('learned', 3): [-1, 0, -1],
    ('confident', 3): [-1, -1, -1],
}


def outcomes_of(model, fill_order, n_passes):
    """Return all that can happen to the blanks of a sequence, by definition: a list of (sequence,
    pass of each token, log p with graph, uniforms (T,), decisions (passes - 1, T))."""
    def fill(i, state, pass_of, logp, uniforms, decisions):
        blanks = [t for t in range(3) if state[t] == model.blank_id]
        if not blanks:
            return [(state, pass_of, logp, uniforms, decisions)]
        x = model(torch.tensor(state)[None])[0]
        p = model.logits(x).softmax(1)                                          # (T, V)
        decides = fill_order == 'learned' and i < n_passes - 1
        choices = [tuple(blanks)]               # which blanks are filled now
        if fill_order == 'confident' and i < n_passes - 1:
            choices = [(max(blanks, key=lambda t: p[t].max()),)]
        if decides:
            choices = [c for n in range(3) for c in itertools.combinations(blanks, n)]
            chance = model.order_scores(x).sigmoid()
        results = []
        for now in choices:
            for ids in itertools.product(range(LETTERS), repeat=len(now)):
                more = logp
                next_state, passes = list(state), list(pass_of)
                u, d = uniforms.clone(), decisions.clone()
                for t, id in zip(now, ids):
                    next_state[t] = id
                    passes[t] = i
                    more = more + p[t, id].log()
                    u[t] = p[t, :id].sum() + 0.5 * p[t, id]
                for t in blanks if decides else []:
                    more = more + (chance[t] if t in now else 1 - chance[t]).log()
                    d[i, t] = 0.0 if t in now else 1 - 1e-9
                results += fill(i + 1, next_state, passes, more, u, d)
        return results

    start = [model.blank_id if id < 0 else id for id in START[fill_order, n_passes]]
    return fill(0, start, [-1] * 3, torch.zeros(()).double(), torch.zeros(3).double(),
                torch.zeros(n_passes - 1, 3).double())


def rollout_of(model, fill_order, n_passes, outcomes, groups):
    """Return the Rollout whose groups (G, k) are outcomes of these numbers."""
    uniforms = torch.stack([o[3] for o in outcomes]).detach()[groups]           # (G, k, T)
    decisions = torch.stack([o[4] for o in outcomes])[groups]                   # (G, k, J, T)
    tokens = torch.zeros(len(groups), 3).long()
    blank = torch.tensor(START[fill_order, n_passes]).expand(len(groups), 3) < 0
    prompts = Prompts(tokens, blank, uniforms, torch.zeros(len(groups), 3), decisions,
                      groups[:, 0], toy_data(P=len(outcomes)))
    return fill(model, prompts, n_passes, fill_order)


@pytest.mark.parametrize('fill_order, n_passes', START)
def test_likelihood_and_gradient_of_an_order_are_those_of_the_enumeration(
        fill_order, n_passes, knobs):
    """Over all groups of two the gradient is that of the expected reward, times 1 / 2, because the
    mean of a group is the baseline."""
    knobs(loss_norm='constant')
    model = network(V=LETTERS, T=3, seed=2)
    outcomes = outcomes_of(model, fill_order, n_passes)
    n = len(outcomes)
    logp = torch.stack([o[2] for o in outcomes])
    close(logp.exp().sum().item(), 1.0)
    groups = torch.tensor(list(itertools.product(range(n), repeat=2)))          # (G, 2)
    r = rollout_of(model, fill_order, n_passes, outcomes, groups)
    every = groups.flatten().tolist()
    assert r.sequences.tolist() == [outcomes[i][0] for i in every]
    assert r.pass_of.tolist() == [outcomes[i][1] for i in every]
    stats = token_stats(r, model)
    for values in (r.logp_sampled, stats.logp):
        close(values.sum(1), logp[groups.flatten()])
    passes = Scorer().score(['passes'], r)['passes'].flatten()
    assert passes.tolist() == [max(outcomes[i][1]) + 1 for i in every]
    # In some a pass fills nothing, and counts. Of three blanks the order depends on the first.
    assert any(0 not in o[1] for o in outcomes) == (fill_order == 'learned')
    assert len({tuple(o[1]) for o in outcomes}) > 1 or n == 9

    chance = logp[groups].sum(1, keepdim=True).exp().detach()
    reward = randn(n)
    terms, _ = grpo_loss(stats, r, chance * centred(reward[groups]), 0.0)
    if fill_order == 'confident':
        del model.order                         # it has no gradient there
    expected = gradient(logp.exp() @ reward, model)
    assert expected.abs().max() > 1e-3
    close(gradient(terms['loss'] / 2, model), -expected / 2)


# ---- orders: more (a rollout in each equals that of a slow loop in test_grpo.py) -----------------


def test_a_constant_start_leaves_3_of_100_blanks_for_the_last_pass():
    for n_passes in (2, 3, 8):
        model = tiny()
        model.decide_order(n_passes)
        chance = model.order_scores(randn(5, 8)).sigmoid()
        close((1 - chance) ** (n_passes - 1), torch.full_like(chance, 0.03))
    nn.init.normal_(model.order.weight)
    before = copy.deepcopy(model.state_dict())
    model.decide_order(5)
    close(model.state_dict(), before)


@KINDS
def test_completions_depend_neither_on_the_group_size_nor_on_other_prompts(kind, knobs):
    """A part of a Rollout, or a group of two of its four, has the same tokens and numbers."""
    n_more = choose_kind(knobs, kind)
    model, reference = network(), network(seed=3)
    prompts = prompts_of(n_more)
    chosen = torch.arange(9) % 3 == 1           # one of them has no blanks
    two = copy.copy(prompts)
    two.uniforms = prompts.uniforms[:, :2]
    two.more_uniforms = prompts.more_uniforms[:, :2]
    whole = act(model, prompts)
    rows = torch.arange(36).view(9, 4)
    for r, kept in ((act(model, prompts[chosen]), rows[chosen]), (act(model, two), rows[:, :2])):
        kept = kept.flatten()
        for name in ('sequences', 'pass_of', 'logp_sampled'):
            close(getattr(r, name), getattr(whole, name)[kept])
        for epoch in (0, 1):
            stats = train_grpo.rules.likelihood(whole.of_epoch(epoch), model, reference)
            close(train_grpo.rules.likelihood(r.of_epoch(epoch), model, reference),
                  [values[kept] for values in stats])


@KINDS
def test_if_only_some_sequences_learn_they_have_the_same_numbers_and_the_others_zeros(kind, knobs):
    n_more = choose_kind(knobs, kind, top_k=3)
    model, reference = network(), network(seed=3)
    r = act(model, prompts_of(n_more))
    r.stats_old = train_grpo.rules.likelihood(r, model, reference)
    for chosen in (torch.arange(36) % 3 == 1, torch.zeros(36).bool()):
        part = r.only(chosen)
        for stats in (part.stats_old, train_grpo.rules.likelihood(part, model, reference)):
            for values, expected in zip(stats, r.stats_old):
                close(values, expected * chosen[:, None])
        assert part.lengths.equal(r.lengths * chosen) and (part.kept is None) == (r.kept is None)


# ---- likelihoods ---------------------------------------------------------------------------------


def slow_states(r, model, n, t):
    """Return the states in which a likelihood sees token t of sequence n, as (weight, state)."""
    drawn, share = 0, 0
    if train_grpo.likelihood in ESTIMATES:
        drawn, share = [values[n] for values in r.mask_uniforms()]
    sampled = r.pass_of[n] >= 0

    def with_blanks(blanks):
        return torch.where(blanks, model.blank_id, r.sequences[n])

    if train_grpo.likelihood == 'trajectory':
        return [(1, with_blanks(r.pass_of[n] >= r.pass_of[n, t]))]
    if train_grpo.likelihood == 'one_pass':
        is_real = r.sequences[n] != TOK.pad
        return [(1, with_blanks(sampled | ~sampled & is_real & (drawn < 0.15)))]
    if train_grpo.likelihood == 'coupled':
        share = 0.2 + 0.6 * share
        mask = drawn < share
        if not mask[t]:
            mask, share = ~mask, 1 - share
        return [(0.5, with_blanks(sampled)), (0.5 / share, with_blanks(sampled & mask))]
    return [(1, with_blanks(sampled & (drawn < share)))] if drawn[t] < share else []


def slow_stats(r, model, reference):
    """Return the numbers of TokenStats (6, N, T), from their definitions and the knobs."""
    knob = train_grpo

    @functools.cache
    def features(m, *state):
        return m(torch.tensor([state]))[0]

    rows = [[[[] for _ in row] for row in r.sequences] for _ in range(6)]
    row_of = {place: row for row, place in enumerate(map(tuple, r.is_sampled.nonzero().tolist()))}
    for n, t in r.is_sampled.nonzero().tolist():
        id = r.sequences[n, t]
        parts = []
        for weight, state in slow_states(r, model, n, t):
            z, z_ref = [m.logits(features(m, *state.tolist())[t]) / knob.temperature
                        for m in (model, reference)]
            p, p_ref = z.softmax(0), z_ref.softmax(0)
            kept = slice(None) if r.kept is None else r.kept[row_of[n, t]]
            parts.append((weight, p, p_ref, id, z[id] - z[kept].logsumexp(0)))
        if knob.fill_order == 'learned':
            for i in range(min(int(r.pass_of[n, t]) + 1, knob.n_fill_steps - 1)):
                state = r.sequences[n].masked_fill(r.pass_of[n] >= i, model.blank_id)
                p, p_ref = [torch.stack((1 - q, q)) for q in (
                    m.order_scores(features(m, *state.tolist())[t]).sigmoid()
                    for m in (model, reference))]
                is_now = int(r.pass_of[n, t] == i)
                parts.append((1, p, p_ref, is_now, p[is_now].log()))
        for weight, p, p_ref, action, logp in parts:
            for row, value in zip(rows, (logp, p[action].log(), p_ref[action].log(),
                                         (p * (p / p_ref).log()).sum(),
                                         (p_ref * (p_ref / p).log()).sum(), -(p * p.log()).sum())):
                row[n][t].append((weight * value).view(()))
    zero = torch.zeros(()).double()
    return [torch.stack([torch.stack([sum(values, zero) for values in row]) for row in all_rows])
            for all_rows in rows]


@KINDS
@pytest.mark.parametrize('more', [{}, {'temperature': 0.7, 'top_k': 3}])
def test_all_numbers_of_a_likelihood_equal_slow_loops(kind, more, knobs):
    """A weight counts in ratio, KL and entropy alike. What top-k kept when a token was sampled
    stays kept. The epochs have masks of their own, in [0, 1)."""
    n_more = choose_kind(knobs, kind, **more)
    model, reference = network(), network(seed=3)
    r = act(model, prompts_of(n_more, P=5, k=3))
    numbers = []
    with torch.no_grad():
        for epoch in (0, 1):
            of_epoch = r.of_epoch(epoch)
            stats = train_grpo.rules.likelihood(of_epoch, model, reference)
            close(list(stats), slow_stats(of_epoch, model, reference))
            numbers.append(stats.logp_full)
    assert numbers[0].equal(numbers[1]) == (kind not in ESTIMATES)
    if kind == 'one_pass':
        hidden = (r.mask_uniforms()[0] < 0.15) & ~r.is_sampled
        assert (hidden & (r.sequences == TOK.pad)).any()        # and yet it stays
        assert (hidden & (r.sequences != TOK.pad)).any()


@KINDS
@pytest.mark.parametrize('has_kl', [False, True])
def test_an_epoch_moves_the_weights_as_slow_loops_do(kind, has_kl, knobs):
    """Two epochs of plain gradient descent. Each compares the policy with the start, at masks of
    its own; also if the reward 'kl' looked back already, at those of the first epoch."""
    n_more = choose_kind(knobs, kind, clip_low=0.05, clip_high=0.05, loss_norm='token', grad_clip=0,
                         batch_size=4, rewards={'letters': 1.0, 'kl': -0.3 * has_kl}
                         if has_kl else {'letters': 1.0}, adv_norm='none', temperature=0.9)
    policy, reference = network(), network(seed=3).requires_grad_(False)
    start, by_hand = copy.deepcopy(policy), copy.deepcopy(policy)
    scorer = Scorer(functions={'letters': letters}, reference=reference)
    prompts = prompts_of(n_more, P=4, k=2)
    micro_steps, _, advantages = collect(policy, scorer, prompts)
    (_, r), = micro_steps
    sgd, sgd_by_hand = [torch.optim.SGD(model.parameters(), 0.3) for model in (policy, by_hand)]
    A = advantages.double().view(-1, 1)
    learn(policy, Scorer(reference=reference), [sgd], micro_steps, advantages, 0.3, 0.2)
    n_clipped = 0
    for epoch in (0, 1):
        of_epoch = r.of_epoch(epoch)
        with torch.no_grad():
            logp_old = slow_stats(of_epoch, start, reference)[0]
        logp, _, _, kl, *_ = slow_stats(of_epoch, by_hand, reference)
        ratio = (logp - logp_old).exp()
        assert epoch or ratio.sub(1).abs().max() < 1e-9
        gain = torch.min(ratio * A, ratio.clamp(0.95, 1.05) * A)
        n_clipped += (gain < ratio * A - 1e-9).sum()
        loss = ((0.2 * kl - gain) * r.is_sampled).sum() / r.is_sampled.sum()
        sgd_by_hand.zero_grad()
        loss.backward()
        sgd_by_hand.step()
    assert n_clipped > 0
    close(list(policy.parameters()), list(by_hand.parameters()), atol=1e-7)


@KINDS
def test_the_ratio_is_exactly_1_while_the_policy_stands_still(kind, knobs):
    """Also of tokens that an estimate does not see, and in the second epoch."""
    n_more = choose_kind(knobs, kind)
    policy = network()
    advantages = randn(9, 4)
    for looks_back in (False, True):
        r = act(policy, prompts_of(n_more))
        if looks_back:
            r.stats_old = stats_now(r, policy)
        still = torch.optim.SGD(policy.parameters(), 0.0)
        numbers = learn(policy, Scorer(reference=policy), [still], [(slice(0, 9), r)], advantages,
                        0.0, 0.1)
        assert numbers['objective/ratio_off'] == 0 and numbers['grad_norm'] > 0
