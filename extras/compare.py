"""Compare variants of a run over seeds: a table with error bars, and a picture.

    python -m extras.compare study config/grpo_think.py --seeds=1,2,3 std=--adv_norm=std \
        'dapo=config/papers/dapo.py --clip_high=0.3'

The folder comes first, then words that all variants share, then --seeds, then the variants, each
with words of its own. A run is in study/NAME-SEED, and what it prints in study/NAME-SEED.txt. There
are as many at a time as cores, or OMP_NUM_THREADS, with one thread each. All variants of a seed see
the same prompts. Finished runs are not made again and interrupted ones go on, so the same command
can get more variants and seeds. A run begins anew if a script or one of its config files has
changed.

Tables and picture show the number that the runs watch, on held-out prompts, by step and by seconds
of the processor (evaluations and the load of the machine are in them): mean +- standard deviation
over seeds. Values between two evaluations are interpolated; the end is that of the run that ends
first. A third table has greedy decoding, pass@4 and tokens at the end: a policy that only samples
more sharply is equal there. Then come the differences to the first variant, seed by seed, with the
standard error of their mean. For those to another one, name it first: the runs are kept."""
import json
import os
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from common import Signals, fail
from extras.curves import Figure, read_log

SCRIPTS = 'train_grpo rollout model pretrained pretrain judge common data/* config/networks/*'


def made_from(words):
    """Return a text that says what a run depends on: its words, and a checksum of the scripts and
    of the config files among the words."""
    files = [file for name in SCRIPTS.split() for file in sorted(Path().glob(f'{name}.py'))]
    files += [Path(word) for word in words if os.path.isfile(word)]
    return f"{words} {zlib.crc32(b''.join(file.read_bytes() for file in files))}"


def train(path, words):
    """Train to the end, in the folder path, unless it was done."""
    begun = Path(f'{path}.begun')
    done = Path(f'{path}.done')
    is_same = begun.exists() and begun.read_text() == made_from(words)
    if is_same and done.exists():
        return
    resume = is_same and os.path.exists(f'{path}/ckpt.pt')
    done.unlink(missing_ok=True)
    begun.write_text(made_from(words))
    words_of_run = [*words, f'--out_dir={path}', f'--resume={resume}']
    with open(f'{path}.txt', 'a') as file:
        code = subprocess.call([sys.executable, 'train_grpo.py', *words_of_run], stdout=file,
                               stderr=file)
    if code != 0:
        *_, last = Path(f'{path}.txt').read_text().splitlines()
        fail(f"a run ended with code {code}, see {path}.txt: {last}")
    done.touch()


def goal_of(paths):
    """Return the name of the number that all runs watch; if their rewards differ: verify."""
    configs = [json.loads(Path(path, 'config.json').read_text()) for path in paths]
    is_same = all(config['rewards'] == configs[0]['rewards'] for config in configs)
    return configs[0]['goal'] if is_same else 'verify'


def curve(path, clock, goal):
    """Return a run's evaluations (2, n): times by a clock, and values of a number."""
    name = f'eval/{goal}'
    return np.array([(line[clock], line[name]) for line in read_log(path) if name in line]).T


def show(ax, clock, goal, names, paths):
    """Print a table, and draw a picture. paths: of all seeds of the first variant, then of the
    second, ... Return the values (variants, seeds, 101) of all runs at equal times."""
    curves = [curve(path, clock, goal) for path in paths]
    times = np.linspace(0, min(c[0, -1] for c in curves), 101)
    values = np.array([np.interp(times, *c) for c in curves])
    values = values.reshape(len(names), -1, 101)                # (variants, seeds, times)
    print(f'\n{clock:14}', *[f'{t:^14.4g}' for t in times[25::25]])
    for name, mean, std in zip(names, values.mean(1), values.std(1, ddof=1)):
        print(f'{name:14}', *[f'{mean[i]:.3f} +- {std[i]:.3f}' for i in range(25, 101, 25)])
        ax.plot(times, mean, label=name)
        ax.fill_between(times, mean - std, mean + std, alpha=0.2)
    ax.set_xlabel(clock)
    return values


def show_gaps(title, names, values):
    """Print the differences of values (variants, seeds) to those of the first variant."""
    n_seeds = values.shape[1]
    # Student's t: what a mean of so many differences must exceed at a level of 5 %
    limit = {2: 12.7, 3: 4.3, 4: 3.2}.get(n_seeds, 2.8)
    first, *others = names
    print(f'\n{title}, minus {first}; and seed by seed (*: more than {limit} standard errors)')
    for name, gaps in zip(others, values[1:] - values[0]):
        # Scores are multiples of about 1 / 2048, so gaps can be equal by chance.
        error = max(gaps.std(ddof=1), 1 / 2048) / n_seeds ** 0.5
        star = '*' if abs(gaps.mean()) > limit * error else ' '
        by_seed = [f'{gap:+.3f}' for gap in gaps]
        print(f'{name:14} {gaps.mean():+.3f} +- {error:.4f} {star}', *by_seed)


def show_ends(goal, names, paths):
    """Print a table of other numbers in the last evaluation."""
    columns = [f'{goal}_greedy', 'pass@4', 'tokens']
    print(f'\n{"at the end":14}', *[f'{column:^14}' for column in columns])
    n_seeds = len(paths) // len(names)
    for i, name in enumerate(names):
        last = [read_log(path)[-1] for path in paths[i * n_seeds:][:n_seeds]]
        ends = [np.array([line.get(f'eval/{column}', np.nan) for line in last])
                for column in columns]
        print(f'{name:14}', *[f'{end.mean():.3f} +- {end.std(ddof=1):.3f}' for end in ends])


if __name__ == "__main__":
    Signals()                                   # Ctrl-C: the runs are saved and end, and so do we
    is_seeds = [word.startswith('--seeds=') for word in sys.argv]
    if not any(is_seeds[2:-1]):                 # a folder comes before it, and a variant after it
        sys.exit(__doc__)
    i = is_seeds.index(True)
    folder, *shared = sys.argv[1:i]
    seeds = sys.argv[i].removeprefix('--seeds=').split(',')
    given = sys.argv[i + 1:]
    variants = dict(word.split('=', 1) for word in given if not word.startswith('-'))
    if len(set(seeds)) < max(2, len(seeds)) or len(variants) < len(given) or folder.endswith('.py'):
        fail(f"expected FOLDER, two seeds or more, and variants NAME=WORDS, not {sys.argv[1:]}")
    # Seed by seed, so that all variants see the same load of the machine.
    runs = {}
    for seed in seeds:
        for name, words in variants.items():
            runs[f'{folder}/{name}-{seed}'] = [*shared, *words.split(), f'--seed={seed}']
    paths = [f'{folder}/{name}-{seed}' for name in variants for seed in seeds]
    os.makedirs(folder, exist_ok=True)
    n_processes = int(os.environ.get('OMP_NUM_THREADS', os.cpu_count()))
    os.environ['OMP_NUM_THREADS'] = '1'
    began = time.time()
    with ThreadPoolExecutor(n_processes) as pool:
        for done, _ in enumerate(pool.map(train, runs, runs.values()), 1):
            minutes = (time.time() - began) / 60 * (len(runs) / done - 1)
            print(f"{done} of {len(runs)} runs, {minutes:.0f} minutes left", flush=True)
    for path, words in runs.items():
        if Path(f'{path}.begun').read_text() != made_from(words):
            fail(f"a script has changed since {path} began: start again, to make all runs anew")
    print(f"\n{' '.join(shared)}")
    figure = Figure(figsize=(10, 4), layout='constrained')
    goal = goal_of(paths)
    figure.suptitle(f'{goal} on held-out prompts: mean and standard deviation over seeds')
    steps_ax, ax = figure.subplots(1, 2, sharey=True)
    values = show(steps_ax, 'step', goal, variants, paths)
    show(ax, 'cpu_seconds', goal, variants, paths)
    show_ends(goal, variants, paths)
    show_gaps('at the end', variants, values[:, :, -1])
    show_gaps('mean over all steps', variants, values.mean(2))
    print("Without a star it may be noise. Two seeds are for trying out, three for a first look.")
    ax.legend()
    figure.supylabel('held-out mean')
    figure.savefig(f'{folder}/compare.png', dpi=130)
    print(f"\nwrote {folder}/compare.png")
