"""The network, its precision, what it computes once, and its optimizers."""
import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import pretrain
from devices import set_precision
from optim import get_lr, make_optimizers, optimizer_step
from shared import features_of_inputs, shared_length, unique_rows
from test_grpo import close, knobs, prompts_of, tiny        # noqa: F401, a fixture


# ---- what a network sees -------------------------------------------------------------------------
# (A causal one sees what is to the left: slow_logits() of test_grpo.py.)


def test_a_network_that_fills_blanks_sees_all_places_but_padding():
    network = tiny(T=8)
    texts = torch.randint(4, (1, 8)).repeat(9, 1)
    for j in range(8):
        texts[j, j] = (texts[j, j] + 1) % 4
    x = network.features(texts)                                                 # (9, 8, C)
    assert ((x[:8] - x[8]).abs().amax(-1) > 1e-4).all()     # (changed, seen by)
    padded = texts.index_fill(1, torch.arange(5, 8), network.pad_id)
    close(network.features(padded)[:, :5], network.features(texts[:, :5]))


def test_with_rotary_positions_a_bidirectional_network_sees_distances_and_not_places():
    network = tiny(T=8, positions='rotary')
    text = torch.tensor([[1, 2, 3, 0]])
    moved = nn.functional.pad(text, (3, 0), value=network.pad_id)
    close(network.features(moved)[:, 3:], network.features(text))
    mirrored = network.features(text.flip(1)).flip(1)
    assert (mirrored - network.features(text)).abs().max() > 0.1                # but the order


# ---- precision -----------------------------------------------------------------------------------


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


class Products(TorchDispatchMode):
    """Note the precisions of products of matrices."""
    found = frozenset()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        if function.overloadpacket.__name__ in ('mm', 'bmm', 'addmm', 'baddbmm'):
            self.found |= {result.dtype}
        return result


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float64'])
def test_products_of_a_step_and_those_of_muon_have_the_precision_of_the_network(dtype, grpo):
    """Beside bfloat16 logits are float32. Where bfloat16 is slow, dtype is float32, and there is
    none."""
    torch.set_default_dtype(torch.float64 if dtype == 'float64' else torch.float32)
    policy, prompts = tiny(), prompts_of('b__a', '__c')
    set_precision(policy, dtype)
    optimizers = make_optimizers(policy, 'muon')
    r = grpo.complete(policy, prompts, 2)
    r.advantage = torch.ones(len(r.text))
    with Products() as step:
        grpo.learn(SimpleNamespace(policy=policy, reference=tiny()), optimizers, [r], 0.1)
    with Products() as pretraining:
        pretrain.loss_of(policy, prompts).backward()
    with Products() as muon:
        optimizer_step(policy, optimizers, 0.1, 0.0)
    assert muon.found == {getattr(torch, dtype)}
    assert step.found == pretraining.found == muon.found | {torch.get_default_dtype()}


# ---- what texts share ----------------------------------------------------------------------------


@pytest.mark.parametrize('positions', ['learned', 'rotary'])
@pytest.mark.parametrize('n_ids, N, T', [(2, 20, 6), (4, 20, 6), (4, 1, 6), (7, 3, 6), (4, 9, 1),
                                         (4, 0, 6)])
def test_equal_texts_and_equal_beginnings_are_read_once(n_ids, N, T, positions):
    """As many columns are read once as save most. Features and gradients are those of a network
    that reads all."""
    x = torch.randint(n_ids, (N, T))
    texts = list(map(tuple, x.tolist()))
    rows, inverse = unique_rows(x)
    assert x[rows][inverse].equal(x) and len(rows) == len(set(texts))
    network, factors = tiny('causal', positions=positions), torch.randn(N, T, 8)
    read, found = [], []

    def trunk(inputs, cache):
        read.append(inputs.numel())
        return network.trunk(inputs, cache)

    for features in (features_of_inputs(trunk, x), network.trunk(x)):
        grads = torch.autograd.grad((features * factors).sum(), list(network.blocks.parameters()))
        found.append([features, *grads])
    for ours, theirs in zip(*found):
        close(ours, theirs)
    saved = [n * (N - len({text[:n] for text in texts})) for n in range(1, T + 1)]
    assert saved[shared_length(x) - 1] == N * T - sum(read) == max(saved)


# ---- optimizers ----------------------------------------------------------------------------------


def test_muon_equals_that_of_torch_and_weights_that_are_frozen_or_unused_stay(monkeypatch):
    """Some are frozen before the optimizers are made, and some after two steps. AdamW has the head
    and the embeddings; no gradient comes to the positions."""
    # Torch makes matrices bfloat16 before it multiplies them; here they stay float64.
    monkeypatch.setattr(torch.Tensor, 'bfloat16', lambda x: x)
    network = tiny('causal')
    first, second = network.blocks
    first.requires_grad_(False)
    optimizers = make_optimizers(network, 'muon', 0.1)
    weights = list(network.parameters())
    theirs = copy.deepcopy(second)
    muon = torch.optim.Muon(theirs.parameters(), lr=0.1, weight_decay=0.1,
                            adjust_lr_fn='match_rms_adamw')
    for step in range(4):
        if step == 2:
            second.down.requires_grad_(False)
            network.head.requires_grad_(False)
        for p in weights:
            if p.requires_grad and p is not network.position.weight:
                p.grad = torch.randn_like(p)
        for p, other in zip(second.parameters(), theirs.parameters()):
            other.grad = p.grad
        learns, before = [p.grad is not None for p in weights], copy.deepcopy(weights)
        optimizer_step(network, optimizers, 0.1, 0.0)
        muon.step()
        assert [not p.equal(old) for p, old in zip(weights, before)] == learns
    for p, other in zip(second.parameters(), theirs.parameters()):
        close(p, other)
    with pytest.raises(AssertionError, match='frozen'):
        make_optimizers(network.requires_grad_(False), 'muon')


def test_the_learning_rate_rises_in_a_line_and_falls_in_a_cosine():
    rates = [get_lr(step, 1.0, 0.1, 4, 24) for step in (0, 3, 4, 9, 14, 24)]
    a_quarter = 0.1 + 0.9 * (1 + 0.5 ** 0.5) / 2
    assert rates == pytest.approx([0.2, 0.8, 1.0, a_quarter, 0.55, 0.1])
    assert get_lr(4, 1.0, 0.1, 4, 4) == 1.0                     # all steps are warm-up
    assert get_lr(20, 0.01, 0.1, 4, 24) == pytest.approx(0.01)  # a floor above the peak is none
