"""Texts and ids, records, blanks, the shipped tasks and worlds, and sample.py."""
import re
import tracemalloc
from types import SimpleNamespace

import pytest
import torch

from conftest import run, train
from extras.check import play
from plumbing.datasets import load
from plumbing.networks import load_network, save_network
from plumbing.report import print_group
from plumbing.rewards import call_reward
from pretrain import make_tokenizer
from tasks import Task, columns_of
from test_grpo import TOK, tiny

# of two completions of three records: answer, prompt, level, original, text
COLUMNS = """
('c', 'ab__', None, 'abc', 'abc')
('c', 'ab__', None, 'abc', 'aba')
('aabc', 'a_b_', None, 'aabc', 'aabc')
('aabc', 'a_b_', None, 'aabc', 'aabc')
('', '_c', 1, '_c', '_c')
('', '_c', 1, '_c', '_c')"""
# how the last words of a world begin, if the game is won
WON = {'data/guess.py': '=', 'data/countdown.py': '=', 'examples/worlds/distance.py': '0',
       'examples/worlds/hotcold.py': '!', 'examples/worlds/lock.py': '===',
       'examples/worlds/mastermind.py': '30', 'examples/worlds/vending.py': '!'}


# ---- texts, ids, records -------------------------------------------------------------------------


def test_characters_become_ids_and_text_again(file):
    """An end is shown as a line feed, so no text may have one."""
    assert TOK.encode('abca') == [1, 2, 3, 1] and TOK.vocab_size == 4
    ids = [TOK.bos, 1, TOK.eos, 2, TOK.blank, TOK.eos, TOK.eos, TOK.pad, TOK.pad]
    assert TOK.decode(ids) == 'a\nb_\n'         # without the last end
    text = "def texts():\n    return [('a_', 'ab')], 2 * [('', 'c{0}')]"
    assert make_tokenizer('char', file('mine.py', text.format(''))).vocabulary == TOK.vocabulary
    with pytest.raises(AssertionError, match='feed.py: a line feed in a text'):
        make_tokenizer('char', file('feed.py', text.format('\\n')))


def task_of(records, file, blank_kind='random'):
    """Return the Task of records; each is one to learn from, and twice held out."""
    path = file('records.py', f'def texts():\n    return {records}, 2 * {records}')
    return Task(load(path), TOK, blank_kind)


def test_what_a_record_leaves_open_is_its_answer_and_the_end_or_each_blank(file):
    records = [('ab', 'c'), ('a_b_', 'aabc'), {'prompt': '_c', 'level': 1}]
    task = task_of(records, file, blank_kind='answer')
    assert task.verify is None                  # one has no answer
    assert task.prompts('train', 50).record.unique().tolist() == [0, 1, 2]
    prompts = task.prompts('val', 9)            # none comes twice
    assert sorted(prompts.record.tolist()) == [3, 4, 5, 6, 7, 8]
    with pytest.raises(AssertionError, match="'ab' has no blank"):
        task.prompt_of_user('ab')
    prompts = task.prompts_of(torch.arange(3))
    texts = prompts.tokens.repeat_interleave(2, 0)
    # After the longest prompt there is room for the longest answer and an end.
    assert texts.size(1) == task.length == 4 + 2
    texts[1, 2] = 1                             # an a
    columns = columns_of(SimpleNamespace(prompts=prompts, texts=texts, k=2))
    assert columns.pop('completion') == columns['text']
    assert list(map(repr, zip(*columns.values()))) == COLUMNS.strip().splitlines()


def test_of_lines_of_json_a_tenth_is_held_out_and_equal_prompts_stay_together(file):
    """(The prompts have a character that is a line's end for Python, and none for JSON.)"""
    lines = [f'{{"prompt": "{i}\u2028", "answer": "{answer}"}}\n'
             for i in range(1000) for answer in 'ab']
    *parts, verify, _ = load(file('mine.jsonl', ''.join(lines)))
    trained, held_out = [{record['prompt'] for record in part} for part in parts]
    assert 60 < len(held_out) < 140 and not trained & held_out and len(trained | held_out) == 1000
    assert verify('ab', 'ab') == 1 and verify('ab', 'a') == 0
    lines[3:5] = ['{"prompt": "a", "held_out": true}\n'] * 2
    train, held_out, *_ = load(file('marked.jsonl', ''.join(lines)))
    assert len(train) == 1998 and held_out == [
        {'line': line, 'prompt': 'a', 'answer': ''} for line in (4, 5)]


@pytest.mark.parametrize('kind', ['fill', 'causal'])
def test_a_blank_without_an_answer_is_not_imitated(kind, file):
    path = file('open.py', "def texts():\n    return 9 * [('a_b', '')], 2 * [('a_b', 'aab')]")
    _, _, error = run('pretrain.py', f'--dataset={path}', f'--kind={kind}', '--device=cpu')
    assert re.match('error: .*open.py has no answers', error)


RECORDS = {                     # the kind of a network, and a record: what is said of it
    "fill ('a_b', 'aab=')": "lacks .'='. of 'aab='", "fill ('a_b', 'aa')": "'aa'",
    "fill ('a_b', 'bab')": 'bab', r"fill ('a', 'b\n')": r"of 'b\\n'",
    "fill ('a', 8 * 'b')": 'up to 10 tokens: the network can read 8',
    "causal ('a_b', 'aab')": "'a_b'.*the generator, which writes from left"}


@pytest.mark.parametrize('case', RECORDS)
def test_a_record_that_is_no_text_of_the_network_is_named(case, file):
    """It has another length, characters that nobody knows, more than fit, or blanks."""
    kind, record = case.split(' ', 1)
    KindTask = type('KindTask', (Task,), {'kind': kind})
    path = file('mine.py', f"def texts():\n    return [('a', 'b'), {record}], 2 * [('a', 'b')]")
    with pytest.raises(AssertionError, match=RECORDS[case]):
        KindTask(load(path), TOK, 'answer', tiny(kind))


def test_blanks_are_a_share_of_the_text_at_least_one_and_uniform_over_places(file):
    task = task_of([('a', ''), ('abcab', 'caabc'), ('a_', '')], file)
    torch.manual_seed(0)
    prompts = task.prompts('train', 20_000)
    for record, n, counts in ((0, 1, [1]), (1, 10, [2, 3, 4, 5, 6])):
        blank = prompts.blank[prompts.record == record]
        assert blank.sum(1).unique().tolist() == counts and not blank[:, n:].any()
    assert (blank[:, :10].float().mean(0) - 0.4).abs().max() < 0.03     # 5 times its error
    assert prompts.blank[prompts.record == 2][:, 1].all()               # nobody knows this one


# ---- the shipped tasks ---------------------------------------------------------------------------


def test_one_long_text_makes_a_dataset_no_larger_than_its_characters(file):
    tracemalloc.start()
    task = task_of([('ab', 'c')] * 2000 + [('a' * 3000, 'b')], file, blank_kind='answer')
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert task.length == 3002 and size < 20e6          # a table of the ids has 144e6


@pytest.mark.parametrize('name', ['arithmetic', 'cups'])
def test_verify_likes_solutions_and_held_out_prompts_are_not_trained(name):
    train, held_out, verify, _ = load(name)
    for record in held_out + train[:1000]:
        text = record['prompt'] + record['answer']
        assert [*map(verify, [text, text[:-1] + 'x', text + ' ', record['prompt']])] == [1, 0, 0, 0]
    trained = {record['prompt'] for record in train}
    assert trained.isdisjoint(record['prompt'] for record in held_out)


@pytest.mark.parametrize('path', WON)
def test_a_world_answers_as_in_its_games_and_verify_finds_those_that_are_won(path):
    train, held_out, verify, reply = load(path)
    n_won = 0
    for record in train[:100] + held_out[:100]:
        game = record['answer']
        case = play(reply, record | {'completion': '', 'sampled': ''}, 99,
                    lambda begun: game[len(begun):][:1])
        assert case['completion'] == game and len(case['sampled']) < len(game)
        [won] = call_reward('verify', verify, {name: [x] for name, x in case.items()}, {})
        # (Who pays the vending machine too much gets it, too.)
        assert won == game.endswith(WON[path]) or 'vending' in path and not won
        n_won += won
    assert n_won > 10


# ---- sample.py -----------------------------------------------------------------------------------


def test_a_prompt_of_ones_own_is_shown_before_and_after(finished):
    _, text, error = run('sample.py', str(finished), '--prompt=1_+3_=__7')
    for label in ('before', 'after'):
        assert re.search(rf"(?m)^{label} +.*'1_\+3_=__7", text), error


def test_a_network_of_an_older_version_is_refused(tmp_path):
    """It said `causal` in the place of a kind."""
    torch.save({'args': {'causal': False}}, tmp_path / 'older.pt')
    with pytest.raises(SystemExit, match='older.pt is no checkpoint of this version'):
        load_network(tmp_path / 'older.pt', 'cpu')


def test_a_world_gets_none_for_a_column_that_a_record_lacks_and_its_default_for_a_typed_prompt(
        toy, grpo, file):
    path = file('world.py', """
include('plugins/causal.py')
generator = judge
def reply(completion, secret='default'):
    assert completion
    state.setdefault('secrets', set()).add(secret)
""")
    data = file('data.py', """
def texts():
    records = [{'prompt': f'12+{i}0=', 'answer': '0'} for i in range(9)]
    records[1]['secret'], records[2]['answer'], records[0]['prompt'] = 'a', '', '1+'
    return records[2:], records[:2]
""")
    _, data = grpo.read_words([*toy[1:], path, f'--dataset={data}', '--max_new_tokens=3'])
    networks, task = grpo.open_task(data)
    for prompts, secrets in ((task.prompt_of_user('12+'), {'default'}),
                             (task.prompt_of_user('12+300='), {'default'}),    # a long one
                             (task.prompts('val', 2), {'a', None})):
        grpo.state.clear()
        torch.manual_seed(0)                    # with some seeds both completions end at once
        r = grpo.complete(networks.policy, prompts, 2)
        assert grpo.state['secrets'] == secrets and (r.prompts.blank.sum(1) == 3).all()
        # Prompts have two lengths.
        for sample in grpo.report.samples_of(r, grpo.columns_of(r), {}):
            shown = ''.join(text for text, *_ in sample['pieces']).rstrip('\n')
            assert shown == sample['completion'].rstrip('\n')


def test_a_sample_shows_each_prompt_before_and_after_with_scores_at_its_step_and_state(
        toy, file, tmp_path):
    train(toy, tmp_path / 'run', file('mine.py', '''
rewards = {'mine': 1.0}
def mine(texts, step):
    return [step + state.get('steps', 0) + text.count('0') for text in texts]
def learn(networks, optimizers, rollouts, lr, inner=learn):
    state['steps'] = state.get('steps', 0) + 10
    return inner(networks, optimizers, rollouts, lr)
'''))
    _, shown, _ = run('sample.py', f'{tmp_path}/run', '--num_samples=2')
    rows = re.findall(r"(?m)^(before|after) .* '.*_.*'$|^ +\d x +\S+ +(\S+) +'(.*)'$", shown)
    assert [label for label, *_ in rows if label] == 2 * ['before', 'after']
    now = ''
    for label, score, text in rows:
        now = label or now
        assert not text or float(score) == text.count('0') + {'before': 60, 'after': 66}[now]


def test_of_a_group_the_best_and_the_worst_are_shown_with_their_passes(capsys):
    sample = {'prompt': '__', 'completion': 'ab', 'pieces': [['a', 10], ['b', 1]]}
    for scores, rows in (('01123456', '16 15 14 12 21 10'), ('01123', '13 12 21 10')):
        print_group([sample | {'scores': {'reward': int(i)}} for i in scores], ['reward'])
        found = re.findall(r'(\d) x +(\d).000 .*\n +a1\n', capsys.readouterr().out)
        assert ' '.join(map(''.join, found)) == rows


def test_a_learned_order_leaves_at_first_3_of_100_blanks_for_the_last_pass(toy, grpo, tmp_path):
    words = [*toy[1:], 'plugins/passes.py', '--fill_order=learned']
    for n_fill_steps in (1, 2, 3):
        _, data = grpo.read_words([*words, f'--n_fill_steps={n_fill_steps}'])
        policy = grpo.open_task(data)[0].policy
        waits = 1 - grpo.order_scores(policy, torch.randn(5, 32)).sigmoid()
        n_waits = max(1, n_fill_steps - 1)              # with one pass nothing is decided
        assert (waits ** n_waits).tolist() == pytest.approx([0.03] * 5, rel=1e-5)
    policy.order.bias.data += 1                 # as a checkpoint has it
    save_network(tmp_path / 'new.pt', policy)
    assert grpo.load_network(tmp_path / 'new.pt', 'cpu')[0].order.bias == policy.order.bias
