"""Sums of two-digit numbers for a language model, each after a solved one:

    31 + 46 = 77
    93 + 91 =

A tenth of the sums is held out; if 31 + 46 is, 46 + 31 may be asked in training."""
import random
import re


def texts():
    """Return 7,290 pairs (prompt, answer) to learn from, and 810 that are held out."""
    # The solved sum shows the model the format. It is drawn anew for each question.
    rng = random.Random(2402)
    pairs = []
    for number in rng.sample(range(90 * 90), 90 * 90):
        a, b = 10 + number // 90, 10 + number % 90
        c, d = rng.choices(range(10, 100), k=2)
        pairs.append((f'{c} + {d} = {c + d}\n{a} + {b} =', f' {a + b}'))
    return pairs[810:], pairs[:810]


def verify(completion, answer):
    """Return 1.0 if the first number of the completion is the sum: a language model goes on."""
    return float(re.findall(r'\d+', completion)[:1] == [answer.strip()])
