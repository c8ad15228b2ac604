"""Records of a game that is played at random, for examples/worlds/."""
import random


def games_of(play, secrets, held_out, name='secret'):
    """Return the function texts() of a game. play(secret, rng) returns a game as text. 20,000 games
    with random secrets are for training; each secret of the list held_out gives a held-out game.
    The secret is a column of the records, and `name` is its name."""
    def texts():
        rng = random.Random(1)
        parts = rng.choices(secrets, k=20_000), held_out
        return [[{'prompt': ':', name: secret, 'answer': play(secret, rng)} for secret in part]
                for part in parts]
    return texts
