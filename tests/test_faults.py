"""Kinds of faults that a tester has found, one test each. They belong to the twelve promises."""
import json

import numpy as np
import pytest

from dataset import read_texts, task_of
from judge import Scorer
from processes import command, fails, refused, write
from run.command import by_name, configure
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


@pytest.mark.parametrize('text', ['exit()', 'assert 0', 'exit(0)'])
def test_a_file_that_ends_without_a_word_is_named(text):
    refused('mine.py cannot be read', configure, {'a': 1}, [write('mine.py', text)])
    refused('mine.py cannot be read', read_texts, './mine.py')


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


def test_an_objective_has_no_numbers_of_ours():
    write('mine.py', "objective = 'mine'\ndef mine(stats, logp_old, A, r):\n"
          "    return -A * stats.logp, {'loss': stats.logp}")
    fails('are numbers of the log', *command('mine.py'))


def test_a_resumed_run_keeps_its_world_and_a_partial_function_is_no_world():
    refused('written in Python', configure, {'a': 1}, [write(
        'mine.py', 'from functools import partial\ndef play(completion): pass\nreply = partial(play)')])
