"""Mastermind: find three pegs of four colours in five guesses. After each guess the world says how
many pegs are right, and how many more have a right colour at a wrong position. A game is a text
such as `abc02adb12bda30`. Training games are played at random: each guess might still be right."""
import collections
import functools
import itertools

from data.games import games_of

COLOURS = 'abcd'
SECRETS = [''.join(pegs) for pegs in itertools.product(COLOURS, repeat=3)]
N_GUESSES = 5

@functools.cache
def pins(guess, secret):
    right = sum(a == b for a, b in zip(guess, secret))
    common = collections.Counter(guess) & collections.Counter(secret)
    return f'{right}{common.total() - right}'

def reply(completion, secret='bda'):
    if len(completion) % 5 == 3:                # three pegs, two numbers
        said = pins(completion[-3:], secret)
        return said, said == '30'

def verify(sampled, secret):
    return float(secret in [sampled[i:i + 3] for i in range(0, 3 * N_GUESSES, 3)])

def play(secret, rng):
    game = ''
    possible = SECRETS
    while len(game) < 5 * N_GUESSES and not game.endswith('30'):
        guess = rng.choice(possible)
        said = pins(guess, secret)
        game += guess + said
        possible = [other for other in possible if pins(guess, other) == said]
    return game

texts = games_of(play, SECRETS, SECRETS * 2)
