# 12+35= -> 047, from left to right; the reward is the verifier; no KL
# python train_grpo.py config/grpo_causal.py
# verify: start 61.5 %, line to beat 93.2 %, policy 97.1 +- 0.5 %; seeds 1, 2, 3; 79 s of steps on
# one core of an AMD EPYC that had other work, too

blank_kind = 'answer'
rewards = {'verify': 1.0}

generator = 'config/generator_equations.py'

group_size = 8
batch_size = 64

kl_beta = 0.0               # a verifier cannot be fooled
entropy_coef = 0.0
learning_rate = 2e-3
max_iters = 600

out_dir = 'out-causal'
eval_interval = 300
