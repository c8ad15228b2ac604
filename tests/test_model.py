"""The network, its precision, what it computes once, and its optimizers."""
import copy
from unittest.mock import Mock, patch

import pytest
import torch
import torch.nn.functional as F

import pretrain
from plumbing.devices import set_precision
from plumbing.optim import get_lr, make_optimizers, optimizer_step
from plumbing.sharing import attention, compute_once, read_beginnings_once, unique_rows
from test_grpo import TOK, close, knobs, prompts_of, slow_logits, tiny  # noqa: F401, a fixture

# ---- what a network sees -------------------------------------------------------------------------
# (A causal one sees what is to the left: slow_logits() of test_grpo.py.)


@pytest.mark.parametrize('positions', ['learned', 'rotary'])
def test_a_network_that_fills_blanks_sees_all_positions_but_padding_and_their_order(positions):
    """With rotary positions it sees distances, so a text can stand elsewhere."""
    network, text = tiny(positions=positions), torch.randint(4, (8,))
    texts = (text + torch.eye(8).long()) % 4            # one place after the other is changed
    x = network.features(texts)                                                 # (8, 8, C)
    assert ((x - network.features(text[None])).abs().amax(-1) > 1e-4).all()
    assert not torch.allclose(x, network.features(texts.flip(1)).flip(1), atol=0.1)
    x = network.features(texts[:, :5])
    padded = F.pad(texts[:, :5], (0, 3), value=network.pad_id)
    close(network.features(padded)[:, :5], x)
    moved = network.features(padded.roll(3, 1))[:, 3:]
    assert torch.allclose(moved, x) == (positions == 'rotary')


# ---- precision -----------------------------------------------------------------------------------


def test_of_bfloat16_only_the_trunk_knows_and_logits_and_gradients_are_float32():
    """Outside of the trunk no autocast is on. Casts of weights are not kept: else samples would
    come from weights that have been updated since."""
    torch.set_default_dtype(torch.float32)
    network, texts = tiny('causal'), torch.randint(4, (9, 8))
    exact = network.logits(network.features(texts))
    set_precision(network, 'bfloat16')
    seen = []
    for block in network.blocks:
        block.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled('cpu')))
    network.head.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled('cpu')))
    logits = network.logits(network.features(texts))
    assert all(seen[:-1]) and not seen[-1] and not torch.is_autocast_enabled('cpu')
    assert logits.dtype == torch.float32 and 0 < (logits - exact).abs().max() < 0.1
    logits.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in network.blocks.parameters())
    network.blocks[1].down.weight.data *= -1
    assert not torch.allclose(network.logits(network.features(texts)), logits, atol=0.1)
    set_precision(network, 'float32')
    network.blocks[1].down.weight.data *= -1
    assert network.logits(network.features(texts)).equal(exact)


# ---- pretraining ---------------------------------------------------------------------------------


@pytest.mark.parametrize('kind, blank_kind', [
    ('fill', 'random'), ('causal', 'random'), ('causal', 'answer')])
def test_pretraining_learns_blanks_or_from_left_to_right_all_tokens_or_those_of_answers(
        kind, blank_kind):
    """And nothing where a record has a blank and no answer."""
    network, prompts = tiny(kind), prompts_of('b__a=bcaa', 'c=a', 'c_')
    texts, learns = prompts.whole, prompts.blank
    views = texts.masked_fill(learns, TOK.blank) if kind == 'fill' else texts
    if (kind, blank_kind) == ('causal', 'random'):
        learns = texts != TOK.pad
    learns = learns & (texts != TOK.blank)
    logits = [slow_logits(network, views[n], t) for n, t in learns.nonzero()]
    with patch.multiple(pretrain, kind=kind, blank_kind=blank_kind):
        loss = pretrain.loss_of(network, prompts)
    close(loss, F.cross_entropy(torch.stack(logits), texts[learns]))


# ---- what texts share ----------------------------------------------------------------------------


SIZES = {                       # ids, texts, tokens of a text
    'few ids': (2, 20, 6), 'many texts': (4, 20, 6), 'one text': (4, 1, 6),
    'few texts': (7, 3, 6), 'one token': (4, 9, 1), 'no text': (4, 0, 6)}


@pytest.mark.parametrize('positions', ['learned', 'rotary'])
@pytest.mark.parametrize('name', SIZES)
def test_equal_beginnings_are_read_once(name, positions):
    """As many columns are read once as save most. Features and gradients are those of a network
    that reads all."""
    n_ids, N, T = SIZES[name]
    x = torch.randint(n_ids, (N, T))
    network, factors = tiny('causal', positions=positions), torch.randn(N, T, 8)
    reader = copy.copy(network)                 # the same weights
    reader.trunk = Mock(side_effect=network.trunk)
    found = []
    for features in (read_beginnings_once(reader, x), network.trunk(x, {})):
        grads = torch.autograd.grad((features * factors).sum(), list(network.blocks.parameters()))
        found.append(torch.cat([features.flatten(), *map(torch.flatten, grads)]))
    close(*found)
    n_read = sum(call.args[0].numel() for call in reader.trunk.call_args_list)
    # n columns of different beginnings, and the rest of all texts
    assert n_read == min(n * len(x[:, :n].unique(dim=0)) + N * (T - n) for n in range(1, T + 1))


@pytest.mark.parametrize('name', SIZES)
def test_unique_rows_finds_the_kinds_that_torch_finds_and_each_is_computed_once(name):
    n_ids, N, T = SIZES[name]
    x = torch.randint(n_ids, (N, T))
    rows, inverse = unique_rows(x)
    kinds, of_torch = x.unique(dim=0, return_inverse=True)
    assert x[rows].unique(dim=0).equal(kinds) and len(rows) == len(kinds)
    assert x[rows][inverse].equal(x) and kinds[of_torch].equal(x)
    function = Mock(side_effect=lambda network, texts: texts.sin().sum(1))
    close(compute_once(function, None, x), x.sin().sum(1))
    [call] = function.call_args_list
    assert len(call.args[1]) == len(kinds)


@pytest.mark.parametrize('dtype, atol', [('float64', 1e-9), ('bfloat16', 0.05)])
@pytest.mark.parametrize('shape', [(4, 6), (3, 1, 1, 6)])
def test_attention_equals_the_fused_one_of_torch(shape, dtype, atol):
    """Four queries to six keys. Masks: the same for all texts, and the padding of each text. Its
    gradients, too. Torch computes in float64."""
    q, k, v = [torch.randn(3, 2, n, 5, requires_grad=True) for n in (4, 6, 6)]
    mask = -1e9 * (torch.rand(shape) < 0.4)
    mask[..., 0] = 0.0                          # a query sees something
    factors = torch.randn(3, 2, 4, 5)
    parts = [x.to(getattr(torch, dtype)) for x in (q, k, v)]
    found = []
    for y in attention(*parts, mask), F.scaled_dot_product_attention(q, k, v, mask):
        found.append([y.double(), *torch.autograd.grad((y * factors).sum(), (q, k, v))])
    assert attention(*parts, mask).dtype == parts[0].dtype
    for actual, expected in zip(*found):
        close(actual, expected, atol=atol)


# ---- optimizers ----------------------------------------------------------------------------------


@patch('torch.Tensor.bfloat16', lambda x: x)
def test_optimizers_equal_those_of_torch_and_weights_that_are_frozen_or_unused_stay():
    """Muon has the blocks, and AdamW the rest. (Torch makes matrices bfloat16 before it multiplies
    them; here they stay float64.) Some weights are frozen before the optimizers are made, and some
    after two steps; no gradient comes to the positions."""
    network = tiny('causal')
    network.blocks[0].requires_grad_(False)
    optimizers = make_optimizers(network, 'muon', 0.1)
    copied = copy.deepcopy(network)
    others = [p for name, p in copied.named_parameters() if 'blocks' not in name]
    theirs = [torch.optim.AdamW(others, lr=0.1, betas=(0.9, 0.95), weight_decay=0.1),
              torch.optim.Muon(copied.blocks[1].parameters(), lr=0.1, weight_decay=0.1,
                               adjust_lr_fn='match_rms_adamw')]
    for step in range(4):
        if step == 2:
            network.blocks[1].down.requires_grad_(False)
            network.head.requires_grad_(False)
        for p, other in zip(network.parameters(), copied.parameters()):
            if p.requires_grad and p is not network.position.weight:
                p.grad = other.grad = torch.randn_like(p)
        optimizer_step(network, optimizers, 0.1, 0.0)
        for optimizer in theirs:
            optimizer.step()
        network.zero_grad()
        copied.zero_grad()
    for p, other in zip(network.parameters(), copied.parameters()):
        close(p, other)


RATES = {                       # of a step, a peak, a floor, steps of warm-up, all steps
    (0, 1.0, 0.1, 4, 24): 0.2, (3, 1.0, 0.1, 4, 24): 0.8, (4, 1.0, 0.1, 4, 24): 1.0,
    (9, 1.0, 0.1, 4, 24): 0.1 + 0.9 * (1 + 0.5 ** 0.5) / 2,     # a quarter of the cosine
    (14, 1.0, 0.1, 4, 24): 0.55, (24, 1.0, 0.1, 4, 24): 0.1,
    (20, 0.01, 0.1, 4, 24): 0.01}                               # a floor above the peak is none


@pytest.mark.parametrize('case', RATES)
def test_the_learning_rate_rises_in_a_line_and_falls_in_a_cosine(case):
    assert get_lr(*case) == pytest.approx(RATES[case])
