"""data/guess.py with 31 letters and five guesses, for config/grpo_guess.py --dataset=."""
from data import guess
from data.guess import reply, verify        # noqa: F401


def texts():
    return guess.texts('ABCDEabcdefghijklmnopqrstuvwxyz', 5)
