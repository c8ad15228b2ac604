"""Words of the command line, config files, and functions of a user."""
import os
import pickle
import re
from pathlib import Path

import pytest
import torch

from conftest import log_of, run, train
from plumbing.datasets import load
from plumbing.networks import load_checkpoint
from test_grpo import fresh

# words of a command line, and what the line says with which the run ends
MISTAKES = """
--group_sise=2 -> no knob group_sise, group_size
--top_p=0.9 -> no knob top_p, plugins/top.py
--group_size=2.5 -> group_size = 2.5, int
--blank_high=60 -> blank_high = 60
--temperature=0 -> temperature = 0
--adv_norm=sdt -> adv_norm = 'sdt', 'std'
config/grpo_smok.py -> config/grpo_smok.py
--generator=out/none.pt -> out/none.pt
--rewards={"verfy":1.0} -> rewards, verfy()
config/papers/gspo.py config/papers/cispo.py -> gspo.py and, cispo.py both replace objective()
config/papers/cispo.py config/papers/tis.py -> cispo.py and, tis.py both replace objective()
config/papers/rloo.py config/papers/d1.py -> rloo.py and, d1.py both replace kl_penalty()
config/papers/d1.py config/papers/unigrpo.py -> d1.py and, unigrpo.py both replace masks()
--out_dir={0} -> out_dir holds something else
--out_dir={0}/finished --generator={0}/finished --rewards={"verify":1.0} -> is in out_dir
--out_dir={0}/finished --rewards={"verify":1.0} plugins/causal.py -> plugins/causal.py
"""
LINES = r"""
What?
{"answer": "2"}
{"prompt": "1+1=", "answer": 2}
{"prompt": "1+1=", "held_out": null}
7
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

def spoils(texts, level):
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

def compare(prompts, texts, r):
    assert len({*prompts[:r.k]}) == 1
    return [texts[i:i + r.k].count(x) for i, x in enumerate(texts)]

def objective(stats, r, inner=objective):
    losses, is_clipped = inner(stats, r)
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


def test_words_act_from_left_to_right_plugins_before_all_others_and_a_file_once(
        file, grpo, capsys):
    mine = file('mine.py', """
group_size = batch_size = 4
state['times'] = state.get('times', 0) + 1
@torch.no_grad()
def complete(policy, prompts, k, greedy=False, inner=complete):
    return inner(policy, prompts, k, greedy)
def objectve(stats, r):
    return 0
""")
    other = file('other.py', f'include({mine!r})\ninclude({os.path.relpath(mine)!r})')
    fresh('--group_size=2', '--top_p=1', other, '--batch_size=2', mine, 'plugins/top.py',
          'plugins/passes.py', '--kl_beta=1')
    assert [grpo.group_size, grpo.batch_size, repr(grpo.kl_beta)] == [4, 2, '1.0']
    assert grpo.state == {'times': 1}
    inner = grpo.complete.__wrapped__.__defaults__[1]
    assert inner.__code__.co_filename == 'plugins/top.py'
    assert capsys.readouterr().out == f'{mine} replaces complete()\n{mine} brings objectve()\n'


def test_every_experiment_is_understood(grpo):
    for path in Path('config').glob('grpo_*.py'):
        if 'plugins/hf.py' not in path.read_text():         # it needs transformers
            fresh(str(path))


@pytest.mark.parametrize('line', LINES.strip().splitlines())
def test_a_bad_line_of_data_is_named(line, file):
    good = '{"prompt": "1+1=", "answer": "2"}\n'
    with pytest.raises(AssertionError, match='bad.jsonl, line 2: '):
        load(file('bad.jsonl', f'{good}{line}\n{good}'))


@pytest.mark.parametrize('values', WRONG.strip().splitlines())
def test_a_wrong_value_of_a_reward_names_the_reward(values, toy, file, tmp_path):
    path = file('mine.py', f"rewards = {{'mine': 1.0}}\ndef mine(texts):\n    return {values}")
    code, _, error = run(*toy, path, f'--out_dir={tmp_path}/run')
    assert code == 1 and error.endswith('in the reward mine\n')


def test_a_reward_is_any_callable_its_lists_are_copies_and_columns_may_be_missing(
        toy, file, tmp_path):
    train(toy, tmp_path / 'run', file('mine.py', MAY), '--dtype=bfloat16')
    step = log_of(tmp_path / 'run')[1]
    values = [step[f'mean_{name}'] for name in ('zeros', 'part', 'thing', 'wrapped', 'spoils')]
    assert len({*values}) == 1 and values[0] > 0 < step['mean_level_of'] < 1


def test_no_checkpoint_runs_code(tmp_path):
    torch.save({'args': os.mkdir}, tmp_path / 'ckpt.pt')        # a pickle could call it
    with pytest.raises(pickle.UnpicklingError, match='mkdir'):
        load_checkpoint(tmp_path / 'ckpt.pt')
