"""What surrounds a run: overrides, devices, numbers, its folder and its checkpoints."""
import inspect
import itertools
import math
import os
import re
import sys
import types
import unittest.mock

import numpy as np
import pytest
import torch

import train_grpo
from dataset import Dataset
from processes import ROOT, refused, succeeds, write
from run import advice
from run.command import configure, knobs_of, show_error
from run.folder import FREE, RunFolder
from run.machine import init_device
from run.progress import Progress
from test_grpo import TOK, tiny


def toy_knobs():
    return {'group_size': 16, 'kl_beta': 0.05, 'dataset': 'arithmetic', 'resume': False,
            'rewards': {'judge': 1.0}, '_hidden': 1, 'LETTERS': 2, 'module': os}


# ---- overrides -----------------------------------------------------------------------------------


def test_files_and_flags_apply_in_the_order_given():
    path = write('mine.py', "import math\ngroup_size = group_size // 2\n_twice = 2 * group_size\n"
                 "kl_beta = 1 / _twice\nSIGN = 'x'\ndef mine(prompts, completions): return 3\n")
    namespace = toy_knobs()
    config, functions = configure(namespace, ['--group_size=4', path])
    assert config == knobs_of(namespace) == knobs_of(toy_knobs()) | {
        'group_size': 2, 'kl_beta': 0.25}
    assert list(functions) == ['mine']
    config, _ = configure(toy_knobs(), [path, '--group_size=4'])
    assert (config['group_size'], config['kl_beta']) == (4, 1 / 16)


@pytest.mark.parametrize('text, expected', [
    ('kl_beta = = 1', "typo.py cannot be read: SyntaxError.'invalid syntax', .'typo.py', 1"),
    ('\nkl_type = exact', "NameError.\"name 'exact' is not defined"),
    ('import nothere', "ModuleNotFoundError.\"No module named 'nothere'")])
def test_a_typo_in_a_config_file_is_one_line(text, expected):
    with pytest.raises((SystemExit, AssertionError), match=expected):
        configure(toy_knobs(), [write('typo.py', text)])


def test_a_config_file_may_import_a_file_beside_it(monkeypatch):
    monkeypatch.setattr(sys, 'path', [*sys.path])
    os.mkdir('mine')
    write('mine/helper_of_mine.py', 'BETA = 0.5\n')
    path = write('mine/mine.py', 'import helper_of_mine\nkl_beta = helper_of_mine.BETA\n')
    assert configure(toy_knobs(), [path])[0]['kl_beta'] == 0.5


FLAGS = {
    '--dataset=a=b': 'a=b', '--dataset=7': '7',
    "--rewards={'x': 2}": {'x': 2},
    '--resume=True': True, '--kl_beta=1e-5': 1e-5, '--kl_beta=3': 3.0,
}


@pytest.mark.parametrize('flag', FLAGS)
def test_the_value_of_a_flag_is_a_literal_or_text(flag):
    config, _ = configure(toy_knobs(), [flag])
    value = config[flag[2:].partition('=')[0]]
    assert value == FLAGS[flag] and type(value) is type(FLAGS[flag])


def test_functions_of_a_file_see_the_knobs_as_they_are_at_the_end_and_the_functions_of_the_script():
    """A helper of the file comes before one of the script."""
    write('mine.py', """
def mine(reward, scores):
    return reward * temperature + all_equal(reward) + k3(logp=0, logp_ref=0)
def all_equal(reward):
    return 100
""")
    script = toy_rule() | {'temperature': 1.0, 'k3': lambda logp, logp_ref: 0.25, 'all_equal': None}
    _, functions = configure(script, ['mine.py', '--adv_norm=mine', '--temperature=0.5'])
    assert functions['mine'](3.0, {}) == 101.75


def test_only_functions_that_a_file_defines_are_rewards_and_rules_of_a_run():
    """What it imports is for its own use, whatever it is."""
    write('mine.py', 'from math import floor as verify\nfrom random import random\n'
          'import re, os.path\n'
          'from extras.numbers import same_number\njoin = "".join\nfind = re.compile("a").findall\n'
          'def mine(completions):\n    return [random() for _ in completions]')
    assert [*configure(toy_rule(), ['mine.py'])[1]] == ['mine']
    refused('written in Python', configure, toy_rule(), [{'mine': 'x'.join}])


def toy_rule():
    return {'adv_norm': 'std', 'CHOICES': {'adv_norm': ('std', 'none')},
            'RULES': {'adv_norm': train_grpo.group_advantages}, '__file__': 'script.py'}


@pytest.mark.parametrize('words, expected', [
    (['--adv_norm=sdt'], "not 'sdt'; similar names: ['std'"),
    (['rule.py', '--adv_norm=median'], "similar names: ['medians'"),
    (['rule.py', '--adv_norm=three'], 'or a function adv_norm(reward, scores)'),
    # it may be a copy of ours that was changed, so which one is meant?
    (['rule.py', '--adv_norm=none'], "of another name, not 'none'")])
def test_a_rule_that_is_neither_ours_nor_a_function_of_a_file_is_refused(words, expected):
    write('rule.py', 'def medians(reward, scores):\n    pass\ndef three(a, b, c):\n    pass\n'
          'def none(reward, scores):\n    pass')
    refused(expected, configure, toy_rule(), words)
    config, _ = configure(toy_rule(), ['rule.py', '--adv_norm=medians'])
    assert config['adv_norm'] == 'medians'


@pytest.mark.parametrize('line', ["group_size=2.0", "group_size=True", "kl_beta='x'",
                                  "kl_beta=-0.1", "kl_beta=1e999"])
def test_a_wrong_type_or_sign_is_refused_from_a_file_and_from_a_flag(line):
    name, _ = line.split('=')
    for word in (write('mine.py', line), f'--{line}'):
        refused(f'{word}: {name}', configure, toy_knobs(), [word])


@pytest.mark.parametrize('script', ['train_grpo', 'pretrain', 'sample'])
def test_help_shows_every_knob_with_a_comment_and_every_knob_is_read(script):
    text = succeeds(f'{script}.py', '--help')
    source = (ROOT / f'{script}.py').read_text('utf-8')
    knobs = re.findall('(?m)^([a-z]\\w*) = ', text)
    code = re.sub(r'(?s)""".*?"""|#[^\n]*', '', source)
    # a Dataset and a RunFolder get all knobs
    others = [*inspect.signature(Dataset).parameters, 'wandb_project']
    for name in knobs:
        assert re.search(rf'(?m)^{name} = .*  # \S', text), name
        is_read = len(re.findall(rf'\b{name}\b', code)) > 1 or name in others
        assert is_read, f"nobody reads {name}"


# ---- numbers and files ---------------------------------------------------------------------------


CONFIG = {'generator': 'mine.pt', 'judge': '', 'dataset': 'arithmetic', 'wandb_project': ''}


def open_folder(path, resume=False, config=CONFIG):
    """Return the RunFolder of a run that begins to write."""
    folder = RunFolder(path, resume)
    folder.open(config, tiny(), [])
    return folder


def save(folder, config=CONFIG):
    folder.save('ckpt.pt', tiny(), TOK.vocabulary, config, [])


def test_a_folder_is_not_moved_aside_with_a_file_that_the_new_run_needs():
    folder = open_folder('mine')
    folder.log(0, {'a': 1})
    folder.lock.release()
    refused('mine/best.pt is in mine', open_folder, os.path.abspath('mine'),
            config=CONFIG | {'generator': 'mine/best.pt'})


def test_a_resumed_run_keeps_all_knobs_but_a_few():
    config = CONFIG | train_grpo.DEFAULTS
    folder = open_folder('mine', config=config)
    save(folder, config)
    for name in config:
        resume = lambda: folder.restore(config | {name: 'new'}, tiny(), [])
        if name in FREE:
            assert resume()['config'] == config
        else:
            refused(f"keeps its {name}, {config[name]!r}, not 'new'", resume)


def test_a_failed_assert_is_shown_in_one_line_and_a_bug_with_its_traceback(capsys):
    for wrong, is_bug in (("assert 0, 'expected 2'", False), ("open('nowhere')", False),
                          ('1 / 0', True), ('assert 0', True)):
        with pytest.raises(Exception) as caught:
            exec(wrong)
        show_error(caught.type, caught.value, caught.tb)
        assert ('Traceback' in capsys.readouterr().err) == is_bug


def test_numbers_go_to_wandb_with_steps_of_ours(monkeypatch):
    wandb = unittest.mock.MagicMock()
    wandb.init.return_value = wandb
    monkeypatch.setitem(sys.modules, 'wandb', wandb)
    open_folder('mine', config=CONFIG | {'wandb_project': 'theirs'}).log(3, {'a': 0.5})
    assert wandb.init.call_args.kwargs['project'] == 'theirs'
    wandb.define_metric.assert_called_once_with('*', step_metric='step')
    (line,), _ = wandb.log.call_args
    assert line['step'] == 3 and line['a'] == 0.5


def test_products_are_bfloat16_and_casts_of_weights_are_not_kept():
    """If they were, samples would come from weights that have been updated since."""
    layer = torch.nn.Linear(4, 4, bias=False)
    one = torch.ones(1, 4)
    try:
        init_device('cpu', 'bfloat16')
        before = layer(one)
        with torch.no_grad():
            layer.weight += 1.0
            change = layer(one) - before
    finally:
        init_device('cpu', 'float32')
    assert before.dtype == torch.bfloat16 and layer(one).dtype == torch.float32
    assert (change - 4.0).abs().max() < 0.1


def after(*evaluations, goal='verify', greedy=None, prompts=None):
    """Return the Progress of a run by the goal of each held-out prompt: at the start, and so on.
    greedy: of greedy decoding at the start. prompts: their texts; None: all differ."""
    progress = Progress(goal)
    for step, values in enumerate(evaluations):
        line = greedy if step == 0 and greedy else [0.0] * len(values)
        means = {f'eval/{goal}': torch.tensor(values).nanmean().item(),
                 f'greedy/{goal}': np.mean(line), 'eval/judge': -step, 'eval/tokens': 5.0}
        names = prompts or list(map(str, range(len(values))))
        progress.add(10 * step, train_grpo.Evaluation(means, values, line, names, []))
    return progress


ALL = [1.0, 1.0, 1.0, 1.0]
HALF = [0.5, 0.5, 0.5, 0.5]
NONE = [0.0, 0.0, 0.0, 0.0]
LOST = [0.5, 0.0, 0.5, 0.5]     # by chance: the mean of the difference to HALF is one of its errors


@pytest.mark.parametrize('start, greedy, now, words', [
    # the error is that of the difference to the line, not to the start
    (NONE, [0.0, 0.0, 0.0, 1.0], ALL, 'verify 1.000 is above the line to beat: +0.750 +- 0.500'),
    # samples can beat greedy decoding: then the start is the line to beat
    (HALF, NONE, HALF, 'verify 0.500 is not above the line to beat: +0.000 +- 0.000'),
    (LOST, NONE, HALF, 'verify 0.500 is not above the line to beat: +0.125 +- 0.250'),
])
def test_the_last_line_says_whether_a_run_worked(start, greedy, now, words):
    """Differences of less than two standard errors are noise."""
    assert at_the_end(after(start, NONE, now, greedy=greedy))[-1] == words


def at_the_end(progress, entropies=(1.0, 0.5), floor=0.0):
    config = {'goal': progress.goal, 'entropy_floor': floor}
    return list(advice.of_the_end(config, [*progress.means.values()], entropies))


@pytest.mark.parametrize('first, last, words', [
    ({'verify': 0.191}, {'verify': 0.0}, 'exploited? The reward rose; verify: 0.191 -> 0.000'),
    ({'verify': 0.0}, {'verify': 0.0}, 'exploited? The reward rose; verify: 0.000 -> 0.000'),
    ({'verify': 0.191}, {'verify': 0.3}, 'verify: 0.191 -> 0.300'),
    ({'pass@4': 0.2}, {'pass@4': 0.55}, 'of 45% of the prompts'),
    ({'verify': 0.191}, {'verify': 0.3}, 'reward 9.000 is above'),
    ({'pass@4': 0.6}, {'pass@4': 0.5}, 'pass@4: 0.600 -> 0.500'),
    ({'tokens': 9.0}, {'tokens': 4.0}, 'shorter: 9.000 -> 4.000'),
    ({'ended': 0.9}, {'ended': 0.1}, 'limit: 10%'),
    ({}, {'forged': 0.1}, '10% of the completions'),
    ({}, {'forged': 0.25}, 'forged? reward 9.000'),
])
def test_the_end_says_what_the_numbers_point_at(first, last, words):
    progress = after(HALF, 4 * [9.0], goal='reward')
    for step, numbers in ((0, first), (10, last)):
        progress.means[step] |= {f'eval/{name}': value for name, value in numbers.items()}
    assert any(words in line for line in at_the_end(progress))


@pytest.mark.parametrize('evaluations, words', [
    ((ALL, HALF, HALF), 'the score fell by 0.500'), ((NONE, HALF, ALL), 'the score still rises'),
    ((NONE, HALF), None), ((NONE, ALL, ALL), None), ((HALF, HALF, LOST), 'learned little')])
def test_one_cause_is_named_by_the_course_of_the_score(evaluations, words):
    lines = at_the_end(after(*evaluations))
    assert len(lines) == 1 + bool(words) and (words or '') in lines[0]


def test_a_score_below_the_line_that_has_risen_needs_more_steps():
    """The line to beat is greedy decoding, the start is what is sampled."""
    cause, verdict = at_the_end(after(NONE, HALF, [0.5, 0.6, 0.7, 0.6], greedy=ALL))
    assert 'more steps' in cause and 'is below the line to beat: -0.400' in verdict


def test_an_exploited_reward_gets_no_advice_to_go_on():
    progress = after(HALF, [5.0, 4.0, 5.0, 4.0], 4 * [9.0], goal='reward')
    for step, right in ((0, 0.6), (20, 0.0)):
        progress.means[step] |= {'eval/verify': right, 'eval/pass@4': right}
    assert at_the_end(progress) == [
        'verify: 0.600 -> 0.000', 'pass@4: 0.600 -> 0.000',
        'exploited? The reward rose; verify: 0.600 -> 0.000; read the samples']


@pytest.mark.parametrize('values, words', [
    ([1, 0], ['verify() is 1 for 50.0% of 500']),
    ([1, None], ['verify() is 1 for 50.0% of 500', 'is None for 250']), ([0], ['is it right?']),
    ([1], ['they are solutions'])])
def test_the_start_says_how_many_texts_are_right(values, words, capsys):
    verdicts = itertools.cycle(values)
    data = types.SimpleNamespace(rows_of={'train': [0], 'val': [1]}, block_size=9,
                                 examples=[{1: 2}], own_cases=lambda n: n * [{}])
    run = types.SimpleNamespace(data=data, policy=types.SimpleNamespace(args={}),
                                scorer=types.SimpleNamespace(verify=lambda: next(verdicts)))
    assert advice.of_texts(run) == values.count(1) / len(values)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == len(words) and all(map(str.__contains__, lines, words))


@pytest.mark.parametrize('entropies, floor, words', [
    ((1.0, 1.5), 0.0, 'rose, 1.00 -> 1.50'), ((1.0, 0.01), 0.0, 'a larger entropy_coef'),
    ((1.0, 0.01), 1.0, 'another --seed')])
def test_an_entropy_that_rises_or_is_gone_is_named_if_the_score_is_low(entropies, floor, words):
    lines = at_the_end(after(HALF, HALF, HALF, HALF), entropies, floor)
    assert any(words in line for line in lines)
    assert len(at_the_end(after(NONE, HALF, ALL, ALL), entropies, floor)) == 1


def test_advice_names_no_reward_that_the_run_does_not_have(capsys):
    """With a teacher alone all weights are 0, and yet it learns."""
    numbers = {'dead_groups': 1.0, 'mean_reward': 0, 'mean_ended': 1}
    for reward in (torch.zeros(2, 2), torch.eye(2)):
        advice.of_first_step(numbers, {'reward': reward}, run_of(weight=0.0), after(HALF).means[0])
    assert capsys.readouterr().out == ''


@pytest.mark.parametrize('start, trained, dead, blank_kind, words', [
    (0.2, 0.5, 0.0, 'answer', ['memorised: 50% of the samples']),
    (0.2, 0.5, 0.0, 'marked', []),              # training prompts of another kind say nothing
    (1.0, 1.0, 1.0, 'answer', ['teach nothing', 'little is left']),
])
def test_the_first_step_says_what_can_be_expected(start, trained, dead, blank_kind, words, capsys):
    numbers = {'mean_verify': trained, 'mean_reward': trained, 'mean_ended': 1, 'dead_groups': dead}
    start = after([start] * 4).means[0]
    advice.of_first_step(numbers, {'reward': torch.eye(3)}, run_of(blank_kind), start)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(words) and all(map(str.__contains__, lines, words))


def run_of(blank_kind='answer', limit=0, weight=1.0, goal='verify', **args):
    """Return what advice looks at of a Run."""
    data = types.SimpleNamespace(max_new_tokens=limit, blank_kind=blank_kind)
    config = {'rewards': {'verify': weight}}
    return types.SimpleNamespace(data=data, goal=goal, config=config,
                                 policy=types.SimpleNamespace(args=args))


@pytest.mark.parametrize('words, reward, ended, knobs', [
    ('all rewards are None', math.nan * torch.ones(2, 2), 1.0, {}),
    ('all rewards are 1.000', torch.ones(2, 2), 1.0, {'goal': 'reward'}),
    ('nearly all samples are right', torch.ones(2, 2), 1.0, {'right': 1.0}),
    ('max_new_tokens = 3', torch.eye(2), 0.05, {'limit': 3}),
    ('another model', torch.eye(2), 1.0, {'folder': 'x'}),
    ('pretrain more', torch.eye(2), 1.0, {}),
])
def test_equal_rewards_are_explained_by_their_cause(words, reward, ended, knobs, capsys):
    right = knobs.get('right', 0.0)
    numbers = {'dead_groups': 1.0, 'mean_reward': right, 'mean_ended': ended, 'mean_verify': right}
    advice.of_first_step(numbers, {'reward': reward}, run_of(**knobs), after(HALF).means[0])
    line, *others = capsys.readouterr().out.splitlines()
    assert words in line and len(others) == (right == 1)        # memorised, too


def above(progress):
    """Return the line to beat, how much the last evaluation is above it, and the error of that."""
    *_, means = progress.means.values()
    return [means[name] for name in ('line to beat', 'above it', 'standard error')]


def test_a_prompt_that_is_held_out_several_times_counts_once_in_standard_errors():
    """Of equal prompts with equal gaps there is one observation; and the average of what they have
    by themselves is one."""
    then, now = [0.0, 0.3, 0.9], [0.2, 0.4, 1.0]
    once = above(after(then, now))
    thrice = above(after(3 * then, 3 * now, prompts=3 * ['a', 'b', 'c']))
    assert thrice == pytest.approx(once)
    spread = above(after(2 * then, [0.1, 0.3, 0.9, 0.3, 0.5, 1.1], prompts=2 * ['a', 'b', 'c']))
    assert spread == pytest.approx(once)
    refused('two or more', after, then, prompts=['a'] * 3)


def test_prompts_without_a_value_in_one_of_two_evaluations_are_left_out():
    """None of their completions has a reward."""
    progress = after([0.0, math.nan, 0.3, 0.9, 0.1], [0.2, 0.5, 0.4, 1.0, math.nan])
    known = above(after([0.0, 0.3, 0.9], [0.2, 0.4, 1.0]))
    assert above(progress) == pytest.approx([1.3 / 4, *known[1:]])
    assert progress.numbers({})[0] == ('verify', pytest.approx(2.1 / 4))
    refused('None is no value', after, [math.nan] * 3, [0.5] * 3, greedy=[0.5] * 3)
