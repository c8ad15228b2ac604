"""Words of the command line, config files, plugins, and functions of a user."""
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from conftest import ROOT, run
from plumbing.configurator import configure
from plumbing.datasets import load
from plumbing.networks import (
    file_of,
    hashes_of,
    load_checkpoint,
    load_network,
    make_networks,
    open_networks,
    paths_of,
    plan_of,
)

GOOD = '{"prompt": "1+1=", "answer": "2"}\n'
RECIPES = ['--generator=config/networks/generator_smoke.py',
           '--judge=config/networks/judge_smoke.py']
STARTS = {'REWARD': "rewards = {'mine': 1.0}\ndef mine(texts):\n    n = len(texts)\n    ",
          'WORLD': "include('plugins/causal.py')\ngenerator = judge\ndef reply(completion):\n    ",
          'VERIFY': 'def verify(text):\n    '}
# Words of a command line, or a config file, and a part of the line with which the run ends.
WORDS = """
--group_sise=2 -> there is no knob group_sise; similar: group_size
--n_fill_steps=3 -> there is no knob n_fill_steps; plugins/passes.py has it
--max_new_tokens=3 -> there is no knob max_new_tokens; plugins/causal.py has it
config/networks/judge_prose.py -> there is no knob kind; pretrain.py has it
grpo_smoke.py -> there is no file grpo_smoke.py; similar: config/grpo_smoke.py
group_sizes=2 -> group_sizes=2: there is no knob group_sizes; similar: group_size
--Group_size=2 -> there is no knob Group_size; similar: group_size
--group_size 2 -> --group_size: expected FILE.py or --name=value
--group_size=1 -> group_size = 1: expected a whole number from 2 to 1e+18, such as 16
--log_interval=0 -> log_interval = 0: expected a whole number from 1 to 1e+18, such as 50
--epochs=True -> epochs = True: expected a whole number from 1 to
--group_size=2.5 -> group_size = 2.5: expected a whole number from 2
--max_iters=1e3 -> max_iters = 1000.0: expected a whole number
--resume=true -> resume = 'true': expected True or False
--resume=1 -> resume = 1: expected True or False
--kl_beta=-0.1 -> kl_beta = -0.1: expected a number from 0 to 1e+18, such as 0.1
--kl_beta=1000e997 -> kl_beta = inf: expected a number
--temperature=0 -> temperature = 0.0: expected a number from 0.001 to
--learning_rate=1e999 -> learning_rate = inf: expected a number from 0
--seed=10000000000000000000000000 -> expected a whole number from 0 to 1e+18
--rewards=verify -> rewards = 'verify': expected a dict (in a command in quotes), such as {
--rewards={} -> rewards = {}: expected a reward
--adv_norm=sdt -> adv_norm = 'sdt': expected one of ('std', 'batch', 'none')
plugins/passes.py --fill_order=right -> expected one of ('random', 'left', 'confident',
config/grpo_smok.py -> there is no file config/grpo_smok.py; similar: config/grpo_smoke.py
--rewards={"verify":"a"} -> the weight of verify is 'a': expected a number
--rewards={"verify":1e999} -> the weight of verify is inf: expected a number
--rewards={"verfy":1.0} -> there is no verfy(), or its name is one of ours; similar: verify
--rewards={"learn":1.0} -> there is no learn(), or its name is one of ours
--rewards={"reward":1.0} -> there is no reward(), or its name is one of ours
plugins/causal.py --blank_kind=random -> blank_kind = 'random': expected one of ('answer',)
--gradient_accumulation_steps=3 --mini_batches=2 -> expected a multiple of mini_batches = 2
--generator=out/none.pt -> there is no network out/none.pt
--reference=out/mine.pt -> there is no network out/mine.pt
--generator= -> expected a network
--dataset=arithmetc -> no dataset data/arithmetc.py; similar: data/arithmetic.py
plugins/causal.py --max_new_tokens=9 --generator={0}/judge.pt --judge={0}/judge.pt -> texts have \
up to 15 tokens: the network can read 10
--eval_prompts=1 -> eval_prompts = 1: expected a whole number from 2 to 1e+18, such as 512
--blank_low=0.7 --blank_high=0.3 -> blank_low = 0.7 is above blank_high = 0.3
--blank_high=60 -> blank_high = 60.0: expected a number from 0 to 1, such as 0.6
--top_p=0 -> top_p = 0.0: expected a number from 1e-06 to 1
--generator={0}/judge.pt --judge=README.md -> README.md is no checkpoint of
--generator={0}/judge.pt --judge={0}/judge.pt -> needs plugins/causal.py
--generator={0}/generator.pt --judge={0}/judge.pt plugins/causal.py -> leave out plugins/causal.py
--generator={0}/judge.pt --judge={0}/judge.pt plugins/passes.py -> plugins/passes.py"""
TEXTS = """
group_sise = 2; include('plugins/causal.py') -> there is no knob group_sise; similar: group_size
include('config/kl/k1.py'); foo = 1; include('config/kl/k2.py') -> there is no knob foo
include('plugins/causl.py') -> there is no file plugins/causl.py; similar: plugins/causal.py
generator, judge = '{0}/generator.pt', '{0}/judge.pt'; load_network = \
lambda *x, inner=load_network: (inner(*x)[0].requires_grad_(False), {}) -> frozen
kl_beta = None -> mine.py: kl_beta = None: expected a number
def texts(): return [], [] -> mine.py is a dataset: expected --dataset=
rewards = {'verify': 1.0}; verify = None -> error: rewards: there is no verify()
rewards = {'verify': 1.0}; dataset = out_dir[:-3] + 'config.json'; open(dataset, 'w').write(\
'["1=", ""]\\n{"prompt": "1=", "held_out": true}\\n' * 2) -> error: rewards: there is no verify()
generator = '{0}/generator.pt'; judge = '{0}/judge.pt'; reply = lambda: None -> the dataset \
is a world: expected plugins/causal.py"""
# what functions of a file return, and a part of the line with which the first evaluation ends
RETURNS = """
rewards = {'mine': 1.0}; mine = lambda text: [1.0] -> asks for text: expected one of answer, compl
VERIFY pass -> reward verify: expected 16 finite numbers
WORLD return 1 -> error: reply() returned
WORLD return 0 -> error: reply() returned
WORLD return [] -> error: reply() returned
WORLD return ("", "False") -> error: reply() returned
WORLD return ("2", False, {}) -> error: reply() returned
advantages = lambda reward, scores: reward.mean(1) -> error: advantages() returned tensor
REWARD return None -> error: reward mine: expected 16 finite numbers
REWARD return [1.0] -> error: reward mine: expected 16 finite numbers
REWARD return 1.0 -> error: reward mine: expected 16 finite numbers
REWARD return "text" -> error: reward mine: expected 16 finite numbers
REWARD return [None] * n -> 16 finite numbers, one for each completion, not None
REWARD return [[1.0]] * n -> not [1.0] for completion 0:
REWARD return texts -> error: reward mine: expected 16 finite numbers
REWARD return [1e99] * n -> error: reward mine: expected 16 finite numbers
REWARD return [1j] * n -> error: reward mine: expected 16 finite numbers
REWARD return [0.5] * (n - 1) + [float("nan")] -> not nan for completion 15:
REWARD return [float("inf")] * n -> error: reward mine: expected 16 finite numbers"""
# What functions of a file do.
FAILS = """
REWARD 1 / 0
REWARD assert n == 7, 'not 7'
REWARD open('nowhere')
REWARD exit()
VERIFY raise SystemExit(0)
WORLD exit()"""
LINES = """
What?
["1+1="]
{"answer": "2"}
{"prompt": ""}
{"prompt": "1+1=", "answer": 2}
{"prompt": "1+1=", "held_out": null}
"ab"
7
{"prompt": "\\ud800"}
{"prompt": "1", "completion": 0}"""
RECORDS = """
def texts():
    records = [{'prompt': f'12+{i}0=', 'answer': '0', 'words': ['a']} for i in range(40)]
    return records[4:], records[:4]
"""
# rewards by the name of zeros
REWARDS = """zeros = count
zeros = lambda completions: count(completions)
zeros = functools.partial(count, times=1)
zeros = _Zeros("0").of
zeros = _Zeros("0")
zeros = functools.wraps(count)(lambda *args, **named: count(*args, **named))"""


def text_of(case):
    """Return the text of a file, which may begin with one of the STARTS."""
    start, _, rest = case.partition(' ')
    return STARTS[start] + rest if start in STARTS else case


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize('case', (WORDS + TEXTS + RETURNS).strip().splitlines())
def test_a_mistake_is_one_line_before_anything_is_made_or_when_a_function_returns_it(
        case, toy, folder, file, tmp_path):
    text, line = case.replace('{0}', str(folder)).split(' -> ')
    words = text.split() if case in WORDS else [file('mine.py', text_of(text))]
    recipes = [] if case in RETURNS else RECIPES
    code, said, error = run(*toy, *recipes, f'--out_dir={tmp_path}/run', *words)
    assert code == 1 and error.count('\n') == 1 and line in error
    if recipes:
        assert not {'$', '|'} & {*said}         # neither a command nor a number
        assert not {*os.listdir(tmp_path)} - {'mine.py', 'config.json', 'run', 'run.lock'}


@pytest.mark.parametrize('case', FAILS.strip().splitlines())
def test_an_exception_or_an_exit_in_a_function_of_a_file_has_its_traceback(
        case, toy, file, tmp_path):
    text = text_of(case)
    code, _, error = run(*toy, file('mine.py', text), f'--out_dir={tmp_path}/run')
    name, = re.findall(r'def (\w+)', text)
    assert code == 1 and re.match(rf'Traceback[^$]*mine.py", line \d, in {name}\n', error)
    assert not re.search('exit|Exit', text) or error.endswith(f'Error: {name}() called exit()\n')


# ---- a line of data ------------------------------------------------------------------------------


@pytest.mark.parametrize('line', LINES.strip().splitlines())
def test_a_bad_line_of_data_is_named_when_it_is_read(line, file):
    path = file('bad.jsonl', f'{GOOD}{line}\n{GOOD}')
    with pytest.raises(AssertionError, match='bad.jsonl, line 2: '):
        load(path)


# ---- rewards -------------------------------------------------------------------------------------


@pytest.mark.parametrize('zeros', REWARDS.splitlines())
def test_a_reward_may_be_any_callable_and_its_lists_are_copies(
        zeros, toy, grpo, file):
    path = file('mine.py', """
import functools
include('plugins/causal.py')
generator, rewards = judge, {'spoils': 0.0, 'verify': 0.0, 'zeros': 1.0}

def verify(words):
    assert words == ['a']
    return 0.25

def spoils(completions, words):
    assert (torch.full((1, 1), 257.0) @ torch.ones(1, 1)).item() == 257         # bfloat16 has none
    completions.sort()
    words.clear()
    return [0.0] * len(completions)

def count(completions, times=1):
    return [times * text.count('0') for text in completions]

@dataclass
class _Zeros:
    digit: str

    def __call__(self, completions):
        return self.of(completions)

    def of(self, completions):
        return [text.count(self.digit) for text in completions]

""" + zeros)
    data = file('data.py', RECORDS)
    _, data = grpo.read_words([*toy[1:], path, f'--dataset={data}', '--dtype=bfloat16'])
    networks, task = grpo.open_task(data)
    [r, _], scores = grpo.collect(networks, task, 0)
    counts = [text.count('0') for text in grpo.columns_of(r)['completion']]
    assert scores['verify'].unique() == 0.25    # not that of the checker of the dataset
    assert scores['zeros'][:4].flatten().tolist() == counts and len({*counts}) > 1


# ---- config files --------------------------------------------------------------------------------


def test_functions_that_replace_ours_or_are_new_are_named_and_nothing_else(grpo, file, capsys):
    """Not those of plugins, and each by the file that has it."""
    path = file('mine.py', """
import copy, functools
from dataclasses import replace
def advantages(reward, scores, inner=advantages):
    return inner(reward, scores)
include('config/kl/k3.py')
include('plugins/masks.py')
words, table = ['a', 'b'], torch.zeros(2)
def objectve(stats, r):
    return 0
def _helper():
    return 0
class Rollout(Rollout):
    pass
complete = lambda *words: None
log_probs = functools.cache(log_probs)
""")
    configure(vars(grpo), [path, 'plugins/passes.py', '--adv_norm=none'])
    assert capsys.readouterr().out.splitlines() == [
        'config/kl/k3.py replaces kl_penalty()',
        f'{path} replaces Rollout(), complete(), log_probs(), advantages()',
        f'{path} brings objectve()']


def test_a_file_that_changes_a_knob_of_an_earlier_file_says_so_and_no_other(grpo, file, capsys):
    inner = file('inner.py', "include('plugins/causal.py'); blank_kind = 'answer'; seed = 7")
    first = file('first.py', f"include({inner!r}); seed, kl_beta, min_lr = 8, 0.5, 0.0")
    second = file('second.py', "kl_beta, min_lr, seed, epochs = 0.25, 0.0, 9, 3")
    configure(vars(grpo), [first, '--seed=8', second])
    assert capsys.readouterr().out == (
        f'{second} sets kl_beta = 0.25, not 0.5 as before\n'
        f'{second} sets seed = 9, not 8 as before\n')


def test_words_act_from_left_to_right_a_file_once_and_a_second_configure_begins_anew(grpo, file):
    """Whole numbers become floats."""
    def look():
        return {name: repr(x) for name, x in vars(grpo).items() if name != 'include'}

    configure(vars(grpo), [])
    before = look()
    path = file('mine.py', """
group_size = batch_size = 4
rewards['verify'] = 2.0
state['times'] = state.get('times', 0) + 1
def advantages(reward, scores):
    return scores
""")
    link = path.replace('mine', 'link')
    os.symlink(path, link)
    other = file('other.py', f'include({path!r})\ninclude({os.path.relpath(path)!r})')
    configure(vars(grpo), ['--group_size=2', other, '--batch_size=2', link, 'plugins/passes.py',
                           '--kl_beta=1'])
    assert (grpo.group_size, grpo.batch_size, repr(grpo.kl_beta)) == (4, 2, '1.0')
    assert grpo.state == {'times': 1} and grpo.rewards['verify'] == 2.0
    configure(vars(grpo), [])
    assert look() == before


RUNS = {
    'a reward that compares the completions of a group': """
rewards = {'mine': 1.0}
def mine(prompts, texts, r):
    means = [texts[i:i + r.k].count(x) / prompts.count(prompts[i]) for i, x in enumerate(texts)]
    return [x / (len(texts) - 1) for x in means]
""",
    'another partial in the place of one of another file': """
import functools
include('FIRST')
rewards = {'mine': 1.0}
mine = functools.partial(mine.func, n=5)
""",
    'a column that only later records have': """
dataset = 'FIRST'[:-2] + 'jsonl'
_line = '{"prompt": "10+34=", "answer": "044", "level": 1, "held_out": %s}\\n'
open(dataset, 'w').write('["10+34=", "044"]\\n' + _line % 'false' + 2 * (_line % 'true'))
rewards = {'mine': 1.0}
def mine(texts, level):
    return [float(x or 0) for x in level]
""",
    'a loss that calculates with what is clipped': """
def objective(stats, r, inner=objective):
    losses, is_clipped = inner(stats, r)
    return losses * (1 - is_clipped), is_clipped.mean() + 0 * is_clipped
""",
    'blocks that are frozen after the optimizers were made': """
def make_optimizers(network, *more, inner=make_optimizers):
    optimizers = inner(network, *more)
    network.blocks.requires_grad_(False)
    return optimizers
"""}


@pytest.mark.parametrize('text', RUNS.values(), ids=RUNS)
def test_what_a_file_may_do_runs(text, toy, file, tmp_path):
    first = file('first.py', "import functools\ndef _mine(texts, n): return [n] * len(texts)\n"
                             "mine = functools.partial(_mine, n=1)")
    path = file('mine.py', text.replace('FIRST', str(first)))
    _, _, error = run(*toy, path, '--max_iters=2', f'--out_dir={tmp_path}/run')
    assert not error


def test_without_asserts_nothing_runs_and_a_console_that_lacks_a_character_ends_no_run():
    for words, said in (('-O', 'run without -O'), ('-X utf8=0', "\\xe9 ascii")):
        code = ("import sys; from plumbing.configurator import configure; "
                "configure({'__file__': ''}, []); print('\xe9', sys.stdout.encoding)")
        done = subprocess.run([sys.executable, *words.split(), '-c', code], cwd=ROOT, text=True,
                              capture_output=True, env=os.environ | {'PYTHONIOENCODING': 'ascii'})
        assert said in done.stdout + done.stderr


def test_state_under_another_name_is_kept(toy, file, tmp_path):
    path = file('mine.py', """
state['calls'] = 0
_same = state
rewards = {'mine': 1.0}
def mine(texts):
    _same['calls'] += 1
    return [0.0] * len(texts)
""")
    assert not run(*toy, path, '--max_iters=2', f'--out_dir={tmp_path}/run')[2]
    # 4 of the first evaluation (the last one is not saved), and 2 micro-steps in each of 2 steps.
    assert load_checkpoint(tmp_path / 'run' / 'ckpt.pt')['state'] == [{'calls': 8}]


def test_the_file_in_which_a_mistake_stands_is_named(toy, file):
    inner = file('inner.py', "group_sise = 2\ninclude('plugins/causal.py')")
    outer = file('outer.py', f"include('{inner}')")
    assert f'{inner}: there is no knob group_sise' in run(*toy, outer)[2]


def test_every_config_file_of_ours_is_understood(grpo):
    has_transformers = importlib.util.find_spec('transformers')
    for path in Path('config').rglob('grpo_*.py'):
        if has_transformers or 'plugins/hf.py' not in path.read_text():
            configure(vars(grpo), [str(path)])


def test_networks_that_an_experiment_will_make_fit(grpo):
    for name in ('config', 'labels', 'composite', 'checker', 'guess', 'order'):
        _, data = grpo.read_words([f'config/grpo_{name}.py'])
        paths = paths_of(vars(grpo)).values()
        policy, *others = [plan_of(path, grpo.dataset, 'cpu') for path in paths if path]
        assert all(x.tok.vocabulary == policy.tok.vocabulary for x in others)
        grpo.Task(data, policy.tok, grpo.blank_kind, policy)


# ---- networks that are missing -------------------------------------------------------------------


def test_a_network_is_made_if_it_is_missing_or_made_of_other_contents(
        folder, tmp_path, monkeypatch, capsys):
    """Times do not count. A resumed run takes a stale one as it is. What is there is opened before
    another one is made."""
    def missing(resume=False, **more):
        return open_networks({'policy': 'recipe.py'} | more, 'mine.jsonl', torch.device('cpu'),
                             load_network, as_they_are=resume).missing

    Path(tmp_path, 'pretrain.py').symlink_to(os.path.abspath('pretrain.py'))
    monkeypatch.chdir(tmp_path)
    os.mkdir('out')
    Path('mine.jsonl').write_text(''.join(f'{{"prompt": "{i}"}}\n' for i in range(99)))
    network, source = file_of('recipe.py', 'mine.jsonl'), Path('recipe.py')
    source.touch()
    Path('other.pt').touch()
    assert missing() == missing(resume=True) == {network: 'recipe.py'}
    with pytest.raises(SystemExit, match='is no checkpoint'):
        missing(judge='other.pt')
    saved = load_checkpoint(folder / 'generator.pt')
    assert 'config/networks/generator_smoke.py' in saved['sources']
    torch.save(saved | {'sources': hashes_of([source])}, network)
    os.utime(source, (4e9, 4e9))
    capsys.readouterr()
    assert not missing() and not capsys.readouterr().out
    source.write_text('# more')
    assert missing() == {network: 'recipe.py'} and not missing(resume=True)
    assert 'made anew: recipe.py has changed' in capsys.readouterr().out
    torch.save(saved | {'sources': {'nowhere.jsonl': ''}}, network)     # the dataset of a recipe
    assert not missing()


def test_each_recipe_and_dataset_has_a_network_of_its_own():
    assert file_of('r.py', 'a/b.jsonl') != file_of('r.py', 'a-b.jsonl')
    assert len(file_of('r.py', 99 * '\xe9/')) < 80


def test_a_run_ends_if_pretrain_has_failed_to_make_a_network(monkeypatch):
    popen = Mock(return_value=Mock(wait=lambda: 1))
    monkeypatch.setattr('subprocess.Popen', popen)
    with pytest.raises(SystemExit):
        make_networks({'out/n.pt': 'r.py'}, 'mine.jsonl', torch.device('cpu'))
    words = ['pretrain.py', '--dataset=mine.jsonl', '--device=cpu', 'r.py', '--out=out/n.pt']
    assert popen.call_args.args[0][1:] == words
