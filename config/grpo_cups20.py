# learns to think in 22 tokens: a task for studies
# python train_grpo.py config/grpo_cups20.py

dataset = 'cups20'
blank_kind = 'answer'
rewards = {'verify': 1.0}

generator = 'config/networks/generator_cups20.py'

group_size = 8
batch_size = 32

adv_norm = 'std'
kl_beta = 0.0
entropy_coef = 0.0
optimizer = 'adamw'
learning_rate = 1e-3
min_lr = 1e-4
max_iters = 100

out_dir = 'out-cups20'
eval_interval = 10
