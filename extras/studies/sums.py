"""Sums of two-digit numbers for a language model, each after a solved one:

    31 + 46 = 77
    93 + 91 =

A tenth of the sums is held out: they are never asked in training, but 46 + 31 may be if 31 + 46 is
held out."""
import numpy as np

from extras.numbers import numbers_in


def texts():
    """Return 7,290 training pairs and 810 held-out pairs (prompt, answer)."""
    # The solved sum shows the model the format. It is drawn anew for each question.
    rng = np.random.default_rng(2402)
    pairs = []
    for number in rng.permutation(90 * 90):
        a = 10 + number // 90
        b = 10 + number % 90
        c, d = rng.integers(10, 100, size=2)
        solved = f'{c} + {d} = {c + d}'
        question = f'{a} + {b} ='
        pairs.append((f'{solved}\n{question}', f' {a + b}'))
    return pairs[810:], pairs[:810]


def verify(completion, answer):
    """Return 1.0 if the first number of the completion is the sum, else 0.0."""
    # A language model goes on after its answer, so only the first number counts.
    first = numbers_in(completion)[:1]
    return float(first == numbers_in(answer))
