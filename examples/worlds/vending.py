"""Buy from a vending machine and lose no money. `?` asks for the price, 1 to 9; coins are 1, 2 and
5, and after each the machine shows how much is in it (+: more than 9); `b` is the button. It keeps
what is paid too much, and all of it if that is too little. A game is `?8552718b!`; each
character of the policy is followed by one of the machine. Those to learn from are random moves."""

from data.games import games_of

PRICES = '123456789'
COINS = {'1': 1, '2': 2, '5': 5}

def paid(moves):
    return sum(COINS.get(move, 0) for move in moves)

def reply(completion, price='8'):
    """Say the price, the sum, or what the button gives: the item (!) or nothing (-)."""
    moves = completion[::2]                     # what is between them was said here
    if moves[-1] in COINS:
        return str(paid(moves)) if paid(moves) <= 9 else '+'
    if moves[-1] == 'b':
        return '!' if paid(moves) >= int(price) else '-', True
    return price if moves[-1] == '?' else '-'

def verify(sampled, price):
    return float(sampled.endswith('b') and paid(sampled) == int(price))

def play(price, rng):
    game = ''
    while len(game) < 12 and game[-2:-1] != 'b':
        game += rng.choice('?125b')
        said = reply(game, price)
        game += said[0]
    return game

texts = games_of(play, PRICES, PRICES * 8, 'price')
