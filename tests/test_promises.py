"""What we promise, and nothing else: the twelve sentences of docs/manual.md, with their tests."""
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import signal

import pytest
import torch

from processes import (EQUATIONS, KINDS, ROOT, Run, assert_same, at_moment, at_step, command, fails,
                       read_log, refused, run, train, weights, write)
from run.folder import load_checkpoint, save_checkpoint
from run.machine import init_device
from test_grpo import TOK, everything, gradient, knobs, randn, tiny
from test_run import open_folder, save
from train_grpo import grpo_loss, token_stats

# 1. The same command on the same CPU, with the same versions and threads, writes the same log,
#    times aside.


def test_the_same_command_gives_the_same_run_and_evaluations_change_nothing():
    train(out='a')
    train(out='b')
    train('--eval_interval=1', '--log_interval=2', '--eval_prompts=6', out='often')
    train('--seed=2', '--max_iters=0', out='seed')      # the held-out prompts are always the same
    assert_same('a', 'b')
    assert weights('a').equal(weights('often'))
    assert read_log('a')[0] == read_log('seed')[0]


# 2. A run that was killed at any moment and is resumed ends bit for bit like an uninterrupted one,
#    on a CPU. Ctrl-C and SIGTERM let the step end and save; so does a reward that fails, after the
#    last finished step. After anything else (SIGKILL, an error in an update, a full disk) the last
#    checkpoint stands: steps are lost, never work.


@pytest.mark.parametrize('kind', ['fill', 'passes'])
def test_a_run_that_is_ended_again_and_again_ends_like_an_uninterrupted_one(kind):
    """Each time a bit later: while it samples, learns, logs or saves. SIGKILL can leave a part of a
    line, as a full disk can."""
    flags = [*KINDS[kind], '--max_iters=6', '--eval_interval=3']
    train(*flags, out='whole')
    codes = []
    for n in itertools.count(5, step=12):
        number = [signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGINT][len(codes) % 4]
        words = command(*flags, '--resume=True' if codes else '--seed=1', out='parts')
        code, text = run(*words, before=at_moment(n, number))
        assert 'Traceback' not in text
        codes.append(code)
        if code == 0:
            break
        if number == signal.SIGKILL:
            with open('parts/log.jsonl', 'a') as file:
                file.write('{"step": 1, "re')
    assert {-9, 128 + signal.SIGTERM, 128 + signal.SIGINT} < set(codes)
    assert_same('whole', 'parts')


@pytest.mark.parametrize('name', ['SIGINT', 'SIGTERM'])
def test_a_signal_lets_the_step_end_and_saves(name):
    """Ctrl-C, and the end of a job on a cluster."""
    number = getattr(signal, name)
    code, text = run(*command('--eval_interval=9'), before=at_step(1, number))
    assert code == 128 + number and load_checkpoint('run')['step'] == 2
    assert 'the same command with --resume=True goes on' in text and 'Traceback' not in text


def test_a_signal_to_one_rank_lets_both_end_the_same_step():
    two = Run(*command('--max_iters=99999'), ranks=2)
    two.wait_for('mean_reward')
    os.kill(two.ranks[1].pid, signal.SIGINT)
    code, text = two.wait()
    assert code == two.ranks[1].exitcode == 130
    saved = load_checkpoint('run')['step']
    assert saved == max(line['step'] for line in read_log('run') if 'loss' in line) + 1
    assert '--resume=True goes on' in text and 'Traceback' not in text


# It asks for a column of a file, and fails from the call that FIRST says, until `mended` is there.
MINE = """
import os
rewards = {'mine': 1.0}
_calls = []
def mine(completions, level, **kwargs):
    _calls.append(1)
    if len(_calls) >= FIRST and os.environ['RANK'] == WHERE and not os.path.exists('mended'):
        WRONG
    return [text.count('1') + number for text, number in zip(completions, level)]
"""


def failing(wrong="assert 0, 'no more'", first=9, where='0'):
    """Write a config file with a reward that fails. Return words of a command."""
    text = MINE.replace('FIRST', f'{first}').replace('WHERE', f"'{where}'").replace('WRONG', wrong)
    return [write('mine.py', text), *KINDS['marked'], '--eval_interval=4', '--warmup_iters=0']


@pytest.mark.parametrize('wrong, first, saved', [
    ('exit()', 9, 2), ("assert 0, 'no more'", 13, 4)])          # the latter in an evaluation
def test_a_reward_that_fails_loses_no_step_and_can_be_mended(wrong, first, saved):
    """The start is evaluated in 4 calls, a step has 2."""
    words = failing(wrong, first)
    code, text = run(*command(*words))
    assert code == 1 and "reward 'mine'" in text and load_checkpoint('run')['step'] == saved
    assert 'the same command with --resume=True goes on' in text
    write('mended', '')
    text += train(*words, '--resume=True')
    train(*words, out='whole')
    assert_same('run', 'whole')
    # the start and the line to beat are still those of step 0
    first, *_, last = read_log('run')
    assert first['eval/reward'] != last['eval/reward']
    line = max(first['eval/reward'], first['greedy/reward'])
    assert set(re.findall(r'\| start (\S+) \| line to beat (\S+)', text)) == {
        (f"{first['eval/reward']:.3f}", f'{line:.3f}')}


def test_a_reward_that_fails_on_the_second_rank_only_loses_no_step():
    """There the start is evaluated in 2 calls, a step has 1."""
    code, text = run(*command(*failing(where='1'), '--max_iters=9', '--eval_interval=9'), ranks=2)
    assert code == 1 and 'no more' in text and load_checkpoint('run')['step'] == 6


def test_after_an_error_in_an_update_the_last_checkpoint_stands():
    def before():                               # memory, for example
        take = torch.optim.AdamW.step

        def step(optimizer, *args):
            if optimizer.state and next(iter(optimizer.state.values()))['step'] >= 3:
                raise RuntimeError('no memory')
            return take(optimizer, *args)
        torch.optim.AdamW.step = step

    train('--max_iters=6', out='whole')
    code, text = run(*command('--max_iters=6'), before=before)
    assert code == 1 and 'no memory' in text and load_checkpoint('run')['step'] == 2
    train('--max_iters=6', '--resume=True')
    assert_same('run', 'whole')


# 3. No run overwrites files of another. A checkpoint is whole or absent.


def test_runs_are_moved_aside_and_two_at_a_time_in_one_folder_are_refused():
    for step in range(4):
        folder = open_folder('mine', resume=step == 3)
        for resume in (False, True):
            refused('another run', open_folder, './mine/', resume)
        folder.log(step, {'a': 1.5})
        save(folder)
        folder.lock.release()                   # as the end of its process does
    steps = {name: [json.loads(line)['step'] for line in open(f'{name}/log.jsonl')]
             for name in ('mine-1', 'mine-2', 'mine')}
    assert steps == {'mine-1': [0], 'mine-2': [1], 'mine': [2, 3]}
    os.mkdir('theirs')
    open_folder('theirs').lock.release()        # an empty folder is as good as none
    # and so is one of a run that ended before its first evaluation
    open_folder('theirs').lock.release()
    assert not os.path.exists('theirs-1')


def test_a_full_disk_leaves_the_old_checkpoint(monkeypatch):
    def fill(content, path):
        path.write(b'half')
        raise OSError('No space left')

    os.mkdir('new')
    save_checkpoint('new/a.pt', tiny(), TOK.vocabulary, {})
    before = pathlib.Path('new/a.pt').read_bytes()
    monkeypatch.setattr(torch, 'save', fill)
    refused('No space left', save_checkpoint, 'new/a.pt', tiny(seed=1), TOK.vocabulary, {})
    assert pathlib.Path('new/a.pt').read_bytes() == before
    assert os.listdir('new') == ['a.pt']


# 4. A mistyped knob, a wrong value, a missing file, a bad line of data, knobs that cannot work
#    together: one line that names it, and what is near, before anything is trained.


MISTAKES = {
    '--rewards={}': 'rewards = {}', '--rewards={"jugde":1.0}': "similar names: ['judge'",
    '--group_size=1': 'group_size = 1', '--judge=config/networks/judge_labels.py': 'vocabulary',
    '--gradient_accumulation_steps=3 --mini_batches=2': 'gradient_accumulation_steps: ',
    '--fill_order=learned --n_fill_steps=1': 'n_fill_steps > 1',
    '--resume': "'--resume='", '--device=mps': "device = 'mps'",
    '--rewards={1:1.0}': 'not \'1\'', '--objective=x': "'x'",
    '--blank_kind=x': "'x'", '--eval_interval=0': 'eval_',
    '--device=gpu': "'gpu'", '--top_p=1.5': 'top_p = 1.5', '--beta1=1.0': 'beta',
    '--dataset=arithmetik': 'arithmetic', '--target_kl=0.1 --kl_beta=0': 'kl_beta',
    '--chat_template=True': 'chat_template', '--blank_kind=marked': 'the answer is not the prompt',
    '--num_generations=8': 'is group_size here', '--generator=Qwen/Qwen2.5-0.5B': 'hf download',
    '--grup_size=3': 'group_size', 'config/grpo_smok.py': 'grpo_smoke.py',
    '--rewards={"kl":"1"}': 'weight of kl', '--rewards={"kl":1e999}': 'weight of kl',
    '--rewards={"tokens":1.0} twice.py': "'tokens'",            # a function has this name, too
    '--rewards={"verify":1.0} --dataset=bare.jsonl': "'verify'",        # without answers
    '--max_new_tokens=3': 'for causal', '--batch_size=1000000': 'batch_size',
    '--temperature=1e-40': 'temperature', '--dataset=bad.jsonl': 'bad.jsonl, line 2',
    '--generator=out/generator_arithmetik.pt': "similar names: ['out/generator_arithmetic.pt'",
    f'--generator={EQUATIONS} --blank_kind=answer --n_fill_steps=2': 'passes',
}


@pytest.mark.parametrize('flags', MISTAKES)
def test_a_mistake_on_the_command_line_ends_with_a_sentence(flags):
    write('bad.jsonl', '{"prompt": "1+2=", "answer": "3"}\n{"answer": "b"}\n')
    write('bare.jsonl', '\n'.join(f'{{"prompt": "{i}+1="}}' for i in range(99)))
    write('twice.py', 'def tokens(texts): return []')
    text = fails(MISTAKES[flags], *command(*flags.split()))
    assert 'Traceback' not in text and 'step 0' not in text


@pytest.mark.parametrize('flags', ['--top_p=95', '--temperature=0', '--out_dir=theirs',
                                   '--out_dir=theirs/thesis', '--blank_kind=suffix'])
def test_a_mistake_is_refused_before_networks_are_made(flags):
    os.mkdir('theirs')
    write('theirs/thesis', '')
    recipe = write('generator_never.py', 'max_iters = 1')
    text = fails(re.search('[a-z0-9]+$', flags)[0],
                 *command(f'--generator={recipe}'), flags)
    assert '$' not in text                      # before the command that makes a network


# 5. A reward or checker that raises, or returns something else than one finite number (or None) for
#    each completion, ends the run with a line that names it and the completion.


@pytest.mark.parametrize('wrong, words', [
    ('return [None] * 15 + [1 / 0]', "reward 'mine': ZeroDivisionError('division by zero')"),
    ("return [None, float('nan')] * 8", "a finite number, not nan")])
def test_a_reward_that_fails_at_the_start_is_named_and_leaves_no_run(wrong, words):
    text = fails("reward 'mine'", *command(*failing(wrong, first=1)))
    assert words in text and (', not nan' not in words or "reward 'mine' of '" in text)
    train(*failing(first=99))
    assert not os.path.exists('run-1')          # nothing was worth to be moved aside


def test_a_policy_that_repeats_a_digit_and_a_file_that_imports_end_no_run():
    write('mine.py', "from random import random\nfrom extras.numbers import same_number\n"
          "join = ''.join\nrewards = {'long': 1.0}\ndef long(completions):\n"
          "    return [same_number('9' * 4300 + text, '1') for text in completions]")
    text = train('mine.py', '--max_iters=1')
    assert 'long() of mine.py' in text and 'random()' not in text


# 6. Numbers that are not finite end the run, and no checkpoint is overwritten.


@pytest.mark.parametrize('max_iters, ranks', [(1, 1), (4, 2)])
def test_a_policy_that_is_ruined_is_not_saved(max_iters, ranks):
    """By the first update. An evaluation notices, or else the next step."""
    fails('finite', *command('--learning_rate=1e30', '--grad_clip=0', '--warmup_iters=0',
                             f'--max_iters={max_iters}'), ranks=ranks)
    assert load_checkpoint('run')['step'] == 0 and weights('run').isfinite().all()


def test_rewards_whose_mean_is_infinite_end_the_run_and_nothing_is_saved():
    """Each is finite. In the evaluation after the second step they are large."""
    text = fails('are not finite, so no checkpoint was overwritten',
                 *command(*failing('return [3e38] * len(level)', first=9), '--eval_interval=2'))
    assert load_checkpoint('run')['step'] == 0 and 'goes on' not in text


def test_weights_that_are_not_finite_are_not_saved():
    gpt = tiny()
    save_checkpoint('a.pt', gpt, TOK.vocabulary, {})
    before = pathlib.Path('a.pt').read_bytes()
    gpt.head.weight.data[0, 0] = math.inf
    refused('not finite, so a.pt was not overwritten', save_checkpoint, 'a.pt', gpt, None, {})
    assert pathlib.Path('a.pt').read_bytes() == before


# 7. A checkpoint cannot run code.


def test_a_file_that_is_damaged_or_would_run_code_is_refused():
    class Intruder:
        def __reduce__(self):
            return open, ('was-here', 'w')

    save_checkpoint('a.pt', tiny(), TOK.vocabulary, {})
    torch.save({'model': Intruder()}, 'b.pt')
    pathlib.Path('c.pt').write_bytes(pathlib.Path('a.pt').read_bytes()[:5000])
    for name in ('b.pt', 'c.pt'):
        refused(f'{name} cannot be read', load_checkpoint, name)
    assert not os.path.exists('was-here')


@pytest.mark.parametrize('knob, path', [('generator', 'evil.py'), ('judge', 'evil.py/')])
def test_sample_runs_no_program_that_a_checkpoint_names(knob, path):
    write('evil.py', "open('was-here', 'w')\n")
    train('--max_iters=0', '--rewards={"judge": 1.0}')
    checkpoint = load_checkpoint('run')
    checkpoint['config'][knob] = os.path.abspath('evil.py') + path.removeprefix('evil.py')
    torch.save(checkpoint, 'run/ckpt.pt')
    run('sample.py', 'run', '--num_samples=1')
    assert not os.path.exists('was-here')


# 8. n ranks and any number of micro-steps take the step of one process, up to rounding.


@pytest.mark.parametrize('kind', ['fill', 'passes', 'estimate', 'causal'])
def test_two_ranks_and_other_micro_steps_take_the_steps_of_one_process(kind):
    """In float64, so that only the order of sums differs. Some rewards are missing."""
    flags = [*KINDS[kind], '--dtype=float64', '--max_iters=2', '--loss_norm=sequence',
             '--entropy_coef=0.01']
    if kind == 'fill':
        flags.append(write('some.py', """
rewards |= {'some': 1.0}
def some(completions):
    return [None if text.count('1') == 1 else text.count('2') for text in completions]
"""))
    train(*flags, out='one')                    # 2 micro-steps of 4 prompts
    train(*flags, '--gradient_accumulation_steps=4', '--batch_size=2', out='two', ranks=2)
    assert (weights('two') - weights('one')).abs().max() < 1e-12
    for line, same in zip(read_log('one'), read_log('two'), strict=True):
        assert line == pytest.approx(same, rel=1e-4, abs=1e-4)


# 9. Console and log say what the manual says they say.


def test_the_console_shows_numbers_of_the_log_and_the_manual_explains_each():
    text = train(*KINDS['fill'])
    manual = (ROOT / 'docs/manual.md').read_text('utf-8')
    page = set(re.findall(r'`([^`]*)`', manual))
    lines = [json.loads(line) for line in open('run/log.jsonl')]
    for name in set().union(*lines):            # by itself, or as mean_<name> or greedy/<name>
        assert {name, re.sub('(?<=[_/]).*', '<name>', name)} & page, name
    shown = re.findall(r'(?m)^step (\d+) +((?:\| .* -?[\d.]+ ?)+)$', text)
    assert len(shown) == len(lines) == 7        # 4 steps and 3 evaluations
    for (step, parts), line in zip(shown, lines):
        assert int(step) == line['step']
        for part in parts.split('|')[1:]:
            name, _, number = part.strip().rpartition(' ')
            assert name in page, name
            logged = line.get(name, line.get(f'eval/{name}'))
            assert logged is None or f'{logged:.3f}' == number


def test_a_run_goes_on_and_is_shown_with_its_own_texts_and_world_or_not_at_all():
    game = ("def texts():\n    return [('1+1=', '2')] * 5, [('1+2=', '3'), ('1+3=', '4')] * 5\n"
            "def verify(completion): return 1.0\n")
    words = ['--dataset=game.py', f'--generator={EQUATIONS}', '--rewards={"tokens": 1.0}',
             '--max_iters=1', '--max_new_tokens=6']
    world = "def reply(completion): return '1', len(completion) > 1\n"
    write('game.py', game + world)
    train(*words)
    assert read_log('run')[0]['eval/ended'] == 1        # by the world
    fails('expected the words of its run', 'sample.py', 'run')
    write('game.py', game)
    fails('keeps its files', *command(*words, '--resume=True'))
    fails('was edited since this run', 'sample.py', 'run', *words)


def test_the_log_of_a_step_is_the_same_for_any_cut_where_dead_groups_are_left_out():
    reward = "rewards = {'has_1': 1.0}\ndef has_1(texts): return ['11' in text for text in texts]"
    words = [write('has_1.py', reward), '--kl_beta=0', '--entropy_coef=0', '--max_iters=1',
             '--dtype=float64']
    for n in (1, 4):
        train(*words, f'--batch_size={8 // n}', f'--gradient_accumulation_steps={n}', out=f'run{n}')
    one, four = [read_log(folder)[1] for folder in ('run1', 'run4')]
    assert 0 < one['dead_groups'] < 1 and one == pytest.approx(four, rel=1e-9, abs=1e-12)


def test_a_page_keeps_few_groups_of_a_long_run_and_says_what_is_missing():
    from extras.page import thin
    assert thin([*range(1000)], 4) == [0, 333, 666, 999] and thin([7], 3) == [7]
    os.makedirs('empty')
    fails("'emty'; similar names: ['empty'", 'extras/page.py', 'emty')
    write('empty/log.jsonl', '')
    fails('empty/log.jsonl has no evaluation yet', 'extras/page.py', 'empty')


# 10. A token is scored by the distribution that sampled it; the gradient is that of the expected
#     reward. KL and entropy are exact in the states that were visited.


def test_before_the_first_update_the_ratio_is_1_and_the_kl_0_even_in_bfloat16():
    train(*KINDS['causal'], '--kl_beta=0.1', '--max_iters=1', '--learning_rate=0', '--min_lr=0',
          '--dtype=bfloat16')
    _, line, _ = read_log('run')
    assert line['objective/ratio_off'] == line['kl'] == 0
    assert load_checkpoint('run/best.pt')['step'] == 1      # of equal ones the last


@pytest.mark.parametrize('n', [1, 3])
def test_over_all_groups_the_mean_gradient_is_that_of_the_expected_reward(n, knobs):
    """All 8 completions of three blanks, in one pass and in three, and all groups of two. (More on
    this, and on the KL, in test_grpo.py.)"""
    knobs(n_fill_steps=n)
    policy = tiny(V=2, T=3)
    _, logp, groups, chance, r = everything(policy, [0.7, 0.1, 0.4])
    reward = randn(8)
    advantages = reward[groups] - reward[groups.flip(1)]        # reward - mean of the others
    terms, _ = grpo_loss(token_stats(r, policy, policy), r, advantages * chance, 0.0)
    torch.testing.assert_close(gradient(-terms['loss'] / 2, policy),
                               gradient(logp.exp() @ reward, policy))


# 11. A folder of transformers gives the log-probabilities that transformers gives, or is refused.


@pytest.mark.parametrize('kind', ['llama', 'bert'])
def test_a_folder_gives_the_log_probs_of_transformers_or_is_refused(kind):
    """More in test_hf.py."""
    transformers = pytest.importorskip('transformers')
    import hf
    from test_hf import MODELS, SIZES, folder_of
    init_device('cpu', 'float32')
    ours = hf.Pretrained(folder_of(kind))
    theirs = getattr(transformers, MODELS[kind]).from_pretrained(folder_of(kind)).eval()
    ids = ours.tok.encode('12+7=19')
    begin = ours.tok.tokenizer.convert_tokens_to_ids({'llama': '<s>', 'bert': '[CLS]'}[kind])
    expected = theirs(torch.tensor([[begin, *ids]])).logits.log_softmax(-1)
    # a causal network says at each place what comes next
    expected = expected[:, :-1] if ours.causal else expected[:, 1:]
    logp = ours.logits(ours(torch.tensor([ids]))).log_softmax(-1)
    torch.testing.assert_close(logp, expected[:, :, :logp.size(2)], atol=1e-4, rtol=1e-4)

    shutil.copytree(folder_of(kind), 'capped')
    config = transformers.Gemma2Config(**SIZES, final_logit_softcapping=30.0)
    transformers.Gemma2ForCausalLM(config).save_pretrained('capped')
    refused('other logits', hf.Pretrained, 'capped')


# 12. What runs here runs on in TRL, with the same loss on the same completions, or is refused with
#     the nearest that does.


def test_a_step_of_trl_is_a_step_of_ours_or_is_refused_with_what_is_nearest():
    """Rewards, advantages, loss and gradient. More in test_trl.py."""
    fails('the nearest is', 'extras/trl.py', 'config/grpo_think.py')
    pytest.importorskip('trl')
    from test_hf import folder_of
    from test_trl import SUMS, steps
    write('sums.jsonl', ''.join(f'{{"prompt": "{a}+{b}=", "answer": "{a}"}}\n'
                                for a in range(9) for b in range(9)))
    path = write('ones.py', "def ones(completions):\n"
                 "    return [len(text) * 0.1 + text.count('1') for text in completions]")
    ours, theirs = steps([*SUMS, path, f'--generator={folder_of("llama")}', '--batch_size=3',
                          '--group_size=4', '--gradient_accumulation_steps=2',
                          '--max_new_tokens=6', '--rewards={"ones": 1.0}'])
    assert len(set(ours[1].tolist())) > 3
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
