"""Runs: the same command, kill and resume, what a resumed run changes, folders, faults, ranks, and
what a run writes."""
import json
import os
import random
import re
import signal
import sys
import time

import pytest
import torch

from conftest import CPU, Process, assert_same, checkpoint_of, log_of, run, train
from plumbing.configurator import configure
from plumbing.networks import load_checkpoint, paths_of
from plumbing.optim import make_optimizers
from plumbing.report import verdict_of
from plumbing.run_folder import RunFolder

KINDS = {
    'one pass': "rewards, epochs, mini_batches, top_p = {'judge': 1.0, 'verify': 0.5}, 2, 2, 0.9",
    'a learned order': """
include('plugins/passes.py')
fill_order, n_fill_steps, optimizer = 'learned', 3, 'adamw'
""",
    'replay behind an estimate': """
include('config/papers/replay.py')
include('config/papers/d1.py')
epochs = 2
""",
    'a world, and state': """
include('plugins/causal.py')
generator = judge
rewards['calls'] = 1.0

def calls(texts):
    state.setdefault('calls', []).append(len(texts))
    return len(texts) * [len(state['calls'])]

def reply(completion):
    return '+' if len(completion) == 1 else None

def learn(networks, optimizers, rollouts, lr, inner=learn):
    return inner(networks, optimizers, rollouts, lr / len(state['calls']))
""",
    'frozen weights': """
import os
def make_optimizers(network, name, inner=make_optimizers):
    if not os.path.exists(f'{out_dir}/ckpt.pt'):
        state['frozen'] = 1
    network.blocks[:state['frozen']].requires_grad_(False)
    return inner(network, name)
"""}
SIGNAL = """
import os, signal
def collect(networks, task, step, draw=0, inner=collect):
    if step == 2 and draw == 0 and not resume and devices.RANK == devices.N_RANKS - 1:
        os.kill(os.getpid(), {number})
    return inner(networks, task, step, draw)
"""
SLOW = """
import os, signal
rewards['slow'] = 0.0
_numbers = [signal.{}] * {}
def slow(completions, step, split):
    if split == 'train' and step == 0:
        import multiprocessing, time
        child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))
        child.start()
        time.sleep(0.2)                         # Python forgets signals that come with the fork
        child.terminate()
        child.join(5)
        assert child.exitcode == -signal.SIGTERM
    while split == 'train' and step == 2 and _numbers and not resume:
        os.kill(os.getpid(), _numbers.pop())
    return [float(step)] * len(completions)
"""
ZEROS = """
rewards = {'zeros': 1.0}
def zeros(**columns):
    assert type(columns['step']) is int         # also of a second draw
    return [float(text.count('0')) for text in columns['completions']]
"""
FROZEN = """
def load_network(path, device, inner=load_network):
    network, saved = inner(path, device)
    network.embed.requires_grad_(False)
    return network, saved
"""
DATA = """
dataset = f'{out_dir}.jsonl'
open(dataset, 'w').writelines(f'["{i}+34=", "046"]\\n' for i in range(10, 99))
"""
PASSES = "include('plugins/passes.py')\n"
OTHER = """
from plumbing.networks import save_network
network, _ = load_network(generator, 'cpu')
_args, _chars = network.args, network.tok.vocabulary
%s
generator = f'{out_dir}.pt'
save_network(generator, network)
"""
NEW_LINE = 'a new line to beat begins at the next evaluation'
# what is said of a run that goes on: its config files before and after
CHANGES = {
    NEW_LINE: [*[('', text) for text in (
        'temperature = 0.5 | top_k = 3 | top_p = 0.9 | eval_prompts = 6 | blank_low = 0.1 | '
        'blank_high = 0.9 | blank_kind = "answer" | rewards["judge"] = 2.0 | '
        'import shutil; judge = shutil.copy(judge, out_dir + ".pt")').split(' | ')],
        ('', DATA), ('', PASSES), (PASSES, PASSES + 'n_fill_steps = 2')],
    f'n_fill_steps: None, not 5\nso {NEW_LINE}': [(PASSES, '')],
    'another max_iters: 2, not 1': [(DATA, DATA + 'max_iters, learning_rate = 2, 0.1')],
    'expected a larger max_iters': [('max_iters = 2', '')],
    'nothing can be told': [
        ('', "import os\nmax_iters = 2\nos.remove(f'{out_dir}/log.jsonl')"),
        ('', "max_iters = 2\nopen(f'{out_dir}/log.jsonl', 'a').write('{')")],
    'not all of it is there': [('', "import os\nos.truncate(f'{out_dir}/ckpt.pt', 1000)"), ('', """
with open(f'{out_dir}/ckpt.pt', 'r+b') as _file:
    _file.seek(_file.seek(0, 2) // 4)
    _file.write(bytes(2 * _file.tell()))
""")],
    'another network': [
        ('', "import shutil\nshutil.copy(generator, f'{out_dir}/ckpt.pt')"),
        ('', "optimizer = 'adamw'"), ('', FROZEN),
        ('', PASSES + "fill_order = 'learned'"),
        ('', "include('plugins/causal.py')\ngenerator = judge"),
        ('', OTHER % "_args['n_layer'], network.blocks = 1, network.blocks[:1]"),
        ('', OTHER % "rewards, _chars['chars'] = {'verify': 1.0}, _chars['chars'][::-1]")]}
FAULTS = {
    'ckpt.pt could not be written: enforce fail': """
import os, torch
write = torch.save
def half(saved, path):
    write(saved, path)
    if saved['step'] == 4:
        os.truncate(path, 1000)
        raise RuntimeError('enforce fail')      # as torch says it
torch.save = half
""",
    'gradient is not finite': """
def collect(networks, task, step, inner=collect):
    global kl_beta, entropy_coef
    rollouts, scores = inner(networks, task, step)
    if step == 3:                               # no text without an advantage may be left out
        kl_beta = entropy_coef = 0.0
        rollouts[0].advantage[:] = float('nan')
    return rollouts, scores
""",
    "step 4: not finite: {'verify': ": """
def evaluate(networks, task, step, inner=evaluate):
    samples, scores, greedy = inner(networks, task, step)
    if step == 4:
        scores['reward'] += torch.inf
    return samples, scores, greedy
""",
    "state['recent'] is deque([1.0])": """
import collections
def collect(networks, task, step, inner=collect):
    if step == 3:                               # a checkpoint with it could not be read again
        state['recent'] = collections.deque([1.0])
    return inner(networks, task, step)
"""}
WANDB = """
import json, sys
def login(prompt):
    return True
id = 'theirs'
def init(id, resume, config, **more):
    log([id, resume, config['group_size']])
    return sys.modules['wandb']
def define_metric(*names, step_metric):
    log([*names, step_metric])
def log(numbers):
    with open(__file__ + '.log', 'a') as file:
        print(json.dumps(numbers), file=file)
"""


# ---- the same command, and resuming --------------------------------------------------------------


def test_a_reference_is_opened_if_the_loss_needs_it_or_somebody_names_it(grpo):
    for words, path in {'--kl_beta=0': '', '--kl_beta=0.1': 'start.pt',
                        '--kl_beta=0 --reference=generator': 'start.pt',
                        '--kl_beta=0 --reference=other.pt': 'other.pt'}.items():
        configure(vars(grpo), ['--generator=start.pt', *words.split()])
        assert paths_of(vars(grpo))['reference'] == path


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
    for name in ('parts', 'whole'):
        train(words, tmp_path / name)
    assert_same(tmp_path / 'parts', tmp_path / 'whole')
    assert log_of(tmp_path / 'whole')[-2]['kl'] > 1e-6      # it has moved


@pytest.mark.parametrize('name', ['SIGINT', 'SIGHUP'])
def test_a_signal_lets_the_step_end_and_save_and_the_second_one_is_one_line(
        name, toy, tmp_path, file):
    """Of Ctrl-C, or of a terminal that closes. A process that a reward has forked just ends."""
    once, twice = [run(*toy, file('slow.py', SLOW.format(name, n)), f'--out_dir={tmp_path}/run')
                   for n in (1, 2)]
    assert once[0] == 0 and 'once more to stop at once' in once[2]
    assert checkpoint_of(tmp_path / 'run-1')['step'] == 3
    assert twice[0] == 1 and twice[2] == f'{once[2]}error: stopped at once\n'


# ---- what a resumed run has changed --------------------------------------------------------------


@pytest.mark.parametrize('said, before, after', [
    (said, *texts) for said, cases in CHANGES.items() for texts in cases])
def test_a_run_that_goes_on_says_what_has_changed_or_why_it_cannot(
        said, before, after, toy, file, tmp_path):
    """And its line to beat begins anew if something else is measured."""
    for text, resume in ((before, False), (after, True)):
        _, printed, error = run(*toy, '--max_iters=1', f'--out_dir={tmp_path}/run',
                                f'--resume={resume}', file('mine.py', text))
    assert said in printed + error and (NEW_LINE in printed) == (NEW_LINE in said)
    last = log_of(tmp_path / 'run')[-1]         # also of a run that was refused
    best = max(last.get('verify', last['eval/reward']), last['greedy'])
    assert NEW_LINE not in said or last['line to beat'] == best


def test_the_time_of_a_step_has_that_of_its_rewards(toy, file, tmp_path):
    path = file('slow.py', """
import time as _time
rewards = {'slow': 1.0}
def slow(texts):
    _time.sleep(0.1)
    return [0.0] * len(texts)
""")
    text = train([*toy, path], tmp_path / 'run', '--max_iters=1')
    assert float(re.search(r'\| ms (\d+)', text)[1]) > 100


# ---- folders -------------------------------------------------------------------------------------


def test_an_older_run_is_moved_aside_and_one_that_goes_on_is_left_alone(toy, file, tmp_path):
    """A run that is refused moves none, also if networks are missing."""
    out = tmp_path / 'run'
    for seed in (1, 2, 3):
        train(toy, out, '--max_iters=0', f'--seed={seed}')
    judge = file('judge.py', 'kind = "causal"\nn_layer = 1')
    causal, fill = file('recipe.py', f"include('{judge}')"), file('fill.py', '')
    other, odd = file('other.py', "tokenizer = 'cups'"), file('odd.py', 'n_embd = 33')
    for word, sentence in ((f'--generator={causal}', 'needs plugins/causal.py'),
                           (f'--generator={odd}', 'n_embd = 33: expected a multiple'),
                           (f'--reference={causal}', 'expected a generator, of the kind of'),
                           (f'--reference={other}', 'the vocabulary of the network lacks'),
                           (f'--judge={fill}', 'fills blanks, so it sees what it scores')):
        assert sentence in run(*toy, f'--out_dir={out}', word)[2]
        assert not (tmp_path / 'run-3').exists()
    assert 'is not there, and a resumed run makes no network' in run(
        *toy, f'--out_dir={out}', f'--judge={judge}', '--resume=True')[2]
    # A new run that was stopped while its networks were made is not the older one, and a log that
    # has lost its checkpoint is not cut.
    config = json.loads((out / 'config.json').read_text())
    for _ in range(2):
        RunFolder(out, config | {'seed': 4}).claim()
        assert RunFolder(out, config | {'resume': True}).saved == {}
    train(toy, out, '--max_iters=0')
    assert not (tmp_path / 'run-4').exists()
    os.remove(out / 'ckpt.pt')
    train(toy, out, '--max_iters=0', '--resume=True')
    assert log_of(tmp_path / 'run-4') == log_of(out)
    for seed in (1, 2, 3):
        config = json.loads((tmp_path / f'run-{seed}' / 'config.json').read_text())
        assert config['seed'] == seed


def test_no_run_writes_to_the_folder_of_another_one(toy, tmp_path):
    process = Process(*toy, f'--out_dir={tmp_path}/run/', '--max_iters=99999')
    process.wait_for('advantage')               # it has a checkpoint
    error = run(*toy, f'--out_dir={tmp_path}/run')[2]
    process.ranks[0].kill()
    assert f'another run is writing to {tmp_path}/run:' in error


@pytest.mark.parametrize('fault', FAULTS)
def test_a_fault_ends_a_run_in_one_line_and_its_last_checkpoint_stands(
        fault, toy, finished, tmp_path, file):
    path = file('fault.py', FAULTS[fault])
    code, _, error = run(*toy, path, f'--out_dir={tmp_path}/run')
    assert code == 1 and error.count('\n') == 1 and fault in error
    # A run saves itself before it evaluates.
    assert checkpoint_of(tmp_path / 'run')['step'] == (4 if 'step 4' in fault else 2)
    train(toy, tmp_path / 'run', '--resume=True')
    assert_same(tmp_path / 'run', finished)
    assert not [*tmp_path.glob('run/*.tmp')]    # of the save that failed


class Evil(str):
    """A path. Who opens its pickle makes a folder there."""

    def __reduce__(self):
        return os.mkdir, (str(self),)


def test_no_checkpoint_runs_code(tmp_path):
    evil, made = tmp_path / 'ckpt.pt', tmp_path / 'made'
    torch.save({'args': Evil(made)}, evil)
    with pytest.raises(SystemExit, match='UnpicklingError'):
        load_checkpoint(evil)
    assert not made.exists()
    torch.load(evil, weights_only=False)
    assert made.exists()                        # or this would be no test


# ---- ranks ---------------------------------------------------------------------------------------


def test_two_ranks_take_the_steps_of_one_process_also_after_a_signal(toy, tmp_path, file):
    """And with a paper that looks at the groups of a whole step."""
    words = [*toy, file('signal.py', SIGNAL.format(number=int(signal.SIGTERM))), '--dtype=float64',
             file('zeros.py', ZEROS), 'config/papers/dapo.py', 'config/papers/replay.py',
             '--adv_norm=batch',
             '--gradient_accumulation_steps=4', '--mini_batches=2', '--group_size=2',
             '--kl_beta=0.05']
    for name, resume, step in (('two', False, 3), ('two', True, 6), ('one', True, 6)):
        train(words, tmp_path / name, f'--resume={resume}', ranks=1 + (name == 'two'))
        assert checkpoint_of(tmp_path / name)['step'] == step
    one, two = log_of(tmp_path / 'one'), log_of(tmp_path / 'two')
    assert one[-2]['kl'] > 1e-6 and 0 < one[1]['dead_groups'] < 1
    assert one == [pytest.approx(line, rel=1e-6, abs=1e-9) for line in two]


# ---- what a run writes ---------------------------------------------------------------------------


def test_log_and_samples_have_the_numbers_of_each_step_and_evaluation(toy, tmp_path, file, grpo):
    """A second loop takes the same steps, though it evaluates more often. Samples are of the first
    group that teaches something."""
    toy = [*toy, file('zeros.py', ZEROS)]
    train(toy, tmp_path / 'run')
    _, data = grpo.read_words(toy[1:])
    networks, task = grpo.open_task(data)
    policy = networks.policy
    optimizers = make_optimizers(policy, 'muon')
    lines, samples, line = [], [], None
    for step in range(7):
        shown, *scores = grpo.evaluate(networks, task, step)
        if step % 2 == 0:
            samples += shown
            line, numbers = grpo.report.against_line(*scores, line, grpo.rewards)
            lines.append({'step': step} | numbers)
        if step < 6:
            rollouts, scores = grpo.collect(networks, task, step)
            learns = scores['reward'].std(1) > 0
            group = rollouts[0].select(rollouts[0].text_of // 4 == learns.int().argmax())
            before = grpo.log_probs_of(policy, group)
            numbers = grpo.learn(networks, optimizers, rollouts, 6e-3 * (step + 1) / 11)
            logp = torch.stack((before, grpo.log_probs_of(policy, group)), 1)
            if step % 2 == 0:
                samples += grpo.report.samples_of(group, grpo.columns_of(group), scores, logp)
            numbers |= {f'mean_{x}': scores[x].mean().item() for x in ('tokens', 'reward', 'zeros')}
            dead = (~learns).double().mean().item()
            lines.append({'step': step, 'dead_groups': dead} | numbers)
    assert log_of(tmp_path / 'run') == [pytest.approx(line, rel=1e-4) for line in lines]
    for line, expected in zip(open(tmp_path / 'run/samples.jsonl'), samples, strict=True):
        sample = json.loads(line)
        assert {'step': sample['step']} | expected == sample
        assert sample['scores']['zeros'] == sample['completion'].count('0')


def test_wandb_gets_the_numbers_of_the_log_and_a_resumed_run_goes_on_in_its_curves(
        toy, tmp_path, file, monkeypatch):
    path = file('wandb.py', WANDB)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'wandb', raising=False)        # TRL has imported the real one
    words = [*toy, '--wandb_project=mine']
    train(words, tmp_path / 'run', '--max_iters=2')
    train(words, tmp_path / 'run', '--max_iters=4', '--resume=True')
    lines = [*open(tmp_path / 'run/log.jsonl')]
    expected = ['[null, "allow", 4]\n["*", "step"]\n', *lines[:4],        # evaluations 0 and 2
                '["theirs", "allow", 4]\n["*", "step"]\n', *lines[3:]]    # 2 and 4
    assert open(f'{path}.log').read() == ''.join(expected)


# of Student's distribution for 95 % of n differences
QUANTILES = {4: 3.182, 10: 2.262, 30: 2.045, 512: 1.965}


@pytest.mark.parametrize('n', QUANTILES)
def test_the_last_line_has_a_margin_of_95_percent_and_tells_nothing_from_three_prompts(n):
    quantile = QUANTILES[n]
    for above, error, n_prompts, said in (
            (1.1 * quantile, 1.0, n, 'is above the line'),
            (quantile, 1.0, n, 'is not above the line'),
            (-1.1 * quantile, 1.0, n, 'is below the line'),
            (5.0, 1.0, 3, 'nothing can be told'), (5.0, 0.0, n, 'nothing can be told')):
        result = {'reward': 0.5, 'above it': above, 'standard error': error}
        assert said in verdict_of(result, n_prompts)


# ---- pretraining ---------------------------------------------------------------------------------


def test_pretraining_makes_one_network_however_often_it_evaluates(folder, tmp_path):
    run('pretrain.py', f'--dataset={folder}/equations.py', *CPU, '--eval_interval=3',
        'config/networks/generator_smoke.py', '--max_iters=20', f'--out={tmp_path}/often.pt')
    networks = [torch.load(path)['model']
                for path in (folder / 'generator.pt', tmp_path / 'often.pt')]
    torch.testing.assert_close(*networks, rtol=0, atol=0)
