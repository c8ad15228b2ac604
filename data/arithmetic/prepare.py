"""All 10,000 additions of two-digit numbers, pairs such as 12+35= and 047; a tenth is held out.

    python data/arithmetic/prepare.py

A row with blanks such as 1_+3_=__7 has many true completions: each blank alone is easy to guess,
but the guesses must agree. That is what the generator cannot do and GRPO teaches."""
import os
import re
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..'))
from data.dataset import BLANK, write_corpus


def verify(prompt, completion):
    """1.0 if the completed row is a true equation aa+bb=ccc, else 0.0."""
    row = completion if BLANK in prompt else prompt + completion
    if not re.fullmatch(r'\d\d\+\d\d=\d{3}', row):
        return 0.0
    a, b, total = map(int, re.split(r'[+=]', row))
    return float(a + b == total)


if __name__ == "__main__":
    random = np.random.default_rng(2402)        # always in the same way
    pairs = []
    for number in random.permutation(10_000):
        a = number // 100
        b = number % 100
        pairs.append((f"{a:02}+{b:02}=", f"{a + b:03}"))
    write_corpus('arithmetic', 'pairs', train=pairs[1000:], val=pairs[:1000])
