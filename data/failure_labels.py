"""Texts for a classifier (config/networks/judge_labels.py): windows of 64 characters of the
docstrings. The label is 0 if the text speaks of failure, else 1."""
from data import docstrings
from data.failures import FAILURE
from data.text import windows


def texts():
    return [labelled(windows(paragraphs, 64, n))
            for paragraphs, n in zip(docstrings.paragraphs(), (50_000, 2_000))]


def labelled(texts):
    return [{'prompt': text, 'label': int(not FAILURE.search(text))} for text in texts]
