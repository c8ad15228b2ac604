"""In which order blanks are filled, and what the likelihood of the result is: compared with an
enumeration of all that can happen, and with slow loops."""
import itertools

import pytest
import torch
from torch import nn

from dataset import Prompts
from judge import Scorer
from model import make_optimizers
from rollout import complete, token_stats
from test_grpo import (TOK, centred, close, gradient, knobs, randn, tiny,        # noqa: F401
                       toy_prompts)
from train_grpo import act, group_advantages, grpo_loss, learn

LETTERS = 3


def network(seed=0, **more):
    """Return a tiny GPT with an output for the order, all of whose weights matter."""
    model = tiny(seed=seed, **more)
    model.decide_order(3)
    nn.init.normal_(model.order.weight, std=0.03)
    nn.init.constant_(model.order.bias, -0.1)
    return model


def outcomes_of(model, fill_order, n_passes):
    """Return all that can happen to two blanks beside the token 0, by definition: a list of
    (sequence, pass of each token, log p with graph, uniforms (T,), decisions (passes - 1, T))."""
    def fill(i, state, pass_of, logp, uniforms, decisions):
        blanks = [t for t in range(3) if state[t] == model.blank_id]
        if not blanks:
            return [(state, pass_of, logp, uniforms, decisions)]
        x = model(torch.tensor(state)[None])[0]
        p = model.logits(x).softmax(1)                                          # (T, V)
        choices = [tuple(blanks)]               # which blanks are filled now
        if fill_order == 'confident' and i < n_passes - 1:
            choices = [(max(blanks, key=lambda t: p[t].max()),)]
        if fill_order == 'learned' and i < n_passes - 1:
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
                if fill_order == 'learned' and i < n_passes - 1:
                    for t in blanks:
                        more = more + (chance[t] if t in now else 1 - chance[t]).log()
                        d[i, t] = 0.0 if t in now else 1 - 1e-9
                results += fill(i + 1, next_state, passes, more, u, d)
        return results
    start = [model.blank_id, 0, model.blank_id]
    return fill(0, start, [-1] * 3, torch.zeros(()).double(), torch.zeros(3).double(),
                torch.zeros(max(n_passes - 1, 0), 3).double())


def rollout_of(model, fill_order, n_passes, outcomes, groups):
    """Return the Rollout whose groups (G, k) are outcomes of these numbers."""
    uniforms = torch.stack([o[3] for o in outcomes]).detach()[groups]           # (G, k, T)
    decisions = torch.stack([o[4] for o in outcomes])[groups]                   # (G, k, J, T)
    masks = torch.zeros(*groups.shape, 0, 3)
    tokens = torch.zeros(len(groups), 3).long()
    blank = torch.tensor([True, False, True]).expand(len(groups), 3)
    prompts = Prompts(tokens, blank, uniforms, torch.zeros(len(groups), 3), decisions, masks,
                      groups[:, 0], [{}] * len(outcomes), TOK, False)
    return complete(model, prompts, n_passes, fill_order)


@pytest.mark.parametrize('fill_order, n_passes, n', [
    ('confident', 2, 9), ('learned', 2, 36), ('learned', 3, 81)])
def test_the_likelihood_of_an_order_is_that_of_the_enumeration(fill_order, n_passes, n):
    model = network(V=LETTERS, T=3)
    outcomes = outcomes_of(model, fill_order, n_passes)
    assert len(outcomes) == n
    logp = torch.stack([o[2] for o in outcomes])
    close(logp.exp().sum().item(), 1.0)
    r = rollout_of(model, fill_order, n_passes, outcomes, torch.arange(n)[:, None].expand(n, 2))
    assert r.sequences[::2].tolist() == [o[0] for o in outcomes]
    assert r.pass_of[::2].tolist() == [o[1] for o in outcomes]
    for values in (r.logp_sampled, token_stats(r, model).logp):
        close(values.sum(1)[::2], logp)
    passes = Scorer().score(['passes'], r)['passes'][:, 0]
    assert passes.tolist() == [max(o[1]) + 1 for o in outcomes]
    # In some a pass fills nothing, and counts.
    assert any(0 not in o[1] for o in outcomes) == (fill_order == 'learned')


@pytest.mark.parametrize('fill_order', ['confident', 'learned'])
def test_over_all_groups_the_gradient_is_that_of_the_expected_reward(fill_order, knobs):
    """With the mean of the group as baseline a group of k has (k - 1) / k of it."""
    knobs(loss_norm='constant')
    model = network(V=LETTERS, T=3)
    outcomes = outcomes_of(model, fill_order, 2)
    logp = torch.stack([o[2] for o in outcomes])
    n = len(outcomes)
    groups = torch.tensor(list(itertools.product(range(n), repeat=2)))          # (G, 2)
    r = rollout_of(model, fill_order, 2, outcomes, groups)
    chance = logp[groups].sum(1, keepdim=True).exp().detach()
    reward = randn(n)
    terms, _ = grpo_loss(token_stats(r, model), r, chance * centred(reward[groups]), 0.0)
    if fill_order == 'confident':
        del model.order                         # it has no gradient there
    expected = gradient(logp.exp() @ reward, model)
    assert expected.abs().max() > 1e-3
    close(gradient(terms['loss'] / 2, model), -expected / 2)


def test_what_was_sampled_must_not_choose_what_is_kept():
    """If the *sampled* token that is likelier is kept (LLaDA's and MaskGIT's rule), the product
    over kept tokens is not the probability of what happened: the other blank had to be less sure.
    """
    model = tiny(V=LETTERS, T=3)
    state = torch.tensor([[model.blank_id, 0, model.blank_id]])
    p = model.logits(model(state))[0, [0, 2]].softmax(1).tolist()
    chance = {}                                 # of (which blank is kept, its id)
    for a, b in itertools.product(range(LETTERS), repeat=2):
        kept = (0, a) if p[0][a] > p[1][b] else (1, b)
        chance[kept] = chance.get(kept, 0) + p[0][a] * p[1][b]
    assert sum(chance.values()) == pytest.approx(1)
    product = {(t, id): p[t][id] for t, id in chance}
    assert max(abs(chance[kept] - product[kept]) for kept in chance) > 0.05
    assert sum(product.values()) > 1.2


def test_kl_and_entropy_of_decisions_are_summed_over_the_passes_in_which_a_blank_was_open(knobs):
    model, reference = network(), network(seed=3)
    prompts = toy_prompts(P=6)
    prompts.order_uniforms = 1 - 0.9 * torch.rand(6, 3, 3, 6).double()     # many wait
    r = complete(model, prompts, 4, 'learned', temperature=0.8)
    stats = token_stats(r, model, reference, temperature=0.8)
    close(r.logp_sampled, stats.logp)
    assert (r.pass_of == 3).any() and (r.pass_of == 0).any()
    for n, t in r.is_sampled.nonzero().tolist():
        values = torch.zeros(4).double()        # logp, logp_ref, kl, entropy
        for i in range(int(r.pass_of[n, t]) + 1):
            state = r.sequences[n].masked_fill(r.pass_of[n] >= i, model.blank_id)[None]
            x, x_ref = model(state)[0, t], reference(state)[0, t]
            parts = []
            if i < 3:
                q, q_ref = model.order_scores(x).sigmoid(), reference.order_scores(x_ref).sigmoid()
                parts.append((torch.stack((1 - q, q)), torch.stack((1 - q_ref, q_ref)),
                              int(r.pass_of[n, t] == i)))
            if r.pass_of[n, t] == i:
                parts.append(((model.logits(x) / 0.8).softmax(0),
                              (reference.logits(x_ref) / 0.8).softmax(0), r.sequences[n, t]))
            for p, p_ref, action in parts:
                values += torch.stack((p[action].log(), p_ref[action].log(),
                                       (p * (p / p_ref).log()).sum(), -(p * p.log()).sum()))
        close(torch.stack([getattr(stats, name)[n, t] for name in (
            'logp', 'logp_ref', 'kl', 'entropy')]), values)


def test_an_order_begins_as_a_constant_and_greedy_fills_what_is_likely():
    model = tiny()
    model.decide_order(8)
    now = model.order_scores(randn(4, 8)).sigmoid()
    assert now.tolist() == [pytest.approx(0.394, abs=1e-3)] * 4
    before = model.order
    model.decide_order(3)
    assert model.order is before
    prompts = toy_prompts(P=6)
    prompts.order_uniforms = torch.rand(6, 3, 7, 6)
    r = complete(model, prompts, 8, 'learned', greedy=True)
    assert int(r.pass_of.max()) == 0            # equal scores: all of them are the likeliest
    model = network()
    r = complete(model, prompts, 4, 'learned', greedy=True)
    assert int(r.pass_of.max()) > 0
    for n in range(len(r.sequences)):
        for i in range(3):
            state = r.sequences[n].masked_fill(r.pass_of[n] >= i, model.blank_id)
            score = model.order_scores(model(state[None]))[0]
            is_open = [t for t in range(6) if r.pass_of[n, t] >= i]
            if is_open:
                best = max(is_open, key=lambda t: score[t])
                now = {t for t in is_open if r.pass_of[n, t] == i}
                assert now == {t for t in is_open if score[t] > 0} | {best}


@pytest.mark.parametrize('n_passes', [1, 2, 3, 7])
def test_each_pass_fills_its_share_of_the_surest_blanks(n_passes):
    model = tiny()
    r = complete(model, toy_prompts(P=6), n_passes, 'confident')
    for sequence, pass_of in zip(r.sequences, r.pass_of):
        n_blanks = int((pass_of >= 0).sum())
        n_used = min(n_passes, n_blanks)
        for i in range(n_used):
            is_open = (pass_of >= i).nonzero().flatten().tolist()
            state = sequence.masked_fill(pass_of >= i, model.blank_id)
            sure = model.logits(model(state[None]))[0].softmax(1).amax(1)
            is_open.sort(key=lambda t: -sure[t])
            n_now = -(-(i + 1) * n_blanks // n_used) - (n_blanks - len(is_open))
            assert {t for t in is_open if pass_of[t] == i} == set(is_open[:n_now])


def test_a_learned_order_learns(knobs):
    """A reward for early passes of the last blank: it is filled first."""
    knobs(n_fill_steps=4, fill_order='learned', temperature=1.0, adv_norm='batch')
    policy = tiny()
    policy.decide_order(4)
    optimizers = make_optimizers(policy, 'adamw', 0.0)
    early = []
    for step in range(30):
        prompts = toy_prompts(P=16, k=8)
        torch.manual_seed(step)
        prompts.uniforms = torch.rand(16, 8, 6).double()
        prompts.order_uniforms = torch.rand(16, 8, 3, 6).double()
        r = act(policy, prompts)
        last = r.pass_of[:, 4].float()
        early.append(last[last >= 0].mean().item())
        learn(policy, None, optimizers, [(slice(0, 16), r)],
              group_advantages(-last.view(16, 8).double()), 5e-3, 0.0)
    assert early[-1] < 0.3 * early[0]
