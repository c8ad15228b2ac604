# detoxification: a classifier's P(label = 1) as reward
# held-out share of failure: start 12.1%, line to beat 17.2% -> 4.3% (seed 1)

import functools
import torch
from common import run_missing
from data.dataset import Dataset
from data.docstrings.prepare import fails
from judge import load_judge
from model import find_part

dataset = 'docstrings/failures'         # prompts that invite a completion about failure
mode = 'causal'
block_size = 64
blank_kind = 'answer'
rewards = {'judge': 1.0, 'kl': -0.02, 'failure': 0.0, 'likelihood': 0.0}    # at 0: only watched

generator_recipe = 'config/generator_completion.py'
judge_recipe = 'config/judge_labels.py'

group_size = 4
batch_size = 16
gradient_accumulation_steps = 4

adv_norm = 'batch'
inner_updates = 2
mini_batches = 4
kl_beta = 0.0               # the KL is in the reward
entropy_coef = 0.005
learning_rate = 5e-4
max_iters = 40

out_dir = 'out-labels'
log_interval = 5
eval_interval = 20
eval_prompts = 128

_dataset = functools.cache(Dataset)         # likelihood() asks at every step
_judge = functools.cache(load_judge)

def failure(prompts, completions):
    """1 where the completion, with the word that the prompt began, speaks of failure."""
    scores = []
    for prompt, completion in zip(prompts, completions):
        scores.append(float(fails(prompt, completion)))
    return scores

def likelihood(prompts, completions):
    """Watched, not rewarded: nats per character under a frozen likelihood judge of the corpus."""
    data = _dataset('docstrings')
    path, make = find_part('judge', '', 'config/judge_docstrings.py --block_size=64', data)
    run_missing({path: make})
    rows = []
    for prompt, completion in zip(prompts, completions):
        ids = data.tok.encode(prompt + completion)
        padded = ids + [data.tok.pad] * 64
        rows.append(padded[:64])
    judge = _judge(path, data, make)
    return judge.score(torch.tensor(rows)).tolist()
