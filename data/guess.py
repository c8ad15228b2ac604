"""Guess a letter in four turns: after each guess the world says whether the letter comes before it
(<), after it (>), or is found (=). A game is `h<d>f=`. Those to learn from are played at random:
each guess may still be right."""
import random

LETTERS = 'abcdefghijklmno'     # 15, which four guesses can tell apart


def reply(completion, secret='h'):
    """What the world says after the policy's last token. (A typed prompt has no secret.)"""
    guess = completion[-1]
    if guess == secret:
        return '=', True                        # the game is over
    return '<' if secret < guess else '>'


def verify(sampled, secret):
    """The last guess is right. sampled: without the world's words, which a policy could write, too."""
    return float(sampled[-1:] == secret)


def play(secret, letters, n_guesses, careless, rng):
    """Return a game. careless: guesses ignore what the world says."""
    game = ''
    possible = letters
    while len(game) < 2 * n_guesses and not game.endswith('='):
        guess = rng.choice(letters if careless else possible)
        game += guess
        game += reply(game, secret)[0]          # the first of ('=', True), or a letter
        before, _, after = possible.partition(guess)
        possible = before if secret < guess else after
    return game


def texts(letters=LETTERS, n_guesses=4, careless=False):
    rng = random.Random(1)
    secrets = rng.choices(letters, k=20_000)
    train, held_out = [
        [{'prompt': ':', 'answer': play(secret, letters, n_guesses, careless, rng),
          'secret': secret} for secret in part] for part in (secrets, letters * 4)]
    # Without those that are held out, most of them short, GRPO ends at 99 %, with them at 91 to 99.
    return [game for game in train if game not in held_out], held_out
