"""The algorithm's tests. Each part of GRPO is compared with something that is not the code: an
enumeration of all that can be drawn, finite differences, a slow loop, a formula. Read downwards:

    tools           toy networks and prompts; all completions of a prompt; loops over single tokens
    the gradient    its mean over all completions is that of the expected reward
    compare         advantages
    sample          filters, frequencies, the order of passes
    look again      log-probabilities, KL and entropy of single tokens
    KL              of each kind the mean, and the mean of the gradient
    learn           steps with micro-steps, mini-batches and epochs, and what they return; what is
                    read; when no weight moves
    worlds          what reply() sees, and whose words its words are
    evaluate

python -m pytest -q test_grpo.py"""
# sizes: P prompts | k completions of each: N texts of T tokens | M sampled tokens | V ids
import copy
import math
import statistics
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import train_grpo as grpo
from model import GPT, filter_ids
from plumbing.configurator import configure
from plumbing.optim import make_optimizers
from tasks import Prompts, Tokenizer

torch.set_num_threads(1)        # at this size two threads would only wait for each other
TOK = Tokenizer('char', 'abc')  # ids 1, 2, 3; 0 ends a text; 4 is a blank, 5 bos, 6 padding
V = 4
PASSES = 'plugins/passes.py'
CAUSAL = 'plugins/causal.py'


# ---- tools ---------------------------------------------------------------------------------------

@pytest.fixture(autouse=True)
def knobs():
    """knobs('plugins/passes.py', n_fill_steps=3): words of a command line, for one test. Without
    more the loss is the plain one: A is not divided, no KL, no bonus, no limit of the gradient."""
    plain = ['--adv_norm=none', '--kl_beta=0', '--entropy_coef=0', '--grad_clip=0']

    def change(*files, **values):
        words = [f'--{name}={value}' for name, value in values.items()]
        configure(vars(grpo), plain + list(files) + words)

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    change()
    yield change
    configure(vars(grpo), [])
    torch.set_default_dtype(torch.float32)


def close(actual, expected, atol=1e-9):
    torch.testing.assert_close(torch.as_tensor(actual), torch.as_tensor(expected), atol=atol,
                               rtol=1e-6, check_dtype=False)


def tiny(kind='fill', seed=0, T=6, positions='learned'):
    """Return a GPT all of whose weights matter. (In a new one the logits are 0.) `order` is the
    layer of a learned order."""
    torch.manual_seed(seed)
    network = GPT(V, T, 1 + (kind == 'causal'), 2, 8, kind, positions)
    network.order = nn.Linear(8, 1)
    for p in network.parameters():
        nn.init.normal_(p, std=0.5)
    nn.init.normal_(network.order.weight, std=0.03)
    nn.init.constant_(network.order.bias, -0.02)
    return network


def prompts_of(*texts, records=None, reply=None):
    """Return Prompts of texts such as 'b_c_\\n', which ends with an eos. The original has an a in
    each blank. Behind a text, and for each space, stands padding."""
    T = max(map(len, texts))
    texts = [text.ljust(T) for text in texts]
    tokens = torch.tensor([['\nabc_| '.index(c) for c in text] for text in texts])      # (P, T)
    blank = tokens == TOK.blank
    tokens[blank] = 1
    records = records or [{}] * len(texts)
    task = SimpleNamespace(tok=TOK, records=records, verify=None, reply=reply, check_length=int,
                           longest_prompt=blank.int().argmax(1).max())
    prompts = Prompts(task, tokens, blank, torch.arange(len(texts)))
    task.prompts = lambda split, n, *_: pick(prompts, torch.randint(len(texts), (n,)))
    return prompts


def pick(prompts, rows):
    return replace(prompts, tokens=prompts.tokens[rows], blank=prompts.blank[rows],
                   record=prompts.record[rows])


def weights(network):
    return parameters_to_vector(network.parameters()).detach()


def step_of(policy, rollouts, reference=None):
    """Return the step of learn(), minus the gradient: SGD with a rate of 1 moves weights by it."""
    moved = copy.deepcopy(policy)
    networks = SimpleNamespace(policy=moved, reference=reference)
    grpo.learn(networks, [torch.optim.SGD(moved.parameters())], rollouts, 1.0)
    return weights(moved) - weights(policy)


def slope(f, x, h=1e-5):
    """Return the gradient of f(x), a number, of a vector x, by finite differences."""
    return torch.stack([(f(x + step) - f(x - step)) / (2 * h) for step in h * torch.eye(len(x))])


def slow_softmax(logits):
    """Return the probabilities (V,), a list, with which ids are drawn from logits (V,)."""
    p = (logits / grpo.temperature).exp()
    ranked = sorted(range(len(p)), key=lambda i: -p[i])[:grpo.top_k or None]
    enough = grpo.top_p * p[ranked].sum()       # a share of what top_k leaves
    kept = [i for j, i in enumerate(ranked) if p[ranked[:j]].sum() < enough]
    q = torch.zeros(len(p))
    q[kept] = p[kept] / p[kept].sum()
    return q.tolist()


def outcomes(policy, prompts, k=1):
    """Return all that complete() can do, a list of (Rollout, probability). It is run again and
    again. Its draws, of ids and of a learned order, are the next path through the tree of all."""
    ahead, found = [[]], []                      # paths to take: which branch at each draw

    def choose(p):
        if len(drawn) == len(path):             # a new draw: its other branches come later
            ahead.extend(path + [i] for i in range(1, len(p)))
            path.append(0)
        i = path[len(drawn)]
        drawn.append(p[i])
        return i

    def sample(logits, k=1, greedy=False):
        ids = [[choose(slow_softmax(row)) for _ in range(k)] for row in logits]
        return torch.tensor(ids, dtype=torch.long).view(-1, k), None

    def rand_like(scores):                      # a draw of 0 is below each probability
        draws = [float(choose([p, 1 - p])) if p > 0 else 1.0
                 for p in scores.sigmoid().flatten().tolist()]
        return torch.tensor(draws).view_as(scores)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpo, 'sample', sample)
        patch.setattr(torch, 'rand_like', rand_like)
        while ahead:
            path = ahead.pop()
            drawn = []                          # its probabilities
            torch.manual_seed(0)                # of a random order
            r = grpo.complete(policy, prompts, k)
            found.append((r, math.prod(drawn)))
    return found


def kl_of(z, z_ref):
    """Return KL(policy || reference) of their logits (V,)."""
    return z.softmax(0) @ (z.log_softmax(0) - z_ref.log_softmax(0))


def slow_logits(network, view, t):
    """Return logits (V,) for place t of one text (T,). A causal network gets what is left of t."""
    if network.causal:
        view = torch.cat((torch.tensor([TOK.bos]), view[:t]))
    return network.logits(network.trunk(view[None])[0, t]) / grpo.temperature


def slow_order(network, view, t):
    """Return logits (2,): to wait, or to fill place t of a view now."""
    return 16 * nn.functional.pad(network.order(network.trunk(view[None])[0, t]), (1, 0))


def slow_stats(policy, r, reference=None):
    """Return the Stats of one token after the other, with graph."""
    def look(logits_of, view, t, id, allowed):
        z, z_ref = [logits_of(network, view, t) for network in (policy, reference or policy)]
        logp = [x[id] - x[allowed].logsumexp(0) for x in (z, z_ref)]
        return torch.stack([*logp, kl_of(z, z_ref), -z.softmax(0) @ z.log_softmax(0)])

    rows = []
    for m, (view, t, id) in enumerate(zip(r.views[r.view_of], r.place, r.token)):
        allowed = slice(None) if r.allowed is None else r.allowed[m]
        row = look(slow_logits, view, t, id, allowed)
        seen = r.seen[m, :-1][:r.turn[m]] if hasattr(r, 'seen') else []
        for turn, number in enumerate(seen, 1):         # in a learned order: wait, or fill it
            row = row + look(slow_order, r.views[number], t, int(turn == r.turn[m]), [0, 1])
        rows.append(row)
    return grpo.Stats(*torch.stack(rows).T)


# ---- the gradient --------------------------------------------------------------------------------

def worth(sequence):
    """A reward that likes no two texts alike."""
    return math.sin(sum((t + 2) ** 2 * i for t, i in enumerate(sequence.tolist())))


def two_letters(completion, letter):
    """A world: it says something after an a, and ends a text after a c."""
    return {'a': f'b{letter}', 'c': (letter, True)}.get(completion[-1:])


KINDS = {                       # files, knobs, and a prompt
    'one pass': ([], {}, '_b_'),
    'two passes, random order': ([PASSES], {'n_fill_steps': 2}, '__c_'),
    'two passes, left to right': ([PASSES], {'n_fill_steps': 2, 'fill_order': 'left'}, '__c_'),
    'five passes': ([PASSES], {'fill_order': 'left'}, '_c_'),
    'most confident first': ([PASSES], {'n_fill_steps': 3, 'fill_order': 'confident'}, '__b_'),
    'a learned order': ([PASSES], {'n_fill_steps': 2, 'fill_order': 'learned'}, 'c_b_'),
    'a learned order, five passes': ([PASSES], {'fill_order': 'learned'}, 'c_b'),
    'causal': ([CAUSAL], {}, 'b___'),
    'causal, two new tokens': ([CAUSAL], {'max_new_tokens': 2}, 'bc_'),
    'a world': ([CAUSAL], {}, 'b____'),
}
TEXTS = ['___b__', 'c__a', '__\nb_', '_bc']
BEGINNINGS = ['c_____', 'bac___', 'bac___', 'ba____']


def toy(kind, knobs, texts=None, **more):
    """Return a policy, a reference, and Prompts of one of the KINDS, of different lengths."""
    files, values, _ = KINDS[kind]
    knobs(*files, **values | more)
    network = 'causal' if files == [CAUSAL] else 'fill'
    texts = texts or (BEGINNINGS if network == 'causal' else TEXTS)
    records = [{'prompt': text.strip('_'), 'letter': 'ca'[i % 2]} for i, text in enumerate(texts)]
    prompts = prompts_of(*texts, records=records, reply=two_letters if kind == 'a world' else None)
    return tiny(network), tiny(network, seed=3).requires_grad_(False), prompts


@pytest.mark.parametrize('kind', KINDS)
def test_the_mean_gradient_over_all_completions_is_that_of_the_expected_reward(kind, knobs):
    """The advantage is the reward itself. The record gives the probability of each completion."""
    policy, _, prompts = toy(kind, knobs, [KINDS[kind][2]], temperature=0.8, loss_norm='constant')
    found = outcomes(policy, prompts)
    for r, p in found:
        close(r.per_text(grpo.token_stats(policy, r).logp).exp(), [p])
        r.advantage = torch.full(r.text_of.shape, p * worth(r.texts[0]))
    n_places = sum(r.prompts.blank.sum() for r, _ in found)     # by which 'constant' divides
    step = n_places * step_of(policy, [r for r, _ in found])
    direction = torch.randn(len(step))

    def expected_reward(x):                     # if the weights move x steps along the direction
        moved = copy.deepcopy(policy)
        vector_to_parameters(weights(policy) + x * direction, moved.parameters())
        return torch.tensor(sum(p * worth(r.texts[0]) for r, p in outcomes(moved, prompts)))

    close(step @ direction, slope(expected_reward, torch.zeros(1))[0], atol=1e-7)


# ---- compare -------------------------------------------------------------------------------------

@pytest.mark.parametrize('rule', ['none', 'std', 'batch'])
def test_advantages_equal_a_slow_loop_and_those_of_equal_rewards_are_exactly_0(rule, knobs):
    """The mean of seven numbers of 0.3 * 3.3 is another one, in float32 and in float64."""
    knobs(adv_norm=rule, group_size=7, batch_size=4, rewards={'level': 0.3})
    torch.set_default_dtype(torch.float32)      # as in a run
    grpo.level = lambda texts: [3.3] * 14 + torch.randn(14).tolist()
    _, scores = grpo.collect(SimpleNamespace(policy=tiny()), prompts_of('_a', 'b_').task, 0)
    reward = scores['reward']
    for A, group in zip(scores['advantage'].tolist(), reward.tolist()):
        std = {'none': 1 - 1e-4, 'std': statistics.stdev(group),
               'batch': statistics.stdev(reward.flatten().tolist())}[rule]
        close(A, [(x - statistics.mean(group)) / (std + 1e-4) for x in group])
    assert scores['advantage'].any(1).tolist() == [False, False, True, True]
    grpo.advantages = lambda reward, scores: reward.sub_(1.0)       # may use its own copy
    _, scores = grpo.collect(SimpleNamespace(policy=tiny()), prompts_of('_a', 'b_').task, 0)
    close(scores['reward'], 1.0 + scores['advantage'])


@pytest.mark.parametrize('files', [[], ['config/papers/tis.py'], ['config/papers/gigpo.py']])
def test_each_micro_step_of_each_draw_step_and_seed_has_random_numbers_of_its_own(files, knobs):
    """They are the same in each process."""
    networks, task = SimpleNamespace(policy=tiny()), prompts_of(*TEXTS).task
    knobs(*files, rewards={}, gradient_accumulation_steps=2)
    found = set()
    for seed, step, draw in ((1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0), (2, 0, 0)):
        grpo.seed = seed
        found.update(str(r.texts) for r in grpo.collect(networks, task, step, draw)[0])
    assert len(found) == 8
    grpo.devices.set_seed(1, 2)
    assert torch.initial_seed() == 3138858421


# ---- sample --------------------------------------------------------------------------------------

@pytest.mark.parametrize('filters', [
    '', '--temperature=0.6', '--top_k=2', '--top_p=0.7', '--top_k=1', '--top_p=1e-6', '--top_k=99',
    '--top_k=3 --top_p=0.8 --temperature=1.7'])
def test_ids_are_drawn_from_the_tempered_and_filtered_distribution(filters, knobs):
    """Those of probability 0 never come. Frequencies are right within 5 standard errors."""
    knobs(*filters.split())
    logits = 2 * torch.randn(8, 7)
    p = torch.tensor([slow_softmax(row) for row in logits])
    n = 20_000
    ids, allowed = grpo.sample(logits, n)
    frequency = torch.stack([row.bincount(minlength=7) for row in ids]) / n
    assert ((frequency - p).abs() <= 5 * (p * (1 - p) / n).sqrt()).all()
    close(grpo.log_probs(logits, allowed).exp(), p)


def test_top_p_leaves_the_fewest_ids_that_have_it_exactly_also_of_what_top_k_left():
    p = torch.tensor([[0.25, 0.5, 0.125, 0.125]])
    for top_k, top_p, n in ((0, 0.5, 1), (0, 0.75, 2), (0, 0.76, 3), (2, 0.7, 2), (2, 0.6, 1)):
        assert filter_ids(p, top_k, top_p).sum() == n


@pytest.mark.parametrize('n_fill_steps', [1, 2, 3, 6])
@pytest.mark.parametrize('order', ['left', 'random', 'confident', 'learned'])
def test_passes_fill_the_blanks_in_equal_shares_or_as_is_likely_in_a_learned_order(
        order, n_fill_steps, knobs):
    """Greedy decoding fills at least the likeliest. (Draws: see the tests of the gradient.)"""
    knobs(PASSES, fill_order=order, n_fill_steps=n_fill_steps)
    policy, prompts = tiny(seed=2), prompts_of(*TEXTS)
    torch.manual_seed(1)
    r = grpo.complete(policy, prompts, 3, greedy=order == 'learned')
    torch.manual_seed(1)
    given = torch.rand(12, 6)                   # the first numbers that were drawn
    for n, text in enumerate(r.texts):
        is_open = prompts.blank[n // 3].nonzero()[:, 0].tolist()
        n_blanks = len(is_open)
        n_passes = min(n_fill_steps, n_blanks)
        turn = 0
        while is_open:
            turn += 1
            view = text.index_fill(0, torch.tensor(is_open), TOK.blank)
            key = {'left': lambda t: t, 'random': lambda t: given[n, t],
                   'confident': lambda t: -slow_logits(policy, view, t).softmax(0).max(),
                   'learned': lambda t: -slow_order(policy, view, t)[1]}[order]
            is_open.sort(key=key)
            n_now = len(is_open) - n_blanks + math.ceil(turn * n_blanks / n_passes)
            if order == 'learned' and turn < n_fill_steps:
                n_now = max(1, sum(key(t) < 0 for t in is_open))
            rows = (r.text_of == n) & (r.turn == turn)
            assert sorted(is_open[:n_now]) == r.place[rows].tolist()
            assert (r.views[r.view_of[rows]] == view).all()
            is_open = is_open[n_now:]


# ---- look again ----------------------------------------------------------------------------------

@pytest.mark.parametrize('filters', [{}, {'top_k': 3, 'top_p': 0.9, 'temperature': 0.7}])
@pytest.mark.parametrize('kind', KINDS)
def test_token_stats_equal_a_slow_loop_over_tokens_in_their_views(kind, filters, knobs):
    """With a reference, and without. Each token has the filter of the policy that sampled it, which
    did not see the original in a blank. Without filters the reference is certain of its order: in
    float64, too, it fills with probability 1."""
    policy, reference, prompts = toy(kind, knobs, **filters)
    if not filters:
        reference.order.bias.data.fill_(200.0)
    texts = []
    for letter in (2, 1):
        torch.manual_seed(0)
        prompts.tokens[prompts.blank] = letter
        r = grpo.complete(policy, prompts, 5)
        texts.append(r.texts)
    assert texts[0].equal(texts[1])
    for network, its_reference in ((policy, reference), (reference, None)):
        stats = grpo.token_stats(network, r, its_reference)
        for actual, expected in zip(stats, slow_stats(network, r, its_reference)):
            close(actual, expected)
    for m in range(len(r.text_of) if filters else 0):
        z = grpo.temperature * slow_logits(policy, r.views[r.view_of[m]], r.place[m])
        assert r.allowed[m].tolist() == [p > 0 for p in slow_softmax(z)]
    r = grpo.complete(policy, prompts, 2, greedy=True)          # also the cache that samples
    assert policy.logits(policy.features(r.views)[r.view_of, r.place]).argmax(1).equal(r.token)


# ---- KL ------------------------------------------------------------------------------------------

KLS = {                         # {file: what its mean is, and whose gradient the mean gradient is}
    '': (kl_of, kl_of),
    'config/kl/forward.py': 2 * (lambda z, q: kl_of(q, z),),
    'config/kl/symmetric.py': 2 * (lambda z, q: (kl_of(z, q) + kl_of(q, z)) / 2,),
    'config/kl/k1.py': (kl_of, lambda z, q: 0 * z.sum()),
    'config/kl/k2.py': (
        lambda z, q: z.softmax(0) @ (z.log_softmax(0) - q.log_softmax(0)).square() / 2, kl_of),
    'config/kl/k3.py': (kl_of, lambda z, q: kl_of(q, z)),
    'config/kl/k3_ratio.py': (kl_of, kl_of),
}


@pytest.mark.parametrize('name', KLS)
def test_the_mean_and_the_mean_gradient_of_a_kl_equal_sums_over_all_ids(name, knobs):
    """Of the policy; by k3_ratio, of an older one."""
    knobs(*name.split())
    value, sloped = KLS[name]
    z, q, older = torch.randn(3, 5)
    logp_old = (older if 'ratio' in name else z).log_softmax(0)
    now = z.clone().requires_grad_()
    logp, logp_ref = now.log_softmax(0), q.log_softmax(0)                       # of all ids
    stats = grpo.Stats(logp, logp_ref, grpo.divergence(logp, logp_ref), None)
    mean = logp_old.exp() @ grpo.kl_penalty(stats, SimpleNamespace(logp_old=logp_old)).expand(5)
    close(mean, value(z, q))
    close(torch.autograd.grad(mean, now)[0], slope(lambda z: sloped(z, q), z))


# ---- learn ---------------------------------------------------------------------------------------

def slow_loss(policy, reference, rollouts, old):
    """Return the loss, and means of KL, entropy, and what is clipped, from their definitions. old:
    log-probabilities of each Rollout."""
    texts, numbers, n_places = [], [], 0
    for r, logp_old in zip(rollouts, old):
        stats = slow_stats(policy, r, reference)
        n_places += r.k * r.prompts.blank.sum()
        for n in range(len(r.texts)):
            rows = r.text_of == n
            logp, _, kl, entropy = [values[rows] for values in stats]
            ratio, A = (logp - logp_old[rows]).exp(), r.advantage[rows]
            bound = torch.where(A > 0, 1 + grpo.clip_high, 1 - grpo.clip_low)
            is_clipped = A * (ratio - bound) > 0
            gain = A * torch.where(is_clipped, bound, ratio)
            texts.append(grpo.kl_beta * 2 * kl - gain - grpo.entropy_coef * entropy)
            if grpo.kl_beta or grpo.entropy_coef or A.any():        # tokens that learn
                numbers.append(torch.stack((kl, entropy, is_clipped)))
    tokens = torch.cat(texts)
    loss = {'token': tokens.mean(), 'constant': tokens.sum() / n_places,
            'sequence': sum(text.mean() for text in texts) / len(texts)}[grpo.loss_norm]
    means = torch.cat(numbers, 1).mean(1)
    return loss, means if reference else means[1:]


def descend(network, loss, lr):
    """Move the weights of a network against the gradient of a loss. Return its norm."""
    grads = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True,
                                materialize_grads=True)
    grad = parameters_to_vector(grads)
    scale = min(1.0, (grpo.grad_clip or math.inf) / (grad.norm() + 1e-6))
    vector_to_parameters(weights(network) - lr * scale * grad, network.parameters())
    return grad.norm()


BOTH = {'kl_beta': 0.3, 'entropy_coef': 0.1}
FOUR = {'batch_size': 1, 'gradient_accumulation_steps': 4}
SEVEN = {'group_size': 7, **FOUR}
CLIP = {'clip_low': 0.005, 'clip_high': 0.01}
STEPS = {                       # one of KINDS, and knobs
    'one update': ('one pass', {'grad_clip': 0.01}),
    'of a group, tempered': ('one pass', {'adv_norm': 'std', 'temperature': 1.3, **BOTH}),
    'updates': ('one pass', {'epochs': 3, **CLIP}),
    'mini-batches': ('one pass', {'mini_batches': 2, 'epochs': 2, 'top_k': 3, **SEVEN}),
    'passes': ('two passes, random order', {'loss_norm': 'sequence', **BOTH, **FOUR}),
    'a learned order': ('a learned order, five passes', {'epochs': 2, **FOUR, **CLIP}),
    'causal': ('causal', {'adv_norm': 'batch', 'entropy_coef': 0.1, **FOUR}),
    'an older policy': ('causal', {'kl_beta': 0.1}),
    'a world': ('a world', {'loss_norm': 'constant', 'mini_batches': 4, **BOTH, **FOUR, **CLIP}),
    'a world, filtered': ('a world', {'top_p': 0.8, 'epochs': 2, 'loss_norm': 'sequence', **CLIP}),
}


@pytest.mark.parametrize('name', STEPS)
def test_a_step_equals_slow_loops_over_updates_texts_and_tokens(name, knobs):
    """Of four micro-steps the last teaches nothing. A file has doubled the KL of the loss, or set
    log-probabilities, those of an older policy, and credits of tokens, which cancel in some texts.
    The reward has a gradient, which nobody follows. A KL to a reference is logged also if it is not
    in the loss."""
    kind, values = STEPS[name]
    values = {'rewards': {'liked': 1.0}, 'group_size': 4, 'batch_size': 4} | values
    policy, reference, prompts = toy(kind, knobs, **values)
    grpo.liked = lambda r, networks: r.per_text(grpo.token_stats(networks.policy, r).logp) / 9 + (
        torch.tensor([worth(text) for text in r.texts]))
    grpo.kl_penalty = lambda stats, r: 2 * stats.kl
    reference = None if name == 'one update' else reference
    networks = SimpleNamespace(policy=policy, reference=reference)
    rollouts, scores = grpo.collect(networks, prompts.task, 0)
    for r, A in zip(rollouts, scores['advantage'].split(grpo.batch_size)):
        close(r.advantage, A.flatten()[r.text_of])
    if len(rollouts) == 4:
        rollouts[3].advantage[:] = 0
    by_hand = copy.deepcopy(policy)
    old = [slow_stats(by_hand, r).logp.detach() for r in rollouts]
    if name == 'an older policy':
        old = [logp + torch.randn(len(logp)) / 4 for logp in old]
        rollouts[0].logp_old = old[0]
        rollouts[0].advantage = rollouts[0].place % 3 - 1.0
    numbers = grpo.learn(networks, [torch.optim.SGD(policy.parameters())], rollouts, 0.2)

    size = len(rollouts) // grpo.mini_batches
    for i in list(range(0, len(rollouts), size)) * grpo.epochs:
        part = slice(i, i + size)
        loss, means = slow_loss(by_hand, reference, rollouts[part], old[part])
        norm = descend(by_hand, loss, 0.2)
    close(weights(policy), weights(by_hand), atol=1e-7)
    names = ('loss', 'grad_norm', 'kl', 'entropy', 'clip_frac')
    actual = [numbers[name] for name in names if name in numbers]
    close(actual, torch.stack([loss, norm, *means]), atol=1e-6)


@pytest.mark.parametrize('kind', ['two passes, random order', 'a learned order', 'causal'])
def test_a_network_reads_each_view_of_texts_that_learn_once(kind, knobs):
    policy, _, prompts = toy(kind, knobs)
    r = grpo.complete(policy, prompts, 3)
    learns = r.text_of % 5 == 1
    r.advantage = 1.0 * learns
    policy.features = Mock(side_effect=policy.features)
    grpo.take_update(SimpleNamespace(policy=policy, reference=None), [], [r], 0.0)
    [call] = policy.features.call_args_list
    used = getattr(r, 'seen', r.view_of)[learns].unique()
    assert sorted(call.args[0].tolist()) == sorted(r.views[used].tolist())


@pytest.mark.parametrize('name', [name for name in KLS if 'k1' not in name])
def test_a_policy_that_is_its_reference_stays_if_no_text_has_an_advantage(name, knobs):
    """The gradient of the KL is exactly 0: Muon and AdamW make a full step of a rounding error, and
    momentum goes on without a gradient. (That of k1 is noise.)"""
    torch.set_default_dtype(torch.float32)
    policy, _, prompts = toy('one pass', knobs, kl_beta=0.3)
    if name:
        grpo.include(name)
    networks = SimpleNamespace(policy=policy, reference=copy.deepcopy(policy))
    optimizers = make_optimizers(policy, 'muon', weight_decay=0.1)
    r = grpo.complete(policy, prompts, 3)
    before = weights(policy)
    for scale, lr in ((1.0, 0.0), (0.0, 0.1)):
        r.advantage = scale * torch.randn(12)[r.text_of]
        numbers = grpo.learn(networks, optimizers, [r], lr)
        assert weights(policy).equal(before)
    assert numbers['grad_norm'] == 0


# ---- worlds --------------------------------------------------------------------------------------

@pytest.mark.parametrize('max_new_tokens', [0, 1, 3])
def test_a_world_speaks_between_the_tokens_of_the_policy_as_in_a_slow_loop(max_new_tokens, knobs):
    """It is asked once for equal completions of equal prompts. (Two prompts of one record begin at
    different places.) Its words are not in the table, its end ends a text, and what has no room is
    cut."""
    policy, _, prompts = toy('a world', knobs, max_new_tokens=max_new_tokens, temperature=3.0)
    prompts.record[3] = 2
    asked, expected = [], set()

    def reply(prompt, letter, completion):
        asked.append((prompt, letter, completion))
        return two_letters(completion, letter)

    prompts.task.reply = reply
    r = grpo.complete(policy, pick(prompts, [0, 1, 2, 3, 0]), 20)
    columns = grpo.columns_of(r)
    for n, text in enumerate(map(TOK.show, r.texts.tolist())):          # (the end is a line feed)
        prompt, letter = prompts.task.records[r.prompts.record[n // 20]].values()
        start = int(r.prompts.start[n // 20])
        stop = start + (max_new_tokens or 6 - start)
        own, so_far, is_over = '', text[:start], False
        while len(so_far) < stop and not is_over:
            own += text[len(so_far)]
            so_far += own[-1]
            is_over = own[-1] in '\nc'
            if len(so_far) < stop and own[-1] != '\n':
                expected.add((start, prompt, letter, so_far[start:]))
                so_far += {'a': f'b{letter}', 'c': letter}.get(own[-1], '')
        assert text == so_far[:stop]
        found = [columns[name][n] for name in ('completion', 'sampled', 'ended', 'original')]
        assert found == [text[start:].strip(), own.strip(), own[-1] == '\n',
                         prompt[:start].ljust(6, 'a')]
    assert sorted(asked) == sorted(case[1:] for case in expected)


@pytest.mark.parametrize('kind', ['causal', 'a world'])
def test_the_network_reads_texts_once_that_are_equal_so_far_and_none_that_has_ended(kind, knobs):
    """(They are those of a record.) It reads only where a text is written."""
    policy, _, prompts = toy(kind, knobs, temperature=3.0)
    inner, sizes = policy.trunk, []
    policy.trunk = lambda inputs, cache: sizes.append([*inputs.shape]) or inner(inputs, cache)
    r = grpo.complete(policy, pick(prompts, [0, 1, 2, 3, 0]), 20)
    expected, last = [], -1
    for at in r.place.unique().tolist():
        going = {(int(r.prompts.record[n // 20]), *r.texts[n, :at].tolist())
                 for n in r.text_of[r.place >= at]}
        expected.append([len(going), at - last])
        last = at
    assert sizes == expected


@pytest.mark.parametrize('kind', ['char', 'bytes'])
def test_a_world_reads_all_ids_together_but_of_characters_none_is_decoded_twice(kind, knobs):
    """Here the a and the b of bytes are together one character, and alone none."""
    policy, _, prompts = toy('a world', knobs, temperature=3.0)
    tok, n_shown, completions = Tokenizer('char', 'abc'), [], set()
    if kind == 'bytes':
        tok.vocabulary = {'kind': kind}
        tok.pieces[1:3] = 'é'.encode()[:1], 'é'.encode()[1:]
    show = tok.show
    tok.show = lambda ids: n_shown.append(len(ids)) or show(ids)

    def reply(completion):
        completions.add(completion)
        return 'b' if completion.endswith(('a', '\ufffd')) else None

    prompts.task.tok, prompts.task.reply = tok, reply
    r = grpo.complete(policy, prompts, 20)
    assert kind == 'bytes' or sum(n_shown) <= len(r.token)
    # The last token of a text has no room behind it, or is an end.
    expected = {show(r.texts[n, r.prompts.start[n // 20]:place + 1].tolist())
                for n, place, token in zip(r.text_of, r.place, r.token.tolist())
                if token != tok.eos and place + 1 < r.texts.size(1)}
    assert completions == expected
    assert any(('éc' if kind == 'bytes' else 'abc') in text for text in expected)


# ---- evaluate ------------------------------------------------------------------------------------

@pytest.mark.parametrize('batch_size', [4, 9])
def test_an_evaluation_scores_parts_of_the_held_out_prompts_each_with_a_seed_of_its_own(
        batch_size, knobs):
    """The seed of the run has no part in it."""
    policy, _, prompts = toy('two passes, left to right', knobs, rewards={'letters': -0.5}, seed=9,
                             batch_size=batch_size, eval_prompts=9)
    grpo.letters = lambda texts, step: [text.count('a') + step for text in texts]
    prompts.task.verify = lambda text: 1.0      # watched, and no part of the reward
    samples, *both = grpo.evaluate(SimpleNamespace(policy=policy), prompts.task, 7, n_shown=8)
    grpo.devices.set_seed(0)
    held_out = prompts.task.prompts('val', 9)
    texts = []
    for i in range(0, 9, batch_size):
        grpo.devices.set_seed(0, i // batch_size)
        part = pick(held_out, range(9)[i:i + batch_size])
        texts += grpo.complete(policy, part, grpo.N_EVAL).texts.tolist()
    texts += grpo.complete(policy, held_out, 4, greedy=True).texts.tolist()
    texts = list(map(TOK.decode, texts))
    letters = torch.tensor([text.count('a') + 7 for text in texts])
    for name, weight in (('letters', 1.0), ('reward', -0.5)):
        close(torch.cat([scores[name].flatten() for scores in both]), weight * letters)
    for scores in both:
        close(scores['tokens'], held_out.blank.sum(1, keepdim=True).expand(-1, 4))
    assert [sample['completion'] for sample in samples] == texts[:8]


GOALS = {'verify': {'verify': 3.0}, 'reward': {'mine': 1}}         # and rewards


@pytest.mark.parametrize('goal', GOALS)
def test_the_line_to_beat_is_the_better_of_sampling_and_greedy_decoding_at_the_start(goal):
    """Each prompt has a line of its own. Of ten starts each of the two is the better in some."""
    for _ in range(10):
        line = first = None
        for scores in torch.randint(3, (2, 2, 2, 9, 4)) / 2:    # two evaluations
            sampled, greedy = [dict(zip(('verify', 'reward'), x)) for x in scores]
            line, numbers = grpo.report.against_line(sampled, greedy, line, GOALS[goal])
            now, best = sampled[goal].mean(1), greedy[goal].mean(1)
            if first is None:
                first = max(now, best, key=sum)
            right = sampled['verify']
            expected = {goal: now, 'greedy': best, 'line to beat': first, 'above it': now - first,
                        'eval/pass@4': 1.0 * (right == 1).any(1), 'eval/verify': right,
                        'greedy/verify': greedy['verify']}
            for name, values in expected.items():
                close(numbers[name], values.mean())
            close(numbers['standard error'], statistics.stdev((now - first).tolist()) / 3)
