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
from extras.benchmark import usual_step

MAIN_JOB = ['config/grpo_config.py', '--device=cpu']
FIXED = ('dataset', 'blank_kind', 'generator', 'judge', 'rewards', 'device')
GOAL = 0.95
SEEDS = (1, 2, 3)
EVERY = 10                  # steps between evaluations


def open_job(*words):
    """Return knobs, networks, optimizers and the Task of the main job with more words."""
    config, data = grpo.read_words([*MAIN_JOB, *words])
    networks, task = grpo.open_task(data)
    return config, networks, grpo.make_optimizers(networks.policy, grpo.optimizer), task


def seconds_of(function, *args):
    """Return the seconds of the processor that a call takes."""
    began = time.process_time()
    function(*args)
    return time.process_time() - began


def seconds_of_usual_step():
    _, *job = open_job()
    seconds = [seconds_of(usual_step, *job, step) for step in range(8)]
    return statistics.median(seconds[3:])       # the first ones warm up


@torch.no_grad()
def share_of_true(policy, prompts, verify):
    """Fill 512 held-out prompts four times, each in one pass, at temperature 1."""
    views = prompts.tokens.masked_fill(prompts.blank, policy.blank_id)          # (512, T)
    logits = policy.logits(policy.features(views)[prompts.blank])               # (blanks, V)
    torch.manual_seed(0)
    tokens = logits.softmax(-1).multinomial(4, replacement=True)                # (blanks, 4)
    texts = [prompts.tokens.masked_scatter(prompts.blank, column) for column in tokens.T]
    decode = prompts.task.tok.decode
    return statistics.mean(verify(decode(ids)) for ids in torch.cat(texts).tolist())


def one_step(networks, optimizers, task, step):
    rollouts, _ = grpo.collect(networks, task, step)
    lr = grpo.get_lr(step, grpo.learning_rate, grpo.min_lr, grpo.warmup_iters, grpo.max_iters)
    grpo.learn(networks, optimizers, rollouts, lr)


def run(words, held_out, verify):
    """Take steps until the goal is reached. Return how many, their seconds, and the last share."""
    _, networks, optimizers, task = open_job(*words)
    seconds = 0.0
    for step in range(grpo.max_iters + 1):
        if step % EVERY == 0:
            share = share_of_true(networks.policy, held_out, verify)
        if share >= GOAL:
            break
        seconds += seconds_of(one_step, networks, optimizers, task, step)
    return step, seconds, share


if __name__ == '__main__':
    torch.set_num_threads(1)                    # a second one would count while it waits
    main_job, _, _, task = open_job()
    grpo.devices.set_seed(0)                    # the prompts of an evaluation of train_grpo.py
    held_out = task.prompts('val', 512)
    knobs, *_ = open_job(*sys.argv[1:])
    for name in FIXED:
        assert knobs[name] == main_job[name], (
            f"{name} = {knobs[name]}: the race is about {name} = {main_job[name]}")
    results = []
    for seed in SEEDS:
        usual = seconds_of_usual_step()
        step, seconds, share = run([*sys.argv[1:], f'--seed={seed}'], held_out, task.verify)
        usual = (usual + seconds_of_usual_step()) / 2
        results.append(seconds / usual if share >= GOAL else math.inf)
        print(f'seed {seed}: {100 * share:.1f} % after {step} steps, {seconds:.1f} s; '
              f'a step of the usual way {usual:.2f} s: {results[-1]:.1f} of them', flush=True)
    print(f'result: {statistics.mean(results):.1f} steps of the usual way')
