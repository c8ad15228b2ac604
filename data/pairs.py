"""Prompts and answers of your own, from a file with one JSON object a line:

    {"prompt": "3h05m=", "answer": "185"}

Objects without an answer, which then none may have, are prompts to be continued. Other names are
columns, which rewards can ask for, and so is `line`, such as 'mine.jsonl, line 3'."""
import json
from pathlib import Path

BLANK = '_'                 # a blank, as people type it and see it


def read_text(path):
    """Return the text of a UTF-8 file."""
    try:
        return Path(path).read_text('utf-8-sig')
    except UnicodeDecodeError as e:
        line = 1 + e.object[:e.start].count(b'\n')
        raise AssertionError(f"{path}, line {line}: expected UTF-8, not {e.object[e.start:][:9]} "
                             f"({e.reason})") from e


def read_records(path):
    """Return the records of a file, dicts with 'prompt' and 'answer'. An error names the first line
    that is no record."""
    records = []
    for number, line in enumerate(read_text(path).split('\n'), 1):
        place = f'{Path(path).name}, line {number}'      # whichever folder it is in
        try:
            if line.strip():
                records.append(as_record({'line': place} | json.loads(line)))
        except Exception as e:
            why = repr(e)[:100].replace('line 1 ', '')      # json sees one line
            raise AssertionError(
                f'{path}, line {number}: expected {{"prompt": "12+35=", "answer": "047"}}, both in '
                f'quotes, or a prompt alone ({why})') from None
    return records


def as_record(text):
    """Return the record of a pair (prompt, answer), or of a dict; a string stays as it is."""
    if type(text) is str:
        return text
    if type(text) in (tuple, list):
        text = dict(zip(('prompt', 'answer'), text, strict=True))
    record = {'answer': ''} | text
    reserved = record.keys() & {'prompts', 'completion', 'completions', 'text', 'texts', 'ended'}
    assert not reserved, f"{reserved} cannot be columns: rewards get these from the run"
    (record['prompt'] + record['answer']).encode()          # raises if they are no text
    return record


def is_answer(completion, answer):
    """verify() of records: 1.0 if the completion is the answer, else 0.0."""
    return float(completion.strip() == answer.strip())
