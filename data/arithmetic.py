"""All 10,000 additions of two-digit numbers, as pairs such as 12+35= and 047.

A text with blanks such as 1_+3_=__7 has many true completions. Each blank by itself is easy to
guess, but the guesses must agree, and a network that fills all of them in one pass cannot make them
agree. GRPO teaches it to."""
import re

import numpy as np


def texts():
    """Return 9,023 training pairs and 977 held-out pairs. Two numbers are held out together: if
    12+35 is held out, 35+12 is, too. (A held-out prompt with blanks has several true completions,
    and some of them may be in the training pairs.)"""
    rng = np.random.default_rng(2402)
    is_held_out = rng.random((100, 100)) < 0.1
    # every number from 0000 to 9999, in random order: its halves are the two numbers to add
    train, held_out = [], []
    for number in rng.permutation(10_000):
        a, b = divmod(number, 100)
        pairs = held_out if is_held_out[min(a, b), max(a, b)] else train
        pairs.append((f'{a:02}+{b:02}=', f'{a + b:03}'))
    return train, held_out


def verify(text):
    """Return 1.0 if the whole text is a true equation aa+bb=ccc, else 0.0."""
    if not re.fullmatch('[0-9]{2}[+][0-9]{2}=[0-9]{3}', text):
        return 0.0
    a, b, total = map(int, re.split(r'[+=]', text))
    return float(a + b == total)
