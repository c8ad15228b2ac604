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
        a = b = ''
        for digit in first:
            a += str(digit)
            carries = rng.random() < 0.5
            b += str(9 - digit if carries else rng.randrange(10))
        if (a, b) in known or (b, a) in known:
            continue
        known.add((a, b))
        total = (int(a) + int(b)) % 10 ** N_DIGITS
        answer = f'{total:0{N_DIGITS}}'
        n_blanks = N_DIGITS
        if len(records) >= 512:
            n_blanks = rng.randint(1, N_DIGITS)
        shown = list(answer)
        for t in rng.sample(range(N_DIGITS), n_blanks):
            shown[t] = BLANK
        sum_of = f'{a}+{b}='
        records.append({'prompt': sum_of + ''.join(shown), 'answer': sum_of + answer})
    return records[512:], records[:512]
