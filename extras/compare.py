"""Compare commands of train_grpo.py over seeds, in a table with error bars:

    python -m extras.compare --seeds=1,2,3 config/grpo_config.py \\
        'config/grpo_config.py config/papers/rloo.py'
    python -m extras.compare --words='config/grpo_think.py --max_iters=40' '' --adv_norm=none

Each word but the knobs below is a command, in quotes if it has several words. {seed} in it becomes
the seed: --generator=out/student{seed}.pt. Finished runs are kept, so a comparison that was
interrupted goes on, and can get more commands and seeds. A run is made anew if the contents of its
config files, of its dataset or of its networks have changed since. The scripts do not count: after
an edit of one take another --out_dir."""
import functools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import train_grpo as grpo
from plumbing.configurator import configure, knobs_of, near
from plumbing.datasets import path_of
from plumbing.networks import file_of, hashes_of, paths_of

# ---- knobs, changed by --name=value --------------------------------------------------------------
words = ''                  # of all commands, before their own
seeds = '1,2,3'             # two or more: three for a first look, five for a claim
goal = 'eval/verify'        # a number of log.jsonl: 'greedy/verify', 'eval/pass@4', 'kl', ...
out_dir = 'out-compare'     # folder of the folders of the runs
jobs = 1                    # runs at a time
LOWEST = {'jobs': 1}

# two-sided 5 % points of Student's t, for so many seeds
STUDENT = {2: 12.7, 3: 4.3, 4: 3.2, 5: 2.8, 6: 2.6, 7: 2.4, 8: 2.4}


# ---- before the runs -----------------------------------------------------------------------------
@functools.cache
def open_experiment(command):
    """Find the mistakes of a command, and make networks that are missing. Return what must be
    equal, or the goal is another number: the held-out prompts, and the rewards that it is about;
    the files on which the runs depend; and their last step."""
    assert '--seed=' not in command and '--out_dir=' not in command, (
        f"{command}: each run gets its seed and its folder: expected neither")
    config, data = grpo.read_words([*command.split(), '--device=cpu'])
    grpo.open_task(data)
    meaning = {knob: config[knob] for knob in ('dataset', 'blank_kind', 'eval_prompts')}
    about = goal.split('/')[-1].removeprefix('mean_').replace('pass@4', 'verify')
    weights = {about: 1.0}
    if about == 'reward':
        weights = config['rewards'] | {'score': 1.0}    # a plugin may add to the sum
    functions = vars(grpo) | {'verify': data.verify}
    for name, weight in weights.items():
        function = functions.get(name)          # of numbers such as kl: None
        if weight:                              # 0: only watched
            meaning[name] = weight, getattr(function, '__code__', function)
    files = grpo._files + [path_of(grpo.dataset)]
    for path in filter(None, paths_of(vars(grpo)).values()):
        file = Path(file_of(path, grpo.dataset))
        files += [file, *file.glob('*')]        # of transformers: a folder
    return meaning, files, config['max_iters']


# ---- the runs ------------------------------------------------------------------------------------
def curve_of(folder, max_iters):
    """Return {step: the goal} of a run that has come to its end, or {}."""
    try:
        lines = [json.loads(line) for line in open(f'{folder}/log.jsonl')]
    except (FileNotFoundError, ValueError):     # ValueError: it was killed, and left half a line
        return {}
    if max_iters not in [line['step'] for line in lines]:
        return {}
    curve = {line['step']: line[goal] for line in lines if goal in line}
    assert curve, f"there is no {goal} in the log{near(goal, set().union(*lines[:2]))}"
    return curve


def train(run):
    """Make a run, if it is not there. Return its curve."""
    command, seed = run
    _, files, max_iters = open_experiment(command)
    # All words and the contents of the files are in the name of the folder, so that no run of
    # other contents is there.
    number = zlib.crc32(f'{command} {sorted(hashes_of(files).items())}'.encode())
    name = re.sub('[^a-zA-Z0-9_.=,]+', '-', 'run ' + command.removeprefix(words))[:99]
    folder = f'{out_dir}/{name}-{number}-{seed}'
    curve = curve_of(folder, max_iters)
    if not curve:
        with open(f'{folder}.txt', 'w') as file:
            subprocess.call(
                [sys.executable, 'train_grpo.py', *command.split(),
                 f'--seed={seed}', f'--out_dir={folder}'],
                stdout=file, stderr=file)
        curve = curve_of(folder, max_iters)
        assert curve, f"a run failed, or was stopped: see {folder}.txt"
    print(f'{folder}: {goal} {[*curve.values()][-1]:.4f}', flush=True)
    return curve


# ---- the table -----------------------------------------------------------------------------------
def show(label, columns, more='', noise=math.inf):
    """Print means and standard errors of columns of numbers, a number of each seed. A difference
    gets a star if it is more than `noise` standard errors."""
    cells = []
    for column in columns:
        mean = statistics.mean(column)
        error = statistics.stdev(column) / len(column) ** 0.5
        star = '*' if abs(mean) > noise * error else ' '
        cells.append(f'{mean:9.4f} +- {error:.4f}{star}')
    print(f'{label:18}', *cells, more)


def report(curves):
    """Print tables of curves {command: {step: goal} of each seed}."""
    all_curves = sum(curves.values(), [])
    steps = sorted(set.intersection(*map(set, all_curves)))
    last = len(steps) - 1
    steps = sorted({steps[i * last // 4] for i in range(5)})
    noise = STUDENT.get(len(seeds.split(',')), 2.3)
    print(f"\n{goal + ', step':18}", *[f'{step:20}' for step in steps], f' at {steps[-1]}: {seeds}')
    first = None
    for command, runs in curves.items():
        columns = [[curve[step] for curve in runs] for step in steps]
        print(command.removeprefix(words).strip() or 'as it is')
        show('', columns, ' '.join(f'{x:.4f}' for x in columns[-1]))
        if first:
            gaps = [[x - y for x, y in zip(*pair)] for pair in zip(columns, first)]
            show('  minus the first', gaps, noise=noise)
        first = first or columns
    print(f"+- is a standard error over seeds. A star: a difference of more than {noise} of them, "
          "which chance alone makes in 1 of 20 cases. A difference without a star shows nothing.")


if __name__ == '__main__':
    names = ['help', *knobs_of(globals())]
    ours = [word for word in sys.argv[1:] if word[2:].partition('=')[0] in names]
    configure(globals(), ours)
    commands = [f'{words} {word}'.strip() for word in sys.argv[1:] if word not in ours]
    assert commands, "expected commands of train_grpo.py, such as '' and --kl_beta=0"
    all_seeds = seeds.split(',')
    assert len({*all_seeds}) == len(all_seeds) > 1 and seeds.replace(',', '').isdecimal(), (
        f"--seeds={seeds}: expected two or more seeds, no two equal, such as 1,2,3")
    runs = [(command.replace('{seed}', seed), seed) for seed in all_seeds for command in commands]
    first = None
    for command, _ in runs:                     # before networks are made
        grpo.read_words([*command.split(), '--device=cpu'])
    for command, _ in runs:
        meaning, *_ = open_experiment(command)
        first = first or meaning
        wrong = dict(first.items() ^ meaning.items())
        assert not wrong, f"{command}: {goal} is another number than of the first, by {[*wrong]}"
    assert not Path(out_dir, 'config.json').exists(), (
        f"--out_dir={out_dir} is a run: expected a folder of runs")
    os.makedirs(out_dir, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        # Python's map() makes a run when the list asks for it, so it ends with the first mistake.
        made = [*(map(train, runs) if jobs == 1 else pool.map(train, runs))]
    report({command: made[i::len(commands)] for i, command in enumerate(commands)})
