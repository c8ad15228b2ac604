"""The core stays as small as it is: a fix pays with a deletion."""
import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = ('train_grpo', 'rollout', 'fill', 'write', 'model', 'judge', 'dataset', 'sample',
           'pretrain', 'hf')
CORE = [ROOT / f'{name}.py' for name in SCRIPTS] + sorted(ROOT.glob('run/*.py'))
MOST_NODES = 16_268

QUIET = (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)


def is_declaration(node, top):
    """Docstrings and fields of records declare; so do imports and knobs at the top of a file."""
    value = getattr(node, 'value', None)
    if isinstance(node, ast.Expr) and isinstance(value, ast.Constant):
        return True
    if isinstance(node, ast.AnnAssign):
        return True
    if top and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return isinstance(value, (ast.Constant, ast.UnaryOp, ast.Dict))
    return top and isinstance(node, (ast.Import, ast.ImportFrom))


def statements(body, top=True):
    """Yield the statements of a body, and those inside them, that declare nothing."""
    for node in body:
        if is_declaration(node, top):
            continue
        if not isinstance(node, ast.ExceptHandler):
            yield node
        for name in ('body', 'orelse', 'finalbody', 'handlers'):
            yield from statements(getattr(node, name, []), isinstance(node, ast.ClassDef))


def size_of(path):
    """Return the nodes of the syntax tree in the statements of a file, which are its amount however
    it is laid out, and the number of lines that they take."""
    nodes = 0
    lines = set()
    for node in statements(ast.parse(path.read_text('utf-8')).body):
        # the parts of a compound statement, without the statements inside
        parts = [part for part in ast.iter_child_nodes(node)
                 if isinstance(part, (ast.expr, ast.keyword, ast.withitem, ast.arguments))]
        below = [n for part in parts for n in ast.walk(part)]
        nodes += 1 + sum(not isinstance(n, QUIET) for n in below)
        ends = [getattr(n, 'end_lineno', node.lineno) for n in parts]
        last = max([node.lineno, *ends]) if hasattr(node, 'body') else node.end_lineno
        lines |= set(range(node.lineno, last + 1))
    return nodes, len(lines)


def test_the_core_does_not_grow():
    total = sum(size_of(path)[0] for path in CORE)
    assert total <= MOST_NODES, (
        f"the core has {total} nodes: expected {MOST_NODES} at most. The number is for the reader, "
        "who should take in all of it. What it promises is a closed list (docs/manual.md), so a "
        "fix pays with a deletion: which lines does yours make needless?")


@pytest.mark.parametrize('path', CORE, ids=lambda path: path.stem)
def test_a_line_says_one_thing(path):
    nodes, n_lines = size_of(path)
    assert nodes <= 8.65 * n_lines, (
        f"{path.name} has {nodes / n_lines:.1f} nodes a line: expected 8.6 at most. Give parts of "
        "long expressions names")
