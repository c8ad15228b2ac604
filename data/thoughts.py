"""The game of cups (data/cups.py) for a network that fills blanks: where is the ball after each of
eight swaps? A held-out prompt is `b ea ca dc de db eb ba ac=________`. In training prompts one to
eight of the thoughts are blank, such as `b ea ca dc de db eb ba ac=b_bb__e_`."""
import random

from data.cups import follow, make_prompt, verify
from dataset import BLANK

N_SWAPS = 8


def texts(n_train=100_000):
    """Return n_train training records and 512 that are held out."""
    rng = random.Random(2402)
    prompts = {}                                # a dict, because the order of a set is not fixed
    while len(prompts) < 512 + n_train:
        prompts[make_prompt(N_SWAPS, N_SWAPS, rng)] = True
    records = []
    for i, prompt in enumerate(prompts):
        n_blanks = N_SWAPS if i < 512 else rng.randint(1, N_SWAPS)
        blanks = rng.sample(range(N_SWAPS), n_blanks)
        thoughts = follow(prompt)
        shown = ''.join(BLANK if t in blanks else cup for t, cup in enumerate(thoughts))
        records.append({'prompt': prompt + shown, 'answer': prompt + thoughts})
    return records[512:], records[:512]
