"""The game of data/cups.py with up to twenty swaps: a thought has 22 tokens, and each step of the
texts is wrong in 1 % of the cases."""
from data import cups
from data.cups import verify


def texts():
    return cups.texts(errors=0.01, n_swaps=20)
