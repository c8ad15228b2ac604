"""FILE.jsonl as records. A line is a JSON object, such as {"prompt": "12+35=", "answer": "047"}, or
a list, such as ["12+35=", "047"]. Lines with "held_out": true are held out; if no line has it, a
tenth of the prompts is. Each record knows the number of its line, `line`."""
import difflib
import json
import re
import zlib
from pathlib import Path

from plumbing.process import expect

# What others call "held_out".
MARKS = 'test', 'is_test', 'val', 'is_val', 'valid', 'validation', 'eval', 'dev'


def of_lines(path):
    """Return {'texts': ...} of FILE.jsonl."""
    records, known = [], set()          # names of columns
    text = Path(path).read_bytes()
    expect(not text.startswith((b'\xff\xfe', b'\xfe\xff')), f'{path}: expected text in UTF-8, and '
           'it is UTF-16')
    for number, line in enumerate(text.split(b'\n'), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if type(record) is list and len(record) == 2:
                record = dict(zip(('prompt', 'answer'), record))
            is_right = type(record['prompt']) is type(record.get('answer', '')) is str
            # A hash of the prompt, so that equal prompts stay together.
            is_tenth = zlib.crc32(record['prompt'].encode()) % 10 == 0
        except (ValueError, TypeError, KeyError, AttributeError):       # no JSON, no object, ...
            is_right = False
        is_half = not is_right and re.search(rb'\\u[dD][89a-fA-F]', line)
        expect(not is_half, f'{path}, line {number}: half of a letter of two parts, as in \\ud83d')
        expect(is_right and type(record.get('held_out', True)) is bool, (
            f'{path}, line {number}: expected {{"prompt": "12+35=", "answer": "047"}}, both texts, '
            f'perhaps with "held_out": true, not {line.decode(errors="replace")!r:.80}'))
        for name in record.keys() - known:
            known.add(name)
            near = difflib.get_close_matches(name.lower(), ['held_out'], 1, 0.8)
            is_meant = near or name.lower() in MARKS and type(record[name]) is bool
            expect(not is_meant or name == 'held_out', f'{path}, line {number}: {name!r}: did you '
                   'mean "held_out"?')
        records.append(({'line': number} | record, is_tenth))
    is_marked = any('held_out' in record for record, _ in records)
    parts = [], []
    for record, is_tenth in records:
        parts[record.pop('held_out', False) if is_marked else is_tenth].append(record)
    return {'texts': lambda: parts}
