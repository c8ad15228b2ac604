"""extras: tiny.py against train_grpo.py, what a page shows, what compare makes and refuses, what
check finds."""
import json
import re
import runpy
import shutil
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import filelock
import pytest
import torch

from extras.page import page_of, read_lines
from runs import Process, finish, run
from test_grpo import fresh, prompts_of, tiny

# ---- tiny ----------------------------------------------------------------------------------------


def test_tiny_has_the_advantages_the_kl_and_the_loss_of_train_grpo(grpo):
    """At the last update of its second step."""
    code = Path('extras/tiny.py').read_text()
    x = ModuleType('tiny')
    exec(code.replace('range(1000)', 'range(30)').replace('range(241)', 'range(2)'), vars(x))
    grpo.adv_norm = 'none'
    A = grpo.advantages(x.reward.T, {}).T[..., None].expand_as(x.actions)       # (k, P, 6)
    kl = grpo.divergence(x.new.logits, x.ref.logits).expand_as(x.actions)       # (k, P, 6)
    blank = (x.prompts == x.BLANK).expand_as(x.actions)                         # (k, P, 6)
    stats = grpo.Stats(x.new.log_prob(x.actions)[blank], None, kl[blank], None)
    rollout = SimpleNamespace(advantage=A[blank], logp_old=x.logp_old[blank])
    losses, is_clipped = grpo.policy_loss(stats, rollout)
    assert is_clipped.any()
    torch.testing.assert_close(x.loss, (losses + 0.01 * stats.kl).mean())


# ---- page ----------------------------------------------------------------------------------------
HOSTILE = '</script><b onclick="x()"> & \u2028 \U0001f600 <!-- DATA'


def test_a_page_has_all_numbers_and_completions_and_no_text_ends_its_script(finished, tmp_path):
    """Also HTML that the policy wrote, and a line that is being written."""
    folder = shutil.copytree(finished, tmp_path / 'hostile')
    samples = read_lines(folder / 'samples.jsonl')
    samples.append(samples[-1] | {'completion': HOSTILE})
    with open(folder / 'samples.jsonl', 'a') as file:
        file.write(json.dumps(samples[-1]) + '\n{"st')
    data, _ = re.findall('(?s)<script[^>]*>(.*?)</script>', page_of([str(folder)]))
    shown, = json.loads(data)['runs']
    assert shown['log'] == read_lines(folder / 'log.jsonl') and shown['samples'] == samples


# ---- what is no run of the right kind ------------------------------------------------------------
@pytest.mark.parametrize('words', [
    'page.py {0}/none', 'export.py {0}/none out/x', 'export.py {0}/finished out/x',
    'export.py {0}/finished {0}', 'pictures.py curve {0}/none'])
def test_a_run_that_does_not_fit_is_refused_in_one_line(words, finished, folder):
    script, *words = words.replace('{0}', str(folder)).split()
    code, printed, error = run(f'extras/{script}', *words)
    assert code == 1 and not printed and re.fullmatch('error: .*\n', error), error


def test_a_picture_lies_beside_its_run_and_not_in_the_docs(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / 'run')
    before = Path('docs/assets/curve.png').read_bytes()
    assert finish('extras/pictures.py', 'curve', str(folder)) == f'wrote {folder}/curve.png\n'
    assert (folder / 'curve.png').exists()
    assert Path('docs/assets/curve.png').read_bytes() == before
    assert 'python -m extras.pictures guess out-guess' in run('extras/pictures.py')[2]


# ---- compare -------------------------------------------------------------------------------------
@pytest.mark.parametrize('words', [
    '--seeds=1||--group_size=2', '|--eval_prompts=4', '|--dataset=arithmetic', '|--blank_high=0.3',
    '|--blank_low=0.5', '--goal=eval/reward||--rewards={"judge": 2.0}', '|mine.py',
    '--goal=eval/pass@4||mine.py', '|--nope=1'])
def test_runs_that_cannot_be_compared_are_refused(words, toy, file, tmp_path):
    """mine.py has another checker."""
    mine = file('mine.py', 'def verify(text):\n    return 1.0\n')
    code, _, error = run('extras/compare.py', f'--out_dir={tmp_path}/study',
                         f"--words={' '.join(toy[1:])}", *words.replace('mine.py', mine).split('|'))
    assert code == 1 and re.fullmatch('error: .*(held-out|two or more|no knob).*\n', error), error
    assert not (tmp_path / 'study').exists()    # before the first run


def test_a_comparison_says_how_far_it_is_and_keeps_what_is_done_until_a_file_changes(
        toy, file, tmp_path):
    reward = file('mine.py', 'rewards = {"mine": 1.0}\nmine = lambda texts: [1.0] * len(texts)')
    words = ['extras/compare.py', f"--words={' '.join(toy[1:])} {reward} --max_iters=2", '',
             f'--out_dir={tmp_path}/study', '--jobs=2']
    assert re.findall(r'\d of \d:', finish(*words, '--seeds=1,2')) == ['1 of 2:', '2 of 2:']
    assert re.findall(r'\d of \d:', finish(*words, '--seeds=1,2,3')) == ['3 of 3:']
    with open(reward, 'a') as other:
        other.write(' # edited')
    assert re.findall(r'\d of \d:', finish(*words, '--seeds=1,3')) == ['1 of 2:', '2 of 2:']


@pytest.mark.parametrize('words, said', [([], 'python -m extras.compare --seeds=1,2,3 config/'),
                                         (['--seed=1'], 'seeds are --seeds=1,2,3'),
                                         (['--jobs=x', ''], 'jobs = '),
                                         (['--jobs=0', ''], 'jobs = 0: expected'),
                                         (['config/grpo_smoke.py', '--kl_beta=0'], 'Quotes'),
                                         (["'"], 'No closing quotation')])
def test_a_wrong_word_of_a_comparison_is_one_line(words, said):
    code, printed, error = run('extras/compare.py', *words)
    assert code == 1 and not printed and said in error and re.fullmatch('error: .*\n', error)


def test_a_dict_with_spaces_is_one_word_of_a_command():
    words_of = runpy.run_module('extras.compare')['words_of']
    for rewards in ("--rewards={'judge': 1.0, 'verify': 1.0}",
                    '''--rewards="{'judge': 1.0, 'verify': 1.0}"'''):
        assert words_of(f"a.py {rewards} --generator='my {{seed}}.pt'", '3') == [
            'a.py', "--rewards={'judge': 1.0, 'verify': 1.0}", '--generator=my 3.pt', '--seed=3']


def test_a_comparison_that_is_stopped_leaves_no_run_behind(toy, tmp_path):
    process = Process('extras/compare.py', f"--words={' '.join(toy[1:])} --max_iters=100000", '',
                      f'--out_dir={tmp_path}/study', '--jobs=2')
    while len([*tmp_path.glob('study/.*.lock')]) < 2:    # each run that is alive has its own
        time.sleep(0.1)
    process.ranks[0].terminate()
    assert process.wait()[0] == 143
    for lock in tmp_path.glob('study/.*.lock'):
        filelock.FileLock(lock).acquire(timeout=5)


ENDS = {'a': (0.1, 0.5, 0.9), 'b': (0.2, 0.8, 1.1), 'c': (0.2, 0.6, 1.0), 'd': (0.2, 0.601, 1.0)}


def test_differences_are_of_pairs_of_seeds_and_noise_and_equal_differences_get_no_star(capsys):
    report = runpy.run_module('extras.compare')['report']
    report({name: [{0: 0.0, 100: end} for end in ends] for name, ends in ENDS.items()})
    # 0.1, 0.3, 0.2: their mean, and their standard deviation 0.1 / sqrt(3); 0.1 three times
    text = capsys.readouterr().out
    ends = re.findall(r'minus the first.* (\S+ \+- \S+) *$', text, re.MULTILINE)
    assert ends == ['0.2000 +- 0.0577', '0.1000 +- 0.0000', '0.1003 +- 0.0003*']


# ---- check ---------------------------------------------------------------------------------------
FILES = {'world': """
import itertools
count = itertools.count()
def reply(completion, secret='7'):
    return TEXT
def verify(sampled, secret):
    return float(secret in sampled)
texts = lambda: [[{'prompt': ':', 'answer': f'1!{s}=', 'secret': s} for s in part]
                 for part in ('0123456789' * 9, '0123456789')]
""", 'reward': """
rewards = {'mine': 1.0}
_seen = []
def mine(prompts, texts):
    _seen.extend(texts)
    return [TEXT for i, text in enumerate(texts)]
""", 'unnamed': """
def mine(texts):
    return [TEXT for text in texts]
""", 'memory': """
rewards = {'mine': 1.0}
def mine(texts):
    seen = state.setdefault('seen', TEXT)
    seen += texts
    return [float(len(seen))] * len(texts)
""", 'advantages': """
_seen = []
def advantages(reward, scores):
    return TEXT
""", 'loss': """
def policy_loss(stats, rollout, inner=policy_loss):
    losses, clipped = inner(stats, rollout)
    return TEXT
""", 'records': """
import random
pairs = [(f'{i}=', f'{i}') for i in range(99)]
def texts():
    return TEXT
""", 'replay': """
_old = []
def collect(networks, task, step, inner=collect):
    rollouts, scores = inner(networks, task, step)
    for rollout in rollouts:
        rollout.logp_old = log_probs_of(networks.policy, rollout)
    both = rollouts + _old
    TEXT
    return both, scores
""", 'frozen': """
reference = 'generator'
def learn(networks, optimizers, rollouts, lr, inner=learn):
    metrics = inner(networks, optimizers, rollouts, lr)
    with torch.no_grad():
        TEXT
    return metrics
"""}
# a small dataset for the files that are none
SMALL = """
def texts():
    pairs = [(f'{i}+1=', f'{i + 1}') for i in range(99)]
    return pairs[:90], pairs[90:]
"""
# words of what is found, and not of a file that is right
BAD = ['another process', 'taken again', 'not finite', "state['old']", 'reference has changed',
       'judge has changed', 'less likely: is a sign wrong']
WORDS = [*BAD, 'is called again', 'another order', 'nobody calls it', 'mean: -']
# a file, what stands where TEXT is, and what is found
FOUND = """
world: ('=', True) if completion[-1] == secret else '!' ->
world: '!='[next(count) % 2] -> taken again
reward: float(text.count('1')) ->
reward: float(texts.count(text)) ->
reward: float(texts[i - 1] == text) -> another order
reward: float(len(_seen)) -> is called again, another order
unnamed: 1.0 -> nobody calls it
memory: [] ->
records: random.sample(pairs, 90), pairs[90:] ->
records: [*{*pairs[:90]}], pairs[90:] -> another process
records: pairs[:90], pairs[90:] ->
advantages: reward - reward.mean(1, keepdim=True) ->
advantages: reward * (_seen.append(1) or len(_seen)) -> taken again
advantages: reward * (state.update(n=state.get('n', 0) + 1) or state['n']) ->
advantages: (reward - reward.mean(1, keepdim=True)) / reward.std(1, keepdim=True) -> not finite
loss: (-losses, clipped) -> less likely: is a sign wrong, mean: -
loss: (torch.rand_like(losses) * losses, clipped) -> taken again
replay: _old[:] = rollouts -> taken again
replay: state['old'] = rollouts -> state['old']
frozen: networks.reference.head.weight += 0 * networks.policy.head.weight ->
frozen: networks.reference.head.weight.lerp_(networks.policy.head.weight, 0.1) -> reference has \
changed
frozen: networks.judge.head.weight += 1 -> judge has changed"""


@pytest.mark.parametrize('case', FOUND.strip().splitlines())
def test_what_is_silently_wrong_is_found_and_nothing_in_a_file_that_is_right(case, file):
    start, _, wrong = case.partition('->')
    name, _, text = start.partition(': ')
    small = f"dataset = '{file('small.py', SMALL)}'"
    mine = file('mine.py', small + FILES[name].replace('TEXT', text))
    code, *texts = run('extras/check.py', mine)
    assert ', '.join(x for x in WORDS if x in ''.join(texts)) == wrong.strip(), texts
    assert code == any(x in wrong for x in BAD)


def test_the_words_of_a_check_are_those_of_a_run(file):
    code, printed, error = run(
        'extras/check.py', 'config/grpo_pairs.py', f"--dataset={file('small.py', SMALL)}",
        file('mine.py', "rewards = {'mine': 1.0}\nmine = lambda texts: [1.0] * len(texts)"))
    assert code == 0, error
    assert 'mine is 1.000 for texts of the data' in printed and 'above 0: good' in printed
    assert 'verify is 1.000' in printed and 'share of right answers in what' in printed
    code, _, error = run('extras/check.py', 'config/grpo_pairs.py', '--dataset=none.jsonl')
    assert code == 1 and error == (
        "error: dataset = 'none.jsonl': there is no file none.jsonl. (Paths begin in the folder of "
        "train_grpo.py)\n")


@pytest.mark.parametrize('kind', ['fill', 'causal', 'world'])
def test_a_check_scores_what_the_policy_wrote_and_not_the_words_of_a_world(kind, grpo):
    """rollout_of() finds the table of complete() again, from the texts alone."""
    from extras.check import rollout_of

    def reply(completion):
        if completion.endswith('c'):
            return 'b', len(completion) > 3
        return 'bc' if len(completion) % 4 == 1 else None

    if kind == 'fill':
        prompts, policy = prompts_of('a_b_', 'b__a'), tiny()
    else:
        fresh('plugins/causal.py')
        prompts = prompts_of('a=bbcc', 'bca=b', reply=reply if kind == 'world' else None)
        policy = tiny('causal')
    rollout = grpo.complete(policy, prompts, 20)
    again = rollout_of(prompts, 20, rollout.texts)
    table = {*zip(rollout.text_of.tolist(), rollout.position.tolist())}
    assert {*zip(again.text_of.tolist(), again.position.tolist())} == table
    assert len(again.text_of) == len(table)
    n_text = (rollout.texts != policy.pad_id)[prompts.blank.repeat_interleave(20, 0)].sum()
    assert (len(table) < n_text) == (kind == 'world')


# ---- benchmark -----------------------------------------------------------------------------------
def test_a_benchmark_says_of_which_sizes_its_ratio_is():
    text = finish('extras/benchmark.py', '--n_steps=3', '--batch_size=2', '--length=5',
                  '--dtype=bfloat16', '--device=cpu')
    assert '2 prompts x 16 completions of 5 letters, bfloat16 on cpu: a step takes' in text
