"""The texts() of a game that is played at random, for examples/worlds/."""
import random


def games_of(play, secrets, held_out, name='secret'):
    """Return texts() of a game: play(secret, rng) plays 20,000 games with random secrets to learn
    from, and one game with each held-out secret. Records have the secret in a column, `name`."""
    def texts():
        rng = random.Random(1)
        parts = rng.choices(secrets, k=20_000), held_out
        return [[{'prompt': ':', name: secret, 'answer': play(secret, rng)} for secret in part]
                for part in parts]
    return texts
