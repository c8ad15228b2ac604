"""The model: what it sees, against the formula by the book; its cache; writing and filling;
optimizers; pretraining; checkpoints, what damages them, and the names of parts."""
import inspect
import math
import os
import re
import shlex
import signal
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import judge
import model
from common import configure, knobs
from data.dataset import Dataset, Prompts, Tokenizer, draws
from model import (GPT, complete, complete_texts, find_part, freeze, get_lr, load_checkpoint,
                   load_gpt, look_at_fills, make_optimizers, pretraining_batch,
                   recipe_path, save_checkpoint, update)
from processes import SMALL, Run, fails, refused, run

MODES = pytest.mark.parametrize('causal', [False, True])


def tiny(causal=False, V=5, T=6, positions='rotary'):
    """A GPT in float64 all of whose weights matter; at birth its output is zero."""
    gpt = GPT(V, T, 2, 2, 8, causal, positions).double()
    for p in gpt.parameters():
        nn.init.normal_(p, std=0.5)
    return gpt


def some_rows(n=3, k=1):
    return torch.randint(5, (n, 6)).repeat_interleave(k, 0)


def assert_same(found, expected, gpt, atol=1e-10):
    """Logits are equal, and so is the gradient of a random sum of them."""
    torch.testing.assert_close(found, expected, atol=atol, rtol=1e-6)
    direction = torch.randn_like(found)
    changes = torch.autograd.grad(found - expected, list(gpt.parameters()), direction)
    assert max(change.abs().max() for change in changes) < atol


# ---- what a choice sees --------------------------------------------------------------------------


def logits_by_the_book(gpt, inputs, is_seen):
    """Logits (T, V) of ids (T,). is_seen[t, s]: may position t look at s? A head's vector of
    queries and keys is D / 2 complex numbers, turned by its position."""
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


@MODES
@pytest.mark.parametrize('positions', ['rotary', 'learned'])
def test_a_choice_sees_all_that_it_may_and_nothing_else_in_value_and_gradient(causal, positions):
    """Fill: what is outside of `where` and no padding; causal: what stands to the left."""
    gpt = tiny(causal, positions=positions)
    tokens = some_rows(9)
    where = torch.rand(9, 6) < 0.4
    tokens[0, 4:] = gpt.pad_id
    where[0] = torch.arange(6) < 2
    by_the_book = []
    for row, chosen in zip(tokens, where):
        inputs = row.masked_fill(chosen, gpt.mask_id)
        is_seen = (row != gpt.pad_id).expand(6, 6)
        if causal:
            inputs = F.pad(row[:-1], (1, 0), value=gpt.bos_id)
            is_seen = torch.ones(6, 6).tril().bool()
        by_the_book.append(logits_by_the_book(gpt, inputs, is_seen)[chosen])
    # Rotations are kept in float32.
    assert_same(gpt(tokens, where), torch.cat(by_the_book), gpt, atol=1e-5)
    with pytest.raises(RuntimeError):
        gpt(torch.zeros(1, 7).long())           # longer than it was made for


@MODES
def test_the_output_layer_is_computed_for_choices_alone_and_gives_float32_under_bfloat16(causal):
    gpt = tiny(causal).float()
    asked = []
    gpt.head.register_forward_hook(lambda head, inputs, y: asked.append(len(inputs[0])))
    where = torch.rand(3, 6) < 0.5
    with torch.autocast('cpu', torch.bfloat16):
        assert gpt(some_rows(), where).dtype == torch.float32
    assert asked == [where.sum()]


def test_what_copies_share_is_computed_once_with_the_gradient_of_all_of_them():
    gpt = tiny(causal=True)
    first = torch.tensor([2, 4, 3]).repeat_interleave(2)[:, None]
    where = torch.arange(6) >= first            # copies agree to the left of it
    tokens = some_rows(k=2).where(~where, some_rows(6))
    seen = []
    gpt.embed.register_forward_hook(lambda embed, inputs, x: seen.append(inputs[0].numel()))
    shared = gpt(tokens, where, copies=2)
    assert seen == [3 * 3, 6 * 3]
    assert_same(shared, gpt(tokens, where), gpt)


# ---- completing ----------------------------------------------------------------------------------


def prompts_of(tokens, first, stop, k=1):
    """Prompts of rows (B, T), blank from first[b] up to stop[b]. Id 0 ends a row."""
    at = torch.arange(6)
    mask = (at >= torch.tensor(first)[:, None]) & (at < torch.tensor(stop)[:, None])
    return Prompts(tokens, mask, torch.rand(*tokens.shape, k).double(), 0, torch.rand(tokens.shape))


def test_k_completions_cost_one_pass_over_prompts_and_a_trunk_is_compiled_for_one_shape():
    gpt = tiny()
    tokens = some_rows()
    calls = set()

    def compiled(inputs, pad=None):
        calls.add((inputs.shape, pad is None))
        return gpt.trunk(inputs, pad=pad)

    gpt.compiled = compiled
    for stop in (2, 5, 6):                      # other numbers of blanks; then some padding too
        complete(gpt, prompts_of(tokens, [1] * 3, [stop] * 3, k=4))
        tokens[0, 5] = gpt.pad_id
    assert calls == {((3, 6), False)}


def test_writing_keeps_what_is_given_and_ends_with_eos_or_where_it_must():
    """An eos that is given ends nothing; the other prompt leaves room for two ids."""
    gpt = tiny(causal=True, V=3)
    pad = gpt.pad_id
    tokens = torch.tensor([[1, 0, 2, 1, 1, 1], [1, 1, 1, pad, pad, pad]])
    r = complete(gpt, prompts_of(tokens, [3, 1], [6, 3], k=200))
    lengths = set()
    for n, row in enumerate(r.rows.tolist()):
        b = n // 200
        begin, stop = [(3, 6), (1, 3)][b]
        written = r.actions[r.owner == n].tolist()
        end = begin + len(written)
        assert row == tokens[b, :begin].tolist() + written + [pad] * (6 - end)
        assert 0 not in written[:-1] and (written[-1] == 0 or end == stop)
        lengths.add((b, len(written)))
    assert lengths == {(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)}


def test_a_prompt_without_a_blank_stays_and_is_for_the_others_as_if_not_there():
    gpt = tiny()
    prompts = prompts_of(some_rows(), [1, 3, 0], [4, 3, 6], k=20)
    others = prompts.map(lambda values: values[[0, 2]])
    r = complete(gpt, prompts, n_fill_steps=2)
    same = complete(gpt, others, n_fill_steps=2)
    assert torch.equal(r.rows[20:40], prompts.tokens[1].expand(20, 6))
    assert torch.equal(r.rows[40:], same.rows[20:])
    torch.testing.assert_close(r.logp_old, same.logp_old)


def test_freezing_casts_hidden_matrices_alone_and_moves_outputs_by_bfloat16s_rounding():
    gpt = tiny().float()
    tokens = some_rows()
    exact = gpt(tokens)
    with torch.autocast('cpu', torch.bfloat16):
        cast_in_each_product = gpt(tokens)
        freeze(gpt, torch.bfloat16)
        assert torch.equal(gpt(tokens), cast_in_each_product)
    assert 0 < (cast_in_each_product - exact).norm() < 0.03 * exact.norm()
    for name, p in gpt.named_parameters():
        assert not p.requires_grad
        assert (p.dtype == torch.bfloat16) == name.startswith('blocks.')


# ---- optimizers, and pretraining -----------------------------------------------------------------


@pytest.mark.parametrize('kind, of_muon', [('muon', 'blocks.'), ('adamw', 'none')])
def test_every_weight_has_one_optimizer_and_muon_has_the_hidden_matrices(kind, of_muon):
    gpt = tiny()
    optimizers = make_optimizers(gpt, 1e-3, 0.1, 0.9, 0.95, kind)
    owners = [(p, type(one)) for one in optimizers for p in one.param_groups[0]['params']]
    assert len(owners) == len(dict(owners)) == len(list(gpt.parameters()))
    for name, p in gpt.named_parameters():
        assert (dict(owners)[p] is torch.optim.Muon) == name.startswith(of_muon)


def test_the_learning_rate_warms_up_and_follows_half_a_cosine():
    rates = [get_lr(step, 3.0, 1.0, 2, 6) for step in range(8)]
    assert rates == pytest.approx([1, 2, 3, 2 + 0.5 ** 0.5, 2, 2 - 0.5 ** 0.5, 1, 1])


@pytest.mark.parametrize('clip, step', [(1.0, 0.1 / 5), (0.0, 0.1), (7.0, 0.1)])
def test_an_update_clips_and_returns_the_norm_before(clip, step):
    layer = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(layer.weight)
    layer(torch.tensor([3.0, 4.0])).backward()
    assert update(layer, [torch.optim.SGD(layer.parameters(), lr=9.0)], 0.1, clip) == 5
    assert layer.weight[0].tolist() == pytest.approx([-3 * step, -4 * step], rel=1e-4)
    assert layer.weight.grad is None


@MODES
def test_the_loss_of_pretraining_is_nats_per_guess(causal, here, monkeypatch):
    monkeypatch.setattr(model, 'dtype', 'float64')
    monkeypatch.setattr(model, 'block_size', 12)        # equations have 10, so there is padding
    corpus = Dataset('arithmetic')
    gpt = tiny(causal, corpus.tok.base, 12)
    loss, tokens, hidden = pretraining_batch(gpt, corpus, 'train', 5, draws(1, 'rows'))
    guessed = tokens != corpus.tok.pad if causal else hidden
    logp = gpt(tokens if causal else tokens.masked_fill(hidden, gpt.mask_id)).log_softmax(2)
    nats = [-logp[n, t, tokens[n, t]].item() for n, t in guessed.nonzero()]
    assert loss.item() == pytest.approx(sum(nats) / len(nats))


def test_a_generator_learns_and_is_what_its_checkpoint_gives_back(here, tmp_path, monkeypatch):
    code, text = run(here, 'model.py', *f'config/generator_{SMALL}'.split(), '--max_iters=90',
                     '--eval_interval=30', f'--out={tmp_path}/a.pt')
    losses = re.findall(r'held-out loss (\S+)', text)
    assert code == 0 and len(losses) == 3
    corpus = Dataset('arithmetic')
    assert float(losses[2]) < 0.75 * math.log(corpus.tok.base)
    monkeypatch.setattr(model, 'dtype', 'float32')
    monkeypatch.setattr(model, 'batch_size', 64)
    gpt = load_gpt(f'{tmp_path}/a.pt')
    assert look_at_fills(gpt, corpus) in text.splitlines()[-2]

    found = complete_texts(gpt, ['12+__=__', '9_=9'], k=5)
    assert [len(few) for few in found] == [5, 5]
    assert all(re.fullmatch(r'12\+..=..', one, re.DOTALL) for one in found[0])


@pytest.mark.parametrize('flag, names', [
    ('--n_embd=30', ['n_embd = 30']), ('--mode=both', ['both']), ('--block_size=1', ['= 1']),
    ('--blank_high=2', ['blank_high = 2']), ('--learning_rate=1e30', ['step', 'loss'])])
def test_a_mistake_in_a_recipe_gets_one_line_and_writes_nothing(flag, names, repository, tmp_path):
    fails(names, repository, 'model.py', *f'config/generator_{SMALL}'.split(), '--grad_clip=0',
          flag, f'--out={tmp_path}/a.pt')
    assert os.listdir(tmp_path) == []


def test_pretraining_that_is_interrupted_ends_with_one_line_and_leaves_nothing(
        repository, tmp_path):
    going = Run(repository, 'model.py', f'--out={tmp_path}/a.pt', '--eval_interval=1')
    going.wait_for(lambda: 'step' in going.text())
    going.kill(signal.SIGINT)
    code, text = going.wait()
    assert code == 128 + signal.SIGINT and 'Traceback' not in text
    assert os.listdir(tmp_path) == []


# ---- checkpoints ---------------------------------------------------------------------------------


ARGS = {'vocab_size': 5, 'block_size': 6, 'n_layer': 1, 'n_head': 2, 'n_embd': 8, 'causal': False,
        'positions': 'rotary'}


def content(**changes):
    """What a checkpoint of a small generator holds."""
    torch.manual_seed(0)
    return {'kind': 'generator', 'model_args': ARGS, 'model': GPT(**ARGS).state_dict(),
            'config': {'dataset': 'toy'}, 'corpus': 'its text', 'unit': 'rows',
            'vocabulary': {'kind': 'char', 'chars': 'abcd'}} | changes


def test_a_flipped_bit_is_found_or_changes_nothing_and_a_missing_end_is_found(tmp_path):
    path = tmp_path / 'a.pt'
    save_checkpoint(path, **content())
    whole = path.read_bytes()
    first = whole.index(content()['model']['blocks.0.up.weight'].numpy().tobytes())
    weights = range(first, first + 4 * 8 * 32, 16)
    for i in [*weights, *range(0, len(whole), 61)]:
        damaged = bytearray(whole)
        damaged[i] ^= 1 << i % 8
        path.write_bytes(damaged)
        try:
            found = load_gpt(path)
        except SystemExit as end:
            assert re.fullmatch('error: .*a.pt, or a damaged one.*', str(end))
        else:
            assert i not in weights and found.args == ARGS
            assert all(torch.equal(found.state_dict()[name], value)
                       for name, value in content()['model'].items())
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused(['a.pt', 'damaged'], load_gpt, path)


@pytest.mark.parametrize('changes, how, names', [
    ({}, {'kind': 'judge'}, ['a generator', 'a judge']),
    ({'kind': 'judge'}, {}, ['a judge', 'a generator']),
    ({}, {'block_size': 7}, ['6', '7']),
    ({}, {'mode': 'causal'}, ['causal']),
    ({'vocabulary': {'kind': 'char', 'chars': 'abc'}}, {}, ['vocabulary', 'mine']),
    ({'kind': 'policy', 'corpus': 'another'}, {'kind': 'policy'}, ['text']),
    ({'model_args': ARGS | {'n_layer': 10 ** 9}}, {}, ['damaged']),
    ({'model_args': ARGS | {'n_head': 0}}, {}, ['damaged']),
    ({'model_args': ARGS | {'vocab_size': 6}}, {}, ['damaged'])])
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(changes, how, names, tmp_path):
    save_checkpoint(f'{tmp_path}/a.pt', **content(**changes))
    corpus = types.SimpleNamespace(name='mine', fingerprint='its text',
                                   tok=Tokenizer('char', 'abcd'))
    refused(['a.pt', 'make it so', *names], load_checkpoint, f'{tmp_path}/a.pt', data=corpus,
            make='make it so', **{'kind': 'generator'} | how)


@pytest.mark.parametrize('name', content())
def test_a_checkpoint_of_others_without_a_field_or_that_would_run_code_is_refused(name, tmp_path):
    class Intruder:
        def __reduce__(self):
            return open, (f'{tmp_path}/was-here', 'w')

    less = content()
    del less[name]
    fewer = dict(list(ARGS.items())[::-2]), dict(list(content()['model'].items())[::2])
    for others in (less, {'model': {}, 'iter_num': 3}, content(**{name: Intruder()}),
                   content(model_args=fewer[0]), content(model=fewer[1])):
        torch.save(others, f'{tmp_path}/a.pt')
        refused(['a.pt', 'damaged'], load_gpt, f'{tmp_path}/a.pt')
    assert os.listdir(tmp_path) == ['a.pt']


# ---- the names of parts --------------------------------------------------------------------------


def test_all_that_a_part_is_made_of_is_in_its_name(here, tmp_path, monkeypatch):
    labels = tmp_path / 'labels.jsonl'
    labels.write_text('one')
    config = knobs(vars(judge)) | {'kind': 'classifier', 'labels': str(labels)}

    def name(**changes):
        return recipe_path(config | changes)

    first = name()
    assert re.fullmatch(r'out/classifier_arithmetic-\w{8}\.pt', first)
    for knob, value in config.items():
        if knob not in ('dataset', 'labels'):
            other = value + 'x' if type(value) is str else value + 1
            is_free = knob in ('out', 'device', 'compile', 'eval_interval')
            assert (name(**{knob: other}) == first) == is_free, knob

    labels.write_text('two')                    # what a file that a knob names holds
    names = {first, name(), name(labels='')}
    code = inspect.getsource
    for part, other in (('norm', nn.init.normal_), ('attention', nn.init.zeros_),
                        ('Block', nn.Linear), ('GPT', nn.Module)):
        with monkeypatch.context() as changed:  # the network's code
            changed.setattr(model, part, other)
            names.add(name())
    with monkeypatch.context() as changed:
        changed.setattr(judge, 'Judge', nn.Module)
        names.add(name())
    with monkeypatch.context() as changed:      # a comment makes no difference
        changed.setattr(inspect, 'getsource', lambda part: '# of mine\n' + code(part))
        names.add(name())
    recipe = 'config/generator_arithmetic.py --max_iters=7'
    monkeypatch.setattr(model, 'find_generator', lambda config, corpus: recipe)
    names.add(name(labels=''))                  # the generator that a classifier then learns from
    text = types.SimpleNamespace(fingerprint='another', name='arithmetic')
    monkeypatch.setattr(model, 'Dataset', lambda dataset, prepare: text)
    names.add(name())
    assert len(names) == 10


def test_knobs_of_a_run_hold_where_the_recipe_sets_none(here):
    """The recipe of equations is a causal one and says nothing of the length of rows."""
    how = {'recipe': 'config/generator_equations.py', 'data': Dataset('arithmetic'),
           'mode': 'fill', 'block_size': 8, 'judge_checkpoint': 'no knob of model.py'}
    path, make = find_part('generator', '', **how)
    python, script, *words = shlex.split(make)
    assert script == 'model.py'
    config, _ = configure(vars(model) | {}, words, quiet=True)
    assert config['block_size'] == 8 and config['mode'] == 'causal'
    assert path == recipe_path(config)
    path, make = find_part('generator', 'here.pt', **how)
    assert path == 'here.pt' and '--out=here.pt' in make
