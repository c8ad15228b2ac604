"""Refusals of knobs that cannot work together. (What is wrong with a file is said where it is
read.)"""
from run.machine import n_ranks


def check_knobs(*, gradient_accumulation_steps, mini_batches, temperature, top_p, kl_beta,
                target_kl, fill_order, n_fill_steps, likelihood, **others):
    """Refuse knobs that could not work together. This comes before networks are made."""
    assert gradient_accumulation_steps % (n_ranks() * mini_batches) == 0, (
        "gradient_accumulation_steps: expected a multiple of mini_batches * the ranks of torchrun "
        "(without it unset WORLD_SIZE)")
    assert target_kl == 0 or kl_beta > 0, "target_kl adapts kl_beta: expected kl_beta > 0"
    assert 0 < top_p <= 1 and temperature >= 1e-6, (
        f"top_p = {top_p}, temperature = {temperature}: expected 0 < top_p <= 1, and 1e-6 or more")
    can_decide = n_fill_steps > 1 and likelihood == 'trajectory'
    assert fill_order != 'learned' or can_decide, (
        "a learned order decides in n_fill_steps > 1 passes, and an estimate has no decisions")


def check_generator(causal, data, *, n_fill_steps, blank_kind, max_new_tokens, **others):
    """Refuse knobs that could not work with this kind of generator and this Dataset."""
    if not causal:
        assert not data.reply, (
            "reply() answers a causal generator; one that fills blanks has no turns")
        assert max_new_tokens == 0, "max_new_tokens is for causal generators"
        return
    assert n_fill_steps == 1 and blank_kind != 'marked', (
        "a causal generator has no passes (n_fill_steps = 1), and no marked blanks")
    # without a limit the longest answer is the limit, so there must be one
    has_answers = any(example.get('answer', True) for example in data.examples)
    assert has_answers or max_new_tokens > 0, (
        "no prompt has an answer: expected --max_new_tokens=N, the length of completions")
