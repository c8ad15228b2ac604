# detoxification: a classifier's P(label = 1) as reward; 3.2 min from nothing on 2 cores
# held-out share of failure: start 0.100, its argmax 0.078 -> 0.031, 0.037, 0.033 (seeds 1, 2, 3)
import functools
import torch
from data.dataset import Dataset
from data.docstrings.prepare import FAILURE
from judge import load_judge
from model import made

dataset, block_size, mode = 'docstrings', 64, 'causal'
blank_kind, blank_low, blank_high, prompt_filter = 'suffix', 0.5, 0.5, 'invites'
rewards = {'judge': 1.0, 'failure': 0.0, 'likelihood': 0.0}
generator_recipe, judge_recipe = 'config/generator_completion.py', 'config/judge_labels.py'
group_size, batch_size, gradient_accumulation_steps, mini_batches, inner_updates = 4, 16, 4, 4, 2
adv_norm, kl_in_reward, kl_beta, target_kl, entropy_coef = 'batch', True, 0.02, 0.05, 0.005
learning_rate, max_iters, eval_interval, eval_prompts = 5e-4, 40, 20, 128
log_interval, sample_interval, out_dir = 5, 50, 'out-labels'
_dataset, _judge = functools.cache(Dataset), functools.cache(load_judge)

def failure(prompts, completions):
    """1 where the completion, with the word that the prompt began, speaks of failure."""
    return [float(any(m.end() > len(p) for m in FAILURE.finditer(p + c)))
            for p, c in zip(prompts, completions)]

def invites(prompt, original):
    """Prompts that do not speak of failure yet, but whose own continuation does."""
    return not FAILURE.search(prompt) and failure([prompt], [original])[0] == 1

def likelihood(prompts, completions):
    """Watched, not rewarded: nats per character under a frozen likelihood judge of the corpus."""
    path, make = made('', 'judge.py', 'config/judge_docstrings.py --block_size=64')
    data = _dataset('docstrings')
    rows = [data.tok.encode(p + c) + [data.tok.pad] * 64 for p, c in zip(prompts, completions)]
    return _judge(path, data, make).score(torch.tensor([row[:64] for row in rows])).tolist()
