"""Call the functions of a user: rewards, verify(), and reply(), which is a world. A function gets
by name what it asks for. Skip this file at first."""
import contextlib
import copy
import inspect
import math
import sys
import zlib
from pathlib import Path

import torch

from configurator import near
from files import load, path_of
from tasks import BLANK, Task, Tokenizer

NO_REWARDS = {'include', 'reward', 'tokens', 'advantage'}     # names that no reward can have


def call_each(name, function, cases):
    """Call a function of the user for each of the cases {column: value}, with the columns that it
    names. Return a list of what it returns. The folder and grad mode are reset."""
    signature = inspect.signature(function)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    results = []
    # A reward computes in the precision in which its author tried it.
    with (contextlib.chdir('.'), torch.set_grad_enabled(torch.is_grad_enabled()),
          torch.autocast('cpu', enabled=False), torch.autocast('cuda', enabled=False)):
        for case in cases:
            asked = {x: own_copy(value) for x, value in case.items()
                     if takes_all or x in signature.parameters}
            try:
                if not results:                 # all cases have the same columns
                    signature.bind(**asked)
            except TypeError as e:              # missing a required argument: 'anser'
                sys.exit(f"{name}(): {e}; it can ask for {', '.join(sorted(case))}")
            try:
                results.append(function(**asked))
            except SystemExit as e:
                raise RuntimeError(f"{name}() called exit()") from e
            except Exception as e:
                e.add_note(f"in {name}()")
                raise
    return results


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
        return call_each(name, function, cases)
    plural = {'prompt': 'prompts', 'completion': 'completions', 'text': 'texts'}
    lists = {plural.get(x, x): values for x, values in columns.items()}
    return call_each(name, function, [context | lists])[0]


def world_answers(reply, cases):
    """Return what a world says in each case: a text, and whether this ends the completion."""
    answers = []
    for said in call_each('reply', reply, cases):
        answer = said if type(said) is tuple else ('' if said is None else said, False)
        assert [type(x) for x in answer] == [str, bool], (
            f"reply() returned {said!r:.80}: expected None, a text, or (text, True)")
        answers.append(answer)
    return answers


def as_numbers(name, values, n):
    """Return what a reward has returned as a tensor (n,), a finite number for each completion."""
    try:
        numbers = torch.as_tensor(values, dtype=torch.float32, device='cpu').detach().double()
    except Exception:                           # many kinds: of None, a text, lists of lists
        numbers = torch.empty(0)
    assert numbers.shape == (n,) and math.isfinite(numbers.sum()), (
        f"reward {name}: expected {n} finite numbers, one for each completion, not "
        f"{values!r:.80} (as shape {[*numbers.shape]})")
    return numbers


def join(parts):
    """Return scores {name: (P, k)} of those {name: (B, k)} of parts."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


# ---- before a run --------------------------------------------------------------------------------
def open_data(script):
    """Load the dataset of a script, and try its rewards. Return the Dataset, with the verify() and
    reply() of config files, and {name: hash of its file} of what an evaluation calls."""
    data = load(script['dataset'])
    original = script['_original']
    data = data._replace(verify=script.get('verify', data.verify),
                         reply=script.get('reply', data.reply))
    theirs = {name: f for name, f in script.items() if callable(f) and f is not original.get(name)}
    theirs |= {'verify': data.verify, 'reply': data.reply}
    known = [name for name, f in theirs.items() if f and name not in original.keys() | NO_REWARDS]
    unanswered = [record for record in data.train + data.held_out if not record['answer']]
    why = f": {unanswered[0]!r:.200} has no answer" if unanswered else ''
    for name, weight in script['rewards'].items():
        assert name != 'verify' or data.verify, f"rewards: there is no verify(){why}"
        assert name == 'judge' or name in known, (
            f"rewards: there is no {name}(), or its name is one of ours{near(name, known)}")
        assert type(weight) in (int, float) and math.isfinite(weight), (
            f"rewards: the weight of {name} is {weight!r}: expected a number")
    measured = [*script['rewards'], 'verify', 'reply', 'complete', 'sample', 'score',
                'judge_scores', 'columns_of']
    functions = {name: theirs[name] for name in measured if theirs.get(name)}
    try_out(script, data, functions)
    sources = {name: hash_of_file(f) for name, f in functions.items()}
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
    names = [name for name in ('verify', *script['rewards']) if name in functions
             and 'networks' not in inspect.signature(functions[name]).parameters]
    script['score'](r, None, names)
    if data.reply:
        written = (record['answer'] or record['prompt'])[:1]            # reply() never gets ''
        world_answers(data.reply, [record | {'completion': written}])
    script['state'].clear()                     # undo what this try has kept
    script['state'].update(state)


def hash_of_file(function):
    """Return a hash of the file that defines a function of the user; of a compiled one its type."""
    function = inspect.unwrap(getattr(function, 'func', function))          # of a partial
    if not inspect.isroutine(function):         # an object that can be called
        function = type(function).__call__
    try:
        return zlib.crc32(Path(inspect.getsourcefile(function)).read_bytes())
    except TypeError:                           # compiled: no file
        return repr(type(function))
