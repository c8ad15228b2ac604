# blanks of equations, filled all at once; a likelihood judge scores the texts. These are the
# defaults of train_grpo.py. A minute of two cores, pretraining included. verify: start 42.9 to
# 45.0 %, line to beat 45.5 to 48.2 %, policy 95.9 to 97.4 % (docs/results.md: three generators, two
# precisions, two seeds)

dataset = 'arithmetic'
rewards = {'judge': 1.0}

generator = 'config/networks/generator_arithmetic.py'       # pretrain.py makes both, if missing
judge = 'config/networks/judge_arithmetic.py'

group_size = 16             # 4: 88 to 90 %
batch_size = 256            # larger: what stays wrong are groups that all agree on a wrong carry

adv_norm = 'std'            # 'none': 82 %
kl_beta = 0.1
entropy_coef = 0.1
learning_rate = 6e-3
max_iters = 300
