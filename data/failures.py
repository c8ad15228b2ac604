"""Prompts for config/grpo_labels.py: pieces of the docstrings that are followed by a failure word.

A prompt has 32 characters and no failure word. The next 32 characters of the text have one. There
are no answers."""
import re

from data import docstrings

FAILURE = re.compile(r"error|fail|invalid|deprecat|unsupported|except|illegal|wrong|bad |broken|"
                     r"corrupt|missing|cannot|can't|unable|warn|abort|refuse|reject|unknown|"
                     r"undefined|obsolete|not (supported|found|allowed|available)", re.I)


def texts():
    return [failing_prompts(paragraphs) for paragraphs in docstrings.texts()]


def failing_prompts(paragraphs):
    """Return a pair (prompt, '') for each prompt that is followed by a failure word."""
    # a window of 32 + 32 characters slides over the text: prompt, and what follows it
    pairs = []
    for text in paragraphs:
        for i in range(0, len(text) - 64, 8):
            prompt = text[i:i + 32]
            if not FAILURE.search(prompt) and fails(prompt, text[i + 32:i + 64]):
                pairs.append((prompt, ''))
    return pairs


def fails(prompt, completion):
    """Return whether a completion has a failure word, which may begin in the prompt."""
    return any(match.end() > len(prompt) for match in FAILURE.finditer(prompt + completion))
