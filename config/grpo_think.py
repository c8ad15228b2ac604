# a GPT learns to think: under which cup is the ball? The reward is 1 if the last letter is right
# python train_grpo.py config/grpo_think.py
# verify: start 47.7 to 51.3 %, line to beat 47.7 to 51.3 %,
# policy 98.8 to 99.6 % (docs/results.md: three generators, two precisions, two seeds)

include('plugins/causal.py')
include('plugins/watch.py')

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
