# a token costs something: it thinks only where thinking pays
# python train_grpo.py config/grpo_think_cost.py
# verify: start and line to beat 43.4 %, policy 99.1, 98.9, 99.1 %; seeds 1, 2, 3. It thinks in
# 25, 25, 27 % of the completions for one swap, and in 99 % for eight. 21 s of an idle Intel Xeon
# (21 s of CPU time), besides pretraining

dataset = 'cups'
blank_kind = 'answer'
rewards = {'verify': 1.0, 'length': -1.0}   # a token costs 1/36: thinking, 8 tokens, costs 0.22

generator = 'config/networks/generator_think.py'

group_size = 8
batch_size = 32

adv_norm = 'none'           # 'std' would blow up small differences in length among right answers
kl_beta = 0.0
entropy_coef = 0.0
optimizer = 'adamw'
learning_rate = 1e-3
max_iters = 200

out_dir = 'out-think-cost'
eval_interval = 50
