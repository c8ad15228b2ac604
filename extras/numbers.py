"""The numbers of a text, as people write them: a checker for data modules, and for rewards.

    from extras.numbers import same_number as verify

    def right(completions, answer):
        return list(map(same_number, completions, answer))"""
import contextlib
import math
import re
from decimal import Decimal
from fractions import Fraction

NUMBER = re.compile(r"""
    (?: (?<![\w)\]}%-]) [-\N{MINUS SIGN}] )?    # a minus: not the hyphen of 10-12, nor a dash
    [$\N{EURO SIGN}\N{POUND SIGN}]?
    (?: (?<!\d,) [1-9]\d{0,2} (?:,\d{3})+ (?!\d|,\d) (?:\.\d+)?         # 1,234.50; not 8,12
      | (?<![\d/.]) \d+ / 0*[1-9]\d* (?![\d/]|[.,]\d)                   # 3/4
      | \d+ (?:\.\d+)? (?:e[-+]?\d\d?(?!\d))?                           # 34, 3.5, 1e-3
      | (?<![\w.]) \.\d+ )                                              # .5
    """, re.VERBOSE | re.IGNORECASE)


def numbers_in(text):
    """Return the numbers that a text writes, a list: each an int if it is whole, else a float, or
    the Fraction of two numbers that are too long for one. A currency or a percent sign is a unit:
    50 % is 50."""
    numbers = []
    for written in NUMBER.findall(text):
        written = re.sub('[^-\\d./e+]', '', written.lower().replace('\N{MINUS SIGN}', '-'))
        top, _, bottom = written.partition('/')
        # (int() and float() of a text have a limit, and a policy may repeat a digit)
        number = Fraction(Decimal(top)) / Fraction(Decimal(bottom or 1))
        with contextlib.suppress(OverflowError):
            number = int(number) if number.denominator == 1 else float(number)
        numbers.append(number)
    return numbers


def last_number(text):
    """Return the last number of a text. If there is none: NaN, which equals nothing."""
    return (numbers_in(text) or [math.nan])[-1]


def same_number(completion, answer):
    """Return 1.0 if the completion ends with the number with which the answer ends, else 0.0. Both
    may have steps before it."""
    return float(last_number(completion) == last_number(answer))
