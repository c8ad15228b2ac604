# A toy generator for config/grpo_smoke.py and the tests.

n_layer = 2
n_embd = 32

batch_size = 64
max_iters = 60
