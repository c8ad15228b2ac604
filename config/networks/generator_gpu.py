# fills blanks of Shakespeare in GPT-2's byte pairs: 5 million parameters in six layers, and 26
# million in the tables of 50,257 byte pairs

import torch

dataset = 'shakespeare'
tokenizer = 'gpt2'
block_size = 256
blank_span = 4
blank_low = 0.1
blank_high = 0.4

n_layer = 6
n_head = 8
n_embd = 256

batch_size = 64
learning_rate = 2e-3
max_iters = 2000
dtype = 'bfloat16'

if not torch.cuda.is_available():       # shows that it starts
    batch_size = 2
    max_iters = 2
