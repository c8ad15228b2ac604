"""Check the functions of a config file, of a paper or of yours: two steps of a toy run call them,
and look at what they return. Or a task, before anything is trained: see check_task.py.

    python -m extras.check examples/worlds/lock.py
    python -m extras.check config/papers/gspo.py
    python -m extras.check config/grpo_think.py mine.py --objective=mine

The toy run has the dataset, the blanks and the world of the words, tiny random networks, and
rewards by chance. The first mistake ends it: mend it, and call again."""
import functools
import io
import sys
import traceback
import zlib
from dataclasses import replace
from unittest import mock

import torch
import torch.nn.functional as F

from extras.words import words_of
import train_grpo as grpo
from dataset import make_tokenizer, read_texts
from extras.check_task import check_task, is_task
from model import GPT
from rollout import Prompts, TokenStats

TOY = {'batch_size': 3, 'gradient_accumulation_steps': 2, 'mini_batches': 1, 'group_size': 4,
       'chat_template': False, 'compile': False, 'resume': False, 'out_dir': '', 'device': 'cpu',
       'dtype': 'float32'}


# ---- a toy run -----------------------------------------------------------------------------------


def tiny_networks(paths, config, device):
    """Take the place of open_networks(): all weights of these networks matter."""
    causal = config['blank_kind'] in ('answer', 'suffix')
    is_text = type(read_texts(config['dataset'])[0][0]) is str
    tok = make_tokenizer('char', config['dataset'])
    networks = [GPT(tok.vocab_size, 64 if is_text else 1024, 1, 2, 8, causal).double()
                for _ in paths]
    for network in networks:
        for p in network.parameters():
            torch.nn.init.normal_(p, std=0.5)
    return paths, tok, networks


def by_chance(name, r, cases):
    """Take the place of Scorer.score_one(): 0, 1/3, 2/3, 1 or missing, the same for equal texts."""
    chances = [zlib.crc32(f"{name} {case['text']}".encode()) % 5 for case in cases()]
    return [None if chance == 4 else chance / 3 for chance in chances]


def take_step(run, optimizer, step):
    """Take a step as main() of train_grpo.py does."""
    prompts = grpo.rules.draw_prompts(run.data, step, run.policy, run.scorer)
    micro_steps, _, advantages = grpo.rules.experience(run.policy, run.scorer, prompts)
    numbers = grpo.learn(run.policy, run.scorer, [optimizer], micro_steps, advantages, 0.01,
                         grpo.kl_beta)
    assert abs(numbers['loss']) < 1e9, f"the loss is {numbers['loss']}"


# ---- the checks: each takes the place of the function of a knob, and calls yours -----------------


def expect(values, *shapes):
    assert values.shape in shapes and values.isfinite().all(), (
        f"it returns {tuple(values.shape)}: expected finite numbers, {[*map(tuple, shapes)]}")


def draw_prompts(f, data, *more):
    prompts = f(data, *more)
    size = None
    if type(prompts) is Prompts:
        size = len(prompts), prompts.k
    assert size == (6, 4), f"expected Prompts, here 6 for 4 completions each, not {size or prompts}"
    assert f(data, *more).tokens.equal(prompts.tokens), "it returns others when it is asked again"
    return prompts


def experience(f, policy, scorer, prompts):
    micro_steps, scores, advantages = f(policy, scorer, prompts)
    assert 'reward' in scores, f"the scores have no 'reward', but {list(scores)}"
    expect(advantages, (len(advantages), 4))
    for index, r in micro_steps:
        assert len(advantages[index]) == len(r.prompts) == len(r.sequences) / 4, (
            f"a Rollout has {len(r.prompts)} prompts, and its slice {index} of the advantages "
            f"{len(advantages[index])}")
    return micro_steps, scores, advantages


def adv_norm(f, reward, scores):
    A = f(reward, scores)
    expect(A.nan_to_num(), reward.shape)        # collect() looks where it is NaN
    is_dead = grpo.all_equal(reward)
    assert grpo.all_equal(A)[is_dead].all(), (
        "groups of equal rewards have other advantages, which would not become 0")
    return A


def credit(f, A, r, policy, scorer):
    values = f(A, r, policy, scorer)
    expect(values, A.shape, r.pass_of.shape)
    assert not values.requires_grad, "it has a gradient: detach(), or torch.no_grad()"
    # Other last tokens, with the same advantages: nothing that came before a token has changed.
    is_last = F.one_hot(r.pass_of.argmax(1), r.pass_of.size(1))                 # (N, T)
    other = 1 + r.sequences % (policy.blank_id - 1)                             # never eos
    r = replace(r, sequences=torch.where(is_last > 0, other, r.sequences),
                logp_sampled=r.logp_sampled - is_last)
    assert torch.allclose(f(A, r, policy, scorer), values), (
        "it looks at the token itself: a baseline that does changes the mean gradient. Right only "
        "if it rewards or weighs tokens")
    return values


def likelihood(f, r, policy, reference=None):
    stats = f(r, policy, reference)
    for name, values in zip(TokenStats._fields, TokenStats(*stats)):
        expect(values, r.pass_of.shape)
        assert not values[~r.is_sampled].any(), f"{name} is not 0 where no token was sampled"
    return stats


def objective(f, stats, logp_old, A, r):
    loss, numbers = f(stats, logp_old, A, r)
    for values in (loss, *numbers.values()):
        expect(values, logp_old.shape)
    push, = torch.autograd.grad((loss * r.is_sampled).sum(), stats.logp, retain_graph=True)
    if stats.logp.equal(logp_old):
        assert (push * A <= 0).all(), (
            "before the first update good tokens become less likely, or bad ones likelier: is the "
            "sign right?")
        assert push.any() or not A.any(), "it has no gradient"
    return loss, numbers


def kl_type(f, stats, logp_old):
    penalty = f(stats, logp_old)
    expect(penalty, logp_old.shape)
    return penalty


def check_state(f):
    """Do with the STATE of a file what a checkpoint does."""
    file = io.BytesIO()
    try:
        torch.save(f.__globals__.get('STATE', {}), file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as e:                      # torch raises several kinds
        raise AssertionError("no checkpoint can hold STATE: expected a dict of numbers, text, "
                             "tensors, lists and dicts") from e


def watched(knob, f, *args):
    """Call a function of a file by the check of its knob. An error says whose it is."""
    try:
        result = globals()[knob](f, *args)
        check_state(f)
        return result
    except Exception as e:                      # a function of yours can raise anything
        e.add_note(f'{knob} = {f.__name__!r}')
        raise


def check(*words):
    """Return {function: '', or what is wrong with it} of the functions that words of a command
    line, config files and flags, put in the place of ours. The first mistake stands alone."""
    names, weights = toy_run(*words, TOY)
    if names and not any(names.values()):
        _, others = toy_run(*words, TOY | {'batch_size': 6, 'gradient_accumulation_steps': 1})
        if not torch.allclose(weights, others):
            names['micro-steps'] = ("a step in two parts is not the same as this step at once: "
                                    "ranks would change it, too")
    return names


def toy_run(*words):
    """Return {function: what is wrong with it, or ''}, and the weights after two steps."""
    torch.manual_seed(0)
    names = {}
    # knobs and rules are as before in the end
    with mock.patch.dict(vars(grpo), open_networks=tiny_networks), mock.patch.dict(
            vars(grpo.rules)):
        run = grpo.set_up([*words])
        run.scorer.score_one = by_chance
        optimizer = torch.optim.SGD(run.policy.parameters())
        for knob, f in vars(grpo.rules).items():
            if f is not grpo.RULES[knob]:
                setattr(grpo.rules, knob, functools.partial(watched, knob, f))
                names[f'{knob} = {f.__name__!r}'] = ''
        try:
            for step in range(2 if names else 0):
                take_step(run, optimizer, step)
        except Exception as e:
            name, *_ = getattr(e, '__notes__', ['a step'])
            error = traceback.format_exception_only(e)[0].strip()
            *_, frame = traceback.extract_tb(e.__traceback__)
            names[name] = f'{error} ({frame.filename}, line {frame.lineno})'
    return names, torch.nn.utils.parameters_to_vector(run.policy.parameters()).detach()


if __name__ == "__main__":
    words = words_of(__doc__, 1)
    is_wrong = False
    mark = None
    for mark, sentence in check_task(words):
        print(f'{mark:3} {sentence}', flush=True)
        is_wrong |= mark == 'NOT'
    functions = check(*[word for word in words if not is_task(word)])
    for name, wrong in functions.items():
        print(f'NOT {name}: {wrong}' if wrong else f'ok  {name}')
        is_wrong |= bool(wrong)
    if mark is None and not functions:
        print("there is no task of yours, and no function: nothing to check")
    sys.exit(is_wrong)
