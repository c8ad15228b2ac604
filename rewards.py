"""Call the functions of a user: rewards, verify(), and reply(), which is a world. A function gets
by name what it asks for. Skip this file at first."""
import contextlib
import copy
import inspect
import math
import os
import reprlib
import sys
import zlib

import torch

from configurator import near
from files import load, path_of
from tasks import BLANK, Task, Tokenizer

NO_REWARDS = {'include', 'reward', 'tokens', 'advantage'}     # names that no reward can have


@contextlib.contextmanager
def calling(name, function, known):
    """Yield call(columns), which calls a function of the user with those of the columns
    {name: value} that it names. known: names of columns. At the end undo what the function has done
    to the process."""
    signature = inspect.signature(function)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    asked = [x for x in known if takes_all or x in signature.parameters]
    try:
        signature.bind(**dict.fromkeys(asked))
    except TypeError as e:                      # missing a required argument: 'anser'
        sys.exit(f"{name}(): {e}; it can ask for {', '.join(sorted(known))}")
    folder, has_grad = os.getcwd(), torch.is_grad_enabled()

    def call(columns):
        try:
            return function(**{x: own_copy(columns[x]) for x in asked})
        except SystemExit as e:
            raise RuntimeError(f"{name}() called exit()") from e
        except Exception as e:
            e.add_note(f"in {name}()")
            raise

    try:
        # A reward computes in the precision in which its author tried it.
        with torch.autocast('cpu', enabled=False), torch.autocast('cuda', enabled=False):
            yield call
    finally:
        os.chdir(folder)
        torch.set_grad_enabled(has_grad)


def own_copy(value):
    """Return lists and dicts as copies, so that a function may change them."""
    if type(value) is list:
        return [copy.deepcopy(x) for x in value]        # one by one: items can be one object
    return copy.deepcopy(value) if type(value) is dict else value


def call_reward(name, function, columns, context):
    """Return the values of a reward for N completions. columns: {name: list of N}. verify() gets
    one completion after the other. Other rewards get lists, named 'prompts', 'completions' and
    'texts', and the values of context."""
    if name == 'verify':
        cases = [dict(zip(columns, case)) for case in zip(*columns.values())]
        with calling(name, function, columns) as call:
            return list(map(call, cases))
    plural = {'prompt': 'prompts', 'completion': 'completions', 'text': 'texts'}
    columns = context | {plural.get(x, x): values for x, values in columns.items()}
    with calling(name, function, columns) as call:
        return call(columns)


def world_answer(said):
    """Return what a world has said, a text, and whether this ends the completion."""
    answer = said if type(said) is tuple else ('' if said is None else said, False)
    assert [type(x) for x in answer] == [str, bool], (
        f"reply() returned {said!r:.80}: expected None, a text, or (text, True)")
    return answer


def as_numbers(name, values, n):
    """Return what a reward has returned as a tensor (n,), a finite number for each completion."""
    if torch.is_tensor(values):                 # an Apple GPU has no float64
        values = values.detach().cpu()
    try:
        numbers = torch.as_tensor(values, dtype=torch.float32).double()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        numbers = torch.empty(0)
    assert numbers.shape == (n,) and math.isfinite(numbers.sum()), (
        f"reward {name}: expected {n} finite numbers, one for each completion, not "
        f"{reprlib.repr(values)}")
    return numbers


def join(parts):
    """Return scores {name: (P, k)} of those {name: (B, k)} of parts."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


# ---- before a run --------------------------------------------------------------------------------
def open_data(script):
    """Load the dataset of a script, and try its rewards. Return the Dataset, with the verify() and
    reply() of config files, and {name: hash of its file} of what an evaluation calls."""
    data = load(script['dataset'])
    data = data._replace(verify=script.get('verify', data.verify),
                         reply=script.get('reply', data.reply))
    known = {name: f for name, f in script.items() if callable(f) and name not in NO_REWARDS
             and name not in script['_original']} | ({'verify': data.verify} if data.verify else {})
    for name, weight in script['rewards'].items():
        assert name not in NO_REWARDS, f"rewards: {name} is a name of ours: expected another one"
        assert name != 'verify' or data.verify, (
            "rewards: there is no verify(), because not all records have an answer")
        assert name == 'judge' or name in known, (
            f"rewards: there is no {name}(); similar: {near(name, known)}")
        assert type(weight) in (int, float) and abs(weight) < 1e300, (
            f"rewards: the weight of {name} is {weight!r}: expected a number")
    functions = {name: known[name] for name in [*script['rewards'], 'verify'] if name in known}
    try_out(script, data, functions)
    measured = functions | ({'reply': data.reply} if data.reply else {})
    ours = ('complete', 'sample', 'score', 'judge_scores', 'columns_of')
    measured |= {name: script[name] for name in ours
                 if script[name] is not script['_original'][name]}
    sources = {name: hash_of_file(f) for name, f in measured.items()}
    return data, sources | {'dataset': zlib.crc32(path_of(script['dataset']).read_bytes())}


def try_out(script, data, functions):
    """Call {name: reward}, and reply(), once, with a record of the Dataset that is filled with its
    answer. So mistakes are found before anything is trained."""
    record = data.train[0]
    tok = Tokenizer('char', ''.join({*record['prompt'], *record['answer']} - {BLANK}))
    try:
        task = Task(data._replace(train=[record], held_out=[]), tok, script['blank_kind'],
                    script['blank_low'], script['blank_high'])
    except AssertionError:                      # blanks do not fit: `_` is a character
        return
    prompts = task.prompts('train', 1)
    texts = prompts.tokens.repeat_interleave(script['group_size'], 0)           # (k, T)
    text, place = prompts.blank.expand_as(texts).nonzero(as_tuple=True)         # (M,)
    r = script['Rollout'](prompts, len(texts), texts, texts[:1], text, place, texts[text, place],
                          view=0 * text)
    state = copy.deepcopy(script['state'])
    # There are no networks yet.
    names = [name for name, function in functions.items()
             if 'networks' not in inspect.signature(function).parameters]
    script['score'](r, None, names)
    if data.reply:
        columns = dict.fromkeys(task.columns) | record | {'completion': record['answer'][:1]}
        with calling('reply', data.reply, columns) as call:
            world_answer(call(columns))
    script['state'].clear()                     # the run begins with none of this
    script['state'].update(state)


def hash_of_file(function):
    """Return a hash of the file that defines a function of the user; of a builtin its type."""
    function = inspect.unwrap(getattr(function, 'func', function))          # of a partial
    if not inspect.isroutine(function):         # an object that can be called
        function = type(function).__call__
    try:
        return zlib.crc32(open(inspect.getsourcefile(function), 'rb').read())
    except TypeError:                           # a builtin
        return repr(type(function))
