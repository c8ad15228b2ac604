# how many passes does an equation need? Each costs 0.03, and the policy decides in each which
# blanks it fills
# python train_grpo.py config/grpo_order_cost.py
# verify: start and line to beat 75.6 %, policy 89.1, 90.9, 91.3 %; passes 4.2 -> 2.4, 2.1, 2.1;
# seeds 1, 2, 3; 30 s of one core. Fixed orders of two passes end at 84 to 85 %

rewards = {'verify': 1.0, 'passes': -0.03}

n_fill_steps = 8
fill_order = 'learned'
group_size = 16
batch_size = 64

adv_norm = 'batch'
kl_beta = 0.0
optimizer = 'adamw'
learning_rate = 2e-3
min_lr = 1e-4
warmup_iters = 2
max_iters = 100

out_dir = 'out-order-cost'
eval_interval = 25
