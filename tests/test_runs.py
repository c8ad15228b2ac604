"""Runs: the same command gives the same run; resumed, killed, on two ranks; nothing is overwritten;
errors end with a sentence."""
import json
import os
import pathlib
import re
import signal
import sys
import time

import pytest
import torch

import train_grpo
from common import configure
from data.dataset import Dataset
from judge import judge_sequences
from model import complete, load_checkpoint, load_network
from processes import (ROOT, TOY, Run, at_step, fails, make_network, run, succeeds,
                       weights, write)

ANSWERS = ['--generator=out/generator_equations-arithmetic.pt', '--blank_kind=answer',
           '--rewards={"verify": 1.0, "length": -0.1}']
KINDS = {
    'fill': ['--rewards={"judge": 1.0, "distinct": 0.3}', '--target_kl=0.01'],
    'passes': ['--n_fill_steps=3', '--top_p=0.9', '--mini_batches=2', '--inner_updates=2',
               '--optimizer=adamw'],
    'causal': ANSWERS + ['--top_p=0.9', '--inner_updates=2', '--kl_beta=0'],
}
THREE_KINDS = pytest.mark.parametrize('kind', KINDS)


def command(*flags, out='run'):
    """Return the words of a run of GRPO in a folder of this test."""
    return 'train_grpo.py', *TOY, *flags, f'--out_dir={out}'


def train(*flags, out='run', **more):
    """Run GRPO to its end. Return the output."""
    return succeeds(*command(*flags, out=out), **more)


def read_log(folder):
    """Return the lines of a log, the last one of each step and kind, without times."""
    lines = {}
    for text in open(f'{folder}/log.jsonl'):
        line = json.loads(text)
        lines[line['step'], 'loss' in line] = line | {'ms': 0, 'seconds_left': 0}
    return [lines[key] for key in sorted(lines)]


def assert_same(a, b):
    """Two runs have the same log and the same weights, bit for bit."""
    assert read_log(a) == read_log(b)
    for name in ('ckpt.pt', 'best.pt'):
        assert weights(f'{a}/{name}').equal(weights(f'{b}/{name}'))


# ---- a run is a function of its command ----------------------------------------------------------


def test_the_same_command_gives_the_same_run_and_compiling_and_evaluating_change_nothing():
    train(out='a')
    train(out='b')
    train('--compile=True', before=lambda: torch.compiler.set_stance('force_eager'), out='compiled')
    train('--eval_interval=1', '--log_interval=2', '--eval_prompts=6', out='often')
    train('--seed=2', '--max_iters=0', out='seed')      # the held-out prompts are always the same
    assert_same('a', 'b')
    assert_same('a', 'compiled')
    assert weights('a').equal(weights('often'))
    assert read_log('a')[0] == read_log('seed')[0]


def test_the_line_to_beat_stays_that_of_the_start():
    path = write('mine.py', "rewards = {'ones': 1.0}\n"
                 "def ones(prompts, texts): return [text.count('1') for text in texts]\n")
    text = train(path) + train(path, '--max_iters=6', '--resume=True')
    first, *_, last = read_log('run')
    assert first['eval/reward'] != last['eval/reward']
    numbers = set(re.findall(r'\| start (\S+) \| line to beat (\S+)', text))
    assert numbers == {(f"{first['eval/reward']:.3f}", f"{first['eval/reward_greedy']:.3f}")}


@THREE_KINDS
@pytest.mark.parametrize('number, code, next_step', [(signal.SIGINT, 130, 5),
                                                     (signal.SIGKILL, -9, 3)])
def test_a_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one(kind, number, code, next_step):
    """A Ctrl-C between two evaluations saves, and changes nothing else. A run that is killed goes
    on from its last checkpoint, and its log repeats some steps."""
    flags = [*KINDS[kind], '--max_iters=6', '--eval_interval=3']
    train(*flags, out='whole')
    assert run(*command(*flags, out='parts'), before=at_step(4, number))[0] == code
    assert load_checkpoint('parts')['step'] == next_step
    train(*flags, '--resume=True', out='parts')
    assert_same('whole', 'parts')


@THREE_KINDS
def test_two_ranks_and_other_micro_steps_take_the_steps_of_one_process(kind):
    """In float64, so that only the order of sums differs."""
    flags = [*KINDS[kind], '--dtype=float64', '--max_iters=2', '--gradient_accumulation_steps=4',
             '--loss_norm=sequence', '--entropy_coef=0.01', '--batch_size=2']
    train(*flags, out='one')
    train(*flags, out='two', ranks=2)
    train(*flags, '--batch_size=1', '--gradient_accumulation_steps=8', out='eight')
    for other, atol in (('two', 1e-12), ('eight', 1e-9)):
        assert (weights(other) - weights('one')).abs().max() < atol
        for line, same in zip(read_log('one'), read_log(other), strict=True):
            assert line == pytest.approx(same, rel=1e-4, abs=1e-4)


def test_before_the_first_update_the_ratio_is_1_and_the_kl_0_even_in_bfloat16():
    train(*ANSWERS, '--inner_updates=2', '--max_iters=1', '--learning_rate=0', '--min_lr=0',
          '--dtype=bfloat16')
    _, line, _ = read_log('run')
    assert line['ratio_off'] == line['kl'] == 0


def test_samples_are_whole_groups_whose_numbers_add_up():
    train('--rewards={"judge": 0.5, "distinct": 2.0}', '--max_iters=1', '--adv_norm=none')
    samples = [json.loads(line) for line in open('run/samples.jsonl')]
    assert len(samples) == 3 * 4
    sums = dict.fromkeys([sample['prompt'] for sample in samples], 0.0)
    for sample in samples:
        parts = 0.5 * sample['judge'] + 2 * sample['distinct']
        assert sample['reward'] == pytest.approx(parts, abs=1e-6)
        sums[sample['prompt']] += sample['advantage']
    assert list(sums.values()) == pytest.approx([0, 0, 0], abs=1e-5)


# ---- every config file ---------------------------------------------------------------------------


@pytest.mark.parametrize('name', [path.stem for path in sorted(ROOT.glob('config/grpo_*.py'))
                                  if path.stem != 'grpo_smollm2'])      # see test_pretrained.py
def test_every_config_file_runs_with_the_recipes_that_it_names(name):
    """The networks are made in this process first. The run must find them as it names them."""
    lines = [json.dumps({'prompt': f'{i}h{i}m=', 'answer': str(i % 3)}) for i in range(60)]
    words = [f'config/{name}.py']
    if name == 'grpo_pairs':
        words.append('--dataset=' + write('times.jsonl', '\n'.join(lines)))
    config, _ = configure(vars(train_grpo).copy(), words)
    for knob in ('generator', 'judge'):
        make_network(pathlib.Path(config[knob]).stem, config['dataset'])
    text = succeeds('train_grpo.py', *words, '--max_iters=1', '--batch_size=2', '--group_size=4',
                    '--eval_prompts=4', '--log_interval=1', '--gradient_accumulation_steps=4',
                    '--device=cpu', '--compile=False', '--out_dir=run')
    assert 'mean_reward' in text and sys.executable not in text
    if name == 'grpo_pairs':                    # a typed prompt has no answer to compare with
        text = succeeds('sample.py', 'run', '--prompt=1h1m=')
        assert 'not shown: verify' in text and text.count('verify') == 1


# ---- networks by name ----------------------------------------------------------------------------


def test_a_recipe_makes_its_network_once_and_again_if_a_knob_changes():
    for n_embd, is_made in ((32, True), (32, False), (16, True)):
        recipe = write('generator_new.py', f'max_iters = 1\nn_embd = {n_embd}\n')
        text = train(f'--generator={recipe}', '--max_iters=0', '--rewards={"verify": 1.0}')
        assert (f'{sys.executable} pretrain.py' in text) == is_made
    assert "{'n_embd': 16}" in text
    path = 'out/generator_new-arithmetic.pt'
    assert len(weights(path)) < len(weights(f'{path}.old'))
    before = weights(path)
    fails('n_embd = 30', 'pretrain.py', recipe, '--n_embd=30')
    assert weights(path).equal(before)
    fails('a resumed run keeps', *command(f'--generator={path}.old', '--resume=True',
                                          '--rewards={"verify": 1.0}'))


def test_pretraining_never_writes_over_a_file_of_another_kind():
    write('mine.md', 'mine')
    train('--max_iters=0')
    fails('mine.md', 'pretrain.py', '--out=mine.md')
    for path in ('run/ckpt.pt', 'out/judge_arithmetic.pt'):
        fails('was not made by', 'pretrain.py', f'--out={path}')
    assert pathlib.Path('mine.md').read_text() == 'mine' and 'step' in load_checkpoint('run')


@pytest.mark.parametrize('recipe, dataset, better_than', [
    ('generator_arithmetic', 'arithmetic', 1.9), ('generator_equations', 'arithmetic', 1.9),
    ('judge_classifier', 'arithmetic', 0.69), ('judge_labels', 'failure_labels', 0.5)])
def test_pretraining_learns(recipe, dataset, better_than):
    """A guess costs log 13 = 2.56 nats at first, a label log 2 = 0.69."""
    text = succeeds('pretrain.py', f'config/{recipe}.py', '--max_iters=120', '--batch_size=64',
                    f'--dataset={dataset}', '--out=a.pt')
    *_, loss = re.findall(r'held-out loss (\S+)', text)
    assert float(loss) < better_than
    if recipe == 'judge_classifier':            # real text scores higher than filled text
        judge, tok = load_network('a.pt')
        prompts = Dataset('arithmetic', tok).prompts('val', 300, 1, 1, 0, False, 0, 'random',
                                                     'random', 0.2, 0.6, 1)
        r = complete(load_network('out/generator_arithmetic.pt')[0], prompts)
        real, filled = [judge_sequences(judge, sequences, None).mean()
                        for sequences in (prompts.original, r.sequences)]
        assert real > filled


# ---- signals and resuming ------------------------------------------------------------------------


def test_a_signal_to_one_rank_lets_the_step_end_saves_and_says_how_to_go_on():
    """Both ranks stop after the same step. Meanwhile the folder is locked."""
    two = Run(*command('--max_iters=99999'), ranks=2)
    two.wait_for('mean_reward')
    fails('another run is already writing', *command())
    os.kill(two.ranks[1].pid, signal.SIGINT)
    code, text = two.wait()
    assert code == two.ranks[1].exitcode == 130
    saved = load_checkpoint('run')['step']
    assert saved == max(line['step'] for line in read_log('run') if 'loss' in line) + 1
    assert f'before step {saved}' in text and '--resume=True' in text and 'Traceback' not in text


def test_a_signal_ends_the_training_of_networks_too():
    recipe = write('generator_slow.py', 'max_iters = 99999\neval_interval = 1\n')
    going = Run(*command(f'--generator={recipe}'))
    going.wait_for('step 1')
    going.ranks[0].terminate()
    code, text = going.wait()
    assert code == 128 + signal.SIGTERM and 'Traceback' not in text
    time.sleep(0.5)
    text = going.text()
    time.sleep(0.5)
    assert going.text() == text                 # nobody goes on writing


def test_a_resumed_run_keeps_its_network_and_takes_new_knobs():
    """If it starts from another value, its best begins anew."""
    fails('nothing to resume', *command('--resume=True'))
    train('--max_iters=2')
    log = pathlib.Path('run/log.jsonl').read_text()
    for flags in (['--optimizer=adamw'], ANSWERS):
        fails('a resumed run keeps', *command('--resume=True', *flags))
    saved = load_checkpoint('run')
    torch.save(saved | {'step': 5}, 'run/ckpt.pt')
    fails('step 5', *command('--resume=True'))
    assert pathlib.Path('run/log.jsonl').read_text() == log
    torch.save(saved | {'best': (99.0, 0), 'at_start': 0.5}, 'run/ckpt.pt')
    train('--resume=True', '--weight_decay=0.1', '--rewards={"distinct": 1.0}')
    saved = load_checkpoint('run')
    groups = [optimizer['param_groups'][0] for optimizer in saved['optimizers']]
    assert [group['weight_decay'] for group in groups] == [0.1, 0.1]
    assert saved['best'][0] <= 1


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize('code, word', [
    ("[float('nan') if mine.calls == 3 else 1.0 for text in prompts]", "reward 'mine': expected"),
    ("[1.0] * 3", "reward 'mine': expected"), ("[1 / 0]", 'ZeroDivisionError')])
def test_a_reward_that_fails_ends_the_run_and_is_named(code, word):
    path = write('mine.py', "rewards = {'mine': 1.0}\ndef mine(prompts, completions):\n"
                 f"    mine.calls = getattr(mine, 'calls', 0) + 1\n    return {code}\n")
    assert 'mine' in fails(word, *command(path, '--eval_prompts=4'))


def test_a_reward_may_change_folder_and_grad_mode_and_return_a_tensor_with_a_graph():
    train(write('mine.py', "import os, torch\nrewards = {'mine': 1.0}\n"
                "def mine(prompts, completions):\n    os.chdir('/')\n"
                "    torch.set_grad_enabled(False)\n"
                "    return torch.rand(len(prompts), requires_grad=True) * 2\n"))
    assert len(os.listdir('run')) == 5


@pytest.mark.parametrize('max_iters, ranks', [(1, 1), (4, 2)])
def test_a_number_that_is_not_finite_ends_the_run_and_spares_its_checkpoint(max_iters, ranks):
    """The first update ruins the policy. An evaluation notices, or else the next step."""
    fails('finite', *command('--learning_rate=1e30', '--grad_clip=0', '--warmup_iters=0',
                             f'--max_iters={max_iters}'), ranks=ranks)
    assert load_checkpoint('run')['step'] == 0 and weights('run').isfinite().all()


@pytest.mark.parametrize('flags, word', [
    ('--rewards={}', 'rewards = {}'), ('--rewards={"jugde":1.0}', 'jugde'),
    ('--group_size=1', 'group_size = 1'), ('--judge=config/judge_labels.py', 'vocabulary'),
    ('--gradient_accumulation_steps=3 --mini_batches=2', 'gradient_accumulation_steps = 3'),
    ('--objective=x', "'x'"), ('--ratio_level=x', "'x'"), ('--fill_order=x', "'x'"),
    ('--blank_kind=x', "'x'"), ('--optimizer=x', "'x'"), ('--dtype=half', "'half'"),
    ('--device=gpu', "'gpu'"), ('--top_p=1.5', 'top_p = 1.5'), ('--beta1=1.0', 'beta'),
    ('--generator=config/judge_classifier.py', 'classifier'), ('--eval_interval=0', 'eval_'),
    ('--dataset=arithmetik', 'arithmetic'),
    ('--target_kl=0.1 --kl_beta=0', 'kl_beta'), ('--master_process=True', 'expected a knob'),
    ('--generator=out/generator_equations-arithmetic.pt', "'random'"),
    (f'{" ".join(ANSWERS[:2])} --rewards={{"verify":1}} --n_fill_steps=2', 'passes')])
def test_a_mistake_on_the_command_line_ends_with_a_sentence(flags, word):
    fails(word, *command(*flags.split()))


@pytest.mark.parametrize('flags, word', [
    ('--n_embd=30', 'n_embd = 30'), ('--n_embd=0', 'n_embd = 0'), ('--objective=both', 'both'),
    ('--learning_rate=1e30 --grad_clip=0', 'finite'), ('--positions=x', "'x'"),
    ('--objective=classifier', 'labels'),           # sums are no labels
    ('--tokenizer=x', "'x'"), ('--blank_high=2.0', 'blank_high')])
def test_a_mistake_in_a_recipe_ends_with_a_sentence_and_writes_nothing(flags, word):
    fails(word, 'pretrain.py', 'config/generator_arithmetic.py', *flags.split(), '--out=new/a.pt')
    assert not os.path.exists('new')


# ---- sample.py -----------------------------------------------------------------------------------


def test_sample_shows_the_numbers_that_the_run_prints():
    text = train('--temperature=0.7', '--top_k=3', '--rewards={"judge": 1.0, "verify": 0.5}')
    last = read_log('run')[-1]
    assert 'python sample.py run' in text
    *_, policy = re.findall('(?m)^policy .*', succeeds('sample.py', 'run', '--num_samples=2'))
    for name in ('judge', 'verify', 'judge_greedy'):
        assert f'| {name} {last["eval/" + name]:.3f}' in policy
    for words in (['run', '--prompt=1_+3_=__7', '--group_size=3'], ['run', '--top_k=0'],
                  ['out/generator_equations-arithmetic.pt', '--prompt=12+35='],
                  ['out/generator_arithmetic.pt', '--num_samples=1']):
        assert 'verify' in succeeds('sample.py', *words, '--eval_prompts=4')
    fails("'x'", 'sample.py', 'run', '--prompt=x_')


def test_sample_runs_no_code_that_a_checkpoint_names():
    write('theirs.py', "rewards = {'charm': 1.0}\nopen('was-here', 'a').write('x')\n"
          "def charm(prompts, completions): return [3.0] * len(prompts)\n")
    assert '| verify ' in train('theirs.py', '--max_iters=0')   # though it is no reward here
    text = succeeds('sample.py', 'run', '--num_samples=1')
    assert 'not shown: charm' in text and 'charm 3.000' not in text
    assert pathlib.Path('was-here').read_text() == 'x'
    assert 'charm 3.000' in succeeds('sample.py', 'run', '--num_samples=1', 'theirs.py')
