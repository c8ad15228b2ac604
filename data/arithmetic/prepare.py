"""All 10,000 additions of two-digit numbers, rows such as 12+35=047; a tenth is held out. V = 13.

    python data/arithmetic/prepare.py

A row with blanks such as 1_+3_=__7 has many true completions: each blank alone is easy to guess,
but the guesses must agree. That is what the generator cannot do and GRPO teaches."""
import os, re, sys
import numpy as np
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..'))
from data.dataset import BLANK, write_corpus

def verify(prompt, completion):
    """1.0 if the completed row is a true equation aa+bb=ccc, else 0.0."""
    row = completion if BLANK in prompt else prompt + completion
    match = re.fullmatch(r'(\d\d)\+(\d\d)=(\d{3})', row)
    return float(match is not None and int(match[1]) + int(match[2]) == int(match[3]))

if __name__ == "__main__":
    rows = [f"{a:02}+{b:02}={a + b:03}" for a in range(100) for b in range(100)]
    np.random.default_rng(2402).shuffle(rows)               # always in the same way
    write_corpus(HERE, 'rows', train=rows[1000:], val=rows[:1000])
