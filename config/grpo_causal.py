# 12+35= -> 047, left to right, the verifier as reward; no KL, no judge
# GRPO: 2 min on 1 core
# held-out verify: start 0.489, control (its argmax) 0.742 -> 0.979, 0.979, 0.968 (seeds 1, 2, 3)
mode = 'causal'
blank_kind = 'suffix'
blank_low = blank_high = 0.4
rewards = {'verify': 1.0}
generator_recipe = 'config/generator_equations.py'
group_size = 8
gradient_accumulation_steps = 2
batch_size = 32
kl_beta = 0.0
learning_rate = 1e-3
max_iters = 700
out_dir = 'out-causal'
log_interval = 20
eval_interval = 100
sample_interval = 100
