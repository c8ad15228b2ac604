"""Prompts and answers of your own, from a file with one JSON object a line:

    {"prompt": "3h05m=", "answer": "185"}

An object without an answer is a prompt to be continued."""
import json

from common import fail


def read_pairs(path):
    """Return the pairs (prompt, answer) of a file. Exit and name the first line that is no pair."""
    pairs = []
    with open(path, encoding='utf-8-sig') as file:
        for number, line in enumerate(file, 1):
            try:
                if line.strip():
                    pairs.append(as_pair(**json.loads(line)))
            except Exception as e:
                fail(f'{path}, line {number}: expected {{"prompt": "12+35=", "answer": "047"}}, '
                     f'both in quotes, or a prompt alone ({e})')
    return pairs


def as_pair(prompt, answer=''):
    (prompt + answer).encode()                  # raises if they are no text
    return prompt, answer


def is_answer(prompt, completion, original):
    """verify() of pairs: 1.0 if the completion is the answer, else 0.0."""
    return float(completion.strip() == original.strip())
