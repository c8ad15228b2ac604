# SmolLM2-135M learns to use a calculator. Two examples in the prompt show how: when the policy
# writes `12*75=`, the world answers 900 (reply() in data/tools.py). Only right answers are
# rewarded. Look at `by_tool`, the share of answers that the calculator has said. It is not
# rewarded, and it rises with `verify`.
# python -m extras.smollm2 out/smollm2 && python train_grpo.py config/grpo_tools.py
# verify 9.4 -> 96.4 %, +67.2 above its line (seed 1, float32, 48 prompts; greedy 29.2 -> 97.9 %).
# In all right samples the calculator has said the answer. An hour on a core that other programs
# shared. An earlier version in bfloat16: 94.3, 96.4, 96.9 % (seeds 1, 2, 3)

import re

from data.tools import verify as _verify

include('plugins/causal.py')
include('plugins/hf.py')

dataset = 'tools'           # brings the calculator, too: reply()
max_new_tokens = 36         # an answer in two steps and what the calculator says have 30
rewards = {'verify': 1.0, 'by_tool': 0.0}       # by_tool is watched and not rewarded

generator = 'out/smollm2'

group_size = 8
batch_size = 8

temperature = 0.7

kl_beta = 0.0               # a verifier leaves little to fool, and a reference costs a pass
entropy_coef = 0.0
learning_rate = 2e-5
min_lr = 2e-6
warmup_iters = 2
max_iters = 20

out_dir = 'out-tools'
log_interval = 4
eval_interval = 20
eval_prompts = 48


def by_tool(completions, sampled, answer):
    """Return 1 where the answer is right and the calculator has said it: the policy itself wrote
    it only once, as its answer."""
    return [_verify(text, x) * (re.search(rf'= ?{x}\b', text) is not None and own.count(x) == 1)
            for text, own, x in zip(completions, sampled, answer)]
