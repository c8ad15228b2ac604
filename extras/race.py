"""Race: how soon do 95 % of the completions of the main job become true?

    python -m extras.race                                   # config/grpo_config.py, as it is
    python -m extras.race mine.py --batch_size=128          # with your knobs and functions

Dataset, networks and rewards must stay those of config/grpo_config.py, and so does the evaluation,
which is here. All else can change. The time is that of the processor, on one thread, of the steps
alone. It is counted in steps of the usual way (extras/benchmark.py), which take turns with the
runs, so that results of different machines compare. The mean of three seeds is the result.
It is inf if one of them ends below 95 %."""
import math
import statistics
import sys
import time

import torch

import train_grpo as grpo
from extras.benchmark import open_job, our_step, seconds_of, usual_step

MAIN_JOB = ['config/grpo_config.py', '--device=cpu']
FIXED = ('dataset', 'blank_kind', 'generator', 'judge', 'rewards', 'device')
GOAL = 0.95
EVERY = 10                  # steps between evaluations


def seconds_of_usual_step():
    job = open_job(*MAIN_JOB)
    seconds = [seconds_of(time.process_time, usual_step, *job, step) for step in range(8)]
    return statistics.median(seconds[3:])       # the first ones warm up


@torch.no_grad()
def share_of_true(policy, prompts, verify):
    """Fill 512 held-out prompts four times, each in one pass, at temperature 1."""
    views = prompts.tokens.masked_fill(prompts.blank, policy.blank_id)          # (512, T)
    logits = policy.logits(policy.features(views)[prompts.blank])               # (blanks, V)
    torch.manual_seed(0)
    tokens = logits.softmax(-1).multinomial(4, replacement=True)                # (blanks, 4)
    texts = prompts.tokens.repeat(4, 1)                                         # (2048, T)
    texts[prompts.blank.repeat(4, 1)] = tokens.T.flatten()
    return statistics.mean(map(verify, map(prompts.task.tok.decode, texts.tolist())))


def run(words, held_out, verify):
    """Take steps until the goal is reached. Return how many, their seconds, and the last share."""
    job = open_job(*MAIN_JOB, *words)
    seconds = 0.0
    for step in range(grpo.max_iters + 1):
        if step % EVERY == 0:
            share = share_of_true(job[0].policy, held_out, verify)
        if share >= GOAL or step == grpo.max_iters:
            return step, seconds, share
        lr = grpo.get_lr(step, grpo.learning_rate, grpo.min_lr, grpo.warmup_iters, grpo.max_iters)
        seconds += seconds_of(time.process_time, our_step, *job, step, lr)


if __name__ == '__main__':
    torch.set_num_threads(1)                    # a second one would count while it waits
    fixed, _ = grpo.read_words(MAIN_JOB)
    found, _ = grpo.read_words([*MAIN_JOB, *sys.argv[1:]])
    for name in FIXED:
        assert found[name] == fixed[name], (
            f"{name} = {found[name]}: the race is about {name} = {fixed[name]}")
    *_, task = open_job(*MAIN_JOB)
    grpo.devices.set_seed(0)                    # the prompts of an evaluation of train_grpo.py
    held_out = task.prompts('val', 512)
    results = []
    for seed in (1, 2, 3):
        usual = seconds_of_usual_step()
        step, seconds, share = run([*sys.argv[1:], f'--seed={seed}'], held_out, task.verify)
        usual = (usual + seconds_of_usual_step()) / 2
        results.append(seconds / usual if share >= GOAL else math.inf)
        print(f'seed {seed}: {100 * share:.1f} % after {step} steps, {seconds:.1f} s; '
              f'a step of the usual way {usual:.2f} s: {results[-1]:.1f} of them', flush=True)
    print(f'result: {statistics.mean(results):.1f} steps of the usual way')
