"""Word problems that need a calculator, and the calculator, which is a world. For example, to

    Q: Rob has 12 bags of 75 nuts and eats 64 nuts. How many nuts are left?
    A: 12*75=

the calculator says 900, the policy continues with `. 900-64=`, the calculator says 836, and the
policy ends with `. The answer is 836.` The names and the pairs of factors of held-out problems are
in no training problem."""
import random
import re

EXAMPLES = """\
Q: Rob has 12 bags of 75 nuts and eats 64 nuts. How many nuts are left?
A: 12*75=900. 900-64=836. The answer is 836.

Q: Kim bakes 31 trays of 42 rolls, and then 17 rolls. How many rolls is that?
A: 31*42=1302. 1302+17=1319. The answer is 1319.

"""
STORIES = [                     # each with the sign of its last number
    ("{name} has {a} boxes of {b} eggs and drops {c} eggs. How many eggs are left?", -1),
    ("A theater has {a} rows of {b} seats, and {c} are taken. How many seats are free?", -1),
    ("{name} finds {a} bags of {b} coins, and then {c} coins. How many coins is that?", 1),
    ("{name} walks {a} miles a day for {b} days, and then {c} miles. How many miles is that?", 1),
]
NAMES = ('Ana Ben Cem Dina Eli Fatma Goran Hana Igor Jin Kofi Lena Mia Nuri Olga Pablo Rosa Sam '
         'Tom Uma').split()
HELD_OUT_NAMES = 'Ada Bo Clara Dev Emil Yuki Zoe'.split()
RESULT = {'+': int.__add__, '-': int.__sub__, '*': int.__mul__}


def texts():
    """Return 4,000 training problems and 240 held-out ones: records with 'prompt' and 'answer'."""
    rng = random.Random(74)
    pairs = [(a, b) for a in range(12, 99) for b in range(12, 99)]
    rng.shuffle(pairs)
    return ([make_problem(pairs[1000:], NAMES, rng) for _ in range(4000)],
            [make_problem(pairs[:1000], HELD_OUT_NAMES, rng) for _ in range(240)])


def make_problem(pairs, names, rng):
    """Return a random problem with one of the pairs of factors and one of the names."""
    a, b = rng.choice(pairs)
    c = rng.randrange(12, 99)
    story, sign = rng.choice(STORIES)
    question = story.format(name=rng.choice(names), a=a, b=b, c=c)
    return {'prompt': f'{EXAMPLES}Q: {question}\nA:', 'answer': str(a * b + sign * c)}


def reply(completion):
    """Return the result of a computation if the completion ends with one, such as 12*75=. A
    completion that has its answer is over.

    This looks at the text and not at the last token, because tokenizers merge characters: ` =` and
    `=` are different tokens of SmolLM2. A token that continues after the `=`, such as `="`, does
    not call the calculator."""
    if answer_of(completion):
        return '', True
    call = re.search(r'([0-9]+) ?([-+*]) ?([0-9]+) ?=$', completion)
    return str(RESULT[call[2]](int(call[1]), int(call[3]))) if call else None


def answer_of(completion):
    """Return the number after "answer is", as text, if it is complete, else None."""
    answer = re.search(r'answer is (-?\d+)\D', completion)
    return answer and answer[1]


def verify(completion, answer):
    """Return 1.0 if the answer is right, else 0.0. It does not matter who has computed it."""
    return float(answer_of(completion) == answer)
