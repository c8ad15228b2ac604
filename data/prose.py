"""Running text: the paragraphs of a file, and a check for unknown words."""
import functools
import re

from data.pairs import BLANK, read_text

WORD = r'[^\W\d_]+'         # letters of any alphabet


def paragraphs_of(path):
    """Return the paragraphs of a UTF-8 text file, which are separated by empty lines."""
    return [part for part in re.split(r'\n\s*\n', read_text(path)) if part.strip()]


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
    elif len(prompt) == len(text):
        spans = [match.span() for match in re.finditer(f'{BLANK}+', prompt)]
    else:                                       # a token can have several characters
        spans = spans_between(re.split(f'{BLANK}+', prompt), text)
    spaced = re.sub(r'[\W\d_]', ' ', text)
    hits = []
    for word in re.finditer(WORD + '|(?<= )(?= )', text):
        left, right = word.span()
        # in a blank, or beside it; looked up with the spaces around it, which the window may lack
        if any(left <= stop and start <= right for start, stop in spans):
            hits.append(spaced[max(0, left - 1):right + 1] in words)
    return sum(hits) / max(1, len(hits))


def spans_between(pieces, text):
    """Return (start, stop) of what stands between the pieces of a text, each of which is as far to
    the left as it can be, but the last at the end; the whole text if it has not these pieces."""
    first, *others = pieces
    start = len(first)
    spans = []
    for i, piece in enumerate(others, 1):
        stop = text.rfind(piece) if i == len(others) else text.find(piece, start)
        if stop < start:
            return [(0, len(text))]
        spans.append((start, stop))
        start = stop + len(piece)
    return spans
