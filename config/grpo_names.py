# three letters become a new name: a checker, and no answers
# python train_grpo.py config/grpo_names.py
# verify: start 18.2 %, greedy 59.2 %, policy 95.6, 96.1, 96.7 %; reward: line to beat 0.712, policy
# 1.441, 1.450, 1.459; seeds 1, 2, 3, bfloat16, one thread, 80 s

from collections import Counter

include('plugins/causal.py')

dataset = 'names'
rewards = {'verify': 1.0, 'varied': 0.5}        # or all names of a prompt become one

generator = 'config/networks/generator_pairs.py'

group_size = 8
batch_size = 32

adv_norm = 'batch'          # 'std' enlarges small differences
kl_beta = 0.0
entropy_coef = 0.0
learning_rate = 1e-3
max_iters = 600

out_dir = 'out-names'
log_interval = 100
eval_interval = 150


def varied(prompts, completions):
    """1 / how often the completion came among those of its prompt."""
    count = Counter(zip(prompts, completions))
    return [1 / count[pair] for pair in zip(prompts, completions)]
