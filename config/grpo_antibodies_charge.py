def charge(prompts, completions):
    """Return 1 for each loop whose net charge is -1 or -2, else 0."""
    loops = [completion[prompt.rindex('C') + 1:prompt.rindex('_') + 1]
             for prompt, completion in zip(prompts, completions)]
    signs = {'K': 1, 'R': 1, 'D': -1, 'E': -1}
    return [float(-2 <= sum(signs.get(letter, 0) for letter in loop) <= -1) for loop in loops]

rewards = {'free': 1.0, 'charge': 1.0}
adv_norm = 'batch'
out_dir = 'out-antibodies-charge'
