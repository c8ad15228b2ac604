"""The pages: every command names files and knobs that exist, links lead somewhere, the Python of
the README runs."""
import re

import pytest

from processes import ROOT, TOY, succeeds, write

PAGES = ['README.md', 'config/README.md', 'data/README.md']
SOURCES = {str(path.relative_to(ROOT)): path.read_text('utf-8')
           for folder in ('', 'config/**', 'data', 'extras', 'tests')
           for path in sorted(ROOT.glob(f'{folder}/*.py'.lstrip('/')))}


def page(name):
    return (ROOT / name).read_text('utf-8')


def knobs_of(script):
    """Return the names that a script lets a user set."""
    names = ['help', *re.findall(r'(?m)^ *([a-z_0-9]+) = ', SOURCES[script])]
    if script == 'sample.py' or script.startswith('extras/'):
        names += knobs_of('train_grpo.py')
    return names


def test_every_command_names_scripts_configs_and_knobs_that_exist():
    text = '\n'.join([*map(page, PAGES), *SOURCES.values()]).replace('\\\n', ' ')
    commands = re.findall(r'(?m)^[ #]*(?:python|torchrun [-\w= ]+) (?:-m )?(extras\.\w+|\w+\.py)'
                          r'([^`\n#&]*)', text)
    scripts = [script.removesuffix('.py').replace('.', '/') + '.py' for script, _ in commands]
    assert len(commands) > 30
    for script, (_, words) in zip(scripts, commands):
        for knob in re.findall(r' --(\w+)', words):
            assert knob in knobs_of(script), (script, knob)
        for path in re.findall(r' (config/\S+)', words):
            assert path in SOURCES, (script, path)


@pytest.mark.parametrize('name', PAGES)
def test_links_lead_somewhere_and_named_files_exist(name):
    text = page(name)
    folder = (ROOT / name).parent
    targets = re.findall(r'(?:\]\(|src=")(?!http)([^)#"]+)', text)
    paths = re.findall(r'`((?:config|data|extras|tests)/\w+\.\w+)`', text)
    for path in [folder / target for target in targets] + [ROOT / path for path in paths]:
        assert path.exists(), path
    for function in re.findall(r'`(\w+)\(\)`|`(test_\w+)`', text):
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
