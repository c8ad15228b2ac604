# it learns to think: under which cup is the ball? The reward is 1 if the last letter is right
# python train_grpo.py config/grpo_think.py
# verify: start and line to beat 43.0 %, policy 99.4, 99.3, 99.1 %; seeds 1, 2, 3; tokens of a
# completion 2.7 -> 9.7; 15 s of one core, besides pretraining. With the generators of pretrain.py
# --seed=2 and 3: 98.9, 99.6 %, from 46.3 and 48.9 % (line 46.3, 50.0)

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
