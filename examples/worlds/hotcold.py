"""Hot and cold: a treasure lies up to two steps away in each direction of a field. The policy takes
ten steps, left, right, up or down, and after each one the world says warmer (+), colder (-) or
found (!). A game is a text such as `r+u-d+r!`. The steps of training games are random."""

from data.games import games_of

SECRETS = [f'{x}{y}' for x in '01234' for y in '01234' if x + y != '22']
STEPS = {'l': (-1, 0), 'r': (1, 0), 'u': (0, 1), 'd': (0, -1)}
N_STEPS = 10

def distance(moves, secret):
    """Return the distance from the treasure after these moves, which begin at 22."""
    x, y = 2, 2
    for move in moves:
        dx, dy = STEPS.get(move, (0, 0))
        x += dx
        y += dy
    return abs(x - int(secret[0])) + abs(y - int(secret[1]))

def reply(completion, secret='32'):
    moves = completion[::2]                     # the world said the rest
    now = distance(moves, secret)
    if now == 0:
        return '!', True
    return '+' if now < distance(moves[:-1], secret) else '-'

def verify(sampled, secret):
    return float(distance(sampled[:N_STEPS], secret) == 0)

def play(secret, rng):
    game = ''
    while len(game) < 2 * N_STEPS and not game.endswith('!'):
        game += rng.choice('lrud')
        game += reply(game, secret)[0]
    return game

texts = games_of(play, SECRETS, SECRETS * 4)
