# byte pairs, rows of 256, 30 million parameters, bfloat16, compiled; ready for torchrun
import torch

_gpu = torch.cuda.is_available()
_parts = '' if _gpu else ' --max_iters=2 --batch_size=2'    # shows that it starts
dataset, block_size = 'shakespeare_bpe', 256
blank_kind, blank_low, blank_high = 'span', 0.1, 0.4
generator_recipe = 'config/generator_gpu.py' + _parts
judge_recipe = 'config/judge_gpu.py' + _parts
batch_size, gradient_accumulation_steps = 16, 8
adv_norm, learning_rate, dtype = 'std', 5e-4, 'bfloat16'
max_iters, log_interval, eval_prompts = 500, 5, 256 if _gpu else 4
out_dir = 'out-gpu'
