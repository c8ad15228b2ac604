"""Data: texts become rows and texts again; blanks, prompts and their random numbers against slow
loops; the corpora and their verifiers."""
import json
import zlib

import numpy as np
import pytest
import torch

from data import arithmetic, dataset, failure_labels, failures, prose, shakespeare, sums
from data.dataset import (BLANK, Dataset, Prompts, Tokenizer, blanks, hold_out, make_prompts,
                          make_tokenizer, prompts_of_text, read_texts, rng_for, texts_of)
from data.pairs import is_answer, read_pairs
from processes import refused

TOK = Tokenizer('char', 'ab')                   # a = 1, b = 2; 0 ends a text; 5 is padding


@pytest.fixture
def toy_data(monkeypatch):
    """toy_data(train, held out, ...) -> a Dataset of these texts."""
    def make(train, held_out, *sizes, chars='ab=', verify=None):
        monkeypatch.setattr(dataset, 'read_texts', lambda name: (train, held_out, verify))
        return Dataset('toy', Tokenizer('char', chars), *sizes)
    return make


def prompts_from(data, split='train', n=4, k=2, seed=0, step=0, causal=False, max_new_tokens=0,
                 fill_order='random', blank_kind='random', low=0.2, high=0.8, span=2):
    return data.prompts(split, n, k, seed, step, causal, max_new_tokens, fill_order, blank_kind,
                        low, high, span)


# ---- text as token ids ---------------------------------------------------------------------------


def test_characters_become_ids_and_characters_again():
    tok = Tokenizer('char', '\n\u00e9\U0001f600')
    assert tok.encode('\U0001f600\n') == [3, 1]
    assert tok.decode([3, 1, 2, tok.eos, tok.bos, tok.pad, tok.mask]) == (
        f'\U0001f600\n\u00e9\n{BLANK}')
    assert Tokenizer(**tok.vocabulary).vocabulary == tok.vocabulary
    with pytest.raises(AssertionError, match="'x'"):
        tok.encode('xy')


def test_pairs_are_rows_with_an_end_and_padding_and_long_ones_are_left_out(toy_data, capsys):
    train = [('a=', 'b'), ('ab=', 'bb'), ('aaaa=', 'a'), ('b=', '')]
    data = toy_data(train, [('a=', 'b'), ('bb=', 'bb'), ('b=', 'a')], 6)
    assert data.rows['train'].tolist() == [
        data.tok.encode(p + a) + [0] + [6] * (5 - len(p + a)) for p, a in train if len(p + a) < 6]
    assert data.answer_starts['train'].tolist() == [2, 3, 2] and data.block_size == 6
    assert "1 pairs of 'train', with over 6 tokens" in capsys.readouterr().out
    longest = toy_data(train, train)
    assert longest.block_size == 8 and len(longest.rows['val']) == 4    # 5 + the longest answer, 3
    assert toy_data(train, train, 0, 1).block_size == 6


def test_running_text_is_cut_into_all_its_windows(toy_data):
    data = toy_data(['ab', 'b'], ['aab'], 3)
    stream = data.tok.encode('ab') + [0] + data.tok.encode('b') + [0]
    assert data.rows['train'].tolist() == [stream[i:i + 3] for i in range(3)]
    assert toy_data(['ab' * 99], ['ab' * 99]).block_size == 64


def test_constant_is_the_share_of_the_commonest_answer(toy_data):
    train = [('a=', 'b'), ('b=', 'b'), ('ab=', 'a')]
    data = toy_data(train, [('aa=', 'b'), ('bb=', 'a'), ('ba=', 'b'), ('=', 'b')])
    assert data.constant_answer == 0.75
    assert toy_data([('a=', '')], [('b=', '')]).constant_answer == 0.0


def test_training_rows_are_random_and_a_held_out_row_comes_at_most_once(toy_data):
    rows = [(f'{"a" * i}=', 'b') for i in range(12)]
    data = toy_data(rows, rows)
    tokens, answers = data.batch('train', 500, rng_for(0, 'test'))
    assert len(tokens.unique(dim=0)) == 12
    assert all(row[at - 1] == 3 and row[at] == 2 for row, at in zip(tokens, answers))
    for n, expected in ((5, 5), (99, 12)):
        tokens, _ = data.batch('val', n, rng_for(0, 'test'))
        assert len(tokens) == len(tokens.unique(dim=0)) == expected


def test_a_tenth_of_the_prompts_is_held_out_and_equal_prompts_stay_together(capsys, tmp_path):
    pairs = [(f'p{i % 500}', str(i)) for i in range(2000)]
    train, held_out = hold_out(pairs)
    assert not {p for p, _ in train} & {p for p, _ in held_out}
    assert sorted(train + held_out) == sorted(pairs) and 120 < len(held_out) < 280
    assert all(zlib.crc32(p.encode()) % 10 == 0 for p, _ in held_out)


def test_texts_that_are_held_out_and_trained_on_are_told_and_left_out(monkeypatch, capsys):
    monkeypatch.setattr(arithmetic, 'texts', lambda: ([('1+1=', '2'), ('1+2=', '3')],
                                                      [('1+2=', '3')]))
    train, held_out, verify = read_texts.__wrapped__('arithmetic')
    assert (train, held_out) == ([('1+1=', '2')], [('1+2=', '3')])
    assert '1 held-out texts' in capsys.readouterr().out and verify is arithmetic.verify


def test_a_file_of_your_own_is_a_dataset(tmp_path, monkeypatch):
    lines = [json.dumps({'prompt': f'{i}=', 'answer': str(i % 2)}) for i in range(100)]
    (tmp_path / 'mine.jsonl').write_text('\ufeff' + '\n\n'.join(lines), 'utf-8')
    train, held_out, verify = read_texts(str(tmp_path / 'mine.jsonl'))
    assert sorted(train + held_out) == sorted((f'{i}=', str(i % 2)) for i in range(100))
    assert verify is is_answer and is_answer('7=', ' 1\n', '1') == 1.0 != is_answer('7=', '', '1')
    assert set(make_tokenizer('char', str(tmp_path / 'mine.jsonl')).ids) == set('0123456789=')
    (tmp_path / 'bare.jsonl').write_text('\n'.join(f'{{"prompt": "p{i}"}}' for i in range(99)))
    assert read_texts(str(tmp_path / 'bare.jsonl'))[2] is None

    (tmp_path / 'mine.txt').write_text('\n\n'.join(f'the {i} cats\nsat' for i in range(50)))
    train, held_out, verify = read_texts(str(tmp_path / 'mine.txt'))
    assert len(train + held_out) == 50 and verify(f'the c{BLANK}ts', 'the cots') == 0.0
    refused(['arithmetik', 'arithmetic'], read_texts, 'arithmetik')
    (tmp_path / 'short.txt').write_text('one')
    with pytest.raises(AssertionError, match='short.txt'):
        read_texts(str(tmp_path / 'short.txt'))
    (tmp_path / 'signs.txt').write_text('\n\n'.join(f'{i}{BLANK}' for i in range(50)))
    with pytest.raises(AssertionError, match='signs.txt'):
        make_tokenizer('char', str(tmp_path / 'signs.txt'))


@pytest.mark.parametrize('line', [
    '{"prompt": "a", "anwser": "b"}', '{"answer": "b"}', '{"prompt": 3}', '["a"]', '[' * 10 ** 5,
    '{"prompt": 3, "answer": 4}', '{"prompt": "\\ud800"}', 'nonsense'])
def test_a_line_that_is_no_pair_is_named(line, tmp_path):
    path = tmp_path / 'mine.jsonl'
    path.write_text('{"prompt": "a"}\n' + line)
    refused([f'{path}, line 2', 'expected'], read_pairs, str(path))


# ---- blanks and prompts --------------------------------------------------------------------------


@pytest.mark.parametrize('kind', ['random', 'span', 'suffix'])
def test_blanks_are_a_share_of_a_sequence_and_never_padding(kind):
    lengths = torch.randint(2, 20, (400,))
    tokens = torch.full((400, 20), TOK.pad)
    for row, n in zip(tokens, lengths):
        row[:n] = torch.randint(1, 3, (n,))
        row[n - 1] = TOK.eos
    mask = blanks(tokens, None, TOK, rng_for(0, 'test'), False, kind, 0.3, 0.5, 3)
    allowed = (tokens != TOK.pad) & ((tokens != TOK.eos) | torch.tensor(kind == 'suffix'))
    assert not (mask & ~allowed).any()
    counts = mask.sum(1) / allowed.sum(1)
    assert counts[lengths > 12].min() < 0.35 and counts[lengths > 12].max() > 0.45
    for n, blank, places in zip(mask.sum(1).tolist(), mask, allowed.sum(1).tolist()):
        assert max(1, round(0.3 * places - 0.5)) <= n <= max(1, round(0.5 * places + 0.5))
        if kind == 'suffix':
            last = int(blank.nonzero()[-1])
            assert blank[last - n + 1:last + 1].all()
    if kind == 'span':          # runs of 3, except at edges, and edges everywhere
        starts = (mask[:, 1:] & ~mask[:, :-1]).float().mean(0)[:10]
        assert starts.min() > 0.02
        assert (mask[:, 1:] & mask[:, :-1]).sum() > 0.4 * mask.sum()


def test_the_blanks_of_an_answer_include_its_end_only_if_it_is_generated():
    tokens = torch.tensor([[1, 2, 1, 0, TOK.pad], [1, 1, 2, 2, 0]])
    for causal, expected in ((False, [[0, 0, 1, 0, 0], [0, 1, 1, 1, 0]]),
                             (True, [[0, 0, 1, 1, 0], [0, 1, 1, 1, 1]])):
        mask = blanks(tokens, torch.tensor([2, 1]), TOK, None, causal, 'answer', 0, 1, 1)
        assert mask.int().tolist() == expected
    with pytest.raises(AssertionError, match='answer'):
        blanks(tokens, None, TOK, None, False, 'answer', 0, 1, 1)
    with pytest.raises(AssertionError, match="'random'"):
        blanks(tokens, None, TOK, None, True, 'random', 0, 1, 1)


@pytest.mark.parametrize('causal, kind', [(False, 'random'), (False, 'span'), (True, 'suffix')])
def test_prompts_depend_on_seed_purpose_split_and_step_and_nothing_else(causal, kind, toy_data):
    data = toy_data([('abab', ''), ('bbbaa', ''), ('a', '')], [('ab', '')] * 9, 7)

    def ask(**more):
        return prompts_from(data, **{'n': 12, 'seed': 3, 'step': 5, 'causal': causal,
                                     'blank_kind': kind} | more)

    first = ask()
    more = ask(k=9)
    for name in ('tokens', 'mask', 'order', 'original', 'uniforms'):
        assert torch.equal(getattr(first, name), getattr(ask(), name))
    for name in ('tokens', 'mask', 'order', 'original'):
        assert torch.equal(getattr(first, name), getattr(more, name))
    assert torch.equal(first.uniforms, more.uniforms[:, :2])
    for other in (ask(step=6), ask(seed=4)):
        assert not torch.equal(first.uniforms, other.uniforms)
        assert not torch.equal(first.tokens, other.tokens)
    assert not torch.equal(first.uniforms[:9], ask(split='val').uniforms[:9])
    assert first[3:5].mask.tolist() == first.mask[3:5].tolist() and len(first[3:5]) == 2


def test_uniforms_are_even_and_the_order_of_blanks_is_random_or_from_left_to_right():
    tokens = torch.ones(200, 6).long()
    prompts = make_prompts(tokens, tokens == 1, tokens, TOK, 50, 0, 'test')
    assert (prompts.uniforms.mean((0, 1)) - 0.5).abs().max() < 0.02
    ranks = prompts.order.argsort(1).double().mean(0)           # no position is always early
    assert (ranks - 2.5).abs().max() < 0.5
    ordered = make_prompts(tokens, tokens == 1, tokens, TOK, 50, 0, 'test', fill_order='left')
    assert (ordered.order.argsort(1) == torch.arange(6)).all()


def test_a_completion_may_be_longer_than_the_original_up_to_max_new_tokens(toy_data):
    data = toy_data([('ab=', 'b')], [('a=', 'b')], 0, 6)
    for longest, n in ((0, 6), (3, 3)):
        prompts = prompts_from(data, n=1, causal=True, blank_kind='answer', max_new_tokens=longest)
        assert prompts.mask[0].tolist() == [3 <= t < 3 + n for t in range(9)]
        assert (prompts.tokens[0, 3 + n:] == data.tok.pad).all()
        strings = texts_of(prompts, prompts.tokens.repeat(2, 1), True)
        assert strings[0] == ['ab=', 'ab='] and strings[2] == ['b', 'b']


def test_a_typed_prompt_may_have_blanks_and_in_causal_mode_underscores():
    tok = Tokenizer('char', 'ab_')

    def ask(text, causal=False, **more):
        return prompts_of_text(text, tok, 2, 1, causal, 6, **more)

    prompts = ask(f'a_{BLANK}b')
    assert prompts.mask.int().tolist() == [[0, 1, 1, 0, 0, 0]]
    assert texts_of(prompts, prompts.tokens.repeat(2, 1), False)[0] == [f'a{BLANK}{BLANK}b'] * 2
    assert ask('a_', True).tokens[0, :2].tolist() == tok.encode('a_')
    assert ask('a_', True).mask.int().tolist() == [[0, 0, 1, 1, 1, 1]]
    assert ask('a_', True, max_new_tokens=2).mask.int().tolist() == [[0, 0, 1, 1, 0, 0]]
    for bad in ('', 'ab', 'x', '_______'):
        with pytest.raises(AssertionError, match=repr(bad)):
            ask(bad)


def test_an_end_that_was_blank_is_shown_and_an_end_that_was_given_is_not():
    tokens = torch.tensor([[1, 2, 0, TOK.pad], [1, 2, 1, 0]])
    mask = torch.tensor([[0, 1, 0, 0], [0, 0, 1, 1]]).bool()
    prompts = Prompts(tokens, mask, tokens, torch.zeros(2, 1, 4), tokens, TOK)
    shown, completions, originals = texts_of(prompts, tokens, False)
    assert shown == [f'a{BLANK}', f'ab{BLANK}{BLANK}']
    assert completions == originals == ['ab', 'aba\n']


def test_in_causal_mode_completion_and_original_stop_at_the_first_end_of_a_text():
    tokens = torch.tensor([[1, 2, 0, 1, 0, 2]])
    mask = torch.tensor([[0, 1, 1, 1, 1, 1]]).bool()
    prompts = Prompts(tokens, mask, tokens, torch.zeros(1, 1, 6), tokens, TOK)
    completed = torch.tensor([[1, 1, 1, 0, TOK.pad, TOK.pad]])
    assert texts_of(prompts, completed, True) == [['a'], ['aa'], ['b']]


# ---- corpora -------------------------------------------------------------------------------------


def test_arithmetic_is_verified_by_counting_on():
    for a, b in [(0, 0), (7, 95), (99, 99)]:
        for total in range(200):
            assert arithmetic.verify(f'{a:02}+{b:02}=', f'{total:03}') == (a + b == total)
    assert arithmetic.verify(f'1{BLANK}+30=047', '17+30=047') == 1.0
    for wrong in ('17+30=47', '17+30=047 ', '+7+30=047', '17-30=047', ''):
        assert arithmetic.verify(f'1{BLANK}+30=047', wrong) == 0.0
    train, held_out = arithmetic.texts()
    assert len(set(train)) == 9000 and len(set(train + held_out)) == 10_000


def test_sums_follow_a_solved_one_and_are_never_asked_in_training():
    train, held_out = sums.texts()
    questions = [{prompt.split('\n')[1] for prompt, _ in pairs} for pairs in (train, held_out)]
    assert len(questions[0]) == 7290 and len(questions[1]) == 810
    assert not questions[0] & questions[1]
    for prompt, answer in held_out[:50]:
        solved, question = prompt.split('\n')
        assert eval(solved.replace('=', '==')) and eval(question[:-1]) == int(answer)
    assert sums.verify('', ' 77, or 78', ' 77') == 1.0
    assert sums.verify('', ' 78, or 77', ' 77') == sums.verify('', ' none', ' 77') == 0.0


def test_words_touched_by_a_blank_are_looked_up():
    verify = prose.checker(['the cat sat'])
    assert verify(f'th{BLANK} c{BLANK}t sat', 'the cht sat') == 0.5
    assert verify(f'th{BLANK} c{BLANK}t sat', 'the cat sat') == 1.0
    assert verify('the c', 'at sa') == 1.0 and verify('the c', 'at ta') == 0.5  # cut by the edge
    assert verify(f'the{BLANK}{BLANK}cat', 'the  cat') == pytest.approx(2 / 3)
    assert verify(f'the{BLANK}cat', 'the hat cat') == pytest.approx(2 / 3)  # one token


def test_failures_invite_a_completion_about_failure_and_labels_know_it(monkeypatch):
    texts = ["Return the number of words in a text, or raise an error if it is empty and has no "
             "words. Nothing happens to a text that is longer than this, whatever its length is."]
    monkeypatch.setattr('data.docstrings.texts', lambda: (texts, texts))
    train, _ = failures.texts()
    assert train and all(answer == '' and len(prompt) == 32 for prompt, answer in train)
    for prompt, _ in train:
        assert not failures.fails('', prompt)
        at = texts[0].index(prompt)
        assert failures.fails(prompt, texts[0][at + 32:at + 64])
    assert failures.fails('an er', 'ror') and not failures.fails('an error', ' was')
    labels, _ = failure_labels.texts()
    assert labels == [(texts[0][:64], '0'), (texts[0][64:128], '1')]


def test_shakespeare_is_downloaded_once(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def download(url, path):
        (tmp_path / path).write_text('\n\n'.join(f'Speaker {i}:\nso' for i in range(20)))

    monkeypatch.setattr('urllib.request.urlretrieve', download)
    train, held_out = shakespeare.texts()
    monkeypatch.delattr('urllib.request.urlretrieve')
    assert shakespeare.texts() == (train, held_out) and (len(train), len(held_out)) == (18, 2)
    assert [path.name for path in (tmp_path / 'out').iterdir()] == ['shakespeare.txt']
