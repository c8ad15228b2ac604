"""Prompts and answers of your own, from a file with one JSON object a line:

    {"prompt": "3h05m=", "answer": "185"}

An object without an answer is a prompt to be continued. Other names are columns, which rewards can
ask for, and so is `line`, such as 'mine.jsonl, line 3'."""
import json

from common import fail


def read_records(path):
    """Return the records of a file, dicts with 'prompt' and 'answer'. Exit and name the first line
    that is no record."""
    records = []
    with open(path, encoding='utf-8-sig') as file:
        for number, line in enumerate(file, 1):
            place = f'{path}, line {number}'
            try:
                if line.strip():
                    records.append(as_record({'line': place} | json.loads(line)))
            except Exception as e:
                fail(f'{place}: expected {{"prompt": "12+35=", "answer": "047"}}, both in quotes, '
                     f'or a prompt alone ({e!r:.80})')
    return records


def as_record(text):
    """Return the record of a pair (prompt, answer), or of a dict; a string stays as it is."""
    if type(text) is str:
        return text
    if type(text) is tuple:
        text = {'prompt': text[0], 'answer': text[1]}
    record = {'answer': ''} | text
    (record['prompt'] + record['answer']).encode()          # raises if they are no text
    return record


def is_answer(completion, answer):
    """verify() of records: 1.0 if the completion is the answer, else 0.0."""
    return float(completion.strip() == answer.strip())
