"""English prose that is already on this disk: the docstrings of Python's standard library.

    python data/docstrings/prepare.py

Paragraphs of prose (no code, no tables; ASCII; each once), a tenth held out; they differ a little
between versions of Python. Also writes labels.jsonl for judge.py --kind=classifier: pieces of 64
characters, 1 unless they speak of failure; and the corpus docstrings/failures: prompts of 32
characters, without answers, after which the text itself speaks of failure."""
import ast
import contextlib
import functools
import glob
import json
import os
import re
import sys
import sysconfig
import warnings

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..'))
from common import new_file
from data.dataset import BLANK, Dataset, write_corpus

SKIP = '/(tests?|idlelib|lib2to3|(site|dist)-packages|ensurepip|_vendor|pydoc_data|turtledemo)/'
FAILURE = re.compile(r"error|fail|invalid|deprecat|unsupported|except|illegal|wrong|bad |broken|"
                     r"corrupt|missing|cannot|can't|unable|warn|abort|refuse|reject|unknown|"
                     r"undefined|obsolete|not (supported|found|allowed|available)", re.I)


@functools.cache
def words_of(name):
    """Words of a corpus's training text, ' so ', and what row edges leave: ' s', 'o ' and 'o'."""
    data = Dataset(name)
    text = data.tok.decode(data.ids['train'])
    parts = set()
    for letters in set(re.findall('[A-Za-z]+', text)):
        word = f' {letters} '
        for i in range(len(word)):
            parts |= {word[:i + 1], word[i:], word[i:-1]}
    return parts


def known_words(prompt, completion, name):
    """Share of the words with a blank in or beside them that the training text has; 1.0 if none.

    A word cut by the row's edge must begin (or end) a word. Nothing between two spaces is unknown.
    So 'th_ c_t sat' -> 'the cqt sat' gives 0.5: 'the' is known, 'cqt' is not, 'sat' was given."""
    if BLANK not in prompt:                     # what follows a prompt is one blank
        completion = prompt + completion
        prompt = prompt + BLANK
    spans = [match.span() for match in re.finditer(f'{BLANK}+', prompt)]
    if len(prompt) != len(completion):          # not one character each: find what was given
        pattern = re.sub(f'{BLANK}+', '(.*?)', re.escape(prompt))
        match = re.fullmatch(pattern, completion, re.DOTALL)
        spans = match.regs[1:] if match else [(0, len(completion))]

    spaced = re.sub('[^A-Za-z]', ' ', completion)
    hits = []
    for word in re.finditer(r'[A-Za-z]+|(?<= )(?= )', completion):
        if any(word.start() <= stop and start <= word.end() for start, stop in spans):
            with_edges = spaced[max(0, word.start() - 1):word.end() + 1]
            hits.append(with_edges in words_of(name))
    return sum(hits) / len(hits) if hits else 1.0


verify = functools.partial(known_words, name='docstrings')


def paragraphs(source):
    """Yields the prose paragraphs of the docstrings of a Python source."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented):
            for part in re.split(r'\n\s*\n', ast.get_docstring(node) or ''):
                if is_prose(part):
                    yield ' '.join(part.split())


def is_prose(part):
    """Is a paragraph English, of more than a few words, no code and no table?"""
    text = ' '.join(part.split())
    if not re.fullmatch('[ -~]{24,}', text) or ' ' not in text:
        return False
    if part.startswith('    ') or '>>>' in text:
        return False
    # Two spaces within a line, but after a full stop: columns.
    if '  ' in re.sub(r' *\n *', '\n', part.strip()).replace('.  ', ''):
        return False
    return len(re.findall('[A-Za-z ]', text)) >= 0.85 * len(text)


def fails(prompt, completion):
    """Does a completion, with the word that its prompt began, speak of failure?"""
    ends = [match.end() for match in FAILURE.finditer(prompt + completion)]
    return max(ends, default=0) > len(prompt)


def failing_prompts(texts):
    """Pairs of a prompt, which does not speak of failure, and no answer. Its own continuation does
    speak of failure."""
    pairs = []
    for text in texts:
        for i in range(0, len(text) - 64, 8):
            prompt = text[i:i + 32]
            if not FAILURE.search(prompt) and fails(prompt, text[i + 32:i + 64]):
                pairs.append((prompt, ''))
    return pairs


if __name__ == "__main__":
    warnings.simplefilter('ignore')             # of old syntax in the library
    root = sysconfig.get_path('stdlib')
    texts = {}                                  # a dict, for each text once, in order
    for path in sorted(glob.glob(f'{root}/**/*.py', recursive=True)):
        if re.search(SKIP, path[len(root):].replace(os.sep, '/')):
            continue
        with contextlib.suppress(SyntaxError, ValueError), open(path, encoding='utf-8') as file:
            texts |= dict.fromkeys(paragraphs(file.read()))
    texts = list(texts)
    tenth = len(texts) // 10
    np.random.default_rng(2402).shuffle(texts)  # always in the same way

    pieces = re.findall('.{64}', ' '.join(texts[tenth:]), re.DOTALL)
    with new_file(f'{HERE}/labels.jsonl', 'w') as file:
        for text in pieces:
            label = int(not FAILURE.search(text))
            file.write(json.dumps({'text': text, 'label': label}) + '\n')
    write_corpus('docstrings', 'windows', train=texts[tenth:], val=texts[:tenth])
    write_corpus('docstrings/failures', 'pairs', train=failing_prompts(texts[tenth:]),
                 val=failing_prompts(texts[:tenth]), tokenizer='docstrings')
