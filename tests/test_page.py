"""The page of runs: what is in it, and what a browser makes of it."""
import html
import json
import re
import shutil
import subprocess

import pytest

from conftest import run
from extras.page import page_of, read_lines

HOSTILE = '</script><b onclick="x()"> & \u2028 \U0001f600 <!-- DATA'
BROWSER = shutil.which('chromium') or shutil.which('google-chrome')


@pytest.fixture
def hostile(finished, tmp_path):
    """Return a run with a number that is none, whose policy wrote HTML, and so did a world behind
    it; and with a line that is being written."""
    folder = shutil.copytree(finished, tmp_path / 'hostile')
    sample = read_lines(folder / 'samples.jsonl')[-1]
    sample |= {'step': 7, 'prompt': HOSTILE, 'pieces': [[HOSTILE, 0], [HOSTILE]]}
    with open(folder / 'log.jsonl', 'a') as log, open(folder / 'samples.jsonl', 'a') as samples:
        log.write('{"step": 7, "line to beat": NaN}\n{"st')
        samples.write((json.dumps(sample) + '\n') * 4)
    return str(folder)


def test_a_page_has_all_numbers_and_completions_and_no_text_ends_its_script(hostile):
    data, _ = re.findall('(?s)<script[^>]*>(.*?)</script>', page_of([hostile]))
    shown, = json.loads(data)['runs']
    assert shown['evals'].pop() == {'step': 7, 'line to beat': None}
    for line in read_lines(f'{hostile}/log.jsonl')[:-1]:
        assert shown['steps' if 'ms' in line else 'evals'].pop(0) == pytest.approx(line, rel=6e-4)
    assert shown['held_out'][-1][0]['prompt'] == HOSTILE
    texts = [sample['completion'] for sample in sum(shown['held_out'] + shown['groups'], [])]
    logged = [sample['completion'] for sample in read_lines(f'{hostile}/samples.jsonl')]
    assert sorted(texts) == sorted(logged) and not shown['steps'] + shown['evals']


@pytest.mark.skipif(not BROWSER, reason='needs a browser')
def test_a_browser_shows_runs_side_by_side_at_a_step_and_texts_as_texts(hostile):
    _, _, error = run('extras/page.py', hostile, hostile)
    page = subprocess.run([BROWSER, '--headless', '--no-sandbox', '--virtual-time-budget=2000',
                           '--enable-logging=stderr', '--dump-dom',
                           f'file://{hostile}/page.html#step=2'], capture_output=True, text=True)
    assert 'CONSOLE' not in page.stderr, error + page.stderr
    assert 'Step 2: 4 completions' in page.stdout and page.stdout.count('</h1>') == 2
    assert f'class="world">{html.escape(HOSTILE, quote=False)}<' in page.stdout
