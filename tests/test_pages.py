"""The pages: every command names files and knobs that exist, links lead somewhere, the Python of
the README runs."""
import re
import shlex

import pytest

from processes import ROOT, TOY, succeeds, write

PAGES = ['README.md', 'config/README.md', 'data/README.md']
SOURCES = {str(path.relative_to(ROOT)): path.read_text('utf-8')
           for path in sorted(ROOT.glob('*.py')) + sorted(ROOT.glob('*/*.py'))}


def page(name):
    return (ROOT / name).read_text('utf-8')


def knobs_of(script):
    """Return the names that a script lets a user set."""
    names = re.findall(r'(?m)^([a-z_0-9]+) = ', SOURCES[script])
    if script == 'sample.py' or script.startswith('extras/'):
        names += knobs_of('train_grpo.py')
    return names


def commands():
    """Yield the commands of all pages and sources that run our scripts: a script and its words."""
    for text in [page(name) for name in PAGES] + list(SOURCES.values()):
        for line in re.findall(r'(?m)^[ #]*((?:python|torchrun) [^`\n]*)',
                               text.replace('\\\n', ' ')):
            line = re.split('"""|#|&&', line)[0].replace('-m extras.', 'extras/')
            if line.count("'") in (0, 2):       # prose has other apostrophes
                script, *words = [word for word in shlex.split(line)[1:]
                                  if not word.startswith(('--nproc', '--standalone'))]
                if script.startswith('extras/'):
                    script = script.removesuffix('.py') + '.py'
                if script.endswith('.py') and not script.startswith('tests/'):
                    yield script, words


def test_every_command_names_scripts_configs_and_knobs_that_exist():
    every = list(commands())
    assert len(every) > 30
    for script, words in every:
        knobs = knobs_of(script)
        for word in words:
            if word.startswith('--') and word != '--help':
                assert word[2:].partition('=')[0] in knobs, (script, word)
            elif word.startswith(('config/grpo_', 'config/generator_', 'config/judge_')):
                assert word in SOURCES, (script, word)


@pytest.mark.parametrize('name', PAGES)
def test_links_lead_somewhere_and_named_files_exist(name):
    text = page(name)
    folder = (ROOT / name).parent
    for target in re.findall(r'\]\(([^)#]+)[^)]*\)|src="([^"]+)"', text):
        target = ''.join(target)
        assert target.startswith('http') or (folder / target).exists(), target
    for path in re.findall(r'`((?:config|data|extras|tests)/\w+\.\w+)`', text):
        assert (ROOT / path).exists(), path
    for function in re.findall(r'`(\w+)(?:\(\))`|`(test_\w+)`', text):
        assert f'def {"".join(function)}(' in ''.join(SOURCES.values()), function


def test_the_readme_shows_tiny_as_it_is():
    text = page('README.md')
    assert SOURCES['extras/tiny.py'].split('"""', 2)[2].strip() in text


def test_the_python_of_the_readme_runs():
    """A reward of your own, as a config file; and a step in a notebook."""
    text = page('README.md')
    reward, = re.findall(r"(?s)cat > mine.py <<'END'\n(.*?)\nEND\n", text)
    notebook, = re.findall(r'(?s)```python\n(import torch\n.*?)```', text)
    assert 'small' in succeeds('train_grpo.py', *TOY, write('mine.py', reward), '--max_iters=1',
                               '--out_dir=run')
    succeeds(write('notebook.py', notebook))
