# two rewards for the blanks of equations: be true, and repeat a digit
# python train_grpo.py extras/studies/grpo_repeats.py --adv_norm=batch
# sum of both: start 0.759, policy 1.268, 1.296, 1.277; without the flag 0.600, 0.546, 0.588; seeds
# 1, 2, 3

rewards = {'verify': 1.0, 'repeats': 1.0}

out_dir = 'out-repeats'


def repeats(completions):
    """The share of digits that equal the commonest digit of the completion."""
    scores = []
    for completion in completions:
        digits = [char for char in completion if char.isdigit()]
        scores.append(max(map(digits.count, digits)) / len(digits))
    return scores
