"""Buy from a vending machine and lose no money. `?` asks for the price, 1 to 9. Coins are 1, 2 and
5, and after each coin the machine shows how much is in it (+ means more than 9). `b` is the button:
it gives the item (!) if enough was paid, and the machine keeps the change. If too little was paid,
it gives nothing (-), and the machine keeps all of it. A game is a text such as `?8552718b!`, in
which the policy and the machine take turns. The moves of training games are random."""

from data.games import games_of

PRICES = '123456789'
COINS = {'1': 1, '2': 2, '5': 5}

def paid(moves):
    return sum(COINS.get(move, 0) for move in moves)

def reply(completion, price='8'):
    """Say the price, the sum, or what the button gives: the item (!) or nothing (-)."""
    moves = completion[::2]                     # the machine said the rest
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
