"""Runs: the same command, kill and resume, folders, faults, ranks, and what a run writes."""
import json
import os
import random
import re
import shutil
import signal
import sys
import time

import pytest
import torch

from conftest import Process, assert_same, checkpoint_of, log_of, run, train
from model import make_optimizers

KINDS = {
    'one pass': "rewards, epochs, mini_batches, top_p = {'judge': 1.0, 'verify': 0.5}, 2, 2, 0.9",
    'a learned order': """
include('plugins/passes.py')
fill_order, n_fill_steps, optimizer = 'learned', 3, 'adamw'
""",
    'replay behind an estimate': """
include('config/papers/replay.py')
include('config/papers/d1.py')
epochs = 2
""",
    'a world, and state': """
include('plugins/causal.py')
generator = judge

def reply(completion):
    return '+' if len(completion) == 1 else None

def learn(networks, optimizers, rollouts, lr, inner=learn):
    state['steps'] = state.get('steps', 0) + 1
    return inner(networks, optimizers, rollouts, lr / state['steps'])
"""}
SIGNAL = """
import os, signal
def collect(networks, task, step, inner=collect):
    if step == 2 and not resume and RANK == N_RANKS - 1:
        os.kill(os.getpid(), {number})
    return inner(networks, task, step)
"""
SLOW = """
import os, signal
rewards['slow'] = 0.0
_numbers = [signal.SIGINT]
def slow(completions, step, split):
    if split == 'train' and step == 2 and _numbers and not resume:
        os.kill(os.getpid(), _numbers.pop())    # as somebody does who waits for it
    return [float(step)] * len(completions)
"""
ZEROS = """
rewards = {'zeros': 1.0}
def zeros(**columns):
    return [float(text.count('0')) for text in columns['completions']]
"""
FAULTS = {
    'error: the disk is full': """
import os, torch
write = torch.save
def half(saved, path):
    write(saved, path)
    if saved['step'] == 4:
        os.truncate(path, 1000)
        raise OSError('the disk is full')
torch.save = half
""",
    'gradient is not finite': """
def collect(networks, task, step, inner=collect):
    global kl_beta, entropy_coef
    rollouts, scores, A = inner(networks, task, step)
    if step == 3:                               # no text without an advantage may be left out
        kl_beta = entropy_coef = 0.0
        rollouts[0].A[:] = float('nan')
    return rollouts, scores, A
""",
    'not finite, so the run ends: eval/reward': """
def evaluate(networks, task, step=0, inner=evaluate):
    r, scores, greedy = inner(networks, task, step)
    if step == 4:
        scores['reward'] += torch.inf
    return r, scores, greedy
""",
    'weights are not finite': """
def collect(networks, task, step, inner=collect):
    if step == 3:                               # a weight that is not used
        networks.policy.embed.weight.data[networks.policy.bos_id] = float('nan')
    return inner(networks, task, step)
"""}
WANDB = """
import json, sys
def init(**more):
    log(more)
    return sys.modules['wandb']
def log(numbers):
    with open(__file__ + '.log', 'a') as file:
        print(json.dumps(numbers), file=file)
"""


# ---- the same command, and resuming --------------------------------------------------------------


def test_the_same_command_writes_the_same_log_and_more_evaluations_change_no_step(
        toy, finished, tmp_path):
    text = train(toy, tmp_path / 'again')
    names = ' '.join(re.findall(r'\| (\S.*?) -?[\d.]+', re.search('(?m)^step     0 .*', text)[0]))
    assert names == 'verify greedy line to beat above it standard error'
    assert_same(tmp_path / 'again', finished)
    train(toy, tmp_path / 'often', '--eval_interval=1', '--eval_prompts=6', '--log_interval=5')
    again, often = checkpoint_of(finished), checkpoint_of(tmp_path / 'often')
    torch.testing.assert_close(often['model'], again['model'], rtol=0, atol=0)


@pytest.mark.parametrize('kind', KINDS)
def test_a_run_that_is_killed_at_random_moments_and_resumed_ends_like_one_that_was_not(
        kind, toy, tmp_path, file):
    words = [*toy, file('kind.py', KINDS[kind]), '--resume=True']
    for step in (2, 4):
        process = Process(*words, f'--out_dir={tmp_path}/parts')
        process.wait_for(f'step {step:5}')      # of an evaluation; then it saves
        time.sleep(random.uniform(0, 0.05))
        process.ranks[0].kill()
        process.wait()
    for name in ('parts', 'whole'):
        train(words, tmp_path / name)
    assert_same(tmp_path / 'parts', tmp_path / 'whole')
    assert log_of(tmp_path / 'whole')[-2]['kl'] > 1e-6      # it has moved


def test_ctrl_c_names_the_reward_that_is_waited_for_and_lets_the_step_end_and_save(
        toy, tmp_path, file):
    words = [*toy, file('slow.py', SLOW)]
    code, _, error = run(*words, f'--out_dir={tmp_path}/run')
    assert code == 0 and f'slow() of {words[-1]}' in error
    assert checkpoint_of(tmp_path / 'run')['step'] == 3
    for name in ('run', 'whole'):
        train(words, tmp_path / name, '--resume=True')
    evals = [line for line in log_of(tmp_path / 'run') if 'eval/slow' in line]
    assert all(line['eval/slow'] == line['greedy/slow'] == line['step'] for line in evals)
    assert_same(tmp_path / 'run', tmp_path / 'whole')
    text = train(toy, tmp_path / 'run', '--resume=True', '--max_iters=7')
    assert 'another max_iters: 7, not 6' in text and f'another files: {toy[1:2]}, not' in text


# ---- folders -------------------------------------------------------------------------------------


def test_an_older_run_is_moved_aside_and_one_that_goes_on_is_left_alone(toy, tmp_path):
    words = [*toy, f'--out_dir={tmp_path}/run/', '--max_iters=999']
    for seed in (1, 2, 3):
        process = Process(*words, f'--seed={seed}')
        process.wait_for('advantage')           # it has a checkpoint
        os.kill(process.ranks[0].pid, signal.SIGSTOP)
        code, _, error = run(*words, '--max_iters=1')
        process.ranks[0].kill()
        assert code == 1 and error.count('\n') == 1 and 'another run' in error
    for name, seed in (('run-1', 1), ('run-2', 2), ('run', 3)):
        assert json.loads((tmp_path / name / 'config.json').read_text())['seed'] == seed


@pytest.mark.parametrize('name, word', [
    ('mine.pt', '--resume=False'), ('mine.pt', '--resume=True'), ('ckpt.pt', '--generator={}')])
def test_a_folder_that_is_no_run_or_has_a_network_of_the_new_run_is_left_as_it_is(
        name, word, toy, folder, tmp_path):
    path = shutil.copy(folder / 'generator.pt', tmp_path / name)
    code, _, error = run(*toy, word.format(path), f'--out_dir={tmp_path}')
    assert code == 1 and error.count('\n') == 1 and 'out_dir' in error
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize('fault', FAULTS)
def test_a_fault_ends_a_run_in_one_line_and_its_last_checkpoint_stands(
        fault, toy, finished, tmp_path, file):
    path = file('fault.py', FAULTS[fault])
    code, _, error = run(*toy, path, f'--out_dir={tmp_path}/run')
    assert code == 1 and error.count('\n') == 1 and fault in error
    assert checkpoint_of(tmp_path / 'run')['step'] == 2
    train(toy, tmp_path / 'run', '--resume=True')
    assert_same(tmp_path / 'run', finished)


class Evil(str):
    """A path. Who opens its pickle makes a folder there."""

    def __reduce__(self):
        return os.mkdir, (str(self),)


def test_no_script_opens_a_checkpoint_that_would_run_code(toy, tmp_path):
    evil = tmp_path / 'ckpt.pt'
    torch.save({'args': Evil(tmp_path / 'made'), 'step': 1}, evil)
    for words in (['sample.py', str(evil)], [*toy, f'--generator={evil}'],
                  [*toy, f'--out_dir={tmp_path}', '--resume=True']):
        code, _, error = run(*words)
        assert code == 1 and 'UnpicklingError' in error and not (tmp_path / 'made').exists()
    torch.load(evil, weights_only=False)
    assert (tmp_path / 'made').exists()         # or this would be no test


# ---- ranks ---------------------------------------------------------------------------------------


def test_two_ranks_take_the_steps_of_one_process_also_after_a_signal(toy, tmp_path, file):
    """And with a paper that looks at the groups of a whole step."""
    words = [*toy, file('signal.py', SIGNAL.format(number=int(signal.SIGTERM))), '--dtype=float64',
             file('zeros.py', ZEROS), 'config/papers/dapo.py', 'config/papers/replay.py',
             '--adv_norm=batch',
             '--gradient_accumulation_steps=4', '--mini_batches=2', '--group_size=2',
             '--kl_beta=0.05']
    for name, resume, step in (('two', False, 3), ('two', True, 6), ('one', True, 6)):
        train(words, tmp_path / name, f'--resume={resume}', ranks=1 + (name == 'two'))
        assert checkpoint_of(tmp_path / name)['step'] == step
    one, two = log_of(tmp_path / 'one'), log_of(tmp_path / 'two')
    assert one[-2]['kl'] > 1e-6 and 0 < one[1]['dead_groups'] < 1
    for line, other in zip(one, two, strict=True):
        assert line == pytest.approx(other, rel=1e-6, abs=1e-9)


# ---- what a run writes ---------------------------------------------------------------------------


def test_log_and_samples_have_the_numbers_of_each_step_and_evaluation(toy, tmp_path, file, grpo):
    """A second loop takes the same steps. Samples are of the first group that teaches something."""
    toy = [*toy, file('zeros.py', ZEROS)]
    finished = tmp_path / 'run'
    train(toy, finished)
    _, networks, task = grpo.set_up(toy[1:])
    optimizers = make_optimizers(networks.policy, 'muon')
    lines, groups, line = [], [], {}
    for step in range(7):
        if step % 2 == 0:
            _, *scores = grpo.evaluate(networks, task)
            line, numbers = grpo.against_line(*scores, line)
            lines.append({'step': step} | numbers)
        if step < 6:
            rollouts, scores, A = grpo.collect(networks, task, step)
            r = rollouts[0]
            logp = [grpo.log_probs_of(networks.policy, r)]
            numbers = grpo.learn(networks, optimizers, rollouts, 4e-3 * (step + 1) / 11)
            logp.append(grpo.log_probs_of(networks.policy, r))
            numbers |= {f'mean_{name}': x.mean().item() for name, x in scores.items()}
            is_dead = [len({*group}) == 1 for group in scores['reward'].tolist()]
            lines.append({'step': step, 'dead_groups': sum(is_dead) / 8} | numbers)
            if step % 2 == 0:
                b = is_dead.index(False)
                columns = [r.per_text(x).view(4, 4)[b] for x in logp]
                groups += torch.stack((torch.full((4,), step), A[b], *columns), 1).tolist()
    assert log_of(finished) == [pytest.approx(line, rel=1e-4) for line in lines]
    for line in open(finished / 'samples.jsonl'):
        sample = json.loads(line)
        assert sample['scores']['zeros'] == sample['completion'].count('0')
        if 'advantage' in sample['scores']:
            pieces = [numbers for _, *numbers in sample['pieces'] if numbers]
            _, *logp = map(sum, zip(*pieces))
            expected = [sample['step'], sample['scores']['advantage'], *logp]
            assert groups.pop(0) == pytest.approx(expected, rel=1e-4)
    assert not groups


def test_wandb_gets_the_numbers_of_the_log(toy, folder, tmp_path, file, monkeypatch):
    path = file('wandb.py', WANDB)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'wandb', raising=False)        # TRL has imported the real one
    train(toy, tmp_path / 'run', '--wandb_project=theirs', '--max_iters=2', '--kl_beta=0',
          f'--reference={folder}/generator.pt')
    first, *lines = open(f'{path}.log')
    assert json.loads(first)['config']['group_size'] == 4
    assert lines == [*open(tmp_path / 'run/log.jsonl')] and '"kl"' in lines[1]
