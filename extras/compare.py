"""Compare variants of a run over seeds: tables with error bars, and a picture.

    python -m extras.compare study config/grpo_think.py --seeds=1,2,3 \
        std=--adv_norm=std 'dapo=config/papers/dapo.py --clip_high=0.3'

The folder comes first. A word NAME=WORDS is a variant, and all other words are for every run. What
a run writes is in study/NAME-SEED, and what it prints in study/NAME-SEED.txt. First the words of
each variant are checked, networks that are missing are made, and a step and an evaluation of each
variant say how long all of them will take. Then there are as many runs at a time as cores, or
OMP_NUM_THREADS, with one thread each. All variants of a seed see the same prompts.

Finished runs are kept: the same command can be stopped and called again, and get more variants and
seeds. A run begins anew if it was stopped, or if something else than an earlier run has made it:
its words, a script or a config file of this folder, its data or networks have other contents. (What
a config file imports from elsewhere is not looked at.)

Tables and picture show the share of right answers to held-out prompts, or another number of
log.jsonl: --goal=greedy/verify, --goal=eval/pass@4, --goal=kl. For other numbers, and for
differences to another variant (name it first), call it again: it takes seconds."""
import os
import re
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import train_grpo as grpo
from extras.curves import check_goal, report
from model import make_optimizers
from run.command import configure, fail
from run.folder import load_checkpoint, on_signal, stop

# ---- knobs, changed by --name=value --------------------------------------------------------------
seeds = '1,2,3'             # two or more: three for a first look, five for a claim
goal = 'eval/verify'        # a number of log.jsonl

processes = []              # of the runs, to end them with us

# two-sided 5 % points of Student's t, for so many seeds
STUDENT = {2: 12.7, 3: 4.3, 4: 3.2, 5: 2.8, 6: 2.6, 7: 2.4, 8: 2.4}


def checksum(words):
    """Return a number that changes with the scripts and config files of this folder, and with the
    files that words name."""
    crc = 0
    paths = [word.rpartition('=')[2] for word in words]
    paths = [Path(path) for path in paths if os.path.isfile(path)]
    for pattern in ('*.py', 'data/*.py', 'run/*.py', 'config/**/*.py'):
        paths += sorted(Path().glob(pattern))
    for path in paths:
        crc = zlib.crc32(path.read_bytes(), crc)
    return crc


def is_finished(folder, made_from):
    """Return whether an earlier call has made this run, from the same words and files."""
    done = Path(folder, 'done')
    has_log = Path(folder, 'log.jsonl').exists()
    return has_log and done.exists() and done.read_text() == end_of(folder, made_from)


def end_of(folder, made_from):
    """Return the text of the file `done`. A run that is resumed later has a longer log."""
    return f"{made_from} {os.path.getsize(f'{folder}/log.jsonl')}"


def train(run):
    """Make a run (folder, words, what it is made from, seconds). It moves an older one aside."""
    folder, words, made_from, _ = run
    number, made, _ = made_from
    command = [sys.executable, 'train_grpo.py', *words, f'--out_dir={folder}']
    with open(f'{folder}.txt', 'w') as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    processes.append(process)
    code = process.wait()
    assert code == 0, f"a run ended with code {code}: see {folder}.txt"
    checkpoint = load_checkpoint(folder)
    saved = checkpoint['config']
    assert checksum(words) == number and all(saved[name] == made[name] for name in made), (
        "scripts, config files or data have changed while the runs were made; the same command "
        "again makes those that are missing")
    Path(folder, 'done').write_text(end_of(folder, made_from))
    check_goal(folder, goal)                    # of the first run that ends, not after the last


def seconds_of(words):
    """Return what a run is made from: knobs, data and networks (missing ones are made); and about
    how many seconds it takes: steps and evaluations as long as the first ones. (Later steps can be
    faster, if groups become equal, or slower, if completions become longer.)"""
    grpo.set_up(words)                          # makes networks, which is not part of a run's time
    began = time.time()
    run = grpo.set_up(words)
    before = time.time()
    grpo.evaluate(run.policy, run)
    after = time.time()
    optimizers = make_optimizers(run.policy, grpo.optimizer, grpo.weight_decay)
    micro_steps, _, A = grpo.collect(run.policy, run.scorer, grpo.get_prompts(run.data, 0))
    grpo.learn(run.policy, run.scorer.reference, optimizers, micro_steps, A, 0.0, grpo.kl_beta)
    n_evaluations = 2 + (grpo.max_iters - 1) // grpo.eval_interval
    seconds = (5 + before - began + n_evaluations * (after - before)      # 5: imports
               + grpo.max_iters * (time.time() - after))
    made = run.config
    del made['seed'], made['out_dir']           # which each run has for itself
    return made, seconds


if __name__ == "__main__":
    on_signal(stop)                             # Ctrl-C: the runs end, and so do we
    words = sys.argv[1:]
    ours = [word for word in words if word.startswith(('--seeds', '--goal', '--help'))]
    configure(globals(), ours)
    folder, *words = [word for word in words if word not in ours] or ['']
    shared = [word for word in words if word.startswith('-') or '=' not in word]
    pairs = [word.split('=', 1) for word in words if word not in shared]
    variants = dict(pairs)
    is_word = folder.startswith('-') or '=' in folder or os.path.isfile(folder)
    if is_word or not variants or not re.fullmatch(r'\d+(,\d+)+', seeds):
        fail("expected FOLDER, words for all runs, two or more --seeds, and variants NAME=WORDS")
    if os.path.exists(f'{folder}/log.jsonl'):
        fail(f"{folder} is the folder of a run; choose another for the comparison")
    # a name becomes a folder
    if len(variants) < len(pairs) or not all(re.fullmatch(r'\w[\w.-]*', name) for name in variants):
        fail(f"{[name for name, _ in pairs]}: expected different names of letters, digits, - and _")
    if len(set(map(int, seeds.split(',')))) < len(seeds.split(',')):
        fail(f"--seeds={seeds}: expected different ones, or their errors are too small")
    # a word begins with -- or ends in .py; the value of a flag may have spaces
    variants = {name: re.findall(r'\S.*?(?=\s+--|\s+\S+\.py\b|\s*$)', own)
                for name, own in variants.items()}
    for word in sum(variants.values(), shared):
        if word.startswith(('--seed=', '--out_dir=', '--resume')):
            fail(f"{word} is set here, for each run; expected other knobs")
    n_processes = int(os.environ.get('OMP_NUM_THREADS', os.cpu_count()))
    torch.set_num_threads(1)
    contents = {}                               # of data and networks
    seconds = {}
    for name, own in variants.items():
        run_words = shared + own
        number = checksum(run_words)            # before the runs: a later change counts as one
        made, seconds[name] = seconds_of([*run_words, '--out_dir='])
        contents[name] = (number, made)
    runs = []
    groups = {name: [] for name in variants}
    for seed in seeds.split(','):               # seed by seed: all see the same load of the machine
        for name, own in variants.items():
            path = f'{folder}/{name}-{seed}'
            run_words = shared + own + [f'--seed={seed}']
            runs.append((path, run_words, (*contents[name], run_words), seconds[name]))
            groups[name].append(path)
    unmade = [run for run in runs if not is_finished(run[0], run[2])]
    os.makedirs(folder, exist_ok=True)
    os.environ['OMP_NUM_THREADS'] = '1'
    began = time.time()
    minutes = sum(run[3] for run in unmade) / min(n_processes, max(1, len(unmade))) / 60
    print(f"{len(unmade)} runs to make, about {minutes:.1f} minutes (if you stop it, what is "
          "finished is kept)", flush=True)
    with ThreadPoolExecutor(n_processes) as pool:
        try:
            for n, _ in enumerate(pool.map(train, unmade), 1):
                minutes = (time.time() - began) / 60 / max(n, n_processes) * (len(unmade) - n)
                print(f"{n} of {len(unmade)}, {minutes:.0f} minutes left", flush=True)
        except SystemExit:                      # of a signal, which may be for us alone
            for process in processes:
                process.terminate()
            raise
    report(groups, goal, f"{folder}/{goal.removeprefix('eval/').replace('/', '-')}.png")
    n = len(set(seeds.split(',')))
    print(f"With {n} seeds a difference must exceed {STUDENT.get(n, 2.3)} standard errors, or it "
          "may be noise (1 in 20 does by chance). Values between evaluations are interpolated.")
