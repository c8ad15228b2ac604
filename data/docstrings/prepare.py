"""English prose that is already on this disk: the docstrings of Python's standard library.

    python data/docstrings/prepare.py

Paragraphs of prose (no code, no tables; ASCII; each once), a tenth held out; they differ a little
between versions of Python. Also writes labels.jsonl for judge.py --kind=classifier: pieces of 64
characters, 1 unless they speak of failure."""
import ast, contextlib, functools, glob, json, os, pathlib, re, sys, sysconfig, warnings
import numpy as np
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..'))
from data.dataset import known_words, write_corpus

SKIP = '/(tests?|idlelib|lib2to3|(site|dist)-packages|ensurepip|_vendor|pydoc_data|turtledemo)/'
FAILURE = re.compile(r"error|fail|invalid|deprecat|unsupported|except|illegal|wrong|bad |broken|"
                     r"corrupt|missing|cannot|can't|unable|warn|abort|refuse|reject|unknown|"
                     r"undefined|obsolete|not (supported|found|allowed|available)", re.I)
verify = functools.partial(known_words, folder=HERE)

def paragraphs(source):
    """Yields the prose paragraphs of the docstrings of a Python source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            for part in re.split(r'\n\s*\n', ast.get_docstring(node) or ''):
                text = ' '.join(part.split())
                letters = sum(c.isalpha() or c == ' ' for c in text)
                columns = '  ' in '\n'.join(map(str.strip, part.split('\n'))).replace('.  ', '')
                code = part.startswith('    ') or '>>>' in text or letters < 0.85 * len(text)
                if re.fullmatch('[ -~]{24,}', text) and ' ' in text and not (columns or code):
                    yield text

if __name__ == "__main__":
    warnings.simplefilter('ignore')             # of old syntax in the library
    root, texts = sysconfig.get_path('stdlib'), {}
    for path in sorted(glob.glob(f'{root}/**/*.py', recursive=True)):
        if not re.search(SKIP, path[len(root):].replace(os.sep, '/')):
            with contextlib.suppress(SyntaxError, ValueError), open(path, encoding='utf-8') as f:
                texts |= dict.fromkeys(paragraphs(f.read()))
    texts, tenth = [*texts], len(texts) // 10
    np.random.default_rng(2402).shuffle(texts)
    write_corpus(HERE, 'windows', train=texts[tenth:], val=texts[:tenth])
    pieces = re.findall('.{64}', '\n'.join(texts[tenth:]).replace('_', '-'), re.DOTALL)
    labels = [{'text': text, 'label': int(not FAILURE.search(text))} for text in pieces]
    pathlib.Path(HERE, 'labels.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in labels))
