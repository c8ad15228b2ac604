"""Open a lock of three dials, 0 to 5, in three tries. After each try the world says for each dial
whether its digit is smaller (<), larger (>) or right (=). A game is a text such as
`222>=<421<=<320===`. Training games are played at random: each digit might still be right."""
import itertools

from data.games import games_of

SECRETS = [''.join(digits) for digits in itertools.product('012345', repeat=3)]

def hint(digit, right):
    if digit == right:
        return '='
    return '<' if right < digit else '>'

def reply(completion, secret='320'):
    """Say three hints after every third digit. If all are right, the lock is open."""
    if len(completion) % 6 == 3:
        hints = ''.join(map(hint, completion[-3:], secret))
        return hints, hints == '==='

def verify(sampled, secret):
    return float(secret in (sampled[:3], sampled[3:6], sampled[6:9]))

def play(secret, rng):
    game = ''
    possible = ['012345'] * 3
    while len(game) < 18 and not game.endswith('==='):
        tried = ''.join(map(rng.choice, possible))
        hints, _ = reply(game + tried, secret)
        game += tried + hints
        for dial in range(3):                   # keep what would have got this hint
            possible[dial] = [right for right in possible[dial]
                              if hint(tried[dial], right) == hints[dial]]
    return game

texts = games_of(play, SECRETS, SECRETS)
