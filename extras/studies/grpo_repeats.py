# two rewards for the blanks of equations: be true, and repeat a digit
# python train_grpo.py extras/studies/grpo_repeats.py

rewards = {'verify': 1.0, 'repeats': 1.0}

out_dir = 'out-repeats'


def repeats(completions):
    """The share of digits that equal the commonest digit of the completion."""
    scores = []
    for completion in completions:
        digits = [char for char in completion if char.isdigit()]
        scores.append(max(map(digits.count, digits)) / len(digits))
    return scores
