"""Runs: the same command gives the same run; resumed, killed, on two ranks, in pieces; nothing of
anybody's is overwritten; what goes wrong ends with one line. KILLS=40 kills that many of each."""
import json
import os
import random
import signal

import pytest
import torch

import common
import pretend_gpu
from processes import TOY, fails, run, start, weights

CAUSAL = ['--mode=causal', '--blank_kind=answer', '--rewards={"verify": 1.0, "length": -0.1}',
          '--generator_recipe=config/generator_equations.py --n_layer=2 --n_embd=32 '
          '--max_iters=20 --batch_size=32']
MODES = {
    'fill': ['--rewards={"judge": 1.0, "distinct": 0.3}', '--target_kl=0.01'],
    'passes': ['--n_fill_steps=3', '--top_p=0.9', '--mini_batches=2', '--inner_updates=2'],
    'confident': ['--n_fill_steps=2', '--fill_order=confident', '--optimizer=adamw'],
    'causal': CAUSAL + ['--top_p=0.9', '--inner_updates=2', '--kl_beta=0'],
}
TIMES = ('ms_', 'completions_per_s')


@pytest.fixture
def train(repository, tmp_path):
    """train(*flags) -> output of a run that ends well, in a folder of this test's own."""
    def go(*flags, out='run', **how):
        code, text = run(repository, 'train_grpo.py', *TOY, *flags,
                         f'--out_dir={tmp_path}/{out}', **how)
        assert code == 0, text
        return text
    go.folder = repository
    go.out = str(tmp_path)
    return go


def log_of(path):
    """The lines of a log without times."""
    lines = []
    with open(f'{path}/log.jsonl', encoding='utf-8') as file:
        for text in file:
            line = json.loads(text)
            lines.append({key: value for key, value in line.items() if not key.startswith(TIMES)})
    return lines


# ---- a run is a function of its command ----------------------------------------------------------


def test_the_same_command_gives_the_same_run_and_evaluating_changes_nothing(train):
    train(out='a')
    train(out='b')
    train('--eval_interval=1', '--log_interval=2', '--keep_checkpoints=True', out='c')
    assert log_of(f'{train.out}/a') == log_of(f'{train.out}/b')
    assert torch.equal(weights(f'{train.out}/a/ckpt.pt'), weights(f'{train.out}/c/ckpt.pt'))
    assert os.path.exists(f'{train.out}/c/ckpt-000003.pt')


@pytest.mark.parametrize('mode', MODES)
def test_a_run_in_pieces_ends_bit_for_bit_like_one_in_one_piece(mode, train):
    train(*MODES[mode], out='whole')
    train(*MODES[mode], '--max_iters=2', '--lr_decay_iters=4', out='pieces')
    text = train(*MODES[mode], '--resume=True', out='pieces')
    assert 'max_iters 2 -> 4' in text and 'lr_decay_iters 4 -> 0' in text
    whole, pieces = log_of(f'{train.out}/whole'), log_of(f'{train.out}/pieces')
    assert whole == pieces
    assert torch.equal(weights(f'{train.out}/whole/ckpt.pt'),
                       weights(f'{train.out}/pieces/ckpt.pt'))


@pytest.mark.parametrize('mode', ['fill', 'passes', 'causal'])
def test_a_run_that_is_killed_at_any_moment_goes_on_from_its_last_save(mode, train, repository):
    flags = [*TOY, *MODES[mode], '--max_iters=12', '--eval_interval=1']
    train(*flags, out='whole')
    rng = random.Random(mode)
    out = f'--out_dir={train.out}/killed'
    for i in range(int(os.environ.get('KILLS', 2))):
        going = start(repository, 'train_grpo.py', *flags, out, f'--resume={i > 0}')
        going.wait_for('| held-out')
        torch.randn(10 ** rng.randint(1, 7))    # some time, less than a second
        going.kill()
        going.wait()
    train(*flags, '--resume=True', out='killed')
    assert torch.equal(weights(f'{train.out}/whole/ckpt.pt'),
                       weights(f'{train.out}/killed/ckpt.pt'))
    assert log_of(f'{train.out}/whole') == log_of(f'{train.out}/killed')


@pytest.mark.parametrize('mode', ['fill', 'passes', 'causal'])
def test_two_ranks_and_other_micro_steps_take_the_steps_of_one_process(mode, train):
    """In float64, so that only the order of sums differs. Mini-batches are runs of micro-steps."""
    flags = [*MODES[mode], '--dtype=float64', '--gradient_accumulation_steps=4',
             '--loss_norm=sequence', '--entropy_coef=0.01']
    train(*flags, out='one')
    train(*flags, out='two', ranks=2)
    train(*flags, '--batch_size=2', '--gradient_accumulation_steps=8', out='eight')
    one = weights(f'{train.out}/one/ckpt.pt')
    for other in ('two', 'eight'):
        torch.testing.assert_close(weights(f'{train.out}/{other}/ckpt.pt'), one, atol=1e-9, rtol=0)
        for line, same in zip(log_of(f'{train.out}/one'), log_of(f'{train.out}/{other}')):
            assert line == pytest.approx(same, rel=1e-4, abs=1e-4)


def test_statistics_do_not_depend_on_the_order_in_which_names_were_added():
    first, second = common.Statistics(), common.Statistics()
    first.add(2, loss=3.0, kl=torch.tensor(5.0))
    first.add(1, grad_norm=7.0)
    second.add(1, grad_norm=7.0)
    second.add(2, kl=5.0, loss=torch.tensor(3.0))
    assert list(first.read('cpu').items()) == list(second.read('cpu').items())
    assert first.read('cpu') == {'grad_norm': 7.0, 'kl': 2.5, 'loss': 1.5}


def test_the_reference_scores_the_same_whatever_the_size_of_groups_is(train):
    train('--group_size=3', '--max_iters=1', out='3')
    train('--group_size=7', '--max_iters=1', out='7')
    assert log_of(f'{train.out}/3')[0] == log_of(f'{train.out}/7')[0]


def test_a_reward_about_the_group_is_not_counted_for_a_single_completion(train):
    (config := open(f'{train.out}/mine.py', 'w')).write('''
rewards = {'judge': 1.0, 'distinct': 1.0, 'mine': 2.0}
def mine(prompts, completions):
    return [1.0 for _ in completions]
mine.about_group = True
''')
    config.close()
    train(f'{train.out}/mine.py', '--max_iters=1')
    line = log_of(f'{train.out}/run')[0]
    assert line['eval/alone'] == line['eval/reward/judge']
    assert line['eval/ref_alone_argmax'] == line['eval/reward/judge_argmax']
    assert line['eval/reward'] == pytest.approx(
        line['eval/alone'] + line['eval/reward/distinct'] + 2)
    assert 'eval/reward_argmax' not in line
    train('--rewards={"distinct": 1.0}', '--max_iters=1', out='none')
    assert 'eval/alone' not in log_of(f'{train.out}/none')[0]


@pytest.mark.parametrize('flags', [
    ['--loss_norm=token'], ['--loss_norm=sequence', '--inner_updates=2'],
    ['--loss_norm=constant', '--kl_type=k3', '--objective=cispo', '--inner_updates=2']])
def test_the_terms_that_are_logged_add_up_to_the_loss(flags, train):
    train(*flags, '--entropy_coef=0.05', '--kl_beta=0.3', '--gradient_accumulation_steps=4')
    lines = [line for line in log_of(f'{train.out}/run') if 'loss' in line]
    assert len(lines) == 4
    for line in lines:
        terms = line['pg_loss'] + line['kl_penalty'] + line['entropy_bonus']
        assert line['loss'] == pytest.approx(terms, abs=1e-6)
    assert abs(lines[-1]['kl_penalty']) > 0


# ---- folders -------------------------------------------------------------------------------------


def test_a_run_never_overwrites_another(train):
    train()
    before = weights(f'{train.out}/run/ckpt.pt')
    text = train('--seed=2')
    assert 'run-1' in text
    assert torch.equal(weights(f'{train.out}/run-1/ckpt.pt'), before)
    assert not torch.equal(weights(f'{train.out}/run/ckpt.pt'), before)


def test_only_what_we_wrote_is_ours(train, repository, tmp_path):
    (tmp_path / 'theirs').mkdir()
    (tmp_path / 'theirs' / 'config.json').write_text('{"dataset": "arithmetic"}')
    (tmp_path / 'theirs' / 'thesis.tmp').write_text('years')
    fails(repository, 'train_grpo.py', *TOY, f'--out_dir={tmp_path}/theirs', names=['theirs'])
    fails(repository, 'train_grpo.py', *TOY, f'--out_dir={tmp_path}/theirs', '--resume=True',
          names=['theirs'])
    assert sorted(os.listdir(tmp_path / 'theirs')) == ['config.json', 'thesis.tmp']
    train()
    for name in ('notes.tmp', 'ckpt.pt.123.tmp'):
        (tmp_path / 'run' / name).write_text('')
    train('--resume=True', '--max_iters=5')
    assert os.path.exists(tmp_path / 'run' / 'notes.tmp')
    assert not os.path.exists(tmp_path / 'run' / 'ckpt.pt.123.tmp')
    os.symlink(tmp_path / 'run', tmp_path / 'link')
    fails(repository, 'train_grpo.py', *TOY, f'--out_dir={tmp_path}/link', names=['link'])
    assert os.path.islink(tmp_path / 'link')


def test_two_runs_in_one_folder_are_refused(repository, tmp_path):
    going = start(repository, 'train_grpo.py', *TOY, '--max_iters=99999',
                  f'--out_dir={tmp_path}/run')
    going.wait_for('| held-out')
    fails(repository, 'train_grpo.py', *TOY, f'--out_dir={tmp_path}/run', names=[f'{tmp_path}/run'])
    going.kill()
    going.wait()


def test_a_part_that_two_runs_need_at_once_is_made_once(repository, tmp_path):
    recipe = TOY[0].replace('--max_iters=40', '--max_iters=30')
    both = [start(repository, 'train_grpo.py', *TOY, recipe, f'--out_dir={tmp_path}/{i}')
            for i in range(2)]
    texts = []
    for going in both:
        code, text = going.wait()
        assert code == 0, text
        texts.append(text)
    assert sum('$ python model.py' in text for text in texts) == 1
    assert torch.equal(weights(f'{tmp_path}/0/ckpt.pt'), weights(f'{tmp_path}/1/ckpt.pt'))


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_step_end_saves_and_says_how_to_go_on(number, train, repository):
    going = start(repository, 'train_grpo.py', *TOY, '--max_iters=99999',
                  f'--out_dir={train.out}/run', ranks=2)
    going.wait_for('training reward')
    going.kill(number)
    code, text = going.wait()
    assert code > 128 and '--resume=True' in text and 'Traceback' not in text
    saved = torch.load(f'{train.out}/run/ckpt.pt', weights_only=True)['step']
    assert saved >= log_of(f'{train.out}/run')[-2]['step']


def bad_reward(path, code):
    with open(path, 'w', encoding='utf-8') as file:
        file.write("rewards = {'mine': 1.0}\ndef mine(prompts, completions):\n"
                   f"    mine.calls = getattr(mine, 'calls', 0) + 1\n    {code}\n")
    return str(path)


@pytest.mark.parametrize('code, names', [
    ("return [float('nan')] * len(prompts)", ['mine', '=']),
    ("return [1.0] * 3", ['mine', '[1.0, 1.0, 1.0]', '16']),
    ("return [1 / 0]", ['mine', 'ZeroDivisionError', '=']),
    ("return ['1'] * len(prompts)", ['mine', "'1'"])])
def test_a_reward_that_fails_is_named_with_its_prompt(code, names, repository, tmp_path):
    path = bad_reward(tmp_path / 'mine.py', code)
    fails(repository, 'train_grpo.py', *TOY, path, f'--out_dir={tmp_path}/run', names=names)


def test_a_number_that_is_not_finite_ends_the_run_and_spares_its_checkpoint(train, repository):
    path = bad_reward(f'{train.out}/mine.py', "return [(1e38 if mine.calls > 9 else 1.0) * "
                      "len(text) ** 9 for text in completions]")
    fails(repository, 'train_grpo.py', *TOY, path, f'--out_dir={train.out}/run',
          '--eval_prompts=4', '--max_iters=30', names=['is not finite'])
    assert torch.load(f'{train.out}/run/ckpt.pt', weights_only=True)['model']
    fails(repository, 'train_grpo.py', *TOY, '--learning_rate=1e30', '--grad_clip=0',
          f'--out_dir={train.out}/high', names=['step', 'is nan'])
    assert weights(f'{train.out}/high/ckpt.pt').isfinite().all()


def test_a_full_disk_leaves_the_old_checkpoint(train, repository):
    train()
    before = weights(f'{train.out}/run/ckpt.pt')

    def full_disk():
        def save(content, file):
            file.write(b'half')
            raise OSError(28, 'No space left on device')
        torch.save = save

    fails(repository, 'train_grpo.py', *TOY, f'--out_dir={train.out}/run', '--resume=True',
          '--max_iters=6', names=['ckpt.pt', 'No space left'], before=full_disk)
    assert torch.equal(weights(f'{train.out}/run/ckpt.pt'), before)
    assert not [name for name in os.listdir(f'{train.out}/run') if name.endswith('.tmp')]


def test_a_resumed_run_says_what_has_changed_imported_helpers_included(train, repository,
                                                                       monkeypatch):
    monkeypatch.syspath_prepend(repository)     # as python train_grpo.py has it
    with open(f'{repository}/my_helper.py', 'w') as file:
        file.write("def points(text): return len(text)\n")
    with open(f'{train.out}/mine.py', 'w') as file:
        file.write("import my_helper\nrewards = {'mine': 1.0}\ndef mine(prompts, completions):\n"
                   "    return [my_helper.points(text) for text in completions]\n")
    train(f'{train.out}/mine.py')
    same = train(f'{train.out}/mine.py', '--resume=True')
    assert 'resumed with changes' not in same
    with open(f'{repository}/my_helper.py', 'a') as file:
        file.write("# another thought\n")
    text = train(f'{train.out}/mine.py', '--resume=True', '--seed=3')
    changes = [line for line in text.splitlines() if 'resumed with changes' in line]
    assert 'functions' in changes[0] and 'seed 1 -> 3' in changes[0]


def test_a_failing_wandb_does_not_end_a_run(train):
    def no_wandb():
        import sys
        sys.modules['wandb'] = None             # an import of it raises ImportError
    assert text_count(train('--wandb_log=True', before=no_wandb), 'no wandb') == 1
    assert len(log_of(f'{train.out}/run')) == 4 + 3


def text_count(text, part):
    return sum(part in line for line in text.splitlines())


@pytest.mark.parametrize('flag, names', [
    ('--grop_size=3', ['grop_size', 'group_size']), ('--num_generations=8', ['group_size']),
    ('--group_size=1', ['group_size = 1']), ('--gradient_accumulation_steps=3', ['= 3', '2 mini']),
    ('--n_fill_steps=2', ["mode = 'fill'"]), ('--top_p=0', ['top_p']),
    ('--rewards={"jugde": 1.0}', ['jugde']), ('--dataset=arithmetics', ['arithmetics']),
    ('--blank_kind=random', ['random']), ('--group_size=2.5', ['2.5', 'int']),
    ('config/no.py', ['config/no.py']), ('--adv_norm=mean', ['mean', 'kl']),
    ('--target_kl=0.1', ['target_kl']), ('--device=cuda:99', ['cuda:99']),
    ('--generator_checkpoint=out/no.pt', ['out/no.pt'])])
def test_a_hurried_mistake_gets_one_line(flag, names, repository, tmp_path):
    fails(repository, 'train_grpo.py', *TOY, *CAUSAL, '--rewards={"verify": 1.0, "kl": -0.1}',
          '--kl_beta=0', '--mini_batches=2', flag, f'--out_dir={tmp_path}/run', names=names)
    assert not os.path.exists(tmp_path / 'run')


# ---- a GPU ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('flags, most', [
    ([], 3), (['--n_fill_steps=3', '--fill_order=confident'], 3 + 3 * 3),
    (['--inner_updates=2', '--mini_batches=2', '--top_p=0.9'], 3), (CAUSAL, 4 + 10 / 4)])
def test_a_step_does_not_mix_devices_and_seldom_waits_for_a_gpu(flags, most, repository, tmp_path):
    """A CPU that follows CUDA's rules counts per micro-step, of which there are two a step."""
    result = f'{tmp_path}/seen.json'
    code, text = run(repository, 'train_grpo.py', *TOY, *flags, '--device=cuda', '--compile=False',
                     '--max_iters=2', f'--out_dir={tmp_path}/run',
                     before=lambda: pretend_gpu.pretend(result, within='take_step'))
    assert code == 0, text
    with open(result, encoding='utf-8') as file:
        seen = json.load(file)
    assert seen['mistakes'] == {}
    assert sum(seen['waits'].values()) / 4 <= most, seen['waits']
