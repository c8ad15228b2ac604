"""Show a run, or several side by side, as a page for a browser: out-order/page.html, one file that
needs no network. For a run that goes on, call it again.

    python -m extras.page out-order out-left

A click on a curve chooses a step, and then left and right do. page.html here says how it looks.
Every run has curves and completions. A run with plugins/watch.py also has the tokens of some
groups, before and after a step."""
import json
import shlex
import sys
from pathlib import Path

sys.path.insert(0, '.')         # for `python extras/page.py`

import train_grpo as grpo
from plumbing.configurator import knobs_of
from plumbing.process import Mistake, expect, say, writing
from plumbing.report import verdict_of
from plumbing.run_folder import config_of


def read_lines(path):
    """Return the objects of a file of JSON lines, without a last line that a run is writing."""
    expect(Path(path).is_file(), f"there is no {path}: a run has one")
    try:
        return [json.loads(line) for line in Path(path).read_text('utf-8').split('\n')[:-1]]
    except ValueError as e:
        raise Mistake(f"{path} is damaged: {e}") from None


def read_run(folder):
    """Return what the page shows of a run."""
    expect(Path(folder, 'log.jsonl').is_file(), f"{folder} is no folder of a run")
    log = read_lines(f'{folder}/log.jsonl')
    evals = [line for line in log if 'line to beat' in line]
    expect(evals, f"{folder} has no evaluation yet")
    config = config_of(folder)
    command = shlex.join(['python', 'train_grpo.py', *config.pop('words')])
    return {'name': folder, 'command': command, 'config': config,
            'says': verdict_of(evals[-1], evals[-1]['step']), 'log': log,
            'samples': read_lines(f'{folder}/samples.jsonl')}


def page_of(folders):
    """Return the page of some runs, as HTML."""
    data = {'runs': [*map(read_run, folders)], 'defaults': knobs_of(vars(grpo))}
    text = json.dumps(data).replace('<', '\\u003c')       # so that no text ends the script
    return Path(__file__).with_suffix('.html').read_text('utf-8').replace('DATA', text)


if __name__ == '__main__':
    if {'-h', '--help'} & {*sys.argv}:
        sys.exit(__doc__)
    folders = sys.argv[1:] or ['out-grpo']
    path = Path(folders[0], 'page.html')
    text = page_of(folders)
    with writing(path):
        path.write_text(text, 'utf-8')
    say(f'wrote {path}, {path.stat().st_size // 1000} KB')
