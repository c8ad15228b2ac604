"""The network, and its optimizers; and what a run says of its numbers."""
import copy

import pytest
import torch
from torch import nn

from model import get_lr, make_optimizers, optimizer_step, set_precision
from muon import Muon
from run import advice
from test_grpo import close, knobs, tiny        # noqa: F401, a fixture


# ---- what a network sees -------------------------------------------------------------------------
# (A causal one sees what is to the left: slow_logits() of test_grpo.py.)


def test_a_network_that_fills_blanks_sees_all_places_but_padding():
    network = tiny(T=8)
    texts = torch.randint(4, (1, 8)).repeat(9, 1)
    for j in range(8):
        texts[j, j] = (texts[j, j] + 1) % 4
    x = network(texts)                                                          # (9, 8, C)
    assert ((x[:8] - x[8]).abs().amax(-1) > 1e-4).all()     # (changed, seen by)
    padded = texts.index_fill(1, torch.arange(5, 8), network.pad_id)
    close(network(padded)[:, :5], network(texts[:, :5]))


@pytest.mark.parametrize('positions', ['learned', 'rotary'])
def test_a_pass_in_parts_with_a_cache_equals_the_whole(positions):
    network = tiny(True, T=8, positions=positions)
    inputs = torch.randint(4, (3, 8))
    cache = {}
    parts = [network.trunk(part, cache) for part in inputs.split([3, 1, 4], 1)]
    close(torch.cat(parts, 1), network.trunk(inputs))


def test_with_rotary_positions_a_bidirectional_network_sees_distances_and_not_places():
    network = tiny(T=8, positions='rotary')
    text = torch.tensor([[1, 2, 3, 0]])
    moved = nn.functional.pad(text, (3, 0), value=network.pad_id)
    close(network(moved)[:, 3:], network(text))
    assert (network(text.flip(1)).flip(1) - network(text)).abs().max() > 0.1    # but the order


def test_products_are_bfloat16_logits_float32_and_casts_of_weights_are_not_kept(grpo):
    """If casts were kept, samples would come from weights that have been updated since."""
    torch.set_default_dtype(torch.float32)
    network, x = tiny(), torch.ones(1, 8)
    up, exact = network.blocks[0].up, network.logits(x)
    set_precision(network, 'bfloat16')
    before = up(x)
    with torch.no_grad():
        up.weight += 1.0
    assert before.dtype == torch.bfloat16 and (up(x) - before - 8.0).abs().max() < 0.2
    close(network.logits(x), exact)


# ---- optimizers ----------------------------------------------------------------------------------


def test_muon_takes_the_steps_of_torch_for_matrices_of_several_lengths():
    torch.set_default_dtype(torch.float32)
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
        close(a, b, atol=0.01)                  # bfloat16; a step moves a weight by 0.02


@pytest.mark.parametrize('name', ['muon', 'adamw'])
def test_without_a_gradient_nothing_moves_though_there_is_momentum(name):
    network = tiny()
    for decay in (0.1, 0.0):
        optimizers = make_optimizers(network, name, decay)
        assert all(opt.param_groups[0]['weight_decay'] == decay for opt in optimizers)
    for scale in (1.0, 0.0):
        before = copy.deepcopy(network.state_dict())
        sum(scale * p.sin().sum() for p in network.parameters()).backward()
        optimizer_step(network, optimizers, 0.1, 1.0)
        moved = {not p.equal(before[name]) for name, p in network.named_parameters()}
        assert moved == {scale == 1.0}


def test_the_learning_rate_rises_in_a_line_and_falls_in_a_cosine():
    rates = [get_lr(step, 1.0, 0.1, 4, 24) for step in (0, 3, 4, 9, 14, 24)]
    a_quarter = 0.1 + 0.9 * (1 + 0.5 ** 0.5) / 2
    assert rates == pytest.approx([0.2, 0.8, 1.0, a_quarter, 0.55, 0.1])
    assert get_lr(20, 0.01, 0.1, 4, 24) == pytest.approx(0.01)  # a floor above the peak is none


# ---- what a run says of its numbers --------------------------------------------------------------


EVAL = {'above it': 0.0, 'standard error': 0.01, 'line to beat': 0.5, 'greedy': 0.5,
        'eval/tokens': 3.0}
STEP = {'ms': 1.0, 'entropy': 0.5, 'dead_groups': 0.1, 'mean_reward': 0.5, 'mean_tokens': 3.0}


def log(scores, more, right=None):
    """Return the lines of log.jsonl of a run with these scores of its evaluations, `verify` or, if
    right is given, `reward`, and of two steps. more: other numbers; the entropy begins at 1."""
    goal = 'reward' if right else 'verify'
    evals = [EVAL | more | {goal: score, 'eval/verify': share}
             for score, share in zip(scores, right or scores)]
    return evals + [STEP | more | {'entropy': 1.0}, STEP | more]


ADVICE = {                      # {case: (lines, words of each sentence)}
    'exploited': (log([0.5, 0.9], {'above it': 0.4}, right=[0.6, 0.1]), ['exploited?', 'is above']),
    'solved': (log([0.2, 0.97, 0.97], {'above it': 0.47, 'entropy': 0.01}), ['0.970 is above']),
    'dead': (log([0.5], {'dead_groups': 0.95}), ['teach nothing']),
    'died': (log([0.5, 0.5], {})[:-1] + [STEP | {'dead_groups': 0.95}],
             ['teach nothing', 'is not above']),
    'memorised': (log([0.5], {'mean_verify': 0.8}), ['has memorised']),
}


@pytest.mark.parametrize('case', ADVICE)
def test_a_run_says_what_can_be_expected_and_at_its_end_one_cause_and_where_it_is(case):
    """With one evaluation it has just begun."""
    lines, words = ADVICE[case]
    found = advice(lines, {}, is_over=len(lines) > 3)
    for sentence, part in zip(found, words, strict=True):
        assert part in sentence
