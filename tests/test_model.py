"""The network, its precision, what it computes once, and its optimizers."""
import copy

import pytest
import torch
import torch.nn.functional as F

import pretrain
from model import attention, features_of_inputs, shared_length, unique_rows
from plumbing.devices import set_precision
from plumbing.optim import get_lr, make_optimizers, optimizer_step
from test_grpo import TOK, close, knobs, prompts_of, slow_logits, tiny  # noqa: F401, a fixture

# ---- what a network sees -------------------------------------------------------------------------
# (A causal one sees what is to the left: slow_logits() of test_grpo.py.)


@pytest.mark.parametrize('positions', ['learned', 'rotary'])
def test_a_network_that_fills_blanks_sees_all_places_but_padding_and_their_order(positions):
    """With rotary positions it sees distances, so a text can stand elsewhere."""
    network, text = tiny(T=8, positions=positions), torch.randint(4, (8,))
    texts = (text + torch.eye(8).long()) % 4            # one place after the other is changed
    x = network.features(texts)                                                 # (8, 8, C)
    assert ((x - network.features(text[None])).abs().amax(-1) > 1e-4).all()
    assert (x - network.features(texts.flip(1)).flip(1)).abs().max() > 0.1
    padded = texts.index_fill(1, torch.arange(5, 8), network.pad_id)
    x = network.features(texts[:, :5])
    close(network.features(padded)[:, :5], x)
    moved = network.features(padded.roll(3, 1))[:, 3:]
    assert torch.allclose(moved, x) == (positions == 'rotary')


def test_attention_is_a_mean_of_values_by_the_softmax_of_products_of_queries_and_keys():
    q, k, v = torch.randn(3, 2, 3, 4, 5)        # (N, H, L, D) each
    mask = torch.zeros(4, 4).masked_fill(torch.rand(4, 4) < 0.3, -1e9)
    y = attention(q, k, v, mask)
    for n, h, t in torch.cartesian_prod(*map(torch.arange, (2, 3, 4))).tolist():
        scores = [q[n, h, t] @ k[n, h, s] / 5 ** 0.5 + mask[t, s] for s in range(4)]
        close(y[n, h, t], torch.stack(scores).softmax(0) @ v[n, h])


# ---- precision -----------------------------------------------------------------------------------


def test_logits_are_float32_beside_bfloat16_and_casts_of_weights_are_not_kept(grpo, monkeypatch):
    """If casts were kept, samples would come from weights that have been updated since. What is
    asked for is done where it is slow, too."""
    torch.set_default_dtype(torch.float32)
    network, x = tiny(), torch.ones(1, 8)
    up, exact = network.blocks[0].up, network.logits(x)
    n_threads = torch.get_num_threads()
    monkeypatch.setattr(torch.cpu, '_is_avx512_bf16_supported', lambda: False)
    set_precision(network, 'auto')
    assert not torch.is_autocast_enabled('cpu')
    for n in (8, 1):                            # of a small network at most two
        torch.set_num_threads(n)
        set_precision(network, 'bfloat16')
        assert torch.get_num_threads() == min(2, n)
    torch.set_num_threads(n_threads)
    before = up(x)
    up.weight.data += 1.0
    assert (up(x) - before - 8.0).abs().max() < 0.2 and before.dtype == torch.bfloat16
    assert network.logits(x).equal(exact)


@pytest.mark.parametrize('kind, blank_kind', [('fill', 'random'), ('causal', 'random'),
                                              ('causal', 'answer')])
def test_pretraining_learns_blanks_or_from_left_to_right_all_tokens_or_those_of_answers(
        kind, blank_kind, monkeypatch):
    monkeypatch.setattr(pretrain, 'kind', kind)
    monkeypatch.setattr(pretrain, 'blank_kind', blank_kind)
    network, prompts = tiny(kind), prompts_of('b__a', 'c_')
    learns, views = prompts.blank, prompts.tokens
    if kind == 'fill':
        views = views.masked_fill(learns, TOK.blank)
    elif blank_kind == 'random':
        learns = views != TOK.pad
    losses = [F.cross_entropy(slow_logits(network, views[n], t), prompts.tokens[n, t])
              for n, t in learns.nonzero()]
    close(pretrain.loss_of(network, prompts), sum(losses) / len(losses))


# ---- what texts share ----------------------------------------------------------------------------


SIZES = {                       # ids, texts, tokens of a text
    'few ids': (2, 20, 6), 'many texts': (4, 20, 6), 'one text': (4, 1, 6),
    'few texts': (7, 3, 6), 'one token': (4, 9, 1), 'no text': (4, 0, 6)}


def test_different_texts_are_never_taken_for_equal_ones():
    x = torch.randint(14, (20_000, 10))
    rows, inverse = unique_rows(x)
    assert x[rows][inverse].equal(x) and len(rows) == len(x.unique(dim=0))


@pytest.mark.parametrize('positions', ['learned', 'rotary'])
@pytest.mark.parametrize('name', SIZES)
def test_equal_texts_and_equal_beginnings_are_read_once(name, positions):
    """As many columns are read once as save most. Features and gradients are those of a network
    that reads all."""
    n_ids, N, T = SIZES[name]
    x = torch.randint(n_ids, (N, T))
    network, factors = tiny('causal', positions=positions), torch.randn(N, T, 8)
    n_read, found = [], []

    def trunk(inputs, cache):
        n_read.append(inputs.numel())
        return network.trunk(inputs, cache)

    for features in (features_of_inputs(trunk, x), network.trunk(x)):
        grads = torch.autograd.grad((features * factors).sum(), list(network.blocks.parameters()))
        found.append(torch.cat([features.flatten(), *map(torch.flatten, grads)]))
    close(*found)
    saved = [n * (N - len(x[:, :n].unique(dim=0))) for n in range(1, T + 1)]
    assert saved[shared_length(x) - 1] == N * T - sum(n_read) == max(saved)


# ---- optimizers ----------------------------------------------------------------------------------


def test_muon_equals_that_of_torch_and_weights_that_are_frozen_or_unused_stay(monkeypatch):
    """Some are frozen before the optimizers are made, and some after two steps. AdamW has the head
    and the embeddings; no gradient comes to the positions."""
    # Torch makes matrices bfloat16 before it multiplies them; here they stay float64.
    monkeypatch.setattr(torch.Tensor, 'bfloat16', lambda x: x)
    network = tiny('causal')
    for decay in (0.0, 0.25):                   # without a gradient, only it moves the weights
        decays = copy.deepcopy(network)
        [adamw] = make_optimizers(decays, 'adamw', decay)
        adamw.param_groups[0]['lr'] = 1.0
        for p in decays.parameters():
            p.grad = torch.zeros_like(p)
        adamw.step()
        for p, before in zip(decays.parameters(), network.parameters()):
            close(p, (1 - decay) * before)
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


RATES = {                       # of a step, a peak, a floor, steps of warm-up, all steps
    (0, 1.0, 0.1, 4, 24): 0.2, (3, 1.0, 0.1, 4, 24): 0.8, (4, 1.0, 0.1, 4, 24): 1.0,
    (9, 1.0, 0.1, 4, 24): 0.1 + 0.9 * (1 + 0.5 ** 0.5) / 2,     # a quarter of the cosine
    (14, 1.0, 0.1, 4, 24): 0.55, (24, 1.0, 0.1, 4, 24): 0.1,
    (4, 1.0, 0.1, 4, 4): 1.0,                                   # all steps are warm-up
    (20, 0.01, 0.1, 4, 24): 0.01}                               # a floor above the peak is none


@pytest.mark.parametrize('case', RATES)
def test_the_learning_rate_rises_in_a_line_and_falls_in_a_cosine(case):
    assert get_lr(*case) == pytest.approx(RATES[case])
