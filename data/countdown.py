"""Countdown: three digits, each once, make a number. After each of six attempts the world says: it
is too small (<), too large (>), right (=). `3+5*6>5+6-3<3*5+6=` makes 21 of 356."""
import functools
import itertools
import random
import re


@functools.cache
def attempts(digits):
    """Return {attempt: its value} for all values from 0 to 99."""
    pairs = itertools.product(sorted(set(itertools.permutations(digits))),
                              itertools.product('+-*', repeat=2))
    values = {text: eval(text) for text in (f'{a}{x}{b}{y}{c}' for (a, b, c), (x, y) in pairs)}
    return {text: value for text, value in values.items() if 0 <= value <= 99}

def reply(prompt, completion):
    attempt = re.split('[<>=]', completion)[-1]
    if re.fullmatch(r'\d[-+*]\d[-+*]\d', attempt):
        difference = eval(attempt) - int(prompt[4:-1])
        return '<' if difference < 0 else '>' if difference > 0 else '='

def verify(prompt, completion):
    attempt = re.split('[<>]', completion)[-1].removesuffix('=')
    return float(completion.endswith('=') and reply(prompt, attempt) == '='
                 and sorted(re.findall(r'\d', attempt)) == list(prompt[:3]))

def play(digits, target, rng):
    prompt, game = f"{''.join(digits)}:{target}=", ''
    for attempt in rng.choices(list(attempts(digits)), k=6):
        if not game.endswith('='):
            game += attempt + reply(prompt, attempt)
    return prompt, game

def texts():
    rng = random.Random(2402)
    tasks = [(digits, target) for digits in itertools.combinations_with_replacement('123456789', 3)
             for target in sorted(set(attempts(digits).values()))]
    rng.shuffle(tasks)
    return [[play(*task, rng) for task in part] for part in (tasks[256:] * 20, tasks[:256])]
