"""The game of cups (data/cups.py) whose texts never think before they answer."""
import data.cups
from data.cups import verify        # noqa: F401


def texts():
    return data.cups.texts(share=0.0)
