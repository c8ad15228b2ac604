# byte pairs, rows of 256, 30 million parameters, bfloat16, compiled; ready for torchrun
import torch
_gpu = torch.cuda.is_available()
_parts = '' if _gpu else ' --max_iters=2 --batch_size=2'    # shows that it starts
dataset, block_size, dtype = 'shakespeare_bpe', 256, 'bfloat16'
blank_kind, blank_low, blank_high = 'span', 0.1, 0.4
generator_recipe = 'config/generator_gpu.py' + _parts
judge_recipe = 'config/generator_gpu.py --kind=likelihood --batch_size=32 --max_iters=1500' + _parts
batch_size, gradient_accumulation_steps, adv_norm, learning_rate = 16, 8, 'std', 5e-4
max_iters, log_interval, eval_prompts, out_dir = 500, 5, 256 if _gpu else 4, 'out-gpu'
