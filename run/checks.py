"""Refusals of knobs that cannot work together. (What is wrong with a file is said where it is
read.)"""
from judge import BUILT_IN
from run.command import fail_unknown
from run.machine import n_ranks


def check_knobs(k, verify, functions):
    """Refuse knobs k {name: value} that could not work together, or with the checker and functions
    {name: function} of this run. This comes before networks are made."""
    parts = n_ranks() * k['mini_batches']
    assert k['gradient_accumulation_steps'] % parts == 0, (
        f"gradient_accumulation_steps = {k['gradient_accumulation_steps']}: expected a multiple of "
        f"{parts} = ranks * mini_batches")
    assert k['target_kl'] == 0 or k['kl_beta'] > 0, "target_kl adapts kl_beta: expected kl_beta > 0"
    assert 0 < k['top_p'] <= 1 and k['temperature'] >= 1e-6, (
        f"expected 0 < top_p = {k['top_p']} <= 1, and temperature = {k['temperature']} >= 1e-6")
    can_decide = k['n_fill_steps'] > 1 and k['likelihood'] == 'trajectory'
    assert k['fill_order'] != 'learned' or can_decide, (
        "a learned order decides in n_fill_steps > 1 passes, and an estimate has no decisions")
    known = [*BUILT_IN, *functions]
    if verify:                                  # the dataset has answers or a checker
        known.append('verify')
    assert k['rewards'], "rewards = {}: expected one or more"
    for name, weight in k['rewards'].items():
        if known.count(name) != 1:
            fail_unknown(f'rewards: expected one of {known}, each with one meaning, not', name,
                         known)
        assert type(weight) in (int, float) and abs(weight) < 1e9, (
            f"rewards: expected a number as the weight of {name}, not {weight!r}")


def check_generator(k, causal, data):
    """Refuse knobs that could not work with this kind of generator and this Dataset."""
    assert causal or not data.reply, (
        "reply() answers a causal generator; one that fills blanks has no turns")
    fills = k['n_fill_steps'] > 1 or k['blank_kind'] == 'marked' or k['likelihood'] != 'trajectory'
    assert not (causal and fills), (
        "a causal generator has no passes (n_fill_steps = 1), no marked blanks, and no estimate "
        "(likelihood = 'trajectory')")
    assert causal or k['max_new_tokens'] == 0, "max_new_tokens is for causal generators"
    # without a limit the longest answer is the limit, so there must be one
    has_answers = any(example.get('answer', True) for example in data.examples)
    assert not causal or has_answers or k['max_new_tokens'] > 0, (
        "no prompt has an answer: expected --max_new_tokens=N, the length of completions")
