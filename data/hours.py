"""Hours and minutes as minutes, such as 3h05m= and 185: pairs, for config/grpo_pairs.py."""
import random


def texts():
    """Return two lists of pairs: 1,000 to learn from, and 200 that are held out."""
    rng = random.Random(0)
    pairs = {}                                  # a prompt comes once
    while len(pairs) < 1200:
        h = rng.randrange(24)
        m = rng.randrange(60)
        pairs[f'{h}h{m:02}m='] = str(60 * h + m)
    return list(pairs.items())[200:], list(pairs.items())[:200]
