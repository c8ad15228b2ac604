"""Check a task, a world, a reward or a paper with toy networks, before anything is trained:

    python -m extras.check examples/worlds/lock.py
    python -m extras.check small.py
    python -m extras.check config/grpo_think.py config/papers/gspo.py

The words are those of train_grpo.py, from the experiment on (config/grpo_pairs.py mine.py). The
file of a task stands for --dataset=FILE, and without an experiment it gets one that fits. `bad` is
a mistake; of `look` only you know whether it is one. The exit code is 1 if something is bad. Tokens
are characters here, so plugins/hf.py has no part in it: check the task alone.

A case is what rewards see of a completion: its record, and more columns."""
import contextlib
import copy
import inspect
import random
import sys
import tempfile
import time
from pathlib import Path

if not __package__:
    sys.exit("expected: python -m extras.check ...")

import torch
from torch.nn.utils import parameters_to_vector

import train_grpo as grpo
from model import GPT
from plumbing import devices
from plumbing.configurator import configure, must_exist
from plumbing.datasets import is_answer, load
from plumbing.networks import save_network
from plumbing.rewards import as_numbers, call_reward, world_answers
from plumbing.run_folder import RunFolder
from pretrain import make_tokenizer
from tasks import BLANK

TOY = ['--group_size=6', '--batch_size=4', '--gradient_accumulation_steps=1', '--mini_batches=1',
       '--eval_prompts=8', '--grad_clip=0', '--device=cpu', '--dtype=float64', '--compile=False',
       '--reference=', '--wandb_project=']
RNG = random.Random(0)


def so(is_so, sentence, mark='bad'):
    return ('ok', sentence) if is_so else (mark, f'not so: {sentence}')


def words_or_help(doc):
    """Return the words of the command line. Print doc instead if they ask for help."""
    return sys.exit(print(doc)) if {'-h', '--help'} & {*sys.argv} else sys.argv[1:]


def is_task(word):
    kind = '' if word.startswith(('--', 'config/', 'plugins/')) else Path(word).suffix
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


def make_toy(words, folder):
    """Make tiny, random networks in a folder. Return words of a run with them."""
    words = words + TOY + [f'--out_dir={folder}/run']
    config = configure(vars(grpo), words)
    if 'chat_template' in config:
        sys.exit("plugins/hf.py needs a tokenizer, and this command makes toy networks of "
                 "characters: check the dataset alone")
    torch.manual_seed(0)
    tok = make_tokenizer('char', config['dataset'])
    task = grpo.Task(load(config['dataset']), tok, 'answer')
    length = task.length + config.get('max_new_tokens', 0)
    for name in ('generator', 'judge'):
        is_causal = name == 'judge' or 'max_new_tokens' in config
        network = GPT(tok.vocab_size, length, 1, 2, 8, 'causal' if is_causal else 'fill')
        network.tok = tok
        for p in network.parameters():          # of a new one the logits are 0
            torch.nn.init.normal_(p, std=0.5)
        save_network(f'{folder}/{name}.pt', network)
        words.append(f'--{name}={folder}/{name}.pt')
    return words


# ---- texts, and a world --------------------------------------------------------------------------


def play(world, case, room, write):
    """Return the case in which the policy goes on with the characters write(completion), until
    ''."""
    completion, sampled = case['completion'], case['sampled']
    is_over = False
    while not is_over and len(completion) < room and (char := write(completion)):
        completion += char
        sampled += char
        if world and len(completion) < room:
            [(text, is_over)] = world_answers(world, [case | {'completion': completion}])
            completion = (completion + text)[:room]
    text = case['prompt'] + completion
    return case | {'completion': completion, 'sampled': sampled, 'text': text}


def score(task, name, cases, split='train'):
    """Return a reward (N,) of cases, called as score() of train_grpo.py does at the first step."""
    function = task.verify if name == 'verify' else vars(grpo)[name]
    columns = {column: [case[column] for case in cases] for column in cases[0]}
    kept = copy.deepcopy(grpo.state)            # a reward may remember there what it has seen
    devices.set_seed(0)
    values = call_reward(name, function, columns, {'step': 0, 'split': split})
    grpo.state.clear()
    grpo.state.update(kept)
    return as_numbers(name, values, len(cases))


def groups_of(task, is_causal):
    """Return three cases of each of 200 held-out records. From left to right they are its own
    answer, a part of it, and nothing; else its text, with random characters in half of the blanks,
    and in all."""
    prompts = task.prompts('val', 200)
    shown = prompts.tokens.masked_fill(prompts.blank, task.tok.blank)
    groups = []
    for i, *rows in zip(prompts.record.tolist(), shown.tolist(), prompts.tokens.tolist()):
        prompt, original = map(task.tok.decode, rows)
        record, answer = task.records[i], task.records[i]['answer']
        case = record | {'original': original, 'completion': '', 'sampled': '', 'ended': True}
        if is_causal:
            texts = answer, answer[:RNG.randrange(max(1, len(answer)))], ''
            groups.append([play(task.reply, case, len(text), lambda begun: text[len(begun)])
                           for text in texts])
            continue
        texts = [''.join(RNG.choice([*task.tok.ids]) if a == BLANK and RNG.random() < share else b
                         for a, b in zip(prompt, original)) for share in (0, 0.5, 1)]
        groups.append([case | {'prompt': prompt, 'completion': text, 'text': text}
                       for text in texts])
    return groups


def check_texts(task, name, groups, is_causal):
    """Score cases of texts, and of others that are not as good."""
    began = time.time()
    cases = sum(groups, [])
    scores = score(task, name, cases).view(-1, 3)
    ms = 1000 * (time.time() - began) / scores.numel()
    own, part, nothing = scores.mean(0).tolist()
    mark = 'look' if own <= max(part, nothing, 0.02) else 'ok'      # or hardly a text is right
    if name == 'verify' and nothing > 0 and is_causal:
        mark = 'bad'
    others = f"{part:.3g} with random characters in half of the blanks, {nothing:.3g} in all"
    if is_causal:
        others = f"{part:.3g} for a part of each, {nothing:.3g} for the prompt alone"
    yield mark, f"{name}: {own:.3g} for the texts, {others}; {ms:.2f} ms for a completion"
    if name == 'verify' and not 0 <= scores.min() <= scores.max() <= 1:
        yield 'bad', "verify() is outside of 0 to 1"
    if not scores.std(1).any():
        yield 'look', f"{name} is equal for all completions of a prompt, so nothing is learned"
    if not score(task, name, cases).equal(scores.flatten()):
        yield 'look', (f"{name} is another one when it is called again: what it remembers must be "
                       "in `state`")
    elif name != 'verify':                      # else its order cannot be told
        yield from check_order(task, name, groups)


def check_order(task, name, groups):
    """Score completions of prompts in another order, six of each, and four."""
    some = {group[0]['prompt']: group for group in groups}      # no prompt comes twice
    for k, split in ((6, 'train'), (4, 'val')):
        cases = [case for group in [*some.values()][:9] for case in (group * 2)[:k]]
        moved = score(task, name, cases[k:] + cases[:k], split).roll(k)
        yield so(moved.allclose(score(task, name, cases, split)), (
            f"{name} of {k} completions of each prompt does not depend on where a prompt stands"))


def check_world(task, cases):
    """Win by chance, and by writing what the world would write. cases: of the texts."""
    room = 1 + max(len(case['completion']) for case in cases)
    mine = sorted({char for case in cases for char in case['sampled']})
    only = sorted({char for case in cases for char in case['completion']} - {*mine})
    won, forged, said = [], [], set()
    is_same = True
    for case in cases * 3:
        case = case | {'completion': '', 'sampled': ''}
        game = play(task.reply, case, room, lambda _: RNG.choice(mine + ['']))
        again = iter(game['sampled'][:RNG.randrange(room)])
        start = play(task.reply, case, room, lambda _: next(again, ''))
        said.update(game['completion'])
        is_same &= game['completion'].startswith(start['completion'])
        end = play(task.reply, start, room, lambda _: RNG.choice(only * 2 + ['']))
        is_won, was_won, is_forged = (score(task, 'verify', [game, start, end]) == 1).tolist()
        won += [game['completion']] * is_won
        forged += [end['completion']] * (is_forged and not was_won)
    yield '', (f"random play wins {len(won)} of {3 * len(cases)} games; do these keep your rules? "
               f"{won[:3]}")
    yield so(is_same, "the world says the same twice, so it has no state, and no chance")
    if strange := ''.join(said - task.tok.ids.keys()):
        yield 'bad', f"the world says {strange!r}, which no text has"
    if only:
        found = f": {forged[:3]}; let verify() look at `sampled`" if forged else ''
        yield so(not forged, f"if the policy writes {''.join(only)!r} itself, a lost game stays "
                 f"lost{found}")
    missing = {name for name, p in inspect.signature(task.reply).parameters.items()
               if p.default is p.empty} - {'completion', 'prompt', 'answer'}
    yield so(not missing, f"reply() has a default for {' '.join(missing) or 'all columns'}, as "
             "sample.py --prompt needs it", 'look')


# ---- toy steps -----------------------------------------------------------------------------------


def begin(words, resume=False):
    """Begin a run, or go on, as main() of train_grpo.py does. Return the folder, networks, task and
    optimizers. Its rewards are drawn, because most of a random network would be equal."""
    with contextlib.redirect_stdout(None):      # it has been said
        config, data = grpo.read_words(words)
        folder = RunFolder(grpo.out_dir, config | {'resume': resume})
        networks, task = grpo.open_task(data)
    folder.lock.release()                       # for the next one
    grpo.as_numbers = lambda *args: torch.rand_like(as_numbers(*args))
    grpo.state.update(folder.state)
    optimizers = grpo.make_optimizers(networks.policy, grpo.optimizer)
    with contextlib.redirect_stdout(None):
        folder.begin(networks.policy, optimizers, ())
    return folder, networks, task, optimizers


def second_step(networks, task, optimizers, shift=0):
    """Return the weights after the second step, and the texts of Rollouts without logp_old. shift:
    the policy that sampled was another one."""
    rollouts, _ = grpo.collect(networks, task, 1)
    texts = [r.texts for r in rollouts if r.logp_old is None]
    for r in rollouts if shift else ():
        logp = grpo.log_probs_of(networks.policy, r)
        r.logp_old = logp + torch.linspace(-shift, shift, len(logp))
    grpo.learn(networks, optimizers, rollouts, 1e-3)
    return parameters_to_vector(networks.policy.parameters()), texts


def check_steps(words, folder, networks, task, optimizers):
    """Take two steps of a toy run, and the second one again."""
    policy = networks.policy
    grpo.evaluate(networks, task, 0)
    rollouts, _ = grpo.collect(networks, task, 0)
    for r in grpo.updates_of(rollouts)[0]:
        losses, _ = grpo.token_losses(networks, r.select(slice(None)))      # a copy
        if losses.shape != r.text_of.shape or not losses.isfinite().all():
            yield 'bad', (f"the losses are {tuple(losses.shape)}: expected finite numbers, "
                          f"{tuple(r.text_of.shape)}")
            return
    before = [grpo.log_probs_of(policy, r) for r in rollouts]
    grpo.learn(networks, optimizers, rollouts, 1e-3)
    # Estimates of the likelihood are nan for a token that no mask looks at.
    gain = sum((r.advantage * (grpo.log_probs_of(policy, r) - old)).nansum()
               for r, old in zip(rollouts, before))
    yield so(gain > 0, "a step makes good completions likelier")
    folder.save(policy, optimizers, 1, None, grpo.state)
    last, texts = second_step(networks, task, optimizers)
    again, _ = second_step(*begin(words, resume=True)[1:])
    older, _ = second_step(*begin(words, resume=True)[1:], shift=1)
    is_kept = any(x.equal(r.texts) for x in texts for r in rollouts)
    yield so(not is_kept, "texts of an earlier step have logp_old: else their ratio would be 1")
    yield so(again.equal(last),
             "a resumed run takes the same step, because what lasts is in `state`")
    yield so(not older.equal(last),
             "a step weighs tokens of an older policy, by r.logp_old", 'look')
    reward = torch.rand(3, 6, dtype=torch.float64)
    A, other, none = [
        grpo.advantages(x, dict.fromkeys([*grpo.rewards, 'reward', 'tokens'], x))
        for x in (reward, torch.cat((reward[:2], reward[2:] ** 2)), torch.ones_like(reward))]
    yield so(A.shape == reward.shape and (grpo.adv_norm == 'batch' or A[:2].allclose(other[:2])),
             "advantages (P, k) depend on the rewards of their own group alone", 'look')
    yield so(not none.any(), "advantages of equal rewards are 0", 'look')


def checks(words):
    """Yield (mark, sentence) of words of train_grpo.py."""
    with tempfile.TemporaryDirectory() as folder:
        words = make_toy(words, folder)
        run = begin(words)
        _, networks, task, _ = run
        is_causal = networks.policy.causal
        kind = 'writes from left to right' if is_causal else 'fills blanks'
        if grpo.blank_kind == 'random':
            kind += f", which are {grpo.blank_low:g} to {grpo.blank_high:g} of a text, at random"
        n_held_out = len(task.records) - task.n_train
        yield '', (f"{grpo.dataset}: {task.n_train} texts, {n_held_out} held out; "
                   f"the generator {kind}")
        if not any(grpo.rewards.values()):
            yield 'bad', "all weights of rewards are 0"
        n = len(task.records)
        different = {repr(record | {'line': 0}) for record in task.records}
        if len(different) < n / 4:
            yield 'look', f"only {len(different)} of {n} records are different"
        *_, most, longest = sorted(len(row.whole) for row in task.rows)
        if longest > 3 * most:
            yield 'look', f"one text has {longest} characters, the others at most {most}"
        groups = groups_of(task, is_causal)
        names = [name for name in grpo.rewards if name not in ('judge', 'verify')
                 and not {'r', 'networks'} & inspect.signature(vars(grpo)[name]).parameters.keys()]
        for name in (['verify'] if task.verify else []) + names:
            yield from check_texts(task, name, groups, is_causal)
        if is_causal and task.reply and task.verify:
            yield from check_world(task, [group[0] for group in groups])
        yield from check_steps(words, *run)


if __name__ == '__main__':
    words = words_for(words_or_help(__doc__))
    marks = set()
    for mark, sentence in checks(words):
        print(f'{mark:5}{sentence}', flush=True)
        marks.add(mark)
    if 'bad' in marks:
        sys.exit(1)
    print('nothing is bad' if 'look' in marks else 'all ok', '-> python train_grpo.py', *words)
