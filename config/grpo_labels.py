# detoxification: a classifier's P(label = 1) as reward
# 8 min from nothing on 1 core
# held-out share with a word of failure: start 0.086, its argmax 0.078 ->
# 0.025, 0.031, 0.033 (seeds 1, 2, 3)
import torch

from data.dataset import Dataset
from data.docstrings.prepare import FAILURE
from judge import load_judge
from model import made

dataset = 'docstrings'
mode = 'causal'
block_size = 64
blank_kind = 'suffix'
blank_low = blank_high = 0.5
prompt_filter = 'invites'
rewards = {'judge': 1.0, 'failure': 0.0, 'likelihood': 0.0}
generator_recipe = 'config/generator_completion.py'
judge_recipe = 'config/judge_labels.py'


def failure(prompts, completions):
    """1 where the completion, with the word that the prompt began, speaks of failure."""
    return [float(any(m.end() > len(p) for m in FAILURE.finditer(p + c)))
            for p, c in zip(prompts, completions)]


def invites(prompt, original):
    """Prompts that do not speak of failure yet, but whose own continuation does."""
    return not FAILURE.search(prompt) and failure([prompt], [original])[0] == 1


def likelihood(prompts, completions):
    """Watched, not rewarded: nats per character under a frozen likelihood judge of the corpus."""
    if 'judge' not in LIKELIHOOD:
        path, make = made('', 'judge.py', 'config/judge_docstrings.py --block_size=64')
        LIKELIHOOD['data'] = Dataset('docstrings')
        LIKELIHOOD['judge'] = load_judge(path, LIKELIHOOD['data'], make)
    tok = LIKELIHOOD['data'].tok
    rows = [tok.encode(p + c) for p, c in zip(prompts, completions)]
    rows = torch.tensor([row + [tok.pad] * (64 - len(row)) for row in rows])
    return LIKELIHOOD['judge'].score(rows).tolist()


LIKELIHOOD = {}
group_size = 4
batch_size = 16
gradient_accumulation_steps = 4
mini_batches = 4
inner_updates = 2
adv_norm = 'batch'
kl_in_reward = True
kl_beta = 0.02
target_kl = 0.05
entropy_coef = 0.005
learning_rate = 5e-4
max_iters = 60
eval_interval = 20
eval_prompts = 128
log_interval = 5
sample_interval = 50
out_dir = 'out-labels'
