"""Texts and ids, records, blanks, the shipped tasks and worlds, and sample.py."""
import json
import os
import re
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from configurator import call
from conftest import run
from data import cups
from tasks import Prompts, Task, Tokenizer, columns_of, load, make_tokenizer

TOK = Tokenizer('char', 'abc')
WORLDS = ['guess', 'countdown', *map(str, sorted(Path('examples/worlds').glob('*.py')))]


# ---- texts and ids -------------------------------------------------------------------------------


def test_characters_become_ids_and_text_again():
    ids = TOK.encode('abca')
    assert ids == [1, 2, 3, 1] and TOK.vocab_size == 4
    assert TOK.decode([TOK.bos, *ids, TOK.eos, TOK.pad, TOK.pad]) == 'abca'
    assert TOK.decode([1, TOK.eos, TOK.blank, TOK.eos]) == 'a\n_'  # an eos inside is shown
    assert Tokenizer(**TOK.vocabulary).encode('cab') == TOK.encode('cab')
    with pytest.raises(AssertionError, match="lacks .'x'. of 'axb'"):
        TOK.encode('axb')


def test_byte_pairs_of_gpt2_become_text_again():
    if 'TIKTOKEN_CACHE_DIR' not in os.environ:
        pytest.skip('it would have to be downloaded')
    tok = make_tokenizer('gpt2', 'arithmetic')
    text = ' Größe_1: 12+35=047 <|endoftext|>'
    ids = tok.encode(text)
    assert tok.decode([*ids, tok.eos, tok.pad]) == text
    assert max(ids) < tok.eos < tok.vocab_size == tok.blank


# ---- records -------------------------------------------------------------------------------------


def rows_of(task, prompts):
    """Return for each prompt its text, and what is shown of it."""
    shown = prompts.tokens.masked_fill(prompts.blank, task.tok.blank)
    rows = zip(prompts.tokens.tolist(), shown.tolist())
    return [tuple(map(task.tok.decode, pair)) for pair in rows]


def task_of(records, file, **how):
    """Return the Task of records; each is one to learn from, and twice held out."""
    path = file('records.py', f'def texts():\n    return {records}, {records * 2}')
    return Task(path, TOK, **how)


def test_what_a_record_leaves_open_is_its_answer_and_the_end_or_each_blank(file):
    records = [('ab', 'c'), ('a_b_', 'aabc'), {'prompt': '_c', 'level': 1}]
    task = task_of(records, file, blank_kind='answer')
    prompts = task.prompts('val', 6)
    assert set(rows_of(task, prompts)) == {('_c', '_c'), ('aabc', 'a_b_'), ('abc', 'ab__')}
    assert task.verify is None                  # one has no answer
    # After the longest prompt there is room for the longest answer and an end.
    assert prompts.tokens.size(1) == task.block_size == 4 + 2


def test_of_lines_of_json_a_tenth_is_held_out_and_equal_prompts_stay_together(file):
    """(The prompts have a character that is a line's end for Python, and none for JSON.)"""
    lines = [json.dumps({'prompt': f'{i}\u2028', 'answer': answer}, ensure_ascii=False)
             for i in range(1000) for answer in 'ab']
    train, held_out, verify, _ = load(file('mine.jsonl', '\n'.join(lines)))
    trained, others = [{record['prompt'] for record in part} for part in (train, held_out)]
    assert 60 < len(others) < 140 and not trained & others and len(train) + len(held_out) == 2000
    lines[3:5] = ['{"prompt": "a", "held_out": true}', '{"prompt": "b", "held_out": true}']
    held_out = load(file('marked.jsonl', '\n'.join(lines)))[1]
    assert [record['prompt'] for record in held_out] == ['a', 'b']
    assert verify('ab', 'ab') == 1 and verify('ab', 'a') == 0


@pytest.mark.parametrize('answer', ['aab=', 'aa', 'bab'])
def test_an_answer_that_does_not_fill_the_blanks_of_its_prompt_is_named(answer, file):
    with pytest.raises(AssertionError, match=answer):
        task_of([('a_b', answer)], file)


# ---- blanks --------------------------------------------------------------------------------------


def test_blanks_are_a_share_of_the_text_at_least_one_and_uniform_over_places(file):
    task = task_of([('a', ''), ('abcab', ''), ('abcab', 'caabc')], file, low=0.2, high=0.6)
    torch.manual_seed(0)
    prompts = task.prompts('train', 20_000)
    length = ((prompts.tokens != TOK.pad) & (prompts.tokens != TOK.eos)).sum(1)
    assert not (prompts.blank & (torch.arange(task.block_size) >= length[:, None])).any()
    for n, counts in ((1, [1]), (5, [1, 2, 3]), (10, [2, 3, 4, 5, 6])):
        assert prompts.blank[length == n].sum(1).unique().tolist() == counts
    often = prompts.blank[length == 10].float().mean(0)[:10]
    assert (often - 0.4).abs().max() < 0.03     # the error of a share of 6,700 is 0.006


def test_columns_are_those_of_records_and_what_was_shown_and_written(file):
    task = task_of([{'prompt': 'ab', 'answer': 'c', 'level': 1}, ('b', 'cc')], file)
    prompts = Prompts(task, task.tokens[:2], task.blank[:2], torch.tensor([0, 1]))
    sequences = prompts.tokens.repeat_interleave(2, 0)
    sequences[1, 2] = 1                         # an a
    texts = ['abc', 'aba', 'bcc', 'bcc']
    assert columns_of(SimpleNamespace(prompts=prompts, sequences=sequences)) == {
        'prompt': ['ab__', 'ab__', 'b___', 'b___'], 'answer': ['c', 'c', 'cc', 'cc'],
        'level': [1, 1, None, None], 'original': ['abc', 'abc', 'bcc', 'bcc'],
        'completion': texts, 'text': texts}


# ---- the shipped tasks ---------------------------------------------------------------------------


@pytest.mark.parametrize('name', ['arithmetic', 'cups'])
def test_verify_likes_solutions_and_held_out_prompts_are_not_trained(name):
    train, held_out, verify, _ = load(name)
    for record in held_out + train[:1000]:
        prompt, answer = record['prompt'], record['answer']
        assert verify(prompt + answer) == 1
        for wrong in (answer[:-1] + 'x', answer + ' ', ''):
            assert verify(prompt + wrong) == 0
    assert not {record['prompt'] for record in train} & {record['prompt'] for record in held_out}


def test_thoughts_are_solutions_and_those_that_are_held_out_are_all_blank():
    train, held_out = runpy.run_path('data/thoughts.py')['texts'](200)
    for record in train + held_out:
        prompt, _, thoughts = record['answer'].partition('=')
        assert thoughts == cups.follow(prompt) and cups.verify(record['answer']) == 1
        assert re.fullmatch(record['prompt'].replace('_', '.'), record['answer'])
    assert all(record['prompt'].endswith('=' + 8 * '_') for record in held_out)


def replay(reply, record):
    """Return the game of a record, if the policy writes as it does there and the world answers;
    what the policy wrote of it; and whether the world ended it."""
    game, sampled, is_end = '', '', False
    while len(game) < len(record['answer']) and not is_end:
        sampled += record['answer'][len(game)]
        game += sampled[-1]
        said = call(reply, record | {'completion': game})
        words, is_end = said if type(said) is tuple else (said or '', False)
        game += words
    return game, sampled, is_end


@pytest.mark.parametrize('name', WORLDS)
def test_a_world_answers_as_in_its_games_and_verify_finds_those_that_are_won(name):
    train, held_out, verify, reply = load(name)
    n_won = 0
    for record in train[:500] + held_out:
        game, sampled, is_end = replay(reply, record)
        assert game == record['answer'] and len(sampled) < len(game)
        won = call(verify, record | {'completion': game, 'sampled': sampled})
        if 'vending' in name:                   # who pays too much gets it, too
            assert won <= game.endswith('!')
        else:
            assert won == (game.endswith('=') if name == 'countdown' else is_end)
        n_won += won
    assert n_won > 10


# ---- sample.py -----------------------------------------------------------------------------------


def test_a_finished_run_is_shown_before_and_after_with_the_numbers_of_its_log(finished):
    code, text, error = run('sample.py', str(finished), '--num_samples=3')
    assert code == 0, error
    lines = [json.loads(line) for line in open(finished / 'log.jsonl')]
    first, *_, last = [line for line in lines if 'line to beat' in line]
    for label, line in (('before', first), ('after', last)):
        numbers = [f'{name} {line[name]:.3f}' for name in ('verify', 'greedy', 'line to beat')]
        assert re.search(rf'(?m)^{label} +. ' + ' . '.join(map(re.escape, numbers)), text)
        assert len(re.findall(rf'(?m)^{label} +verify +judge  ', text)) == 3


@pytest.mark.parametrize('name, prompt, shown', [
    ('finished', '1_+3_=__7', 'after'), ('generator.pt', '1_+3_=__7', 'before'),
    ('judge.pt', '12+35=', 'before'), ('generator.pt', '', 'before')])
def test_a_prompt_of_ones_own_and_a_network_alone_are_shown(name, prompt, shown, finished, folder):
    words = ['sample.py', f'{folder}/{name}', f'--prompt={prompt}', '--eval_prompts=8']
    code, text, error = run(*words)
    assert code == 0, error
    assert re.search(rf"(?m)^{shown} +.*'{re.escape(prompt)}", text)
    assert ('after' in text) == (name == 'finished')


@pytest.mark.parametrize('word', [
    '{}/evil.py', '--generator={}/evil.py', '--dataset={}/../run/evil.py', '{}/a=evil.py'])
def test_sample_runs_no_file_of_the_folder_of_a_run(word, finished, tmp_path, file, grpo):
    import sample
    shutil.copytree(finished, tmp_path / 'run')
    for name in ('evil.py', 'a=evil.py'):
        file(f'run/{name}', f"open('{tmp_path}/made', 'w')\ndef texts():\n    return []")
    words = json.loads((finished / 'config.json').read_text())
    words['words'].append(word.format(tmp_path / 'run'))
    file('run/config.json', json.dumps(words))
    with pytest.raises((AssertionError, SystemExit), match='nothing in a run'):
        sample.open_run(f'{tmp_path}/run')
    assert not os.path.exists(tmp_path / 'made')
