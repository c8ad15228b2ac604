# 30 million parameters that read Shakespeare in GPT-2's byte pairs

import torch

kind = 'causal'
dataset = 'shakespeare'
tokenizer = 'gpt2'
block_size = 256

n_layer = 6
n_head = 8
n_embd = 256

batch_size = 32
learning_rate = 2e-3
max_iters = 1500
dtype = 'bfloat16'

if not torch.cuda.is_available():       # shows that it starts
    batch_size = 2
    max_iters = 2
