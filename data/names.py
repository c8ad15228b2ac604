"""New names from three letters: `rdt=` may become `redit`. This dataset has a checker and no
answers. A generator first imitates real words of 5 to 8 letters, from data/docstrings.py. They are
no solutions: none of them passes verify(), because none of them is new."""
import itertools
import random
import re

from data import docstrings

PROSE = ' '.join(itertools.chain(*docstrings.paragraphs()))
WORDS = sorted(set(re.findall(r'\b[a-z]{5,8}\b', PROSE)))
STARTS = {word[:5] for word in WORDS}


def texts():
    """Return two lists of pairs, for training and held out: three letters of a word, in order, and
    the word, such as `rdt=` and `rodent`."""
    train = []
    held_out = []
    for word in WORDS:
        chosen = sorted(random.Random(word).sample(range(len(word)), 3))
        prompt = ''.join(word[i] for i in chosen) + '='
        pairs = train if sum(map(ord, prompt)) % 10 else held_out
        pairs.append((prompt, word))
    return train, held_out


def verify(prompt, completion):
    """Return 1.0 for a name that is new, has the letters in this order, and can be pronounced."""
    return float(re.fullmatch('[a-z]{5,8}', completion) is not None
                 and re.search('.*'.join(prompt[:3]), completion) is not None
                 and completion[:5] not in STARTS
                 and max(map(completion.count, completion)) < 3
                 and re.search('[aeiouy]{3}|[^aeiouy]{3}', completion) is None)
