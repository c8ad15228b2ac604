"""Check a task, a world, a reward or a paper with toy networks, before anything is trained:

    python -m extras.check examples/worlds/lock.py
    python -m extras.check small.py
    python -m extras.check config/grpo_think.py config/papers/gspo.py

The words are those of train_grpo.py, from the experiment on (config/grpo_pairs.py mine.py), and the
file of a task stands for --dataset=FILE. `bad` is a mistake; of `look` only you know whether it is
one. The exit code is 1 if something is bad. Tokens are characters here, so plugins/hf.py has no
part in it: check the task alone.

A case is what rewards see of a completion: its record, and more columns."""
import contextlib
import copy
import random
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import train_grpo as grpo
from configurator import call, call_world, configure, parameters_of
from model import GPT, save_network
from tasks import BLANK, as_numbers, make_tokenizer

TOY = ['--group_size=6', '--batch_size=4', '--gradient_accumulation_steps=1', '--mini_batches=1',
       '--eval_prompts=8', '--grad_clip=0', '--device=cpu', '--dtype=float64', '--compile=False']
RNG = random.Random(0)


def so(is_so, sentence, mark='bad'):
    return ('ok', sentence) if is_so else (mark, f'not so: {sentence}')


def task_of(word):
    """Return the file of a task that a word names, or ''."""
    path = Path(word.removeprefix('--dataset='))
    is_task = path.suffix == '.jsonl' or path.suffix == '.py' and path.is_file() and (
        'def texts(' in path.read_text('utf-8'))
    return str(path) if is_task else ''


def set_up_toy(words):
    """Return words for train_grpo.py, and networks and task of a run with tiny, random networks."""
    if any(map(task_of, words)) and not any(word.startswith('config/') for word in words):
        words = ['plugins/causal.py', "--rewards={'verify':1.0}", *words]
    words = [f'--dataset={task_of(word)}' if task_of(word) else word for word in words] + TOY
    config = configure(vars(grpo), words)
    if 'chat_template' in config:
        sys.exit("plugins/hf.py needs its own tokens, and here they are characters: check the task")
    tok = make_tokenizer('char', config['dataset'])
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        for name in ('generator', 'judge'):
            is_causal = name == 'judge' or 'max_new_tokens' in config
            network = GPT(tok.vocab_size, 1024, 1, 2, 8, is_causal)
            for p in network.parameters():      # (of a new one the logits are 0)
                torch.nn.init.normal_(p, std=0.5)
            save_network(f'{folder}/{name}.pt', network, tok)
            words.append(f'--{name}={folder}/{name}.pt')
        with contextlib.redirect_stdout(None):                  # it has been said
            _, networks, task = grpo.set_up([*words, '--reference='])
    return words, networks, task


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
            text, is_over = call_world(world, case | {'completion': completion})
            completion = (completion + text)[:room]
    return case | {'completion': completion, 'sampled': sampled, 'text': case['shown'] + completion}


def score(task, name, cases):
    """Return a reward (N,) of cases, called as score() of train_grpo.py does."""
    if name == 'verify':
        values = [call(task.verify, case) for case in cases]
    else:
        columns = {key: [case[key] for case in cases] for key in cases[0]}
        columns |= {f'{key}s': columns[key] for key in ('prompt', 'completion', 'text')}
        columns |= {'step': 0, 'split': 'val'}
        values = call(vars(grpo)[name], columns)
    return as_numbers(name, values, len(cases))


def groups_of(task, is_causal):
    """Return three cases of each of 200 records: its own answer, a part of it, and nothing."""
    groups = []
    for record in RNG.sample(task.records, min(200, len(task.records))):
        shown, whole, left = record['prompt'], record['answer'], ''
        if not is_causal:                       # a completion is the whole text
            whole = whole if BLANK in shown else shown + whole
            left = shown.ljust(len(whole), BLANK)               # behind a part
            shown = ''
        case = record | {'completion': '', 'sampled': '', 'ended': True, 'shown': shown,
                         'original': shown + whole}
        texts = [whole[:n] + left[n:] for n in (len(whole), RNG.randrange(max(1, len(whole))), 0)]
        groups.append([play(task.reply, case, len(text), lambda begun: text[len(begun)])
                       for text in texts])
    return groups


def check_texts(task, name, groups):
    """Score cases of texts, and of parts of them."""
    began = time.time()
    scores = score(task, name, sum(groups, [])).view(-1, 3)
    ms = 1000 * (time.time() - began) / scores.numel()
    own, part, nothing = scores.mean(0).tolist()
    mark = 'look' if own <= max(part, nothing, 0.02) else 'ok'      # or hardly a text is right
    if name == 'verify' and nothing > 0 and groups[0][0]['shown']:
        mark = 'bad'
    yield mark, (f"{name}: {own:.3g} for the texts' answers, {part:.3g} for a part of each, "
                 f"{nothing:.3g} for the prompt alone; {ms:.2f} ms for a completion")


def check_order(task, name, groups):
    """Score completions of prompts in another order, six of each, and four."""
    some = {group[0]['prompt']: group for group in groups}      # no prompt comes twice
    for k in (6, 4):
        cases = [case for group in [*some.values()][:9] for case in (group * 2)[:k]]
        moved = score(task, name, cases[k:] + cases[:k]).roll(k)
        yield so(moved.allclose(score(task, name, cases)), (
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
    yield '', f"random play wins {len(won)} of {3 * len(cases)}: do they keep your rules? {won[:3]}"
    yield so(is_same, "the world says the same twice, so it has no state, and no chance")
    if strange := ''.join(said - task.tok.ids.keys()):
        yield 'bad', f"the world says {strange!r}, which no text has"
    if only:
        sentence = f"if the policy writes {''.join(only)!r} itself, a lost game stays lost"
        if forged:
            sentence = (f"if the policy writes {''.join(only)!r} itself, verify() calls these lost "
                        f"games won: {forged[:3]}; let it look at `sampled`")
        yield 'bad' if forged else 'ok', sentence


# ---- toy steps -----------------------------------------------------------------------------------


def watched(name, f):
    """Return f, whose results must be finite numbers, each one for each token."""
    def look(*args, **more):
        results = f(*args, **more)
        r, = [arg for arg in args if isinstance(arg, grpo.Rollout)]
        for x in [results] if isinstance(results, torch.Tensor) else results:
            assert x.shape == r.n.shape and x.isfinite().all(), (
                f"{name}() returns {tuple(x.shape)}: expected finite numbers, {tuple(r.n.shape)}")
        return results
    return look


def begin(words):
    """Give train_grpo the globals of a new run. Its rewards are drawn, because most of a random
    network would be equal."""
    with contextlib.redirect_stdout(None):
        configure(vars(grpo), words)
    for name in ('objective', 'kl_penalty', 'token_stats'):
        vars(grpo)[name] = watched(name, vars(grpo)[name])
    inner = grpo.as_numbers
    grpo.as_numbers = lambda *args: torch.rand_like(inner(*args))


def step_of(networks, rollouts):
    """Move the weights by a step of gradient descent. Return the step."""
    parameters = [*networks.policy.parameters()]
    before = parameters_to_vector(parameters)
    grpo.learn(networks, [torch.optim.SGD(parameters)], rollouts, 0.01)
    return (parameters_to_vector(parameters) - before).detach()


def check_steps(words, networks, task):
    """Take steps of a toy run."""
    begin(words)
    grpo.evaluate(networks, task)
    for step in range(2):
        saved = copy.deepcopy((networks.policy.state_dict(), grpo.state))
        rollouts, *_ = grpo.collect(networks, task, step)
        last = step_of(networks, rollouts)

    def again():
        """Go back to the checkpoint before the last step. Return its Rollouts."""
        begin(words)
        networks.policy.load_state_dict(saved[0])
        grpo.state.update(copy.deepcopy(saved[1]))
        return grpo.collect(networks, task, step)[0]

    def log_probs():
        return [grpo.log_probs_of(networks.policy, r) for r in rollouts]

    rollouts = again()
    before = log_probs()
    yield so(step_of(networks, rollouts).equal(last),
             "a resumed run takes the same step, because what lasts is in `state`")
    gain = sum((r.A * (new - old)).sum() for r, new, old in zip(rollouts, log_probs(), before))
    yield so(gain > 0, "a step makes good completions likelier")
    rollouts = again()
    for r, old in zip(rollouts, log_probs()):
        r.logp_old = old + torch.linspace(-1, 1, len(old))
    yield so(not step_of(networks, rollouts).equal(last),
             "a step weighs tokens of an older policy, by r.logp_old", 'look')
    reward = torch.rand(3, 6)
    A, other = [grpo.advantages(x, dict.fromkeys([*grpo.rewards, 'reward', 'tokens'], x))
                for x in (reward, torch.cat((reward[:2], reward[2:] ** 2)))]
    yield so(A.shape == reward.shape and (grpo.adv_norm == 'batch' or A[:2].allclose(other[:2])),
             "advantages (P, k) depend on the rewards of their own group alone", 'look')


def checks(words):
    """Yield (mark, sentence)."""
    words, networks, task = set_up_toy(words)
    is_causal = networks.policy.causal
    task.reply = vars(grpo).get('reply', task.reply) if is_causal else None
    kind = 'writes from left to right' if is_causal else 'fills blanks'
    yield '', (f"{grpo.dataset}: {len(task.rows['train'])} texts, {len(task.rows['val'])} held "
               f"out; the generator {kind}")
    groups = groups_of(task, is_causal)
    names = [name for name in grpo.rewards if name not in ('judge', 'verify')
             and not {'r', 'networks'} & {*(parameters_of(vars(grpo)[name]) or ())}]
    for name in (['verify'] if task.verify else []) + names:
        yield from check_texts(task, name, groups)
    for name in names:
        yield from check_order(task, name, groups)
    if task.reply and task.verify:
        yield from check_world(task, [group[0] for group in groups])
    yield from check_steps(words, networks, task)


if __name__ == '__main__':
    marks = set()
    for mark, sentence in checks(sys.argv[1:]):
        print(f'{mark:5}{sentence}', flush=True)
        marks.add(mark)
    sys.exit('bad' in marks)
