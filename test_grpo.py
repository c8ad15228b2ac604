"""The algorithm's tests. Each part of GRPO is compared with something that is not the code: an
enumeration of all that can be drawn, a finite difference, a slow loop, a formula. Read downwards,
in the order of train_grpo.py:

    tools           toy networks and prompts; all completions of a prompt; loops over single tokens
    the gradient    its mean over all completions is that of the expected reward
    act             filters, frequencies, greedy decoding, the order of passes
    worlds          what reply() sees, and whose words its words are; what the network reads
    compare         advantages; random numbers
    learn           of each kind of KL the mean and its gradient; steps with micro-steps,
                    mini-batches and epochs, and what they return; what is read; when no weight
                    moves
    evaluate        scores and samples; the line to beat

python -m pytest -q test_grpo.py"""
# sizes: P prompts | k completions of each: N texts of T tokens | M sampled tokens | V ids
import copy
import itertools
import math
import statistics
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

import train_grpo as grpo
from model import GPT, filter_ids
from plumbing.configurator import configure
from plumbing.datasets import Dataset
from plumbing.optim import make_optimizers
from tasks import Tokenizer

torch.set_num_threads(1)        # at this size two threads would only wait for each other
TOK = Tokenizer('char', 'abc')  # ids 1, 2, 3; 0 ends a text; 4 is a blank, 5 bos, 6 padding
V = 4
PLAIN = '--adv_norm=none --kl_beta=0 --entropy_coef=0 --grad_clip=0'
PASSES = 'plugins/passes.py'
CAUSAL = 'plugins/causal.py'


# ---- tools ---------------------------------------------------------------------------------------

@pytest.fixture(autouse=True)
def knobs():
    """knobs('plugins/passes.py', n_fill_steps=3): words of a command line, for one test. Without
    more the loss is the plain one: A is not divided, no KL, no bonus, no limit of the gradient."""
    def change(*files, **values):
        words = [f'--{name}={value}' for name, value in values.items()]
        configure(vars(grpo), [*PLAIN.split(), *files, *words])

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    change()
    yield change
    configure(vars(grpo), [])
    torch.set_default_dtype(torch.float32)


def close(actual, expected, atol=1e-9):
    torch.testing.assert_close(torch.as_tensor(actual), torch.as_tensor(expected), atol=atol,
                               rtol=1e-6, check_dtype=False)


def tiny(kind='fill', seed=0, positions='learned'):
    """Return a GPT all of whose weights matter. (In a new one the logits are 0.) `order` is the
    layer of a learned order."""
    torch.manual_seed(seed)
    network = GPT(V, 8, 1 + (kind == 'causal'), 2, 8, kind, positions)
    network.order = nn.Linear(8, 1)
    for p in network.parameters():
        nn.init.normal_(p, std=0.5)
    for p in network.order.parameters():
        p.data /= 16                            # by which its scores are multiplied
    return network


def prompts_of(*texts, reply=None):
    """Return Prompts of texts that end with an eos: 'b_c_' has two blanks, and 'b=aa' is a prompt
    with its answer, which is blank."""
    parts = [text.partition('=') for text in texts]
    records = [{'prompt': prompt, 'answer': answer} for prompt, _, answer in parts]
    task = grpo.Task(Dataset(records, records, None, reply), TOK, 'answer')
    return task.prompts_of(torch.arange(len(texts)))


def weights(network):
    return parameters_to_vector(network.parameters()).detach()


def step_of(policy, rollouts, reference=None):
    """Return the step of learn(), minus the gradient: SGD with a rate of 1 moves weights by it."""
    moved = copy.deepcopy(policy)
    networks = SimpleNamespace(policy=moved, reference=reference)
    grpo.learn(networks, [torch.optim.SGD(moved.parameters())], rollouts, 1.0)
    return weights(moved) - weights(policy)


def slow_softmax(logits):
    """Return the probabilities (V,) with which ids are drawn from logits (V,)."""
    p = (logits / grpo.temperature).exp()
    kept = p.argsort(descending=True)[:grpo.top_k or None]
    enough = grpo.top_p * p[kept].sum()         # a share of what top_k leaves
    while p[kept[:-1]].sum() >= enough:
        kept = kept[:-1]
    return torch.zeros_like(p).index_copy(0, kept, p[kept] / p[kept].sum())


def outcomes(policy, prompts):
    """Return all that complete() can do, a list of (Rollout, probability). It is run again and
    again. Its draws, of ids and of a learned order, are the next path through the tree of all."""
    ahead, found = [[]], []                     # paths to take: which branch at each draw

    def choose(p):
        if len(drawn) == len(path):             # a new draw: its other branches come later
            ahead.extend(path + [i] for i in range(1, len(p)))
            path.append(0)
        i = path[len(drawn)]
        drawn.append(p[i])
        return i

    def sample(logits, *_):
        ids = [[choose(slow_softmax(row))] for row in logits]
        return torch.tensor(ids, dtype=torch.long).view(-1, 1), None

    def rand_like(scores):                      # a draw of 0 is below each probability
        draws = [choose([p, 1 - p]) if p > 0 else 1 for p in scores.sigmoid().flatten()]
        return torch.tensor(draws).view_as(scores)

    with patch('train_grpo.sample', sample), patch('torch.rand_like', rand_like):
        while ahead:
            path = ahead.pop()
            drawn = []                          # its probabilities
            torch.manual_seed(0)                # of a random order
            r = grpo.complete(policy, prompts, 1)
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
        rows.append(look(slow_logits, view, t, id, allowed))
        seen = r.seen[m, :-1][:r.turn[m]] if hasattr(r, 'seen') else []
        for turn, number in enumerate(seen, 1):         # in a learned order: wait, or fill it
            rows[m] = rows[m] + look(slow_order, r.views[number], t, int(turn == r.turn[m]), [0, 1])
    return grpo.Stats(*torch.stack(rows).T)


# ---- the gradient --------------------------------------------------------------------------------

def worth(texts):
    """A reward (N,) that likes no two texts alike."""
    return (texts * torch.arange(2, 2 + texts.size(1)) ** 2).sum(1).sin()


def two_letters(completion, answer):
    """A world: it says something after an a, and ends a text after a c."""
    return {'a': f'b{answer[0]}', 'c': (answer[0], True)}.get(completion[-1:])


KINDS = {                       # files, knobs, and a prompt
    'one pass': ([], {}, '_b_'),
    'two passes, random order': ([PASSES], {'n_fill_steps': 2}, '__c_'),
    'two passes, left to right': ([PASSES], {'n_fill_steps': 2, 'fill_order': 'left'}, '__c_'),
    'five passes': ([PASSES], {'fill_order': 'left'}, '_c_'),
    'most confident first': ([PASSES], {'n_fill_steps': 3, 'fill_order': 'confident'}, '__b_'),
    'a learned order': ([PASSES], {'n_fill_steps': 2, 'fill_order': 'learned'}, 'c_b_'),
    'a learned order, one pass': ([PASSES], {'n_fill_steps': 1, 'fill_order': 'learned'}, 'c_b_'),
    'a learned order, five passes': ([PASSES], {'fill_order': 'learned'}, 'c_b'),
    'causal': ([CAUSAL], {}, 'b=aa'),
    'causal, two new tokens': ([CAUSAL], {'max_new_tokens': 2}, 'bc='),
    'a world': ([CAUSAL], {}, 'b=caa'),
}
TEXTS = ['___b__', 'c__a', '__cb_', '_bc']
BEGINNINGS = ['c=ca', 'bac=aa', 'bac=ca', 'ba=aa']


def toy(kind, knobs, texts=None, **more):
    """Return a policy, a reference, and Prompts of one of the KINDS, of different lengths."""
    files, values, _ = KINDS[kind]
    knobs(*files, **values | more)
    network = 'causal' if files == [CAUSAL] else 'fill'
    texts = texts or (BEGINNINGS if network == 'causal' else TEXTS)
    prompts = prompts_of(*texts, reply=two_letters if kind == 'a world' else None)
    return tiny(network), tiny(network, seed=3).requires_grad_(False), prompts


@pytest.mark.parametrize('kind', KINDS)
def test_the_mean_gradient_over_all_completions_is_that_of_the_expected_reward(kind, knobs):
    """The advantage is the reward itself. The record gives the probability of each completion."""
    policy, _, prompts = toy(kind, knobs, [KINDS[kind][2]], temperature=0.8, loss_norm='constant')
    found = outcomes(policy, prompts)
    for r, p in found:
        close(grpo.token_stats(policy, r).logp.sum().exp(), p)
        r.advantage = p * worth(r.texts)[r.text_of]
    step = step_of(policy, [r for r, _ in found])
    step *= len(found) * r.prompts.blank.sum()          # by which 'constant' divides
    direction = torch.randn(len(step))

    def expected_reward(x):                     # if the weights move x steps along the direction
        moved = copy.deepcopy(policy)
        vector_to_parameters(weights(policy) + x * direction, moved.parameters())
        return sum(p * worth(r.texts)[0] for r, p in outcomes(moved, prompts))

    slope = (expected_reward(1e-5) - expected_reward(-1e-5)) / 2e-5
    close(step @ direction, slope, atol=1e-7)


# ---- act -----------------------------------------------------------------------------------------

@pytest.mark.parametrize('filters', [
    '', '--temperature=0.6', '--top_k=2', '--top_p=0.7', '--top_k=1', '--top_p=1e-6', '--top_k=99',
    '--top_k=3 --top_p=0.8 --temperature=1.7'])
def test_ids_are_drawn_from_the_tempered_and_filtered_distribution(filters, knobs):
    """Those of probability 0 never come. Frequencies are right within 5 standard errors."""
    knobs(*filters.split())
    logits = 2 * torch.randn(8, 7)
    p = torch.stack([slow_softmax(row) for row in logits])
    n = 20_000
    ids, allowed = grpo.sample(logits, n)
    frequency = torch.stack([row.bincount(minlength=7) for row in ids]) / n
    assert ((frequency - p).abs() <= 5 * (p * (1 - p) / n).sqrt()).all()
    close(grpo.log_probs(logits, allowed).exp(), p)


def test_top_p_leaves_the_fewest_ids_that_have_it_exactly():
    p = torch.tensor([[0.25, 0.5, 0.125, 0.125]])
    assert filter_ids(p, 0, 0.75).tolist() == [[True, True, False, False]]


@pytest.mark.parametrize('kind', KINDS)
def test_greedy_decoding_takes_the_likeliest_ids_and_reads_nothing_that_stands_in_a_blank(
        kind, knobs):
    """Also with the cache that samples. No network can read a -1."""
    policy, _, prompts = toy(kind, knobs)
    prompts.tokens[prompts.blank] = -1
    r = grpo.complete(policy, prompts, 2, greedy=True)
    logits = policy.logits(policy.features(r.views)[r.view_of, r.place])
    assert logits.argmax(1).equal(r.token)


@pytest.mark.parametrize('n_fill_steps', [1, 2, 3, 6])
@pytest.mark.parametrize('order', ['left', 'random', 'confident'])
def test_passes_fill_the_blanks_in_equal_shares_by_a_rule(order, n_fill_steps, knobs):
    knobs(PASSES, fill_order=order, n_fill_steps=n_fill_steps)
    policy, prompts = tiny(seed=2), prompts_of(*TEXTS)
    torch.manual_seed(1)
    r = grpo.complete(policy, prompts, 3)
    torch.manual_seed(1)
    given = torch.rand(12, 7)                   # the first numbers that were drawn
    for n, text in enumerate(r.texts):
        is_open = prompts.blank[n // 3].nonzero()[:, 0].tolist()
        shares = torch.arange(len(is_open)).tensor_split(min(n_fill_steps, len(is_open)))
        for turn, share in enumerate(shares, 1):
            view = text.index_fill(0, torch.tensor(is_open), TOK.blank)
            is_open.sort(key={
                'left': lambda t: t, 'random': lambda t: given[n, t],
                'confident': lambda t: -slow_logits(policy, view, t).softmax(0).max()}[order])
            rows = (r.text_of == n) & (r.turn == turn)
            assert sorted(is_open[:len(share)]) == r.place[rows].tolist()
            assert (r.views[r.view_of[rows]] == view).all()
            is_open = is_open[len(share):]


def test_greedy_decoding_fills_what_is_likely_and_at_least_the_likeliest_in_a_learned_order(knobs):
    """(At random: see the tests of the gradient.)"""
    knobs(PASSES)
    scores = torch.tensor([[-2.0, -1.0, -torch.inf], [2.0, -1.0, 1.0]])         # of places
    assert grpo.decide(scores, greedy=True).tolist() == [[False, True, False], [True, False, True]]


# ---- worlds --------------------------------------------------------------------------------------

@pytest.mark.parametrize('max_new_tokens', [0, 1, 3])
def test_a_world_speaks_between_the_tokens_of_the_policy_as_in_a_slow_loop(max_new_tokens, knobs):
    """It is asked once for equal completions of equal prompts. (Two prompts of one record begin at
    different places.) Its words are not in the table, its end ends a text, and what has no room is
    cut."""
    policy, _, prompts = toy('a world', knobs, max_new_tokens=max_new_tokens, temperature=3.0)
    asked, expected = [], set()

    def reply(prompt, answer, completion):
        asked.append((prompt, answer, completion))
        return two_letters(completion, answer)

    task = prompts.task
    task.reply = reply
    prompts = task.prompts_of(torch.tensor([0, 1, 2, 3, 0]))
    prompts.record[3] = 2
    r = grpo.complete(policy, prompts, 20)
    columns = grpo.columns_of(r)
    for n, sampled in enumerate(columns['sampled']):
        prompt, answer = task.records[prompts.record[n // 20]].values()
        start = int(prompts.start[n // 20])
        room = max_new_tokens or 6 - start
        completion = ''
        for letter in sampled:
            completion += letter
            if len(completion) < room:
                expected.add((start, prompt, answer, completion))
                completion += {'a': f'b{answer[0]}', 'c': answer[0]}.get(letter, '')
        assert not {'c', '\n'} & {*sampled[:-1]}
        is_ended = len(completion) < room and sampled[-1:] != 'c'
        found = [columns[name][n] for name in ('text', 'completion', 'ended')]
        assert found == [(prompt[:start] + completion)[:start + room], completion[:room], is_ended]
    assert sorted(asked) == sorted(case[1:] for case in expected)


@pytest.mark.parametrize('kind', ['causal', 'a world'])
def test_the_network_reads_texts_once_that_are_equal_so_far_and_none_that_has_ended(kind, knobs):
    """(They are those of a record.) It reads only where a text is written."""
    policy, _, prompts = toy(kind, knobs, temperature=3.0)
    policy.trunk = Mock(side_effect=policy.trunk)
    r = grpo.complete(policy, prompts.task.prompts_of(torch.tensor([0, 1, 2, 3, 0])), 20)
    expected, last = [], -1
    for at in r.place.unique().tolist():
        going = {(int(r.prompts.record[n // 20]), *r.texts[n, :at].tolist())
                 for n in r.text_of[r.place >= at]}
        expected.append((len(going), at - last))
        last = at
    assert [call.args[0].shape for call in policy.trunk.call_args_list] == expected


READ = {                        # what a world has read after tokens, and ids that were decoded
    'char': (['a', 'abc', 'abca'], [1, 1, 1]),
    'bytes': (['\ufffd', '\xe9c', '\xe9c\ufffd'], [1, 3, 4])}


@pytest.mark.parametrize('kind', READ)
def test_a_world_reads_all_ids_together_but_of_characters_none_is_decoded_twice(kind, knobs):
    """The policy writes a, c, a, and the world b after each a. Of bytes a and b are together one
    character, and alone none."""
    policy, _, prompts = toy('a world', knobs, ['c=aaaa'])
    letters, completions = iter('aca'), []
    tok = prompts.task.tok = Tokenizer('char', 'abc')
    tok.vocabulary = {'kind': kind}
    if kind == 'bytes':
        tok.pieces[1:3] = b'\xc3', b'\xa9'
    tok.show = Mock(side_effect=tok.show)

    def reply(completion):
        completions.append(completion)
        return None if completion[-1] == 'c' else 'b'

    prompts.task.reply = reply
    grpo.sample = lambda *_: (torch.tensor([TOK.encode(next(letters))]), None)
    grpo.complete(policy, prompts, 1)
    n_decoded = [len(call.args[0]) for call in tok.show.call_args_list]
    assert (completions, n_decoded) == READ[kind]


# ---- compare -------------------------------------------------------------------------------------

@pytest.mark.parametrize('rule', ['none', 'std', 'batch'])
def test_advantages_equal_a_slow_loop_and_those_of_equal_rewards_are_exactly_0(rule, knobs):
    """The mean of seven numbers of 0.3 * 3.3 is another one, in float32 and in float64."""
    knobs(adv_norm=rule, group_size=7, batch_size=4, rewards={'level': 0.3})
    torch.set_default_dtype(torch.float32)      # as in a run
    grpo.level = lambda texts: [3.3] * 14 + torch.randn(14).tolist()

    def advantages(reward, scores, inner=grpo.advantages):
        A = inner(reward, scores)
        reward.zero_()                          # a file may write into its copy
        return A

    grpo.advantages = advantages
    _, scores = grpo.collect(SimpleNamespace(policy=tiny()), prompts_of('_a', 'b_').task, 0)
    reward = scores['reward']
    for A, group in zip(scores['advantage'], reward):
        std = {'none': 1 - 1e-4, 'std': group.std(), 'batch': reward.std()}[rule]
        close(A, (group - group.mean()) / (std + 1e-4))
    assert scores['advantage'].any(1).tolist() == [False, False, True, True]


@pytest.mark.parametrize('files', [[], ['config/papers/tis.py'], ['config/papers/gigpo.py']])
def test_each_micro_step_of_each_draw_step_and_seed_has_random_numbers_of_its_own(files, knobs):
    """They are the same in each process."""
    networks, task = SimpleNamespace(policy=tiny()), prompts_of(*TEXTS).task
    knobs(*files, rewards={}, gradient_accumulation_steps=2)
    found = set()
    for _, seed, step, draw in itertools.product(range(2), repeat=4):
        grpo.seed = seed
        found.update(str(r.texts) for r in grpo.collect(networks, task, step, draw)[0])
    assert len(found) == 16
    grpo.devices.set_seed(1, 2)
    assert torch.initial_seed() == 3138858421


# ---- learn ---------------------------------------------------------------------------------------

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
    z.requires_grad_()
    logp, logp_ref = z.log_softmax(0), q.log_softmax(0)                         # of all ids
    logp_old = older.log_softmax(0) if 'ratio' in name else logp.detach()
    stats = grpo.Stats(logp, logp_ref, grpo.divergence(logp, logp_ref), None)
    mean = logp_old.exp() @ grpo.kl_penalty(stats, SimpleNamespace(logp_old=logp_old)).expand(5)
    close(mean, value(z, q))
    close(*[torch.autograd.grad(x, z, retain_graph=True)[0] for x in (mean, sloped(z, q))])


def slow_loss(policy, reference, rollouts, old):
    """Return the loss, and means of KL, entropy, and what is clipped, from their definitions. old:
    log-probabilities of each Rollout."""
    texts, numbers, n_places = [], [], 0
    for r, logp_old in zip(rollouts, old):
        n_places += r.k * r.prompts.blank.sum()
        logp, logp_ref, kl, entropy = slow_stats(policy, r, reference)
        ratio, A = (logp - logp_old).exp(), r.advantage
        bound = torch.where(A > 0, 1 + grpo.clip_high, 1 - grpo.clip_low)
        is_clipped = A * (ratio - bound) > 0
        gain = A * torch.where(is_clipped, bound, ratio)
        losses = grpo.kl_beta * (2 * kl + logp_ref) - gain - grpo.entropy_coef * entropy
        for n in range(len(r.texts)):
            rows = r.text_of == n
            texts.append(losses[rows])
            if grpo.kl_beta or grpo.entropy_coef or A[rows].any():      # tokens that learn
                numbers.append(torch.stack((kl, entropy, is_clipped))[:, rows])
    tokens = torch.cat(texts)
    loss = {'token': tokens.mean(), 'constant': tokens.sum() / n_places,
            'sequence': sum(text.mean() for text in texts) / len(texts)}[grpo.loss_norm]
    means = torch.cat(numbers, 1).mean(1)
    return loss, means if reference else means[1:]


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
    'a learned order, epochs': ('a learned order, five passes', {'epochs': 2, **FOUR, **CLIP}),
    'causal, of the batch': ('causal', {'adv_norm': 'batch', 'entropy_coef': 0.1, **FOUR}),
    'an older policy': ('causal', {}),
    'worlds': ('a world', {'loss_norm': 'constant', 'mini_batches': 4, **BOTH, **FOUR, **CLIP}),
    'world, filtered': ('a world', {'top_p': 0.8, 'epochs': 2, 'loss_norm': 'sequence', **CLIP}),
}
FILTERS = {'top_k': 3, 'top_p': 0.9, 'temperature': 0.7, 'loss_norm': 'sequence', **BOTH}


@pytest.mark.parametrize('name', [*STEPS, *KINDS])
def test_a_step_equals_slow_loops_over_updates_texts_and_tokens(name, knobs):
    """So are the Stats of its tokens. Of four micro-steps the last teaches nothing. A file has
    another penalty, or has set log-probabilities, those of an older policy, and credits of tokens,
    which cancel in some texts. The reward has a gradient, which nobody follows. A KL to a reference
    is logged also if it is not in the loss. The reference is certain of its order: in float64, too,
    it fills with probability 1."""
    kind, values = STEPS.get(name, (name, FILTERS))
    values = {'rewards': {'liked': 1.0}, 'group_size': 4, 'batch_size': 4} | values
    policy, reference, prompts = toy(kind, knobs, **values)
    grpo.liked = lambda r, networks: worth(r.texts) * networks.policy.head.weight[0, 0]
    grpo.kl_penalty = lambda stats, r: 2 * stats.kl + stats.logp_ref
    reference.order.bias.data.fill_(200.0)
    reference = None if name == 'one update' else reference
    networks = SimpleNamespace(policy=policy, reference=reference)
    rollouts, scores = grpo.collect(networks, prompts.task, 0)
    for r, A in zip(rollouts, scores['advantage'].split(grpo.batch_size)):
        close(r.advantage, A.flatten()[r.text_of])
    for r in rollouts[3:]:
        r.advantage[:] = 0
    by_hand = copy.deepcopy(policy)
    old = [slow_stats(by_hand, r).logp.detach() for r in rollouts]
    if name == 'an older policy':
        old = [logp + torch.randn(len(logp)) / 4 for logp in old]
        rollouts[0].logp_old = old[0]
        rollouts[0].advantage = rollouts[0].place % 3 - 1.0
    numbers = grpo.learn(networks, [torch.optim.SGD(policy.parameters())], rollouts, 0.2)

    sgd = torch.optim.SGD(by_hand.parameters(), 0.2)
    size = len(rollouts) // grpo.mini_batches
    for i in list(range(0, len(rollouts), size)) * grpo.epochs:
        part = slice(i, i + size)
        loss, means = slow_loss(by_hand, reference, rollouts[part], old[part])
        sgd.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(by_hand.parameters(), grpo.grad_clip or math.inf)
        sgd.step()
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
    for scale, lr in ((1.0, 0.0), (0.0, 0.1)):
        r.advantage = scale * torch.randn(12)[r.text_of]
        numbers = grpo.learn(networks, optimizers, [r], lr)
        assert weights(policy).equal(weights(networks.reference))
    assert numbers['grad_norm'] == 0


# ---- evaluate ------------------------------------------------------------------------------------

@pytest.mark.parametrize('batch_size', [4, 9])
def test_an_evaluation_scores_parts_of_the_held_out_prompts_each_with_a_seed_of_its_own(
        batch_size, knobs):
    """The seed of the run has no part in it."""
    policy, _, prompts = toy('two passes, left to right', knobs, 3 * TEXTS, seed=9, eval_prompts=9,
                             rewards={'letters': -0.5}, batch_size=batch_size)
    grpo.letters = lambda texts, step: [text.count('a') + step for text in texts]
    prompts.task.verify = lambda text: 1.0      # watched, and no part of the reward
    samples, *both = grpo.evaluate(SimpleNamespace(policy=policy), prompts.task, 7, n_shown=8)
    scores = grpo.report.join(both)                                             # (18, 4) each
    grpo.devices.set_seed(0)
    held_out = prompts.task.prompts('val', 9)
    texts = []
    for i in range(0, 9, batch_size):
        grpo.devices.set_seed(0, i // batch_size)
        part = prompts.task.prompts_of(held_out.record[i:i + batch_size])
        texts += grpo.complete(policy, part, grpo.N_EVAL).texts.tolist()
    texts += grpo.complete(policy, held_out, 4, greedy=True).texts.tolist()
    texts = list(map(TOK.decode, texts))
    letters = torch.tensor([text.count('a') + 7 for text in texts]).view(18, 4)
    close(scores['letters'], letters)
    close(scores['reward'], -0.5 * letters)
    close(scores['tokens'], held_out.blank.sum(1).repeat(2)[:, None].expand(18, 4))
    assert [sample['completion'] for sample in samples] == texts[:8]


GOALS = {'verify': {'verify': 3.0}, 'reward': {'mine': 1}}         # and rewards


@pytest.mark.parametrize('goal', GOALS)
def test_the_line_to_beat_is_the_better_of_sampling_and_greedy_decoding_at_the_start(goal):
    """Each prompt has a line of its own. Of ten starts each of the two is the better in some."""
    for _ in range(10):
        line = first = None
        for scores in torch.randint(3, (2, 2, 2, 9, 4)) / 2:    # two evaluations
            sampled, greedy = [dict(zip(GOALS, x)) for x in scores]
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
