"""Prompts that invite talk of failure: 32 characters of the docstrings that have no word of
failure, where the next 32 characters have one. There are no answers."""
import re

from data import docstrings

FAILURE = re.compile(r"error|fail|invalid|deprecat|unsupported|except|illegal|wrong|bad |broken|"
                     r"corrupt|missing|cannot|can't|unable|warn|abort|refuse|reject|unknown|"
                     r"undefined|obsolete|not (supported|found|allowed|available)", re.I)


def texts():
    return [failing(paragraphs) for paragraphs in docstrings.paragraphs()]


def failing(paragraphs):
    """Return a record for each prompt that is followed by a word of failure."""
    records = []
    for text in paragraphs:
        for i in range(0, len(text) - 64, 8):
            prompt = text[i:i + 32]
            if not FAILURE.search(prompt) and fails(prompt, text[i + 32:i + 64]):
                records.append({'prompt': prompt})
    return records


def fails(prompt, completion):
    """Return whether a completion has a word of failure, which may begin in the prompt."""
    return any(match.end() > len(prompt) for match in FAILURE.finditer(prompt + completion))
