"""extras: what advice says, what a page shows, what compare makes and refuses, what check finds."""
import contextlib
import json
import os
import re
import runpy
import shutil
from pathlib import Path

import pytest
import torch

from conftest import log_of, run
from extras import check
from extras.advice import advice, advice_for, read_lines
from extras.page import page_of
from extras.race import share_of_true

HOSTILE = '</script><b onclick="x()"> & \u2028 \U0001f600 <!-- DATA'

DIFFERENT = ['--jobs=1', '--seeds=1,1,2||--group_size=2', '|--eval_prompts=4', '|out-smoke',
             '|--dataset=arithmetic', '|--seed=3', '--goal=eval/reward||--rewards={"judge":2.0}',
             '|mine.py', '--goal=eval/pass@4||mine.py', '--jobs=0|']
# words of what is found
WORDS = ('are different', 'one text has', 'all weights', 'outside of', 'for all that',
         'called again', 'losses (M,)', 'the policy writes', 'verify:', 'mine:', 'where a prompt',
         'the order of', 'other completions', 'taken again', 'have no logp_old', 'good completions',
         'own group', 'each process', 'only held-out', 'also those', 'same rewards', 'kl_beta = 0',
         'equal rewards are')
FILES = {'game': """
import random
DIGITS = '0123456789'

def reply(completion, secret='7'):
    return ('=', True) if completion[-1] == secret else '!'

def verify(completion, sampled, secret):
    return float(TEXT)

def play(secret, rng):
    game = ''
    while len(game) < 4 and not game.endswith('='):
        guess = rng.choice(DIGITS)
        game += guess + ('=' if guess == secret else '!')
    return game

def texts():
    rng = random.Random(1)
    return [[{'prompt': ':', 'answer': play(secret, rng), 'secret': secret} for secret in part]
            for part in (DIGITS * 100, DIGITS * 3)]
""", 'task': """
import itertools
def texts():
    pairs = [(f'{i}=', f'{i}') for i in range(99)]
    return pairs[:90], pairs[90:]

count = itertools.count()
def verify(completion, answer):
    return TEXT
""", 'reward': """
rewards = {'mine': 1.0}
def mine(prompts, texts):
    return [TEXT for i, text in enumerate(texts)]
""", 'advantages': """
_seen = []
def advantages(reward, scores):
    return TEXT
""", 'objective': """
def objective(stats, r, inner=objective):
    losses, clipped = inner(stats, r)
    return TEXT
""", 'step': """
_steps = []
def optimizer_step(network, optimizers, lr, grad_clip, inner=optimizer_step):
    _steps.append(network)
    state['n'] = state.get('n', 0) + 1
    return inner(network, optimizers, TEXT * lr, grad_clip)
""", 'records': """
import random
pairs = [(f'{i}=', f'{i}') for i in range(99)]
def texts():
    return TEXT
""", 'memory': """
rewards = {'mine': 1.0}
_seen = []
def mine(texts):
    seen = TEXT
    numbers = [len(seen) + float(len(text.strip('0'))) for text in texts]
    seen += texts
    return numbers
""", 'weights': """
rewards = TEXT
""", 'replay': """
_old = []
def collect(networks, task, step, draw=0, inner=collect):
    rollouts, scores = inner(networks, task, step, draw)
    for r in rollouts:
        r.logp_old = TEXT
    both = rollouts + _old
    _old[:] = rollouts
    return both, scores
""", 'rate': """
def get_lr(step, peak, floor, warmup, n_steps):
    return TEXT
""", 'penalty': """
kl_beta = 0.0
def kl_penalty(stats, r):
    return TEXT
"""}
FILES['chance'] = FILES['game'].replace("'!'", "random.choice('!=')", 1)
# a file, what it has in the place of TEXT, and words of what is found
FOUND = """
game: completion.endswith('=') -> bad the policy writes
game: sampled[-1:] == secret ->
chance: sampled[-1:] == secret -> bad taken again
task: 1.0 -> look verify:, look for all that
task: 0.0 -> look verify:, look for all that
task: completion == answer ->
task: 2.0 * (completion == answer) -> bad outside of
task: next(count) % 2 -> look verify:, look the order of
reward: float(text.count('1')) ->
reward: float(len(prompts[i])) -> look mine:, look for all that
reward: float(len({*prompts[:i + 1]})) -> look mine:, look for all that, bad where a prompt
reward: float(texts[i - i % group_size] == text) -> look mine:, bad where a prompt
reward: float(texts[i - 1] == text) -> look mine:, look the order of
reward: float(texts.count(text)) -> look mine:, look for all that, other completions
records: pairs[:90] + [('7=', '7' * 2000)], pairs[90:] -> look one text has
records: pairs[:1] * 800 + pairs[:90], pairs[90:] -> look are different
records: pairs[:5], pairs[5:8] -> look only held-out
records: random.sample(pairs, 90), pairs[90:] -> bad each process
records: [*{*pairs[:90]}], pairs[90:] -> bad each process
records: pairs[:90], pairs[90:] + [('x=', '1')] -> look only held-out
records: pairs[:90], pairs[90:] ->
memory: _seen -> look mine:, look called again
memory: state.setdefault('seen', []) ->
weights: {'verify': 0.0} -> look all weights
weights: {'verify': 1.0} ->
advantages: reward - reward.mean(1, keepdim=True) ->
advantages: reward - reward.mean() -> look own group
advantages: reward * (_seen.append(1) or len(_seen)) -> look same rewards, look own group, \
look equal rewards are, bad taken again
advantages: (reward - reward.mean(1, keepdim=True)) / reward.std(1, keepdim=True) -> \
bad also those, look equal rewards are
advantages: torch.rand_like(reward) -> look same rewards, look own group, look equal rewards are
objective: (-losses, clipped) -> bad good completions
objective: (losses[:, None], clipped) -> bad losses (M,)
objective: (losses / 0, clipped) -> bad losses (M,)
objective: (torch.rand_like(losses) * losses, clipped) -> bad taken again
step: state['n'] ->
step: len(_steps) -> bad taken again
step: -1 -> bad good completions
replay: None -> bad have no logp_old, bad taken again
replay: log_probs_of(networks.policy, r) -> bad taken again
rate: -1e-3 -> bad good completions
rate: floor ->
penalty: 2 * stats.kl -> look kl_beta = 0"""


# ---- advice --------------------------------------------------------------------------------------

EVAL = {'greedy': 0.5, 'line to beat': 0.5, 'standard error': 0.01, 'eval/pass@4': 0.75,
        'eval/tokens': 3.0, 'eval/a': 1.0, 'eval/b': 1.0}
STEP = {'step': 0, 'ms': 1.0, 'entropy': 1.0, 'kl': 0.1, 'dead_groups': 0.1, 'mean_reward': 0.5,
        'mean_tokens': 3.0, 'mean_verify': 0.5, 'mean_a': 1.0, 'mean_b': 1.0}
KNOBS = {'rewards': {'verify': 1.0}, 'adv_norm': 'std', 'max_iters': 100, 'words': [],
         'learning_rate': 6e-3, 'temperature': 1.0, 'group_size': 16, 'entropy_coef': 0.0,
         'kl_beta': 0.1, 'top_k': 0, 'top_p': 1.0, 'warmup_iters': 10, 'blank_kind': 'random',
         'dataset': 'arithmetic'}
FOUR = [('x', 0), ('y', 1), ('z', 0), ('w', 1)]             # completions and rewards
SAME = [('x', 0), ('y', 0), ('z', 0), ('w', 0)]
EQUAL = [('x', 0)] * 4


def log(*scores, first={}, last={}, step={}, end={}):
    """Return the lines of a log: evaluations at 0, 100, ... with these scores, and 13 steps.
    first, last: numbers of the first and last evaluation; step: of the steps; end: of ten."""
    evals = [EVAL | {'step': 100 * i, 'verify': x, 'eval/verify': x, 'eval/reward': x,
                     'above it': x - 0.5} for i, x in enumerate(scores)]
    evals[0].update(first)
    evals[-1].update(last)
    return [*evals, *[STEP | step] * 3, *[STEP | step | end] * 10]


def samples(four):
    """Return completions of eight prompts of an evaluation, four of each."""
    return [{'step': 0, 'prompt': str(i), 'completion': text,
             'scores': {'reward': x, 'verify': x, 'a': ord(text), 'b': 1.0}}
            for i in range(8) for text, x in four]


DEAD = {'dead_groups': 0.95}
FLAT = log(0.5, 0.52, 0.5, step=DEAD)
UP = {'reward': 1.5, 'above it': 0.5, 'eval/reward': 1.5}
NOISE = [STEP | {'mean_reward': x} for x in (0.8, 1.05) * 5]
HEALTHY = log(0.5, 0.8, 0.9, 0.91, step={'mean_reward': 0.9})
LESS = 'a smaller learning_rate (now 0.006, try 0.001)'
MORE = 'a larger group_size (now 16, try 32)'
ADVICE = [      # words of the sentence, the log, and what is not as in KNOBS and FOUR
    ('no number says', log(0.5, 0.9, 0.9, 0.9), {}, FOUR),
    ('no number says', log(0.5, 0.6, 0.6, 0.6) + NOISE, {}, FOUR),     # and it has not memorised
    ('still rises (0.100 in the last third): a larger max_iters (now 100, try 300)',
     log(0.5, 0.6, 0.7, 0.8), {}, FOUR),
    (f'verify was 0.761 at step 100: {LESS}; plugins/best', log(0.386, 0.761, 0.64), {}, FOUR),
    ('memorised, or the held-out prompts are harder, the reward is 0.950 for prompts that it '
     'learns from, 0.600', log(0.5, 0.6, 0.6, 0.6, step={'mean_reward': 0.95}), {}, FOUR),
    ('nothing is left to learn, the reward is 0.960', log(
        0.96, 0.96, 0.96, step=DEAD | {'mean_reward': 0.96}), {}, FOUR),
    (f'seven digits (mean 0.5), and 95% of the groups are dead: {MORE}; easier', FLAT, {}, SAME),
    (f'100% of the prompts get equal completions, and 95% of the groups are dead: {MORE}; a larger '
     'temperature (now 0.05, try 1)', FLAT, {'temperature': 0.05}, EQUAL),
    ('likeliest tokens are sampled: a larger top_k (now 1, try 50)', FLAT, {'top_k': 1}, EQUAL),
    ('likeliest tokens are sampled: a larger top_p (now 0.01, try 1)', FLAT, {'top_p': 0.01},
     EQUAL),
    ('warms up: a smaller warmup_iters (now 900, try 10); a larger max_iters (now 100, try 300)',
     log(0.5, 0.5, 0.5), {'warmup_iters': 900}, FOUR),
    ('reference (4.0e-04 nats): a smaller kl_beta (now 100, try 0.1)', log(
        0.5, 0.51, 0.5, step={'kl': 4e-4}), {'kl_beta': 100.0}, FOUR),
    ('the entropy went 1.000 -> 2.000, so the policy is undecided: a smaller entropy_coef (now 5, '
     f'try 0.05); {LESS}', log(0.5, 0.5, 0.5, end={'entropy': 2.0}), {'entropy_coef': 5.0}, FOUR),
    ('collapsed: reward 0.500 -> 0.480, dead groups 10% -> 95%: ' + LESS, log(
        0.5, 0.49, 0.48, end=DEAD), {}, EQUAL),
    ('collapsed: reward 0.500 -> 0.480, dead groups 10% -> 10%: ' + LESS, log(
        0.5, 0.49, 0.48, end={'kl': 4}), {}, FOUR),
    ("differ in a, but not in the weighted sum: other weights (now {'a': 1.0, 'b': -1.0}, try a",
     FLAT, {'rewards': {'a': 1.0, 'b': -1.0}}, SAME),
    ("differ by less than 0.001, and advantages are divided by their std + 1e-4: weights (now "
     "{'verify': 1e-06})", log(0.5, 0.51, 0.52), {'rewards': {'verify': 1e-6}},
     [('x', 0), ('y', 1e-6)] * 2),
    ('hardly moved: a larger learning_rate (now 1e-12, try 0.001)', log(0.5, 0.5, end={'kl': 0.0}),
     {'learning_rate': 1e-12}, FOUR),
    ('hardly moved: a larger learning_rate (now 1e-12, try 2e-05)', log(0.5, 0.5, end={'kl': 0.0}),
     {'learning_rate': 1e-12, 'chat_template': True}, FOUR),
    ('completions went from 12.0 to 3.0 tokens', log(
        0.5, 0.8, 0.8, 0.8, step={'mean_tokens': 12.0}, end={'mean_tokens': 3.0}), {}, FOUR),
    ('has learned little that it did not know: a larger max_iters', log(0.5, 0.51, 0.52), {}, FOUR),
    ('went 1.000 -> 0.010, so less is tried: a larger entropy_coef (now 0, try 0.05); ' + LESS, log(
        0.5, 0.8, 0.8, 0.8, end={'entropy': 0.01}), {}, FOUR),
    ("exploited? The reward rose, and verify went 0.600 -> 0.100, read the samples: a larger "
     "kl_beta (now 0.1, try 0.3); a larger weight of verify (now {'a': 1}", log(
         0.6, 0.1, first={'reward': 1.0, 'eval/reward': 1.0}, last=UP),
     {'rewards': {'a': 1}}, FOUR),
    ('of the rewards a is no better', log(
        0.5, 0.6, first={'reward': 1.0, 'eval/a': 0.747}, last=UP | {'eval/a': 0.746}),
     {'rewards': {'a': 1.0, 'b': -0.5}}, FOUR)]


@pytest.mark.parametrize('words, lines, knobs, four', ADVICE)
def test_advice_says_what_fits_the_log_and_not_of_a_healthy_one(words, lines, knobs, four):
    sentences = advice(lines, KNOBS | knobs, 500, samples(four))
    assert words in sentences[1] and len(sentences) == 2, sentences
    if 'no number' not in words:
        assert words not in ' '.join(advice(HEALTHY, KNOBS, 500, samples(FOUR)))


def test_advice_names_the_experiment_of_a_dataset_if_the_command_names_none(file):
    dataset = file('my task.py', FILES['task'])
    knobs = KNOBS | {'dataset': dataset, 'words': [f'--dataset={dataset}']}
    lines = log(0.0, 0.0, last={'eval/verify': 0.0})
    says = advice(lines, knobs, 500, samples(SAME))[1]
    assert says.endswith(f"python train_grpo.py config/grpo_checker.py '--dataset={dataset}'")
    for other in ({'words': ['own.py']}, {'dataset': 'arithmetic'}, {'blank_kind': 'answer'}):
        assert 'blank' not in ' '.join(advice(lines, knobs | other, 500, samples(SAME)))


@pytest.mark.filterwarnings('ignore:.*found in sys.modules')
@pytest.mark.parametrize('name', ['advice', 'check', 'page'])
def test_a_command_that_is_typed_another_way_ends_in_its_docstring_or_a_line(name, capsys,
                                                                             monkeypatch):
    with pytest.raises(SystemExit, match=f'python -m extras.{name}'):
        runpy.run_path(f'extras/{name}.py', run_name='__main__')
    monkeypatch.setattr('sys.argv', ['', '--help'])
    with pytest.raises(SystemExit):
        runpy.run_module(f'extras.{name}', run_name='__main__')
    assert f'python -m extras.{name}' in capsys.readouterr().out


@pytest.mark.filterwarnings('ignore:.*found in sys.modules')
def test_advice_is_of_runs_that_are_there(finished, tmp_path, monkeypatch, capsys):
    for name in ('a', 'out-b', 'out-c'):
        shutil.copytree(finished, tmp_path / name)
    (tmp_path / 'out-b/log.jsonl').write_text('')
    (tmp_path / 'out-c/log.jsonl').unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('sys.argv', ['', 'a', 'out-b', 'out-c'])
    runpy.run_module('extras.advice', run_name='__main__')
    says = capsys.readouterr().out
    assert 'told: 8 prompts are too few' in says
    assert says.count('told: there is no evaluation yet') == 2
    with pytest.raises(SystemExit, match='there is no run nope; here are: a, out-b, out-c$'):
        advice_for('nope')


# ---- page ----------------------------------------------------------------------------------------


def test_a_page_has_all_numbers_and_completions_and_no_text_ends_its_script(finished, tmp_path):
    """Also HTML that the policy wrote, and a line that is being written."""
    folder = shutil.copytree(finished, tmp_path / 'hostile')
    samples = read_lines(folder / 'samples.jsonl')
    samples.append(samples[-1] | {'prompt': HOSTILE, 'pieces': [[HOSTILE, 0]]})
    with open(folder / 'samples.jsonl', 'a') as file:
        file.write(json.dumps(samples[-1]) + '\n{"st')
    data, _ = re.findall('(?s)<script[^>]*>(.*?)</script>', page_of([str(folder)]))
    shown, = json.loads(data)['runs']
    for line in read_lines(folder / 'log.jsonl'):
        assert shown['steps' if 'ms' in line else 'evals'].pop(0) == pytest.approx(line, rel=6e-4)
    texts = [sample['completion'] for sample in sum(shown['held_out'] + shown['groups'], [])]
    assert sorted(texts) == sorted(sample['completion'] for sample in samples)


# ---- compare -------------------------------------------------------------------------------------


@pytest.fixture
def compare(toy, tmp_path, monkeypatch, capsys, grpo):
    """compare(word, ...) returns the folders of the runs that it makes, and what it prints. The
    processes of runs are forks of this one."""
    def call(*words):
        made = []

        def train(command, **_):
            made.append(Path(command[-1].removeprefix('--out_dir=')))
            return run(*command[1:])[0]

        monkeypatch.setattr('subprocess.call', train)
        shared = ' '.join(toy[1:] + ['--max_iters=2'])
        monkeypatch.setattr('sys.argv', ['', '--seeds=1,2', f'--out_dir={tmp_path}/study',
                                         f'--words={shared}', *words])
        runpy.run_module('extras.compare', run_name='__main__')
        return made, capsys.readouterr().out
    return call


def test_a_comparison_makes_only_what_is_missing_or_unfinished(compare):
    made, text = compare('', '--kl_beta=0')
    first, _, second, _ = made                  # of the two seeds
    ends = [f'{log_of(folder)[-1]["eval/verify"]:.4f}' for folder in (first, second)]
    assert ' '.join(ends) in text
    log = second / 'log.jsonl'
    lines = log.read_text()
    for killed in (lines.rpartition('{')[0], lines[:-9], ''):
        log.write_text(killed)
        assert compare('', '--kl_beta=0')[0] == [second]


EDITED = ('mine.py', 'included.py', 'lines.jsonl', 'mine.pt')


@pytest.mark.parametrize('name', EDITED)
def test_a_comparison_makes_those_runs_anew_whose_files_have_other_contents(
        name, compare, file, folder, tmp_path):
    """Whatever the times of the files say."""
    lines = [json.dumps({'prompt': f'{i}+1={i + 1:03}'}) for i in range(10, 90)]
    file('included.py', 'learning_rate = 1e-3\n')
    file('lines.jsonl', '\n'.join(lines))
    shutil.copy(folder / 'generator.pt', tmp_path / 'mine.pt')
    mine = file('mine.py', f'include("{tmp_path}/included.py")\n')
    words = [f'{mine} --dataset={tmp_path}/lines.jsonl --generator={tmp_path}/mine.pt',
             f'--kl_beta=0 --dataset={tmp_path}/lines.jsonl']
    made, _ = compare('--goal=eval/reward', *words)
    edited = made[0::2] if name != 'lines.jsonl' else made
    contents = (tmp_path / name).read_bytes()
    for time in (0, 10 ** 10):                  # long ago, and in the year 2286
        os.utime(tmp_path / name, (time, time))
        assert compare('--goal=eval/reward', *words)[0] == []
    changed = torch.load(folder / 'generator.pt') if name == 'mine.pt' else contents + b'\n\n'
    if name == 'mine.pt':
        torch.save(changed | {'more': 1}, tmp_path / name)
    else:
        (tmp_path / name).write_bytes(changed)
    os.utime(tmp_path / name, (0, 0))
    folders, _ = compare('--goal=eval/reward', *words)
    assert len(folders) == len(edited) and not {*folders} & {*made}
    (tmp_path / name).write_bytes(contents)
    assert compare('--goal=eval/reward', *words)[0] == []       # the first ones are still there


@pytest.mark.parametrize('words', DIFFERENT)
def test_runs_that_cannot_be_compared_are_refused(words, compare, file, tmp_path):
    """mine.py has another checker."""
    mine = file('mine.py', 'def verify(text):\n    return 1.0\n')
    with pytest.raises((AssertionError, SystemExit)):
        compare(*words.replace('mine.py', mine).split('|'))
    assert not (tmp_path / 'study').exists()    # before the first run


def test_a_goal_that_no_log_has_ends_the_first_run(compare, tmp_path):
    with pytest.raises(AssertionError, match='there is no kll in the log; similar: kl'):
        compare('--goal=kll', '')
    assert len([*tmp_path.glob('study/*.txt')]) == 1


ENDS = {'a': (0.1, 0.5, 0.9), 'b': (0.2, 0.8, 1.1), 'c': (0.21, 0.61, 1.01)}       # of three seeds


def test_differences_are_of_pairs_of_seeds_and_noise_gets_no_star(capsys):
    report = runpy.run_module('extras.compare')['report']
    report({name: [{0: 0.0, 50: end / 2, 100: end} for end in ends] for name, ends in ENDS.items()})
    # 0.1, 0.3, 0.2: their mean, and their standard deviation 0.1 / sqrt(3); and 0.11 three times
    text = capsys.readouterr().out
    ends = re.findall(r'minus the first.* (\S+ \+- \S+) *$', text, re.MULTILINE)
    assert ends == ['0.2000 +- 0.0577', '0.1100 +- 0.0000*']


# ---- race ----------------------------------------------------------------------------------------


def test_the_race_scores_samples_of_the_policy(toy, grpo):
    """The mean number of ones is that of the probabilities of all blanks."""
    _, data = grpo.read_words(toy[1:])
    networks, task = grpo.open_task(data)
    policy = networks.policy
    prompts = task.prompts('val', 400, 0.2, 0.6)
    one, = task.tok.encode('1')
    with torch.no_grad():
        views = prompts.tokens.masked_fill(prompts.blank, policy.blank_id)
        p = policy.logits(policy.features(views)).softmax(-1)[..., one]         # (400, T)
    p = torch.where(prompts.blank, p, (prompts.tokens == one).float())
    error = (p * (1 - p)).sum() ** 0.5 / (len(p) * 4 ** 0.5)
    score = share_of_true(policy, prompts, lambda text: text.count('1'))
    assert abs(score - p.sum() / len(p)) < 4 * error


# ---- check ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('case', FOUND.replace('\\\n', '').strip().splitlines())
def test_a_world_checker_reward_or_function_that_is_silently_wrong_is_found(case, grpo, file):
    start, _, wrong = case.partition('->')
    name, _, text = start.partition(': ')
    words = check.words_for([file('mine.py', FILES[name].replace('TEXT', text.strip()))])
    found = []
    with contextlib.suppress(AssertionError):   # of a step that cannot be taken, too
        for mark, sentence in check.checks(words):
            found += [f'{mark} {part}'.strip() for part in WORDS
                      if mark != 'ok' and part in sentence]
    assert ', '.join(found) == wrong.strip()


@pytest.mark.parametrize('name, message', [
    ('mine.py', r'there is no texts\(\)'), ('config/networks/generator_smoke.py', 'pretrain.py'),
    ('config', 'expected FILE.py')])
def test_a_file_that_is_no_task_and_no_experiment_is_refused(name, message, grpo, file):
    path = file(name, FILES['task'].replace('texts', 'text')) if name == 'mine.py' else name
    with pytest.raises(AssertionError, match=message):
        [*check.checks(check.words_for([path]))]
