# it learns to think: under which cup is the ball? The reward is 1 if the last letter is right
# python train_grpo.py config/grpo_think.py
# verify: start and line to beat 43.4 %, policy 99.7, 99.6, 99.7 %; seeds 1, 2, 3; tokens per
# completion 3.0 -> 9.6. With generators of seeds 2 and 3: 45.0 (40.6) -> 99.8, 47.6 (41.8) -> 99.7.
# From nothing to the end 41 s of an AMD EPYC, 72 s of an idle Intel Xeon
# Where a token costs 1/36, so that thinking costs 0.22, it thinks only where thinking pays, in 25,
# 25, 27 % of the completions for one swap and in 99 % for eight: verify 99.1, 98.9, 99.1 % with
# --rewards="{'verify': 1.0, 'length': -1.0}" --adv_norm=none --max_iters=200

include('plugins/causal.py')

dataset = 'cups'
rewards = {'verify': 1.0}

generator = 'config/networks/generator_think.py'

group_size = 8
batch_size = 32

kl_beta = 0.0
entropy_coef = 0.0
optimizer = 'adamw'
learning_rate = 1e-3
max_iters = 150

out_dir = 'out-think'
eval_interval = 25
