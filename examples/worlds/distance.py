"""Find a digit in two guesses: after each guess the world says how far away the secret is. A game
is `3470`: 3 is 4 away from the secret, 7 is it. Those to learn from guess at random. (Who guesses 0
or 9 first is told the secret.)"""
import random

DIGITS = '0123456789'

def reply(completion, secret='7'):
    """Say how far the guess is from the secret; at 0 the game is over."""
    far = abs(DIGITS.find(completion[-1]) - int(secret))
    return str(far), far == 0

def verify(sampled, secret):
    return float(secret in sampled[:2])         # `sampled` is without the world's words

def play(secret, rng):
    game = ''
    for _ in range(2):
        game += rng.choice(DIGITS)
        far, done = reply(game, secret)
        game += far
        if done:
            break
    return game

def games_of(play, secrets, held_out, name='secret'):
    """Return texts() of a game, for the other worlds, too: play() plays 20,000 games to learn from,
    and the held-out ones. Records have the secret in a column of this name."""
    def texts():
        rng = random.Random(1)
        parts = rng.choices(secrets, k=20_000), held_out
        return [[{'prompt': ':', name: secret, 'answer': play(secret, rng)} for secret in part]
                for part in parts]
    return texts

texts = games_of(play, DIGITS, DIGITS * 6)
