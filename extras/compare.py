"""Compare variants of a run over seeds: tables with error bars, and a picture.

    python -m extras.compare study config/grpo_think.py --seeds=1,2,3 \\
        std=--adv_norm=std 'dapo=config/papers/dapo.py --clip_high=0.3'

The folder comes first. A word NAME=WORDS is a variant, and all other words are for every run. What
a run writes is in study/NAME-SEED, and what it prints in study/NAME-SEED.txt. There are as many
runs at a time as cores, or OMP_NUM_THREADS, with one thread each. All variants of a seed see the
same prompts.

Finished runs are kept: the same command can be stopped and called again, and get more variants and
seeds. A run begins anew if its words have changed, or a file that they name. After an edit of a
script take another folder.

Tables and picture show the share of right answers to held-out prompts, or another number of
log.jsonl: --goal=greedy/verify, --goal=eval/pass@4, --goal=kl. For other numbers, and for
differences to another variant (name it first), call it again: it takes seconds."""
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

import train_grpo as grpo
from extras.page import points_of, thin
from judge import BUILT_IN
from run.command import configure, fail_unknown, values_in
from run.folder import begin, checksums

# ---- knobs, changed by --name=value --------------------------------------------------------------
seeds = '1,2,3'             # two or more: three for a first look, five for a claim
goal = 'eval/verify'        # a number of log.jsonl

# two-sided 5 % points of Student's t, for so many seeds
STUDENT = {2: 12.7, 3: 4.3, 4: 3.2, 5: 2.8, 6: 2.6, 7: 2.4, 8: 2.4}


# of all our pictures
matplotlib.rcParams.update({'axes.titlelocation': 'left', 'legend.frameon': False,
                            'figure.constrained_layout.use': True, 'savefig.dpi': 130})


def save(figure, path):
    figure.savefig(path)
    print(f"wrote {path}")


def train(run):
    """Make a run (folder, words), unless it is finished. It moves an older one aside."""
    folder, words = run
    done = Path(folder, 'done')
    key = f'{words} {checksums(filter(os.path.isfile, values_in(words)))}'
    if done.exists() and done.read_text() == key:
        return
    with open(f'{folder}.txt', 'w') as file:
        process = subprocess.run([sys.executable, 'train_grpo.py', *words, f'--out_dir={folder}'],
                                 stdout=file, stderr=file)
    assert process.returncode == 0, f"a run has failed: see {folder}.txt"
    done.write_text(key)


def check_meaning(configs):
    """Refuse variants {name: knobs} that cannot be compared: the same one twice, other held-out
    prompts, or a goal that is not the same number in all: sums of other rewards, or rewards of one
    name in other files."""
    kind, _, name = goal.removeprefix('mean_').rpartition('/')
    known = set(BUILT_IN).union(*(config['rewards'] for config in configs.values()))
    known |= {'verify', 'reward', 'pass@4'}
    if kind in ('eval', 'greedy') and name not in known:
        fail_unknown('--goal: expected a number of log.jsonl, not', goal,
                     [f'{kind}/{name}' for name in known])
    (first, one), *others = configs.items()
    for other, config in others:
        for knob in ('dataset', 'eval_prompts'):
            assert config[knob] == one[knob], (
                f"{first} and {other} have other held-out prompts, because their {knob} differs")
        if config['max_iters'] != one['max_iters']:
            print(f"{first} and {other} differ in max_iters, and so in all that is planned over a "
                  "run (rates, entropy_floor); the table ends with the shorter one")
    meanings = set()
    for config in configs.values():
        files = [file for file in config['files'].items() if not file[0].startswith('config/')]
        is_yours = config['rewards'].keys() - BUILT_IN - {'verify'}
        if name == 'reward':
            meanings.add(f"{config['rewards']} {files if is_yours else ''}")
        elif name in is_yours:
            meanings.add(str(files))
    assert len(meanings) < 2, (
        f"{goal} is another number in each of {sorted(meanings)}: expected --goal=eval/verify, or "
        "another number that all of them have")
    assert len({*map(str, configs.values())}) == len(configs), (
        f"two of {[*configs]} are the same run")


def curves_by(clock, groups):
    """Return times, and {variant: (seeds, times)}: the goal at these times. The times are the steps
    that all runs have logged; or, of another clock, 101 to the end of the run that ends first, and
    between the lines of the logs the goal is interpolated."""
    points = {name: [points_of(folder, clock, goal) for folder in folders]
              for name, folders in groups.items()}
    logged = [x for runs in points.values() for x, _ in runs]
    if clock == 'step':
        times = np.array(sorted(set.intersection(*map(set, logged))))
    else:
        times = np.linspace(0, min(x[-1] for x in logged), 101)
    curves = {name: np.array([np.interp(times, *run) for run in runs])
              for name, runs in points.items()}
    return times, curves


def mean_and_error(curves):
    """Return the mean over seeds (101,) of curves (seeds, 101), and its standard error."""
    return curves.mean(0), curves.std(0, ddof=1) / len(curves) ** 0.5


def print_row(name, curves, is_difference=False):
    """Print columns of curves (seeds, columns), and how many of its standard errors a difference
    is."""
    cells = []
    for mean, error in zip(*mean_and_error(curves)):
        cell = f'{mean:.4f} +- {error:.4f}'
        if is_difference and error > 1e-6:      # else all seeds agree
            cell += f' ({abs(mean) / error:.1f})'
        cells.append(f'{cell:>25}')
    print(f'{name:16}', *cells)


def report(groups, path):
    """Print tables of the goal, and draw it, by step and by the seconds of the processor. groups
    {variant: folders of its runs, a seed each}. All errors are standard errors over seeds. Rows of
    differences to the first variant are of pairs of runs with one seed."""
    figure = Figure(figsize=(11, 4))
    axes = figure.subplots(1, 2, sharey=True)
    first, *others = groups
    for ax, clock in zip(axes, ('step', 'cpu_seconds')):
        times, curves = curves_by(clock, groups)
        columns = thin(range(len(times)), 5)
        print(f'\n{clock:16}', *[f'{time:>25.1f}' for time in times[columns]])
        for name in groups:
            print_row(name, curves[name][:, columns])
            means, errors = mean_and_error(curves[name])
            ax.plot(times, means, label=name)
            ax.fill_between(times, means - errors, means + errors, alpha=0.2)
        noise = STUDENT.get(len(curves[first]), 2.3)
        print(f'minus {first} (in standard errors: noise exceeds {noise} in 1 of 20 cases)')
        for name in others:
            print_row(name, (curves[name] - curves[first])[:, columns], is_difference=True)
        ax.set_xlabel(clock)
    ax.legend(loc='center left', bbox_to_anchor=(1, 0.5))
    figure.suptitle(f'{goal}: mean and standard error over seeds')
    save(figure, path)


if __name__ == "__main__":
    begin()
    words = sys.argv[1:]
    ours = [word for word in words if word.startswith(('--seeds=', '--goal=', '-h', '--help'))]
    configure(globals(), ours)
    shared = []
    variants = {}
    for word in words:
        name, is_variant, own = word.partition('=')
        if is_variant and not word.startswith('-'):
            assert name not in variants, f"two variants have the same name, {name}"
            variants[name] = own.split()
        elif word not in ours:
            shared.append(word)
    seeds = sorted(set(seeds.split(',')))
    assert variants and shared and len(seeds) > 1, (
        "expected FOLDER, words for all runs, two or more different --seeds, and variants "
        "NAME=WORDS")
    folder = shared.pop(0)
    assert not folder.startswith('-') and not folder.endswith('.py'), (
        f"the first word is {folder}: expected the folder of the comparison")
    assert not any(word.startswith('--seed=') for word in sum(variants.values(), shared)), (
        "each run gets its seed from --seeds=1,2,3: expected no --seed")
    # this finds mistakes, and makes networks
    check_meaning({name: grpo.set_up([*shared, *own, '--out_dir=']).config
                   for name, own in variants.items()})
    os.makedirs(folder, exist_ok=True)
    n_processes = int(os.environ.get('OMP_NUM_THREADS', os.cpu_count()))
    os.environ['OMP_NUM_THREADS'] = '1'
    groups = {name: [f'{folder}/{name}-{seed}' for seed in seeds] for name in variants}
    runs = []
    for seed in seeds:
        for name, own in variants.items():
            runs.append((f'{folder}/{name}-{seed}', [*shared, *own, f'--seed={seed}']))
    began = time.time()
    with ThreadPoolExecutor(n_processes) as pool:
        for n, _ in enumerate(pool.map(train, runs), 1):
            minutes = (time.time() - began) / 60
            print(f"{n} of {len(runs)} runs after {minutes:.0f} minutes, about "
                  f"{minutes / n * (len(runs) - n):.0f} more", flush=True)
    report(groups, f"{folder}/{goal.removeprefix('eval/').replace('/', '-')}.png")
    print("+- is one standard error over seeds. By seconds, values between evaluations are "
          "interpolated.")
