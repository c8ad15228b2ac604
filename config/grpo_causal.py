# 12+35= -> 047, left to right; reward: the verifier; no KL
# from nothing 1 min on 2 idle cores: data and generator 13 s, then 600 steps of GRPO
# held-out verify: start 49.2%, line to beat 81.2% -> 95.9, 97.0, 97.2% (seeds 1, 2, 3)

mode = 'causal'
blank_kind = 'answer'
rewards = {"verify": 1.0}

generator_recipe = 'config/generator_equations.py'

group_size = 8
batch_size = 32
gradient_accumulation_steps = 2

kl_beta = 0.0
learning_rate = 2e-3
max_iters = 600

out_dir = 'out-causal'
log_interval = 20
eval_interval = 300
