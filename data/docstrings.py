"""English prose that is already on your disk: the docstrings of Python's standard library. In
windows of 32 characters, runs of four characters are blank.

Only prose counts: no code, no tables, ASCII, each paragraph once. A tenth of the paragraphs is held
out. Another version of Python has slightly different docstrings."""
import ast
import contextlib
import glob
import json
import os
import re
import sys
import sysconfig
import warnings

import numpy as np

from data.text import running_text, runs

SKIP = (r'[/\\](tests?|idlelib|lib2to3|(site|dist)-packages|ensurepip|_vendor|pydoc_data|'
        r'turtledemo)[/\\]')
CACHE = f'out/docstrings-{sys.implementation.cache_tag}.json'       # parsing takes seconds


def paragraphs():
    """Return paragraphs to learn from, and held-out ones."""
    # Two networks can be trained at once, so each process writes to a temporary file of its own.
    if not os.path.exists(CACHE):
        os.makedirs('out', exist_ok=True)
        temporary = f'{CACHE}.{os.getpid()}.tmp'
        with open(temporary, 'w') as file:
            json.dump(list(dict.fromkeys(library_paragraphs())), file)
        os.replace(temporary, CACHE)
    with open(CACHE) as file:
        parts = json.load(file)
    np.random.default_rng(2402).shuffle(parts)
    tenth = len(parts) // 10
    return parts[tenth:], parts[:tenth]


def library_paragraphs():
    """Yield the prose paragraphs of the standard library's docstrings."""
    warnings.simplefilter('ignore')             # about old syntax in the library
    root = sysconfig.get_path('stdlib')
    for path in sorted(glob.glob(f'{root}/**/*.py', recursive=True)):
        if re.search(SKIP, path[len(root):]):
            continue
        with contextlib.suppress(SyntaxError, ValueError), open(path, encoding='utf-8') as file:
            for node in ast.walk(ast.parse(file.read())):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef,
                                     ast.AsyncFunctionDef)):
                    for part in re.split(r'\n\s*\n', ast.get_docstring(node) or ''):
                        if is_prose(part):
                            yield ' '.join(part.split())


def is_prose(part):
    """Return whether a paragraph is ASCII prose of 24 characters or more, no code and no table. It
    has no _, the sign of a blank."""
    text = ' '.join(part.split())
    if not re.fullmatch('[ -^`-~]{24,}', text) or ' ' not in text:
        return False
    if part.startswith('    ') or '>>>' in text:
        return False
    # Two spaces within a line, except after a full stop, are columns of a table.
    if '  ' in re.sub(r' *\n *', '\n', part.strip()).replace('.  ', ''):
        return False
    return len(re.findall('[A-Za-z ]', text)) >= 0.85 * len(text)


texts, verify = running_text(paragraphs, runs, 32)
