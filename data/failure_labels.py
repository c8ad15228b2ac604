"""Windows of 64 characters of the docstrings, with a label: 1, or 0 if they speak of failure. A
classifier learns from them, see config/networks/judge_labels.py."""
from data import docstrings
from data.failures import FAILURE
from data.text import windows


def texts():
    return [labelled(windows(paragraphs, 64, n))
            for paragraphs, n in zip(docstrings.paragraphs(), (50_000, 2_000))]


def labelled(texts):
    return [{'prompt': text, 'label': int(not FAILURE.search(text))} for text in texts]
