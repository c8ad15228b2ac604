"""Runs: the same command, kill and resume, folders, numbers that are not finite, ranks."""
import json
import os
import pickle
import random
import signal
import time

import pytest
import torch

from conftest import ROOT, Process, assert_same, checkpoint_of, log_of, run, train
from model import GPT, load_network, save_network
from run import RunFolder
from tasks import Tokenizer

KINDS = {
    'one pass': "rewards, epochs, mini_batches, top_p = {'judge': 1.0, 'verify': 0.5}, 2, 2, 0.9",
    'a learned order': """
include('plugins/passes.py')
fill_order, n_fill_steps, optimizer = 'learned', 3, 'adamw'
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


# ---- the same command, and resuming --------------------------------------------------------------


def test_the_same_command_writes_the_same_log_and_more_evaluations_change_no_step(
        toy, finished, tmp_path):
    train(toy, tmp_path / 'again')
    assert_same(tmp_path / 'again', finished)
    train(toy, tmp_path / 'often', '--eval_interval=1', '--eval_prompts=6', '--log_interval=5')
    again, often = checkpoint_of(tmp_path / 'again'), checkpoint_of(tmp_path / 'often')
    torch.testing.assert_close(often['model'], again['model'], rtol=0, atol=0)


@pytest.mark.parametrize('kind', KINDS)
def test_a_run_that_is_killed_at_random_moments_and_resumed_ends_like_one_that_was_not(
        kind, toy, tmp_path, file):
    words = [*toy, file('kind.py', KINDS[kind]), '--max_iters=10']
    if 'world' in kind:
        words.append(toy[-1].replace('judge', 'generator', 1))
    train(words, tmp_path / 'whole')
    for i in range(3):
        process = Process(*words, f'--out_dir={tmp_path}/parts', f'--resume={i > 0}')
        if i < 2:
            process.wait_for(f'step {2 + 4 * i:5}')     # of an evaluation; then it saves
            time.sleep(random.uniform(0, 0.05))
            process.kill()
        code, _, error = process.wait()
        assert code in (0, -signal.SIGKILL), error
    assert code == 0
    assert_same(tmp_path / 'whole', tmp_path / 'parts')
    assert log_of(tmp_path / 'whole')[-2]['kl'] > 1e-6      # it has moved
    if 'state' in kind:
        assert checkpoint_of(tmp_path / 'parts')['state'] == {'steps': 10}


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_step_end_and_save_and_a_resumed_run_goes_on(
        number, toy, finished, tmp_path, file):
    words = [*toy, file('signal.py', SIGNAL.format(number=int(number)))]
    train(words, tmp_path / 'run')
    assert checkpoint_of(tmp_path / 'run')['step'] == 3
    assert log_of(tmp_path / 'run')[-1]['step'] == 2
    train(words, tmp_path / 'run', '--resume=True')
    assert_same(tmp_path / 'run', finished)


def test_a_reward_in_which_a_step_hangs_is_named_at_ctrl_c(toy, tmp_path, file):
    path = file('slow.py', """
import os, signal
rewards = {'slow': 1.0}
def slow(completions, step, split):
    if split == 'train' and step == 1 and state.setdefault('calls', 0) == 0:
        state['calls'] = 1
        os.kill(os.getpid(), signal.SIGINT)     # as somebody does who waits for it
    return [float(step)] * len(completions)
""")
    code, _, error = run(*toy, f'--out_dir={tmp_path}/run', path)
    assert code == 0 and f'slow() of {path}' in error
    lines = log_of(tmp_path / 'run')
    assert [line['mean_slow'] for line in lines if 'loss' in line] == [0, 1]
    assert [line['eval/slow'] for line in lines if 'reward' in line] == [0, 2]


# ---- folders -------------------------------------------------------------------------------------


def test_an_older_run_is_moved_aside(toy, tmp_path):
    for seed in (1, 2, 3):
        train(toy, tmp_path / 'run', f'--seed={seed}', '--max_iters=1')
    for name, seed in (('run-1', 1), ('run-2', 2), ('run', 3)):
        assert checkpoint_of(tmp_path / name)['config']['seed'] == seed


def test_a_second_run_in_a_folder_at_the_same_time_is_refused(toy, tmp_path, file):
    first = Process(*toy, f'--out_dir={tmp_path}/run', file('slow.py', f"""
import os, time
def collect(networks, task, step, inner=collect):
    for _ in range(1000):           # ten seconds
        if not os.path.exists('{tmp_path}/go'):
            time.sleep(0.01)
    return inner(networks, task, step)
"""))
    first.wait_for('step ')
    code, _, error = run(*toy, f'--out_dir={tmp_path}/run')
    assert code == 1 and error.count('\n') == 1 and 'another run' in error
    file('go', '')
    assert first.wait()[0] == 0 and checkpoint_of(tmp_path / 'run')['step'] == 6


@pytest.mark.parametrize('word', ['--resume=False', '--resume=True'])
def test_a_folder_that_is_no_run_is_refused_and_left_as_it_is(word, toy, tmp_path, file):
    os.mkdir(tmp_path / 'mine')
    path = file('mine/config.json', 'notes')
    code, _, error = run(*toy, word, f'--out_dir={tmp_path}/mine')
    assert code == 1 and error.count('\n') == 1 and f'{tmp_path}/mine' in error
    assert os.listdir(tmp_path / 'mine') == ['config.json'] and open(path).read() == 'notes'


def test_a_run_is_not_moved_aside_with_the_network_that_the_new_run_needs(toy, finished):
    code, _, error = run(*toy, f'--out_dir={finished}', f'--generator={finished}/ckpt.pt')
    assert code == 1 and error.count('\n') == 1 and f'{finished}/ckpt.pt is in out_dir' in error
    assert checkpoint_of(finished)['step'] == 6


def test_a_checkpoint_that_cannot_be_written_whole_leaves_the_old_one(
        toy, finished, tmp_path, file):
    path = file('full.py', """
import os, torch
write = torch.save
def half(saved, path):
    write(saved, path)
    if saved['step'] == 4:
        os.truncate(path, 1000)
        raise OSError('the disk is full')
torch.save = half
""")
    code, _, error = run(*toy, path, f'--out_dir={tmp_path}/run')
    assert code == 1 and error == 'error: the disk is full\n'
    assert checkpoint_of(tmp_path / 'run')['step'] == 2
    train(toy, tmp_path / 'run', '--resume=True')
    assert_same(tmp_path / 'run', finished)


# ---- numbers that are not finite, and code in a checkpoint ---------------------------------------


def test_advantages_that_are_not_finite_end_a_run_and_the_checkpoint_stands(
        toy, finished, tmp_path, file):
    path = file('infinite.py', """
def collect(networks, task, step, inner=collect):
    rollouts, scores, A = inner(networks, task, step)
    if step == 3:
        rollouts[0].A[0] = float('inf')
    return rollouts, scores, A
""")
    code, _, error = run(*toy, path, f'--out_dir={tmp_path}/run')
    assert code == 1 and error.count('\n') == 1 and 'not finite' in error
    assert checkpoint_of(tmp_path / 'run')['step'] == 2
    train(toy, tmp_path / 'run', '--resume=True')
    assert_same(tmp_path / 'run', finished)


def test_weights_that_are_not_finite_are_not_written(tmp_path):
    network, tok = GPT(4, 6, 1, 2, 8, False), Tokenizer('char', 'abc')
    save_network(tmp_path / 'ckpt.pt', network, tok, step=1)
    network.position.weight.data[2, 3] = torch.nan
    with pytest.raises(AssertionError, match='not finite'):
        save_network(tmp_path / 'ckpt.pt', network, tok, step=2)
    assert checkpoint_of(tmp_path)['step'] == 1


class Evil:
    """An object whose pickle makes a file when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, 'w')


def test_a_checkpoint_whose_pickle_would_run_code_is_refused(toy, tmp_path, grpo):
    import sample
    (tmp_path / 'run').mkdir()
    evil = f'{tmp_path}/run/ckpt.pt'
    torch.save({'args': Evil(f'{tmp_path}/made'), 'step': 1}, evil)
    config, networks, _ = grpo.set_up(toy[1:])
    run = RunFolder(f'{tmp_path}/run', config, True, '')
    for opens in (lambda: load_network(evil, 'cpu'), lambda: sample.words_of(evil),
                  lambda: run.load(networks.policy, [])):
        with pytest.raises(pickle.UnpicklingError):
            opens()
    assert not (tmp_path / 'made').exists()
    torch.load(evil, weights_only=False)
    assert (tmp_path / 'made').exists()         # or this would be no test


# ---- ranks, compile, wandb -----------------------------------------------------------------------


def test_two_ranks_take_the_steps_of_one_process_also_after_a_signal_to_one_of_them(
        toy, tmp_path, file):
    words = [*toy, file('signal.py', SIGNAL.format(number=int(signal.SIGTERM))), '--dtype=float64',
             '--gradient_accumulation_steps=4', '--mini_batches=2', '--adv_norm=batch']
    train(words, tmp_path / 'one', '--resume=True')
    train(words, tmp_path / 'two', ranks=2)
    assert checkpoint_of(tmp_path / 'two')['step'] == 3
    train(words, tmp_path / 'two', '--resume=True', ranks=2)
    one, two = log_of(tmp_path / 'one'), log_of(tmp_path / 'two')
    assert len(one) == len(two) and one[-2]['kl'] > 1e-6
    for line, other in zip(one, two):
        assert line == pytest.approx(other, rel=1e-6, abs=1e-9)


def test_two_fresh_ranks_make_a_network_once(toy, tmp_path, file):
    for path in ROOT.glob('*'):
        if path.suffix == '.py' or path.name in ('data', 'config', 'plugins'):
            os.symlink(path, tmp_path / path.name)
    recipe = file('tiny.py', 'n_layer, n_embd, max_iters, batch_size = 1, 16, 2, 8')
    text = train([*toy, f'--generator={recipe}', '--rewards={"verify": 1.0}', '--max_iters=1'],
                 tmp_path / 'run', ranks=2, cwd=tmp_path)
    assert text.count('$ python pretrain.py') == 1
    assert len(list(tmp_path.glob('out/tiny-*equations*.pt'))) == 1
    assert log_of(tmp_path / 'run')[-1]['step'] == 1


def test_a_compiled_run_takes_the_same_steps(toy, tmp_path, file):
    """The slow part, to write C++, is left out."""
    path = file('eager.py', 'import functools, torch\n'
                'torch.compile = functools.partial(torch.compile, backend="eager")')
    words = [*toy, path, '--rewards={"verify": 1.0}', '--kl_beta=0', '--max_iters=1']
    for name in ('True', 'False'):
        train(words, tmp_path / name, f'--compile={name}')
    compiled, other = log_of(tmp_path / 'True'), log_of(tmp_path / 'False')
    assert len(compiled) == 3
    for line, expected in zip(compiled, other, strict=True):
        assert line == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_wandb_gets_the_numbers_of_the_log(toy, tmp_path, file):
    file('wandb.py', """
import json, sys
def init(**more):
    log(more)
    return sys.modules['wandb']
def log(numbers):
    with open(__file__ + '.log', 'a') as file:
        print(json.dumps(numbers), file=file)
""")
    path = file('path.py', f'import sys\nsys.path.insert(0, "{tmp_path}")')
    train(toy, tmp_path / 'run', path, '--wandb_project=theirs', '--max_iters=2')
    first, *lines = map(json.loads, open(tmp_path / 'wandb.py.log'))
    assert first['project'] == 'theirs' and first['config']['group_size'] == 4
    assert lines == list(map(json.loads, open(tmp_path / 'run/log.jsonl')))
