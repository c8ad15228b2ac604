# A toy judge for config/grpo_smoke.py and the tests.

kind = 'causal'
n_layer = 2
n_embd = 32

batch_size = 64
max_iters = 60
