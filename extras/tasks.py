"""Six small tasks, as files of prompts and answers: how many lines does a task need?

    python -m extras.tasks roman 1000 > roman.jsonl     # 1,000 lines to learn from, 200 held out
    python train_grpo.py config/grpo_pairs.py --dataset=roman.jsonl

docs/data.md has the results. The 200 held-out lines are the same for each number of lines."""
import json
import random

from extras.words import words_of
from run.command import fail_unknown

DAYS = 'mon tue wed thu fri sat sun'.split()
SIGNS = {1000: 'M', 900: 'CM', 500: 'D', 400: 'CD', 100: 'C', 90: 'XC', 50: 'L', 40: 'XL', 10: 'X',
         9: 'IX', 5: 'V', 4: 'IV', 1: 'I'}


def times(rng):
    """3h05m=  185: hours and minutes as minutes, 1,440 prompts."""
    h = rng.randrange(24)
    m = rng.randrange(60)
    return f'{h}h{m:02}m=', str(60 * h + m)


def roman(rng):
    """XIV=  14: numbers below 4,000."""
    n = rest = rng.randrange(1, 4000)
    numeral = ''
    for value, sign in SIGNS.items():
        numeral += rest // value * sign
        rest %= value
    return f'{numeral}=', str(n)


def runs(rng):
    """dddbb=  3d2b: run-length encoding, of two to four runs of up to five equal letters."""
    letters = [rng.choice('abcd')]
    for _ in range(rng.randint(1, 3)):
        others = 'abcd'.replace(letters[-1], '')
        letters.append(rng.choice(others))
    prompt = answer = ''
    for letter in letters:
        count = rng.randint(1, 5)
        prompt += count * letter
        answer += f'{count}{letter}'
    return f'{prompt}=', answer


def days(rng):
    """thu+98=  thu: the day of the week so many days later, up to 999: 7,000 prompts."""
    day = rng.randrange(7)
    n = rng.randrange(1000)
    return f'{DAYS[day]}+{n}=', DAYS[(day + n) % 7]


def day_steps(rng):
    """thu+98=  20 thu: the same task. First come the remainders of the first digits, here of 9 and
    of 98, divided by seven."""
    prompt, day = days(rng)
    number = prompt[4:-1]
    remainders = [str(int(number[:i]) % 7) for i in range(1, len(number) + 1)]
    return prompt, f"{''.join(remainders)} {day}"


def sort(rng):
    """dbca=  abcd: five or six different letters in the order of the alphabet."""
    letters = rng.sample('abcdefghijklmnopqrstuvwxyz', rng.choice((5, 6)))
    return ''.join(letters) + '=', ''.join(sorted(letters))


TASKS = {task.__name__: task for task in (times, roman, runs, days, day_steps, sort)}

if __name__ == "__main__":
    name, n = words_of(__doc__, 2)
    if name not in TASKS:
        fail_unknown('expected a task, not', name, TASKS)
    assert n.isdecimal(), f"expected a number of lines, not {n}"
    rng = random.Random(0)
    pairs = {}                                  # a prompt comes once
    for _ in range(100 * (int(n) + 200)):
        if len(pairs) == int(n) + 200:
            break
        prompt, answer = TASKS[name](rng)
        pairs[prompt] = answer
    assert len(pairs) == int(n) + 200, f"{name} has no {n} prompts besides 200 held out"
    for i, (prompt, answer) in enumerate(pairs.items()):
        print(json.dumps({'prompt': prompt, 'answer': answer, 'held_out': i < 200}))
