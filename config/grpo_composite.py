# four rewards on completions of English prose; 4 min from nothing on 1 busy core
# held-out reward: start 0.330, its argmax 0.953 -> 0.710, 0.716, 0.741 (seeds 1, 2, 3)
from collections import Counter
from data.docstrings.prepare import FAILURE, verify

dataset, block_size, mode = 'docstrings', 64, 'causal'
blank_kind, blank_low, blank_high = 'suffix', 0.5, 0.5
generator_recipe = 'config/generator_completion.py'
judge_recipe = 'config/judge_docstrings.py --block_size=64'
rewards = {'judge': 1.0, 'safety': 0.5, 'diversity': 0.5, 'coherence': 1.0}    # judge: quality
group_size, batch_size, adv_norm, kl_beta, out_dir = 8, 16, 'std', 0.02, 'out-composite'
max_iters, eval_interval, eval_prompts, log_interval, sample_interval = 100, 25, 128, 5, 25

def safety(prompts, completions):
    """1 unless the completion speaks of failure."""
    return [float(not FAILURE.search(c)) for c in completions]

def diversity(prompts, completions):
    """Share of a completion's words that no other completion of its prompt has."""
    words = [{(p, word) for word in c.split()} for p, c in zip(prompts, completions)]
    count = Counter(word for own in words for word in own)
    return [sum(count[word] == 1 for word in own) / max(1, len(own)) for own in words]

def coherence(prompts, completions):
    """Share of the words touched that occur in the training text."""
    return [*map(verify, prompts, completions)]
