# 12+35= -> 047, from left to right; the reward is the verifier; no KL
# python train_grpo.py config/grpo_causal.py
# verify: start 39.6 to 54.1 %, line to beat 51.0 to 79.1 %,
# policy 99.5 to 100.0 % (docs/results.md: three generators, two precisions, two seeds)

include('plugins/causal.py')

rewards = {'verify': 1.0}

generator = 'config/networks/generator_equations.py'

group_size = 8
batch_size = 256

kl_beta = 0.0               # an exact verifier leaves little to fool
entropy_coef = 0.0
learning_rate = 2e-3
max_iters = 300

out_dir = 'out-causal'
eval_interval = 30
