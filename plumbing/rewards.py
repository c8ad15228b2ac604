"""Call the functions of a user: rewards, and verify(). A function gets by name what it asks for."""
import builtins
import copy
import difflib
import inspect
import math
from dataclasses import replace
from unittest.mock import patch

import torch

from plumbing.datasets import guarded
from plumbing.process import Mistake, expect, near, say
from tasks import BLANK

PLURAL = {'prompt': 'prompts', 'completion': 'completions', 'text': 'texts'}
# What a completion can be seen in.
ANSWERS = {'completion', 'completions', 'text', 'texts', 'sampled', 'ended', 'rollout', 'networks'}
TAKEN = {'reward', 'tokens', 'advantage', 'include', 'state'}   # no names for a reward


def asked_of(name, function, available):
    """Return which of the available names a function asks for by its parameters."""
    parameters = inspect.signature(function).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for p in named:
        is_misspelt = bool(difflib.get_close_matches(p.name, available, 1, 0.8))        # anwser
        is_optional = p.default is not p.empty and not is_misspelt
        expect(p.name in available or is_optional, (
            f"{name}() asks for {p.name!r}, which does not exist{near(p.name, available)}. All: "
            f"{[*available]}"))
    if any(p.kind is p.VAR_KEYWORD for p in parameters):        # **kwargs gets all
        return [*available]
    return [p.name for p in named if p.name in available]


def call_each(name, function, cases):
    """Return what a function returns in each case, columns {name: value}. It gets copies of lists
    and dicts, because it may sort them, or take something out."""
    names = asked_of(name, function, cases[0]) if cases else ()
    results = []
    for case in cases:
        mine = {x: copied(case[x]) for x in names}
        with guarded(f'{name}()'):
            results.append(function(**mine))
        for x in {*names} & {*PLURAL.values()}:
            are_texts = all(isinstance(text, str) for text in mine[x])
            is_other = mine[x] != case[x] and are_texts and sorted(mine[x]) == sorted(case[x])
            expect(not is_other, f"{name}() has changed the order of {x}, so its values would be "
                   f"those of other texts: write sorted({x})")
    return results


def copied(x):
    """Return a copy of what a function could change."""
    return copy.deepcopy(x) if isinstance(x, list | dict | set) else x


def call_reward(name, function, rollout, networks, step, split):
    """Return the values (N,) of a reward, float32. verify() gets one completion after the other.
    Other rewards get lists, named 'prompts', 'completions' and 'texts', and may ask for the other
    arguments, too."""
    # A copy, so that a reward may change its texts: the policy learns from the others.
    private = replace(rollout, texts=rollout.texts.clone(), views=rollout.views.clone())
    context = {'rollout': private, 'networks': networks, 'step': step, 'split': split}
    return values_of(name, function, rollout.columns, context, rollout.texts.device.type)


def values_of(name, function, columns, context, device='cpu'):
    """Return the values (N,) of a reward, float32. columns: {name: list of N}."""
    n = len(columns['text'])
    try:
        # A reward computes in the precision in which its author tried it.
        with torch.autocast(device, enabled=False):
            if name == 'verify':
                cases = [dict(zip(columns, case)) for case in zip(*columns.values())]
                values = call_each(name, function, cases)
            else:
                lists = {PLURAL.get(x, x): values for x, values in columns.items()} | context
                [values] = call_each(name, function, [lists])
    except Mistake:
        raise
    except Exception as e:
        e.add_note(f'in the reward {name}()')
        raise
    if values is None or name == 'verify' and None in values:
        raise Mistake(f"the reward {name}() returned None: is its `return` missing?")
    try:
        numbers = torch.as_tensor(values).detach()
        is_right = numbers.shape == (n,) and not numbers.is_complex() and bool(
            numbers.float().isfinite().all())
    except (TypeError, ValueError, RuntimeError):       # texts, None, lists of several lengths
        is_right = False
    if name == 'verify' and not (is_right and ((numbers >= 0) & (numbers <= 1)).all()):
        wrong = [x for x in values if not is_share(x)] or values
        raise Mistake(f"verify() returned {wrong[0]!r:.100}: expected a number from 0.0 (wrong) to "
                      "1.0 (right)")
    if not is_right:            # no expect(), which would write out thousands of right values, too
        infinite = [x for x in values if isinstance(x, float) and not math.isfinite(x)] if (
            isinstance(values, list)) else []
        hint = f", and not {infinite[:1]}" if infinite else ''
        raise Mistake(f"the reward {name}() returned {values!r:.100}: expected a list of {n} "
                      f"finite numbers, one for each completion{hint}")
    return numbers.float().cpu()


def is_share(x):
    """Is it a number from 0 to 1?"""
    try:
        return not isinstance(x, str) and 0 <= float(x) <= 1
    except (TypeError, ValueError, RuntimeError):
        return False


# ---- before anything is trained ------------------------------------------------------------------
def check_rewards(script, taken):
    """Refuse rewards without a function, weights that are no numbers, and names that are taken."""
    rewards = script['rewards']
    expect(rewards, "rewards = {}: expected a reward, such as {'verify': 1.0}")
    if not any(rewards.values()):
        say('all weights of `rewards` are 0, so no completion is better than another one')
    for name, weight in rewards.items():
        expect(type(name) is str and type(weight) in (int, float) and abs(weight) < 1e18, (
            f"rewards: {{{name!r}: {weight!r}}}: expected a name and a number"))
        expect(name in ('judge', 'verify') or name not in TAKEN | taken | vars(builtins).keys(), (
            f"rewards: {name} is a name of train_grpo.py or of Python: rename your {name}()"))


def try_rewards(script, data):
    """Call each reward that asks for texts and columns alone, with two answers of the dataset. A
    mistake is then found in a second, and not after the networks were made."""
    functions = script | data._asdict()
    records = (data.train * 2)[:2]
    columns = {name: [record[name] for record in records] for name in records[0]}
    answers = [record['answer'] or record['prompt'] for record in records]
    texts = [record['answer'] if BLANK in record['prompt'] and record['answer'] else
             record['prompt'] + record['answer'] for record in records]
    columns |= {'completion': texts, 'text': texts, 'original': texts}
    if script['Task'].kind == 'causal':
        columns |= {'completion': answers, 'sampled': answers, 'ended': [True, True]}
    if functions['reply']:
        known = [*records[0], 'completion']
        asked_of('reply', functions['reply'], known)
        for x in inspect.signature(functions['reply']).parameters.values():
            if x.default is not x.empty and x.name not in known:
                say(f"reply() gets no {x.name}, so its default, {x.default!r}, is taken")
    watched = {'verify'} if functions['verify'] else set()         # with or without a weight
    for name in script['rewards'].keys() - {'judge'} | watched:
        function = functions.get(name)
        expect(function or name != 'verify', f"rewards: {script['dataset']} has no verify(), and "
               "records without an answer, to which a text could be compared")
        expect(callable(function), f"rewards: there is no {name}() of a config file"
               f"{near(name, functions)}")
        expect(name == 'verify' or not hasattr(function, 'cache_info'), f"{name}() has a cache, "
               "and it is called with lists, which no cache can remember: cache a helper of it")
        parameters = inspect.signature(function).parameters
        is_blind = not parameters.keys() & ANSWERS and not any(
            x.kind is x.VAR_KEYWORD for x in parameters.values())
        expect(not is_blind or name != 'verify', "verify() asks for no `completion` and no `text`, "
               "so it cannot say whether they are right")
        for x in parameters.values():
            if x.default is None and x.name not in {*columns, *PLURAL.values(), 'step', 'split',
                                                    'rollout', 'networks'}:
                say(f"{name}() gets no {x.name}, so its default, None, is taken")
        if is_blind:
            say(f"{name}() asks for no completions, so it is the same for all of a group")
        if not parameters.keys() & {'rollout', 'networks'}:
            with patch.dict(script['state']):   # a reward may remember something
                values_of(name, function, columns, {'step': 0, 'split': 'train'})
