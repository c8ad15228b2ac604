# composite reward on docstring completions
from data.docstrings.prepare import FAILURE, verify

dataset = 'docstrings'
mode = 'causal'
block_size = 64
blank_kind = 'suffix'
blank_low = blank_high = 0.5
rewards = {'judge': 1.0, 'safety': 0.5, 'diversity': 0.5, 'coherence': 1.0}
generator_recipe = 'config/generator_completion.py'
judge_recipe = 'config/judge_docstrings.py --block_size=64'


def safety(prompts, completions):
    """1 unless the completion speaks of failure."""
    return [float(not FAILURE.search(c)) for c in completions]


def coherence(prompts, completions):
    """The share of its words that occur in the training text."""
    return [verify(p, c) for p, c in zip(prompts, completions)]


def diversity(prompts, completions):
    """1 - the share of a completion's pairs of letters that other completions of its prompt have."""
    found = {}
    for p, c in zip(prompts, completions):
        for pair in {c[i:i + 3] for i in range(len(c) - 2)}:
            found.setdefault(p, {}).setdefault(pair, 0)
            found[p][pair] += 1
    ...


group_size = 8
batch_size = 16
adv_norm = 'std'
kl_beta = 0.02
learning_rate = 5e-4
max_iters = 100
eval_interval = 25
eval_prompts = 128
log_interval = 5
sample_interval = 25
out_dir = 'out-composite'
