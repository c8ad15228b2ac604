"""Words of the command line, config files, and functions of a user."""
import contextlib
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from plumbing.datasets import Dataset, load, modules_of
from plumbing.networks import file_of, load_checkpoint
from plumbing.process import Mistake
from plumbing.rewards import try_rewards, values_of
from runs import ROOT, log_of, run, train
from tasks import Task
from test_grpo import fresh

# words of a command line, and what the line says with which the run ends
MISTAKES = """
--group_sise=2 -> no knob group_sise, group_size
--top_p=0.9 -> no knob top_p, plugins/top.py
--group_size=2.5 -> group_size = 2.5, a whole number, 2 or more
--blank_high=60 -> blank_high = 60
--temperature=0 -> temperature = 0
--adv_norm=sdt -> adv_norm = 'sdt', 'std'
--clip_low=1.2 -> clip_low = 1.2, from 0 to 1
--dataset=data/arithmetic -> there is no file, There is data/arithmetic.py
--dataset=arithmatic -> there is no file, Near: ['arithmetic']
config/grpo_smok.py -> config/grpo_smok.py
--generator=out/none.pt -> out/none.pt
--rewards={"verfy":1.0} -> rewards, verfy(), verify
config/papers/gspo.py config/papers/cispo.py -> gspo.py and, cispo.py both replace policy_loss()
config/papers/cispo.py config/papers/tis.py -> cispo.py and, tis.py both replace policy_loss()
config/papers/d1.py config/papers/unigrpo.py -> d1.py and, unigrpo.py both replace masks()
--out_dir={0} -> out_dir, holds something else
--out_dir={0}/finished --generator={0}/finished --rewards={"verify":1.0} -> is in out_dir
--out_dir={0}/finished --rewards={"verify":1.0} plugins/causal.py -> plugins/causal.py
--group_size 16 -> --group_size=VALUE
16 -> --name=value
--resume -> --resume=True
-x=2 -> --name=value
--group-size=4 -> group_size, docs/words.md
group_size=4 -> write --group_size=4
config/grpo_smoke -> 'config/grpo_smoke.py'
smoke -> 'config/grpo_smoke.py'
--resume=true -> resume = 'true', True or False
--rewards=verify -> {'verify': 1.0}
--rewards={} -> {'verify': 1.0}
--rewards={"judge":1,"judge":2} -> 'judge' is there twice
data/hours.py -> write --dataset=data/hours.py
hours -> 'data/hours.py'
mine.jsonl -> write --dataset=mine.jsonl
--dataset=mine.jsonl -> no file mine.jsonl
--dataset=config/grpo_smoke.py -> no function texts()
--gradient_accumulation_steps=0 -> 1 or more
--eval_prompts=1 -> 2 or more
--blank_low=0.7 --blank_high=0.3 -> blank_low = 0.7 is above blank_high = 0.3
--min_lr=0.5 -> min_lr = 0.5 is above learning_rate
--kl=1 -> no knob kl, kl_beta
--config=config/grpo_smoke.py -> no knob config, write config/grpo_smoke.py
--judge=config/grpo_smoke.py -> config/grpo_smoke.py was taken as the recipe of a network
--dataset={0}/generator.pt -> expected a module of data/
--rewards={"verify":"1"} -> {'verify': '1'}, a number
--rewards={"score":1.0} -> rewards: score is a name
--rewards={"tokens":1.0} -> rewards: tokens is a name
--rewards={"len":1.0} -> rewards: len is a name
--rewards={'verify': 1.0} -> 1.0}: a value with a space needs quotes
config/grpo_smoke.py config/grpo_smoke.py -> twice
config/networks/judge_smoke.py -> is the recipe of a network, --judge=config/networks/judge_smoke.py
--out_dir=o1--seed=2 -> out_dir = 'o1--seed=2', --seed=2
--out_dir=$NONE/o1 -> out_dir = '$NONE/o1', a variable of the shell
--out_dir=s3://o1 -> an address
plugins/world.py -> is a part of plugins/causal.py
plugins/causal.py plugins/passes.py -> leave one out
data.jsonl -> A path with a space needs quotes
"""
# The console of sample.py: its first word is a run.
SAMPLE = """
--out_dir=out-grpo -> python sample.py out-grpo
--num_samples -> --num_samples=VALUE
--num_samples=0 -> num_samples = 0, 1 or more
none -> none is no run
out-grpo 1_+3_=__7 -> --prompt='1_+3_=__7'
out-grpo docs -> docs: one run at a time
"""
LINES = r"""
What?
{"answer": "2"}
{"prompt": "1+1=", "answer": 2}
{"prompt": "1+1=", "held_out": null}
{"prompt": "1+1=\ud83d", "answer": "2"}
7
{"prompt": "1+1=", "answer": "2", "test": true}
"""
# what a reward may not return
WRONG = """
None
[1.0]
texts
[1j] * len(texts)
[1e300] * len(texts)
[0.5] * (len(texts) - 1) + [torch.nan]
"""
MAY = r"""
import functools
dataset = f'{out_dir}.jsonl'
_line = '{"prompt": "10+3%d=", "answer": "04%d"%s}\n'
open(dataset, 'w').writelines(
    _line % (i % 10, i % 10, ', "level": 1' * (i > 24)) for i in range(50))
rewards = dict.fromkeys(['spoils', 'zeros', 'part', 'thing', 'wrapped', 'level_of', 'compare'], 1.0)

def spoils(texts, level, rollout):
    rollout.texts.zero_()
    assert (torch.full((1, 1), 257.0) @ torch.ones(1, 1)).item() == 257         # bfloat16 has none
    level.clear()
    return [texts.pop(0).count('0') for _ in range(len(texts))]

def zeros(texts, times=1):
    return [times * text.count('0') for text in texts]

@dataclass
class _Zeros:
    digit: str

    def __call__(self, texts):
        return [text.count(self.digit) for text in texts]

part = functools.partial(zeros, times=1)
thing = _Zeros('0')
wrapped = functools.wraps(zeros)(lambda *args, **named: zeros(*args, **named))

def level_of(texts, level, line):
    assert [*map(bool, level)] == [x > 25 for x in line]
    return [float(x or 0) for x in level]

def compare(prompts, texts, rollout):
    k = rollout.k
    assert len({*prompts[:k]}) == 1
    return [texts[i:i + k].count(x) for i, x in enumerate(texts)]

def policy_loss(stats, rollout, inner=policy_loss):
    assert rollout.texts.any()
    losses, is_clipped = inner(stats, rollout)
    return losses * (1 - is_clipped), is_clipped.mean() + 0 * is_clipped

def make_optimizers(network, *more, inner=make_optimizers):
    optimizers = inner(network, *more)
    network.blocks.requires_grad_(False)
    return optimizers
"""


@pytest.mark.parametrize('case', MISTAKES.strip().splitlines())
def test_a_mistake_is_one_line_and_nothing_is_made_or_moved(case, toy, folder, finished, tmp_path):
    words, said = case.replace('{0}', str(folder)).split(' -> ')
    code, printed, error = run(*toy, '--judge=config/networks/judge_smoke.py',
                               f'--out_dir={tmp_path}/run', *words.split())
    assert code == 1 and re.fullmatch('error: .*\n', error)
    assert all(part in error for part in said.split(', '))
    assert 'pretrain.py' not in printed and not (tmp_path / 'run').exists()
    assert (finished / 'ckpt.pt').exists()


@pytest.mark.parametrize('case', SAMPLE.strip().splitlines())
def test_a_mistake_of_a_word_of_sample_is_one_line(case):
    words, said = case.split(' -> ')
    code, _, error = run('sample.py', *words.split())
    assert code == 1 and re.fullmatch('error: .*\n', error)
    assert all(part in error for part in said.split(', '))


@pytest.mark.parametrize('script', ['train_grpo.py', 'pretrain.py', 'sample.py'])
def test_help_prints_the_knobs(script):
    code, printed, error = run(script, '-h')
    assert code == 0 and '---- knobs' in printed and 'def ' not in printed and not error


def test_a_mistake_is_a_line_and_a_fault_a_traceback_also_without_asserts():
    """python -O leaves asserts out."""
    for code, error in (
            ("expect(1 > 2, 'no')", 'error: no\n'),
            ('1 / 0', 'Traceback[^$]*ZeroDivisionError: division by zero\n'),
            ("int('x')", 'Traceback[^$]*ValueError: .*\n'),
            ("raise MemoryError('1 PB')", 'Traceback[^$]*MemoryError: 1 PB\nout of memory: .*\n'),
            ('raise KeyboardInterrupt', 'stopped\n')):
        code = f'from plumbing.process import expect\n{code}'
        done = subprocess.run([sys.executable, '-O', '-c', code], cwd=ROOT, capture_output=True,
                              text=True)
        assert done.returncode and re.fullmatch(error, done.stderr)


def test_words_act_from_left_to_right_plugins_before_all_others_and_a_file_once(
        file, grpo, capsys):
    mine = file('mine.py', """
group_size = batch_size = 4
state['times'] = state.get('times', 0) + 1
@torch.no_grad()
def complete(policy, prompts, k, greedy=False, inner=complete):
    return inner(policy, prompts, k, greedy)
def helper(stats, rollout):
    return 0
""")
    other = file('other.py', f'include({mine!r})\ninclude({os.path.relpath(mine)!r})')
    fresh('--group_size=2', '--top_p=1', other, '--batch_size=2', mine, 'plugins/top.py',
          'plugins/passes.py', '--kl_beta=1')
    assert [grpo.group_size, grpo.batch_size, repr(grpo.kl_beta)] == [4, 2, '1.0']
    assert grpo.state == {'times': 1}
    inner = grpo.complete.__wrapped__.__wrapped__.__defaults__[1]
    assert inner.__code__.co_filename == 'plugins/top.py'
    plugins, said = capsys.readouterr().out.split(mine, 1)
    assert 'plugins/top.py replaces complete(), sample(), stats_of()\n' in plugins
    assert said == (f' replaces complete()\n{mine} brings helper(), which has no weight in '
                    '`rewards`: nobody calls it\n')


def test_a_file_sees_the_flags_and_a_later_word_wins(file, grpo):
    fresh(file('mine.py', "out_dir = f'out-{seed}'\nkl_beta = 0.5 * kl_beta"), '--seed=3',
          '--kl_beta=1')
    assert [grpo.out_dir, grpo.seed, grpo.kl_beta] == ['out-3', 3, 1.0]


def test_every_experiment_is_understood(grpo):
    for path in Path('config').glob('grpo_*.py'):
        if 'plugins/hf.py' not in path.read_text():         # it needs transformers
            fresh(str(path))


@pytest.mark.parametrize('line', LINES.strip().splitlines())
def test_a_bad_line_of_data_is_named(line, file):
    good = '{"prompt": "1+1=", "answer": "2"}\n'
    with pytest.raises(Mistake, match='bad.jsonl, line 2: '):
        load(file('bad.jsonl', f'{good}{line}\n{good}'))


def test_records_that_look_like_a_mistake_are_said(file, capsys):
    pairs = [('prompt', 'answer'), *[(f'{i % 9}+1=', f'{i % 9}+1={i} ') for i in range(40)]]
    for name, more in (('a.py', ''), ('b.py', '[1:]'), ('c.py', '[1:10] * 3')):
        load(file(name, f'pairs = {pairs}{more}\ntexts = lambda: (pairs, pairs[-2:])\n'))
    load(file('d.py', "few = [('1', '2')] * 9\ntexts = lambda: ([('1' * 600, '2\\r')] + few, few)"))
    said = capsys.readouterr().out
    assert "a.py: the first record is {'answer': 'answer', 'prompt': 'prompt'}: is it a" in said
    assert "a.py: 9 prompts have several answers" in said
    assert "a.py: 42 of 43 records have a space at an end of their answer" in said
    assert "c.py: of 29 records only 9 differ" in said and 'b.py: of' not in said
    assert "b.py: each answer repeats its prompt" in said and 'a.py: each' not in said
    assert "d.py: the longest record has 602 characters, where others have 2" in said
    assert "d.py: a record has letters that nobody sees" in said


def test_a_dataset_without_answers_or_with_many_held_out_says_so(file, capsys):
    line = '{"prompt": "%s=", "response": "2"}\n'
    path = file('a.jsonl', ''.join(line % i for i in range(40)))
    load(path)
    said, _ = capsys.readouterr()
    assert f"{path}: no record has an 'answer'. There are also ['response']\n" in said
    path = file('b.py', 'texts = lambda: ([("1", "2")], [("1", "2"), ("3", "4")])')
    load(path)
    said, _ = capsys.readouterr()
    assert f'{path}: 1 records to learn from, and more that are held out, 2\n' in said
    path = file('c.jsonl', '')
    Path(path).write_bytes((line % 1).encode('utf-16'))
    with pytest.raises(Mistake, match='it is UTF-16'):
        load(path)


@pytest.mark.parametrize('values', WRONG.strip().splitlines())
def test_a_wrong_value_of_a_reward_names_the_reward(values, toy, file, tmp_path):
    path = file('mine.py', f"rewards = {{'mine': 1.0}}\ndef mine(texts):\n    return {values}")
    code, printed, error = run(*toy, path, f'--out_dir={tmp_path}/run',
                               '--generator=config/networks/generator_smoke.py')
    assert code == 1 and re.fullmatch(r'error: the reward mine\(\) returned .*\n', error)
    assert 'making' not in printed and not (tmp_path / 'run').exists()


def test_a_reward_is_any_callable_its_lists_are_copies_and_columns_may_be_missing(
        toy, file, tmp_path):
    train(toy, tmp_path / 'run', file('mine.py', MAY), '--dtype=bfloat16')
    step = log_of(tmp_path / 'run')[1]
    values = [step[f'mean_{name}'] for name in ('zeros', 'part', 'thing', 'wrapped', 'spoils')]
    assert len({*values}) == 1 and values[0] > 0 < step['mean_level_of'] < 1


def test_no_checkpoint_runs_code(tmp_path):
    torch.save({'args': os.mkdir}, tmp_path / 'ckpt.pt')        # a pickle could call it
    with pytest.raises(Mistake, match='Weights only'):
        load_checkpoint(tmp_path / 'ckpt.pt')


# ---- config files, plugins, recipes --------------------------------------------------------------
REFUSED = r"""
def advantagess(reward, scores): return reward -> nobody calls advantagess(), advantages
def polcy_loss(stats, rollout): pass -> nobody calls polcy_loss(), policy_loss
groop_size = 4 -> there is no knob groop_size, group_size, begins with _
exit() -> mine.py called exit(None)
rewards = {'mine': 1.0}; mine = lambda texts: exit(3) -> mine() called exit(3)
rewards = {'mine': 1.0}; mine = lambda txts: 0 -> 'txts', texts
rewards = {'mine': 1.0}; mine = lambda texts, answers=None: [1.0] * len(texts) -> 'answers', answer
rewards = {'learn': 1.0} -> learn is a name of train_grpo.py
verify = lambda text: exit(3) -> verify() called exit(3)
include('plugins/non.py') -> plugins/non.py, no such file
if True: include('plugins/top.py') -> include('plugins/top.py'), at the top level
Max_iters = 3 -> Max_iters, did you mean max_iters?
Advantages = lambda reward, scores: reward -> did you mean advantages?
del learning_rate -> learning_rate = None
def configure(script, words): pass -> replaces configure(), called already
KL_BETA = 0.5 -> KL_BETA, did you mean kl_beta?
import os; os.chdir("data") -> calls os.chdir(), its folder
args = type('Args', (), dict(max_iters=4))() -> no knob args
ARGS = type('Args', (), dict(max_iters=4, seed=3)) -> ARGS holds ['max_iters', 'seed'], of its own
CONFIG = {'max_iters': 4, 'seed': 3} -> CONFIG holds ['max_iters', 'seed'], of its own
import config.papers.dr_grpo as _x -> dr_grpo as _x:, include('config/papers/dr_grpo.py')
import sys; sys.path.append('config/papers'); import dr_grpo -> imports dr_grpo, include('FILE.py')
from math import * -> from math import *, name what it needs
from time import time -> time takes the place of a module
Task = 5 -> Task takes the place of a type
def kl_penalty(stats, rollout): return stats.kl -> (stats, rollout) is called with 1 arguments
def complete(policy, prompts, k): return 0 -> is called with 4 arguments, greedy
def advantages(reward, scores): reward = reward - reward.mean() -> () returns nothing, `return`
def learn(*words): global kl_beta; kl_beta = 0.5 -> learn() returns nothing
def advantages(reward, scores): return advantages(reward, scores) / 2 -> calls itself, `inner=adv
def learn(*words): kl_beta = 0.5; return {} -> learn() sets a ['kl_beta'] of its own, global kl_beta
max_iters: 2 -> max_iters: 2, write max_iters = VALUE
max_iters == 2 -> max_iters == 2, does nothing
def _f(): kl_beta == 0.5 -> kl_beta == 0.5, does nothing
def advantages(reward, scores, inner=policy_loss): return reward -> write inner=advantages
adv_norm = 'batch'; include('config/papers/dr_grpo.py') -> sets ['adv_norm'], include() first
include('none.py') -> mine.py: include('none.py'), begin in the folder
rewards = {'verify': 1.0, 'verify': 2.0} -> a dict has a key twice
include = [] -> replaces include()
n_layer = 2 -> there is no knob n_layer, pretrain.py
if __name__ == '__main__': max_iters = 2 -> is not executed, ['max_iters']
rewards = {'verify': 1.0}, -> rewards = ({'verify': 1.0},), a dict
CONFIG = {'a': {'max_iters': 4, 'other': 5}, 'seed': 3} -> CONFIG holds ['max_iters', 'seed']
class Config: max_iters = 4 -> Config holds ['max_iters'], of its own
class OtherTask(Task): pass -> nobody uses the class OtherTask, Task
include('data/hours.py') -> data/hours.py is a dataset, dataset = 'data/hours.py'
state = 5 -> state = 5, a dict
def get_texts(): return [], [] -> nobody calls get_texts(), texts
def verify(text): return '1' -> verify() returned '1', from 0.0 (wrong) to 1.0 (right)
class Task(Task): prompt_of = lambda self: 0 -> nobody calls Task.prompt_of(), prompts_of
def evaluate(a, b, c, k=4, inner=evaluate): return inner(a, b, c) -> does not pass ['k'] on
def collect(a, b, c, draw=0, inner=collect): return a, draw -> does not call its inner
rewards = {'mine': 1.0}; mine = lambda texts: texts.reverse() or [0.5, 0.5] -> the order of texts
wandb_project = 'True' -> expected a text
policy_loss = lambda a, b: 0; include('config/papers/cispo.py') -> include() first
rewards = {'short': 0.1}; Rewards = type('Rewards', (), {}) -> there is no short()
def _f(split): return split == 'test' -> split == 'test': `split` is 'train' or 'val'
def learn(a, b, c, d): c[0].select([]); return {} -> c[0].select([]), does nothing
reply = lambda completon: None; include('plugins/causal.py') -> reply() asks for 'completon', Near
"""


@pytest.mark.parametrize('case', REFUSED.strip().splitlines())
def test_a_mistake_in_a_config_file_is_one_line_before_networks_are_made(
        case, toy, file, tmp_path):
    code, said = case.split(' -> ')
    code, printed, error = run(*toy, '--rewards={"verify":1.0}', file('mine.py', code),
                               '--generator=config/networks/generator_smoke.py',
                               f'--out_dir={tmp_path}/run')
    assert code == 1 and re.fullmatch('error: .*\n', error)
    assert all(part in error for part in said.split(', '))
    assert 'making' not in printed and not (tmp_path / 'run').exists()


@pytest.mark.parametrize('code, said', [
    ('max_iters = 1', 'sets max_iters, and'), ('max_iters: int = 1', 'sets max_iters, and'),
    ('_a, (seed, _b) = 0, (1, 2)', 'sets seed, and'),
    ('def advantages(reward, scores): pass', 'has advantages(), and nobody calls it'),
    ('def my_reward(texts): pass', 'has my_reward(), and nobody calls it'),
    ('dataset = ""\nmax_iters = 1', 'sets max_iters: give it as a word'),
    ('verify = None\ndef verify(text): text == "1"', ': verify() returns nothing'),
    ('def score(text): pass\nseed_of = {x: score for x in "ab"}', '')])
def test_a_knob_or_a_function_of_a_script_in_a_dataset_is_refused(code, said, toy, file, tmp_path):
    dataset = file('mine.py', f'from data.arithmetic import texts, verify\n{code}\n')
    code, _, error = run(*toy, f'--dataset={dataset}', f'--out_dir={tmp_path}/run', '--max_iters=0')
    assert (code, error) == (0, '') if not said else (
        code == 1 and re.fullmatch(f'error: {re.escape(dataset)} ?{re.escape(said)}.*\n', error))


def test_a_dataset_that_is_another_one_in_each_process_is_refused(toy, file, tmp_path):
    dataset = file('mine.py', """
import os
from data.arithmetic import texts as _texts, verify
def texts():
    return [part[os.getpid() % 7::20] for part in _texts()]
""")
    words = [*toy, f'--dataset={dataset}', f'--out_dir={tmp_path}/run', '--max_iters=0',
             '--generator=config/networks/generator_smoke.py --max_iters=2 --n_layer=1']
    results = [run(*words) for _ in range(3)]           # the network is made by the first one
    assert any('learned other records than' in error for _, _, error in results)


def test_what_nobody_calls_or_asks_is_said(toy, file, tmp_path):
    kl = file('mine.py', 'kl_beta = 0.0\nkl_penalty = lambda stats: stats.kl\n'
              'verify = lambda text: 1.0\nmasks = lambda *words: 0')
    said = train(toy, tmp_path / 'run', kl, '--rewards={"verify":1.0}', '--judge=out/none.pt',
                 '--max_iters=0')
    assert f'{kl}: nobody needs kl_penalty() in this run\n' in said
    assert f"{kl}: nobody needs masks() in this run\n" in said
    assert f"{kl} brings verify(), in the place of the dataset's\n" in said
    assert "judge = out/none.pt: nobody asks it, because `rewards` has no 'judge'\n" in said


# what would change nothing, or another thing than was meant, and the line that says so
SLIPS = r'''
class _A:\n    def advantages(self, *words): pass -> has ['advantages'], without a class
def main():\n    global seed\n    seed = 0\nif __name__ == '__main__':\n    main() -> not executed
def advantages(reward, scores, adv_norm='none'): return reward -> adv_norm is a parameter
def complete(net, *more, greedy=False, inner=complete): return inner(net, *more) -> ['greedy']
def _make():\n    def advantages(reward, scores): return reward -> of its own, which replaces
for kl_beta in (0.0, 0.1): pass -> leaves the last value in ['kl_beta']
def _path(): return __file__ -> asks for __file__
from random import sample -> is called with 3 arguments: logits, k, greedy
import os; os.chdir('/') -> calls os.chdir()
'''


def test_a_file_is_made_of_what_it_imports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs('mine/part')                    # without an __init__.py
    Path('mine/a.py').write_text('import os, part.b\ndef f():\n    from c import x')
    Path('mine/part/b.py').write_text('from mine.part import d')
    for name in 'mine/part/d.py', 'c.py', 'e.py':
        Path(name).write_text('x = 1')
    assert [*map(str, modules_of('mine/a.py'))] == [
        'c.py', 'mine/a.py', 'mine/part/b.py', 'mine/part/d.py']


@pytest.mark.parametrize('case', SLIPS.strip().splitlines())
def test_what_changes_nothing_in_a_config_file_is_refused(case, file, grpo):
    code, said = case.split(' -> ')
    folder = os.getcwd()
    try:
        with pytest.raises(Mistake) as mistake:
            fresh(file('mine.py', code.replace('\\n', '\n')))
    finally:
        os.chdir(folder)
    assert all(part in str(mistake.value) for part in said.split(', ', 1))


def test_a_config_file_may_have_a_dataclass_and_a_helper_and_an_empty_one_is_named(
        file, grpo, capsys):
    fresh(file('mine.py', '''
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class _Short:
    limit: int
    def __call__(self, texts):
        return [float(len(clean(text)) < self.limit) for text in texts]
def clean(text):
    return text.strip()
short = _Short(5)
rewards = {'short': 1.0}
'''), file('empty.py', 'KL = 0.0'), '--kl_estimate=k3', '--kl_beta=0', '--clip_low=0.1',
        '--clip_high=1.5', '--warmup_iters=50', '--max_iters=50')
    said = capsys.readouterr().out
    assert 'empty.py changes nothing: it sets no knob, and defines no function\n' in said
    assert 'clean' not in said and 'did you mean' not in said
    assert 'kl_estimate = k3: nobody asks it, because kl_beta is 0\n' in said
    fresh(file('own.py', 'advantages = lambda reward, scores: reward'), '--adv_norm=batch')
    said_of_own = capsys.readouterr().out
    assert 'adv_norm = batch: nobody asks it, because own.py replaces advantages()' in said_of_own
    fresh('--adv_norm=batch', '--loss_norm=sequence', '--clip_low=0.1', '--epochs=2')
    assert capsys.readouterr().out == ''
    assert 'warmup_iters = 50: the run ends before its learning_rate is reached\n' in said
    assert 'clip_high = 1.5: ratios up to 2.5 are not clipped' in said
    assert 'clip_low = 0.1: nobody asks it, because a step has one update\n' in said
    fresh('config/papers/dr_grpo.py', 'config/grpo_guess.py')
    said = capsys.readouterr().out
    assert 'grpo_guess.py sets adv_norm, entropy_coef after config/papers/dr_grpo.py, and' in said
    with pytest.raises(Mistake, match='two experiments would be mixed'):
        fresh('config/grpo_guess.py', file('b.py', "include('config/grpo_think.py')"))
    with pytest.raises(Mistake, match='a.py and .*b.py both have _LIMIT: rename one'):
        fresh(file('a.py', '_LIMIT = 3\nkl_beta = 0.1'), file('b.py', '_LIMIT = 4\nkl_beta = 0'))


def test_a_function_gets_copies_and_has_to_look_at_the_completion():
    numbers = [[1, 2], [3]]
    columns = {'text': ['a', 'b'], 'numbers': numbers}
    for name, function in (('verify', lambda text, numbers: float(numbers.pop() > 1)),
                           ('mine', lambda texts, numbers: [float(x.pop()) for x in numbers])):
        values_of(name, function, columns, {})
        assert numbers == [[1, 2], [3]]
    with pytest.raises(Mistake, match='expected a list of 2 finite numbers, .* not .inf'):
        values_of('mine', lambda texts: [0.0, math.inf], columns, {})
    data = Dataset([{'prompt': '1', 'answer': '2'}] * 2, [], lambda prompt: 1.0, None, ())
    with pytest.raises(Mistake, match='asks for no `completion`'):
        try_rewards({'dataset': '', 'rewards': {'verify': 1.0}, 'Task': Task}, data)


# functions whose results would be broadcast, or fail later, and what is said
RETURNS = '''
def policy_loss(stats, rollout): return stats.logp -> policy_loss() returned a Tensor
def policy_loss(stats, rollout): return stats.logp.sum(), stats.kl -> policy_loss() returned ()
def policy_loss(stats, rollout): return stats.logp, stats.logp -> a second result with a gradient
def kl_penalty(stats): return stats.kl.mean() -> kl_penalty() returned ()
def kl_penalty(stats): return stats.kl.detach() -> kl_penalty() returned a tensor without a gradient
def token_weights(rollout): return rollout.advantage -> expected a weight for each token
def token_weights(rollout): return [rollout.advantage] * 2 -> expected a weight for each token
def token_weights(rollout): return (rollout.advantage,) * 2 -> a divisor of the shape
def sample(logits, k=1, greedy=False): return logits[:, :k] -> sample() returned torch.float
def sample(logits, k=1, greedy=False): return logits.argmax(1) -> sample() returned (
def advantages(reward, scores): return reward.mean(1) -> advantages() returned (
def advantages(reward, scores): return reward / 0 -> a number that is not finite
def score(rollout, *words): return {'reward': torch.zeros(4, 4)} -> score() returned, 'tokens'
def updates_of(rollouts): return rollouts -> updates_of() returned Rollouts
complete = lambda *_, inner=complete: replace(inner(*_), more={'x': [1]}) -> its x has 1 rows
complete = lambda a, b, k, greedy=0, inner=complete: inner(a, b, 4, greedy) -> returned 4 compl
def collect(*a, inner=collect): r = inner(*a); r[0][0].advantages = 1; return r -> no advantages
def collect(a, *b, inner=collect): state['x'] = a.policy.state_dict(); return inner(a, *b) -> clone
collect = lambda *more, inner=collect: inner(*more)[0] -> collect() returned a list: expected
def judge_scores(judge, texts): return [0.5] -> mine.py replaces judge_scores(). Ours: Return the
'''


@pytest.mark.parametrize('case', RETURNS.strip().splitlines())
def test_a_wrong_result_of_a_function_names_the_function(case, toy, file, tmp_path):
    code, said = case.split(' -> ')
    code_of_exit, _, error = run(*toy, file('mine.py', code), f'--out_dir={tmp_path}/run')
    assert code_of_exit == 1 and all(part in error for part in said.split(', '))
    assert error.startswith('error: ') or 'Ours: ' in said


def test_a_mean_without_keepdim_is_said_also_if_there_are_as_many_prompts_as_completions(
        toy, file, tmp_path):
    for code, n, m in (('mean(1)', 1, 0), ('mean(1, keepdim=True)', 0, 0), ('mean(0)', 0, 1)):
        mine = file('mine.py', f'advantages = lambda reward, scores: reward - reward.{code}')
        said = train([*toy, mine], tmp_path / f'{n}{m}', '--gradient_accumulation_steps=1')
        assert said.count('Does a mean(1) lack keepdim=True?') == n
        assert said.count('advantages() compares completions of different prompts') == m


def test_a_score_that_changes_after_it_was_used_is_said(toy, file, tmp_path):
    late = file('late.py', """
def collect(networks, task, step, *more, inner=collect):
    rollouts, scores = inner(networks, task, step, *more)
    scores['advantage'] = scores['advantage'] + (step > 2)
    return rollouts, scores
""")
    said = train([*toy, late], tmp_path / 'run')
    assert said.count("collect() has changed scores['advantage'] after it was used") == 1


def test_what_two_files_both_have_is_refused_unless_one_wraps_the_other(file, grpo):
    first = file('a.py', "rewards = {'_same': 1.0}\ndef _same(texts):\n    return [0.0]")
    fresh(first, file('b.py', 'def _same(texts, inner=_same):\n    return inner(texts)'))
    with pytest.raises(Mistake, match=r'a.py and .*c.py both have _same\(\): rename one'):
        fresh(first, file('c.py', 'def _same(texts):\n    return [1.0] * len(texts)'))


def test_a_reward_of_a_file_before_the_experiment_is_said_to_count_for_nothing(
        toy, file, tmp_path):
    mine = file('mine.py', "rewards = {'mine': 1.0}\nmine = lambda texts: [0.0] * len(texts)")
    later = file('later.py', "rewards = {'verify': 1.0}")
    said = train([toy[0], mine, later, *toy[1:]], tmp_path / 'run', '--max_iters=0')
    assert f'{mine} brings mine(), which has no weight in `rewards`: nobody calls it\n' in said


def test_a_file_that_is_no_text_is_named(file, tmp_path, toy):
    (tmp_path / 'mine.py').write_bytes('max_iters = 2'.encode('utf-16'))
    code, _, error = run(*toy, f'{tmp_path}/mine.py')
    assert code == 1 and error.startswith(f'error: {tmp_path}/mine.py is no Python file in UTF-8')


@pytest.mark.parametrize('name, value, expected', [
    ('adv_norm', "'Batch'", "'std' or 'batch'"), ('temperature', '0.0', 'a number, 0.001 or more'),
    ('group_size', '2.5', 'a whole number, 2 or more')])
def test_a_knob_that_a_file_changes_during_a_run_stays_in_its_range(name, value, expected, toy,
                                                                    file, tmp_path):
    mine = file('mine.py', f"""
def learn(networks, optimizers, rollouts, lr, inner=learn):
    global {name}
    metrics = inner(networks, optimizers, rollouts, lr)
    {name} = {value}
    return metrics
""")
    code, _, error = run(*toy, mine, f'--out_dir={tmp_path}/run')
    assert code == 1 and error.startswith(f"error: {name} = {value}: expected {expected}")


def test_a_knob_that_a_file_changes_during_a_run_may_be_a_number_of_numpy(toy, file, tmp_path):
    mine = file('mine.py', """
import numpy as np

def learn(networks, optimizers, rollouts, lr, inner=learn):
    global kl_beta
    kl_beta = np.interp(0.5, [0, 1], [0.1, 0.2])
    return inner(networks, optimizers, rollouts, lr)
""")
    train([*toy, mine], tmp_path / 'run')


def test_held_out_prompts_are_not_those_to_learn_from(toy, file, tmp_path):
    mine = file('mine.py', '''
class Task(Task):
    def prompts(self, split, n, low=0.2, high=0.6):
        return self.prompts_of(torch.arange(n), low, high)
''')
    code, _, error = run(*toy, mine, f'--out_dir={tmp_path}/run')
    assert code == 1 and error.startswith("error: Task.prompts('val', ...) returned records to")


def test_a_run_folder_that_would_write_nothing_is_refused(file, grpo):
    code = "class RunFolder(RunFolder):\n    def save(self, *more):\n        print('saving')\n"
    with pytest.raises(Mistake, match=r'RunFolder.save\(\) does not call super\(\).save\(\)'):
        fresh(file('mine.py', code))
    fresh(file('mine.py', code + '        super().save(*more)'))


def test_a_global_that_nobody_knows_is_refused(file, grpo):
    with pytest.raises(Mistake, match='global kl_betta: there is no kl_betta. Near: .*kl_beta'):
        fresh(file('mine.py', 'def _forget():\n    global kl_betta\n    kl_betta = 5.0\n'))
    fresh(file('mine2.py', '_times = 0\ndef _forget():\n    global _times, kl_beta\n'))


def test_home_is_known_in_words_and_config_files(file, grpo, monkeypatch):
    monkeypatch.setenv('HOME', '/home/me')
    fresh(file('mine.py', "out_dir = '$HOME/a'"), '--generator=~/g.pt')
    assert [grpo.out_dir, grpo.generator] == ['/home/me/a', '/home/me/g.pt']
    with pytest.raises(Mistake, match="out_dir = ' x': it begins or ends with a space"):
        fresh('--out_dir= x')


@pytest.mark.parametrize('name, value', [('RANK', '1'), ('WORLD_SIZE', '2'), ('RANK', 'x')])
def test_a_number_of_torchrun_without_torchrun_is_refused(name, value):
    env = {x: y for x, y in os.environ.items() if x not in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR')}
    done = subprocess.run([sys.executable, '-c', 'import plumbing.process'], capture_output=True,
                          env=env | {name: value}, text=True)
    assert re.fullmatch(f'error: the environment has {name}={value}, .*\n', done.stderr)


def test_an_include_that_is_not_executed_brings_nothing(file, grpo):
    fresh(file('mine.py', """
text = '''
include('plugins/causal.py')
'''
if False:
    include('plugins/passes.py')
""".replace('text', '_text')))
    assert grpo.Task.kind == 'fill' and not hasattr(grpo, 'n_fill_steps')


def test_a_plugin_of_your_own_brings_knobs_and_comes_before_config_files(file, grpo, tmp_path):
    (tmp_path / 'plugins').mkdir()
    mine = file('plugins/mine.py', 'my_share = 0.5\ndef helper(x):\n    return my_share * x\n')
    fresh(file('config.py', 'my_share = 0.25'), '--top_k=2', mine, 'plugins/top.py')
    assert [grpo.my_share, grpo.helper(8), grpo.top_k] == [0.25, 2.0, 2]
    with pytest.raises(Mistake, match='my_share = .x.: expected a number'):
        fresh(mine, '--my_share=x')


def test_a_config_file_is_a_module_of_its_own_name_and_can_import_its_neighbours(file, grpo):
    file('my_neighbour.py', 'SIZE = 8')
    fresh(file('mine.py', """
from my_neighbour import SIZE
group_size = SIZE
_names = __name__, __file__
if __name__ == '__main__':
    raise ValueError
"""))
    assert grpo.group_size == 8 and grpo.__name__ == 'train_grpo'
    assert grpo._names[0] == 'mine' and grpo._names[1].endswith('mine.py')


@pytest.mark.parametrize('name', ['text', 'completion', 'prompts', 'step', 'networks', 'ended'])
def test_a_column_whose_name_is_ours_is_refused(name, file):
    line = f'{{"prompt": "1+1=", "answer": "2", "{name}": 1, "held_out": %s}}\n'
    with pytest.raises(Mistake, match=f"rename its column .'{name}'."):
        load(file('mine.jsonl', 3 * line % ('false', 'true', 'true')))



STATES = {'np.float64': 'import numpy as np; state["mine"] = {"x": np.float64(1)}',
          'deque': 'import collections; state["mine"] = collections.deque()',
          'a function': 'state["mine"] = [print]', 'a generator': 'state["mine"] = iter([])'}


@pytest.mark.parametrize('kind', STATES)
def test_a_state_that_no_checkpoint_could_give_back_is_refused_at_step_0_by_its_name(
        kind, toy, file, tmp_path):
    code, printed, error = run(*toy, file('mine.py', STATES[kind]), f'--out_dir={tmp_path}/run')
    assert code == 1 and re.fullmatch(r"error: state\['mine'\] .*\n", error)
    assert 'step' not in printed


RECIPES = {
    'part.py': 'n_embd = 16', 'helper.py': 'N = 2', 'lines.txt': '1+1=,2\n' * 20,
    'other.txt': '1+1=,2\n' * 20,
    'recipe.py': "include('PART')\nmax_iters = 10",
    'data.py': """
from pathlib import Path
from helper import N
def texts():
    lines = (Path(__file__).parent / 'lines.txt').read_text().splitlines() * N
    return [[line.split(',') for line in lines]] * 2
"""}


@pytest.fixture
def recipe(file, tmp_path):
    """Return the paths of a recipe and of its dataset. Both are made of several files."""
    for name, text in RECIPES.items():
        file(name, text.replace('PART', f'{tmp_path}/part.py'))
    return f'{tmp_path}/recipe.py', f'{tmp_path}/data.py'


def name_of(path, dataset):
    """Return the file of a network, as a new process would name it."""
    load.cache_clear()
    sys.modules.pop('helper', None)
    return file_of(path, dataset)


def test_a_network_gets_another_name_by_an_edit_of_anything_of_which_it_is_made(recipe, tmp_path):
    """Of what is included, imported, or opened; and by other words of its recipe."""
    path, dataset = recipe
    names = [name_of(path, dataset)]
    assert name_of(path, dataset) == names[0]
    (tmp_path / 'other.txt').write_text('nobody reads this')
    assert name_of(path, dataset) == names[0]
    for name, text in (('part.py', 'n_embd = 32'), ('recipe.py', ''), ('helper.py', 'N = 3'),
                       ('lines.txt', '2+2=,4\n' * 20), ('data.py', RECIPES['data.py'] + '#')):
        (tmp_path / name).write_text(text)
        names.append(name_of(path, dataset))
    names += [name_of(f'{path} --seed=2', dataset), name_of(f'{path} --seed=3', dataset)]
    assert len({*names}) == len(names) == 8


def test_a_recipe_names_no_dataset_and_its_words_are_checked(recipe, tmp_path):
    path, dataset = recipe
    with pytest.raises(Mistake, match='there is no knob sed'):
        name_of(f'{path} --sed=2', dataset)
    (tmp_path / 'part.py').write_text("dataset = 'hours'")
    with pytest.raises(Mistake, match='recipe.py sets `dataset`'):
        name_of(path, dataset)


def test_the_words_of_a_recipe_make_another_network(toy, recipe, tmp_path):
    path, dataset = recipe
    parts = []
    for seed in (1, 2):
        train(toy, tmp_path / f'run-{seed}', f'--dataset={dataset}', '--rewards={"verify": 1.0}',
              '--kl_beta=0', '--max_iters=0', f'--generator={path} --seed={seed}')
        parts.append(load_checkpoint(tmp_path / f'run-{seed}/ckpt.pt'))
        with contextlib.suppress(FileNotFoundError):
            os.remove(parts[-1]['files'][f'{path} --seed={seed}'])
    assert not parts[0]['model']['embed.weight'].equal(parts[1]['model']['embed.weight'])
