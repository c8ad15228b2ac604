"""Data: what a text says is what is stored; rows end where they are said to end; blanks, prompts
and their random numbers against slow loops; and what the user's files and functions may be."""
import functools
import itertools
import json
import os
import types

import numpy as np
import pytest
import torch

import data.dataset as dataset
from data.arithmetic import prepare as arithmetic
from data.dataset import (BLANK, Dataset, Prompts, Tokenizer, blanks, call_user, draw_prompts,
                          draws, print_groups, prompts_of_texts, texts, write_corpus)
from data.docstrings import prepare as docstrings
from data.pairs import prepare as pairs
from processes import fails, refused, run

VERIFY = "def verify(prompt, completion, original): return float(completion == original)\n"


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """corpus(unit, train, val, ...) -> the Dataset of a new data/mine, with VERIFY. 'rows': pairs
    without answers."""
    monkeypatch.setattr(dataset, 'HERE', f'{tmp_path}/data')
    monkeypatch.setattr('common.HOME', str(tmp_path))

    def make(unit, train, val, name='mine', **how):
        folder = tmp_path / 'data' / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'prepare.py').write_text(VERIFY)
        if unit == 'rows':
            unit = 'pairs'
            train, val = [[(text, '') for text in split] for split in (train, val)]
        write_corpus(name, unit, train, val, **how)
        return Dataset(name)
    make.folder = tmp_path / 'data' / 'mine'
    return make


# ---- corpora -------------------------------------------------------------------------------------


def test_a_text_is_stored_as_it_is_and_its_rows_end_where_they_end(corpus):
    train = [('a_1=', 'x\ny\n'), ('a-1=', ''), ('\u00e9\U0001f600', '_\n')]
    data = corpus('pairs', train, train)
    rows = [data.ids['train'][a:b] for a, b in itertools.pairwise(data.edges['train'])]
    assert [data.tok.decode(row[:-1]) for row in rows] == [p + a for p, a in train]
    assert all(row[-1] == data.tok.eos for row in rows)
    assert data.answers['train'].tolist() == [4, 4, 2]
    assert data.tok.eos not in data.tok.encode('\n')

    # Written from left to right, a genuine last line feed stays, and just the closing end goes.
    tokens = torch.full((1, 9), data.tok.pad)
    tokens[0, :9] = torch.tensor(rows[0].tolist())
    mask = torch.arange(9)[None] >= 4
    prompts = Prompts(tokens, mask, None, data.tok.eos)
    assert texts(data.tok, prompts, tokens, True) == [['a_1='], ['x\ny\n'], ['x\ny\n']]


@pytest.mark.parametrize('n, kind', [(200, 'uint8'), (300, 'uint16')])
def test_ids_take_the_smallest_type_that_holds_them(n, kind, corpus):
    data = corpus('rows', [chr(0x4e00 + i) for i in range(n)], ['\u4e00'])
    assert data.ids['train'].dtype == kind and data.tok.base == n + 1
    assert os.path.getsize(corpus.folder / 'train.bin') == 2 * n * np.dtype(kind).itemsize
    assert data.tok.decode(data.ids['train'][:-1:2]) == ''.join(chr(0x4e00 + i) for i in range(n))


def test_the_sign_of_a_blank_may_not_be_in_a_corpus(corpus):
    refused([BLANK], corpus, 'rows', [f'a{BLANK}b'], ['a'])


def test_a_corpus_takes_the_characters_of_another_or_is_refused(corpus):
    first = corpus('windows', ['abc_'] * 3, ['abc'], name='first')
    data = corpus('rows', ['ab', 'c'], ['_'], tokenizer='first')
    assert data.tok.vocabulary == first.tok.vocabulary
    assert data.fingerprint != first.fingerprint
    refused(["['x', 'z']", 'first'], corpus, 'rows', ['axz'], ['a'], tokenizer='first')


@pytest.mark.parametrize('file', ['train.bin', 'val.bin', 'meta.json'])
def test_a_damaged_or_missing_file_of_a_corpus_is_noticed(file, corpus):
    corpus('pairs', [('ab', 'c')] * 5, [('b', 'a')])
    path = corpus.folder / file
    whole = path.read_bytes()
    for i in range(0, len(whole), 1 + len(whole) // 20):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1:])
        refused([file, 'prepare.py'], Dataset, 'mine')
    path.write_bytes(whole[:-1])
    refused([file], Dataset, 'mine')
    path.unlink()
    refused([file], Dataset, 'mine')


def test_a_name_finds_its_corpus_or_how_to_make_it_is_told(corpus):
    data = corpus('rows', ['ab'], ['b'])
    assert Dataset('mine/').name == data.name
    refused(['mien/meta.json', '--name=mien'], Dataset, 'mien')


def test_the_digest_of_verify_knows_the_modules_that_it_imports(corpus, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / 'check_it.py').write_text('def right(text): return True\n')
    corpus('rows', ['ab'], ['b'])
    prepare = corpus.folder / 'prepare.py'
    prepare.write_text('import check_it\ndef verify(p, c): return check_it.right(c)\n')
    first = Dataset('mine').code
    assert Dataset('mine').code == first
    (tmp_path / 'check_it.py').write_text('def right(text): return False\n')
    assert Dataset('mine').code != first


def test_rows_are_drawn_cut_and_padded_as_by_a_slow_loop(corpus):
    """Pairs that are too long are skipped, windows begin anywhere."""
    rows = [('a' * (i + 1), 'b' * (i % 3 + 1)) for i in range(6)]
    joined = [p + a for p, a in rows]
    for unit, train in (('pairs', rows), ('windows', joined)):
        data = corpus(unit, train, train)
        tokens, answer = data.batch('train', 300, 5, draws(0, 'test'))
        found = {data.tok.decode(row.tolist()) for row in tokens}
        whole = [text + '\n' for text in joined]
        if unit == 'pairs':
            assert found == {text for text in whole if len(text) <= 5}
            for row, at in zip(tokens, answer):
                assert 'b' not in data.tok.decode(row[:at]) and row[at] == data.tok.encode('b')[0]
        else:
            text = ''.join(whole)
            assert found == {text[i:i + 5] for i in range(len(text) - 4)}


def test_what_a_row_cannot_hold_is_told_of_both_splits(corpus, capsys):
    data = corpus('pairs', [('a', 'b'), ('a', 'bbbb')], [('b', 'a'), ('bbbbbb', 'a'), ('b', 'b')])
    capsys.readouterr()
    data.check_rows(4, 'causal', 'answer')
    train, val = capsys.readouterr().out.splitlines()
    assert 'train' in train and '50.0%' in train and 'val' in val and '33.3%' in val
    refused(['mine', '3'], data.check_rows, 2)
    bare = corpus('pairs', [('a', ''), ('b', 'a')], [('a', 'b')])
    bare.check_rows(4, 'causal', 'answer')
    refused(['without an answer'], bare.check_rows, 4, 'fill', 'answer')
    refused(['windows'], corpus('windows', ['abcab'], ['abc']).check_rows, 2, 'fill', 'answer')


# ---- blanks and prompts --------------------------------------------------------------------------


@pytest.mark.parametrize('kind', ['random', 'span', 'suffix'])
def test_blanks_are_a_share_of_a_row_and_never_padding(kind):
    tok = Tokenizer('char', 'ab')
    lengths = torch.randint(1, 20, (400,))
    tokens = torch.full((400, 20), tok.pad)
    for row, n in zip(tokens, lengths):
        row[:n] = torch.randint(1, 3, (n,))
        row[n - 1] = tok.eos
    mask = blanks(tokens, tok, draws(0, 'test'), kind, 0.3, 0.5, 3)
    may = (tokens != tok.pad) & ((tokens != tok.eos) | torch.tensor(kind == 'suffix'))
    assert not (mask & ~may).any()
    for n, hidden, places in zip(mask.sum(1).tolist(), mask, may.sum(1).tolist()):
        assert (round(0.3 * places - 0.5) <= n <= max(1, round(0.5 * places + 0.5))
                and n >= (places > 0))
        if kind == 'suffix':
            last = int(hidden.nonzero()[-1])
            assert hidden[last - n + 1:last + 1].all()
    if kind == 'span':          # runs of 3 but at edges, and edges everywhere
        starts = (mask[:, 1:] & ~mask[:, :-1]).float().mean(0)[:10]
        assert starts.min() > 0.02


def test_an_answer_is_blank_from_where_it_begins_with_its_end_if_it_is_written():
    tok = Tokenizer('char', 'ab')
    tokens = torch.tensor([[1, 2, 1, 0, tok.pad], [1, 1, 2, 2, 0]])
    for causal, expected in ((False, [[0, 0, 1, 0, 0], [0, 1, 1, 1, 0]]),
                             (True, [[0, 0, 1, 1, 0], [0, 1, 1, 1, 1]])):
        mask = blanks(tokens, tok, None, 'answer', answer=torch.tensor([2, 1]), causal=causal)
        assert mask.int().tolist() == expected


@pytest.mark.parametrize('mode, kind', [('fill', 'random'), ('fill', 'span'), ('causal', 'suffix')])
def test_prompts_depend_on_seed_purpose_and_step_alone(mode, kind, corpus):
    data = corpus('rows', ['abab', 'bbbaa', 'a'], ['ab'])
    how = {'block_size': 7, 'mode': mode, 'blank_kind': kind, 'blank_low': 0.2, 'blank_high': 0.8,
           'blank_span': 2}
    one = draw_prompts(data, 'train', 12, 4, draws(3, 'p', 5), **how)
    same = draw_prompts(data, 'train', 12, 4, draws(3, 'p', 5), **how)
    more = draw_prompts(data, 'train', 12, 9, draws(3, 'p', 5), **how)
    next_one = draw_prompts(data, 'train', 12, 4, draws(3, 'p', 6), **how)
    for field in ('tokens', 'mask', 'order', 'original'):
        assert torch.equal(getattr(one, field), getattr(same, field))
        assert torch.equal(getattr(one, field), getattr(more, field))
    assert torch.equal(one.uniforms, same.uniforms)
    assert not torch.equal(one.uniforms, next_one.uniforms)
    assert one[3:5].mask.tolist() == one.split(5)[0][3:].mask.tolist()
    order = one.order.argsort(1).double().mean(0)               # no position is always early
    assert (order - 3).abs().max() < 2


def test_a_completion_may_be_longer_than_the_original_up_to_max_new_tokens(corpus):
    data = corpus('pairs', [('ab', 'b')], [('a', 'b')])
    how = {'block_size': 8, 'mode': 'causal', 'blank_kind': 'answer', 'blank_low': 0.0,
           'blank_high': 1.0, 'blank_span': 1}
    for longest, n in ((0, 6), (3, 3)):
        prompts = draw_prompts(data, 'train', 1, 2, draws(0, 'p'), max_new_tokens=longest, **how)
        assert prompts.mask[0].tolist() == [2 <= t < 2 + n for t in range(8)]
        assert (prompts.tokens[0, 2 + n:] == data.tok.pad).all()
        strings = texts(data.tok, prompts, prompts.tokens.repeat(2, 1), True)
        assert strings[0] == ['ab', 'ab'] and strings[2] == ['b', 'b']


def test_what_people_type_may_have_blanks_of_both_signs(corpus):
    tok = corpus('rows', ['a_b'], ['a']).tok
    ask = functools.partial(prompts_of_texts, tok=tok, unit='rows', k=2, rng=draws(0, 't'),
                            block_size=6)
    found = ask(['a_b', f'{BLANK}{BLANK}a'], mode='fill')
    assert found.mask.int().tolist() == [[0, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]]
    assert texts(tok, found, found.tokens, False)[0] == [f'a{BLANK}b', f'{BLANK}{BLANK}a']
    assert ask(['ab'], mode='causal').mask.int().tolist() == [[0, 0, 1, 1, 1, 1]]
    for bad, name in (('', ''), ('ab', 'ab'), ('a_x', 'x'), ('_______', '_______')):
        with pytest.raises(ValueError, match=repr(name)):
            ask([bad], mode='fill')


def test_an_end_of_row_that_was_blank_is_shown_and_one_that_was_given_is_not():
    tok = Tokenizer('char', 'ab')
    tokens = torch.tensor([[1, 2, 0, tok.pad], [1, 2, 1, 0]])
    mask = torch.tensor([[0, 1, 0, 0], [0, 0, 1, 1]]).bool()
    prompts, completions, _ = texts(tok, Prompts(tokens, mask, None, tok.eos), tokens, False)
    assert prompts == [f'a{BLANK}', f'ab{BLANK}{BLANK}'] and completions == ['ab', 'aba\n']


# ---- the user's functions and files --------------------------------------------------------------


COLUMNS = (['p', 'q'], ['aa', 'b'], ['x', 'y'])


@pytest.mark.parametrize('function, expected', [
    (lambda prompts, completions: [len(c) for c in completions], [2.0, 1.0]),
    (lambda prompts, completions, originals: np.array([len(o) for o in originals]), [1.0, 1.0]),
    (lambda prompts, completions, **columns: torch.tensor([True, False]), [1.0, 0.0]),
    (lambda prompts, completions: completions.sort() or (3, 4), [3.0, 4.0])])
def test_a_function_of_the_users_gets_what_it_asks_for(function, expected):
    assert call_user('mine', function, *COLUMNS).tolist() == expected
    assert COLUMNS[1] == ['aa', 'b']                # one that sorts its list spoils nothing


@pytest.mark.parametrize('function, names', [
    (lambda prompts: [1, 2], ['2 were given']), (lambda p, c: [1], ['[1]', '(2,)']),
    (lambda p, c: {1, 2}, ['set']), (lambda p, c: None, ['None']),
    (lambda p, c: [1, 'x'], ['str']), (lambda p, c: [1, None], ['NoneType', "'q'"]),
    (lambda p, c: ['1', '2'], ['str']), (lambda p, c: [1, 1 / 0], ['ZeroDivisionError'])])
def test_one_that_fails_is_named_with_what_came_of_it(function, names):
    refused(["reward 'mine'", *names], call_user, "reward 'mine'", function, *COLUMNS)


def test_arithmetic_is_verified_by_counting_on():
    for a, b in [(0, 0), (7, 95), (99, 99)]:
        for total in range(200):
            assert arithmetic.verify(f'{a:02}+{b:02}=', f'{total:03}') == (a + b == total)
    assert arithmetic.verify(f'1{BLANK}+30=047', '17+30=047') == 1.0
    for wrong in ('17+30=47', '17+30=047 ', '+7+30=047', '17-30=047', ''):
        assert arithmetic.verify(f'1{BLANK}+30=047', wrong) == 0.0


def test_words_touched_by_a_blank_are_looked_up(monkeypatch):
    known = types.SimpleNamespace(tok=Tokenizer('char', ' acehst'), ids={})
    known.ids['train'] = known.tok.encode('the cat sat')
    docstrings.words_of.cache_clear()
    monkeypatch.setattr(docstrings, 'Dataset', lambda name: known)
    ask = functools.partial(docstrings.known_words, name='x')
    assert ask(f'th{BLANK} c{BLANK}t sat', 'the cht sat') == 0.5
    assert ask(f'th{BLANK} c{BLANK}t sat', 'the cat sat') == 1.0
    assert ask('the c', 'at sa') == 1.0 and ask('the c', 'at ta') == 0.5       # cut by the edge
    assert ask(f'the{BLANK}{BLANK}cat', 'the  cat') == pytest.approx(2 / 3)
    docstrings.words_of.cache_clear()


@pytest.mark.parametrize('line, name', [
    ('{"prompt": "a", "anwser": "b"}', 'anwser'), ('{"answer": "b"}', 'prompt'),
    ('{"prompt": 3}', 'int'), ('{"prompt": 3, "answer": 4}', 'int'), ('["a"]', 'list'),
    ('[' * 10 ** 5, 'line 2'), ('{"prompt": "\\ud800"}', 'line 2'),
    ('{"prompt": ""}', 'empty'), ('nonsense', 'line 2')])
def test_a_bad_line_of_pairs_is_named(line, name, tmp_path):
    path = tmp_path / 'mine.jsonl'
    path.write_text('{"prompt": "a"}\n' + line)
    refused([f'{path}, line 2', name], pairs.read_pairs, str(path))


def test_a_tenth_of_the_prompts_is_held_out_with_all_their_answers(monkeypatch):
    items = [(f'p{i % 50}', str(i)) for i in range(200)]
    train, val = pairs.hold_out(items)
    assert not {p for p, _ in train} & {p for p, _ in val}
    assert len({p for p, _ in val}) == 5 and sorted(train + val) == sorted(items)
    monkeypatch.setattr(pairs, 'input', 'mine.jsonl')
    refused(['9 different prompts', 'mine.jsonl'], pairs.hold_out, items[:9])


def test_several_tasks_stand_side_by_side_and_none_is_replaced_unasked(repository, tmp_path):
    lines = [json.dumps({'prompt': f'{i}=', 'answer': str(i % 2)}) for i in range(40)]
    path = tmp_path / 'parity.jsonl'
    path.write_text('\n'.join(lines))
    code, text = run(repository, 'data/pairs/prepare.py', str(path), '--name=parity')
    assert code == 0 and '--dataset=parity --block_size=5' in text and '0 have no answer' in text
    meta = f'{repository}/data/parity/meta.json'
    before = open(meta).read()
    path.write_text('\n'.join(lines[:30]))
    fails(['parity'], repository, 'data/pairs/prepare.py', str(path), '--name=parity')
    assert open(meta).read() == before
    code, _ = run(repository, 'data/pairs/prepare.py', str(path), '--name=parity',
                  '--replace=True')
    assert code == 0 and open(meta).read() != before


def test_a_group_shows_its_best_and_its_worst(capsys):
    tok = Tokenizer('char', 'ab')
    rows = torch.tensor([[1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2], [1, 1, 1]])
    score = -rows.sum(1).float()
    prompts = Prompts(rows[:1], torch.tensor([[False, True, True]]), None, tok.eos)
    samples = print_groups(tok, prompts, rows, True, 'here', {'score': score[None]}, most=3)
    assert samples[4] == {'prompt': 'a', 'completion': 'aa', 'score': -3}
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ['here', 'score', f'a{BLANK}']
    assert [line.split()[-1] for line in lines] == ['aaa', 'aab', 'between)', 'abb']
    assert lines[0].split()[:3] == ['2', 'x', '-3.000'] and '1 between' in lines[2]
