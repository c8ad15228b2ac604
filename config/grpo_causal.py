# 12+35= -> 047, from left to right; the reward is the verifier; no KL

blank_kind = 'answer'
rewards = {'verify': 1.0}

generator = 'config/generator_equations.py'

group_size = 8
batch_size = 64

kl_beta = 0.0               # a verifier cannot be fooled
max_iters = 600

out_dir = 'out-causal'
eval_interval = 300
