"""Checkers of completions: is it the answer, or made of known words? A dataset with answers, or of
running text, has one by itself. (For numbers there is extras/numbers.py.)"""
import re
import unicodedata

WORD = r'[^\W\d_]+'         # letters of any alphabet


def is_answer(completion, answer):
    """verify() of records: 1.0 if the completion is the answer, else 0.0; so if there is none."""
    if answer is None:
        return 0.0
    # An e and an accent are the letter with that accent. Some tokenizers write one for the other.
    said, right = [unicodedata.normalize('NFC', text).strip() for text in (completion, answer)]
    return float(said == right)


# ---- running text: are its words known? ----------------------------------------------------------


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
