"""The pages: every command names files and knobs that are there, links lead somewhere, and the
examples, own rewards, own tasks, own corpora and the page of Python, run."""
import ast
import glob
import os
import re
import runpy
import shlex

import pytest

import common
from judge import BUILT_IN
from processes import ROOT, TOY, run

PAGES = ['README.md', 'config/README.md', 'data/README.md']
MADE = ('out', 'mine', 'my', 'FOLDER', 'topics', 'held_out', 'sums')    # what the reader makes


def page(name):
    with open(f'{ROOT}/{name}', encoding='utf-8') as file:
        return file.read()


def blocks(name, kind):
    """The code blocks of a kind, 'sh' or 'python', of a page."""
    return re.findall(rf'```{kind}\n(.*?)```', page(name), re.DOTALL)


def commands(name):
    """The commands that run our scripts, as lists of words, and what here-documents write."""
    for block in blocks(name, 'sh'):
        block = re.sub(r"<<'END'\n.*?\nEND\n", '\n', block, flags=re.DOTALL).replace('\\\n', ' ')
        for line in re.split(r'\n|&&|;', block):
            words = shlex.split(line, comments=True)
            if words and words[0] in ('python', 'torchrun') and '-m' not in words:
                yield [word for word in words[1:] if '$' not in word]


def here_documents(name):
    """{first line of the command: text} of what the pages write into files or give to python."""
    found = {}
    for block in blocks(name, 'sh'):
        for line, text in re.findall(r"(.*) <<'END'\n(.*?)\nEND\n", block, re.DOTALL):
            found[line.splitlines()[-1]] = text
    return found


def knobs_of(script):
    """The names that a script lets one set, whose module is not run for it."""
    if script.startswith('extras/'):
        script = 'train_grpo.py'
    return set(common.knobs(runpy.run_path(f'{ROOT}/{script}')))


@pytest.mark.parametrize('name', PAGES)
def test_every_command_names_scripts_configs_and_knobs_that_are_there(name):
    seen = 0
    for words in commands(name):
        words = [word for word in words if not word.startswith(('--nproc', '--standalone', '-'))
                 or word.startswith('--') and '=' in word and 'nproc' not in word]
        script = next((word for word in words if word.endswith('.py')), None)
        if script is None:
            continue
        assert os.path.isfile(f'{ROOT}/{script}'), script
        seen += 1
        knobs = knobs_of(script)
        for word in words[words.index(script) + 1:]:
            if word.startswith('--'):
                key = word[2:].partition('=')[0]
                is_known = key in knobs or script.startswith('extras/make')
                assert is_known, f"{script} has no knob {key}"
            is_made = os.path.basename(word).startswith(MADE)
            if word.endswith('.py') and not word.startswith('--') and not is_made:
                assert os.path.isfile(f'{ROOT}/{word}'), word
    assert seen > 2


@pytest.mark.parametrize('name', PAGES)
def test_links_lead_somewhere_and_what_is_cited_is_there(name):
    text = page(name)
    tests = ''.join(page(os.path.relpath(path, ROOT))
                    for path in [f'{ROOT}/test_grpo.py', *glob.glob(f'{ROOT}/tests/*.py')])
    for target in re.findall(r'\]\(([^)]*)\)', re.sub(r'\s+', ' ', text)):
        path, _, anchor = target.partition('#')
        path = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
        assert os.path.exists(f'{ROOT}/{path}'), target
        if anchor:
            heads = re.findall(r'^#+ (.*)', page(path), re.MULTILINE)
            slugs = [re.sub(r'[^\w -]', '', head.lower()).replace(' ', '-') for head in heads]
            assert anchor in slugs, target
    for cited in re.findall(r'`(test_\w+)`', text):
        assert f'def {cited}(' in tests or os.path.exists(f'{ROOT}/{cited}.py'), cited
    for cited in re.findall(r'`((?:config|extras|data|assets|tests)/[\w/]+\.\w+)`', text):
        assert os.path.exists(f'{ROOT}/{cited}') or 'mine' in cited, cited
    for cited in re.findall(r'`(\w+)\(\)`', text):
        code = ''.join(page(os.path.relpath(path, ROOT)) for path in glob.glob(f'{ROOT}/*.py')
                       + glob.glob(f'{ROOT}/data/**/*.py', recursive=True))
        assert f'def {cited}(' in code or cited == 'verify', cited


def test_every_config_says_what_it_is_and_sets_knobs_that_its_script_has():
    for path in glob.glob(f'{ROOT}/config/*.py'):
        name = os.path.basename(path)
        assert page(f'config/{name}').startswith('# '), name
        script = {'grpo': 'train_grpo.py', 'generator': 'model.py'}.get(name.split('_')[0],
                                                                       'judge.py')
        knobs = common.knobs(runpy.run_path(f'{ROOT}/{script}'))
        _, functions = common.configure(dict(knobs), [path], quiet=True)
        asked = re.search(r'^rewards = (\{.*\})', page(f'config/{name}'), re.MULTILINE)
        for reward in ast.literal_eval(asked[1]) if asked else ():
            assert reward in functions or reward in BUILT_IN, (name, reward)


def test_a_reward_of_ones_own_and_a_task_of_ones_own_run_as_the_page_says(repository):
    """The here-documents of the first page, as they stand; the runs at toy size."""
    found = here_documents('README.md')
    with open(f'{repository}/config/mine.py', 'w', encoding='utf-8') as file:
        file.write(found['cat > config/mine.py'])
    code, text = run(repository, 'train_grpo.py', *TOY, 'config/mine.py', '--max_iters=1',
                     '--out_dir=out-mine')
    assert code == 0 and 'reward/alliteration' in text, text

    with open(f'{repository}/make_mine.py', 'w', encoding='utf-8') as file:
        file.write(found['python -'])
    assert run(repository, 'make_mine.py')[0] == 0
    code, text = run(repository, 'data/pairs/prepare.py', 'mine.jsonl')
    assert code == 0 and '30 held out' in text, text
    code, text = run(repository, 'train_grpo.py', 'config/grpo_pairs.py', '--block_size=12',
                     '--max_iters=1', '--device=cpu', '--eval_prompts=8',
                     '--generator_recipe=config/generator_pairs.py --max_iters=5')
    assert code == 0 and 'held-out verify' in text, text


def test_a_corpus_of_ones_own_runs_as_the_page_says(repository):
    text = here_documents('data/README.md')[
        'mkdir -p data/palindromes && cat > data/palindromes/prepare.py']
    os.makedirs(f'{repository}/data/palindromes', exist_ok=True)
    with open(f'{repository}/data/palindromes/prepare.py', 'w', encoding='utf-8') as file:
        file.write(text)
    recipes = [flag.replace('config/', 'config/') for flag in TOY]
    code, text = run(repository, 'train_grpo.py', *recipes, '--dataset=palindromes',
                     '--max_iters=1', '--out_dir=out-palindromes')
    assert code == 0 and 'palindromes' in text, text


def test_the_python_of_the_first_page_runs(repository):
    code, text = run(repository, 'train_grpo.py', *TOY, '--max_iters=1', '--out_dir=out-grpo')
    assert code == 0, text
    lines = next(block for block in blocks('README.md', 'python') if 'complete_texts' in block)
    with open(f'{repository}/page.py', 'w', encoding='utf-8') as file:
        file.write(lines)
    code, text = run(repository, 'page.py')
    assert code == 0 and len(text.splitlines()) == 2, text


def test_the_sixty_lines_on_the_first_page_are_those_of_the_file():
    assert page('extras/tiny.py') in blocks('README.md', 'python')


def test_the_table_of_how_much_a_prompt_weighs_is_the_one_that_is_tested():
    rows = re.findall(r'^\| (0\.\d+) \| (\d\.\d\d) \| (\d\.\d\d) \| (\d\.\d\d) \| (\d\.\d\d) \|$',
                      page('config/README.md'), re.MULTILINE)
    assert len(rows) == 4
    for row in rows:
        assert f"({', '.join(row)})" in page('test_grpo.py'), row
