"""Running text: windows, runs of blanks, known words, files of one's own, docstrings, and the
rewards of grpo_composite."""
import random
import re
import string
import sysconfig

import pytest

from configurator import configure
from data import docstrings
from data.text import known_words, runs, windows
from tasks import load

# 26 paragraphs, each with a word of its own, and nothing of any length that comes twice
LETTERS = string.ascii_lowercase
PARAGRAPHS = [f'the _snow_ of {x}place,\nand  caf\u00e9s {random.Random(x).random()}'
              for x in LETTERS]
PROSE = [f'The function number {i}, which is\nquite good.' for i in range(20)]
OTHERS = '''>>> some words of a dialogue, to be typed\n
    and words of an example, indented\n\na  table  of  some  words  here\n
code = [0, 1, 2, 3, 4, 5, 6, 7]\n\na_name_in_it, of the parameters\n\ntoo short'''


def test_windows_are_about_as_many_as_asked_for_and_everywhere():
    text = ' '.join(' '.join(PARAGRAPHS).replace('_', ' ').split())
    for length, n, step in ((32, 100, len(text) // 100), (32, 10_000, 1), (len(text), 1, 1)):
        places = [text.index(window) for window in windows(PARAGRAPHS, length, n)]
        assert places == [*range(0, len(text) - length + 1, step)]


def test_blanks_are_runs_of_four_anywhere_a_fifth_to_a_half_of_a_window():
    shown, whole = zip(*runs([string.printable[:32]] * 5000))
    assert all(re.fullmatch(a.replace('_', '.'), b) for a, b in zip(shown, whole))
    assert {len(run) % 4 for text in shown for run in re.findall('_+', text)} == {0}
    assert {text.count('_') for text in shown} == {8, 12, 16}
    assert {text.index('_') % 4 for text in shown} == {0, 1, 2, 3}
    often = [column.count('_') / 5000 for column in zip(*shown)][3:-3]
    assert 0.33 < min(often) and max(often) < 0.44


@pytest.mark.parametrize('prompt, text, share', [
    ('a th_ c_t sat', 'a the cht sat', 1 / 2),                      # `sat` was given
    (' _at s__', ' hat sat', 1), ('_at_', 'hat ', 0), ('a s__', 'a sat', 0),       # edges cut words
    ('a the_sat ', 'a the sat ', 1), ('a th___sat', 'a the  sat', 1 / 2),       # two spaces
    ('a the c', 'a the cat the', 1), ('a the c', 'a the cut t', 0),         # it continues
    ('a the', 'a the', 0), ('a the', 'a the  ', 0),     # or says nothing
    ('a the cat_', 'a hax the cat sat', 2 / 3), # tokens of several characters: all words count
    (' \u0434_.', ' \u0434\u0430.', 1)])
def test_words_that_a_completion_touches_are_looked_up(prompt, text, share):
    assert known_words({'the', 'cat', 'sat', 'hat', '\u0434\u0430'}, prompt, text) == share


@pytest.mark.parametrize('join', ['\n\n', '\n'])
def test_a_file_of_ones_own_is_halves_and_what_it_holds_out_is_not_trained(join, file):
    """(Where no line is empty, each line is a paragraph.)"""
    paragraphs = [text.replace('\n', ' ') for text in PARAGRAPHS * 2]
    train, held_out, verify, _ = load(file('mine.txt', '\ufeff' + join.join(paragraphs)))
    assert '\ufeff' not in train[0]['prompt']
    for part, letters in ((train, LETTERS[:23]), (held_out, LETTERS[23:])):
        assert {*re.findall('([a-z])place', str(part))} == {*letters}
    for record in train:
        prompt, answer = record['prompt'], record['answer']
        assert len(prompt) == len(answer) == 32
        assert verify(prompt, prompt + answer) == 1 and verify(prompt, prompt + 'q ' * 16) == 0
    assert min(verify(record['prompt'], ''.join(record.values())) for record in held_out) < 1


@pytest.mark.parametrize('content', [b'', b'One line.', 'Gr\u00f6\u00dfe'.encode('latin-1')])
def test_a_file_that_is_no_text_is_refused_in_one_line(content, tmp_path):
    (tmp_path / 'bad.txt').write_bytes(content)
    with pytest.raises(AssertionError, match='bad.txt: expected .*$'):
        load(f'{tmp_path}/bad.txt')


def test_paragraphs_of_docstrings_are_prose(file, tmp_path, monkeypatch):
    for i, text in enumerate(PROSE):
        file(f'{i}.py', f'def f():\n """{text}\n\n{OTHERS}\n\n{text}"""')
    file('bad.py', '"""This is a file of another language."""  +')
    (tmp_path / 'tests').mkdir()
    file('tests/tests.py', '"""This is a test, and those are left out."""')
    monkeypatch.setattr(sysconfig, 'get_path', lambda name: str(tmp_path))
    monkeypatch.setattr(docstrings, 'CACHE', f'{tmp_path}/cache.json')
    train, held_out = docstrings.paragraphs()
    assert len(held_out) == 2
    assert {*train, *held_out} == {' '.join(text.split()) for text in PROSE} and len(train) == 18


def test_rewards_of_a_composite_know_failure_other_completions_and_the_letter_s(grpo):
    configure(vars(grpo), ['config/grpo_composite.py'])
    assert grpo.safety([' is good', ' an Error is']) == [1, 0]
    assert grpo.diversity(['a', 'a', 'b', 'b'], ['x y', 'y z w', 'y', '']) == [1 / 2, 2 / 3, 1, 0]
    assert grpo.alliteration(['s see So see', 'see', ' on Sunday we']) == [2 / 3, 0, 1 / 2]
