"""The algorithm's tests. Each part of GRPO is compared with something that is not the code: an
enumeration of everything that can be drawn, a finite difference, a slow loop, a formula.

    the gradient    Its mean over all completions of a prompt is the gradient of the expected
                    reward. A toy has four ids and few blanks, so all can be listed.
    the loss        A step of learn() equals a slow loop over updates, texts and single tokens.
    an example      The two completions in the docstring of Rollout, from function to function.
    act             frequencies, greedy decoding, the order of passes, rows of the table
    worlds          what reply() sees, and whose words its words are; what the network reads
    compare         advantages; random numbers
    learn           of each estimate of the KL the mean and its gradient; when no weight moves
    evaluate        scores and samples; the line to beat
    tools           toy networks and prompts; all completions of a prompt; a loop over tokens

    python -m pytest -q test_grpo.py"""
# Sizes: P prompts | k completions of each: N texts of T tokens | M sampled tokens | V ids
import copy
import math
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

import train_grpo as grpo
from model import GPT
from plumbing.datasets import Dataset
from plumbing.optim import make_optimizers
from plumbing.returns import check_returns
from tasks import Tokenizer

torch.set_num_threads(1)        # at this size two threads would only wait for each other
TOK = Tokenizer('abc')          # ids 1, 2, 3; 0 ends a text; 4 is a blank, 5 bos, 6 padding
V = 4
AS_IMPORTED = dict(vars(grpo))
TEXTS = ['___b__', 'c__a', '__cb_', '_bc']                 # to fill
BEGINNINGS = ['c=ca', 'bac=aa', 'bac=ca', 'ba=aa']         # to continue
PLAIN = '--adv_norm=none --kl_beta=0 --entropy_coef=0 --grad_clip=0'
PASSES = 'plugins/passes.py'
CAUSAL = 'plugins/causal.py'
TOP = 'plugins/top.py'


# ---- the gradient --------------------------------------------------------------------------------

LEFT = '--fill_order=left'
LEARNED = f'{PASSES} --fill_order=learned'
KINDS = {                       # words, and a prompt
    'one pass': ('', '_b_'),
    'two passes, random order': (f'{PASSES} --n_fill_steps=2', '__c_'),
    'two passes, left to right': (f'{PASSES} --n_fill_steps=2 {LEFT}', '__c_'),
    'five passes': (f'{PASSES} {LEFT}', '_c_'),
    'most confident first': (f'{PASSES} --n_fill_steps=3 --fill_order=confident', '__b_'),
    'a learned order': (f'{LEARNED} --n_fill_steps=2', 'c_b_'),
    'a learned order, one pass': (f'{LEARNED} --n_fill_steps=1', 'c_b_'),
    'a learned order, five passes': (LEARNED, 'c_b'),
    'causal': (CAUSAL, 'b=aa'),
    'causal, two new tokens': (f'{CAUSAL} --max_new_tokens=2', 'bc='),
    'a world': (CAUSAL, 'b=caa'),
}


def worth(texts):
    """A reward (N,) that likes no two texts alike."""
    return (texts * torch.arange(2, 2 + texts.size(1)) ** 2).sum(1).sin()


@pytest.mark.parametrize('kind', KINDS)
def test_the_mean_gradient_over_all_completions_is_that_of_the_expected_reward(kind, knobs):
    """The expected reward is the sum of p(y) R(y) over all completions y. Here learn() gets all of
    them, each with the advantage p(y) R(y). Its step equals a finite difference of the sum. So the
    log-probabilities of the table are those with which the tokens were drawn, which the first line
    of the loop checks, too."""
    policy, _, prompts = toy(kind, knobs, [KINDS[kind][1]], temperature=0.8, loss_norm='constant')
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


# ---- the loss ------------------------------------------------------------------------------------

def slow_loss(policy, reference, rollouts, old):
    """Return the loss of an update, and the means of KL, entropy, what the policy has moved, and
    what is clipped, from their definitions. old: the log-probabilities of each Rollout before the
    step. (slow_stats() looks at one token after the other.)"""
    texts, numbers, n_blanks = [], [], 0
    for r, logp_old in zip(rollouts, old):
        n_blanks += r.k * r.prompts.blank.sum()
        logp, logp_ref, kl, entropy = slow_stats(policy, r, reference)
        gap, A = logp - logp_old, r.advantage
        bound = torch.where(A > 0, 1 + grpo.clip_high, 1 - grpo.clip_low)
        is_clipped = A * (gap.exp() - bound) > 0
        gain = A * torch.where(is_clipped, bound, gap.exp())
        losses = grpo.kl_beta * (2 * kl + logp_ref) - gain - grpo.entropy_coef * entropy
        for n in r.text_of.unique():
            rows = r.text_of == n
            texts.append(losses[rows])
            # plugins/skip.py, which other plugins include, reads no texts that teach nothing.
            skips = grpo.token_stats.__wrapped__.__code__.co_filename == 'plugins/skip.py'
            skips = skips and grpo.kl_beta + grpo.entropy_coef == 0
            if not skips or A[rows].any():
                numbers.append(torch.stack((kl, entropy, -gap, is_clipped))[:, rows])
    tokens = torch.cat(texts)
    loss = {'token': tokens.mean(), 'constant': tokens.sum() / n_blanks,
            'sequence': sum(map(torch.mean, texts)) / len(texts)}[grpo.loss_norm]
    return loss, *torch.cat(numbers, 1).mean(1)


NUMBERS = 'loss kl entropy kl_old clip_frac'
BOTH = '--kl_beta=0.3 --entropy_coef=0.1'
FOUR = '--batch_size=1 --gradient_accumulation_steps=4'
TWO = '--batch_size=1 --gradient_accumulation_steps=2 --mini_batches=2'
CLIP = '--clip_low=0.005 --clip_high=0.01'
FILTERS = f'{TOP} --top_k=3 --top_p=0.9 --temperature=0.7 --loss_norm=sequence {BOTH}'
STEPS = {                       # one of KINDS, and words
    'one update': ('one pass', '--grad_clip=0.01'),
    'tempered': ('one pass', f'--temperature=1.3 {BOTH}'),
    'updates': ('one pass', f'--epochs=3 {CLIP}'),
    'mini-batches': ('one pass', f'{TOP} --top_k=3 --epochs=2 {TWO}'),
    'passes': ('two passes, random order', f'--loss_norm=sequence {BOTH} {FOUR}'),
    'a learned order, epochs': ('a learned order, five passes', f'--epochs=2 {FOUR} {CLIP}'),
    'micro-steps': ('causal', f'--entropy_coef=0.1 {FOUR}'),
    'an older policy': ('causal', ''),
    'worlds': ('a world', f'--loss_norm=constant --batch_size=1 --mini_batches=4 {BOTH} {CLIP}'),
    'world, filtered': ('a world', f'{TOP} --top_p=0.8 --epochs=2 --loss_norm=sequence {CLIP}'),
}


@pytest.mark.parametrize('name', [*STEPS, *KINDS])
def test_a_step_equals_slow_loops_over_updates_texts_and_tokens(name, knobs):
    """Weights, the loss, and the means that the log has. Of four micro-steps the last teaches
    nothing. The penalty is another function, as a config file may write. Tokens of a text have
    credits of their own, which cancel in some texts. 'an older policy': a config file has set
    log-probabilities. The KL to a reference is logged even if it is not in the loss. The reference
    is certain of its order: even in float64 it fills with probability 1."""
    kind, words = STEPS.get(name, (name, FILTERS))
    policy, reference, prompts = toy(kind, knobs, None, words)
    grpo.kl_penalty = lambda stats: 2 * stats.kl + stats.logp_ref
    reference.order.bias.data.fill_(200.0)
    reference = None if name == 'one update' else reference
    rollouts = [grpo.complete(policy, part, 4) for part in prompts.split(grpo.batch_size)]
    for i, r in enumerate(rollouts):
        r.advantage = (i < 3) * torch.randn(len(r.texts))[r.text_of]
    r = rollouts[0]
    r.advantage *= r.position % 3 - 1
    by_hand = copy.deepcopy(policy)
    old = [slow_stats(by_hand, r).logp.detach() for r in rollouts]
    if name == 'an older policy':
        r.logp_old = old[0] = old[0] + torch.randn(len(r.token)) / 4
    numbers = grpo.learn(SimpleNamespace(policy=policy, reference=reference),
                         [torch.optim.SGD(policy.parameters())], rollouts, 0.2)

    sgd = torch.optim.SGD(by_hand.parameters(), 0.2)
    size = len(rollouts) // grpo.mini_batches
    for i in list(range(0, len(rollouts), size)) * grpo.epochs:
        part = slice(i, i + size)
        loss, *means = slow_loss(by_hand, reference, rollouts[part], old[part])
        sgd.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(by_hand.parameters(), grpo.grad_clip or math.inf)
        sgd.step()
    close(weights(policy), weights(by_hand), atol=1e-7)
    # Without a reference there is no KL, and in a single update the policy has not moved.
    actual = [numbers.get(name, 0.0) for name in NUMBERS.split()]
    close([numbers['grad_norm'], *actual], torch.stack([norm, loss, *means]), atol=1e-6)


# ---- an example ----------------------------------------------------------------------------------

def test_the_example_of_the_docstring_goes_through_a_step_as_the_comments_say(knobs):
    """The prompt 7 _ _ is completed twice, as 7 4 9 and 7 5 1. The rewards are 1 and 0."""
    knobs('--adv_norm=std --group_size=2 --batch_size=1', rewards={'mine': 1.0})
    grpo.mine = lambda completions: [float(text == '749') for text in completions]
    tok = Tokenizer('0123456789')
    records = [{'prompt': '7__', 'answer': '712'}]
    task = grpo.Task(Dataset(records, records, None, None), tok, 'answer')
    policy = GPT(11, 8, 1, 2, 8, 'fill')
    drawn = torch.tensor([tok.encode('45'), tok.encode('91')])  # two for each of two blanks
    with patch('train_grpo.sample', Mock(return_value=drawn)):
        [r], scores = grpo.collect(SimpleNamespace(policy=policy), task, 0)
    assert [tok.decode(ids) for ids in r.texts.tolist()] == ['749', '751']
    assert [tok.decode(ids) for ids in r.views.tolist()] == ['7__']
    table = torch.stack((r.text_of, r.position, r.view_of), 1)
    assert table.tolist() == [[0, 1, 0], [1, 1, 0], [0, 2, 0], [1, 2, 0]]
    assert r.token.tolist() == tok.encode('4591')
    assert r.columns['prompt'] == ['7__', '7__'] and r.columns['completion'] == ['749', '751']
    assert scores['tokens'].tolist() == [[2, 2]] and scores['reward'].tolist() == [[1, 0]]
    close(scores['advantage'], [[0.71, -0.71]], atol=0.005)
    close(r.advantage, [0.71, -0.71, 0.71, -0.71], atol=0.005)
    close(r.per_text(r.advantage), [1.41, -1.41], atol=0.01)


WEIGHTS = {                     # of the tokens, and the divisor
    'token': ([1, 1, 1, 1], 4), 'sequence': ([1, 1 / 3, 1 / 3, 1 / 3], 2),
    'constant': ([1, 1, 1, 1], 8)}


@pytest.mark.parametrize('loss_norm', WEIGHTS)
def test_the_weights_of_tokens_are_those_of_the_example_in_their_docstring(loss_norm, knobs):
    """A text ends after one token and another one after three. Each has four blanks."""
    knobs(loss_norm=loss_norm)
    r = grpo.Rollout(SimpleNamespace(blank=torch.ones(1, 4, dtype=torch.bool)), 2,
                     torch.zeros(2, 4), None, torch.tensor([0, 1, 1, 1]), None, None,
                     advantage=torch.randn(4))
    actual, divisor = grpo.token_weights(r)
    weights_of_tokens, divisor_of_update = WEIGHTS[loss_norm]
    close(actual, weights_of_tokens)
    close(divisor, divisor_of_update)


# ---- act -----------------------------------------------------------------------------------------

def filtered(p):
    """Return the probabilities (V,) with which ids of probabilities p (V,) are drawn."""
    kept = p.argsort(descending=True)[:grpo.top_k or None]
    enough = grpo.top_p * p[kept].sum()         # a share of what top_k leaves
    while p[kept[:-1]].sum() >= enough:
        kept = kept[:-1]
    return torch.zeros_like(p).index_copy(0, kept, p[kept] / p[kept].sum())


@pytest.mark.parametrize('words', [
    '', '--temperature=0.6', '--top_k=2', '--top_p=0.75', '--top_k=1', '--top_p=1e-6', '--top_k=99',
    '--top_k=3 --top_p=0.8 --temperature=1.7'])
def test_ids_are_drawn_from_the_tempered_and_filtered_distribution(words, knobs):
    """Those of probability 0 never come. Frequencies are right within 5 standard errors. Of the
    first row two ids have 0.75 exactly."""
    knobs(TOP, words)
    p = (2 * torch.randn(8, V)).softmax(1)
    p[0] = torch.tensor([0.25, 0.5, 0.125, 0.125])
    expected = torch.stack([filtered(row) for row in p])
    assert grpo.allowed_of(p).equal(expected > 0)
    ids, n = grpo.sample(p[1:].log() * grpo.temperature, 20_000), 20_000
    p = expected[1:]
    frequency = nn.functional.one_hot(ids, V).double().mean(1)
    assert ((frequency - p).abs() <= 5 * (p * (1 - p) / n).sqrt()).all()


@pytest.mark.parametrize('kind', KINDS)
def test_greedy_decoding_takes_the_likeliest_ids_and_reads_nothing_that_stands_in_a_blank(
        kind, knobs):
    """Also with the cache that samples. No network can read a -1."""
    policy, _, prompts = toy(kind, knobs)
    prompts.whole[prompts.blank] = -1
    r = grpo.complete(policy, prompts, 2, greedy=True)
    logits = policy.logits(policy.features(r.views)[r.view_of, r.position])
    assert logits.argmax(1).equal(r.token)


def test_one_pass_reads_each_prompt_once_and_fills_nothing_but_its_blanks():
    policy, prompts = tiny(), prompts_of(*TEXTS)
    policy.features = Mock(side_effect=policy.features)
    r = grpo.complete(policy, prompts, 3)
    policy.features.assert_called_once_with(r.views)
    texts = prompts.whole.repeat_interleave(3, 0)
    texts[prompts.blank.repeat_interleave(3, 0)] = -1
    texts[r.text_of, r.position] = r.token
    assert texts.equal(r.texts) and r.view_of.equal(r.text_of // 3)


ORDERS = {                      # which places come first, by what the next pass fills: low numbers
    'left': lambda t, drawn, p: t,
    'random': lambda t, drawn, p: drawn,
    'confident': lambda t, drawn, p: -p.max()}


@pytest.mark.parametrize('n_fill_steps', [1, 2, 3, 6])
@pytest.mark.parametrize('order', ORDERS)
def test_passes_fill_the_blanks_in_equal_shares_by_a_rule(order, n_fill_steps, knobs):
    knobs(PASSES, fill_order=order, n_fill_steps=n_fill_steps)
    policy, prompts = tiny(seed=2), prompts_of(*TEXTS)
    torch.manual_seed(1)
    r = grpo.complete(policy, prompts, 3)
    torch.manual_seed(1)
    drawn = torch.rand(12, 7)                   # the first numbers that were drawn
    for n, text in enumerate(r.texts):
        is_open = prompts.blank[n // 3].nonzero()[:, 0].tolist()
        n_passes = min(n_fill_steps, len(is_open))
        for number in range(n_passes):
            view = text.index_fill(0, torch.tensor(is_open), TOK.blank)
            is_open.sort(key=lambda t: ORDERS[order](
                t, drawn[n, t], slow_logits(policy, view, t).softmax(0)))
            n_due = math.ceil(len(is_open) / (n_passes - number))
            rows = (r.text_of == n) & (r.more['pass'] == number + 1)
            assert sorted(is_open[:n_due]) == r.position[rows].tolist()
            assert (r.views[r.view_of[rows]] == view).all()
            is_open = is_open[n_due:]


def test_greedy_decoding_fills_what_is_likely_and_at_least_the_likeliest_in_a_learned_order(knobs):
    """(At random: see the tests of the gradient.)"""
    knobs(LEARNED)
    grpo.order_scores = lambda *_: torch.tensor([[-2.0, -1.0, 9.0], [2.0, -1.0, 1.0]])
    is_open = torch.tensor([[True, True, False], [True, True, True]])
    due = grpo.positions_due(None, None, is_open, None, None, 1, greedy=True)
    assert due.tolist() == [[False, True, False], [True, False, True]]


# ---- worlds --------------------------------------------------------------------------------------

@pytest.mark.parametrize('max_new_tokens', [0, 1, 3])
def test_a_world_speaks_between_the_tokens_of_the_policy_as_in_a_slow_loop(max_new_tokens, knobs):
    """It is asked once for equal completions of a record. Its words are not in the table, its end
    ends a text, and what has no room is cut. The network reads what stands before all completions
    once for each prompt, and after that no text that has ended. Each token is read once."""
    policy, _, prompts = toy('a world', knobs, max_new_tokens=max_new_tokens, temperature=3.0)
    policy.trunk = Mock(side_effect=policy.trunk)
    task = prompts.task
    task.reply = Mock(side_effect=lambda completion, answer, **_: two_letters(completion, answer))
    prompts = task.prompts_of(torch.tensor([0, 1, 2, 3, 0]))
    r = grpo.complete(policy, prompts, 20)
    columns, expected = grpo.columns_of(r), set()
    for n, sampled in enumerate(columns['sampled']):
        prompt, answer = task.records[prompts.record[n // 20]].values()
        start = int(prompts.start[n // 20])
        room = max_new_tokens or 6 - start
        completion, said = '', {'a': f'b{answer[0]}', 'c': answer[0]}
        for letter in sampled:
            completion += letter
            if len(completion) < room:
                expected.add((prompt, answer, completion))
                completion += said.get(letter, '')
        assert not {'c', '\n'} & {*sampled[:-1]}
        is_ended = len(completion) < room and sampled[-1:] != 'c'
        completion = completion[:room]
        found = [columns[name][n] for name in ('text', 'completion', 'ended')]
        assert found == [prompt[:start] + completion, completion, is_ended]
    asked = [tuple(call.kwargs.values()) for call in task.reply.call_args_list]
    assert sorted(asked) == sorted(expected)
    ends, n_read = (r.texts != TOK.pad).sum(1), -1                              # -1: bos
    for at, call in zip(r.position.unique(), policy.trunk.call_args_list, strict=True):
        n_texts = len(prompts.record) if n_read == -1 else (ends > at).sum()
        assert call.args[0].shape == (n_texts, at - n_read)
        n_read = at


def test_a_world_reads_all_tokens_together_because_one_can_be_a_part_of_a_character(knobs):
    """The policy writes a, c, a, and the world b after each a. As bytes a and b are together one
    character, and alone none."""
    policy, _, prompts = toy('a world', knobs, ['c=aaaa'])
    tok = prompts.task.tok = Tokenizer('abc')
    tok.vocabulary = {'kind': 'bytes'}
    tok.show = lambda ids: bytes(b'\n\xc3\xa9c'[i] for i in ids).decode(errors='replace')
    reply = prompts.task.reply = Mock(side_effect=['b', None, 'b'])
    with patch('train_grpo.sample', side_effect=torch.tensor([1, 3, 1]).view(3, 1, 1)):
        grpo.complete(policy, prompts, 1)
    completions = [call.kwargs['completion'] for call in reply.call_args_list]
    assert completions == ['\ufffd', '\xe9c', '\xe9c\ufffd']


# ---- compare -------------------------------------------------------------------------------------

@pytest.mark.parametrize('k', [2, 3, 4])
def test_the_mean_of_the_group_scales_the_gradient_by_k_minus_1_over_k(k, knobs):
    """Of the mean reward sum p(y) R(y), over all groups of k of three completions. (R(y) is a part
    of its own baseline.)"""
    logits = torch.randn(3, requires_grad=True)
    logp, reward = logits.log_softmax(0), torch.randn(3)
    expected, = torch.autograd.grad(logp.exp() @ reward, logits, retain_graph=True)
    groups = torch.cartesian_prod(*[torch.arange(3)] * k)                       # (3 ** k, k)
    p = logp.exp()[groups].prod(1).detach()                                     # (3 ** k,)
    A = grpo.advantages(reward[groups], {})
    found, = torch.autograd.grad(p @ (A * logp[groups]).mean(1), logits)
    close(found, (k - 1) / k * expected)


STDS = {                        # what divides the advantages of a group
    'none': lambda group, batch: 1.0,
    'std': lambda group, batch: group.std() + 1e-4,
    'batch': lambda group, batch: batch.std() + 1e-4}


@pytest.mark.parametrize('rule', STDS)
def test_advantages_equal_a_slow_loop_and_those_of_equal_rewards_are_exactly_0(rule, knobs):
    """The mean of seven numbers of 0.3 * 3.3 is another one, in float32 and in float64. Each token
    has the advantage of its text. A file may write into its copy of the rewards, and nobody follows
    the gradient of a reward."""
    knobs('--batch_size=1 --gradient_accumulation_steps=3 --group_size=7', adv_norm=rule,
          rewards={'mine': 0.3})
    torch.set_default_dtype(torch.float32)      # as in a run
    values = iter([[3.3] * 7, torch.randn(7).requires_grad_(), range(7)])
    grpo.mine, inner = lambda texts: next(values), grpo.advantages
    grpo.advantages = lambda reward, scores: inner(reward, scores) + reward.zero_()
    check_returns(vars(grpo))
    rollouts, scores = grpo.collect(
        SimpleNamespace(policy=tiny()), prompts_of('__', '_b').task, 0)
    for r, A, group in zip(rollouts, scores['advantage'], scores['reward']):
        close(A, (group - group.mean()) / STDS[rule](group, scores['reward']))
        close(r.advantage.numpy(), A[r.text_of])    # numpy() refuses what has a gradient
    assert scores['advantage'].any(1).tolist() == [False, True, True]


def test_each_micro_step_of_each_step_and_seed_has_random_numbers_of_its_own(knobs):
    """They are the same in each process."""
    networks, task = SimpleNamespace(policy=tiny()), prompts_of(*TEXTS).task
    knobs('--batch_size=8 --gradient_accumulation_steps=2', rewards={'mine': 1.0})
    grpo.mine = lambda texts: [0.0] * len(texts)
    found = set()
    for grpo.seed, step in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        found.update(str(r.texts) for r in grpo.collect(networks, task, step)[0])
    assert len(found) == 8
    grpo.devices.set_seed(1, 2)
    assert torch.initial_seed() == 3138858421


# ---- learn ---------------------------------------------------------------------------------------

def kl_of(z, z_ref):
    """Return KL(policy || reference) of their logits (V,)."""
    return z.softmax(0) @ (z.log_softmax(0) - z_ref.log_softmax(0))


KLS = {                         # {words: what its mean is, and whose gradient the mean gradient is}
    '--kl_estimate=exact': (kl_of, kl_of),
    '--kl_estimate=k1': (kl_of, lambda z, q: 0 * z.sum()),
    '--kl_estimate=k2': (
        lambda z, q: z.softmax(0) @ (z.log_softmax(0) - q.log_softmax(0)).square() / 2, kl_of),
    '--kl_estimate=k3': (kl_of, lambda z, q: kl_of(q, z)),
    'config/forward_kl.py': 2 * (lambda z, q: kl_of(q, z),),
}


@pytest.mark.parametrize('words', KLS)
def test_the_mean_and_the_mean_gradient_of_a_kl_equal_sums_over_all_ids(words, knobs):
    """The mean is over what the policy draws."""
    knobs(words)
    z, q = torch.randn(2, 5)
    z.requires_grad_()
    logp, logp_ref = z.log_softmax(0), q.log_softmax(0)                         # of all ids
    stats = grpo.Stats(logp, logp_ref, grpo.divergence(logp, logp_ref).expand(5), None)
    mean = logp.detach().exp() @ grpo.kl_penalty(stats)
    value, sloped = [f(z, q) for f in KLS[words]]
    close(mean, value)
    close(*[torch.autograd.grad(x, z, retain_graph=True)[0] for x in (mean, sloped)])


@pytest.mark.parametrize('kind', KINDS)
def test_without_a_reference_nothing_is_known_of_it_and_no_kl_is_logged(kind, knobs):
    policy, _, prompts = toy(kind, knobs, None, '--entropy_coef=0.1')
    r = grpo.complete(policy, prompts, 2)
    stats = grpo.token_stats(policy, r)
    assert stats.logp_ref.isnan().all() and stats.kl.isnan().all()
    assert stats.logp.isfinite().all() and stats.entropy.isfinite().all()
    r.advantage = r.per_token(torch.randn(8))
    numbers = grpo.learn(SimpleNamespace(policy=policy, reference=None), [], [r], 0.0)
    assert numbers.keys() == {'loss', 'entropy', 'kl_old', 'clip_frac', 'grad_norm', 'lr'}


@pytest.mark.parametrize('words', [words for words in KLS if 'k1' not in words])
def test_a_policy_that_is_its_reference_stays_if_no_text_has_an_advantage(words, knobs):
    """The gradient of the KL is exactly 0: Muon and AdamW make a full step of a rounding error, and
    momentum goes on without a gradient. (The gradient of k1 is noise.)"""
    torch.set_default_dtype(torch.float32)
    policy, _, prompts = toy('one pass', knobs, None, words, kl_beta=0.3)
    networks = SimpleNamespace(policy=policy, reference=copy.deepcopy(policy))
    optimizers = make_optimizers(policy, 'muon', weight_decay=0.1)
    r = grpo.complete(policy, prompts, 3)
    for scale, lr in ((1.0, 0.0), (0.0, 0.1)):
        r.advantage = scale * torch.randn(12)[r.text_of]
        numbers = grpo.learn(networks, optimizers, [r], lr)
        assert weights(policy).equal(weights(networks.reference))
    assert numbers['grad_norm'] == 0


# ---- evaluate ------------------------------------------------------------------------------------

def test_an_evaluation_scores_parts_of_the_held_out_prompts_each_with_a_seed_of_its_own(knobs):
    """The seed of the run has no part in it."""
    policy, _, prompts = toy('two passes, left to right', knobs, 3 * TEXTS, '--seed=9 '
                             '--eval_prompts=12 --batch_size=9', rewards={'letters': -0.5})
    grpo.letters = lambda texts, step: [text.count('a') + step for text in texts]
    prompts.task.verify = lambda text: 1.0      # watched, and no part of the reward
    samples, *both = grpo.evaluate(SimpleNamespace(policy=policy), prompts.task, 7)
    grpo.devices.set_seed(0)
    held_out = prompts.task.prompts('val', 12)
    sampled, greedy = [], []
    for i, part in enumerate(held_out.split(9)):
        grpo.devices.set_seed(0, i)
        sampled += grpo.complete(policy, part, 4).texts
        greedy += grpo.complete(policy, part, 1, greedy=True).texts
    for scores, texts, k in zip(both, (sampled, greedy), (4, 1)):
        texts = [TOK.decode(ids.tolist()) for ids in texts]
        close(scores['reward'].flatten(), [-0.5 * (text.count('a') + 7) for text in texts])
        close(scores['tokens'], held_out.blank.sum(1)[:, None].expand(12, k))
        close(scores['verify'], torch.ones(12, k))
    assert [x['completion'] for x in samples] == [TOK.decode(ids.tolist()) for ids in sampled[:32]]


GOALS = {'verify': {'verify': 3.0}, 'reward': {'mine': 1}}         # and rewards


@pytest.mark.parametrize('goal', GOALS)
def test_the_line_to_beat_is_the_better_of_sampling_and_greedy_decoding_at_the_start(goal):
    """Each prompt has a line of its own. Of ten starts each of the two is the better in some."""
    for _ in range(10):
        start, later = [dict(zip(GOALS, x)) for x in torch.randint(3, (2, 2, 9, 4)) / 2]
        greedy = dict(zip(GOALS, torch.randint(3, (2, 9, 1)) / 2))
        line, _ = grpo.report.against_line(start, greedy, None, GOALS[goal])
        best, now = greedy[goal].mean(1), later[goal].mean(1)
        close(line, max(start[goal].mean(1), best, key=sum))
        _, numbers = grpo.report.against_line(later, greedy, line, GOALS[goal])
        above, is_right = now - line, later['verify'] == 1
        close([numbers[name] for name in (goal, 'greedy', 'above it', 'standard error',
                                          'eval/pass@4')], torch.stack([
            now.mean(), best.mean(), above.mean(), above.std() / 3,
            is_right.any(1).double().mean()]))


# ---- tools ---------------------------------------------------------------------------------------

def fresh(*words):
    """Return train_grpo as it was imported, and then changed by the words of a command."""
    script = vars(grpo)
    script.clear()
    script.update(AS_IMPORTED, state={})
    grpo.configure(script, words)
    return grpo


@pytest.fixture(autouse=True)
def knobs():
    """knobs('plugins/passes.py', n_fill_steps=3): words of a command line, for one test. Without
    more the loss is the plain one: A is not divided, no KL, no bonus, no limit of the gradient."""
    def change(*words, **values):
        fresh(*' '.join((PLAIN, *words)).split(),
              *[f'--{name}={value}' for name, value in values.items()])

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    change()
    yield change
    fresh()
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
    for name, p in network.named_parameters():
        # The scores of an order are multiplied by 16.
        nn.init.normal_(p, std=0.5 / 16 if 'order' in name else 0.5)
    return network


def prompts_of(*texts, reply=None):
    """Return Prompts of texts that end with an eos: 'b_c_' has two blanks, and 'b=aa' is a prompt
    with its answer, which is blank."""
    records = [dict(zip(('prompt', 'answer'), f'{text}='.split('='))) for text in texts]
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


def outcomes(policy, prompts):
    """Return all that complete() can do, a list of (Rollout, probability). It is run again and
    again. Its draws, of ids and of a learned order, are the next path through the tree of all."""
    paths, found = [[]], []                     # which branch at each draw

    def choose(p):
        if len(drawn) == len(path):             # a new draw: its other branches come later
            paths.extend([*path, i] for i in range(1, len(p)))
            path.append(0)
        i = path[len(drawn)]
        drawn.append(p[i])
        return i

    def sample(logits, *_):
        ids = [choose((row / grpo.temperature).softmax(0)) for row in logits]
        return torch.tensor(ids, dtype=torch.long)[:, None]

    def rand_like(scores):                      # a draw of 0 is below each probability
        draws = [choose([p, 1 - p]) if p > 0 else 1 for p in scores.sigmoid().flatten()]
        return torch.tensor(draws).view_as(scores)

    with patch('train_grpo.sample', sample), patch('torch.rand_like', rand_like):
        for path in paths:
            drawn = []                          # its probabilities
            torch.manual_seed(0)                # of a random order
            r = grpo.complete(policy, prompts, 1)
            found.append((r, math.prod(drawn)))
    return found


def slow_logits(network, view, t):
    """Return logits (V,) for place t of one text (T,). A causal network gets what is left of t."""
    if network.causal:
        view = torch.cat((torch.tensor([network.bos_id]), view[:t]))
    return network.logits(network.trunk(view[None])[0, t]) / grpo.temperature


def slow_order(network, view, t):
    """Return logits (2,): to wait, or to fill place t of a view now."""
    return 16 * nn.functional.pad(network.order(network.trunk(view[None])[0, t]), (1, 0))


def slow_stats(policy, r, reference=None):
    """Return the Stats of one token after the other, with graph. plugins/top.py allows some ids."""
    def look(logits_of, view, id, allowed):
        z, z_ref = [logits_of(network, view, t) for network in (policy, reference or policy)]
        logp = [x[id] - x[allowed].logsumexp(0) for x in (z, z_ref)]
        return torch.stack([*logp, kl_of(z, z_ref), -z.softmax(0) @ z.log_softmax(0)])

    rows = []
    for m, t in enumerate(r.position):
        allowed = r.more['allowed'][m] if 'allowed' in r.more else ...
        row = look(slow_logits, r.views[r.view_of[m]], r.token[m], allowed)
        if vars(grpo).get('fill_order') == 'learned':       # in each pass: wait, or fill it
            last = r.more['pass'][m]
            for number in range(1, 1 + min(last, grpo.n_fill_steps - 1)):
                view = r.texts[r.text_of[m]].clone()
                later = (r.text_of == r.text_of[m]) & (r.more['pass'] >= number)
                view[r.position[later]] = policy.blank_id
                row = row + look(slow_order, view, int(number == last), ...)
        rows.append(row)
    return grpo.Stats(*torch.stack(rows).T)


def two_letters(completion, answer):
    """A world: it says something after an a, and ends a text after a c."""
    return {'a': f'b{answer[0]}', 'c': (answer[0], True)}.get(completion[-1:])


def toy(kind, knobs, texts=None, *words, **values):
    """Return a policy, a reference, and Prompts of one of the KINDS, of different lengths."""
    knobs(KINDS[kind][0], *words, **values)
    network = 'causal' if CAUSAL in KINDS[kind][0] else 'fill'
    texts = texts or (BEGINNINGS if network == 'causal' else TEXTS)
    prompts = prompts_of(*texts, reply=two_letters if kind == 'a world' else None)
    return tiny(network), tiny(network, seed=3).requires_grad_(False), prompts
