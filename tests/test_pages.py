"""The pages: every command names files and knobs that exist, links lead somewhere, their Python
runs."""
import ast
import re

import pytest

from extras.check import check
from dataset import read_texts
from processes import ROOT, TOY, succeeds, write

PAGES = ['README.md', 'docs/masked-diffusion.md', 'docs/studies.md', 'docs/manual.md',
         'docs/results.md', 'docs/data.md', 'docs/ideas.md', 'docs/other-engines.md',
         'examples/antibodies/README.md']
SOURCES = {str(path.relative_to(ROOT)): path.read_text('utf-8')
           for folder in ('', 'config/**', 'data', 'run', 'extras/**', 'examples/**', 'tests')
           for path in sorted(ROOT.glob(f'{folder}/*.py'.lstrip('/')))}


def page(name):
    return (ROOT / name).read_text('utf-8')


def knobs_of(script):
    """Return the names that a script lets a user set."""
    names = ['help', *re.findall(r'(?m)^ *([a-z_0-9]+) = ', SOURCES[script])]
    if script == 'sample.py' or script.startswith(('extras/', 'examples/')):
        names += knobs_of('train_grpo.py')
    return names


def test_every_command_names_scripts_configs_and_knobs_that_exist():
    text = '\n'.join([*map(page, PAGES), *SOURCES.values()]).replace('\\\n', ' ')
    commands = re.findall(r'(?m)^[ #]*(?:python|torchrun [-\w= ]+) (?:-m )?'
                          r'((?:extras|examples)\.[\w.]+|\w+\.py)([^`\n#&]*)', text)
    scripts = [script.removesuffix('.py').replace('.', '/') + '.py' for script, _ in commands]
    assert len(commands) > 30
    for script, (_, words) in zip(scripts, commands):
        for knob in re.findall(r' --(\w+)', words):
            assert knob in knobs_of(script) or f"'--{knob}'" in SOURCES[script], (script, knob)
        for path in re.findall(r' ((?:config|examples|extras)/\S+\.py)', words):
            assert path in SOURCES, (script, path)


@pytest.mark.parametrize('name', PAGES)
def test_links_lead_somewhere_and_named_files_exist(name):
    text = page(name)
    folder = (ROOT / name).parent
    targets = re.findall(r'(?:\]\(|src=")(?!http)([^)#"]+)', text)
    paths = re.findall(r'`((?:config|data|docs|run|extras|tests)/\w+\.\w+)`', text)
    for path in [folder / target for target in targets] + [ROOT / path for path in paths]:
        assert path.exists(), path
    for target, anchor in re.findall(r'\]\((?!http)([^)#]*)#([^)]+)\)', text):
        text_of = (folder / target).read_text('utf-8') if target else text
        headings = [re.sub(r'[^\w -]', '', heading).lower().replace(' ', '-')
                    for heading in re.findall(r'(?m)^##+ (.+)', text_of)]
        assert anchor in headings, anchor
    for function in re.findall(r'`(\w+)\(\)`|`(test_\w+)`', text):
        assert f'def {"".join(function)}(' in ''.join(SOURCES.values()), function


@pytest.mark.parametrize('name, file', [('README.md', 'shuffle.py'),
                                        ('docs/data.md', 'letters.py')])
def test_the_task_of_the_pages_has_texts_of_which_some_pass(name, file):
    source, = re.findall(rf"(?s)cat > {file} <<'END'\n(import random.*?)END\n", page(name))
    train, held_out, verify, _ = read_texts(write(file, source))
    right = [verify(record['prompt'], record['answer']) for record in train]
    assert 0.02 < sum(right) / len(train) < 0.2 and len(held_out) == 200
    assert verify('aabbc=', 'bbcaa') == 1 and verify('aabbc=', 'bcbaa') == 0


def test_the_python_of_the_pages_runs():
    """A reward of your own, as a config file; and a step in a notebook."""
    reward, = re.findall(r"(?s)cat > small.py <<'END'\n(.*?)\nEND\n", page('README.md'))
    notebook, = re.findall(r'(?s)```python\n(import torch\n.*?)```', page('docs/ideas.md'))
    assert 'small' in succeeds('train_grpo.py', *TOY, write('mine.py', reward), '--max_iters=1',
                               '--out_dir=run')
    succeeds(write('notebook.py', notebook))


@pytest.mark.parametrize('name', ['ideas', 'masked-diffusion'])
def test_the_functions_that_the_pages_show_fit(name):
    text = page(f'docs/{name}.md')
    functions = re.findall(
        r"(?s)((?:objective|likelihood|credit|experience) = '.*?)\n(?:```|END\n)", text)
    assert len(functions) == {'ideas': 3, 'masked-diffusion': 1}[name]
    for function in functions:
        write('mine.py', function)
        wrong = check('mine.py').values()
        assert wrong and not any(wrong)


def test_the_page_on_ideas_counts_the_lines_of_each_paper():
    """Of its functions, but for docstrings, comments and empty lines."""
    table = re.findall(r'(?m)^\| (`\w+\.py`.*?) \| .* \| ([\d, ]+) \|$', page('docs/ideas.md'))
    counts = {}
    for names, numbers in table:
        names, numbers = re.findall(r'\w+\.py', names), numbers.split(', ')
        counts |= dict(zip(names, map(int, numbers * (len(names) // len(numbers)))))
    assert counts == {path.name: lines_of(path) for path in ROOT.glob('config/papers/*.py')}


def lines_of(path):
    source = path.read_text('utf-8')
    used = set()
    for function in ast.parse(source).body:
        if type(function) is ast.FunctionDef:
            body = function.body[ast.get_docstring(function) is not None:]
            used.add(function.lineno)
            used.update(range(body[0].lineno, body[-1].end_lineno + 1))
    lines = source.splitlines()
    return sum(bool(re.sub('#.*', '', lines[number - 1]).strip()) for number in used)
