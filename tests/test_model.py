"""The model against the formula by the book; its cache; generating and filling; optimizers;
checkpoints; and another network in its place."""
import math
import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import train_grpo
from data.dataset import Prompts, Tokenizer
from judge import Scorer
from model import (GPT, complete, get_lr, load_checkpoint, load_network, make_optimizers,
                   save_checkpoint, update)
from processes import refused

TOK = Tokenizer('char', 'abcd')
CAUSAL = pytest.mark.parametrize('causal', [False, True])


def tiny(causal=False, V=5, T=6, positions='rotary'):
    """Return a GPT in float64 all of whose weights matter; in a new one the output is zero."""
    gpt = GPT(V, T, 2, 2, 8, causal, positions).double()
    for p in gpt.parameters():
        nn.init.normal_(p, std=0.5)
    return gpt


def toy_sequences(n=3, k=1):
    return torch.randint(5, (n, 6)).repeat_interleave(k, 0)


def assert_same(logits, expected, gpt, atol=1e-10):
    """Logits are equal, and so is the gradient of a random sum of them."""
    torch.testing.assert_close(logits, expected, atol=atol, rtol=1e-6)
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

    def norm(x):
        variance = x.var(-1, keepdim=True, correction=0)
        return (x - x.mean(-1, keepdim=True)) / (variance + 1e-5).sqrt()

    x = gpt.embed(inputs)
    if gpt.args['positions'] == 'learned':
        x = x + gpt.position(torch.arange(T))
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
@pytest.mark.parametrize('positions', ['rotary', 'learned'])
def test_a_position_sees_what_it_may_and_nothing_else_in_value_and_gradient(causal, positions):
    """Fill: everything outside of `where` that is no padding; causal: what stands to the left."""
    gpt = tiny(causal, positions=positions)
    tokens = toy_sequences(9)
    where = torch.rand(9, 6) < 0.4
    tokens[0, 4:] = gpt.pad_id
    where[0] = torch.arange(6) < 2
    by_the_book = []
    for sequence, chosen in zip(tokens, where):
        inputs = sequence.masked_fill(chosen, gpt.mask_id)
        is_seen = (sequence != gpt.pad_id).expand(6, 6)
        if causal:
            inputs = F.pad(sequence[:-1], (1, 0), value=gpt.bos_id)
            is_seen = torch.ones(6, 6).tril().bool()
        by_the_book.append(logits_by_the_book(gpt, inputs, is_seen)[chosen])
    # Rotations are kept in float32.
    assert_same(gpt(tokens, where), torch.cat(by_the_book), gpt, atol=1e-5)


@CAUSAL
def test_the_output_layer_runs_only_where_asked_and_gives_float32_under_bfloat16(causal):
    gpt = tiny(causal).float()
    sizes = []
    gpt.head.register_forward_hook(lambda head, inputs, y: sizes.append(len(inputs[0])))
    where = torch.rand(3, 6) < 0.5
    with torch.autocast('cpu', torch.bfloat16):
        assert gpt(toy_sequences(), where).dtype == torch.float32
    assert sizes == [where.sum()]


def test_the_prefix_of_copies_is_computed_once_with_the_gradient_of_all_of_them():
    gpt = tiny(causal=True)
    first = torch.tensor([2, 4, 3]).repeat_interleave(2)[:, None]
    where = torch.arange(6) >= first            # copies agree to the left of it
    tokens = toy_sequences(k=2).where(~where, toy_sequences(6))
    sizes = []
    gpt.embed.register_forward_hook(lambda embed, inputs, x: sizes.append(inputs[0].numel()))
    shared = gpt(tokens, where, copies=2)
    assert sizes == [3 * 3, 6 * 3]
    assert_same(shared, gpt(tokens, where), gpt)


# ---- completing ----------------------------------------------------------------------------------


def prompts_of(tokens, first, stop, k=1):
    """Return Prompts of sequences (B, T), blank from first[b] up to stop[b]. Id 0 ends a text."""
    at = torch.arange(6)
    mask = (at >= torch.tensor(first)[:, None]) & (at < torch.tensor(stop)[:, None])
    uniforms = torch.rand(len(tokens), k, 6).double()
    return Prompts(tokens, mask, tokens, uniforms, torch.rand(tokens.shape), TOK)


def test_k_completions_cost_one_pass_over_the_prompts():
    gpt = tiny()
    shapes = []
    gpt.embed.register_forward_hook(lambda embed, inputs, x: shapes.append(inputs[0].shape))
    r = complete(gpt, prompts_of(toy_sequences(), [1] * 3, [5] * 3, k=4))
    assert shapes == [(3, 6)] and r.sequences.shape == (12, 6)


def test_generating_keeps_what_is_given_and_ends_with_eos_or_where_it_must():
    """An eos that is given ends nothing; the other prompt leaves room for two ids."""
    gpt = tiny(causal=True)
    pad = gpt.pad_id
    tokens = torch.tensor([[1, 0, 2, 1, 1, 1], [1, 1, 1, pad, pad, pad]])
    r = complete(gpt, prompts_of(tokens, [3, 1], [6, 3], k=200))
    lengths = set()
    for n, sequence in enumerate(r.sequences.tolist()):
        b = n // 200
        begin, stop = [(3, 6), (1, 3)][b]
        generated = r.actions[r.sequence_of == n].tolist()
        end = begin + len(generated)
        assert sequence == tokens[b, :begin].tolist() + generated + [pad] * (6 - end)
        assert 0 not in generated[:-1] and (generated[-1] == 0 or end == stop)
        lengths.add((b, len(generated)))
    assert lengths == {(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)}


def test_a_prompt_without_a_blank_stays_as_it_is_and_does_not_change_the_others():
    gpt = tiny()
    prompts = prompts_of(toy_sequences(), [1, 3, 0], [4, 3, 6], k=20)
    r = complete(gpt, prompts, n_fill_steps=2)
    others = complete(gpt, prompts[[0, 2]], n_fill_steps=2)
    assert torch.equal(r.sequences[20:40], prompts.tokens[1].expand(20, 6))
    assert torch.equal(r.sequences[40:], others.sequences[20:])


@CAUSAL
def test_weights_that_are_not_finite_are_noticed_when_they_sample(causal):
    gpt = tiny(causal)
    nn.init.constant_(gpt.head.weight, math.nan)
    with pytest.raises(AssertionError, match='not finite.*learning_rate'):
        complete(gpt, prompts_of(toy_sequences(), [1] * 3, [5] * 3, k=4))


class Counts(nn.Module):
    """A network unlike GPT: logits are a table of how often each id stands to the left, or stands
    at all; the least that the docstring of GPT demands."""
    mask_id, bos_id, pad_id, block_size, args = 5, 6, 7, 6, {}
    device = torch.device('cpu')

    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.table = nn.Parameter(0.1 * torch.randn(8, 5))

    def forward(self, tokens, where, copies=1):
        inputs = tokens.masked_fill(where, self.mask_id)
        if self.causal:
            inputs = F.pad(tokens[:, :-1], (1, 0), value=self.bos_id)
        counts = F.one_hot(inputs, 8).float()
        counts = counts.cumsum(1) if self.causal else counts.sum(1, keepdim=True).expand_as(counts)
        return (counts @ self.table)[where]

    class new_cache(list):
        def batch_repeat_interleave(self, copies):
            self[0] = self[0].repeat_interleave(copies, 0)

    def next_logits(self, tokens, cache):
        counts = F.one_hot(tokens, 8).float().sum(1)
        cache[:] = [counts + (cache[0] if cache else 0)]
        return cache[0] @ self.table


@CAUSAL
def test_another_network_takes_the_place_of_the_gpt(causal, monkeypatch):
    """It learns to say 'a', id 1."""
    for name, value in {'batch_size': 16, 'rewards': {'letters': 1.0}, 'kl_beta': 0.0}.items():
        monkeypatch.setattr(train_grpo, name, value)
    policy = Counts(causal)
    scorer = Scorer(functions={'letters': lambda prompts, texts: [t.count('a') for t in texts]})
    optimizers = make_optimizers(policy, 'adamw', 0.1, 0.0, 0.9, 0.95)
    for step in range(30):
        prompts = prompts_of(toy_sequences(16), [1] * 16, [4] * 16, k=8)
        [(_, r)], *_ = train_grpo.take_step(policy, None, optimizers, scorer, prompts, 0.1, 0.0)
        if step == 0:
            logp = train_grpo.logp_of(policy, r)[r.distribution_of, r.actions]
    assert (r.actions == 1).float().mean() > 0.8
    assert logp.shape == r.actions[:len(logp)].shape


# ---- optimizers ----------------------------------------------------------------------------------


@pytest.mark.parametrize('kind, of_muon', [('muon', 'blocks.'), ('adamw', 'none')])
def test_every_weight_has_one_optimizer_and_muon_has_the_hidden_matrices(kind, of_muon):
    gpt = tiny()
    optimizers = make_optimizers(gpt, kind, 1e-3, 0.1, 0.9, 0.95)
    kinds = [(p, type(opt)) for opt in optimizers for p in opt.param_groups[0]['params']]
    assert len(kinds) == len(dict(kinds)) == len(list(gpt.parameters()))
    for name, p in gpt.named_parameters():
        assert (dict(kinds)[p] is torch.optim.Muon) == name.startswith(of_muon)
    assert all(opt.param_groups[0]['weight_decay'] == 0.1 for opt in optimizers)


def test_the_learning_rate_warms_up_and_follows_half_a_cosine():
    rates = [get_lr(step, 3.0, 1.0, 2, 6) for step in range(7)]
    assert rates == pytest.approx([1, 2, 3, 2 + 0.5 ** 0.5, 2, 2 - 0.5 ** 0.5, 1])


@pytest.mark.parametrize('clip, step', [(1.0, 0.1 / 5), (0.0, 0.1), (7.0, 0.1)])
def test_an_update_clips_and_returns_the_norm_before(clip, step):
    layer = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(layer.weight)
    layer(torch.tensor([3.0, 4.0])).backward()
    assert update(layer, [torch.optim.SGD(layer.parameters(), lr=9.0)], 0.1, clip) == 5
    assert layer.weight[0].tolist() == pytest.approx([-3 * step, -4 * step], rel=1e-4)
    assert layer.weight.grad is None


# ---- checkpoints ---------------------------------------------------------------------------------


@CAUSAL
def test_a_checkpoint_gives_back_the_network_and_its_tokenizer(causal, tmp_path):
    gpt = tiny(causal, positions='learned').float()
    save_checkpoint(f'{tmp_path}/new/ckpt.pt', gpt, TOK, {'seed': 3}, step=7)
    for path in (f'{tmp_path}/new/ckpt.pt', f'{tmp_path}/new'):         # a run's folder
        again, tok = load_network(path)
        assert load_checkpoint(path)['step'] == 7 and tok.vocabulary == TOK.vocabulary
        tokens = toy_sequences()
        assert torch.equal(again(tokens, tokens > 1), gpt(tokens, tokens > 1))
    assert os.listdir(tmp_path / 'new') == ['ckpt.pt']


def test_a_file_that_is_no_checkpoint_or_would_run_code_is_refused(tmp_path):
    class Intruder:
        def __reduce__(self):
            return open, (f'{tmp_path}/was-here', 'w')

    save_checkpoint(f'{tmp_path}/a.pt', tiny(), TOK, {})
    whole = (tmp_path / 'a.pt').read_bytes()
    torch.save({'model': Intruder()}, tmp_path / 'b.pt')
    (tmp_path / 'c.pt').write_bytes(whole[:len(whole) // 2])
    (tmp_path / 'd.pt').write_text('words')
    for name in ('b.pt', 'c.pt', 'd.pt', 'e.pt'):
        refused([name], load_checkpoint, f'{tmp_path}/{name}')
    assert not os.path.exists(tmp_path / 'was-here')
