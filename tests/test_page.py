"""The page of runs: what is in it, and what a browser makes of it."""
import html
import json
import re
import shutil
import subprocess

import pytest

from conftest import run
from extras.page import page_of, read_lines, thin

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


def data_of(folder):
    data, _ = re.findall('(?s)<script[^>]*>(.*?)</script>', page_of([folder]))
    return json.loads(data)['runs'][0]


def test_a_page_has_all_numbers_of_the_log_and_all_completions(finished):
    shown = data_of(str(finished))
    lines = sorted(shown['evals'] + shown['steps'], key=lambda line: (line['step'], 'ms' in line))
    for line, logged in zip(lines, read_lines(finished / 'log.jsonl'), strict=True):
        assert line == pytest.approx(logged, rel=6e-4)
    samples = [sorted(sample['completion'] for sample in samples) for samples in (
        sum(shown['held_out'] + shown['groups'], []), read_lines(finished / 'samples.jsonl'))]
    assert samples[0] == samples[1]


def test_no_text_ends_the_script_and_what_is_no_number_is_null(hostile):
    shown = data_of(hostile)
    assert shown['held_out'][-1][0]['prompt'] == HOSTILE
    assert shown['evals'][-1]['line to beat'] is None


def test_of_long_runs_the_first_and_the_last_step_stay_and_fewer_if_texts_are_long():
    assert thin([*range(100)], 4) == [0, 33, 66, 99] and thin([7], 4) == [7]
    assert [text[0] for text in thin([f'{i}' * 300_000 for i in range(9)], 8)] == ['0', '4', '8']


@pytest.mark.skipif(not BROWSER, reason='needs a browser')
def test_a_browser_shows_runs_side_by_side_at_a_step_and_texts_as_texts(finished, hostile):
    code, _, error = run('extras/page.py', hostile, str(finished))
    assert code == 0, error
    page = subprocess.run([BROWSER, '--headless', '--no-sandbox', '--virtual-time-budget=2000',
                           '--enable-logging=stderr', '--dump-dom',
                           f'file://{hostile}/page.html#step=2'], capture_output=True, text=True)
    assert 'CONSOLE' not in page.stderr, page.stderr
    assert 'Step 2: 4 completions' in page.stdout and page.stdout.count('</h1>') == 2
    assert f'class="world">{html.escape(HOSTILE, quote=False)}<' in page.stdout
