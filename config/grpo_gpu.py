# byte pairs, sequences of 256, networks of 30 million parameters; nobody has run it on a GPU, so
# first: python -m extras.gpu_check

import torch

_on_gpu = torch.cuda.is_available()

dataset = 'shakespeare'
blank_span = 4
blank_low = 0.1
blank_high = 0.4

generator = 'config/networks/generator_gpu.py'
judge = 'config/networks/judge_gpu.py'

batch_size = 16
gradient_accumulation_steps = 8

kl_beta = 0.05
entropy_coef = 0.0
learning_rate = 5e-4
max_iters = 500

out_dir = 'out-gpu'
log_interval = 5
eval_prompts = 256 if _on_gpu else 4

dtype = 'bfloat16'
