"""data/thoughts.py with thoughts that are written from the last one to the first."""
import functools

from data import cups, thoughts

texts = functools.partial(thoughts.texts, backwards=True)


def verify(text):
    prompt, _, steps = text.partition('=')
    return cups.verify(f'{prompt}={steps[::-1]}')
