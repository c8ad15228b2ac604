"""Data: texts become rows and texts again; blanks, prompts and their random numbers; the corpora
and their verifiers."""
import json

import pytest
import torch

from data import arithmetic, dataset, failure_labels, failures, prose, sums
from data.dataset import (BLANK, Dataset, Prompts, Tokenizer, blanks, hold_out, make_tokenizer,
                          prompts_of_text, read_texts, rng_for, texts_of)
from data.pairs import is_answer, read_pairs
from processes import refused, write

TOK = Tokenizer('char', 'ab=')


def ids(*rows):
    """Return ids of TOK, from a sign for each. A dot is id 0, which ends a text; - is padding."""
    return torch.tensor([['.ab=?^-'.index(sign) for sign in row] for row in rows])


@pytest.fixture
def toy_data(monkeypatch):
    """toy_data(train, held out, ...) -> a Dataset of these texts."""
    def make(train, held_out, *sizes):
        monkeypatch.setattr(dataset, 'read_texts', lambda name: (train, held_out, None))
        return Dataset('toy', TOK, *sizes)
    return make


def prompts_from(data, split='train', n=12, k=2, seed=3, step=5, causal=False, max_new_tokens=0,
                 fill_order='random', kind='random'):
    return data.prompts(split, n, k, seed, step, causal, max_new_tokens, fill_order, kind, 0.2, 0.8,
                        2)


# ---- text as token ids ---------------------------------------------------------------------------


def test_characters_become_ids_and_characters_again():
    tok = Tokenizer('char', '\n\u00e9\U0001f600')
    assert tok.encode('\U0001f600\n') == [3, 1]
    assert tok.decode([3, 2, tok.eos, tok.bos, tok.pad, tok.mask]) == f'\U0001f600\u00e9\n{BLANK}'


def test_pairs_are_rows_with_an_end_and_padding_and_long_ones_are_refused(toy_data):
    train = [('a=', 'b'), ('ab=', 'bb'), ('b=', '')]
    data = toy_data(train, train, 6)
    assert data.rows['train'].equal(ids('a=b.--', 'ab=bb.', 'b=.---'))
    assert data.answer_starts['val'].tolist() == [2, 3, 2]
    assert toy_data(train, train, 0, 2).block_size == 6         # 3 + the longest answer and its end
    assert toy_data(train, train, 0, 4).block_size == 7
    with pytest.raises(AssertionError, match='a pair has 6 tokens; expected 5'):
        toy_data(train, train, 5)


def test_running_text_is_cut_into_all_its_windows(toy_data):
    data = toy_data(['ab', 'b'], ['aab'], 3)
    assert data.rows['train'].equal(ids('ab.', 'b.b', '.b.'))
    assert data.answer_starts['train'].tolist() == [3, 3, 3]        # there are no answers


def test_constant_is_the_share_of_the_commonest_answer(toy_data):
    assert toy_data(list(zip('aab', 'bba')), list(zip('aabb', 'baaa'))).constant_answer == 0.25


def test_training_rows_are_random_and_a_held_out_row_comes_at_most_once(toy_data):
    rows = [('a' * i, 'b') for i in range(12)]
    data = toy_data(rows, rows)
    for split, n, size, distinct in (('train', 500, 500, 12), ('val', 5, 5, 5),
                                     ('val', 99, 12, 12)):
        tokens, answers = data.batch(split, n, rng_for(0, 'test'))
        assert (len(tokens), len(tokens.unique(dim=0))) == (size, distinct)
        assert (tokens.gather(1, answers[:, None]) == 2).all()      # each b


def test_a_tenth_of_the_prompts_is_held_out_and_equal_prompts_stay_together():
    pairs = [(f'p{i % 500}', str(i)) for i in range(2000)]
    train, held_out = hold_out(pairs)
    assert dict(train).keys().isdisjoint(dict(held_out))
    assert sorted(train + held_out) == sorted(pairs) and 120 < len(held_out) < 280


def test_texts_that_are_held_out_and_trained_on_are_told_and_left_out(monkeypatch, capsys):
    monkeypatch.setattr(arithmetic, 'texts', lambda: (['1+1=2', '1+2=3'], ['1+2=3']))
    assert read_texts.__wrapped__('arithmetic') == (['1+1=2'], ['1+2=3'], arithmetic.verify)
    assert '1 held-out' in capsys.readouterr().out


def test_a_file_of_your_own_is_a_dataset():
    lines = [json.dumps({'prompt': f'{i}=', 'answer': str(i % 2)}) for i in range(100)]
    pairs = write('mine.jsonl', '\ufeff' + '\n\n'.join(lines))
    train, held_out, verify = read_texts(pairs)
    assert ('7=', '1') in train + held_out
    assert verify is is_answer and is_answer('7=', ' 1\n', '1') == 1.0 != is_answer('7=', '', '1')
    assert make_tokenizer('char', pairs).vocabulary['chars'] == '0123456789='
    bare = write('bare.jsonl', '\n'.join(f'{{"prompt": "p{i}"}}' for i in range(99)))
    assert read_texts(bare)[2] is None

    cats = '\n\n'.join(f'the {i} cats\nsat' for i in range(50))
    train, held_out, verify = read_texts(write('mine.txt', cats))
    assert len(train + held_out) == 50 and verify(f'the c{BLANK}ts', 'the cots') == 0.0
    for name, text in (('short.txt', 'one'), ('signs.txt', cats.replace('s', BLANK))):
        with pytest.raises(AssertionError, match=name):
            make_tokenizer('char', write(name, text))


@pytest.mark.parametrize('line', [
    '{"prompt": "a", "anwser": "b"}', '{"answer": "b"}', '{"prompt": 3}', '["a"]', '[' * 10 ** 5,
    '{"prompt": 3, "answer": 4}', '{"prompt": "\\ud800"}', 'nonsense'])
def test_a_line_that_is_no_pair_is_named(line):
    refused('mine.jsonl, line 2', read_pairs, write('mine.jsonl', '{"prompt": "a"}\n' + line))


# ---- blanks and prompts --------------------------------------------------------------------------


@pytest.mark.parametrize('kind, span', [('random', 1), ('random', 3), ('suffix', 3)])
def test_blanks_are_a_share_of_a_sequence_and_never_padding(kind, span):
    lengths = torch.randint(2, 20, (400, 1))
    at = torch.arange(20)
    tokens = ids('a' * 20).masked_fill(at == lengths - 1, TOK.eos).masked_fill(at >= lengths, 6)
    mask = blanks(tokens, None, TOK, rng_for(0, 'test'), False, kind, 0.3, 0.5, span)
    places = lengths - int(kind != 'suffix')       # the end of a text is given, or part of a suffix
    assert not (mask & (at >= places)).any()
    n = mask.sum(1, keepdim=True)
    assert (n >= (0.3 * places - 0.5).clamp(min=1)).all()
    assert (n <= (0.5 * places + 0.5).clamp(min=1)).all()
    share = (n / places)[lengths > 12]
    assert share.min() < 0.35 and share.max() > 0.45
    if kind == 'suffix':
        assert mask.equal((at >= lengths - n) & (at < lengths))
    elif span == 3:             # runs of 3, except at edges, and edges everywhere
        starts = (mask[:, 1:] & ~mask[:, :-1]).float().mean(0)[:10]
        assert starts.min() > 0.02
        assert (mask[:, 1:] & mask[:, :-1]).sum() > 0.4 * mask.sum()


def test_the_blanks_of_an_answer_include_its_end_only_if_it_is_generated():
    tokens = ids('aba.-', 'aabb.')
    for causal, expected in ((False, ids('..a..', '.aaa.')), (True, ids('..aa.', '.aaaa'))):
        mask = blanks(tokens, torch.tensor([2, 1]), TOK, None, causal, 'answer', 0, 1, 1)
        assert mask.equal(expected > 0)
    with pytest.raises(AssertionError, match='no answer'):
        blanks(ids('aba.-', 'aabb.'), torch.tensor([3, 1]), TOK, None, False, 'answer', 0, 1, 1)


@pytest.mark.parametrize('causal, kind', [(False, 'random'), (True, 'suffix')])
def test_prompts_depend_on_seed_split_and_step_and_nothing_else(causal, kind, toy_data):
    data = toy_data([('abab', ''), ('bbbaa', ''), ('a', '')], [('ab', '')] * 12, 7)
    first, more, *others = [
        prompts_from(data, causal=causal, kind=kind, **knobs)
        for knobs in ({}, {'k': 9}, {'step': 6}, {'seed': 4}, {'split': 'val'})]
    for name in ('tokens', 'mask', 'order', 'original'):
        assert getattr(first, name).equal(getattr(more, name))
    assert first.uniforms.equal(more.uniforms[:, :2])
    for other in others:
        assert not first.uniforms.equal(other.uniforms) and not first.tokens.equal(other.tokens)


def test_the_order_of_blanks_is_random_or_from_left_to_right(toy_data):
    data = toy_data([('ababa', '')], [('ababa', '')])
    ranks, from_left = [prompts_from(data, n=200, fill_order=order).order.argsort(1)
                        for order in ('random', 'left')]
    assert (ranks.double().mean(0) - 2.5).abs().max() < 0.5     # no position is always early
    assert (from_left == torch.arange(6)).all()


def test_a_completion_may_be_longer_than_the_original_up_to_max_new_tokens(toy_data):
    data = toy_data([('ab=', 'b')], [('a=', 'b')], 0, 6)
    for longest, mask, tokens in ((0, '...aaaaaa', 'ab=b.----'), (1, '...a.....', 'ab=b-----')):
        prompts = prompts_from(data, n=1, causal=True, kind='answer', max_new_tokens=longest)
        assert prompts.mask.equal(ids(mask) > 0) and prompts.tokens.equal(ids(tokens))


@pytest.mark.parametrize('text, causal, max_new_tokens, mask, shown', [
    (f'a_{BLANK}b', False, 0, '.aa...', f'a{BLANK}{BLANK}b'),
    ('a_', True, 0, '..aaaa', 'a_'), ('a_', True, 2, '..aa..', 'a_')])
def test_a_typed_prompt_may_have_blanks_and_in_causal_mode_underscores(
        text, causal, max_new_tokens, mask, shown):
    blank = torch.zeros(3, 6).long()
    others = Prompts(blank, blank, blank, torch.rand(3, 2, 6), blank, Tokenizer('char', 'ab_'))
    prompts = prompts_of_text(text, others, causal, max_new_tokens)
    assert prompts.uniforms.equal(others.uniforms[:1])
    assert prompts.mask.equal(ids(mask) > 0)
    assert texts_of(prompts, prompts.tokens.repeat(2, 1), causal)[0] == [shown, shown]
    for bad in ('', 'ab', 'x', '_______'):
        with pytest.raises(AssertionError, match=repr(bad)):
            prompts_of_text(bad, others, False)


@pytest.mark.parametrize('causal, tokens, mask, sequence, texts', [
    (False, 'ab.-', '.a..', 'aa.-', [f'a{BLANK}', 'aa', 'ab']),         # the end is given
    (False, 'aba.', '..aa', 'abb.', [f'ab{BLANK}{BLANK}', 'abb\n', 'aba\n']),   # it was blank
    (True, 'ab.a.b', '.aaaaa', 'aaa.--', ['a', 'aa', 'b'])])
def test_prompt_completion_and_original_end_where_a_text_ends(
        causal, tokens, mask, sequence, texts):
    """In fill mode an end that was blank is shown. In causal mode the first end ends a text."""
    tokens = ids(tokens)
    prompts = Prompts(tokens, ids(mask) > 0, tokens, tokens[:, None], tokens, TOK)
    assert texts_of(prompts, ids(sequence), causal) == [[text] for text in texts]


# ---- corpora -------------------------------------------------------------------------------------


def test_arithmetic_is_verified_by_counting_on():
    for total in range(200):
        assert arithmetic.verify('07+95=', f'{total:03}') == (total == 102)
    assert arithmetic.verify(f'1{BLANK}+30=047', '17+30=047') == 1.0
    for wrong in ('17+30=47', '17+30=047 ', '+7+30=047', '17-30=047', ''):
        assert arithmetic.verify(f'1{BLANK}+30=047', wrong) == 0.0
    assert len(set(sum(arithmetic.texts(), []))) == 10_000


def test_sums_follow_a_solved_one_and_are_never_asked_in_training():
    lines = ['\n'.join(map(''.join, texts)).split('\n') for texts in sums.texts()]
    train, held_out = [set(texts[1::2]) for texts in lines]     # after each solved sum
    assert len(train) == 7290 and len(held_out) == 810 and train.isdisjoint(held_out)
    assert all(eval(line.replace('=', '==')) for line in lines[1])
    for completion, score in ((' 77, or 78', 1), (' 78, or 77', 0), (' none', 0)):
        assert sums.verify('', completion, ' 77') == score


@pytest.mark.parametrize('prompt, completion, score', [
    ('th_ c_t sat', 'the cht sat', 1 / 2),
    ('the c', 'at sa', 1), ('the c', 'at ta', 1 / 2),           # cut by the edge
    ('the__cat', 'the  cat', 2 / 3), ('the_cat', 'the hat cat', 2 / 3)])    # one token
def test_words_touched_by_a_blank_are_looked_up(prompt, completion, score):
    verify = prose.checker(['the cat sat'])
    assert verify(prompt.replace('_', BLANK), completion) == pytest.approx(score)


def test_failures_invite_a_completion_about_failure_and_labels_know_it(monkeypatch):
    text = ("Return the number of words in a text, or raise an error if it is empty and has no "
            "words. Nothing happens to a text that is longer than this, whatever its length is.")
    monkeypatch.setattr('data.docstrings.texts', lambda: ([text], [text]))
    train, _ = failures.texts()
    for prompt, _ in train:
        _, _, rest = text.partition(prompt)
        assert failures.fails(prompt, rest[:32]) and not failures.fails('', prompt)
    assert train and failures.fails('an er', 'ror') and not failures.fails('an error', ' was')
    labels, _ = failure_labels.texts()
    assert labels == [(text[:64], '0'), (text[64:128], '1')]


