"""Runs: the same command gives the same run; resumed, killed, on two ranks; nothing is overwritten;
errors end with a sentence. KILLS=40 kills that many runs of each kind."""
import glob
import json
import os
import random
import re
import signal
import sys
import time
import types

import pytest
import torch

from processes import ROOT, TOY, Run, fails, interrupt_at_step, make_network, run, weights

ANSWERS = ['--generator=out/generator_equations-arithmetic.pt', '--blank_kind=answer',
           '--rewards={"verify": 1.0, "length": -0.1}']
KINDS = {
    'fill': ['--rewards={"judge": 1.0, "distinct": 0.3}', '--target_kl=0.01'],
    'passes': ['--n_fill_steps=3', '--top_p=0.9', '--mini_batches=2', '--inner_updates=2',
               '--optimizer=adamw'],
    'causal': ANSWERS + ['--top_p=0.9', '--inner_updates=2', '--kl_beta=0'],
}
THREE_KINDS = pytest.mark.parametrize('kind', KINDS)


@pytest.fixture
def train(repository, tmp_path):
    """train(*flags) -> output of a run of GRPO that ends well, in a folder of this test.
    train.command(*flags): what Run() and fails() need for the same run."""
    def command(*flags, out='run'):
        words = [*TOY, *map(str, flags), f'--out_dir={tmp_path}/{out}']
        return repository, 'train_grpo.py', *words

    def train(*flags, out='run', **more):
        code, text = run(*command(*flags, out=out), **more)
        assert code == 0, text
        return text

    train.command = command
    return train


def read_log(folder):
    """Return the lines of a log, the last one of each step and kind, without times."""
    lines = {}
    with open(f'{folder}/log.jsonl', encoding='utf-8') as file:
        for text in file:
            line = json.loads(text)
            lines[line['step'], 'loss' in line] = {
                name: value for name, value in line.items() if name not in ('ms', 'seconds_left')}
    return [lines[key] for key in sorted(lines)]


def assert_same(a, b):
    """Two runs have the same log and the same weights, bit for bit."""
    assert read_log(a) == read_log(b)
    for name in ('ckpt.pt', 'best.pt'):
        assert torch.equal(weights(f'{a}/{name}'), weights(f'{b}/{name}'))


# ---- a run is a function of its command ----------------------------------------------------------


def test_the_same_command_gives_the_same_run_and_evaluating_changes_nothing(train, tmp_path):
    train(out='a')
    train(out='b')
    train('--eval_interval=1', '--log_interval=2', out='c')
    train('--seed=2', out='d')                  # the held-out prompts are always the same
    assert read_log(tmp_path / 'a')[0] == read_log(tmp_path / 'd')[0]
    assert_same(tmp_path / 'a', tmp_path / 'b')
    assert torch.equal(weights(tmp_path / 'a/ckpt.pt'), weights(tmp_path / 'c/ckpt.pt'))


def test_the_line_to_beat_stays_that_of_the_start(train, tmp_path):
    text = train('--learning_rate=0.1')
    first, *_, last = [line for line in read_log(tmp_path / 'run') if 'eval/verify' in line]
    assert first['eval/judge_greedy'] != last['eval/judge_greedy']
    content = torch.load(tmp_path / 'run/ckpt.pt', weights_only=True)
    for name, value in content['at_start'].items():
        assert value == first[f'eval/{name}']
    numbers = re.findall(r'\| start ([\d.]+) \| line to beat ([\d.]+)', text)
    assert set(numbers) == {(f"{first['eval/verify']:.3f}", f"{first['eval/verify_greedy']:.3f}")}
    again = train('--learning_rate=0.1', '--max_iters=6', '--resume=True')
    assert set(re.findall(r'\| start ([\d.]+) \| line to beat ([\d.]+)', again)) == set(numbers)


def test_compiled_networks_take_the_same_steps(train, tmp_path):
    train(out='eager')
    train('--compile=True', before=lambda: torch.compiler.set_stance('force_eager'), out='compiled')
    assert_same(tmp_path / 'eager', tmp_path / 'compiled')


@THREE_KINDS
def test_a_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one(kind, train, tmp_path):
    """A Ctrl-C between two evaluations changes nothing, neither does a log that goes on later."""
    flags = [*KINDS[kind], '--max_iters=6', '--eval_interval=3']
    train(*flags, out='whole')
    going = Run(*train.command(*flags, out='parts'), before=interrupt_at_step(4))
    assert going.wait()[0] == 128 + signal.SIGINT
    assert torch.load(tmp_path / 'parts/ckpt.pt', weights_only=True)['step'] == 5
    train(*flags, '--resume=True', out='parts')
    assert_same(tmp_path / 'whole', tmp_path / 'parts')


@THREE_KINDS
def test_a_run_that_is_killed_at_any_moment_goes_on_from_its_last_checkpoint(kind, train, tmp_path):
    flags = [*KINDS[kind], '--max_iters=12', '--eval_interval=1']
    train(*flags, out='whole')
    rng = random.Random(kind)
    for i in range(int(os.environ.get('KILLS', 1))):
        going = Run(*train.command(*flags, f'--resume={i > 0}', out='killed'))
        going.wait_for(lambda: os.path.exists(tmp_path / 'killed/ckpt.pt'))
        time.sleep(rng.random() / 3)
        going.kill(signal.SIGKILL)
        going.wait()
    train(*flags, '--resume=True', out='killed')
    assert torch.equal(weights(tmp_path / 'whole/ckpt.pt'), weights(tmp_path / 'killed/ckpt.pt'))


@THREE_KINDS
def test_two_ranks_and_other_micro_steps_take_the_steps_of_one_process(kind, train, tmp_path):
    """In float64, so that only the order of sums differs."""
    flags = [*KINDS[kind], '--dtype=float64', '--max_iters=2', '--gradient_accumulation_steps=4',
             '--loss_norm=sequence', '--entropy_coef=0.01']
    train(*flags, '--batch_size=2', out='one')
    train(*flags, '--batch_size=2', out='two', ranks=2)
    train(*flags, '--batch_size=1', '--gradient_accumulation_steps=8', out='eight')
    for other, atol in (('two', 1e-12), ('eight', 1e-9)):
        torch.testing.assert_close(weights(tmp_path / other / 'ckpt.pt'),
                                   weights(tmp_path / 'one/ckpt.pt'), atol=atol, rtol=0)
        for line, same in zip(read_log(tmp_path / 'one'), read_log(tmp_path / other), strict=True):
            assert line == pytest.approx(same, rel=1e-4, abs=1e-4)


def test_before_the_first_update_the_ratio_is_1_and_the_kl_0(train, tmp_path):
    for flags in ([], ANSWERS, ['--inner_updates=2'], [*ANSWERS, '--inner_updates=2']):
        train(*flags, '--max_iters=1', '--learning_rate=0', '--min_lr=0', '--dtype=bfloat16')
        line = next(line for line in read_log(tmp_path / 'run') if 'loss' in line)
        assert line['ratio_off'] < 1e-3 and abs(line['kl']) < 1e-3


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
        assert line['mean_reward'] == pytest.approx(line['mean_judge'])


def test_samples_are_whole_groups_whose_numbers_add_up(train, tmp_path):
    train('--rewards={"judge": 0.5, "distinct": 2.0}', '--max_iters=1', '--adv_norm=none')
    with open(tmp_path / 'run/samples.jsonl') as file:
        samples = [json.loads(line) for line in file]
    assert len(samples) == 3 * 4
    for i, sample in enumerate(samples):
        group = samples[i // 4 * 4:i // 4 * 4 + 4]
        mean = sum(other['reward'] for other in group) / 4
        assert all(other['prompt'] == sample['prompt'] for other in group)
        assert sample['reward'] == pytest.approx(0.5 * sample['judge'] + 2 * sample['distinct'])
        assert sample['advantage'] == pytest.approx(sample['reward'] - mean, abs=1e-6)


# ---- every config file ---------------------------------------------------------------------------


@pytest.mark.parametrize('name', sorted(
    path.rpartition('_')[2][:-3] for path in glob.glob(f'{ROOT}/config/grpo_*.py')))
def test_every_config_file_runs_with_the_recipes_that_it_names(name, repository, tmp_path):
    """The networks are made in this process first. The run must find them as it names them."""
    if name == 'smollm2':
        pytest.skip("tests/test_pretrained.py runs it")
    config = {'dataset': 'arithmetic', 'generator': 'config/generator_arithmetic.py',
              'judge': 'config/judge_arithmetic.py'}
    with open(f'{repository}/config/grpo_{name}.py') as file:
        config |= dict(re.findall(r"^(dataset|generator|judge) = '(\S+)'", file.read(), re.M))
    flags = []
    if name == 'pairs':
        lines = [json.dumps({'prompt': f'{i}h{i}m=', 'answer': str(i % 3)}) for i in range(60)]
        (tmp_path / 'mine.jsonl').write_text('\n'.join(lines))
        config['dataset'] = str(tmp_path / 'mine.jsonl')
        flags = [f'--dataset={config["dataset"]}']
    for recipe in (config['generator'], config['judge']):
        make_network(repository, recipe[7:-3], config['dataset'])
    code, text = run(repository, 'train_grpo.py', f'config/grpo_{name}.py', *flags, '--max_iters=1',
                     '--batch_size=2', '--group_size=4', '--eval_prompts=4', '--log_interval=1',
                     '--gradient_accumulation_steps=4', '--device=cpu', '--compile=False',
                     f'--out_dir={tmp_path}/run')
    assert code == 0 and 'mean_reward' in text and f'$ {sys.executable}' not in text, text


# ---- networks by name ----------------------------------------------------------------------------


def test_a_recipe_makes_its_network_once_and_again_if_a_knob_changes(repository, tmp_path):
    recipe = tmp_path / 'generator_new.py'
    recipe.write_text("objective = 'fill'\nmax_iters = 1\nn_embd = 32\n")
    words = [repository, 'train_grpo.py', f'--generator={recipe}', '--max_iters=0',
             '--eval_prompts=4', '--rewards={"verify": 1.0}', f'--out_dir={tmp_path}/run']
    path = f'{repository}/out/generator_new-arithmetic.pt'
    code, text = run(*words)
    assert code == 0 and f'$ {sys.executable} pretrain.py' in text, text
    first = weights(path)
    assert f'$ {sys.executable}' not in run(*words)[1]
    recipe.write_text("objective = 'fill'\nmax_iters = 1\nn_embd = 16\n")
    code, text = run(*words)
    assert code == 0 and "{'n_embd': 16}" in text and f'{path[len(repository) + 1:]}.old' in text
    assert torch.equal(weights(f'{path}.old'), first) and len(weights(path)) < len(first)


def test_networks_of_different_vocabularies_are_refused_before_any_training(repository, tmp_path):
    make_network(repository, 'generator_prose', 'docstrings')
    fails(['vocabulary'], *[repository, 'train_grpo.py', *TOY],
          '--judge=out/generator_prose-docstrings.pt', f'--out_dir={tmp_path}/run')


def test_pretraining_never_writes_over_a_file_of_another_kind(repository, tmp_path, train):
    (tmp_path / 'README.md').write_text('mine')
    fails(['README.md'], repository, 'pretrain.py', f'--out={tmp_path}/README.md')
    train('--max_iters=0')
    before = weights(tmp_path / 'run/ckpt.pt')
    fails(['ckpt.pt', 'not written by pretrain.py'], repository, 'pretrain.py',
          f'--out={tmp_path}/run/ckpt.pt')
    assert (tmp_path / 'README.md').read_text() == 'mine'
    assert torch.equal(weights(tmp_path / 'run/ckpt.pt'), before)


@pytest.mark.parametrize('recipe, dataset, better_than', [
    ('generator_arithmetic', 'arithmetic', 1.9), ('generator_equations', 'arithmetic', 1.9),
    ('judge_classifier', 'arithmetic', 0.69), ('judge_labels', 'failure_labels', 0.5)])
def test_pretraining_learns(recipe, dataset, better_than, repository, tmp_path):
    """A guess costs log 13 = 2.56 nats at first, a label log 2 = 0.69."""
    flags = ['--max_iters=120', '--batch_size=64', f'--dataset={dataset}', f'--out={tmp_path}/a.pt']
    if recipe == 'judge_classifier':
        flags.append('--generator=out/generator_arithmetic.pt')
    code, text = run(repository, 'pretrain.py', f'config/{recipe}.py', *flags)
    losses = re.findall(r'held-out loss (\S+)', text)
    assert code == 0 and float(losses[-1]) < better_than, text


# ---- folders and signals -------------------------------------------------------------------------


def test_a_run_never_overwrites_another(train, tmp_path):
    train()
    before = weights(tmp_path / 'run/ckpt.pt')
    assert 'run-1' in train('--seed=2')
    assert torch.equal(weights(tmp_path / 'run-1/ckpt.pt'), before)
    assert not torch.equal(weights(tmp_path / 'run/ckpt.pt'), before)
    (tmp_path / 'theirs').mkdir()
    (tmp_path / 'theirs/config.json').write_text('{}')
    fails(['theirs'], *train.command(out='theirs'))
    assert os.listdir(tmp_path / 'theirs') == ['config.json']


def test_a_signal_lets_the_step_end_saves_and_says_how_to_go_on(train, tmp_path):
    """It goes to one of two ranks; both stop after the same step. Meanwhile the folder is locked.
    """
    two = Run(*train.command('--max_iters=99999'), ranks=2)
    two.wait_for(lambda: 'mean_reward' in two.text())
    fails(['another run is already writing', 'run'], *train.command())
    os.kill(two.ranks[1].pid, signal.SIGTERM)
    code, text = two.wait()
    assert code == two.ranks[1].exitcode == 128 + signal.SIGTERM
    assert '--resume=True' in text and 'Traceback' not in text
    saved = torch.load(tmp_path / 'run/ckpt.pt', weights_only=True)['step']
    assert saved == read_log(tmp_path / 'run')[-1]['step'] + 1
    assert f'before step {saved}' in text


def test_a_signal_ends_the_training_of_networks_too(repository, tmp_path):
    recipe = tmp_path / 'generator_slow.py'
    recipe.write_text('max_iters = 99999\neval_interval = 1\n')
    going = Run(repository, 'train_grpo.py', f'--generator={recipe}',
                '--rewards={"verify": 1.0}', f'--out_dir={tmp_path}/run')
    going.wait_for(lambda: 'step 1' in going.text())
    going.kill(signal.SIGTERM)
    code, text = going.wait()
    assert code == 128 + signal.SIGTERM and 'Traceback' not in text
    time.sleep(0.5)
    size = len(going.text())
    time.sleep(0.5)
    assert len(going.text()) == size            # nobody goes on writing
    assert not os.path.exists(f'{repository}/out/generator_slow-arithmetic.pt')


def test_a_resumed_run_keeps_its_network_and_takes_new_knobs(train, tmp_path):
    fails(['nothing to resume', 'ckpt.pt'], *train.command('--resume=True'))
    train('--max_iters=2')
    log = (tmp_path / 'run/log.jsonl').read_text()
    for flags in (['--optimizer=adamw'], ANSWERS):
        fails(['a resumed run keeps'], *train.command('--resume=True', *flags))
    content = torch.load(tmp_path / 'run/ckpt.pt', weights_only=True)
    torch.save(content | {'step': 5}, tmp_path / 'run/ckpt.pt')
    fails(['step 5'], *train.command('--resume=True'))
    torch.save(content, tmp_path / 'run/ckpt.pt')
    assert (tmp_path / 'run/log.jsonl').read_text() == log
    train('--resume=True', '--weight_decay=0.1', '--beta1=0.8', '--rewards={"distinct": 1.0}')
    saved = torch.load(tmp_path / 'run/ckpt.pt', weights_only=True)
    for optimizer in saved['optimizers']:
        assert optimizer['param_groups'][0]['weight_decay'] == 0.1
    assert saved['optimizers'][0]['param_groups'][0]['betas'][0] == 0.8
    assert 'distinct' in saved['at_start'] and 'judge' not in saved['at_start']


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize('code, words', [
    ("[float('nan') if mine.calls == 3 else 1.0 for text in prompts]", ['mine', 'nan', 'finite']),
    ("[1.0] * 3", ['mine', '1.', 'expected']),
    ("[1 / 0]", ['ZeroDivisionError']),
    ("__import__('sys').exit()", ['mine', 'sys.exit()'])])
def test_a_reward_that_fails_ends_the_run_and_is_named(code, words, train, tmp_path):
    (tmp_path / 'mine.py').write_text(
        "rewards = {'mine': 1.0}\ndef mine(prompts, completions):\n"
        f"    mine.calls = getattr(mine, 'calls', 0) + 1\n    return {code}\n")
    text = fails(words, *train.command(tmp_path / 'mine.py', '--eval_prompts=4'))
    assert 'mine.py' in text or 'mine' in words         # a traceback shows the line


def test_a_reward_may_change_folder_and_grad_mode_and_return_a_tensor_with_a_graph(train, tmp_path):
    (tmp_path / 'mine.py').write_text(
        "import os, torch\nrewards = {'mine': 1.0}\ndef mine(prompts, completions):\n"
        "    os.chdir('/')\n    torch.set_grad_enabled(False)\n"
        "    return torch.rand(len(prompts), requires_grad=True) * 2\n")
    train(tmp_path / 'mine.py')
    assert sorted(os.listdir(tmp_path / 'run')) == ['best.pt', 'ckpt.pt', 'config.json',
                                                    'log.jsonl', 'samples.jsonl']


@pytest.mark.parametrize('max_iters, ranks', [(1, 1), (4, 2)])
def test_a_number_that_is_not_finite_ends_the_run_and_spares_its_checkpoint(
        max_iters, ranks, train, tmp_path):
    """The first update ruins the policy. An evaluation notices, or else the next step."""
    fails(['finite'], *train.command('--learning_rate=1e30', '--grad_clip=0', '--warmup_iters=0',
                                     f'--max_iters={max_iters}'), ranks=ranks)
    assert torch.load(tmp_path / 'run/ckpt.pt', weights_only=True)['step'] == 0
    assert weights(tmp_path / 'run/ckpt.pt').isfinite().all()


def test_a_full_disk_leaves_the_old_checkpoint(train, tmp_path):
    train()
    before = weights(tmp_path / 'run/ckpt.pt')

    def full_disk():
        def save(content, path):
            with open(path, 'wb') as file:
                file.write(b'half')
            raise OSError(28, 'No space left on device')
        torch.save = save

    fails(['.pt', 'No space left'], *train.command('--resume=True', '--max_iters=6'),
          before=full_disk)
    assert torch.equal(weights(tmp_path / 'run/ckpt.pt'), before)
    assert not [name for name in os.listdir(tmp_path / 'run') if name.endswith('.tmp')]


def test_numbers_go_to_wandb(train, tmp_path):
    lines = tmp_path / 'lines.txt'

    def fake_wandb():
        def log(numbers, step):
            with open(lines, 'a') as file:
                print(step, *numbers, file=file)
        start = types.SimpleNamespace(log=log)
        sys.modules['wandb'] = types.SimpleNamespace(init=lambda project, name, config: start)

    train('--wandb_project=mine', before=fake_wandb)
    assert len(lines.read_text().splitlines()) == 4 + 3


@pytest.mark.parametrize('flags, words', [
    (['--grop_size=3'], ['grop_size', 'group_size']), (['--rewards={}'], ['rewards = {}']),
    (['--rewards={"jugde": 1.0}'], ['jugde', 'judge']), (['--group_size=1'], ['group_size = 1']),
    (['--gradient_accumulation_steps=3', '--mini_batches=2'], ['gradient_accumulation_steps = 3']),
    (['--adv_norm=x'], ["'x'"]), (['--kl_type=x', '--max_iters=2'], ["'x'"]),
    (['--loss_norm=x'], ["'x'"]), (['--objective=x'], ["'x'", 'cispo']),
    (['--ratio_level=x'], ["'x'"]), (['--fill_order=x'], ["'x'", 'left']),
    (['--blank_kind=x'], ["'x'", 'span']), (['--optimizer=x'], ["'x'", 'muon']),
    (['--dtype=half'], ["'half'", 'bfloat16']), (['--device=gpu'], ["'gpu'", 'cuda', 'mps']),
    (['--top_p=1.5'], ['top_p = 1.5']), (['--beta1=1.0'], ['beta']),
    (['--kl_beta=-1'], ['kl_beta']),
    (['--dataset=arithmetik'], ['arithmetik', 'arithmetic']),
    (['--generator=no.pt'], ['no.pt']), (['config/grpo_konfig.py'], ['grpo_config.py']),
    (['--target_kl=0.1', '--kl_beta=0'], ['kl_beta'])])
def test_a_mistake_on_the_command_line_ends_with_a_sentence(flags, words, train):
    fails(words, *train.command(*flags))


@pytest.mark.parametrize('flags, words', [
    (['--n_embd=30'], ['n_embd = 30']), (['--n_embd=0'], ['n_embd = 0']),
    (['--objective=both'], ['both']),
    (['--learning_rate=1e30', '--grad_clip=0'], ['finite']), (['--positions=x'], ["'x'"]),
    (['--tokenizer=x'], ["'x'"]), (['--blank_high=2.0'], ['blank_high'])])
def test_a_mistake_in_a_recipe_ends_with_a_sentence_and_writes_nothing(
        flags, words, repository, tmp_path):
    fails(words, repository, 'pretrain.py', 'config/generator_arithmetic.py', *flags,
          f'--out={tmp_path}/a.pt')
    assert os.listdir(tmp_path) == []


# ---- sample.py -----------------------------------------------------------------------------------


def test_sample_shows_the_numbers_that_the_run_prints(train, repository, tmp_path):
    text = train('--temperature=0.7', '--top_k=3', '--rewards={"judge": 1.0, "verify": 0.5}')
    last = read_log(tmp_path / 'run')[-1]
    assert f'python sample.py {tmp_path}/run' in text
    code, text = run(repository, 'sample.py', f'{tmp_path}/run', '--num_samples=2')
    policy = re.findall(r'^policy .*', text, re.M)[-1]
    assert code == 0, text
    for name in ('judge', 'verify', 'judge_greedy'):
        assert f'| {name} {last["eval/" + name]:.3f}' in policy
    for words in ([f'{tmp_path}/run', '--prompt=1_+3_=__7', '--group_size=3'],
                  [f'{tmp_path}/run', '--top_k=0'],
                  ['out/generator_equations-arithmetic.pt', '--prompt=12+35=']):
        code, text = run(repository, 'sample.py', *words, '--eval_prompts=4')
        assert code == 0, text
    fails(["'x'"], repository, 'sample.py', f'{tmp_path}/run', '--prompt=x_')
    fails(['no-run'], repository, 'sample.py', 'no-run')
    code, text = run(repository, 'sample.py', 'out/generator_arithmetic.pt', '--num_samples=1',
                     '--eval_prompts=4')
    assert code == 0 and 'verify' in text, text


def test_sample_runs_no_code_that_a_checkpoint_names(train, repository, tmp_path):
    config = tmp_path / 'theirs.py'
    config.write_text("rewards = {'charm': 1.0}\n"
                      f"open({str(tmp_path / 'was-here')!r}, 'a').write('x')\n"
                      "def charm(prompts, completions): return [3.0] * len(prompts)\n")
    train(config, '--max_iters=0')
    assert (tmp_path / 'was-here').read_text() == 'x'
    code, text = run(repository, 'sample.py', f'{tmp_path}/run', '--num_samples=1')
    assert code == 0 and 'charm' not in text, text
    assert (tmp_path / 'was-here').read_text() == 'x'
    code, text = run(repository, 'sample.py', f'{tmp_path}/run', '--num_samples=1', str(config))
    assert code == 0 and 'charm 3.000' in text, text
