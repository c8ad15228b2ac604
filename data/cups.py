"""A game: under which cup is the ball? Pairs such as `b ea ca dc de db eb ba ..=` and `d`.

A ball lies under one of five cups, a to e. A prompt names this cup, and then up to eight swaps (in
extras/studies/cups20.py twenty): ea swaps the cups e and a, and .. swaps nothing. The answer is the
cup where the ball ends. Most texts answer at once (`d`); a share of them thinks first: a colon, and then
where the ball is after each swap (`:bbbbdddd`), so that the last letter is the answer."""
import random

CUPS = 'abcde'
N_TEXTS = 40_000


def texts(share=0.1, errors=0.0, n_swaps=8):
    """Return N_TEXTS training pairs and 512 held-out pairs, with 1 to n_swaps swaps equally often.
    share: of the texts that think. errors: of their steps that name a wrong cup."""
    # The held-out prompts come first. There are only 100 prompts of one swap, and up to 64 of them
    # are held out.
    rng = random.Random(2402)
    held_out = {}                               # a dict, because the order of a set is not fixed
    for n in range(1, n_swaps + 1):
        while len(held_out) < 512 * n // n_swaps:
            held_out[make_prompt(n, n_swaps, rng)] = True
    train = []
    while len(train) < N_TEXTS:
        prompt = make_prompt(1 + len(train) % n_swaps, n_swaps, rng)
        if prompt not in held_out:
            train.append(prompt)
    # The prompts are drawn before the answers, so they are the same for any share.
    pairs = []
    for prompt in [*train, *held_out]:
        thinks = rng.random() < share
        answer = ':' + follow(prompt, errors, rng) if thinks else follow(prompt)[-1]
        pairs.append((prompt, answer))
    return pairs[:len(train)], pairs[len(train):]


def make_prompt(n, n_swaps, rng):
    """Return a prompt with n random swaps, and .. up to n_swaps."""
    swaps = [''.join(rng.sample(CUPS, 2)) for _ in range(n)] + ['..'] * (n_swaps - n)
    return ' '.join([rng.choice(CUPS), *swaps]) + '='


def follow(prompt, errors=0.0, rng=random):
    """Return the cup of the ball after each swap. After an error it goes on from the wrong cup."""
    ball, *swaps = prompt.rstrip('=').split()
    steps = ''
    for a, b in swaps:
        ball = {a: b, b: a}.get(ball, ball)
        if rng.random() < errors:
            ball = rng.choice(CUPS.replace(ball, ''))
        steps += ball
    return steps


def verify(text):
    """Return 1.0 if the text ends with the cup where the ball ends, else 0.0."""
    prompt, _, answer = text.partition('=')
    return float(answer[-1:] == follow(prompt)[-1])
