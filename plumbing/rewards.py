"""Call the functions of a user: rewards, verify(), and reply(), which is a world. A function gets
by name what it asks for."""
import functools
import inspect
import math

import torch

from plumbing import datasets
from plumbing.configurator import near


def asked_of(name, function, columns):
    """Return which of the columns (names) a function of the user asks for."""
    asked = inspect.signature(function).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in asked)
    for p in asked:
        assert takes_all or p.name in columns or p.default is not p.empty, (
            f"{name}() asks for {p.name}: expected one of {', '.join(sorted(columns))}")
    return columns if takes_all else [p.name for p in asked if p.name in columns]


def call(name, function, columns):
    """Return what a function of the user returns for those columns {name: value} that it names."""
    names = asked_of(name, function, columns)
    try:
        # A reward computes in the precision in which its author tried it.
        with torch.autocast('cpu', enabled=False), torch.autocast('cuda', enabled=False):
            return function(**{x: columns[x] for x in names})
    except SystemExit as e:                     # perhaps of code that the policy wrote
        raise RuntimeError(f"{name}() called exit()") from e
    except Exception as e:
        e.of_user = True                        # so show_error() shows its traceback
        raise


def call_reward(name, function, columns, context):
    """Return the values of a reward for N completions. columns: {name: list of N}. verify() gets
    one completion after the other. Other rewards get lists, named 'prompts', 'completions' and
    'texts', and the values of context."""
    if name == 'verify':
        cases = [dict(zip(columns, case)) for case in zip(*columns.values())]
        return call_each(name, function, cases)
    plural = {'prompt': 'prompts', 'completion': 'completions', 'text': 'texts'}
    # Copies: a reward may sort its lists.
    lists = {plural.get(x, x): [*values] for x, values in columns.items()}
    return call(name, function, context | lists)


def call_each(name, function, cases):
    """Return what a function of the user returns in each case, columns {name: value}."""
    @functools.wraps(function)                  # so call() sees which columns the function names
    def each(**columns):                        # those of the first case
        return [function(**{x: case[x] for x in columns}) for case in cases]

    # One call(), because call() takes longer than most functions.
    return call(name, each, cases[0]) if cases else []


def world_answers(reply, cases):
    """Return what a world says in each case: a text, and whether this ends the completion."""
    answers = []
    for said in call_each('reply', reply, cases):
        answer = said if type(said) is tuple else ('' if said is None else said, False)
        assert [type(x) for x in answer] == [str, bool], (
            f"reply() returned {said!r:.80}: expected None, a text, or (text, True)")
        answers.append(answer)
    return answers


def as_numbers(name, values, n, completions=()):
    """Return what a reward has returned as a tensor (n,), a finite number for each completion."""
    numbers, wrong = as_tensor(values), f'{values!r:.80}'
    is_right = numbers.shape == (n,) and math.isfinite(numbers.sum())
    is_list = isinstance(values, (list, tuple))
    if is_list and len(values) != n:
        wrong = f'{len(values)}: {wrong}'
    elif is_list and not is_right:
        i = [as_tensor(x).isfinite().tolist() is True for x in values].index(False)
        text = f': {completions[i]!r:.200}' if completions else ''
        wrong = f'{values[i]!r:.80} for completion {i}{text}'
    assert is_right, (
        f"reward {name}: expected {n} finite numbers, one for each completion, not {wrong}")
    return numbers


def as_tensor(values):
    try:
        return torch.as_tensor(values, dtype=torch.float32, device='cpu').detach().double()
    except Exception:                           # many kinds: of None, a text, lists of lists
        return torch.tensor([torch.nan])


def open_data(script):
    """Return the Dataset of a script, with the verify() and reply() of config files. Refuse
    rewards that are no functions, that ask for what no column is, or whose weights are no numbers.
    """
    data = datasets.load(script['dataset'])
    data = data._replace(verify=script.get('verify', data.verify),
                         reply=script.get('reply', data.reply))
    # The last four are columns of scores, or no function of a file.
    ours = script['_original'].keys() | {'reward', 'tokens', 'advantage', 'include'}
    assert script['rewards'], "rewards = {}: expected a reward"
    for name, weight in script['rewards'].items():
        f = data.verify if name == 'verify' else script.get(name)
        assert f or name != 'verify', (
            "rewards: there is no verify(): the dataset has none, and a record's answer is ''")
        assert name == 'judge' or callable(f) and name not in ours, (
            f"rewards: there is no {name}(), or its name is one of ours"
            f"{near(name, ['verify', *script.keys() - script['_original'].keys()])}")
        assert type(weight) in (int, float) and math.isfinite(weight), (
            f"rewards: the weight of {name} is {weight!r}: expected a number")
        if name not in ('judge', 'verify'):
            asked_of(name, f, data.train[0].keys() - datasets.OF_ONE | datasets.OF_MANY)
    for name, f in {'verify': data.verify, 'reply': data.reply}.items():
        if f:
            asked_of(name, f, data.train[0].keys() | datasets.OF_ONE)
    return data
