"""Prompts and answers of your own, from a file of JSON lines {"prompt": ..., "answer": ...}.

    python data/pairs/prepare.py mine.jsonl
    python data/pairs/prepare.py mine.jsonl --name=roman --val=held_out.jsonl

Without an answer a line is a prompt to be continued. Without --val a tenth of the prompts is held
out. verify() says whether a completion is the answer; a reward of your own can say more."""
import collections
import json
import os
import re
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..'))
from common import configure, fail
from data.dataset import Dataset, make_tokenizer, write_corpus

input = ''                  # file of JSON lines to train on
val = ''                    # file of JSON lines to hold out; '': a tenth of the other's prompts
name = 'pairs'              # of the corpus, data/<name>; several stand side by side
replace = False             # True: a corpus of that name, of another text, is replaced
tokenizer = 'char'          # 'char' | 'gpt2': byte pairs, by tiktoken | folder of a pretrained one
vocabulary = ''             # corpus whose characters to take, such as 'docstrings'; '': its own
template = False            # True: prompts are put into the pretrained tokenizer's chat template
EXPECTED = 'expected JSON lines {"prompt": "12+35=", "answer": "047"}; the answer may be left out'


def verify(prompt, completion, original):
    """1.0 if the completion is the answer, else 0.0."""
    return float(completion.strip() == original.strip())


def read_pairs(path):
    """The (prompt, answer) of each line of a file. Exits with an error that names a bad one."""
    pairs = []
    number = 0
    try:
        with open(path, encoding='utf-8-sig') as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    pairs.append(read_pair(line))
    except (OSError, ValueError, RecursionError) as e:
        where = f'{path}, line {number}' if number else path
        fail(f"{where}: {getattr(e, 'strerror', None) or e}; {EXPECTED}")
    return pairs


def read_pair(line):
    """(prompt, answer) of a line. Raises ValueError."""
    item = json.loads(line)
    if type(item) is not dict or 'prompt' not in item:
        raise ValueError("no object with a prompt")
    for key, text in item.items():
        if key not in ('prompt', 'answer'):
            raise ValueError(f"a key {key!r}, which is none of ours")
        if type(text) is not str:
            raise ValueError(f"the {key} is {text!r}, no text")
        text.encode()                           # a lone surrogate is no text: UnicodeError
    prompt = item['prompt']
    answer = item.get('answer', '')
    if prompt + answer == '':
        raise ValueError("prompt and answer are empty")
    return prompt, answer


def hold_out(pairs):
    """(train, val): a tenth of the prompts, always the same; a prompt that stands there twice is
    not both learned and held out."""
    prompts = sorted({prompt for prompt, _ in pairs})
    if len(prompts) < 10:
        fail(f"{input}: {len(prompts)} different prompts; expected at least 10, a tenth of which "
             "is held out")
    order = np.random.default_rng(2402).permutation(len(prompts))
    chosen = {prompts[i] for i in order[:len(prompts) // 10]}
    train = [pair for pair in pairs if pair[0] not in chosen]
    return train, [pair for pair in pairs if pair[0] in chosen]


if __name__ == "__main__":
    # A word that is no flag and no config file is the input.
    words = [word if word.startswith('-') or word.endswith('.py') else f'--input={word}'
             for word in sys.argv[1:]]
    configure(globals(), words)
    folder = os.path.join(os.path.dirname(HERE), name)
    if not re.fullmatch(r'[\w-]+', name) or (folder != HERE
                                             and os.path.exists(f'{folder}/prepare.py')):
        fail(f"name = {name!r}: expected one that no other prepare.py of data/ has")
    if input == '':
        fail(f"no prompts of yours yet; python data/pairs/prepare.py mine.jsonl; {EXPECTED}")
    train = read_pairs(input)
    if val:
        held_out = read_pairs(val)
    else:
        train, held_out = hold_out(train)
    if template:
        tok = make_tokenizer(tokenizer)
        if not hasattr(tok, 'apply_template'):
            fail(f"template = True: expected --tokenizer=FOLDER of a pretrained one, not "
                 f"{tokenizer}")
        train = [(tok.apply_template(prompt), answer) for prompt, answer in train]
        held_out = [(tok.apply_template(prompt), answer) for prompt, answer in held_out]
    write_corpus(folder, 'pairs', train, held_out, tokenizer, vocabulary,
                 'data/pairs/prepare.py', replace)

    data = Dataset(name)
    lengths = np.concatenate([np.diff(edges) for edges in data.edges.values()])
    print(f"{len(train)} pairs to learn from, {len(held_out)} held out; "
          f"{(~data.has_answers()).sum()} have no answer; rows have {lengths.min()} to "
          f"{lengths.max()} tokens with their end; --block_size={lengths.max()} holds them all")
    if data.verify:
        answer, count = collections.Counter(answer for _, answer in held_out).most_common(1)[0]
        print(f"always answering {answer!r} is right for {count / len(held_out):.1%} of the "
              "held-out prompts: a reward has to beat that")
    config = 'config/grpo_pairs.py'
    if os.path.isdir(tokenizer):
        config = f'config/grpo_pretrained.py --generator_checkpoint={tokenizer}'
    print(f"next: python train_grpo.py {config} --dataset={name} --block_size={lengths.max()}")
