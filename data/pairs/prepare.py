"""Prompts and answers of your own, from a file of JSON lines {"prompt": ..., "answer": ...}.

    python data/pairs/prepare.py --input=mine.jsonl
    python data/pairs/prepare.py --input=mine.jsonl --val=held_out.jsonl --tokenizer=gpt2

Without an answer a line is a prompt to be continued. Without --val a tenth of the prompts is held
out. verify() says whether a completion is the answer; a reward of your own can say more."""
import json
import os
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..'))
from common import configure, fail, one_of
from data.dataset import write_corpus

input = ''                  # file of JSON lines to train on
val = ''                    # file of JSON lines to hold out; '': a tenth of the other's prompts
tokenizer = 'char'          # 'char': one symbol per character | 'gpt2': byte pairs, by tiktoken
vocabulary = ''             # corpus whose characters to take, such as 'docstrings'; '': its own
EXPECTED = 'expected JSON lines {"prompt": "12+35=", "answer": "047"}; the answer may be left out'


def verify(prompt, completion, original):
    """1.0 if the completion is the answer, else 0.0."""
    return float(completion.strip() == original.strip())


def read_pairs(path):
    """The (prompt, answer) of each line of a file. Ends with one line that names a bad one."""
    pairs = []
    number = 0
    try:
        with open(path, encoding='utf-8-sig') as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    pairs.append(read_pair(line))
    except (OSError, ValueError) as e:
        where = f'{path}, line {number}' if number else path
        fail(f"{where}: {getattr(e, 'strerror', None) or e}; {EXPECTED}")
    return pairs


def read_pair(line):
    """(prompt, answer) of a line. Raises ValueError."""
    item = json.loads(line)
    if type(item) is not dict or 'prompt' not in item:
        raise ValueError("no object with a prompt")
    prompt = item['prompt']
    answer = item.get('answer', '')
    for name, text in (('prompt', prompt), ('answer', answer)):
        if type(text) is not str:
            raise ValueError(f"the {name} is {text!r}, no text")
        if '\n' in text:
            raise ValueError(f"the {name} has a line feed in it, which ends a row")
    if prompt + answer == '':
        raise ValueError("prompt and answer are empty")
    return prompt, answer


if __name__ == "__main__":
    configure(globals())
    one_of(('char', 'gpt2'), tokenizer=tokenizer)
    if input == '':
        fail("no prompts of yours yet; python data/pairs/prepare.py --input=mine.jsonl; "
             f"{EXPECTED}")
    train = read_pairs(input)
    if val:
        held_out = read_pairs(val)
    else:
        # By prompt, not by line: a prompt that stands there twice is not learned and held out.
        prompts = sorted({prompt for prompt, _ in train})
        if len(prompts) < 10:
            fail(f"{input}: {len(prompts)} different prompts; expected at least 10, a tenth of "
                 "which is held out")
        order = np.random.default_rng(2402).permutation(len(prompts))       # always the same
        chosen = {prompts[i] for i in order[:len(prompts) // 10]}
        held_out = [pair for pair in train if pair[0] in chosen]
        train = [pair for pair in train if pair[0] not in chosen]
    write_corpus(HERE, 'pairs', train, held_out, tokenizer, vocabulary)
