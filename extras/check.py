"""Check a task, a world, a reward or a paper with toy networks, before anything is trained:

    python -m extras.check examples/worlds/lock.py
    python -m extras.check small.py
    python -m extras.check config/grpo_think.py config/papers/gspo.py

The words are those of train_grpo.py, from the experiment on (config/grpo_pairs.py mine.py). The
file of a task stands for --dataset=FILE, and without an experiment it gets one that fits. `bad` is
a mistake; of `look` only you know whether it is one. The exit code is 1 if something is bad. Tokens
are characters here, so plugins/hf.py has no part in it: check the task alone.

A case is what rewards see of a completion: its record, and more columns."""
import copy
import difflib
import os
import random
import shlex
import subprocess
import sys
import tempfile
from inspect import signature
from pathlib import Path

if not __package__:
    sys.exit("expected: python -m extras.check ...")

import torch
from torch.nn.utils import parameters_to_vector

import train_grpo as grpo
from model import GPT
from plumbing import devices
from plumbing.configurator import must_exist
from plumbing.datasets import is_answer, load
from plumbing.networks import paths_of, save_network
from plumbing.rewards import as_numbers, call_each, call_reward, world_answers
from pretrain import make_tokenizer
from tasks import BLANK

TOY = ['--group_size=6', '--batch_size=4', '--gradient_accumulation_steps=1', '--mini_batches=1',
       '--eval_prompts=8', '--grad_clip=0', '--device=cpu', '--dtype=float64', '--compile=False',
       '--wandb_project=']
RNG = random.Random(0)


def so(is_so, sentence, mark='bad'):
    return ('ok', sentence) if is_so else (mark, f'not so: {sentence}')


def words_or_help(doc):
    """Return the words of the command line. Print doc instead if they ask for help."""
    return sys.exit(print(doc)) if {'-h', '--help'} & {*sys.argv} else sys.argv[1:]


def is_task(word):
    kind = '' if word.startswith('--') else Path(word).suffix
    source = Path(must_exist(word)).read_text('utf-8') if kind == '.py' else ''
    # The file of an experiment may have a verify() too, and says so in `rewards`.
    assert 'def texts(' in source or 'def verify(' not in source or 'rewards' in source, (
        f"{word}: there is no texts(), which returns the records")
    return kind == '.jsonl' or 'def texts(' in source


def words_for(words):
    """Return words for train_grpo.py: --dataset=FILE for the file of a task, and an experiment."""
    words = [f'--dataset={word}' if is_task(word) else word for word in words]
    tasks = [word for word in words if word.startswith('--dataset=')]
    if not tasks or any(word.startswith(('config/', 'plugins/')) for word in words):
        return words
    data = load(tasks[-1].removeprefix('--dataset='))
    if data.reply:
        return ['config/grpo_world.py', *words]
    if BLANK in data.train[0]['prompt']:
        return ['config/grpo_config.py', '--blank_kind=answer', *words]
    return [f"config/grpo_{'pairs' if data.verify is is_answer else 'checker'}.py", *words]


def open_toy(words):
    """Apply words, and make tiny, random networks. Return them, the task and the optimizers of a
    run. Its rewards are drawn, because most of a random network would be equal."""
    config, data = grpo.read_words(words + TOY)
    assert 'chat_template' not in config, (
        "plugins/hf.py needs a tokenizer, and this command makes toy networks of characters: check "
        "the dataset alone")
    # Would the networks of the run fit?
    networks = grpo.open_networks(paths_of(vars(grpo)), grpo.dataset, torch.device('cpu'),
                                  grpo.load_network)
    grpo.Task(data, networks.policy.tok, grpo.blank_kind, networks.policy)
    grpo.reference = ''
    torch.manual_seed(0)
    tok = make_tokenizer('char', grpo.dataset)
    length = grpo.Task(data, tok, 'answer').length + config.get('max_new_tokens', 0)
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in {'generator': grpo.Task.kind, 'judge': 'causal'}.items():
            network = GPT(tok.vocab_size, length, 1, 2, 8, kind)
            network.tok = tok
            for p in network.parameters():      # of a new one the logits are 0
                torch.nn.init.normal_(p, std=0.5)
            path = vars(grpo)[name] = f'{folder}/{name}.pt'
            save_network(path, network)
        networks, task = grpo.open_task(data)
    grpo.as_numbers = lambda *args: torch.rand_like(as_numbers(*args))
    return networks, task, grpo.make_optimizers(networks.policy, grpo.optimizer)


def aside(function, *words):
    """Return what a function returns, and leave `state` as it was."""
    kept = copy.deepcopy(grpo.state)
    result = function(*words)
    grpo.state.clear()
    grpo.state.update(kept)
    return result


# ---- texts, and a world --------------------------------------------------------------------------
# Prints the prompts and answers of a dataset. Sets have another order in another process, and
# random numbers without a seed are others.
PRINT_PAIRS = """
import sys
from plumbing.datasets import load
data = load(sys.argv[1])
print(ascii([(record['prompt'], record['answer']) for record in data.train + data.held_out]))"""


def check_records(task):
    """Look at the records of a dataset."""
    one, other = [subprocess.check_output([sys.executable, '-c', PRINT_PAIRS, grpo.dataset],
                                          env=os.environ | {'PYTHONHASHSEED': seed})
                  for seed in '12']
    yield so(one == other, "each process has the same texts, because random numbers have a seed, "
             "and no set gives the order")
    different = {repr(record | {'line': 0}) for record in task.records}
    if len(different) < len(task.records) / 4:
        yield 'look', f"only {len(different)} records are different"
    sizes = sorted(len(row.whole) for row in task.rows)
    if sizes[-1] > 3 * sizes[-2]:
        yield 'look', f"one text has many more characters than the others: {sizes[-2:]}"
    seen, held = [{id for row in rows for id in row.whole}
                  for rows in (task.rows[:task.n_train], task.rows[task.n_train:])]
    if held - seen:
        yield 'look', f"only held-out texts have {task.tok.show(held - seen)!r}"


def play(world, case, room, write):
    """Return the case in which the policy goes on with the characters write(completion), until
    '', or until the world ends the game: then it is `over`."""
    completion, sampled = case['completion'], case['sampled']
    is_over = case.get('over', False)
    while not is_over and len(completion) < room and (char := write(completion)):
        completion += char
        sampled += char
        if world and len(completion) < room:
            [(text, is_over)] = world_answers(world, [case | {'completion': completion}])
            completion = (completion + text)[:room]
    text = case['prompt'] + completion
    return case | {'completion': completion, 'sampled': sampled, 'text': text, 'over': is_over}


def texts_to_score(policy, task):
    """Return what rewards see, {name: list}, of held-out texts, and of others for their prompts:
    random ones, or, from left to right, empty ones."""
    other = grpo.columns_of(grpo.complete(policy, task.prompts('val', 200), 1))
    if not policy.causal:
        return other | {'completion': other['original'], 'text': other['original']}, other
    n = len(other['text'])
    other |= {'completion': [''] * n, 'sampled': [''] * n, 'text': other['prompt']}
    games = [play(task.reply, case, len(case['answer']), lambda begun: case['answer'][len(begun)])
             for case in cases_of(other)]
    return {name: [game[name] for game in games] for name in other} | {'ended': [True] * n}, other


def cases_of(columns):
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def reordered(columns, order):
    return {name: [values[i] for i in order] for name, values in columns.items()}


def score(name, function, columns):
    """Return a reward (N,), called as score() of train_grpo.py does at the first step."""
    devices.set_seed(0)
    values = aside(call_reward, name, function, columns, {'step': 0, 'split': 'val'})
    return as_numbers(name, values, len(columns['text']))


def check_reward(name, function, texts, group):
    """Score texts_to_score(), and four completions of each of some prompts, in several orders."""
    scores = torch.stack([score(name, function, columns) for columns in texts])     # (2, 200)
    own, other = scores.mean(1).tolist()
    mark = 'ok' if own - other > 0.02 else 'look'       # or hardly a text is right
    yield mark, f"{name}: {own:.3g} for the texts, {other:.3g} for random or empty ones"
    if name == 'verify' and not 0 <= scores.min() <= scores.max() <= 1:
        yield 'bad', "verify() is outside of 0 to 1"
    now = score(name, function, group)
    rows = torch.arange(len(now)).view(-1, 4)
    if not (scores.std(0).any() or now[rows].std(1).any()):
        yield 'look', f"{name} is equal for all that was tried: if it always is, nothing is learned"
    for order, mark, fault in (
            (rows, 'look', "is another one when it is called again: random numbers need a seed, "
                           "and what it remembers must be in `state`"),
            (rows.roll(1, 0), 'bad', "depends on where a prompt stands, with four completions"),
            (rows.flip(1), 'look', "depends on the order of the completions of a prompt"),
            (rows[:, :1].expand(-1, 4), '', "depends on the other completions")):
        order = order.flatten()
        if not score(name, function, reordered(group, order)).allclose(now[order]):
            yield mark, f"{name} {fault}"
            return


def check_world(task, own, empty):
    """Win by chance, and by writing what the world would write."""
    room = 1 + max(map(len, own['completion']))
    mine = sorted({*''.join(own['sampled'])})
    only = sorted({*''.join(own['completion'])} - {*mine})
    won, forged = [], []
    cases = cases_of(empty) * 3
    for case in cases:
        game = play(task.reply, case, room, lambda _: RNG.choice(mine + ['']))
        end = play(task.reply, game, room, lambda _: RNG.choice(only * 2 + ['']))
        is_won, is_forged = call_each('verify', task.verify, [game, end])
        if is_won == 1:
            won.append(game['completion'])
        elif is_forged == 1:
            forged.append(end['completion'])
    yield '', (f"random play wins {len(won)} of {len(cases)} games; do these keep your rules? "
               f"{won[:3]}")
    if forged:
        yield 'bad', (f"if the policy writes {''.join(only)!r} itself, a lost game is won: "
                      f"{forged[:3]}; let verify() look at `sampled`")


# ---- toy steps -----------------------------------------------------------------------------------


def advantages_of(reward):
    scores = dict.fromkeys([*grpo.rewards, 'reward', 'tokens'], reward)
    return aside(grpo.advantages, reward.clone(), scores)


def step(networks, optimizers, task, seed, learned):
    """Take the second step. Return the weights. Add to `learned` the Rollouts that have losses."""
    def token_losses(networks, r, inner=grpo.token_losses):
        learned.append(copy.copy(r))            # before logp_old is set
        return inner(networks, r)

    grpo.token_losses, inner = token_losses, grpo.token_losses
    rollouts, _ = grpo.collect(networks, task, 1)
    devices.set_seed(seed)
    grpo.learn(networks, optimizers, rollouts, 1e-3)
    grpo.token_losses = inner
    return parameters_to_vector(networks.policy.parameters())


def check_steps(networks, task, optimizers):
    """Take two steps of a toy run, and the second one again."""
    reward = torch.rand(4, 6, dtype=torch.float64)
    A, again, none = map(advantages_of, (reward, reward, torch.ones_like(reward)))
    assert isinstance(A, torch.Tensor), f"advantages() returned {A!r:.80}: expected a tensor (P, k)"
    yield so(A.shape == reward.shape and A.isfinite().all() and none.isfinite().all(),
             "advantages (P, k) are finite, also those of equal rewards")
    yield so(A.equal(again), "advantages of the same rewards are the same", 'look')
    yield so(grpo.adv_norm == 'batch' or advantages_of(reward[:2]).allclose(A[:2]),
             "advantages depend on the rewards of their own group alone", 'look')
    yield so(not none.any(), "advantages of equal rewards are 0", 'look')
    if grpo.kl_beta == 0 and grpo.kl_penalty is not grpo._original['kl_penalty']:
        yield 'look', "kl_penalty() is replaced, and has no effect, because kl_beta = 0"
    grpo.evaluate(networks, task, 0)
    rollouts, _ = grpo.collect(networks, task, 0)
    copy_of_r = grpo.updates_of(rollouts)[0][0].select(slice(None))
    losses, _ = grpo.token_losses(networks, copy_of_r)
    yield so(losses.shape == copy_of_r.token.shape and losses.isfinite().all(),
             "losses (M,) are finite numbers")
    r = rollouts[0]
    before = grpo.log_probs_of(networks.policy, r)
    lr = grpo.get_lr(grpo.max_iters // 2, grpo.learning_rate, grpo.min_lr, grpo.warmup_iters,
                     grpo.max_iters)
    grpo.learn(networks, optimizers, rollouts, min(lr, 1e-3))           # for small networks
    # Estimates of the likelihood are nan for a token that no mask looks at.
    gain = r.advantage * (grpo.log_probs_of(networks.policy, r) - before)       # (M,)
    yield so(gain.nansum() > 0, "a step makes good completions likelier")
    learned = []
    one, other = [aside(step, *copy.deepcopy((networks, optimizers)), task, seed, learned)
                  for seed in (1, 2)]
    if any(x.logp_old is None and x.texts.equal(r.texts) for x in learned):
        yield 'bad', "texts of an earlier step have no logp_old, so their ratio is 1: set it then"
    yield so(one.equal(other), "a step that is taken again is the same, because what lasts is in "
             "`state`, and learn() draws no random numbers, or with a seed from the data")


def checks(words):
    """Yield (mark, sentence) of words of train_grpo.py."""
    networks, task, optimizers = open_toy(words)
    policy = networks.policy
    yield '', (f"{grpo.dataset}: {task.n_train} texts to learn from; a"
               f" {policy.kind!r} generator, blank_kind = {grpo.blank_kind!r}")
    yield from check_records(task)
    texts = texts_to_score(policy, task)
    two = grpo.columns_of(grpo.complete(policy, task.prompts('val', 9), 2))
    group = reordered(two, torch.arange(len(two['text'])).repeat_interleave(2))
    functions = vars(grpo) | {'verify': task.verify}
    for name in {'verify': 1.0} | grpo.rewards:
        function = functions[name]              # 'judge' is a knob, and no function
        if callable(function) and not {'r', 'networks'} & signature(function).parameters.keys():
            yield from check_reward(name, function, texts, group)
    if policy.causal and task.reply and task.verify:
        yield from check_world(task, *texts)
    ours = {name for name, x in grpo._original.items() if callable(x)}
    for name in functions.keys() - ours - grpo.rewards.keys():
        similar = difflib.get_close_matches(name, ours, cutoff=0.8)
        if callable(functions[name]) and similar:
            yield 'look', f"{name}() replaces nothing; similar: {', '.join(similar)}()"
    if not any(grpo.rewards.values()):
        yield 'look', "all weights of rewards are 0"
        return
    yield from check_steps(networks, task, optimizers)


if __name__ == '__main__':
    words = words_for(words_or_help(__doc__))
    marks = []
    for mark, sentence in checks(words):
        print(f'{mark:5}{sentence}', flush=True)
        marks.append(mark)
    if 'bad' in marks:
        sys.exit(1)
    n = marks.count('look')
    print(f'nothing is bad{n and f", {n} to look at" or ""} -> python train_grpo.py',
          shlex.join(words))
