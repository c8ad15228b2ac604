# byte pairs, rows of 256, 30 million parameters, bfloat16, compiled; ready for torchrun

import torch

_gpu = torch.cuda.is_available()
_parts = '' if _gpu else ' --max_iters=2 --batch_size=2'    # shows that it starts

dataset = 'shakespeare_bpe'
block_size = 256
blank_kind = 'span'
blank_low = 0.1
blank_high = 0.4

generator_recipe = 'config/generator_gpu.py' + _parts
judge_recipe = 'config/generator_gpu.py --kind=likelihood --batch_size=32 --max_iters=1500' + _parts

batch_size = 16
gradient_accumulation_steps = 8

adv_norm = 'std'
learning_rate = 5e-4
max_iters = 500

out_dir = 'out-gpu'
log_interval = 5
eval_prompts = 256 if _gpu else 4

dtype = 'bfloat16'
