"""Kinds of faults that a tester has found, one test each. They belong to the twelve promises."""
import json
import os
import signal
import sys
import time

import filelock
import numpy as np
import pytest

from dataset import read_texts, task_of
from fill import fill
from judge import Scorer
from processes import EQUATIONS, Run, command, fails, read_log, refused, run, train, write
from rollout import token_stats
from run.command import by_name, configure
from test_grpo import tiny, toy_prompts
from test_judge import rollout_of_records           # noqa: F401
from train_grpo import set_up


@pytest.mark.parametrize('wrong', [lambda completions: {i: 1.0 for i in range(6)},
                                   lambda completions: set(range(6)),
                                   lambda completions: [np.float16(np.inf)] * 6,
                                   lambda completions: ['1'] * 6,
                                   lambda completions, trainer_state: [1] * 6])
def test_what_is_no_list_of_finite_numbers_is_refused(wrong, rollout_of_records):       # noqa: F811
    refused("reward 'mine'", Scorer(functions={'mine': wrong}).score, ['mine'], rollout_of_records)


def test_a_function_that_changes_its_lists_changes_no_others():
    shared = [1, 2]
    by_name(lambda level: [numbers.append(3) for numbers in level])({'level': [shared, shared]})
    assert shared == [1, 2]


@pytest.mark.parametrize('text', [
    'exit()', 'assert 0', 'exit(0)', 'exit(3)', 'raise KeyboardInterrupt'])
def test_a_file_that_ends_without_a_word_is_named(text):
    refused('mine.py cannot be read', configure, {'a': 1}, [write('mine.py', text)])
    refused('mine.py, whose texts() ', read_texts, './mine.py')


@pytest.mark.parametrize('name, value', [('verify', 5), ('reply', "'x'")])
def test_a_checker_or_world_that_is_no_function_is_named(name, value):
    path = write(f'{name}.py', f"{name} = {value}\ndef texts(): return [('a', 'b')], [('c', 'd')]")
    refused('cannot be read', read_texts, path)


def test_texts_have_one_form():
    write('mixed.py', "def texts(): return [('a', 'b'), 'ab'], ['c']")
    refused('mixes', read_texts, 'mixed.py')
    refused('batch_size', set_up, [{'batch_size': 8.0}])


def test_a_task_has_one_form():
    tasks = ['{"prompt": "a", "n": 1, "d": {"x": 1, "y": 2}}',
             '{"d": {"y": 2.0, "x": 1}, "n": 1.0, "prompt": "a", "c": null}']
    assert len({task_of(json.loads(text)) for text in tasks}) == 1


def test_an_objective_can_have_no_number_of_ours():
    write('mine.py', "objective = 'mine'\ndef mine(stats, logp_old, A, r):\n"
          "    return -A * stats.logp, {'loss': 0 * stats.logp + 7}")
    train('mine.py')
    numbers = read_log('run')[1]
    assert numbers['objective/loss'] == 7 != numbers['loss']


def test_a_function_that_a_knob_names_is_no_reward():
    """Two files may have functions of one name, of which the later one would be both."""
    write('rule.py', "adv_norm = 'mine'\ndef mine(reward, scores): return 0 * reward")
    write('reward.py', "rewards = {'mine': 1.0}\ndef mine(prompts, completions): return prompts")
    fails("not 'mine'", *command('rule.py', 'reward.py'))
    # but it may be called like the value of any other knob
    write('muon.py', "rewards = {'muon': 1.0}\ndef muon(texts): return [1.0] * len(texts)")
    train('muon.py', '--max_iters=0')


def test_a_resumed_run_keeps_its_world_and_a_partial_function_is_no_world():
    refused('written in Python', configure, {'a': 1}, [write(
        'mine.py', 'from functools import partial\n'
        'def play(completion): pass\nreply = partial(play)')])


def test_a_world_that_ends_a_completion_ends_it():
    write('w.py', "def reply(completion): return ('', True) if len(completion) == 2 else None\n")
    train(f'--generator={EQUATIONS}', '--blank_kind=answer', '--rewards={"verify": 1.0}', 'w.py',
          '--max_iters=0')
    assert read_log('run')[0]['eval/ended'] == 1


def test_letters_that_the_console_lacks_end_no_run():
    def before():
        sys.stdout.reconfigure(encoding='ascii')

    write('mine.py', "rewards |= {'mine': 1.0}\ndef mine(texts): return [1.0] * len(texts)")
    write('\u00e9.jsonl', open('marked.jsonl').read())
    code, text = run(*command('mine.py', '--dataset=\u00e9.jsonl', '--blank_kind=marked',
                              '--max_iters=0'), before=before)
    assert code == 0 and '\\xe9.jsonl' in text


def test_ranks_without_torchrun_are_one_line():
    def before():
        os.environ.update(WORLD_SIZE='4')
        del os.environ['MASTER_ADDR']

    code, text = run(*command('--gradient_accumulation_steps=4'), before=before)
    assert code == 1 and 'torchrun' in text and text.count('\n') == 1


def test_a_home_folder_is_expanded(monkeypatch):
    monkeypatch.setenv('HOME', os.getcwd())
    train('--max_iters=0', out='~/mine')
    assert os.path.exists('mine/ckpt.pt')


def test_a_process_that_waited_for_a_network_goes_on():
    lock = filelock.FileLock('waits.pt.lock')
    lock.acquire()
    waits = Run('pretrain.py', 'config/networks/generator_arithmetic.py', '--out=waits.pt')
    time.sleep(2)
    write('waits.pt', '')
    lock.release()
    assert waits.wait()[0] == 0


def test_a_signal_to_a_run_ends_the_pretraining_that_it_has_begun():
    recipe = write('long.py', 'n_layer, n_embd, n_head, max_iters = 1, 16, 2, 999_999')
    one = Run(*command(f'--generator={recipe}', '--judge=out/judge_arithmetic.pt'))
    one.wait_for('step 1 ')
    os.kill(one.ranks[0].pid, signal.SIGTERM)
    assert one.wait()[0] == 128 + signal.SIGTERM
    n = len(one.text())
    time.sleep(2)
    assert len(one.text()) == n and 'step 250' not in one.text()[n:]


@pytest.mark.parametrize('body', ['1 / 0', 'exit()', "assert 0, 'long'"])
def test_a_checker_that_fails_for_the_texts_themselves_is_named(body):
    """Before the first step it is asked about them."""
    write('task.py', "def texts(): return [('1+1=2', '2')] * 9, [('1+2=3', '3'), ('1+3=4', '4')]\n"
          f"def verify(prompt, completion):\n    {body}")
    fails("reward 'verify' of '", *command('--dataset=task.py', '--blank_kind=answer'))


@pytest.mark.parametrize('flag', ['--generator=run', '--judge=run', '--reference=run'])
def test_a_run_is_not_its_own_network(flag):
    train('--max_iters=0')
    fails('would be moved aside', *command(flag, '--rewards={"judge": 1.0}', '--max_iters=0'))


def test_who_holds_out_one_task_is_refused_before_a_network_is_made():
    write('one.py', "def texts(): return [('1=', '1')] * 9, [('2=', '2')] * 9")
    fails('holds out one prompt', *command('--dataset=one.py', '--generator=no.pt'))


def test_a_second_reference_has_features_of_its_own():
    r = fill(tiny(), toy_prompts())
    values = [token_stats(r, tiny(), tiny(seed=seed)).kl for seed in (1, 2, 1)]
    assert values[0].equal(values[2]) and not values[0].equal(values[1])


def test_a_class_or_an_import_with_the_name_of_a_knob_is_no_value_of_it():
    for text in ('class group_size: pass', 'from math import floor as group_size'):
        refused('group_size = <', configure, {'group_size': 1}, [write('mine.py', text)])


def test_answers_that_are_all_empty_are_answers():
    lines = [json.dumps({'prompt': f'{i}=', 'answer': ''}) for i in range(40)]
    *_, verify, reply = read_texts(write('empty.jsonl', '\n'.join(lines)))
    assert verify('', '') == 1.0 and verify('a', '') == 0.0 and reply is None
