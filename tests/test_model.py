"""The network, its precision, what it computes once, and its optimizers."""
import copy
from unittest.mock import Mock, patch

import pytest
import torch
import torch.nn.functional as F

import pretrain
from model import attention, features_of_inputs
from plumbing.devices import set_precision
from plumbing.optim import get_lr, make_optimizers, optimizer_step
from test_grpo import TOK, close, knobs, prompts_of, slow_logits, tiny  # noqa: F401, a fixture

# ---- what a network sees -------------------------------------------------------------------------
# (A causal one sees what is to the left: slow_logits() of test_grpo.py.)


@pytest.mark.parametrize('positions', ['learned', 'rotary'])
def test_a_network_that_fills_blanks_sees_all_places_but_padding_and_their_order(positions):
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


def test_attention_on_a_cpu_equals_the_fused_one_of_torch():
    q, k, v = torch.randn(3, 2, 3, 4, 5)        # (N, H, L, D) each
    mask = torch.randn(4, 4)                    # any numbers, for 0 and -1e9
    close(attention(q, k, v, mask), F.scaled_dot_product_attention(q, k, v, mask))


# ---- precision -----------------------------------------------------------------------------------


@pytest.mark.parametrize('dtype, is_fast', [('auto', False), ('auto', True), ('bfloat16', False)])
def test_logits_are_float32_beside_bfloat16_and_casts_of_weights_are_not_kept(dtype, is_fast, grpo):
    """If casts were kept, samples would come from weights that have been updated since. A CPU that
    is slow in bfloat16 has it if it is asked for."""
    torch.set_default_dtype(torch.float32)
    network, x = tiny(), torch.ones(1, 8)
    up, exact = network.blocks[0].up, network.logits(x)
    with patch('torch.cpu._is_avx512_bf16_supported', lambda: is_fast):
        set_precision(network, dtype)
    before = up(x)
    assert (before.dtype == torch.bfloat16) == (dtype == 'bfloat16' or is_fast)
    up.weight.data += 1.0
    assert (up(x) - before - 8.0).abs().max() < 0.2
    assert network.logits(x).equal(exact)


# ---- pretraining ---------------------------------------------------------------------------------


@pytest.mark.parametrize('kind, blank_kind', [
    ('fill', 'random'), ('causal', 'random'), ('causal', 'answer')])
def test_pretraining_learns_blanks_or_from_left_to_right_all_tokens_or_those_of_answers(
        kind, blank_kind):
    """And nothing where a record has a blank and no answer."""
    network, prompts = tiny(kind), prompts_of('b__a=bcaa', 'c=a', 'c_')
    texts, learns = prompts.tokens, prompts.blank
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
def test_equal_texts_and_equal_beginnings_are_read_once(name, positions):
    """As many columns are read once as save most. Features and gradients are those of a network
    that reads all."""
    n_ids, N, T = SIZES[name]
    x = torch.randint(n_ids, (N, T))
    network, factors = tiny('causal', positions=positions), torch.randn(N, T, 8)
    trunk = Mock(side_effect=network.trunk)
    found = []
    for features in (features_of_inputs(trunk, x), network.trunk(x)):
        grads = torch.autograd.grad((features * factors).sum(), list(network.blocks.parameters()))
        found.append(torch.cat([features.flatten(), *map(torch.flatten, grads)]))
    close(*found)
    n_read = sum(call.args[0].numel() for call in trunk.call_args_list)
    # n columns of different beginnings, and the rest of all texts
    assert n_read == min(n * len(x[:, :n].unique(dim=0)) + N * (T - n) for n in range(1, T + 1))


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
