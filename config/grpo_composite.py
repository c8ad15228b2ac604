# four rewards on completions of English prose
# held-out reward but for diversity: start -0.114, line to beat 0.416 -> 0.398 (seed 1)

from collections import Counter
from data.docstrings import prepare

dataset = 'docstrings'
mode = 'causal'
block_size = 64
blank_kind = 'suffix'
blank_low = 0.5
blank_high = 0.5
rewards = {'judge': 1.0, 'safety': 0.5, 'diversity': 0.5, 'coherence': 1.0}    # judge: quality

generator_recipe = 'config/generator_completion.py'
judge_recipe = 'config/judge_docstrings.py --block_size=64'

group_size = 8
batch_size = 16

adv_norm = 'std'
kl_beta = 0.02
max_iters = 100

out_dir = 'out-composite'
log_interval = 5
eval_interval = 25
eval_prompts = 128

def safety(prompts, completions):
    """1 unless the completion speaks of failure."""
    scores = []
    for completion in completions:
        found = prepare.FAILURE.search(completion)
        scores.append(float(not found))
    return scores

def diversity(prompts, completions):
    """Share of a completion's words that no other completion of its prompt has."""
    rows = []
    for prompt, completion in zip(prompts, completions):
        rows.append({(prompt, word) for word in completion.split()})
    count = Counter()
    for words in rows:
        count.update(words)
    scores = []
    for words in rows:
        alone = sum(count[word] == 1 for word in words)
        scores.append(alone / max(1, len(words)))       # no words: 0
    return scores

diversity.about_group = True        # a single completion would have it for free

def coherence(prompts, completions):
    """Share of the words touched that occur in the training text."""
    scores = []
    for prompt, completion in zip(prompts, completions):
        scores.append(prepare.verify(prompt, completion))
    return scores
