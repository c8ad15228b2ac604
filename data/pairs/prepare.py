"""Prompts and answers of your own, from a file of JSON lines {"prompt": ..., "answer": ...}.

    python data/pairs/prepare.py mine.jsonl
    python data/pairs/prepare.py mine.jsonl --name=roman --val=held_out.jsonl

Without an answer a line is a prompt to be continued. Without --val a tenth of the prompts is held
out. verify() says whether a completion is the answer; a reward of your own can say more."""
import collections
import os
import re
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..'))
from common import configure, fail, read_lines
from data.dataset import Dataset, write_corpus

input = ''                  # file of JSON lines to train on
val = ''                    # file of JSON lines to hold out; '': a tenth of the other's prompts
name = 'pairs'              # of the corpus, data/<name>; several stand side by side
replace = False             # True: a corpus of that name, of another text, is replaced
tokenizer = 'char'          # 'char' | 'gpt2' | corpus, 'docstrings' | folder of a pretrained one
template = False            # True: prompts are put into the pretrained tokenizer's chat template
EXPECTED = '{"prompt": "12+35=", "answer": "047"}, or prompts alone'


def verify(prompt, completion, original):
    """1.0 if the completion is the answer, else 0.0."""
    return float(completion.strip() == original.strip())


def pair(prompt=None, answer='', **others):
    """What a line says. Raises ValueError."""
    for key in others:
        raise ValueError(f"unknown key {key!r}")
    for key, value in {'prompt': prompt, 'answer': answer}.items():
        if type(value) is not str:
            raise ValueError(f"{key} is {value!r} ({type(value).__name__}), not text in quotes")
    if not (prompt + answer).encode():          # a lone surrogate is no text: UnicodeError
        raise ValueError("prompt and answer are empty")
    return prompt, answer


def read_pairs(path):
    """The (prompt, answer) of each line of a file. Exits with an error that names a bad one."""
    return read_lines(path, pair, EXPECTED)


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
    configure(globals(), [re.sub(r'^(?!-)(?!.*\.py$)', '--input=', word) for word in sys.argv[1:]])
    is_taken = name != 'pairs' and os.path.exists(f'{HERE}/../{name}/prepare.py')
    if is_taken or not re.fullmatch(r'[\w-]+', name):
        fail(f"name = {name!r}: expected one that no other prepare.py of data/ has")
    if input == '':
        fail(f"no prompts of yours yet; python data/pairs/prepare.py mine.jsonl; {EXPECTED}")
    train = read_pairs(input)
    if val:
        held_out = read_pairs(val)
    else:
        train, held_out = hold_out(train)
    if template:
        from extras.pretrained import PretrainedTokenizer
        tok = PretrainedTokenizer(tokenizer)
        train, held_out = [[(tok.apply_template(prompt), answer) for prompt, answer in pairs]
                           for pairs in (train, held_out)]
    write_corpus(name, 'pairs', train, held_out, tokenizer, replace)

    data = Dataset(name)
    lengths = np.concatenate([np.diff(edges) for edges in data.edges.values()])
    print(f"{(~data.has_answers()).sum()} have no answer; rows have {lengths.min()} to "
          f"{lengths.max()} tokens with their end; --block_size={lengths.max()} holds them all")
    if data.verify:
        answer, count = collections.Counter(answer for _, answer in held_out).most_common(1)[0]
        print(f"always answering {answer!r} is right for {count / len(held_out):.1%} of the "
              "held-out prompts: a reward has to beat that")
    config = 'config/grpo_pairs.py'
    if os.path.isdir(tokenizer):
        config = f'config/grpo_pretrained.py --generator_checkpoint={tokenizer}'
    print(f"next: python train_grpo.py {config} --dataset={name} --block_size={lengths.max()} "
          f"--out_dir=out-{name}")
