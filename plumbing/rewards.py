"""Call the functions of a user: rewards, and verify(). A function gets by name what it asks for."""
import inspect

import torch

PLURAL = {'prompt': 'prompts', 'completion': 'completions', 'text': 'texts'}


def asked_of(function, columns):
    """Return which of the columns (names) a function of the user asks for."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return [name for name in columns if takes_all or name in parameters]


def call_each(function, cases):
    """Return what a function returns in each case, columns {name: value}."""
    names = asked_of(function, cases[0]) if cases else ()
    return [function(**{name: case[name] for name in names}) for case in cases]


def call(name, function, columns, context):
    """Return the values (N,) of a reward, float32. columns: {name: list of N}. verify() gets one
    completion after the other. Other rewards get lists, named 'prompts', 'completions' and 'texts',
    and the values of context."""
    try:
        # A reward computes in the precision in which its author tried it.
        with torch.autocast(context['r'].texts.device.type, enabled=False):
            if name == 'verify':
                cases = [dict(zip(columns, case)) for case in zip(*columns.values())]
                values = call_each(function, cases)
            else:                               # copies: a reward may sort its lists
                lists = context | {PLURAL.get(x, x): [*values] for x, values in columns.items()}
                values = function(**{x: lists[x] for x in asked_of(function, lists)})
        numbers = torch.as_tensor(values).detach()
        is_right = [True] * len(columns['text'])
        assert (numbers.float().isfinite() & numbers.isreal()).tolist() == is_right, (
            f"expected a finite number for each completion, not {values!r:.200}")
    except Exception as e:
        e.add_note(f'in the reward {name}')     # and show_error() shows where
        raise
    return numbers.float().cpu()
