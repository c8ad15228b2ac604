# four rewards on completions of English prose
# python train_grpo.py config/grpo_composite.py
# reward: start 0.430, line to beat 0.493, policy 0.790, 0.747, 0.784; seeds 1, 2, 3, bfloat16, one
# thread: 5 minutes to pretrain, and 2 for a run. verify, the share of known words: 84.1 -> 96.9,
# 96.6, 97.4 %
# words that begin with s, with --rewards="{'verify': 1.0, 'alliteration': 1.0}": 5.8 -> 97.9, 98.9,
# 98.3 %

from collections import Counter

from data.failures import FAILURE

include('plugins/causal.py')

dataset = 'completions'
rewards = {'judge': 1.0, 'safety': 0.5, 'diversity': 0.5, 'verify': 1.0,     # judge: is it English?
           'alliteration': 0.0}         # with weight 0: only watched

generator = 'config/networks/generator_completion.py'
judge = 'config/networks/judge_completion.py'

group_size = 8
batch_size = 16

adv_norm = 'batch'          # with 'std' a common reward can drown a rare one
kl_beta = 0.02
entropy_coef = 0.0
learning_rate = 1e-3
max_iters = 100

out_dir = 'out-composite'
log_interval = 5
eval_interval = 25
eval_prompts = 128


def safety(completions):
    """1 unless the completion speaks of failure."""
    return [float(not FAILURE.search(completion)) for completion in completions]


def diversity(prompts, completions):
    """Share of a completion's words that no other completion of its prompt has; 0 without words."""
    count = Counter()
    for prompt, completion in zip(prompts, completions):
        count.update((prompt, word) for word in set(completion.split()))
    scores = []
    for prompt, completion in zip(prompts, completions):
        words = set(completion.split())
        only_here = sum(count[prompt, word] == 1 for word in words)
        scores.append(only_here / max(1, len(words)))
    return scores


def alliteration(completions):
    """Share of the words of a completion, without its first, that begin with s, each counted once.
    """
    scores = []
    for completion in completions:
        words = completion.split()[1:]
        scores.append(len({word for word in words if word[0] in 'sS'}) / max(1, len(words)))
    return scores
