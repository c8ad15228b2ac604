"""The pages: every command names files and knobs that exist, links lead somewhere, the Python of
the README runs, and the README is short."""
import ast
import glob
import os
import re
import shlex

import pytest

from processes import ROOT, TOY, run

PAGES = ['README.md', 'config/README.md', 'data/README.md']


def page(name):
    with open(f'{ROOT}/{name}', encoding='utf-8') as file:
        return file.read()


def knobs_of(script):
    """Return the names that a script lets a user set."""
    names = re.findall(r'^([a-z_0-9]+) = ', page(script), re.MULTILINE)
    if script == 'sample.py' or script.startswith('extras/'):
        names += knobs_of('train_grpo.py')
    return names


def commands():
    """Yield the commands of all pages, configs and scripts that run our scripts, as (file, words).
    """
    paths = PAGES + [path[len(ROOT) + 1:] for path in glob.glob(f'{ROOT}/config/*.py')
                     + glob.glob(f'{ROOT}/*.py') + glob.glob(f'{ROOT}/extras/*.py')]
    for path in paths:
        text = page(path).replace('\\\n', ' ')
        for line in re.findall(r'^[ #]*((?:python|torchrun) [^`\n]*)', text, re.MULTILINE):
            line = line.replace('"""', '').partition('#')[0].partition('&&')[0]
            if line.count("'") in (0, 2):       # prose has other apostrophes
                yield path, shlex.split(line)


def test_every_command_names_scripts_configs_and_knobs_that_exist():
    n_commands = 0
    for path, words in commands():
        words = [word for word in words if not word.startswith(('--nproc', '--standalone'))]
        if '-m' in words:
            module = words[words.index('-m') + 1]
            if not module.startswith('extras.'):
                continue
            script = module.replace('.', '/') + '.py'
            rest = words[words.index('-m') + 2:]
        else:
            script = words[1]
            rest = words[2:]
        if not script.endswith('.py') or script.startswith('tests/'):
            continue
        assert os.path.isfile(f'{ROOT}/{script}'), (path, script)
        n_commands += 1
        for word in rest:
            if word.startswith('--') and word != '--help':
                assert word[2:].partition('=')[0] in knobs_of(script), (path, script, word)
            elif word.startswith(('config/grpo_', 'config/generator_', 'config/judge_')):
                assert os.path.isfile(f'{ROOT}/{word}'), (path, word)
    assert n_commands > 30


@pytest.mark.parametrize('name', PAGES)
def test_links_lead_somewhere_and_named_files_exist(name):
    text = page(name)
    folder = os.path.dirname(f'{ROOT}/{name}')
    for target in re.findall(r'\]\(([^)#]+)[^)]*\)', text) + re.findall(r'src="([^"]+)"', text):
        if not target.startswith('http'):
            assert os.path.exists(f'{folder}/{target}'), target
    for path in re.findall(r'`((?:config|data|extras|tests)/\w+\.\w+)`', text):
        assert os.path.exists(f'{ROOT}/{path}'), path
    for function in re.findall(r'`(\w+)\(\)`', text):
        sources = [page(path[len(ROOT) + 1:]) for path in glob.glob(f'{ROOT}/**/*.py',
                                                                    recursive=True)]
        assert any(f'def {function}(' in source for source in sources), function


def test_the_readme_is_short_and_shows_tiny_as_it_is():
    text = page('README.md')
    assert len(text.split()) < 2900
    code = page('extras/tiny.py').split('"""', 2)[2].strip()
    assert code in text


def test_every_config_begins_with_what_it_is_and_sets_knobs_that_exist():
    for path in glob.glob(f'{ROOT}/config/*.py'):
        source = open(path, encoding='utf-8').read()
        script = 'train_grpo.py' if 'grpo_' in path else 'pretrain.py'
        assert source.startswith('# '), path
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign) and not node.targets[0].id.startswith('_'):
                assert node.targets[0].id in knobs_of(script), (path, node.targets[0].id)


def test_the_python_of_the_readme_runs(repository, tmp_path):
    """A reward of your own, as a config file; and a step in a notebook."""
    text = page('README.md')
    reward, = re.findall(r"cat > mine.py <<'END'\n(.*?)\nEND\n", text, re.DOTALL)
    notebook, = re.findall(r'```python\n(import torch\n.*?)```', text, re.DOTALL)
    (tmp_path / 'mine.py').write_text(reward)
    code, text = run(repository, 'train_grpo.py', *TOY, f'{tmp_path}/mine.py', '--max_iters=1',
                     f'--out_dir={tmp_path}/run')
    assert code == 0 and 'small' in text, text
    with open(f'{repository}/notebook.py', 'w') as file:
        file.write(notebook)
    code, text = run(repository, 'notebook.py')
    assert code == 0, text
