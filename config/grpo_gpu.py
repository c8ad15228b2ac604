# byte pairs, rows of 256, 30 million parameters, bfloat16, compiled; ready for torchrun
import torch

_gpu = torch.cuda.is_available()
_parts = '' if _gpu else ' --max_iters=2 --batch_size=2 --compile=False'    # shows that it starts
dataset = 'shakespeare_bpe'
block_size = 256
blank_kind = 'span'
blank_low, blank_high = 0.1, 0.4
generator_recipe = 'config/generator_gpu.py' + _parts
judge_recipe = 'config/judge_gpu.py' + _parts
group_size = 16
batch_size = 16
gradient_accumulation_steps = 8
adv_norm = 'std'
learning_rate = 5e-4
max_iters = 500
eval_prompts = 256 if _gpu else 4
log_interval = 5
dtype = 'bfloat16'
compile = _gpu
out_dir = 'out-gpu'
