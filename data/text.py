"""Running text as records. A record is a window of the text, in which either runs of characters are
blank, or the second half is to be written. `verify` is the share of known words among the words
that a completion touches.

For your own text, --dataset=FILE.txt makes windows of 64 characters, whose second half is to be
written. For runs of blanks instead, write a dataset like data/shakespeare.py:

    from data.text import read, runs, running_text
    texts, verify = running_text(lambda: read('mine.txt'), runs, 32)"""
import functools
import random
import re
import unicodedata
from pathlib import Path

from plumbing.process import Mistake, expect


@functools.cache
def a_word():
    """Return a regular expression of a word: letters of any alphabet, with the marks that combine
    with them, such as an accent, or a vowel of Hindi. (re has no name for marks, and to look for
    them takes 10 ms.)"""
    marks = ''.join(x for x in map(chr, range(2 ** 17)) if unicodedata.category(x)[0] == 'M')
    return rf'[^\W\d_]+(?:[{marks}]+[^\W\d_]*)*'


# ---- records -------------------------------------------------------------------------------------


def running_text(paragraphs, make, length):
    """Return the functions texts() and verify() of a dataset. paragraphs() returns two lists, for
    training and held out; make(windows) returns records; a window has `length` characters."""
    def texts():
        parts = [windows(part, length, n) for part, n in zip(paragraphs(), (50_000, 2_000))]
        expect(min(map(len, parts)) > 1, f"expected ten lines or more, with {length} characters or "
               "more, and as many in their last tenth, which is held out")
        return [*map(make, parts)]

    @functools.cache
    def words():
        return set(re.findall(a_word(), ' '.join(paragraphs()[0])))

    def verify(prompt, text):
        return known_words(words(), prompt, text)

    return texts, verify


def of_file(path):
    """Return {'texts': ..., 'verify': ...} of FILE.txt."""
    texts, verify = running_text(functools.partial(read, path), halves, 64)
    return {'texts': texts, 'verify': verify}


def read(path):
    """Return the paragraphs of a file, each once: those for training, and the last tenth, which is
    held out. Empty lines separate paragraphs. If there are fewer than ten, each line is one."""
    try:
        text = Path(path).read_text('utf-8-sig')
    except UnicodeDecodeError as e:
        raise Mistake(f"{path}: expected text in UTF-8 ({e})") from None
    expect('\0' not in text, f"{path}: expected text in UTF-8, and it has characters of number 0")
    paragraphs = text.split('\n\n')
    if len(paragraphs) < 10:
        paragraphs = text.split('\n')
    paragraphs = [*dict.fromkeys(paragraphs)]
    cut = len(paragraphs) * 9 // 10
    return paragraphs[:cut], paragraphs[cut:]


def windows(paragraphs, length, n):
    """Return about n to 2 n windows, or all if there are fewer: strings of `length` characters.
    They overlap if the text is short, and begin and end anywhere, even within a word. Line feeds
    and `_` become spaces, because they mean the end of a text and a blank."""
    text = ' '.join(' '.join(paragraphs).replace('_', ' ').split())
    return [text[i:i + length] for i in range(0, len(text) - length + 1, len(text) // n or 1)]


def runs(windows, span=4):
    """Return records of windows. 20 to 50 % of each window is blank, in runs of `span`."""
    rng = random.Random(2402)
    records = []
    for window in windows:
        places = range(rng.randrange(span), len(window) - span + 1, span)
        shown = list(window)
        for i in rng.sample(places, round(rng.uniform(0.2, 0.5) * len(window) / span)):
            shown[i:i + span] = '_' * span
        records.append((''.join(shown), window))
    return records


def halves(windows):
    """Return records of windows whose second half is to be written."""
    return [(window[:len(window) // 2], window[len(window) // 2:]) for window in windows]


# ---- are its words known? ------------------------------------------------------------------------


def known_words(words, prompt, text):
    """Return the share of known words among the words that the policy has touched: words with a
    blank in or beside them, or words that continue a prompt. 0.0 if there are none.

    Example: `a th_ c_t sat` becomes `a the cqt sat`. The share is 0.5: `the` is known, `cqt` is
    not, and `sat` was given. Two spaces in a row count as an unknown word. A word at an edge of the
    text does not count, because the edge may have cut it."""
    if text[len(prompt):].isspace():            # to say nothing is no prose
        return 0.0
    if '_' in prompt and len(text) > len(prompt):       # tokens have several characters: all count
        prompt = ''
    prompt = prompt.ljust(len(text), '_')
    hits = []
    for word in re.finditer(a_word() + '|(?<= )(?= )', text):
        left, right = word.span()
        if left > 0 and right < len(text) and '_' in prompt[left - 1:right + 1]:
            hits.append(word[0] in words)
    return sum(hits) / max(1, len(hits))
