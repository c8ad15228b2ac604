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
from test_grpo import TOK, close, knobs, prompts_of, slow_logits, tiny      # noqa: F401, a fixture


# ---- what a network sees -------------------------------------------------------------------------
# (A causal one sees what is to the left: slow_logits() of test_grpo.py.)


def test_a_network_that_fills_blanks_sees_all_places_but_padding():
    network, text = tiny(T=8), torch.randint(4, (8,))
    texts = (text + torch.eye(8).long()) % 4            # one place after the other is changed
    x = network.features(texts)                                                 # (8, 8, C)
    assert ((x - network.features(text[None])).abs().amax(-1) > 1e-4).all()
    padded = texts.index_fill(1, torch.arange(5, 8), network.pad_id)
    close(network.features(padded)[:, :5], network.features(texts[:, :5]))


def test_with_rotary_positions_a_bidirectional_network_sees_distances_and_not_places():
    network, text = tiny(T=8, positions='rotary'), torch.tensor([[1, 2, 3, 0]])
    x = network.features(text)
    moved = nn.functional.pad(text, (3, 0), value=network.pad_id)
    close(network.features(moved)[:, 3:], x)
    mirrored = network.features(text.flip(1)).flip(1)
    assert (mirrored - x).abs().max() > 0.1             # but the order


# ---- precision -----------------------------------------------------------------------------------


def test_casts_of_weights_are_not_kept(grpo):
    """If they were, samples would come from weights that have been updated since."""
    torch.set_default_dtype(torch.float32)
    network, x = tiny(), torch.ones(1, 8)
    up = network.blocks[0].up
    set_precision(network, 'bfloat16')
    before = up(x)
    up.weight.data += 1.0
    assert (up(x) - before - 8.0).abs().max() < 0.2


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
        pretrain.loss_of(policy, prompts).backward()
    with Products() as muon:
        optimizer_step(policy, optimizers, 0.1, 0.0)
    assert muon.found == {getattr(torch, dtype)}
    assert step.found == muon.found | {torch.get_default_dtype()}


@pytest.mark.parametrize('kind, blank_kind', [('fill', 'random'), ('causal', 'random'),
                                              ('causal', 'answer')])
def test_pretraining_learns_blanks_or_from_left_to_right_all_tokens_or_those_of_answers(
        kind, blank_kind, monkeypatch):
    monkeypatch.setattr(pretrain, 'kind', kind)
    monkeypatch.setattr(pretrain, 'blank_kind', blank_kind)
    network, prompts = tiny(kind), prompts_of('b__a', 'c_')
    losses = []
    for text, blank in zip(prompts.tokens, prompts.blank):
        view = text.masked_fill(blank, TOK.blank) if kind == 'fill' else text
        for t in range(4):
            if blank[t] or kind == 'causal' and blank_kind == 'random' and text[t] != TOK.pad:
                losses.append(-slow_logits(network, view, t).log_softmax(0)[text[t]])
    close(pretrain.loss_of(network, prompts), sum(losses) / len(losses))


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
    n_read, found = [], []

    def trunk(inputs, cache):
        n_read.append(inputs.numel())
        return network.trunk(inputs, cache)

    for features in (features_of_inputs(trunk, x), network.trunk(x)):
        grads = torch.autograd.grad((features * factors).sum(), list(network.blocks.parameters()))
        found.append(torch.cat([features.flatten(), *map(torch.flatten, grads)]))
    close(*found)
    saved = [n * (N - len({text[:n] for text in texts})) for n in range(1, T + 1)]
    assert saved[shared_length(x) - 1] == N * T - sum(n_read) == max(saved)


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
    theirs = copy.deepcopy(second)
    muon = torch.optim.Muon(theirs.parameters(), lr=0.1, weight_decay=0.1,
                            adjust_lr_fn='match_rms_adamw')
    for step in range(4):
        if step == 2:
            second.down.requires_grad_(False)
            network.head.requires_grad_(False)
        before = copy.deepcopy(network)
        for p in network.parameters():
            if p.requires_grad and p is not network.position.weight:
                p.grad = torch.randn_like(p)
        learns = [p.grad is not None for p in network.parameters()]
        for p, other in zip(second.parameters(), theirs.parameters()):
            other.grad = p.grad
        optimizer_step(network, optimizers, 0.1, 0.0)
        muon.step()
        stays = list(map(torch.equal, network.parameters(), before.parameters()))
        assert stays == [not x for x in learns]
    for p, other in zip(second.parameters(), theirs.parameters()):
        close(p, other)


def test_the_learning_rate_rises_in_a_line_and_falls_in_a_cosine():
    rates = [get_lr(step, 1.0, 0.1, 4, 24) for step in (0, 3, 4, 9, 14, 24)]
    a_quarter = 0.1 + 0.9 * (1 + 0.5 ** 0.5) / 2
    assert rates == pytest.approx([0.2, 0.8, 1.0, a_quarter, 0.55, 0.1])
    assert get_lr(4, 1.0, 0.1, 4, 4) == 1.0                     # all steps are warm-up
    assert get_lr(20, 0.01, 0.1, 4, 24) == pytest.approx(0.01)  # a floor above the peak is none
