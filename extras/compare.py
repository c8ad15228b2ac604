"""Compare commands of train_grpo.py over seeds, in a table with error bars:

    python -m extras.compare --seeds=1,2,3 config/grpo_config.py \\
        'config/grpo_config.py config/papers/rloo.py'
    python -m extras.compare --words='config/grpo_think.py --max_iters=40' '' --adv_norm=none

Each word but the knobs below is a command, in quotes if it has several words. {seed} in it becomes
the seed: --generator=out/student{seed}.pt. Finished runs are kept, so a comparison that was
interrupted goes on, and can get more commands and seeds. A run begins anew if a file that its
words name has been edited since; after an edit of a script take another --out_dir."""
import os
import re
import statistics
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from json import loads
from pathlib import Path

import train_grpo as grpo
from plumbing.configurator import configure, knobs_of, near

# ---- knobs, changed by --name=value --------------------------------------------------------------
words = ''                  # of all commands, before their own
seeds = '1,2,3'             # two or more: three for a first look, five for a claim
goal = 'eval/verify'        # a number of log.jsonl: 'greedy/verify', 'eval/pass@4', 'kl', ...
out_dir = 'out-compare'     # folder of the folders of the runs
jobs = 1                    # runs at a time

# two-sided 5 % points of Student's t, for so many seeds
STUDENT = {2: 12.7, 3: 4.3, 4: 3.2, 5: 2.8, 6: 2.6, 7: 2.4, 8: 2.4}


def meaning_of(command):
    """Return what must be equal, or the goal is another number: the held-out prompts, and the
    rewards that it is about. (This also finds mistakes, and makes networks that are missing.)"""
    words = command.replace('{seed}', seeds.split(',')[0]).split()
    for word in words:
        assert word.endswith('.py') or '=' in word, (
            f"{word}: expected commands; to see runs side by side: python -m extras.page {word}")
        assert not word.startswith(('--seed=', '--out_dir=')), (
            f"{command}: each run gets its seed and its folder: expected neither")
    config, data = grpo.read_words([*words, '--device=cpu'])
    grpo.open_task(data)
    meaning = {name: config[name] for name in ('dataset', 'blank_kind', 'eval_prompts')}
    name = goal.split('/')[-1].removeprefix('mean_')
    for reward, weight in ({'verify': 0.0} | config['rewards']).items():
        if name == reward or name == 'reward' and weight:
            function = data.verify if reward == 'verify' else vars(grpo)[reward]
            meaning[reward] = weight * (name == 'reward'), getattr(function, '__code__', function)
    if name == 'reward':
        meaning['score()'] = grpo.score.__code__
    return meaning


def folder_of(command, seed):
    """Return the folder of a run: its own words, a number of all words, and the seed."""
    own = re.sub('[^a-zA-Z0-9_.=,]+', '-', 'run ' + command.removeprefix(words))[:99]
    return f'{out_dir}/{own}-{zlib.crc32(command.encode())}-{seed}'


def is_finished(folder, command):
    """Return whether a run of these words has come to its end, and none of their files is newer."""
    try:
        config = loads(Path(folder, 'config.json').read_text())
        log = Path(folder, 'log.jsonl').read_text()
    except FileNotFoundError:
        return False
    files = [word.partition('=')[2] or word for word in command]
    edited = max([os.path.getmtime(file) for file in files if os.path.isfile(file)], default=0)
    return (config['words'] == command and f'{{"step": {config["max_iters"]}, ' in log
            and edited < os.path.getmtime(f'{folder}/config.json'))


def train(run):
    command, seed = run
    folder = folder_of(command, seed)
    command = command.replace('{seed}', seed).split() + [f'--seed={seed}', f'--out_dir={folder}']
    if not is_finished(folder, command):
        with open(f'{folder}.txt', 'w') as file:
            subprocess.run([sys.executable, 'train_grpo.py', *command], stdout=file, stderr=file)
        assert is_finished(folder, command), f"a run did not come to its end: see {folder}.txt"


def curve_of(folder):
    """Return {step: the goal} of a run."""
    lines = [loads(line) for line in open(f'{folder}/log.jsonl')]
    curve = {line['step']: line[goal] for line in lines if goal in line}
    assert curve, f"there is no {goal} in the log{near(goal, set().union(*lines[:2]))}"
    return curve


def show(label, columns, more='', noise=None):
    """Print means and standard errors of columns of numbers, a number of each seed. A difference
    gets a star if it is more than so many standard errors."""
    cells = []
    for column in columns:
        mean, error = statistics.mean(column), statistics.stdev(column) / len(column) ** 0.5
        star = '*' if noise and abs(mean) > noise * error else ' '
        cells.append(f'{mean:9.4f} +- {error:.4f}{star}')
    print(f'{label:18}', *cells, more)


def report(curves):
    """Print tables of curves {command: {step: goal} of each seed}."""
    steps = sorted(set.intersection(*[set(curve) for runs in curves.values() for curve in runs]))
    steps = sorted({steps[i * (len(steps) - 1) // 4] for i in range(5)})
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
    folders = {folder_of(command, '') for command in commands}
    assert len(folders) == len(commands) > 0, "expected commands, no two of them equal"
    all_seeds = seeds.split(',')
    assert len({*all_seeds}) == len(all_seeds) > 1, (
        f"--seeds={seeds}: expected two or more seeds, no two equal")
    first, *others = [meaning_of(command) for command in commands]
    for other, command in zip(others, commands[1:]):
        wrong = [name for name in first | other if first.get(name) != other.get(name)]
        assert not wrong, f"{command}: {goal} is another number than of the first, by {wrong}"
    os.makedirs(out_dir, exist_ok=True)
    runs = [(command, seed) for seed in all_seeds for command in commands]
    with ThreadPoolExecutor(jobs) as pool:
        for n, _ in enumerate(pool.map(train, runs), 1):
            print(f'{n} of {len(runs)} runs', flush=True)
    report({command: [curve_of(folder_of(command, seed)) for seed in all_seeds]
            for command in commands})
