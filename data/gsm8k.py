"""GSM8K (MIT, arXiv:2110.14168): word problems in English. 7,473 problems are for training, and the
1,319 test problems are held out. The first use downloads them, 5 MB, from the repository of the
authors to out/gsm8k-train.jsonl and out/gsm8k-test.jsonl.

A problem takes two to eight steps, and its answer is a whole number. A language model thinks in
words first, so the last number that it writes is its answer. Set max_new_tokens: without it a
completion has room for the answer alone, and none for thoughts."""
import json
import os
import re
import urllib.request

from plumbing.process import Mistake, expect

URL = ('https://raw.githubusercontent.com/openai/grade-school-math/'
       '3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data/{}.jsonl')
SIZES = {'train': 7473, 'test': 1319}
# A minus is a sign only if no number stands before it: 5-10 ends with 10. Commas separate groups
# of three digits.
NUMBER = re.compile(r'(?:(?<![\w)])-)?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?')


def texts():
    return [problems('train'), problems('test')]


def problems(part):
    """Return records {'prompt': question, 'answer': number}. The answers of the benchmark are
    solutions that end with `#### 72`."""
    path = f'out/gsm8k-{part}.jsonl'
    if not os.path.exists(path):
        download(part, path)
    with open(path, encoding='utf-8') as file:
        rows = [json.loads(line) for line in file]
    return [{'prompt': row['question'], 'answer': row['answer'].split('####')[1].strip()}
            for row in rows]


def download(part, path):
    url = URL.format(part)
    try:
        lines = urllib.request.urlopen(url).read()
    except OSError as e:
        raise Mistake(f"there is no {path}, and {url} cannot be read: {e}") from None
    n = lines.count(b'\n')
    expect(n == SIZES[part], f"{url} has {n} problems: expected {SIZES[part]}")
    os.makedirs('out', exist_ok=True)
    temporary = f'{path}.{os.getpid()}.tmp'     # two runs can download it at the same time
    with open(temporary, 'wb') as file:
        file.write(lines)
    os.replace(temporary, path)                 # whole or not there


def verify(completion, answer):
    """Return 1.0 if the last number of a completion is the answer, else 0.0."""
    number = last_number(completion)
    return float(number is not None and number == last_number(answer))


def last_number(text):
    """Return the last number of a text, or None. -$1,234.50 and 18% are numbers, too."""
    numbers = NUMBER.findall(text.replace('$', ''))
    return float(numbers[-1].replace(',', '')) if numbers else None
