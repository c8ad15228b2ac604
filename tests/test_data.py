"""Data: texts become rows and texts again; blanks, prompts and their random numbers; the corpora
and their verifiers."""
import json
import re

import pytest
import torch

import train_grpo
from data import arithmetic, cups, problems, thoughts
from dataset import (Dataset, Prompts, Tokenizer, as_record, hold_out, make_tokenizer,
                     random_blanks, read_records, read_texts, rng_for)
from extras.studies import sums
from processes import refused, write
from run.checkers import is_answer, known_words, words_of

TOK = Tokenizer('char', 'ab=')


def ids(*rows):
    """Return ids of TOK, from a sign for each. A dot is id 0, which ends a text; - is padding."""
    return torch.tensor([['.ab=_^-'.index(sign) for sign in row] for row in rows])


def toy_data(*texts, causal=False, tok=TOK, **more):
    """Return a Dataset of texts, in which the same texts are held out: strings, or pairs."""
    texts = [text if type(text) is str else as_record(text) for text in texts]
    return Dataset(texts, texts, tok, causal, **more)


def text_of(prompts):
    """Return one prompt, its text as if it were a completion, and its answer."""
    case, = prompts.data.cases(prompts, prompts.tokens, [0])
    return case['prompt'], case['completion'], case['answer']


# ---- text as token ids ---------------------------------------------------------------------------


def test_pairs_are_rows_with_an_end_and_padding_and_long_ones_are_refused():
    pairs = [('a=', 'b'), ('ab=', 'bb'), ('b=', '')]
    data = toy_data(*pairs, block_size=6)
    assert data.rows.equal(ids('a=b.--', 'ab=bb.', 'b=.---', 'a=b.--', 'ab=bb.', 'b=.---'))
    assert [list(rows) for rows in data.rows_of.values()] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(AssertionError, match="needs 6 tokens; expected 5"):
        toy_data(*pairs, block_size=5)
    with pytest.raises(AssertionError, match="line 7' needs 3002 tokens; expected 1024"):
        toy_data({'line': 'line 7', 'prompt': 'a' * 3000, 'answer': 'b'})


def test_a_row_has_room_for_max_new_tokens_and_an_answer_takes_none():
    """Nothing learns an answer then; rewards see all of it."""
    for n, rows in ((4, ('a=.----', 'ab=.---')), (2, ('a=.--', 'ab=.-'))):
        data = toy_data(('a=', 'b'), ('ab=', 'bba'), causal=True, max_new_tokens=n)
        assert data.rows[:2].equal(ids(*rows))
        blank = data.prompts('val', 2, 1, 0).blank
        assert blank.sum(1).tolist() == [n, n]
        assert data.examples[1]['answer'] == 'bba'
    with pytest.raises(AssertionError, match="needs 7 tokens; expected 6"):
        toy_data(('a=', 'b'), ('ab=', ''), causal=True, max_new_tokens=4, block_size=6)


def test_running_text_is_cut_into_all_its_windows():
    """None begins in the training text and ends in the other."""
    data = Dataset(['ab', 'b'], ['aab'], TOK, False, 3)
    rows = data.rows[list(data.rows_of['train']) + list(data.rows_of['val'])]
    assert rows.equal(ids('ab.', 'b.b', '.b.', 'aab', 'ab.'))


def test_training_rows_are_random_and_a_held_out_row_comes_at_most_once():
    data = toy_data(*[('a' * i, 'b') for i in range(12)])
    for split, size, rows in (('train', 99, range(12)), ('val', 12, range(12, 24))):
        row = data.prompts(split, 99, 1, 0).row.tolist()
        assert len(row) == size and set(row) == set(rows) and row != sorted(row)


def test_a_tenth_of_the_prompts_is_held_out_and_equal_prompts_stay_together():
    texts = [{'prompt': f'p{i % 500}'} for i in range(2000)]
    train, held_out = [{text['prompt'] for text in part} for part in hold_out(texts)]
    assert train.isdisjoint(held_out) and len(train | held_out) == 500 and 30 < len(held_out) < 70


def records_of(*records):
    """Write records to a file of JSON lines. Return what read_texts() makes of it."""
    return read_texts(write('mine.jsonl', '\n'.join(map(json.dumps, records))))


def test_prompts_that_look_alike_are_other_tasks_if_a_column_differs(capsys):
    """As in a game whose prompt is always the same, and whose secret is a column."""
    train, held_out, *_ = records_of(*[
        {'prompt': ':', 'secret': i % 15, 'answer': f'{i}', 'held_out': i < 3} for i in range(45)])
    assert [record['secret'] for record in held_out] == [0, 1, 2]
    assert [record['secret'] for record in train] == 3 * list(range(3, 15))
    assert ' 6 of 42 texts to learn from are left out' in capsys.readouterr().out
    data = Dataset(train, held_out, Tokenizer('char', ':0123456789'), True)
    cases = data.cases(data.prompts('val', 9, 1, 0), data.rows[-3:], range(3))
    assert sorted(case['secret'] for case in cases) == [0, 1, 2]


def test_a_module_may_train_on_held_out_tasks_but_not_on_the_same_texts_unless_it_is_a_world():
    """Games are no answers: all of them are learned from."""
    train, held_out, *_ = read_texts(write('game.py', """
def texts():
    texts = [{'prompt': ':', 'secret': i % 15, 'answer': f'{i}'} for i in range(45)]
    return texts, texts[:15]
"""))
    assert train == [{'prompt': ':', 'secret': i % 15, 'answer': f'{i}'} for i in range(15, 45)]
    assert len(held_out) == 15
    with open('game.py', 'a') as file:
        file.write('\ndef reply(completion): pass')
    assert len(read_texts.__wrapped__('game.py')[0]) == 45


def test_a_file_of_your_own_is_a_dataset():
    lines = [json.dumps({'prompt': f'{i}=', 'answer': str(i % 2)}) for i in range(100)]
    pairs = write('pairs.jsonl', '\ufeff' + '\n\n'.join(lines))
    train, held_out, verify, _ = read_texts(pairs)
    assert len(train + held_out) == 100
    assert verify(' 1\n', '1') == 1.0 and verify('', '1') == 0.0
    assert make_tokenizer('char', pairs).vocabulary['chars'] == '0123456789='
    refused('FILE.jsonl', read_texts, write('pairs.csv', lines[0]))

    cats = '\n\n'.join(f'the {i} cats\nsat' for i in range(50))
    train, held_out, verify, _ = read_texts(write('cats.txt', cats))
    assert len(train + held_out) == 50 and verify('the c_ts', 'the cots', False) == 0
    refused('short.txt', read_texts, write('short.txt', 'one'))


@pytest.mark.parametrize('source, verify', [('', is_answer), ('verify = abs', abs)])
def test_a_python_file_of_your_own_is_a_dataset_if_it_has_texts(source, verify):
    """Without a verify() what is right is the answer. Pairs can be lists."""
    write('mine.py', f"{source}\ntexts = lambda: ([('a=', 'b')], [['a_', 'b']])")
    train, held_out, right, reply = read_texts('mine.py')
    assert train == [{'prompt': 'a=', 'answer': 'b'}]
    assert held_out == [{'prompt': 'a_', 'answer': 'b'}]
    assert right is verify and reply is None
    refused('config.py, whose texts() should', read_texts, write('config.py', 'seed = 1'))


@pytest.mark.parametrize('returned', ["[('a', 'b')] * 3", "[('a',)], [('b',)]", "[1], [2]", "None"])
def test_texts_that_are_no_two_lists_of_texts_are_named(returned):
    write('mine.py', f'texts = lambda: ({returned})')
    refused('mine.py, whose texts() should return two lists', read_texts.__wrapped__, 'mine.py')


@pytest.mark.parametrize('line, words', [
    ('{"question": "a", "answer": "b"}',
     "found {'answer': 'b', 'line': 'mine.jsonl, line 2', 'question'"),
    ('["a"]', "'list' object"), ('3', 'one object a line'),
    ('{"prompt": "", "held_out": "no"}', 'held_out'),
    ('{"prompt": 3, "answer": 4}', 'the prompt is no text'),
    ('{"prompt": [{"role": "user", "content": "a"}]}', '--chat_template=True'),
    ('nonsense', 'JSONDecodeError')])
def test_a_line_that_is_no_record_is_named(line, words):
    """With what it has in the place of a prompt and an answer."""
    write('mine.jsonl', '{"prompt": "a"}\n' + line)
    with pytest.raises(SystemExit, match='mine.jsonl, line 2: ') as error:
        read_records('mine.jsonl')
    assert words in str(error.value)


# ---- blanks and prompts --------------------------------------------------------------------------


@pytest.mark.parametrize('suffix, span', [(False, 1), (False, 3), (True, 3)])
def test_blanks_are_a_share_of_the_positions_that_may_be_blank(suffix, span):
    places = torch.randint(2, 20, (400, 1))
    may_be_blank = torch.arange(20) < places
    blank = random_blanks(may_be_blank, rng_for(0, 'test'), suffix, 0.3, 0.5, span)
    assert not (blank & ~may_be_blank).any()
    n = blank.sum(1, keepdim=True)
    assert ((n >= 0.3 * places - 0.5) & (n <= (0.5 * places + 0.5)) & (n > 0)).all()
    share = (n / places)[places > 12]
    assert share.min() < 0.35 and share.max() > 0.45
    if suffix:
        assert blank.equal((torch.arange(20) >= places - n) & may_be_blank)
    elif span == 3:             # runs of 3, except at edges, and edges everywhere
        starts = ~blank[:, :-1] & blank[:, 1:]
        assert starts.sum() < 0.6 * blank.sum() and starts.float().mean(0)[:10].min() > 0.02


BLANKS = {                  # of the row ab and its answer a, by kind
    'random': '_____.-',    # the end is given: it says how long the text is
    'answer': '..___.-',
    'causal': '.._____',    # a generated answer includes its end, and may be longer
}


@pytest.mark.parametrize('kind', BLANKS)
def test_the_end_of_a_text_is_blank_only_if_it_is_generated(kind):
    data = toy_data(('ab', 'aba'), causal=kind == 'causal', block_size=7, max_new_tokens=5,
                    blank_kind='answer' if kind == 'causal' else kind, blank_low=1, blank_high=1)
    prompts = data.prompts('train', 1, 1, 0)
    assert prompts.blank.equal(ids(BLANKS[kind]) == TOK.blank_id)
    # and nothing learns it, so the row has none
    assert prompts.tokens.equal(ids('ab.----' if kind == 'causal' else 'ababa.-'))


def test_at_least_one_position_is_blank():
    may_be_blank = torch.arange(9) < torch.arange(1, 10)[:, None]
    blank = random_blanks(may_be_blank, rng_for(0, 'test'), False, 0.0, 0.05, 1)
    assert (blank & may_be_blank).sum(1).tolist() == [1] * 9


def test_prompts_depend_on_seed_split_and_step_and_nothing_else():
    data = toy_data('abab', 'bbbaa', 'abbab', block_size=7)
    first, more, *others = [data.prompts(*settings) for settings in (
        ('train', 9, 2, 3, 5), ('train', 9, 9, 3, 5), ('train', 9, 2, 3, 6),
        ('train', 9, 2, 4, 5), ('val', 9, 2, 3, 5))]
    for name in ('tokens', 'blank', 'order', 'row'):
        assert getattr(first, name).equal(getattr(more, name))
    assert first.uniforms.equal(more.uniforms[:, :2])
    for other in others:
        assert not first.uniforms.equal(other.uniforms) and not first.row.equal(other.row)
    one, two = [train_grpo.get_prompts(data, step) for step in (5, 6)]
    assert not one.uniforms.equal(two.uniforms) and not one.row.equal(two.row)


def test_the_order_of_blanks_is_random_and_independent_of_the_samples():
    prompts = toy_data('ababa', 'b', block_size=6).prompts('train', 200, 3, 0)
    places = prompts.order.argsort(1)
    assert (places.double().mean(0) - 2.5).abs().max() < 0.5    # no position is always early
    for uniforms in prompts.uniforms.unbind(1):
        both = torch.stack((prompts.order.flatten(), uniforms.flatten()))
        assert both.corrcoef()[0, 1].abs() < 0.15


def test_a_typed_prompt_has_blanks_and_in_causal_mode_underscores():
    """Without max_new_tokens it goes on to the end of the row. It has no answer."""
    for text, causal, longest, blank in (('a__b', False, 0, '.__.'), ('a_', True, 0, '..____'),
                                         ('a_', True, 2, '..__')):
        data = toy_data('a' * 9, causal=causal, tok=Tokenizer('char', 'ab_'), block_size=6)
        data.max_new_tokens = longest
        prompts = data.typed_prompt(text, 3, 0, {})
        assert prompts.k == 3
        shown = ''.join('._'[is_blank] for is_blank in prompts.blank[0].tolist())
        assert shown.startswith(blank) and shown.count('_') == blank.count('_')
        case, = prompts.data.cases(prompts, prompts.tokens, [0])
        assert case['prompt'] == text and 'answer' not in case


def test_a_prompt_and_a_completion_end_where_a_text_ends():
    for causal, row, prompt, sequence, completion, text in (
            (False, 'a_.-', 'a_', 'aa.-', 'aa', 'aa'),          # the end is given
            (False, 'ab__', 'ab__', 'abb.', 'abb', 'abb'),      # the end was blank
            (False, 'a__b', 'a__b', 'a.ab', 'a\nab', 'a\nab'),  # a text ends in the middle
            (True, 'a_____', 'a', 'aaa.--', 'aa', 'aaa'),
            (True, 'a.____', 'a\n', 'a.ab.-', 'ab', 'a\nab')):  # the next paragraph
        data = toy_data('a' * 6, causal=causal, block_size=6)
        data.examples = [{}]
        prompts = Prompts(ids(row), ids(row) == TOK.blank_id, torch.zeros(1, 1, 6), None, None,
                          torch.tensor([0]), data)
        assert data.cases(prompts, ids(sequence), [0]) == [
            {'prompt': prompt, 'completion': completion, 'text': text}]


# ---- marked blanks, and texts that ids would change ----------------------------------------------


def test_marked_blanks_stand_where_the_prompt_has_them():
    for prompt, answer, blank in (('a_b_', 'aabb', '.a.a.'), ('_b', None, 'a..')):
        pair = (prompt, answer) if answer else {'prompt': prompt}
        data = toy_data(pair, blank_kind='marked')
        prompts = data.prompts('val', 1, 1, 0)
        assert prompts.blank.equal(ids(blank) > 0)
        assert text_of(prompts) == (prompt, answer or prompt, answer)


@pytest.mark.parametrize('prompt, answer', [
    ('a_b', 'aab='), ('a_b', 'aa'), ('a_b', ''), ('a_b', 'bab')])
def test_a_marked_prompt_with_another_answer_is_named(prompt, answer):
    lines = [json.dumps({'prompt': f'{"a" * i}_', 'answer': 'a' * i + 'b'}) for i in range(40)]
    lines.append(json.dumps({'prompt': prompt, 'answer': answer}))
    train, held_out, *_ = read_texts.__wrapped__(write('mine.jsonl', '\n'.join(lines)))
    with pytest.raises(AssertionError, match='^mine.jsonl, line 41: '):
        Dataset(train, held_out, TOK, False, blank_kind='marked')


@pytest.mark.parametrize('blank_kind', ['answer', 'marked'])
def test_a_text_without_a_blank_is_refused_if_blanks_are_filled(blank_kind):
    for blank in ('_', ''):
        pairs = [('a', 'b'), ('ab', blank)]
        if blank_kind == 'marked':
            pairs = [{'prompt': '_'}, {'prompt': f'ab{blank}'}]
        if blank:
            assert toy_data(*pairs, blank_kind=blank_kind, tok=Tokenizer('char', 'ab_')).blank.any()
        else:
            refused('has no blank', toy_data, *pairs, blank_kind=blank_kind)


def test_rewards_see_the_prompt_and_the_answer_of_the_file_not_decoded_ids():
    """A chat template stands around a prompt, and some byte pairs do not come back. An answer that
    is a whole text is decoded as the completions are, so that a right one equals it."""
    tok = Tokenizer('char', 'ab=')
    tok.encode_chat = lambda prompt: tok.encode(f'bb{prompt}bb')
    tok.decode = lambda ids: '?' * len(ids)
    for prompt, answer, expected, more in (
            ('a=', 'b', 'b', {'causal': True, 'blank_kind': 'answer', 'chat_template': True}),
            ('a=', 'b', 'b', {'causal': True, 'blank_kind': 'answer'}),
            ('a_', 'ab', '??', {'blank_kind': 'marked'})):
        data = toy_data((prompt, answer), tok=tok, **more)
        assert data.rows[0, :2].equal(ids('bb')[0]) == ('chat_template' in more)
        shown, completion, original = text_of(data.prompts('val', 1, 1, 0))
        assert (shown, completion.strip('?'), original) == (prompt, '', expected)


def test_a_column_that_only_some_records_have_is_none_for_the_others():
    data = toy_data({'prompt': 'a', 'level': 3}, {'prompt': 'b', 'topic': 'x'}, causal=True)
    assert [(example['level'], example['topic']) for example in data.examples[:2]] == [
        (3, None), (None, 'x')]


# ---- corpora -------------------------------------------------------------------------------------


def test_arithmetic_and_sums_are_verified():
    for total in range(200):
        assert arithmetic.verify(f'07+95={total:03}') == (total == 102)
    for wrong in ('17+30=47', '17+30=047 ', '+7+30=047', '17-30=047', ''):
        assert arithmetic.verify(wrong) == 0.0
    for completion, score in ((' 77, or 78', 1), (' 78, or 77', 0), (' none', 0)):
        assert sums.verify(completion, ' 77') == score
    for completion, score in (('1 + 1,076 = 1,077.', 1), ('1,077 - 1', 0), ('-1077', 0), ('', 0)):
        assert problems.verify(completion, 'Add 7 to 1070. #### 1077') == score


def test_held_out_equations_are_not_trained_the_other_way_round():
    trained, held_out = [{frozenset(prompt[:5].split('+')) for prompt, _ in pairs}
                         for pairs in arithmetic.texts()]
    assert not trained & held_out and len(trained | held_out) == 5050
    assert 450 < len(held_out) < 550


def test_held_out_word_problems_have_names_and_pairs_of_numbers_of_their_own():
    seen = []
    for texts in problems.texts():
        words = [re.findall(r'\w+', text['prompt']) for text in texts]
        names = {*problems.NAMES, *problems.HELD_OUT_NAMES} & set().union(*words)
        seen.append((names, {frozenset(filter(str.isdigit, text)) for text in words}))
    for train, held_out in zip(*seen):
        assert len(train) > len(held_out) > 6 and not train & held_out


@pytest.mark.parametrize('prompt, text, ended, share', [
    ('th_ c_t sat', 'the cht sat', False, 1 / 2),
    ('the c', 'the cat sa', False, 1), ('the c', 'the cat sa', True, 1 / 2),    # cut by the edge
    ('the c', 'the c ', False, 0),                                  # it must say something
    ('the_cat', 'the hat cat sat', False, 3 / 4),   # a token has several letters: all words count
    ('\u0434_', '\u0434\u0430', False, 1),                          # Cyrillic
    # In a prompt that is continued the sign of a blank is plain text. Looked up are `case`, because
    # a completion could go on with it, and all that follows. `snake` is unknown, but given.
    ('the snake_case', 'the snake_case sat', False, 1),
    ('the snake_case', 'the snake_cases sat', False, 1 / 2)])
def test_words_that_a_completion_touches_are_looked_up(prompt, text, ended, share):
    words = words_of(['the cat sat in case', '\u0434\u0430'])
    assert known_words(words, prompt, text, ended) == pytest.approx(share)


def test_thoughts_are_right_and_held_out_ones_all_blank():
    for records, least in zip(thoughts.texts(n_train=300), (1, 8)):
        for record in records:
            assert thoughts.verify(record['answer']) == 1
            shown = record['prompt'].replace('.', r'\.').replace('_', '.')
            assert re.fullmatch(shown, record['answer']) and record['prompt'].count('_') >= least


def test_a_thought_about_the_cups_names_the_ball_after_each_swap_and_ends_with_the_answer(
        monkeypatch):
    monkeypatch.setattr(cups, 'N_TEXTS', 1000)
    train, held_out = cups.texts(share=0.5)
    assert not set(dict(train)) & set(dict(held_out)) and len(held_out) == 512
    for prompt, answer in held_out:
        order = list(cups.CUPS)                 # order[i]: the cup under which the ball i lies
        balls = ''
        for a, b in prompt.rstrip('=').split()[1:]:
            if a != '.':
                order = [{a: b, b: a}.get(cup, cup) for cup in order]
            balls += order[cups.CUPS.index(prompt[0])]
        assert answer in (':' + balls, balls[-1])
        assert cups.verify(prompt + answer) == 1 and cups.verify(prompt + balls + '.') == 0
        assert cups.verify(prompt) == 0         # it says nothing


def test_a_name_is_new_has_its_letters_in_order_and_can_be_pronounced():
    from data import names                      # here, where docstrings are the toy prose
    assert names.verify('sog=', 'sozogem') == 1
    word = next(iter(names.WORDS))
    for prompt, wrong in (('sog=', 'sozemos'), ('sog=', 'sog'), ('sog=', 'sosogos'),
                          ('sog=', 'soueg'), (f'{word[:3]}=', word)):
        assert names.verify(prompt, wrong) == 0
    train, held_out = names.texts()
    assert not {prompt for prompt, _ in train} & {prompt for prompt, _ in held_out}
    assert all(names.verify(*pair) == 0 for pair in train + held_out)
