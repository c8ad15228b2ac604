"""Runs: the same command gives the same run; resumed, killed, on two ranks, in pieces; nothing of
anybody's is overwritten; what goes wrong ends with one line. KILLS=40 kills that many of each."""
import json
import os
import pathlib
import random
import re
import signal
import sys
import time
import types

import pytest
import torch

import common
import data.dataset
import train_grpo
from common import Statistics
from data.dataset import Prompts, Tokenizer
from judge import Judge, Scorer
from model import GPT
from pretend_gpu import move, pretend_gpu
from processes import CAUSAL, FORK, TOY, Run, fails, refused, run, weights

ANSWERS = ['--mode=causal', '--blank_kind=answer', '--rewards={"verify": 1.0, "length": -0.1}',
           f'--generator_recipe={CAUSAL}']
MODES = {
    'fill': ['--rewards={"judge": 1.0, "distinct": 0.3}', '--target_kl=0.01'],
    'passes': ['--n_fill_steps=3', '--top_p=0.9', '--mini_batches=2', '--inner_updates=2'],
    'confident': ['--n_fill_steps=2', '--fill_order=confident', '--optimizer=adamw'],
    'causal': ANSWERS + ['--top_p=0.9', '--inner_updates=2', '--kl_beta=0'],
}
THREE_MODES = pytest.mark.parametrize('mode', ['fill', 'passes', 'causal'])


@pytest.fixture
def train(repository, tmp_path):
    """train(*flags) -> output of a run of GRPO that ends well, in a folder of this test's own.
    train.command(*flags): what Run() and fails() want for the same."""
    def command(*flags, out='run'):
        words = [*TOY, *map(str, flags), f'--out_dir={tmp_path}/{out}']
        return repository, 'train_grpo.py', *words

    def go(*flags, out='run', **how):
        code, text = run(*command(*flags, out=out), **how)
        assert code == 0, text
        return text

    go.command = command
    return go


def read_log(folder):
    """The lines of a log without times."""
    with open(f'{folder}/log.jsonl', encoding='utf-8') as file:
        return [{key: value for key, value in json.loads(line).items()
                 if not key.startswith(('ms_', 'completions_per_s'))} for line in file]


def assert_same(a, b):
    """Two runs have the same log and the same weights, bit for bit."""
    assert read_log(a) == read_log(b)
    assert torch.equal(weights(f'{a}/ckpt.pt'), weights(f'{b}/ckpt.pt'))


# ---- a run is a function of its command ----------------------------------------------------------


def test_the_same_command_gives_the_same_run_and_looking_changes_nothing(train, tmp_path):
    train(out='a')
    train(out='b')
    train('--eval_interval=1', '--log_interval=2', '--keep_checkpoints=True', out='c')
    assert_same(tmp_path / 'a', tmp_path / 'b')
    end = weights(tmp_path / 'a/ckpt.pt')
    assert torch.equal(end, weights(tmp_path / 'c/ckpt.pt'))
    assert torch.equal(end, weights(tmp_path / 'c/ckpt-000004.pt'))
    assert not torch.equal(end, weights(tmp_path / 'c/ckpt-000003.pt'))


@pytest.mark.parametrize('mode', MODES)
def test_a_run_in_pieces_ends_bit_for_bit_like_one_in_one_piece(mode, train, tmp_path):
    train(*MODES[mode], out='whole')
    train(*MODES[mode], '--max_iters=2', '--lr_decay_iters=4', out='pieces')
    with open(tmp_path / 'pieces/log.jsonl', 'a') as file:
        file.write('{"step": 3, "lo')           # of a process that was killed
    text = train(*MODES[mode], '--resume=True', out='pieces')
    assert 'max_iters 2 -> 4' in text and 'lr_decay_iters 4 -> 0' in text
    train(*MODES[mode], '--max_iters=3', '--resume=True', out='pieces')     # it is further already
    assert_same(tmp_path / 'whole', tmp_path / 'pieces')


@THREE_MODES
def test_a_run_that_is_killed_at_any_moment_goes_on_from_its_last_save(mode, train, tmp_path):
    flags = [*MODES[mode], '--max_iters=12', '--eval_interval=1']
    train(*flags, out='whole')
    rng = random.Random(mode)
    for i in range(int(os.environ.get('KILLS', 1))):
        going = Run(*train.command(*flags, f'--resume={i > 0}', out='killed'))
        going.wait_for(lambda: os.path.exists(tmp_path / 'killed/ckpt.pt'))
        time.sleep(rng.random() / 3)
        going.kill(signal.SIGKILL)
        going.wait()
    train(*flags, '--resume=True', out='killed')
    assert_same(tmp_path / 'whole', tmp_path / 'killed')
    assert not [name for name in os.listdir(tmp_path / 'killed') if name.endswith('.tmp')]


@THREE_MODES
def test_two_ranks_and_other_micro_steps_take_the_steps_of_one_process(mode, train, tmp_path):
    """In float64, so that only the order of sums differs. Mini-batches are runs of micro-steps."""
    flags = [*MODES[mode], '--dtype=float64', '--max_iters=2', '--gradient_accumulation_steps=4',
             '--loss_norm=sequence', '--entropy_coef=0.01']
    train(*flags, '--batch_size=2', out='one')
    train(*flags, '--batch_size=2', out='two', ranks=2)
    train(*flags, '--batch_size=1', '--gradient_accumulation_steps=8', out='eight')
    for other in ('two', 'eight'):
        torch.testing.assert_close(weights(tmp_path / other / 'ckpt.pt'),
                                   weights(tmp_path / 'one/ckpt.pt'), atol=1e-9, rtol=0)
        for line, same in zip(read_log(tmp_path / 'one'), read_log(tmp_path / other), strict=True):
            assert line == pytest.approx(same, rel=1e-4, abs=1e-4)


def test_statistics_do_not_depend_on_the_order_in_which_names_were_added():
    first, second = Statistics(), Statistics()
    first.add(2, loss=3.0, kl=torch.tensor(5.0))
    first.add(1, grad_norm=7.0, loss=6.0)
    second.add(1, loss=6.0, grad_norm=7.0)
    second.add(2, kl=5.0, loss=torch.tensor(3.0))
    means = {'grad_norm': 7.0, 'kl': 2.5, 'loss': 3.0}
    assert list(first.read('cpu').items()) == list(second.read('cpu').items()) == [*means.items()]


def test_held_out_samples_are_the_same_whatever_the_size_of_groups_is(train, tmp_path):
    train('--group_size=3', '--max_iters=1', out='3')
    train('--group_size=7', '--max_iters=1', out='7')
    assert read_log(tmp_path / '3')[0] == read_log(tmp_path / '7')[0]


def test_a_reward_about_the_group_is_not_counted_for_a_single_completion(train, tmp_path):
    (tmp_path / 'mine.py').write_text(
        "rewards = {'judge': 1.0, 'distinct': 1.0, 'mine': 2.0}\n"
        "def mine(prompts, completions): return [1.0 for text in completions]\n"
        "mine.about_group = True\n")
    train(tmp_path / 'mine.py', '--max_iters=1')
    line = read_log(tmp_path / 'run')[0]
    assert line['eval/alone'] == line['eval/reward/judge']
    assert line['eval/ref_alone_argmax'] == line['eval/reward/judge_argmax']
    assert line['eval/reward'] == pytest.approx(
        line['eval/alone'] + line['eval/reward/distinct'] + 2)
    assert 'eval/reward_argmax' not in line
    train('--rewards={"distinct": 1.0}', '--max_iters=1', out='none')
    assert 'eval/alone' not in read_log(tmp_path / 'none')[0]


@pytest.mark.parametrize('flags', [
    ['--loss_norm=token'], ['--loss_norm=sequence', '--inner_updates=2'],
    ['--loss_norm=constant', '--kl_type=k3', '--objective=cispo', '--inner_updates=2']])
def test_the_terms_that_are_logged_add_up_to_the_loss(flags, train, tmp_path):
    train(*flags, '--entropy_coef=0.05', '--kl_beta=0.3', '--gradient_accumulation_steps=4')
    lines = [line for line in read_log(tmp_path / 'run') if 'loss' in line]
    assert len(lines) == 4 and abs(lines[-1]['kl_penalty']) > 0
    for line in lines:
        terms = line['pg_loss'] + line['kl_penalty'] + line['entropy_bonus']
        assert line['loss'] == pytest.approx(terms, abs=1e-6)
        assert line['mean_reward'] == pytest.approx(line['reward/judge'])


def test_samples_are_whole_groups_whose_numbers_add_up(train, tmp_path):
    train('--rewards={"judge": 0.5, "distinct": 2.0}', '--max_iters=1')
    with open(tmp_path / 'run/samples.jsonl') as file:
        samples = [json.loads(line) for line in file]
    assert len(samples) == 3 * 4
    for i, one in enumerate(samples):
        group = samples[i // 4 * 4:i // 4 * 4 + 4]
        mean = sum(other['reward'] for other in group) / 4
        assert all(other['prompt'] == one['prompt'] for other in group)
        assert one['reward'] == pytest.approx(0.5 * one['judge'] + 2 * one['distinct'])
        assert one['advantage'] == pytest.approx(one['reward'] - mean, abs=1e-6)


# ---- folders -------------------------------------------------------------------------------------


def test_a_run_never_overwrites_another(train, tmp_path):
    train()
    before = weights(tmp_path / 'run/ckpt.pt')
    assert 'run-1' in train('--seed=2')
    assert torch.equal(weights(tmp_path / 'run-1/ckpt.pt'), before)
    assert not torch.equal(weights(tmp_path / 'run/ckpt.pt'), before)
    os.symlink(tmp_path / 'run', tmp_path / 'link')
    fails(['link'], *train.command(out='link'))
    assert os.path.islink(tmp_path / 'link')


def test_only_what_we_wrote_is_ours(train, tmp_path):
    (tmp_path / 'theirs').mkdir()
    (tmp_path / 'theirs/config.json').write_text('{"dataset": "arithmetic"}')
    (tmp_path / 'theirs/thesis.tmp').write_text('years')
    fails(['theirs'], *train.command(out='theirs'))
    fails(['theirs'], *train.command('--resume=True', out='theirs'))
    assert sorted(os.listdir(tmp_path / 'theirs')) == ['config.json', 'thesis.tmp']
    train()
    for name in ('notes.tmp', 'ckpt.pt.123.tmp'):
        (tmp_path / 'run' / name).write_text('')
    train('--resume=True', '--max_iters=5')
    assert os.path.exists(tmp_path / 'run/notes.tmp')
    assert not os.path.exists(tmp_path / 'run/ckpt.pt.123.tmp')


def test_what_does_not_fit_the_run_to_be_resumed_gets_one_line(train):
    train('--max_iters=1')
    fails(['ckpt.pt', '--resume=False'], *train.command('--resume=True', '--optimizer=adamw'))


def test_a_signal_lets_the_step_end_saves_and_says_how_to_go_on(train, tmp_path):
    """To one of two ranks; both stop after the same step. Meanwhile nobody else gets the folder."""
    two = Run(*train.command('--max_iters=99999'), ranks=2)
    two.wait_for(lambda: 'training step' in two.text())
    fails([f'{tmp_path}/run'], *train.command())
    os.kill(two.ranks[1].pid, signal.SIGTERM)
    code, text = two.wait()
    assert code > 128 and '--resume=True' in text and 'Traceback' not in text
    saved = torch.load(tmp_path / 'run/ckpt.pt', weights_only=True)['step']
    assert saved == read_log(tmp_path / 'run')[-1]['step']
    assert f'before step {saved}' in text

    one = Run(*train.command('--max_iters=99999', '--resume=True'))
    one.wait_for(lambda: 'training step' in one.text())
    one.kill(signal.SIGINT)
    code, text = one.wait()
    assert code == 128 + signal.SIGINT and 'Traceback' not in text
    assert torch.load(tmp_path / 'run/ckpt.pt', weights_only=True)['step'] > saved


def test_a_part_that_two_runs_need_at_once_is_made_once(tmp_path):
    path = f'{tmp_path}/part'
    make = f"import time; time.sleep(0.2); open({path!r}, 'a').write('made')"
    runs = [FORK.Process(target=common.run_missing, args=({path: f'python -c "{make}"'},))
            for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert (tmp_path / 'part').read_text() == 'made'
    refused(['/proc/no/part'], common.run_missing, {'/proc/no/part': 'python x.py'})


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize('code, names', [
    ("[float('nan') if mine.calls == 3 else 1.0 for text in prompts]", ['mine', '=']),
    ("[1.0] * 3", ['mine', '[1.0, 1.0, 1.0]', '16']),
    ("[1 / 0]", ['mine', 'ZeroDivisionError', '='])])
def test_a_reward_that_fails_is_named_with_its_prompt(code, names, train, tmp_path):
    (tmp_path / 'mine.py').write_text(
        "rewards = {'mine': 1.0}\ndef mine(prompts, completions):\n"
        f"    mine.calls = getattr(mine, 'calls', 0) + 1\n    return {code}\n")
    fails(names, *train.command(tmp_path / 'mine.py', '--eval_prompts=4'))
    assert os.path.exists(tmp_path / 'run') == ('calls' in code)    # it fails later than at once


@pytest.mark.parametrize('max_iters, ranks', [(1, 1), (4, 2)])
def test_a_number_that_is_not_finite_ends_the_run_and_spares_its_checkpoint(
        max_iters, ranks, train, tmp_path):
    """The first update ruins the policy. An evaluation finds it, or else the next step: then both
    ranks do, and one says it."""
    fails(['step', 'is nan'], *train.command('--learning_rate=1e30', '--grad_clip=0',
                                             '--warmup_iters=0', f'--max_iters={max_iters}'),
          ranks=ranks)
    assert torch.load(tmp_path / 'run/ckpt.pt', weights_only=True)['step'] == 0
    assert weights(tmp_path / 'run/ckpt.pt').isfinite().all()


def test_a_full_disk_leaves_the_old_checkpoint(train, tmp_path):
    train()
    before = weights(tmp_path / 'run/ckpt.pt')

    def full_disk():
        def save(content, file):
            file.write(b'half')
            raise OSError(28, 'No space left on device')
        torch.save = save

    fails(['ckpt.pt', 'No space left'], *train.command('--resume=True', '--max_iters=6'),
          before=full_disk)
    assert torch.equal(weights(tmp_path / 'run/ckpt.pt'), before)
    assert not [name for name in os.listdir(tmp_path / 'run') if name.endswith('.tmp')]


def test_a_resumed_run_says_what_has_changed_imported_helpers_included(
        train, repository, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(repository)     # as python train_grpo.py has it
    deepest = pathlib.Path(repository, 'my_helpers_helper.py')
    deepest.write_text("def points(text): return len(text)\n")
    pathlib.Path(repository, 'my_helper.py').write_text("from my_helpers_helper import points\n")
    (tmp_path / 'mine.py').write_text(
        "import my_helper\nrewards = {'mine': 1.0}\ndef mine(prompts, completions):\n"
        "    return [my_helper.points(text) for text in completions]\n")
    train(tmp_path / 'mine.py')
    assert 'resumed with changes' not in train(tmp_path / 'mine.py', '--resume=True')
    deepest.write_text("def points(text): return 2 * len(text)\n")
    text = train(tmp_path / 'mine.py', '--resume=True', '--seed=3')
    changes = [line for line in text.splitlines() if 'resumed with changes' in line]
    assert 'functions' in changes[0] and 'seed 1 -> 3' in changes[0]

    def other_verify():
        data.dataset.code_digest = lambda code, values: 'other'

    text = train(tmp_path / 'mine.py', '--resume=True', '--seed=3', before=other_verify)
    assert re.search("changes: verify '.*' -> 'other'$", text, re.MULTILINE)


def test_a_failing_wandb_is_told_once_and_does_not_end_a_run(train, tmp_path):
    def log(line, step):
        if step == 2:
            raise ConnectionError("no route")

    def fake_wandb():
        sys.modules['wandb'] = types.SimpleNamespace(init=lambda **settings: None, log=log)

    text = train('--wandb_log=True', before=fake_wandb)
    assert text.count('no wandb') == text.count('no route') == 1
    assert len(read_log(tmp_path / 'run')) == 4 + 3


@pytest.mark.parametrize('flag, names', [
    ('--grop_size=3', ['grop_size', 'group_size']), ('--num_generations=8', ['group_size']),
    ('--group_size=1', ['group_size = 1']), ('--gradient_accumulation_steps=3', ['= 3', '2 mini']),
    ('--n_fill_steps=2', ["mode = 'fill'"]), ('--top_p=0', ['top_p']),
    ('--rewards={"jugde": 1.0}', ['jugde']), ('--dataset=arithmetics', ['arithmetics']),
    ('--blank_kind=random', ['random']), ('--group_size=2.5', ['2.5', 'int']),
    ('config/no.py', ['config/no.py']), ('--adv_norm=mean', ['mean', 'kl']),
    ('--target_kl=0.1', ['target_kl']), ('--grad_clip=-1', ['grad_clip', '0']),
    ('--seed=-1', ['seed']), ('--min_lr=nan', ['min_lr']), ('--device=cuda:99', ['cuda:99']),
    ('--generator_checkpoint=out/no.pt', ['out/no.pt'])])
def test_a_hurried_mistake_gets_one_line_and_leaves_nothing(flag, names, train, tmp_path):
    fails(names, *train.command(*ANSWERS, '--rewards={"verify": 1.0, "kl": -0.1}', '--kl_beta=0',
                                '--mini_batches=2', flag))
    assert not os.path.exists(tmp_path / 'run')


# ---- a step in this process ----------------------------------------------------------------------


@pytest.fixture
def toys(monkeypatch):
    """toys(**knobs) -> what take_step() wants of a task: two micro-steps of two prompts."""
    def make(**knobs):
        knobs = {'group_size': 3, 'block_size': 6, 'batch_size': 2,
                 'gradient_accumulation_steps': 2} | knobs
        for name, value in knobs.items():
            monkeypatch.setattr(train_grpo, name, value)
        size = {'vocab_size': 5, 'block_size': 6, 'n_layer': 2, 'n_head': 2, 'n_embd': 16}
        models = [GPT(**size, causal='mode' in knobs) for _ in range(2)]
        judge = Judge('likelihood', **size, causal=True)
        corpus = types.SimpleNamespace(tok=Tokenizer('char', 'abcd'), verify=None)
        prompts = Prompts(torch.randint(1, 5, (4, 6)), torch.arange(24).view(4, 6) % 6 > 1,
                          torch.rand(4, 6, 3), 0, torch.rand(4, 6))
        return *models, Scorer(corpus, judge), prompts

    return make


def test_a_policy_that_is_not_its_reference_is_found_before_the_first_step(toys, capsys):
    policy, reference, scorer, prompts = toys()
    train_grpo.check_start(policy, reference, scorer, prompts)      # both begin with equal guesses
    assert 'warning' in capsys.readouterr().out         # and the judge with equal scores
    torch.nn.init.normal_(reference.head.weight)
    refused(['the KL'], train_grpo.check_start, policy, reference, scorer, prompts)
    for network in (policy, reference):         # equal, but no numbers
        torch.nn.init.constant_(network.head.weight, torch.nan)
    refused(['off 1 by nan'], train_grpo.check_start, policy, reference, scorer, prompts)


def test_whether_a_text_is_its_answer_is_looked_at_only_where_it_is_rewarded(toys):
    policy, reference, scorer, prompts = toys(rewards={'judge': 1.0})
    scorer.data.check = lambda prompts, completions, originals: torch.ones(len(prompts)).double()
    scorer.data.verify = lambda prompt, completion, original: 1.0
    assert 'verify' not in train_grpo.evaluate(policy, reference, prompts, scorer)
    train_grpo.rewards['verify'] = 0.0          # only watched
    assert train_grpo.evaluate(policy, reference, prompts, scorer)['pass@4'] == 1
    train_grpo.rewards.pop('verify')
    scorer.data.verify = lambda prompt, completion: 1.0
    assert train_grpo.evaluate(policy, reference, prompts, scorer)['verify'] == 1


def test_a_reward_of_your_own_comes_before_truth_where_the_best_policy_is_chosen(toys):
    found = {'verify': 0.9, 'alone': 0.1, 'reward': 0.2}
    toys(rewards={'judge': 1.0, 'verify': 1.0})
    assert train_grpo.goal_of(found) == 'verify'
    toys(rewards={'verify': 1.0, 'mine': 1.0})
    assert train_grpo.goal_of(found) == 'alone'
    assert train_grpo.goal_of({'verify': 0.9, 'reward': 0.2}) == 'reward'


@pytest.mark.parametrize('knobs, most', [
    ({}, 3), ({'n_fill_steps': 3, 'fill_order': 'confident'}, 3 * 3),
    ({'inner_updates': 2, 'mini_batches': 2, 'top_p': 0.9}, 3),
    ({'mode': 'causal', 'loss_norm': 'sequence'}, 4 + 6 / 4)])
def test_a_step_does_not_mix_devices_and_seldom_waits_for_a_gpu(knobs, most, toys):
    """Waits are counted per micro-step."""
    policy, reference, scorer, prompts = toys(**knobs, update=lambda *args: torch.zeros(()))
    for network in (policy, reference, scorer.judge):
        move(network)
    common.clock.read()
    with pretend_gpu() as seen:
        train_grpo.take_step(policy, reference, [], scorer, prompts, 0.1, 0.1)
    assert not seen.mistakes
    assert 0 < len(seen.waits) / 2 <= most, seen.waits
