"""Hours and minutes as minutes: pairs such as 3h05m= and 185, for config/grpo_pairs.py."""
import random


def texts():
    """Return two lists of pairs, 1,000 for training and 200 held out."""
    rng = random.Random(0)
    pairs = {}                                  # a dict, so that each prompt comes once
    while len(pairs) < 1200:
        h = rng.randrange(24)
        m = rng.randrange(60)
        pairs[f'{h}h{m:02}m='] = str(60 * h + m)
    return list(pairs.items())[200:], list(pairs.items())[:200]
