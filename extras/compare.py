"""Compare commands of train_grpo.py over seeds, in a table with error bars:

    python -m extras.compare --seeds=1,2,3 config/grpo_config.py \\
        'config/grpo_config.py config/papers/rloo.py'
    python -m extras.compare --words='config/grpo_think.py --max_iters=40' '' --adv_norm=none

Each word except the knobs below is a command, in quotes if it has several words. {seed} in it
becomes the seed: --generator=out/student{seed}.pt. Finished runs are kept, so a comparison that was
interrupted continues, and can get more commands and seeds. A run is made anew if the contents of
its config files, of its dataset or of its networks have changed since. After an edit of
train_grpo.py, judge.py or plumbing/ take another --out_dir: these do not count."""
import functools
import inspect
import json
import math
import os
import re
import shlex
import statistics
import sys
import time
import zlib
from pathlib import Path

sys.path.insert(0, '.')         # for `python extras/compare.py`

import train_grpo as grpo  # before torch: it says how threads of torch wait

# isort: split
import torch

from plumbing import devices
from plumbing.configurator import configure, knobs_of
from plumbing.datasets import load
from plumbing.process import bar, exit_at_sigterm, expect, say, split_words, start
from plumbing.run import open_task

# ---- knobs, changed by --name=value --------------------------------------------------------------
words = ''                  # of all commands, before their own
seeds = '1,2,3'             # two or more: three for a first look, five for a claim
goal = 'eval/verify'        # a number of log.jsonl: 'greedy/verify', 'eval/pass@4', 'kl', ...
out_dir = 'out-compare'     # folder of the folders of the runs
jobs = 1                    # runs at a time

# two-sided 5 % points of Student's t, for so many seeds
STUDENT = {2: 12.7, 3: 4.3, 4: 3.2, 5: 2.8, 6: 2.6, 7: 2.4, 8: 2.4}
AS_IMPORTED = dict(vars(grpo))
NOTES = set()               # what was said about commands


def words_of(command, seed):
    """Return the words of a run. Braces in a command hold a dict together."""
    quoted = re.sub(r'"?(\{.*?\})"?', lambda x: shlex.quote(x[1]), command.replace('{seed}', seed))
    return [*split_words(quoted), f'--seed={seed}']


@functools.cache
def open_run(command, seed):
    """Find the mistakes of a command, and make its networks. Return what must be equal, or the goal
    is another number; the folder of the run; and its last step."""
    script = AS_IMPORTED | {'state': {}}        # no knob of another command
    executed, notes = [], []
    configure(script, [*words_of(command, seed), '--device=cpu'], executed, say=notes.append)
    for note in {x for x in notes if 'nobody' in x} - NOTES:
        NOTES.add(note)
        say(note)
    networks, task = open_task(script, torch.device('cpu'), {})
    devices.set_seed(0)                         # an evaluation draws the same prompts
    prompts = task.prompts('val', script['eval_prompts'], script['blank_low'], script['blank_high'])
    shown = prompts.whole.masked_fill(prompts.blank, task.tok.blank)
    about = goal.split('/')[-1].removeprefix('mean_').replace('pass@4', 'verify')
    weights = {about: 1.0}
    if about == 'reward':
        weights = script['rewards'] | {'score': 1.0}            # a file may add to the sum
    functions = script | {'verify': task.verify}
    meaning = [[(name, weight, code_of(functions.get(name)))
                for name, weight in weights.items() if weight],         # 0: only watched
               [task.records[i] for i in prompts.record.tolist()],
               [task.tok.show(ids) for ids in shown.tolist()]]
    # All words and the contents of the files are in the name of the folder, so that no run of
    # other contents is there.
    files = [*load(script['dataset']).sources]
    files += map(Path, script['include'].__self__.sources())
    for file in map(Path, networks.files.values()):
        files += [file, *file.glob('*')]        # of transformers: a folder
    contents = [(command, str(x), zlib.crc32(x.read_bytes())) for x in sorted({*files})
                if x.is_file()]
    name = re.sub('[^a-zA-Z0-9_.=,]+', '-', 'run ' + command.removeprefix(words))[:99]
    folder = f'{out_dir}/{name}-{zlib.crc32(repr(contents).encode())}-{seed}'
    return meaning, folder, script['max_iters']


def code_of(x):
    """Return what is equal for two copies of a function. (The judge is a path.)"""
    if callable(x):
        return getattr(inspect.unwrap(x), '__code__', type(x).__name__)
    return x


# ---- the runs ------------------------------------------------------------------------------------
def curve_of(run):
    """Return {step: the goal} of a run that has come to its end, or {}."""
    _, folder, last = open_run(*run)
    try:
        lines = [json.loads(line) for line in open(f'{folder}/log.jsonl')]
    except (FileNotFoundError, ValueError):     # ValueError: it was killed, and left half a line
        return {}
    if last not in [line['step'] for line in lines]:
        return {}
    curve = {line['step']: line[goal] for line in lines if goal in line}
    expect(curve, f"there is no {goal} in the log: expected one of {sorted(set().union(*lines))}")
    return curve


def last_error(folder):
    """Return the last error that a run has printed, or ''."""
    errors = re.findall('(?m)^error: .*', Path(f'{folder}.txt').read_text('utf-8'))
    return errors[-1] if errors else ''


@exit_at_sigterm()
def make(runs):
    """Make the runs, pairs of a command and a seed, that are not there yet. If one fails, or
    this script is stopped, end the others."""
    waiting = [run for run in runs if not curve_of(run)]
    n_kept = len(runs) - len(waiting)
    n_done = bar(None, 'runs', initial=n_kept, total=len(runs))
    processes, codes = {}, []                   # {folder: process}
    try:
        while waiting or None in codes:
            if waiting and codes.count(None) < jobs:
                run = waiting.pop(0)
                _, folder, _ = open_run(*run)
                say(f'{len(runs) - len(waiting)} of {len(runs)}: {label_of(run[0])}, seed '
                    f'{run[1]}, in {folder}.txt')
                with open(f'{folder}.txt', 'a') as file:
                    processes[folder] = start(
                        [sys.executable, 'train_grpo.py', *words_of(*run), f'--out_dir={folder}'],
                        stdout=file, stderr=file)
            time.sleep(0.1)
            codes = [process.poll() for process in processes.values()]      # None: it is running
            if codes.count(0) > n_done.n - n_kept:
                n_done.update(n_kept + codes.count(0) - n_done.n)
                for run in runs:                # now, if there is no such goal in its log
                    curve_of(run)
            for folder, code in zip(processes, codes):
                expect(code in (0, None), f"a run failed: {folder}.txt says why. "
                       f"{last_error(folder) or f'Its exit code is {code} (-9: it was killed)'}")
    finally:
        for process in processes.values():
            process.kill()
        n_done.close()


# ---- the table -----------------------------------------------------------------------------------
def show(label, columns, more='', noise=math.inf):
    """Print means and standard errors of columns of numbers, a number of each seed. A difference
    gets a star if it is more than `noise` standard errors. Of equal differences the error is 0,
    except for rounding, and nothing can be told."""
    cells = []
    for column in columns:
        mean = statistics.mean(column)
        error = statistics.stdev(column) / len(column) ** 0.5
        star = '*' if abs(mean) > noise * error > 1e-9 else ' '
        cells.append(f'{mean:9.4f} +- {error:.4f}{star}')
    say(' '.join([f'{label:18}', *cells, more]))


def label_of(command):
    return command.removeprefix(words).strip() or 'as it is'


def report(curves):
    """Print tables of curves {command: {step: goal} of each seed}."""
    steps = sorted(set.intersection(*[{*curve} for runs in curves.values() for curve in runs]))
    last = len(steps) - 1
    steps = sorted({steps[i * last // 4] for i in range(5)})
    noise = STUDENT.get(len(seeds.split(',')), 2.3)
    head = [f"\n{goal + ', step':18}", *[f'{step:20}' for step in steps]]
    say(' '.join([*head, f" at {steps[-1]}, seeds {seeds}"]))
    first = None
    for command, runs in curves.items():
        columns = [[curve[step] for curve in runs] for step in steps]
        say(label_of(command))
        show('', columns, ' '.join(f'{x:.4f}' for x in columns[-1]))
        if first:
            gaps = [[x - y for x, y in zip(*pair)] for pair in zip(columns, first)]
            show('  minus the first', gaps, noise=noise)
        first = first or columns
    say(f"+- is a standard error over seeds. A star: a difference of more than {noise} of them, "
        "which chance alone makes in 1 of 20 cases. A difference without a star shows nothing.")


if __name__ == '__main__':
    names = {'--help', '-h', *[f'--{name}' for name in knobs_of(globals())]}
    ours = [word for word in sys.argv[1:] if word.partition('=')[0] in names]
    configure(globals(), ours)
    expect(not any(word.startswith('--seed=') for word in sys.argv[1:]), "--seed: seeds are "
           "--seeds=1,2,3")
    commands = [*dict.fromkeys(f'{words} {word}'.strip() for word in sys.argv[1:]
                               if word not in ours)]
    expect(commands, "expected commands: python -m extras.compare --seeds=1,2,3 "
           "config/grpo_config.py 'config/grpo_config.py config/papers/rloo.py'")
    all_seeds = [*dict.fromkeys(seeds.split(','))]          # no two are equal
    expect(len(all_seeds) > 1, f"seeds = {seeds!r}: expected two or more, such as --seeds=1,2,3")
    runs = [(command, seed) for seed in all_seeds for command in commands]
    for command, seed in runs:
        *others, _ = words_of(command, seed)
        expect(words or len(commands) == 1 or any(x.endswith('.py') for x in others), (
            f"{command!r}: a command without a config file. Quotes hold the words of a command "
            "together: 'config/grpo_config.py --kl_beta=0'"))
        expect(not any(x.startswith(('--seed=', '--out_dir=')) for x in others), (
            f"{command!r}: expected no --seed and no --out_dir: seeds are --seeds=1,2,3"))
    for run in runs:
        expect(open_run(*run)[0] == open_run(*runs[0])[0], (
            f"{run}: {goal} is about other held-out prompts or rewards than in {runs[0]}. (Each "
            "word is a command. Quotes hold the words of one together)"))
    ends = {open_run(*run)[2] for run in runs}
    if len(ends) > 1:
        say(f"max_iters is one of {sorted(ends)}: the table has the steps that all runs have. "
            "(Each word is a command. Quotes hold the words of one together)")
    expect(not os.path.isfile(out_dir), f"out_dir = {out_dir}: it is a file")
    os.makedirs(out_dir, exist_ok=True)
    make(runs)
    curves = {command: [curve_of((command, seed)) for seed in all_seeds] for command in commands}
    expect(all(map(all, curves.values())), "a run was stopped: the same command continues")
    report(curves)
