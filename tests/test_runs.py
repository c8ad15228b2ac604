"""Runs: kill and resume, signals, ranks, machines, folders, faults, and what a run writes."""
import json
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest
import torch

from judge import judge_scores
from model import GPT
from plumbing.networks import (
    file_of,
    load_checkpoint,
    load_network,
    make_networks,
    save_network,
)
from plumbing.process import Mistake
from plumbing.report import verdict_of
from runs import (
    CPU,
    EQUATIONS,
    ROOT,
    TOY,
    Child,
    Process,
    assert_same,
    checkpoint_of,
    finish,
    log_of,
    run,
    train,
)
from tasks import make_tokenizer

KINDS = {
    'one pass': """
include('plugins/top.py')
include('config/papers/cispo.py')
rewards = {'judge': 1.0, 'verify': 0.5}
epochs, mini_batches, top_p, kl_beta = 2, 2, 0.9, 0.1
""",
    'a learned order': """
include('plugins/passes.py')
fill_order, n_fill_steps, optimizer = 'learned', 3, 'adamw'
""",
    'an estimate': """
include('config/papers/d1.py')
epochs = 2
""",
    'a world, state, and frozen weights': """
import os
include('plugins/causal.py')
include('plugins/watch.py')
generator = judge
rewards['calls'] = 1.0
_same = state

def calls(texts):
    _same.setdefault('calls', []).append(len(texts))
    return len(texts) * [len(state['calls'])]

def reply(completion):
    return '+' if len(completion) == 1 else None

def learn(networks, optimizers, rollouts, lr, inner=learn):
    return inner(networks, optimizers, rollouts, lr / len(state['calls']))

def make_optimizers(network, name, inner=make_optimizers):
    if not os.path.exists(f'{out_dir}/ckpt.pt'):
        state['frozen'] = 1
    network.blocks[:state['frozen']].requires_grad_(False)
    return inner(network, name)
"""}
# A reward that needs other processes. In step 2 signals come, Ctrl-C to these, too.
POOL = """
import multiprocessing, os
rewards = {{'zeros': 1.0}}
_signals = {}
def _zeros(text):
    return float(text.count('0'))
_pool = multiprocessing.get_context('fork').Pool(2)
def zeros(completions, step, split):
    while split == 'train' and step == 2 and _signals and not resume:
        for process in multiprocessing.active_children():
            os.kill(process.pid, 2)
            assert os.getpgid(process.pid) != os.getpgid(0)     # SIGTERM to the group is not theirs
        os.kill(os.getpid(), _signals.pop(0))
    return _pool.map(_zeros, completions)
"""
# The last rank gets SIGTERM in step 2.
SIGNAL = """
import os
def collect(networks, task, step, inner=collect):
    if step == 2 and devices.RANK == devices.N_RANKS - 1 and not resume:
        os.kill(os.getpid(), 15)
    return inner(networks, task, step)
"""
ZEROS = """
rewards = {'zeros': 1.0}
def zeros(**columns):
    return [float(text.count('0')) for text in columns['completions']]
"""
# files from which a network comes
SOURCES = """config/networks/judge_classifier.py config/networks/classifier.py mine.py model.py
config/networks/generator_arithmetic.py data/arithmetic.py pretrain.py""".split()
# Each rank runs in a folder of its own.
ELSEWHERE = """
import os, runpy, sys
tree = os.path.join(os.path.dirname(__file__), os.environ['RANK'])
os.chdir(tree)
sys.path.insert(0, tree)
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name='__main__')
"""
# more words of a run that goes on, the knobs that it names, and its line to beat
CHANGES = """
 ->  -> old
--max_iters=2 --seed=2 -> max_iters seed -> old
--temperature=0.5 -> temperature -> new
plugins/top.py --top_p=0.9 -> top_k top_p -> new
"""
FAULTS = {
    'Traceback[^$]*AssertionError: enforce fail\n': """
import torch
write = torch.save
def half(saved, file):
    write(saved, file)
    if type(saved) is dict and saved.get('step') == 4:
        file.truncate(1000)
        assert 0, 'enforce fail'
torch.save = half
""",
    'error: the gradient is not finite.*\n': """
def collect(networks, task, step, inner=collect):
    rollouts, scores = inner(networks, task, step)
    if step == 3:
        rollouts[0].advantage[:] = float('nan')
    return rollouts, scores
""",
    'error: kl_penalty.. returned a tensor without a gradient.*\n': """
_learned = []
def learn(networks, optimizers, rollouts, lr, inner=learn):
    _learned.append(lr)
    return inner(networks, optimizers, rollouts, lr)
def kl_penalty(stats, inner=kl_penalty):
    kl = inner(stats)
    return kl if len(_learned) < 4 else kl.detach()
""",
    r'error: learn\(\) returned None: .*\n': """
_learned = []
def learn(networks, optimizers, rollouts, lr, inner=learn):
    _learned.append(lr)
    metrics = inner(networks, optimizers, rollouts, lr)
    return metrics if len(_learned) < 5 else None
""",
    r'Traceback[^$]*mine.py", line \d+, in verify\n[^$]*Error: no\nin the reward verify\(\)\n': """
from data.arithmetic import verify as _verify
_steps = [0]
def evaluate(networks, task, step, inner=evaluate):
    _steps.append(step)
    return inner(networks, task, step)
def verify(text):
    assert _steps[-1] < 4, 'no'
    return _verify(text)
""",
    r'error: verify\(\) returned .*: expected a number from 0.0 \(wrong\) to 1.0 .*\n': """
from data.arithmetic import verify as _verify
_steps = [0]
def evaluate(networks, task, step, inner=evaluate):
    _steps.append(step)
    return inner(networks, task, step)
def verify(text):
    return _verify(text) if _steps[-1] < 4 else float('nan')
""",
    r'error: verify\(\) called exit\(3\)\n': """
from data.arithmetic import verify as _verify
_steps = [0]
def evaluate(networks, task, step, inner=evaluate):
    _steps.append(step)
    return inner(networks, task, step)
def verify(text):
    return _verify(text) if _steps[-1] < 4 else exit(3)
"""}
# It makes no network. One process holds a lock until it ends, and the other one fails then.
PRETRAIN = """
import os, sys, time
import filelock
lock = filelock.FileLock('lock')
if 'other.py' in sys.argv:
    lock.acquire()
while 'other.py' in sys.argv or not os.path.exists('lock'):
    time.sleep(0.01)
sys.exit('failed')
"""
# A recipe whose pretraining holds a lock until it ends.
LOCKED = """
import os
import filelock
max_iters = 1_000_000
if 'PRETRAIN_STEPS' in os.environ:
    LOCK = filelock.FileLock(f'{__file__}.lock')
    LOCK.acquire()
"""
WANDB = """
import json, sys
id = 'theirs'
def init(id, resume, **more):
    log({'id': id}, resume)
    return sys.modules['wandb']
def Table(columns, rows):
    return [columns, *rows]
def log(numbers, step):
    with open(__file__ + '.log', 'a') as file:
        print(json.dumps({'step': step} | numbers), file=file)
"""


# ---- kill and resume -----------------------------------------------------------------------------


@pytest.mark.parametrize('kind', KINDS)
def test_a_run_that_is_killed_at_random_moments_and_resumed_ends_like_one_that_was_not(
        kind, toy, tmp_path, file):
    words = [*toy, file('kind.py', KINDS[kind]), '--resume=True']
    for step in (2, 4):
        process = Process(*words, f'--out_dir={tmp_path}/parts')
        process.wait_for(f'step {step:5}')      # of an evaluation; then it saves
        time.sleep(random.uniform(0, 0.05))
        process.ranks[0].kill()
        process.wait()
        with open(tmp_path / 'parts' / 'log.jsonl', 'a') as log:
            log.write('{"st')                   # as if it was killed while it wrote
    for name in ('parts', 'whole'):
        train(words, tmp_path / name)
    assert_same(tmp_path / 'parts', tmp_path / 'whole')
    assert log_of(tmp_path / 'whole')[-2]['kl'] > 1e-6      # it has moved


@pytest.mark.parametrize('signals, code, step', [([2], 0, 3), ([15], 0, 3), ([2, 15], 1, 2)])
def test_a_signal_lets_the_step_end_and_save_and_the_second_one_ends_the_run_at_once(
        signals, code, step, toy, tmp_path, file):
    words = [*toy, file('pool.py', POOL.format(signals)), '--eval_interval=2']
    assert run(*words, f'--out_dir={tmp_path}/parts')[0] == code
    assert checkpoint_of(tmp_path / 'parts')['step'] == step
    for name in ('parts', 'whole'):
        train(words, tmp_path / name, '--resume=True')
    assert_same(tmp_path / 'parts', tmp_path / 'whole')


@pytest.mark.parametrize('change', CHANGES.strip('\n').splitlines())
def test_a_run_that_goes_on_names_the_knobs_that_differ_and_may_begin_a_new_line_to_beat(
        change, toy, file, tmp_path):
    words, names, line = change.split(' -> ')
    toy = [*toy, file('zeros.py', ZEROS), '--max_iters=1', '--resume=True']
    train(toy, tmp_path / 'run')
    printed = train(toy, tmp_path / 'run', *words.split())
    said, = re.findall('resumed at step 1(.*)', printed)
    assert [x for x in re.findall(r'; (\w+): ', said) if x != 'files'] == names.split()
    assert ('files' in said) == ('.py' in change)
    first, *_, last = log_of(tmp_path / 'run')
    lines = {'old': first['line to beat'], 'new': max(last['reward'], last['greedy'])}
    assert last['line to beat'] == lines[line] and lines['old'] != lines['new']


@pytest.mark.parametrize('fault', FAULTS)
def test_a_fault_ends_a_run_and_its_last_checkpoint_stands(fault, toy, finished, tmp_path, file):
    words = [*toy, '--eval_interval=2']
    code, _, error = run(*words, file('mine.py', FAULTS[fault]), f'--out_dir={tmp_path}/run')
    assert code == 1 and re.fullmatch(fault, error)
    # A run saves itself before it evaluates.
    assert checkpoint_of(tmp_path / 'run')['step'] == (4 if '\\(' in fault else 2)
    train(words, tmp_path / 'run', '--resume=True')
    assert_same(tmp_path / 'run', finished)


def test_a_resumed_run_with_fewer_steps_than_it_has_taken_is_refused_and_keeps_its_logs(
        toy, tmp_path):
    train(toy, tmp_path / 'run', '--max_iters=4')
    before = {path.name: path.read_bytes() for path in (tmp_path / 'run').iterdir()}
    code, _, error = run(*toy, f'--out_dir={tmp_path}/run', '--max_iters=2', '--resume=True')
    assert code == 1 and re.fullmatch('error: .* 4 steps already, and max_iters = 2\n', error)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / 'run').iterdir()}


def test_the_folder_of_a_run_that_failed_before_its_first_checkpoint_is_taken_again(
        toy, finished, tmp_path, file):
    code, *_ = run(*toy, file('mine.py', 'state["mine"] = print'), f'--out_dir={tmp_path}/run')
    assert code == 1 and (tmp_path / 'run/log.jsonl').exists()
    train(toy, tmp_path / 'run', '--eval_interval=2')
    assert not (tmp_path / 'run-1').exists()
    assert_same(tmp_path / 'run', finished)


def test_an_older_checkpoint_is_moved_aside_also_if_its_log_is_gone(toy, finished, tmp_path):
    shutil.copytree(finished, tmp_path / 'run')
    older = (tmp_path / 'run/ckpt.pt').read_bytes()
    for name in ('log.jsonl', 'config.json'):
        os.remove(tmp_path / 'run' / name)
    (tmp_path / 'run-1').symlink_to('nowhere')
    train(toy, tmp_path / 'run')
    assert (tmp_path / 'run-2/ckpt.pt').read_bytes() == older


def test_a_run_that_goes_on_with_another_knob_is_not_compared_with_its_own_end(toy, tmp_path):
    train(toy, tmp_path / 'run', '--max_iters=1')
    train(toy, tmp_path / 'run', '--max_iters=4', '--eval_interval=100', '--kl_beta=0.2',
          '--resume=True')
    evaluations = [line for line in log_of(tmp_path / 'run') if 'line to beat' in line]
    assert [line['step'] for line in evaluations] == [0, 1, 4]
    assert evaluations[1]['line to beat'] == evaluations[2]['line to beat']


def test_a_run_that_goes_on_with_other_files_says_so_and_sets_a_new_line(toy, file, tmp_path):
    text = file('text.txt', '0')
    code = ZEROS.replace("'0'", '_letter') + f'_letter = open({text!r}).read()\n'
    words = [*toy, file('mine.py', code)]
    train(words, tmp_path / 'run', '--max_iters=1')
    file('text.txt', '1')
    file('mine.py', code + '# a comment\n')
    said = train(words, tmp_path / 'run', '--max_iters=2', '--resume=True')
    mine = os.path.relpath(tmp_path / 'mine.py')
    assert 'resumed at step 1; max_iters: 1 -> 2; ' in said
    assert f'{mine} is another file now' in said and f'{text} is another file now' in said
    first, second, _ = [x for x in log_of(tmp_path / 'run') if 'line to beat' in x]
    assert second['step'] == 1 and second['line to beat'] == max(second['reward'], second['greedy'])
    assert second['line to beat'] != first['line to beat']


def test_a_recipe_does_not_change_the_run_that_names_it(grpo, toy, tmp_path):
    recipe = 'config/networks/generator_equations.py'
    file_of(recipe, 'arithmetic')               # executes it
    assert grpo.Task.kind == 'fill'
    code, printed, error = run(*toy, f'--generator={recipe}', f'--out_dir={tmp_path}/run')
    assert code == 1 and error.startswith("error: the generator is a 'causal' network")
    assert 'making' not in printed


def test_a_run_says_that_no_checkpoint_has_a_reference_that_changes(toy, file, tmp_path):
    follow = file('mine.py', '''
def learn(networks, optimizers, rollouts, lr, inner=learn):
    metrics = inner(networks, optimizers, rollouts, lr)
    networks.reference.load_state_dict(networks.policy.state_dict())
    return metrics
''')
    words = [*toy, '--kl_beta=0.1', '--max_iters=2']
    said = 'the reference has changed, and checkpoints do not save it'
    assert said in train([*words, follow], tmp_path / 'run')
    assert said not in train(words, tmp_path / 'plain')


def test_a_run_that_goes_on_with_other_records_says_so_and_sets_a_new_line(toy, file, tmp_path):
    words = [*toy, f"--dataset={file('mine.py', EQUATIONS)}"]
    train(words, tmp_path / 'run', '--max_iters=1')
    file('mine.py', EQUATIONS.replace('    return ', '    parts = ')
         + '    return [parts[0], parts[1][1:]]\n')
    said = train(words, tmp_path / 'run', '--max_iters=2', '--resume=True')
    assert 'resumed at step 1' in said and '; the dataset has other records now' in said


@pytest.mark.parametrize('code', [
    'token_weights = lambda rollout: (torch.ones(len(rollout.advantage), 1), 1)',
    'token_weights = lambda rollout: (torch.ones(1), 1)',
    'sample = lambda logits, k=1, greedy=False: torch.zeros(k, len(logits), dtype=int)',
    'kl_penalty = lambda stats: stats.kl[:, None]',
    'policy_loss = lambda stats, rollout: (-stats.logp, None)',
    'policy_loss = lambda *more, inner=policy_loss: inner(*more)[::-1]',
    'advantages = lambda reward, scores: reward * torch.nan',
    'advantages = lambda reward, scores: reward[:, :1]',
    'score = lambda *more, inner=score: {**inner(*more), "reward": 1.0}',
    'evaluate = lambda *more, inner=evaluate: (inner(*more)[0], *inner(*more)[:0:-1])',
    'get_lr = lambda *more: "0.001"',
    'make_optimizers = lambda network, *more: torch.optim.SGD(network.parameters())',
    'make_optimizers = lambda network, *more: [torch.optim.SGD([torch.ones(1)])]',
    'evaluate = lambda *more, inner=evaluate: (["1+1=2"], *inner(*more)[1:])',
    'token_stats = lambda *more, inner=token_stats: Stats(*[x[:, None] for x in inner(*more)])',
    'token_stats = lambda *more, inner=token_stats: (\n'
    '    lambda x: x._replace(entropy=x.entropy.detach()))(inner(*more))'])
def test_a_wrong_result_of_a_replaced_function_names_it(code, toy, file, tmp_path):
    code_of_exit, _, error = run(*toy, file('mine.py', code), f'--out_dir={tmp_path}/run')
    name = code.split()[0]
    assert code_of_exit == 1 and re.fullmatch(fr'error: .*{name}\(\) returned .*\n', error)


def test_a_judge_that_is_too_short_is_refused_before_the_older_run_is_moved(
        toy, folder, finished, tmp_path):
    shutil.copytree(finished, tmp_path / 'run')
    vocabulary = load_checkpoint(folder / 'judge.pt')['vocabulary']
    judge = GPT(len(vocabulary['chars']) + 1, 4, 1, 1, 4, 'causal')
    judge.tok = make_tokenizer(**vocabulary)
    save_network(tmp_path / 'short.pt', judge)
    code, _, error = run(*toy, f'--judge={tmp_path}/short.pt', f'--out_dir={tmp_path}/run')
    assert code == 1 and re.fullmatch('error: the judge can read 4 tokens, .*\n', error)
    assert_same(tmp_path / 'run', finished)
    assert not (tmp_path / 'run-1').exists()


# ---- ranks, machines, and networks ---------------------------------------------------------------


@pytest.fixture
def tree(tmp_path, monkeypatch, file):
    """Make a copy of this tree, 0, and another one for a second rank, 1. Go to the first. Return
    the first word of a command that runs there."""
    for rank in '01':
        shutil.copytree(ROOT, tmp_path / rank, ignore=shutil.ignore_patterns(
            '.*', 'out*', '*env', 'wandb', '__pycache__'))
    monkeypatch.chdir(tmp_path / '0')
    return file('elsewhere.py', ELSEWHERE)


def test_two_ranks_take_the_steps_of_one_process_also_on_machines_that_share_no_disk(
        tree, tmp_path, folder, file):
    words = [tree, *TOY, f'--dataset={folder}/equations.py', file('zeros.py', ZEROS),
             'config/papers/dapo.py', '--adv_norm=batch', '--gradient_accumulation_steps=2',
             '--mini_batches=2', '--group_size=2', '--kl_beta=0.05', '--dtype=float64']
    stops = file('stops.py', SIGNAL)
    train(words, 'two', stops, ranks=2)         # makes the networks
    assert checkpoint_of(Path('two'))['step'] == 3
    train(words, 'two', stops, '--resume=True', ranks=2)
    train(words, 'one')
    for name, ranks in (('two-more', 2), ('one-more', 1)):      # the second tree has no `one`
        train(words, name, '--generator=one', '--max_iters=2', ranks=ranks)
    second = tmp_path / '1'
    assert not [*second.glob('*two*'), *second.glob('out')]
    for one, two in ((Path('one'), Path('two')), (Path('one-more'), Path('two-more'))):
        assert {*os.listdir(one)} == {*os.listdir(two)}
        assert log_of(one) == [pytest.approx(x, rel=1e-12, abs=1e-12) for x in log_of(two)]
        torch.testing.assert_close(checkpoint_of(one)['model'], checkpoint_of(two)['model'],
                                   rtol=0, atol=1e-12)


@pytest.mark.parametrize('code, name', [
    ('texts = lambda all=texts: [pairs[RANK:-1] for pairs in all()]', 'dataset'),
    ('', 'knobs')])
def test_ranks_that_differ_are_refused(code, name, toy, file, tmp_path):
    """They stand for two machines with different files."""
    rank = "import os\nRANK = int(os.environ['RANK'])\n"
    dataset = file('mine.py', EQUATIONS + rank + code)
    mine = file('config.py', rank + 'kl_beta = 0.1 + 0.1 * RANK')
    more = [] if code else [mine]
    process = Process(*toy, f'--dataset={dataset}', *more, f'--out_dir={tmp_path}/run',
                      '--gradient_accumulation_steps=2', ranks=2)
    process.wait()
    assert process.printed()[1].count(f'error: {name}: not all ranks have the same') == 2


def test_machines_may_name_a_network_by_different_paths(toy, file, tmp_path):
    mine = file('mine.py', """
import os
if os.environ['RANK'] == '1':
    judge = f'/nowhere/{judge}'
""")
    finish(*toy, mine, f'--out_dir={tmp_path}/run', '--gradient_accumulation_steps=2', ranks=2)


@pytest.mark.parametrize('rank', [0, 1])
def test_a_rank_that_is_killed_ends_the_other_one_and_their_folder_is_theirs_until_then(
        rank, toy, tmp_path):
    process = Process(*toy, f'--out_dir={tmp_path}/run/', '--max_iters=99999', ranks=2)
    process.wait_for('step     2')
    code, _, error = run(*toy, f'--out_dir={tmp_path}/run')
    process.ranks[rank].kill()
    process.wait()                              # kills those that have not ended in three minutes
    assert process.ranks[1 - rank].exitcode == 1
    assert code == 1
    assert re.fullmatch(f'error: out_dir = {tmp_path}/run: another run is writing to it.*\n', error)


def name_in(tree, recipe, dataset):
    """Return the file of a network in a tree, as a new process names it."""
    Path('name.py').write_text('import sys\nfrom plumbing.networks import file_of\n'
                               'print(file_of(*sys.argv[1:]))')
    return finish(tree, 'name.py', recipe, dataset).strip()


def test_a_network_is_named_by_the_contents_of_all_from_which_it_comes(tree):
    names = []
    for path in ['mine.py', 'sample.py', *SOURCES]:
        with open(path, 'a') as file:
            file.write('\nfrom data.arithmetic import texts' if path == 'mine.py' else '\n# edited')
        names.append(name_in(tree, 'config/networks/judge_classifier.py', 'mine.py'))
    assert names[0] == names[1] and len({*names}) == 1 + len(SOURCES)


def test_a_recipe_that_uses_another_network_makes_it_first(tree, folder):
    """A classifier learns to tell texts from what a generator has filled."""
    Path('config/networks/generator_arithmetic.py').write_text('max_iters = 2\nn_layer = 1\n')
    printed = finish(tree, 'pretrain.py', 'config/networks/judge_classifier.py', *CPU,
                     f'--dataset={folder}/equations.py', '--max_iters=2', '--out=judge.pt')
    assert len(re.findall('making out/generator_arithmetic-.*', printed)) == 1
    assert load_network('judge.pt', 'cpu')[0].kind == 'classifier'


def test_a_run_that_goes_on_and_sample_take_the_networks_with_which_it_began(
        tree, toy, folder, file):
    """Also if the run was moved aside."""
    recipe = 'config/networks/generator_smoke.py'
    words = [tree, *toy, f'--generator={recipe}', '--learning_rate=0.5']
    network = name_in(tree, recipe, f'{folder}/equations.py')
    os.mkdir('out')
    shutil.copy(folder / 'generator.pt', network)
    train(words, 'whole')
    stops = file('stops.py', SIGNAL)
    train(words, 'run', stops)
    sample = [tree, 'sample.py', '--num_samples=1']
    shown = run(*sample, 'run')
    assert len({*re.findall("x '.*'", shown[1])}) > 4           # four before, four other ones after
    Path(recipe).write_text('nobody_knows = 1')
    train([tree, *toy], 'run', '--max_iters=0')
    code, printed, error = run(*sample, 'run-1')
    said = f'{recipe} would make another network now: the run keeps {network}\n'
    assert said in printed and (code, printed.replace(said, ''), error) == shown
    train(words, 'run-1', stops, '--resume=True')
    assert_same(Path('run-1'), Path('whole'))
    os.remove(network)
    for more in ([*sample, 'run-1'], [*words, stops, '--out_dir=run-1', '--resume=True']):
        code, _, error = run(*more)
        assert code == 1 and re.fullmatch(f'error: .*{network}.*\n', error)


def test_missing_networks_are_made_side_by_side_and_if_one_fails_the_other_is_ended(
        tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('pretrain.py').write_text(PRETRAIN)
    with pytest.raises(Mistake, match='pretraining failed'):
        make_networks({'other.py': 'a.pt', 'fails.py': 'b.pt'}, 'mine.py', torch.device('cpu'))
    filelock.FileLock('lock').acquire(timeout=60)


def test_a_run_that_is_ended_while_it_makes_networks_ends_their_makers_too(
        tree, toy, tmp_path, file):
    recipe = file('recipe.py', LOCKED)
    process = Process(tree, *toy, f'--generator={recipe}', f'--out_dir={tmp_path}/run')
    while not (tmp_path / 'recipe.py.lock').exists():
        assert process.ranks[0].is_alive(), process.printed()
        time.sleep(0.01)
    process.ranks[0].terminate()
    assert process.wait()[0] == 143
    filelock.FileLock(f'{recipe}.lock').acquire(timeout=5)
    assert not (tmp_path / 'run').exists()


TEXTS = """
import random
def texts():
    rng = random.Random(0)
    pairs = [(''.join(rng.choices('abc', k=6)), '') for _ in range(40)]
    return pairs[:8], pairs[8:]
"""
UNKNOWN = """
{"prompt": "1_=2"}
{"prompt": "_+2=3", "held_out": true}
{"prompt": "1+_=3", "held_out": true}
"""


def test_pretraining_keeps_the_weights_of_the_lowest_held_out_loss(tmp_path, file):
    words = [f"--dataset={file('texts.py', TEXTS)}", '--kind=causal', '--n_layer=1', '--n_embd=16',
             '--max_iters=60', '--eval_interval=10', '--warmup_iters=0', '--learning_rate=0.05']
    printed = finish('pretrain.py', *words, f'--out={tmp_path}/judge.pt')
    losses = [float(x) for x in re.findall(r'held-out loss (\S+)\n', printed)]
    assert len(losses) == 6 and min(losses) < losses[-1] - 0.1
    assert f'keeps the weights of the lowest held-out loss, {min(losses):.3f}' in printed
    judge, _ = load_network(tmp_path / 'judge.pt', 'cpu')
    _, held_out = runpy.run_path(tmp_path / 'texts.py')['texts']()
    rows = torch.tensor([[*judge.tok.encode(text), judge.tok.eos] for text, _ in held_out])
    assert -judge_scores(judge, rows).mean().item() == pytest.approx(min(losses), abs=1e-3)
    # A recipe with a stop_at keeps its last weights.
    checked = file('checked.py', TEXTS + 'def verify(text):\n    return 0.0\n')
    printed = finish('pretrain.py', f'--dataset={checked}', *words[2:], '--stop_at=0.5',
                     f'--out={tmp_path}/generator.pt')
    assert 'learns its texts by heart: its held-out loss was' in printed


def test_pretraining_moves_an_older_network_aside(tmp_path, file):
    words = ['--max_iters=2', '--n_layer=1', '--n_embd=16', f'--out={tmp_path}/x.pt']
    finish('pretrain.py', *words)
    older = (tmp_path / 'x.pt').read_bytes()
    assert f'an older one is now {tmp_path}/x.pt-1\n' in finish('pretrain.py', *words, '--seed=2')
    assert (tmp_path / 'x.pt-1').read_bytes() == older != (tmp_path / 'x.pt').read_bytes()
    code, _, error = run('pretrain.py', *words[:-1], '--out=/dev/null')
    assert code == 1 and error == 'error: /dev/null is no file\n'


def test_a_folder_that_goes_away_and_a_console_that_is_closed_are_no_tracebacks(
        toy, file, tmp_path):
    gone = file('mine.py', """
import shutil
def learn(*more, inner=learn):
    shutil.rmtree(out_dir)
    return inner(*more)
""")
    code, _, error = run(*toy, gone, f'--out_dir={tmp_path}/run')
    assert code == 1 and error.startswith(f'error: {tmp_path}/run/log.jsonl cannot be written: ')
    code = file('closed.py', """
import os, sys
sys.path.insert(0, '')
import plumbing.process
with open(sys.argv[1], 'w'):
    os.write(1, b'this is for nobody')
    os.write(2, b'this, too')
""")
    with open('/dev/full', 'w') as full:
        child = Child([*toy, f'--out_dir={tmp_path}/full'], full, full, {})
        child.process.join(60)
    assert child.poll() == checkpoint_of(tmp_path / 'full')['step'] == 1
    command = ['sh', '-c', 'exec "$@" 0<&- 1>&- 2>&-', 'sh', sys.executable, code]
    subprocess.run([*command, tmp_path / 'lock'], check=True)
    assert (tmp_path / 'lock').read_bytes() == b''


def test_pretraining_with_a_loss_that_is_not_finite_is_refused_and_writes_nothing(tmp_path, file):
    nan = "def loss_of(*words, inner=loss_of):\n    return inner(*words) * float('nan')"
    for words, said in (
            ([f"--dataset={file('texts.py', TEXTS)}", file('nan.py', nan)], 'the gradient'),
            ([f"--dataset={file('blanks.jsonl', UNKNOWN)}", '--blank_kind=answer'], 'the loss')):
        code, _, error = run('pretrain.py', *words, '--max_iters=20', f'--out={tmp_path}/x.pt')
        assert code == 1 and re.fullmatch(f'error: {said} is not finite.*\n', error)
        assert not [*tmp_path.glob('*.pt*')]


def test_a_byte_that_has_flipped_and_a_config_without_words_are_named(folder, finished, tmp_path):
    data = bytearray((folder / 'generator.pt').read_bytes())
    data[data.index(b'/data/0') + 1000] ^= 1
    (tmp_path / 'flipped.pt').write_bytes(data)
    with pytest.raises(Mistake, match='flipped.pt is damaged, in its part .*/data/0'):
        load_checkpoint(tmp_path / 'flipped.pt')
    shutil.copytree(finished, tmp_path / 'run')
    (tmp_path / 'run/config.json').write_text('{}')
    code, _, error = run('sample.py', f'{tmp_path}/run')
    assert code == 1 and re.fullmatch('error: .*/config.json is damaged: .*\n', error)


# ---- where a run runs, and what it writes --------------------------------------------------------


def test_a_reader_of_the_console_that_has_seen_enough_sees_no_error(toy, tmp_path):
    """Like `| head -1`."""
    with open(tmp_path / 'errors', 'w') as errors:
        child = Child([*toy, f'--out_dir={tmp_path}/run', '--max_iters=99999'], subprocess.PIPE,
                      errors, {})
    assert child.stdout.readline().startswith('step     0')
    child.stdout.close()
    child.process.join(60)
    assert child.poll() == 0 and (tmp_path / 'errors').read_text() == ''
    assert checkpoint_of(tmp_path / 'run')['step'] >= 1         # what it has learned is kept


def test_ctrl_c_saves_a_run_whose_console_has_gone(toy, tmp_path):
    """Like `| tee`, which dies of the same Ctrl-C."""
    child = Child([*toy, f'--out_dir={tmp_path}/run', '--max_iters=99999', '--log_interval=99999',
                   '--eval_interval=99999'], subprocess.PIPE, subprocess.STDOUT, {})
    log = tmp_path / 'run/log.jsonl'
    while not (log.exists() and log.read_text().count('\n') > 3):
        assert child.poll() is None
        time.sleep(0.01)
    child.stdout.close()
    os.kill(child.process.pid, signal.SIGINT)
    child.process.join(60)
    assert child.poll() == 0
    assert checkpoint_of(tmp_path / 'run')['step'] == log_of(tmp_path / 'run')[-1]['step'] + 1


def test_a_thread_can_be_a_run(toy, file, finished, tmp_path):
    script = file('thread.py', """
import threading, train_grpo
thread = threading.Thread(target=train_grpo.main)
thread.start()
thread.join()
""")
    train([script, *toy[1:]], tmp_path / 'run', '--eval_interval=2')
    assert_same(tmp_path / 'run', finished)


def test_wandb_gets_the_numbers_of_the_log_and_a_resumed_run_goes_on_in_its_curves(
        toy, tmp_path, file, monkeypatch):
    path = file('wandb.py', WANDB)
    monkeypatch.syspath_prepend(tmp_path)
    for max_iters in (2, 4):
        train(toy, tmp_path / 'run', '--wandb_project=mine', f'--max_iters={max_iters}',
              '--eval_interval=2', '--resume=True')
    lines = [*open(tmp_path / 'run/log.jsonl')]
    logged = [*open(f'{path}.log')]
    tables = [json.loads(line) for line in logged if 'samples' in line]
    # Evaluation 2 is made twice.
    assert [line for line in logged if 'samples' not in line] == [
        '{"step": "allow", "id": null}\n', *lines[:4],
        '{"step": "allow", "id": "theirs"}\n', *lines[3:]]
    assert [table['step'] for table in tables] == [0, 2, 2, 4]
    assert tables[0]['samples'][0][:2] == ['prompt', 'completion'] and tables[0]['samples'][8:]


def test_a_run_goes_on_without_a_wandb_that_fails_and_says_which_package_is_missing(
        toy, finished, tmp_path, file, monkeypatch):
    file('wandb.py', WANDB.replace('    with open', "    assert step != 2, 'full'\n    with open"))
    with monkeypatch.context() as here:
        here.syspath_prepend(tmp_path)
        said = train(toy, tmp_path / 'run', '--wandb_project=mine', '--eval_interval=2')
    assert said.count('wandb gets nothing any more') == 1 and 'full' in said
    assert_same(tmp_path / 'run', finished)
    absent = file('absent.py', "import sys\nsys.modules['matplotlib'] = None\nimport matplotlib")
    code, _, error = run(*toy, absent)
    assert code == 1 and error.endswith(': pip install matplotlib\n')


@pytest.mark.parametrize('change, said', [
    ({'args': {}}, 'needs the word plugins/hf.py'), ({'vocabulary': None}, 'is no network that'),
    ({'n_layer': 7}, 'has other weights'), ({'head.weight': float('nan')}, 'are not finite')])
def test_a_file_of_another_program_is_no_network(change, said, toy, folder, tmp_path):
    saved = load_checkpoint(folder / 'generator.pt')
    for name, value in change.items():
        if name in ('args', 'vocabulary'):
            saved[name] = value
        elif name in saved['args']:
            saved['args'][name] = value
        else:
            saved['model'][name].fill_(value)
    if saved['vocabulary'] is None:
        del saved['vocabulary']
    torch.save(saved, tmp_path / 'other.pt')
    code, _, error = run(*toy, f'--generator={tmp_path}/other.pt', f'--out_dir={tmp_path}/run')
    assert code == 1 and re.fullmatch(f'error: {tmp_path}/other.pt .*{said}.*\n', error)


def test_the_last_line_has_a_margin_of_two_standard_errors():
    for above, error, said in ((2.1, 1.0, 'above'), (1.9, 1.0, 'not above'), (5.0, 0.0, 'not')):
        assert verdict_of({'above it': above, 'standard error': error}, 3).startswith(said)
