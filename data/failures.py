"""Prompts out of the docstrings after which the text speaks of failure, for config/grpo_labels.py.

A prompt has 32 characters and does not speak of failure. Its own continuation does. There are no
answers."""
import re

from data import docstrings

FAILURE = re.compile(r"error|fail|invalid|deprecat|unsupported|except|illegal|wrong|bad |broken|"
                     r"corrupt|missing|cannot|can't|unable|warn|abort|refuse|reject|unknown|"
                     r"undefined|obsolete|not (supported|found|allowed|available)", re.I)


def texts():
    return [failing_prompts(paragraphs) for paragraphs in docstrings.texts()]


def failing_prompts(paragraphs):
    """Return pairs of a prompt and no answer."""
    # a window of 32 + 32 characters slides over the text: prompt, and what follows it
    pairs = []
    for text in paragraphs:
        for i in range(0, len(text) - 64, 8):
            prompt = text[i:i + 32]
            if not FAILURE.search(prompt) and fails(prompt, text[i + 32:i + 64]):
                pairs.append((prompt, ''))
    return pairs


def fails(prompt, completion):
    """Does a completion, with the word that its prompt began, speak of failure?"""
    return any(match.end() > len(prompt) for match in FAILURE.finditer(prompt + completion))
