"""The model against the formula by the book; its cache; optimizers."""
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pretrain
from dataset import Dataset
from model import Network, get_lr, make_optimizers, optimizer_step
from test_grpo import CAUSAL, TOK, close, knobs, share_of_a, tiny

POSITIONS = pytest.mark.parametrize('positions', ['rotary', 'learned'])


def assert_same(logits, expected, gpt, atol=1e-10):
    """Logits are equal, and so is the gradient of a random sum of them."""
    close(logits, expected, atol)
    direction = torch.randn_like(logits)
    changes = torch.autograd.grad(logits - expected, list(gpt.parameters()), direction)
    assert max(change.abs().max() for change in changes) < atol


# ---- the network ---------------------------------------------------------------------------------


def logits_by_the_book(gpt, inputs, is_seen):
    """Return logits (T, V) of ids (T,). is_seen[t, s]: may position t attend to s? A head's vector
    of queries and keys is D / 2 complex numbers, turned by its position."""
    T = len(inputs)
    angle = torch.arange(T)[:, None, None] * 100.0 ** -torch.arange(2.0)
    turn = torch.polar(torch.ones_like(angle), angle)                           # (T, 1, D / 2)

    norm = nn.LayerNorm(8, elementwise_affine=False)
    x = gpt.embed(inputs)
    if gpt.args['positions'] == 'learned':
        x = x + gpt.position.weight
        turn = torch.ones_like(turn)
    x = norm(x)
    for block in gpt.blocks:
        q, k, v = block.qkv(norm(x)).view(T, 3, 2, 4).unbind(1)                 # (T, H, D) each
        q, k = [turn * torch.complex(*z.split(2, -1)) for z in (q, k)]
        scores = torch.einsum('thd, shd -> hts', q, k.conj()).real / 2
        share = scores.masked_fill(~is_seen, -math.inf).softmax(-1)             # (H, T, T)
        x = x + block.proj(torch.einsum('hts, shd -> thd', share, v).flatten(1))
        x = x + block.down(block.up(norm(x)).clamp(min=0))
    return gpt.head(norm(x))


@CAUSAL
@POSITIONS
def test_a_position_sees_what_it_may_and_nothing_else_in_value_and_gradient(causal, positions):
    """Fill: everything that is no padding, blanks too; causal: what stands to the left."""
    gpt = tiny(causal, n_layer=2, positions=positions)
    tokens = torch.randint(6, (9, 6))           # 5 is a blank
    tokens[:4, 4:] = gpt.pad_id
    by_the_book = []
    for sequence in tokens:
        inputs = sequence
        is_seen = (inputs != gpt.pad_id).expand(6, 6)
        if causal:
            inputs = F.pad(sequence[:-1], (1, 0), value=gpt.bos_id)
            is_seen = torch.ones(6, 6).tril() > 0
        by_the_book.append(logits_by_the_book(gpt, inputs, is_seen))
    # Rotations are kept in float32.
    assert_same(gpt.logits(gpt(tokens)), torch.stack(by_the_book), gpt, atol=1e-5)


def test_logits_are_float32_under_bfloat16():
    gpt = tiny().float()
    with torch.autocast('cpu', torch.bfloat16):
        assert gpt.logits(gpt(torch.zeros(3, 6).long())).dtype == torch.float32


@POSITIONS
@pytest.mark.parametrize('start, sizes', [(2, [2 * 3, 6 * 3]), (5, [2 * 6])])
def test_prompts_are_computed_once_with_the_gradient_of_all_that_begin_with_them(
        start, sizes, positions):
    gpt = tiny(causal=True, n_layer=2, positions=positions)
    tokens = torch.randint(5, (6, 6))
    tokens[:, :start] = tokens[:2, :start].repeat(3, 1)         # two prompts, and bos before each
    expected = gpt.logits(gpt(tokens))
    asked = []
    gpt.embed.register_forward_hook(lambda embed, inputs, x: asked.append(inputs[0].numel()))
    assert_same(gpt.logits(gpt(tokens, start)), expected, gpt)
    assert asked == sizes


class Bigrams(Network):
    """A network unlike GPT: the logits are a row of a table, that of the id to the left. It has the
    least that a Network needs."""
    blank_id, bos_id, pad_id, block_size, args = 5, 6, 7, 6, {}
    is_classifier = False

    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.table = nn.Parameter(torch.zeros(8, 5))

    def trunk(self, inputs, cache=None):
        left = inputs if self.causal else F.pad(inputs[:, :-1], (1, 0), value=self.bos_id)
        return F.one_hot(left, 8).to(self.dtype)

    def logits(self, x):
        return x @ self.table


@CAUSAL
def test_another_network_takes_the_place_of_the_gpt(causal, knobs):
    knobs(rewards={'letters': 1.0})
    assert share_of_a(Bigrams(causal), 0.001, 'adamw', 0.1) > 0.8


@pytest.mark.parametrize('blank_kind, learned', [('random', [3, 4]), ('answer', [1, 2])])
def test_a_causal_generator_learns_all_tokens_or_only_those_of_answers(
        blank_kind, learned, monkeypatch):
    """The loss is a mean over tokens. The second prompt is longer; eos is part of an answer."""
    monkeypatch.setattr(pretrain, 'kind', 'causal')
    monkeypatch.setattr(pretrain, 'blank_kind', blank_kind)
    texts = [{'prompt': 'ab', 'answer': ''}, {'prompt': 'cc', 'answer': 'd'}]
    data = Dataset(texts, texts, TOK, True, blank_kind=blank_kind)
    gpt = tiny(True)
    losses = []
    for n, row in zip(learned, data.rows):
        row = row[row != TOK.pad]
        for t in range(len(row))[-n:]:
            logits = gpt.logits(gpt(row[None])[:, t])
            losses.append(F.cross_entropy(logits, row[[t]]))
    close(pretrain.loss_of(gpt, data, None, 'val', 2, 0), torch.stack(losses).mean())


def test_a_classifier_of_labels_sees_the_end_of_a_text_but_no_padding(monkeypatch):
    monkeypatch.setattr(pretrain, 'kind', 'classifier')
    texts = [{'prompt': 'ab', 'answer': '', 'label': 1}, {'prompt': 'c', 'answer': '', 'label': 0}]
    data = Dataset(texts, texts, TOK, True)
    judge = tiny(is_classifier=True)
    scores = torch.stack([judge.head(judge.trunk(row)).mean() for row in (
        torch.tensor([[1, 2, TOK.eos]]), torch.tensor([[3, TOK.eos]]))])
    expected = F.binary_cross_entropy_with_logits(scores, scores.new_tensor([1.0, 0.0]))
    close(pretrain.loss_of(judge, data, None, 'val', 2, 0), expected)


# ---- optimizers ----------------------------------------------------------------------------------


def test_every_weight_has_one_optimizer_and_muon_has_the_hidden_matrices():
    gpt = tiny()
    for kind in ('muon', 'adamw'):
        groups = [optimizer.param_groups[0] for optimizer in make_optimizers(gpt, kind, 0.3)]
        assert all(group['weight_decay'] == 0.3 for group in groups)
        others, *matrices = [group['params'] for group in groups]
        others = set(others)
        for name, p in gpt.named_parameters():
            assert (p in others) != (kind == 'muon' and name.startswith('blocks'))
        assert matrices == [list(gpt.blocks.parameters())] * (kind == 'muon')


def test_the_learning_rate_warms_up_and_follows_half_a_cosine():
    rates = [get_lr(step, 3.0, 1.0, 2, 6) for step in range(7)]
    assert rates == pytest.approx([1, 2, 3, 2 + 0.5 ** 0.5, 2, 2 - 0.5 ** 0.5, 1])
    assert get_lr(5, 0.5, 1.0, 2, 6) == 0.5             # the floor is never above the peak


@pytest.mark.parametrize('clip, step', [(1.0, 0.1 / 5), (0.0, 0.1), (7.0, 0.1)])
def test_an_update_clips_and_returns_the_norm_before(clip, step):
    layer = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=9.0, momentum=0.9)
    expected = layer.weight.detach() - step * torch.tensor([3.0, 4.0])
    for grad in ([[3.0, 4.0]], [[0.0, 0.0]]):           # without a gradient it does not move
        layer.weight.grad = torch.tensor(grad)
        assert optimizer_step(layer, [optimizer], 0.1, clip) == sum(grad[0]) * 5 / 7
    close(layer.weight.detach(), expected, atol=1e-5)
    assert layer.weight.grad is None
