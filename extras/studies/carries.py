"""Sums with long carries, for a network that fills blanks: a held-out prompt is
`28174063+71825947=________`, modulo 10 ** 8. Half of the columns sum to 9, so that a carry often
goes through many of them: the last digit is the easiest, the first one the hardest. In training
prompts one to eight digits of the sum are blank."""
import random

from dataset import BLANK

N_DIGITS = 8


def texts(n_train=50_000):
    """Return n_train training records and 512 that are held out."""
    rng = random.Random(2402)
    records = []
    known = set()
    while len(records) < 512 + n_train:
        first = [rng.randrange(10) for _ in range(N_DIGITS)]
        second = [9 - digit if rng.random() < 0.5 else rng.randrange(10) for digit in first]
        a = ''.join(map(str, first))
        b = ''.join(map(str, second))
        if (a, b) in known or (b, a) in known:
            continue
        known.add((a, b))
        total = str(int(a) + int(b))[-N_DIGITS:].zfill(N_DIGITS)
        n_blanks = N_DIGITS if len(records) < 512 else rng.randint(1, N_DIGITS)
        blanks = rng.sample(range(N_DIGITS), n_blanks)
        shown = ''.join(BLANK if t in blanks else digit for t, digit in enumerate(total))
        records.append({'prompt': f'{a}+{b}={shown}', 'answer': f'{a}+{b}={total}'})
    return records[512:], records[:512]
