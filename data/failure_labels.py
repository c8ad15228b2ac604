"""Pieces of 64 characters of the docstrings, with a label: 1, or 0 if they speak of failure. A
classifier learns from them, see config/networks/judge_labels.py."""
import re

from data import docstrings
from data.failures import FAILURE


def texts():
    return [labelled(paragraphs) for paragraphs in docstrings.paragraphs()]


def labelled(paragraphs):
    return [{'prompt': piece, 'label': int(not FAILURE.search(piece))}
            for piece in re.findall('.{64}', ' '.join(paragraphs))]
