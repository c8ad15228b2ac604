"""Refusals of commands that could not work: knobs that do not go together, and rewards. (What is
wrong with a file is said where the file is read.)"""
import inspect
import math

from judge import BUILT_IN, PLURAL
from run.machine import n_ranks


def check_knobs(k, verify, functions):
    """Refuse knobs k {name: value} that could not work with the checker and the functions {name:
    function} of this run. This comes before networks are made."""
    parts = n_ranks() * k['mini_batches']
    assert k['gradient_accumulation_steps'] % parts == 0, (
        f"gradient_accumulation_steps = {k['gradient_accumulation_steps']}: expected a multiple of "
        f"{n_ranks()} ranks * {k['mini_batches']} mini_batches")
    assert k['target_kl'] == 0 or k['kl_beta'] > 0, "target_kl adapts kl_beta: expected kl_beta > 0"
    assert 0 < k['top_p'] <= 1 and k['temperature'] >= 1e-6 and k['beta2'] < 1, (
        f"expected 0 < top_p = {k['top_p']} <= 1, temperature = {k['temperature']} >= 1e-6, "
        f"beta2 = {k['beta2']} < 1")
    can_decide = k['likelihood'] == 'trajectory' and k['n_fill_steps'] > 1
    assert k['fill_order'] != 'learned' or can_decide, (
        "a learned order decides in n_fill_steps > 1 passes; an estimate of the likelihood has no "
        "decisions")
    check_rewards(k['rewards'], verify, functions)


def check_rewards(rewards, verify, functions):
    """Refuse rewards {name: weight} that could not work, and functions with names that are taken.
    """
    twice = functions.keys() & {'verify', 'reward', *BUILT_IN}
    assert not twice, (
        f"rewards: {twice} cannot be names of your functions: the built-in rewards, and `reward`, "
        "the sum of all, have them")
    known = [*BUILT_IN, *functions]
    if verify:
        known.append('verify')
    assert rewards, "rewards = {}: expected one or more"
    for name, weight in rewards.items():
        assert name in known, (
            f"rewards: expected one of {known}, a function of a config file on the command line "
            "(add the file that defines it), or 'verify' if the dataset has answers or a checker, "
            f"not '{name}'")
        assert type(weight) in (int, float) and math.isfinite(weight), (
            f"rewards = {rewards}: expected a finite number as the weight of '{name}'")
        assert name != 'kl' or weight <= 0, (
            f"rewards: expected a weight of 0 or less for 'kl', not {weight}")
        if name in functions:
            singular = PLURAL.keys() & inspect.signature(functions[name]).parameters.keys()
            assert not singular, (
                f"reward '{name}' asks for {singular}: expected the plural, which are lists")


def check_generator(k, policy, data, functions):
    """Refuse knobs and functions {name: function} that could not work with this policy and its
    Dataset."""
    fills = k['n_fill_steps'] > 1 or k['blank_kind'] == 'marked' or k['likelihood'] != 'trajectory'
    assert not (policy.causal and fills), (
        "a causal generator has no passes (n_fill_steps = 1), no marked blanks, and no estimate "
        "(likelihood = 'trajectory')")
    assert policy.causal or k['max_new_tokens'] == 0, (
        "max_new_tokens is for causal generators; blanks are as many as the prompt has")
    # without a limit the longest answer is the limit, so there must be one
    has_answers = any(example.get('answer', True) for example in data.examples)
    assert has_answers or k['max_new_tokens'] > 0 or not policy.causal, (
        "no prompt has an answer: expected --max_new_tokens=N, the length of completions")
    for name in k['rewards'].keys() & functions.keys():
        answer = inspect.signature(functions[name]).parameters.get('answer')
        assert has_answers or not answer or answer.default is not answer.empty, (
            f"reward '{name}' asks for `answer`, but no prompt has one")
