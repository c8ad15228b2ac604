"""Checkers of completions: is it the answer, the same number, made of known words?

A dataset with answers, or of running text, has one by itself. For numbers, import it: as the
verify() of a data module, or in a reward of a config file.

    from run.checkers import same_number as verify

    def right(completions, answer):
        return list(map(same_number, completions, answer))"""
import functools
import math
import re
import unicodedata

WORD = r'[^\W\d_]+'         # letters of any alphabet


def is_answer(completion, answer):
    """verify() of records: 1.0 if the completion is the answer, else 0.0. Nothing is no answer."""
    # An e and an accent are the letter with that accent, and some tokenizers write one for the other.
    said, right = [unicodedata.normalize('NFC', text).strip() for text in (completion, answer)]
    return float(said == right != '')


# ---- numbers, as people read them ----------------------------------------------------------------


NUMBER = re.compile(r"""
    (?: (?<![\w)\]}%-]) [-\N{MINUS SIGN}] )?    # a minus: not the hyphen of 10-12, nor a dash
    [$\N{EURO SIGN}\N{POUND SIGN}]?
    (?: (?<!\d,) [1-9]\d{0,2} (?:,\d{3})+ (?!\d|,\d) (?:\.\d+)?         # 1,234.50; not 8,12
      | (?<![\d/.]) \d+ / 0*[1-9]\d* (?![\d/]|[.,]\d)                   # 3/4
      | \d+ (?:\.\d+)? (?:e[-+]?\d\d?(?!\d))?                           # 34, 3.5, 1e-3
      | (?<![\w.]) \.\d+ )                                              # .5
    """, re.VERBOSE | re.IGNORECASE)


def numbers_in(text):
    """Return the numbers that a text writes, a list of int and float. A currency or a percent sign
    is a unit: 50 % is 50."""
    numbers = []
    for written in NUMBER.findall(text):
        written = re.sub('[^-\\d./e+]', '', written.lower().replace('\N{MINUS SIGN}', '-'))
        top, _, bottom = written.partition('/')
        try:
            number = int(top) / int(bottom) if bottom else int(top)     # exact, if it is whole
        except (ValueError, OverflowError):     # no int, or one that is too long to read
            number = float(top)
        numbers.append(math.nan if number == math.inf else number)
    return numbers


def last_number(text):
    """Return the last number of a text. If there is none: NaN, which equals nothing."""
    return (numbers_in(text) or [math.nan])[-1]


def same_number(completion, answer):
    """Return 1.0 if the completion ends with the number with which the answer ends, else 0.0. Both
    may have steps before it."""
    return float(last_number(completion) == last_number(answer))


# ---- running text: are its words known? ----------------------------------------------------------


def checker(texts):
    """Return verify(prompt, text, ended): known_words() with the words of these texts."""
    return functools.partial(known_words, words_of(texts))


def words_of(texts):
    """Return a set: the words of texts between spaces, such as ' so ', and the parts that remain if
    the edge of a window cuts them, such as ' s', 'o ' and 'o'."""
    # The edge of a window, or of a completion, can cut a word anywhere.
    parts = set()
    for letters in set(re.findall(WORD, '\n'.join(texts))):
        word = f' {letters} '
        for i in range(len(word)):
            parts |= {word[:i + 1], word[i:], word[i:-1]}
    return parts


def known_words(words, prompt, text, ended):
    """Return the share of known words among those with a blank in or beside them; 0.0 if there are
    no such words.

    A word that the edge of the window cuts must begin or end a known word. Two spaces in a row
    count as an unknown word. Example: 'th_ c_t sat' -> 'the cqt sat' gives 0.5, because 'the' is
    known and 'cqt' is not; 'sat' was given."""
    if text.startswith(prompt):                 # it was continued
        if not text[len(prompt):].strip():      # to say nothing is no prose
            return 0.0
        text += ' ' * ended     # no edge of a window has cut the last word of a text that has ended
        spans = [(len(prompt), len(text))]
    elif len(text) > len(prompt):       # tokens have several characters: all words are looked up
        spans = [(0, len(text))]
    else:                               # (shorter: the last blank is an eos, which is not shown)
        spans = [match.span() for match in re.finditer('_+', prompt)]
    spaced = re.sub(r'[\W\d_]', ' ', text)
    hits = []
    for word in re.finditer(WORD + '|(?<= )(?= )', text):
        left, right = word.span()
        # in a blank, or beside it; looked up with the spaces around it, which the window may lack
        if any(left <= stop and start <= right for start, stop in spans):
            hits.append(spaced[max(0, left - 1):right + 1] in words)
    return sum(hits) / max(1, len(hits))
