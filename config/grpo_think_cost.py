# a token costs something: it writes as many steps as there are swaps
# python train_grpo.py config/grpo_think_cost.py
# verify: start 49.7 %, line to beat 59.6 %, policy 99.3, 95.7, 97.1 %; seeds 1, 2, 3; tokens per
# completion 3.4 -> 5.5, 5.4, 5.4: with seed 1 from 2.0 for one swap to 9.0 for eight; 57 s of GRPO

dataset = 'cups'
blank_kind = 'answer'
rewards = {'verify': 1.0, 'length': -1.0}   # a token costs 1/35, so eight steps cost 0.2 more

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
