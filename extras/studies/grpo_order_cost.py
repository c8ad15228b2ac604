# how many passes does an equation need? Each costs 0.03, and the policy decides in each which
# blanks it fills
# python train_grpo.py extras/studies/grpo_order_cost.py
# verify: start and line to beat 75.7 %, policy 88.8, 91.9, 89.5 %; passes 4.1 -> 2.3, 2.2, 2.3;
# seeds 1, 2, 3. Fixed orders of two passes end at 77 to 86 %. 39 s of an idle Intel Xeon (39 s of
# CPU time), besides pretraining

rewards = {'verify': 1.0, 'passes': -0.03}

n_fill_steps = 8
fill_order = 'learned'
group_size = 16
batch_size = 64

adv_norm = 'batch'
kl_beta = 0.0
entropy_coef = 0.0
optimizer = 'adamw'
learning_rate = 2e-3
warmup_iters = 2
max_iters = 100

out_dir = 'out-order-cost'
eval_interval = 25
