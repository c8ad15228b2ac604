# sorts letters: a task for studies, whose answers have 20 to 30 tokens
# python train_grpo.py config/grpo_sorting.py

dataset = 'sorting'
blank_kind = 'answer'
rewards = {'verify': 1.0}

generator = 'config/networks/generator_sorting.py'

group_size = 8
batch_size = 32

kl_beta = 0.0
entropy_coef = 0.0
optimizer = 'adamw'
learning_rate = 1e-3
max_iters = 100

out_dir = 'out-sorting'
eval_interval = 10
