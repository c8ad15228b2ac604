"""The network, and its optimizers; and what a run says of its numbers."""
import copy

import pytest
import torch
from torch import nn

from model import GPT, get_lr, make_optimizers, optimizer_step, set_precision
from muon import Muon
from run import advice


def tiny(causal=False, T=8, positions='learned'):
    """Return a GPT all of whose weights matter. (In a new one the logits are 0.)"""
    torch.manual_seed(0)
    network = GPT(4, T, 2, 2, 8, causal, positions)
    for p in network.parameters():
        nn.init.normal_(p, std=0.5)
    return network


def near(a, b, atol=1e-5):
    torch.testing.assert_close(a, b, atol=atol, rtol=0)


# ---- what a network sees -------------------------------------------------------------------------


@pytest.mark.parametrize('causal', [True, False])
def test_a_causal_network_never_looks_right_and_another_one_does(causal):
    network = tiny(causal)
    texts = torch.randint(4, (1, 8)).repeat(9, 1)
    for j in range(8):
        texts[j, j] = (texts[j, j] + 1) % 4
    logits = network.logits(network(texts))                                     # (9, 8, V)
    differs = (logits[:8] - logits[8]).abs().amax(-1) > 1e-4                    # (changed, seen by)
    assert differs.equal(torch.ones(8, 8).triu(1) > 0 if causal else torch.ones(8, 8) > 0)


@pytest.mark.parametrize('causal', [True, False])
def test_padding_changes_nothing(causal):
    network = tiny(causal)
    short, long = torch.randint(4, (3, 5)), torch.randint(4, (3, 8))
    both = torch.cat((nn.functional.pad(short, (0, 3), value=network.pad_id), long))
    logits = network.logits(network(both))
    near(logits[:3, :5], network.logits(network(short)))
    near(logits[3:], network.logits(network(long)))


@pytest.mark.parametrize('positions', ['learned', 'rotary'])
@pytest.mark.parametrize('sizes', [[1, 7], [3, 1, 4], [1] * 8])
def test_a_pass_in_parts_with_a_cache_equals_the_whole(sizes, positions):
    network, inputs = tiny(True, positions=positions), torch.randint(4, (3, 8))
    cache = {}
    parts = [network.trunk(part, cache) for part in inputs.split(sizes, 1)]
    near(torch.cat(parts, 1), network.trunk(inputs))


def test_with_rotary_positions_a_bidirectional_network_sees_distances_and_not_places():
    network = tiny(positions='rotary')
    text = torch.tensor([[1, 2, 3, 0]])
    pad = torch.full((1, 3), network.pad_id)
    moved = network(torch.cat((pad, text), 1))[:, 3:]
    near(moved, network(text))
    assert (network(text.flip(1)).flip(1) - network(text)).abs().max() > 0.1    # but the order


def test_products_are_bfloat16_logits_float32_and_casts_of_weights_are_not_kept(grpo):
    """If casts were kept, samples would come from weights that have been updated since."""
    network, x = tiny(), torch.ones(1, 8)
    up, exact = network.blocks[0].up, network.logits(x)
    set_precision(network, 'bfloat16')
    before = up(x)
    with torch.no_grad():
        up.weight += 1.0
    assert before.dtype == torch.bfloat16 and (up(x) - before - 8.0).abs().max() < 0.2
    near(network.logits(x), exact)


# ---- optimizers ----------------------------------------------------------------------------------


def test_muon_takes_the_steps_of_torch_for_matrices_of_several_lengths():
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in ((4, 12), (12, 4), (4, 8), (4, 4))]
    theirs = copy.deepcopy(ours)
    muon = Muon(ours, weight_decay=0.1)
    muon.param_groups[0]['lr'] = 0.1
    other = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.1, adjust_lr_fn='match_rms_adamw')
    for _ in range(5):
        for a, b in zip(ours, theirs):
            a.grad = b.grad = torch.randn_like(a)
        muon.step()
        other.step()
    for a, b in zip(ours, theirs):
        near(a, b, atol=0.01)                   # bfloat16; a step moves a weight by 0.02


def test_without_a_gradient_nothing_moves_though_there_is_momentum():
    network = tiny()
    optimizers = make_optimizers(network, 'muon')
    for scale in (1.0, 0.0):
        before = copy.deepcopy(list(network.parameters()))
        (scale * network.logits(network(torch.zeros(1, 8, dtype=torch.long))).sum()).backward()
        optimizer_step(network, optimizers, 0.1, 1.0)
        moved = [not p.equal(old) for p, old in zip(network.parameters(), before)]
        assert all(moved) if scale else not any(moved)


def test_the_learning_rate_rises_in_a_line_and_falls_in_a_cosine():
    rates = [get_lr(step, 1.0, 0.1, 4, 24) for step in range(25)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[9] == pytest.approx(0.1 + 0.9 * (1 + 0.5 ** 0.5) / 2)  # a quarter of the way
    assert rates[14] == pytest.approx(0.55) and rates[24] == pytest.approx(0.1)
    assert get_lr(20, 0.01, 0.1, 4, 24) == pytest.approx(0.01)  # a floor above the peak is none


# ---- what a run says of its numbers --------------------------------------------------------------


def log(scores, above=0.0, entropy=0.5, right=None, greedy=0.5, **step):
    """Return the lines of log.jsonl of a run with these scores of its evaluations, `verify` or, if
    right is given, `reward`."""
    goal = 'reward' if right else 'verify'
    same = {'above it': above, 'standard error': 0.01, 'line to beat': 0.5, 'eval/tokens': 3.0,
            'greedy': greedy}
    evals = [{goal: score, 'eval/verify': share} | same
             for score, share in zip(scores, right or scores)]
    first = {'ms': 1.0, 'entropy': 1.0, 'dead_groups': 0.1, 'mean_reward': 0.5, 'mean_tokens': 3.0}
    return evals + [first | step, first | {'entropy': entropy}]


@pytest.mark.parametrize('lines, cause, where', [
    (log([0.5, 0.9], 0.4, right=[0.6, 0.1]), 'exploited?', 'is above'),
    (log([0.5, 0.3], -0.2), 'the score fell by 0.200', 'is below'),
    (log([0.1, 0.3, 0.5, 0.8], 0.3), 'the score still rises', 'is above'),
    (log([0.5, 0.7, 0.7, 0.7], 0.2, entropy=0.01), 'the entropy fell to 0.010', 'is above'),
    (log([0.5, 0.51, 0.5, 0.51], 0.01), 'learned little', 'is not above'),
    (log([0.5, 0.51], 0.01, greedy=0.9), 'not yet sure', 'is not above'),
    (log([0.2, 0.97, 0.97, 0.97], 0.47, entropy=0.01), None, 'is above'),
])
def test_the_end_names_one_cause_and_says_whether_the_run_is_above_the_line(lines, cause, where):
    *causes, last = advice(lines, {}, is_over=True)
    assert f'{where} the line to beat' in last and len(causes) == bool(cause)
    assert all(cause in line for line in causes)


@pytest.mark.parametrize('step, words', [
    ({'dead_groups': 0.95}, 'teach nothing'), ({'mean_verify': 0.8}, 'has memorised'),
    ({'mean_verify': 0.8, 'mean_tokens': 1.0}, None), ({'mean_verify': 0.55}, None)])
def test_the_first_step_says_what_can_be_expected(step, words):
    found = advice(log([0.5], **step), {}, is_over=False)
    assert len(found) == bool(words) and all(words in line for line in found)
