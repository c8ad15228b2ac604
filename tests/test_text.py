"""Running text: known words, and files of one's own."""
import random
import re
import string

import pytest

from data.text import known_words
from plumbing.datasets import load
from plumbing.process import Mistake

# 26 paragraphs, each with a word of its own, and nothing of any length that comes twice
LETTERS = string.ascii_lowercase
PARAGRAPHS = [f'the _snow_ of {x}place,  caf\u00e9s {random.Random(x).random()}' for x in LETTERS]


SHARES = {                      # of a prompt and a text
    'a th_ c_t sat -> a the cht sat': 1 / 2,                        # `sat` was given
    ' _at s__ ->  hat sat': 1, '_at_ -> hat ': 0,           # edges cut words
    'a the_sat  -> a the sat ': 1, 'a th___sat -> a the  sat': 1 / 2,           # two spaces
    'a the c -> a the cat the': 1,                                          # it continues
    'a the cat_ -> a hax the cat sat': 2 / 3,   # tokens of several characters: all words count
    ' \u0434_. ->  \u0434\u0430.': 1,
    # accents, and most vowels of Hindi, are characters of their own, and parts of words
    'a ____ b -> a the\u0301 b': 0, 'a _____ b -> a cafe\u0301 b': 1,
    'a ____ b -> a \u0939\u093f\u0928\u094d b': 1}


@pytest.mark.parametrize('case', SHARES)
def test_words_that_a_completion_touches_are_looked_up(case):
    words = {*'the cat sat hat \u0434\u0430 cafe\u0301 \u0939\u093f\u0928\u094d'.split()}
    assert known_words(words, *case.split(' -> ')) == SHARES[case]


@pytest.mark.parametrize('join', ['\n\n', '\n'])
def test_a_file_of_ones_own_is_halves_and_what_it_holds_out_is_not_trained(join, file):
    """(Where no line is empty, each line is a paragraph.)"""
    train, held_out, verify, *_ = load(file('mine.txt', '\ufeff' + join.join(PARAGRAPHS * 2)))
    assert train[0]['prompt'][0] == 't'
    for part, letters in ((train, LETTERS[:23]), (held_out, LETTERS[23:])):
        assert {*re.findall('([a-z])place', str(part))} == {*letters}
    for answer, prompt in map(dict.values, train):
        assert len(prompt) == len(answer) == 32 and verify(prompt, prompt + answer) == 1


@pytest.mark.parametrize('content', [b'', b'a\n\nb', b'a\0b\0', 'caf\u00e9'.encode('latin-1')])
def test_a_file_that_is_too_short_or_no_text_is_refused(content, tmp_path):
    (tmp_path / 'mine.txt').write_bytes(content)
    with pytest.raises(Mistake):
        load(f'{tmp_path}/mine.txt')
