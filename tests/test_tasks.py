"""Texts and ids, records, blanks, the shipped tasks and worlds, and sample.py."""
import re
from types import SimpleNamespace

import pytest
import torch

from plumbing.datasets import load
from plumbing.rewards import call_each
from runs import finish, train
from tasks import Task, columns_of
from test_grpo import TOK, prompts_of

# of two completions of three records: answer, prompt, level, original, text
COLUMNS = {
    ('c', 'ab__', None, 'abc', 'abc'), ('c', 'ab__', None, 'abc', 'aba'),
    ('aabc', 'a_b_', None, 'aabc', 'aabc'), ('', '_c', 1, '_c', '_c')}
# how the last words of a world begin, if the game is won
WON = {'data/guess.py': '=', 'data/countdown.py': '=', 'examples/worlds/distance.py': '0',
       'examples/worlds/hotcold.py': '!', 'examples/worlds/lock.py': '===',
       'examples/worlds/mastermind.py': '30', 'examples/worlds/vending.py': '!'}


# ---- texts, ids, records -------------------------------------------------------------------------


def test_what_a_record_leaves_open_is_its_answer_and_the_end_or_each_blank(file):
    records = [('ab', 'c'), ('a_b_', 'aabc'), {'prompt': '_c', 'level': 1}]
    path = file('records.py', f'def texts():\n    return {records}, 2 * {records}')
    task = Task(load(path), TOK, 'answer')
    assert task.verify is None                  # one has no answer
    assert task.prompts('train', 50).record.unique().tolist() == [0, 1, 2]
    # None comes twice.
    assert sorted(task.prompts('val', 9).record.tolist()) == [3, 4, 5, 6, 7, 8]
    prompts = task.prompts_of(torch.arange(3))
    texts = prompts.whole.repeat_interleave(2, 0)
    # After the longest prompt there is room for the longest answer and an end.
    assert texts.size(1) == task.length == 4 + 2
    texts[1, 2] = 1                             # an a
    columns = columns_of(SimpleNamespace(prompts=prompts, texts=texts, k=2))
    assert columns.pop('completion') == columns['text']
    assert {*zip(*columns.values())} == COLUMNS


def test_of_lines_of_json_a_tenth_is_held_out_and_equal_prompts_stay_together(file):
    """(The prompts have a character that is a line's end for Python, and none for JSON.)"""
    lines = 2 * [f'{{"prompt": "{i}\u2028", "answer": "a"}}\n' for i in range(1000)]
    parts = load(file('mine.jsonl', ''.join(lines)))[:2]
    trained, held_out = [{record['prompt'] for record in part} for part in parts]
    assert 60 < len(held_out) < 140 and not trained & held_out and len(trained | held_out) == 1000
    lines[3:5] = ['{"prompt": "a", "held_out": true}\n'] * 2
    train, held_out, *_ = load(file('marked.jsonl', ''.join(lines)))
    assert len(train) == 1998 and held_out == [
        {'line': line, 'prompt': 'a', 'answer': ''} for line in (4, 5)]


def test_blanks_are_a_share_of_the_text_at_least_one_and_uniform_over_places():
    task = prompts_of('a', 'abcab=caabc', 'a_').task
    task.blank_kind = 'random'
    torch.manual_seed(0)
    prompts = task.prompts('train', 20_000)
    for record, n, counts in ((0, 1, [1]), (1, 10, [2, 3, 4, 5, 6])):
        blank = prompts.blank[prompts.record == record]
        assert blank.sum(1).unique().tolist() == counts and not blank[:, n:].any()
    assert (blank[:, :10].float().mean(0) - 0.4).abs().max() < 0.03     # 5 times its error
    assert prompts.blank[prompts.record == 2][:, 1].all()               # nobody knows this one


# ---- the shipped tasks ---------------------------------------------------------------------------


@pytest.mark.xdist_group('datasets')
@pytest.mark.parametrize('path', WON)
def test_a_world_answers_as_in_its_games_and_verify_finds_those_that_are_won(path):
    train, held_out, verify, reply, _ = load(path)
    n_won = 0
    for record in train[:100] + held_out[:100]:
        game = record['answer']
        case = record | {'completion': '', 'sampled': ''}
        while len(case['completion']) < len(game):
            letter = game[len(case['completion'])]
            case['sampled'] += letter
            case['completion'] += letter
            [said] = call_each('reply', reply, [case])
            case['completion'] += said[0] if type(said) is tuple else said or ''
        assert case['completion'] == game != case['sampled']
        [won] = call_each('verify', verify, [case])
        # (Who pays the vending machine too much gets it, too.)
        assert won == game.endswith(WON[path]) or 'vending' in path and not won
        n_won += won
    assert n_won > 10


# ---- sample.py -----------------------------------------------------------------------------------


def test_a_sample_shows_each_prompt_before_and_after_with_scores_at_its_step_and_state(
        toy, file, tmp_path):
    """A prompt of one's own has none."""
    train(toy, tmp_path / 'run', file('mine.py', '''
rewards = {'mine': 1.0}
def mine(texts, step):
    return [step + state.get('steps', 0) + text.count('0') for text in texts]
def learn(networks, optimizers, rollouts, lr, inner=learn):
    state['steps'] = state.get('steps', 0) + 10
    return inner(networks, optimizers, rollouts, lr)
'''))
    shown = finish('sample.py', f'{tmp_path}/run', '--num_samples=2')
    rows = re.findall(r"(?m)^(before|after) '.*_|^ +\d x '(.*)' +\S+ +(\S+)$", shown)
    assert [label for label, *_ in rows if label] == 2 * ['before', 'after']
    for label, text, score in rows:
        if label:
            step = {'before': 60, 'after': 66}[label]
        else:
            assert float(score) == step + text.count('0')
    shown = finish('sample.py', f'{tmp_path}/run', '--prompt=1_+3_=__7')
    assert re.findall(r"(?m)^(.*) '1_\+3_=__7", shown) == ['before', 'after']
