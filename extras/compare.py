"""Compare variants of a run over seeds and learning rates: tables with error bars, and a picture.

    python -m extras.compare study config/grpo_think.py --seeds=1,2,3 --rates=3e-4,1e-3,3e-3 \
        std=--adv_norm=std 'dapo=config/papers/dapo.py --clip_high=0.3'

The folder comes first. A word NAME=WORDS is a variant, and all other words are for every run. What
a run writes is in study/NAME-RATE-SEED, and what it prints in study/NAME-RATE-SEED.txt; without
--rates in study/NAME-SEED. There are as many runs at a time as cores, or OMP_NUM_THREADS, with one
thread each. All variants of a seed see the same prompts. Finished runs are not made again and
interrupted ones go on, so the same command can get more variants, seeds and rates. After a change
of a script, or of a file among its words, a run begins anew. (Data that a config file names do not
count: name them with --dataset=.)

Tables and picture show the share of right answers to held-out prompts, or another number of
log.jsonl, such as --goal=reward or --goal=clip_frac: mean +- standard deviation over seeds, for
each rate by itself; the last table has the ends at all rates. Values between two lines of the log
are interpolated, up to the end of the run that ends first. The differences are those to the first
variant, seed by seed: their mean +- its standard error. For those to another variant, name it
first: the runs are kept. Seconds are those of the processor; evaluations, and the load of the
machine, are in them."""
import os
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from common import Signals, configure, fail, has_run, move_aside
from extras.curves import Figure, read_log

# ---- knobs, changed by --name=value --------------------------------------------------------------
seeds = '1,2,3'             # two to five
rates = ''                  # learning rates: every variant at each of them; '': that of the words
goal = 'verify'             # of held-out prompts; or another number of log.jsonl

# Student's t: chance exceeds so many standard errors of a mean over so many seeds once in twenty.
# Two seeds can agree by luck, so they get no stars.
NOISE = {2: np.nan, 3: 4.3, 4: 3.2, 5: 2.8}
# The table of the end. Greedy decoding and pass@4 tell more than the goal: a policy that only
# samples more sharply is equal there. The mean of the curve says who learns sooner.
END = ('goal', 'greedy', 'pass@4', 'tokens', 'mean of curve')
SCRIPTS = 'train_grpo rollout model pretrained pretrain judge common'


def made_from(words):
    """Return a text that says what a run depends on: its words, and a checksum of the scripts and
    of the files among the words: config files, and those of flags such as --dataset=mine.jsonl."""
    values = [word.split('=')[-1] for word in words]
    files = [value for value in values if os.path.isfile(value)]
    files += [f'{name}.py' for name in SCRIPTS.split()]
    for folder in ('data', 'config/networks'):
        files += sorted(Path(folder).glob('*.py'))
    return f"{words} {zlib.crc32(b''.join(Path(file).read_bytes() for file in files))}"


def train(run):
    """Train a run to its end, in the folder path. Return True if an earlier call had done so."""
    path, words = run
    about = made_from(words)
    state = Path(f'{path}.state')
    before = state.read_text() if state.exists() else ''
    if before == f'done {about}':
        return True
    resume = before == f'begun {about}' and os.path.exists(f'{path}/ckpt.pt')
    if not resume and has_run(path):
        move_aside(path, [])                    # it must not go on as if it were the new one
    state.write_text(f'begun {about}')
    command = [sys.executable, 'train_grpo.py', *words, f'--out_dir={path}', f'--resume={resume}']
    with open(f'{path}.txt', 'a') as file:
        code = subprocess.call(command, stdout=file, stderr=file)
    if code != 0:
        *_, last = Path(f'{path}.txt').read_text().strip().split('\n')
        fail(f"a run ended with code {code}, see {path}.txt: {last}")
    if made_from(words) != about:
        fail(f"a script has changed while {path} was made: start again, to make all runs anew")
    state.write_text(f'done {about}')
    return False


def show(title, columns, names, values, n=1, noise=np.nan):
    """Print a table of values (variants, seeds, columns): mean +- (standard deviation over seeds)
    / sqrt(n), with a star if the mean is more than `noise` of these."""
    digits = 3 if n == 1 else 4                 # errors of a mean are smaller
    means = values.mean(1)                                          # (variants, columns)
    errors = values.std(1, ddof=1) / n ** 0.5
    has_star = abs(means) > noise * errors
    print(f'\n{title:16}', *[f'{column:>20}' for column in columns])
    for i, name in enumerate(names):
        cells = []
        for mean, error, star in zip(means[i], errors[i], has_star[i]):
            cells.append(f"{mean:.{digits}f} +- {error:.{digits}f}{'*' if star else ' '}")
        print(f'{name:16}', *[f'{cell:>20}' for cell in cells])


def logs_of(folder, name, seeds, goal):
    """Return the logs of a variant, one for each seed: their lines that have the goal."""
    logs = []
    for seed in seeds:
        logs.append([line for line in read_log(f'{folder}/{name}-{seed}') if goal in line])
    if not all(logs):
        fail(f"no {goal} in the logs of {name}: leave it out, or choose another --goal, such as "
             "reward")
    return logs


def curve_of(log, clock, goal, times):
    """Return the goal at times of a clock, interpolated between the lines of a log."""
    x = [line[clock] for line in log]
    y = [line[goal] for line in log]
    return np.interp(times, x, y)


def ends_of(log, goal):
    """Return the numbers of END for a run; NaN if its log lacks them."""
    last = log[-1]
    names = [goal, f'{goal}_greedy', 'eval/pass@4', 'eval/tokens']
    ends = [last.get(name, np.nan) for name in names]
    ends.append(np.mean([line[goal] for line in log]))
    return ends


def report(names, logs, goal, panels):
    """Print the tables of variants, and draw a line with a band for each in two panels: by step and
    by seconds. logs[i][j] is the log of variant i and seed j, a list of lines. Return the goal at
    the end (variants, seeds)."""
    n_seeds = len(logs[0])
    first = logs[0][0][0]
    start = [f'{name} {first[name]:.3f}' for name in (goal, f'{goal}_greedy') if name in first]
    print('\nat the start:', *start)
    for ax, clock in zip(panels, ('step', 'cpu_seconds')):
        # from 0 to the end of the run that ends first
        ends = [log[-1][clock] for group in logs for log in group]
        times = np.linspace(0, min(ends), 101)
        values = [[curve_of(log, clock, goal, times) for log in group] for group in logs]
        values = np.array(values)                                   # (variants, seeds, 101)
        # the table has four of the 101 times
        show(clock, times[25::25].round(1), names, values[:, :, 25::25])
        for name, mean, std in zip(names, values.mean(1), values.std(1, ddof=1)):
            ax.plot(times, mean, label=name)
            ax.fill_between(times, mean - std, mean + std, alpha=0.2)
        ax.set_xlabel(clock)
    ax.legend(frameon=False, loc='center left', bbox_to_anchor=(1, 0.5))

    ends = np.array([[ends_of(log, goal) for log in group] for group in logs])
    is_known = ~np.isnan(ends).all((0, 1))
    ends = ends[:, :, is_known]                                     # (variants, seeds, columns)
    columns = np.array(END)[is_known]
    show('at the end', columns, names, ends)
    show(f'minus {names[0]}', columns, names[1:], ends[1:] - ends[0], n_seeds, NOISE[n_seeds])
    return ends[:, :, 0]


if __name__ == "__main__":
    Signals()                                   # Ctrl-C: the runs are saved and end, and so do we
    # Three flags are ours. The first of the other words is the folder.
    words = sys.argv[1:]
    ours = [word for word in words if word.startswith(('--seeds', '--rates', '--goal', '--help'))]
    configure(globals(), ours)
    folder, *words = [word for word in words if word not in ours] or ['']
    shared = [word for word in words if word.startswith('-') or '=' not in word]
    given = dict(word.split('=', 1) for word in words if word not in shared)
    seeds = seeds.split(',')
    if len(seeds) not in NOISE or not given or os.path.isfile(folder):
        fail(f"expected FOLDER, two to five seeds, and variants NAME=WORDS, not {sys.argv[1:]}")
    groups = []                                 # of variants {name: its words}, one at each rate
    for rate in rates.split(','):
        end = f'-{rate}' if rate else ''
        also = [f'--learning_rate={rate}'] if rate else []
        groups.append({name + end: own.split() + also for name, own in given.items()})
    # Seed by seed, so that all variants see the same load of the machine.
    runs = {f'{folder}/{name}-{seed}': [*shared, *own, f'--seed={seed}']
            for seed in seeds for group in groups for name, own in group.items()}
    os.makedirs(folder, exist_ok=True)
    n_processes = int(os.environ.get('OMP_NUM_THREADS', os.cpu_count()))
    os.environ['OMP_NUM_THREADS'] = '1'
    began = time.time()
    n_made = 0
    print(f"{len(runs)} runs, {n_processes} at a time; missing networks come first", flush=True)
    with ThreadPoolExecutor(n_processes) as pool:
        for n_done, was_done in enumerate(pool.map(train, runs.items()), 1):
            n_made += not was_done
            minutes = (time.time() - began) / 60 / max(1, n_made) * (len(runs) - n_done)
            print(f"{n_done} of {len(runs)} runs, {minutes:.0f} minutes left", flush=True)

    first_path, *_ = runs
    first_line, *_ = read_log(first_path)       # an evaluation
    if f'eval/{goal}' in first_line:
        goal = f'eval/{goal}'
    print('\n', *shared)
    figure = Figure(figsize=(11, 4 * len(groups)), layout='constrained')
    rows = figure.subplots(len(groups), 2, sharey=True, squeeze=False)
    goals = []                                  # at each rate (variants, seeds)
    for group, panels in zip(groups, rows):
        logs = [logs_of(folder, name, seeds, goal) for name in group]
        goals.append(report(list(group), logs, goal, panels))
    if rates:
        show(f'{goal} at', rates.split(','), list(given), np.stack(goals, 2))
    figure.suptitle(f'{goal}: mean and standard deviation over seeds')
    path = f"{folder}/{goal.removeprefix('eval/')}.png"
    figure.savefig(path, dpi=130)
    print("* more than chance makes once in twenty; two seeds can agree by luck, and get no star. "
          f"Three are for a first look, five for a claim.\n\nwrote {path}")
