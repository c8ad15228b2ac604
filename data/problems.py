"""Word problems for a language model that answers in sentences, such as

    15 penguins wait for the bus. 6 more waddle up. How many penguins wait now?

The last number that it writes is its answer. The names and the pairs
of numbers of held-out problems are in no training problem."""
import random
import re

STORIES = [
    "{name} has {a} apples. {friend} gives {name} {b} more. How many apples does {name} have now?",
    "{a} penguins wait for the bus. {b} more waddle up. How many penguins wait now?",
    "{name} is {a} years old. {friend} is {b} years older. How old is {friend}?",
    "{name} found {a} shells on the beach, and {friend} found {b}. How many shells do they have "
    "together?",
    "A monster eats {a} pizzas on Monday and {b} pizzas on Tuesday. How many pizzas does it eat?",
    "A dragon sleeps on {a} gold coins and finds {b} more. How many gold coins does it have now?",
]
NAMES = ('Ana Ben Cem Dina Eli Fatma Goran Hana Igor Jin Kofi Lena Mia Nuri Olga Pablo Rosa Sam '
         'Tom Uma').split()
HELD_OUT_NAMES = 'Ada Bo Clara Dev Emil Yuki Zoe'.split()


def texts():
    """Return 4,000 training problems and 240 held-out ones: records with 'prompt' and 'answer'."""
    rng = random.Random(2402)
    pairs = [(a, b) for a in range(4, 21) for b in range(2, a)]
    rng.shuffle(pairs)
    return ([make_problem(pairs[30:], NAMES, rng) for _ in range(4000)],
            [make_problem(pairs[:30], HELD_OUT_NAMES, rng) for _ in range(240)])


def make_problem(pairs, names, rng):
    """Return a random problem with one of the pairs of numbers, and two of the names."""
    a, b = rng.choice(pairs)
    name, friend = rng.sample(names, 2)
    prompt = rng.choice(STORIES).format(a=a, b=b, name=name, friend=friend)
    return {'prompt': prompt, 'answer': str(a + b)}


def verify(completion, answer):
    """Return 1.0 if the last number of a completion is the answer, else 0.0."""
    return float(re.findall(r'\d+(?:[.,]\d+)*', completion)[-1:] == [answer])
