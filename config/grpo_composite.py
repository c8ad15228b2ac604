# Four rewards at once, on completions of English prose: is it English, is it free of failure, does
# it differ from its neighbours, are its words known? In the log each reward has a line of its own,
# as eval/NAME. Look there whether one of them pays for another. 5 minutes to pretrain, 2 minutes to
# run.
#
#     python train_grpo.py config/grpo_composite.py
#     python train_grpo.py config/grpo_composite.py --rewards="{'verify': 1.0, 'alliteration': 1.0}"
#
# reward 0.431 -> 0.763, 0.739, 0.785, +0.283, +0.260, +0.306 above its line
# verify, the share of known words: 84.9 -> 96.6, 96.8, 96.6 % (seeds 1, 2, 3, float32)
# Words that begin with s, by the second command: 6.0 -> 98.5, 98.4, 98.8 %

from collections import Counter

from data.failures import FAILURE

include('plugins/causal.py')

dataset = 'completions'
rewards = {'judge': 1.0, 'safety': 0.5, 'diversity': 0.5, 'verify': 1.0,
           'alliteration': 0.0}         # weight 0: logged, and not rewarded

generator = 'config/networks/generator_completion.py'
judge = 'config/networks/judge_completion.py'

group_size = 8
batch_size = 16

adv_norm = 'batch'          # 'std' would let a common reward drown a rare one
kl_beta = 0.02
entropy_coef = 0.0
learning_rate = 1e-3
max_iters = 100

out_dir = 'out-composite'
log_interval = 5
eval_interval = 25
eval_prompts = 128


def safety(completions):
    """Return 1 for each completion that does not speak of failure, else 0."""
    return [float(not FAILURE.search(completion)) for completion in completions]


def diversity(prompts, completions):
    """Return the share of words that no other completion of the same prompt has. A greedy
    completion is alone in its group. It gets 0, because two greedy completions would be equal."""
    n_completions = Counter(prompts)
    count = Counter()
    for prompt, completion in zip(prompts, completions):
        count.update((prompt, word) for word in set(completion.split()))
    scores = []
    for prompt, completion in zip(prompts, completions):
        words = set(completion.split())
        only_here = sum(count[prompt, word] == 1 for word in words)
        is_alone = n_completions[prompt] == 1
        scores.append(0.0 if is_alone else only_here / max(1, len(words)))
    return scores


def alliteration(completions):
    """Return the share of words that begin with s. The first word does not count, because it may
    have begun in the prompt, and a word that is repeated counts once."""
    scores = []
    for completion in completions:
        words = completion.split()[1:]
        scores.append(len({word for word in words if word[0] in 'sS'}) / max(1, len(words)))
    return scores
