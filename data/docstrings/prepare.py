"""English prose that is already on this disk: the docstrings of Python's standard library.

    python data/docstrings/prepare.py

Paragraphs of prose only (no doctests, no code, no tables; ASCII; each once), without tests and
bundled packages. A tenth of the paragraphs is held out. The text differs a little between
versions of Python, and so do models trained on it. Also writes labels.jsonl: pieces of 64
characters, labelled 1 unless they speak of failure, for judge.py --kind=classifier.
"""
import ast
import glob
import json
import os
import re
import sys
import sysconfig
import warnings

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
from data.dataset import known_words, write_corpus

HERE = os.path.dirname(os.path.abspath(__file__))
SKIP = re.compile(r'/(test|tests|idle_test|idlelib|lib2to3|site-packages|dist-packages|ensurepip|'
                  r'_vendor|pydoc_data|turtledemo|__pycache__)/')
FAILURE = re.compile(r"error|fail|invalid|deprecat|unsupported|except|illegal|wrong|bad |broken|"
                     r"corrupt|missing|cannot|can't|unable|warn|abort|refuse|reject|unknown|"
                     r"undefined|obsolete|not (supported|found|allowed|available)", re.I)


def verify(prompt, completion):
    """The share of the words touched by a blank that occur in the training text, in [0, 1]."""
    return known_words(prompt, completion, HERE)


def paragraphs():
    """Yields prose paragraphs of the running Python's standard library, in a fixed order."""
    root = sysconfig.get_path('stdlib')
    for path in sorted(glob.glob(os.path.join(root, '**', '*.py'), recursive=True)):
        if SKIP.search(path[len(root):].replace(os.sep, '/')):
            continue
        try:
            with open(path, encoding='utf-8') as f, warnings.catch_warnings():
                warnings.simplefilter('ignore')
                tree = ast.parse(f.read())
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                for part in re.split(r'\n\s*\n', ast.get_docstring(node) or ''):
                    lines = part.split('\n')
                    text = ' '.join(part.split())
                    letters = sum(c.isalpha() or c == ' ' for c in text)
                    if (len(text) >= 24 and letters >= 0.85 * len(text) and text.isascii()
                            and text.isprintable() and ' ' in text and '>>>' not in text
                            and '  ' not in '\n'.join(s.strip() for s in lines).replace('.  ', '')
                            and not any(s.startswith('    ') for s in lines[:1])):
                        yield text


if __name__ == "__main__":
    texts = list(dict.fromkeys(paragraphs()))
    order = np.random.default_rng(2402).permutation(len(texts))
    held_out = len(texts) // 10
    train, val = [texts[i] for i in order[held_out:]], [texts[i] for i in order[:held_out]]
    write_corpus(HERE, unit='windows', train=train, val=val)
    running = '\n'.join(train)
    pieces = [running[i:i + 64] for i in range(0, len(running) - 63, 64)]
    with open(os.path.join(HERE, 'labels.jsonl'), 'w') as f:
        for text in pieces:
            item = {'text': text.replace('_', '-'), 'label': int(not FAILURE.search(text))}
            f.write(json.dumps(item) + '\n')
