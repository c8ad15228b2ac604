"""Find a digit in two guesses: after each guess the world says how far away the secret is. A game
is a text such as `3470`: 3 is 4 away from the secret, and 7 is the secret. The guesses of training
games are random. Whoever guesses 0 or 9 first knows the secret after one guess. Does the policy
find out?"""
from data.games import games_of

DIGITS = '0123456789'

def reply(completion, secret='7'):
    """Say how far the guess is from the secret. At 0 the game is over."""
    far = abs(DIGITS.find(completion[-1]) - int(secret))
    return str(far), far == 0

def verify(sampled, secret):
    return float(secret in sampled[:2])         # without the world's words

def play(secret, rng):
    game = ''
    for _ in range(2):
        game += rng.choice(DIGITS)
        far, done = reply(game, secret)
        game += far
        if done:
            break
    return game

texts = games_of(play, DIGITS, DIGITS * 6)
