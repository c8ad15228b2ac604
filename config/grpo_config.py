# blanks of equations, filled all at once; a likelihood judge scores the texts. These are the
# defaults of train_grpo.py. A minute of two cores, pretraining included. verify: start 42.9 to
# 44.9 %, line to beat 44.6 to 48.2 %, policy 95.2 to 97.4 % (docs/results.md: three generators, two
# precisions, two seeds)
# Behind a knob: verify at the end with another value; seeds 1, 2, 3 of one generator, one thread
# (as it is: 96.9, 96.9, 96.6 %)

include('plugins/watch.py')

dataset = 'arithmetic'
rewards = {'judge': 1.0}

generator = 'config/networks/generator_arithmetic.py'       # pretrain.py makes both, if missing
judge = 'config/networks/judge_arithmetic.py'

group_size = 16             # 4: 90.1, 87.9, 88.2 %
batch_size = 256            # 64: 87.7, 85.9, 85.6 %

adv_norm = 'std'            # 'none': 88.0, 87.5, 84.9 %: smaller advantages beside the bonus
kl_beta = 0.1               # 0: 96.5, 96.8, 95.3 %, no clear difference: this judge is hard to fool
entropy_coef = 0.1          # 0: 94.8, 96.7, 96.5 %
learning_rate = 6e-3        # 2e-3: 90.4, 90.5, 93.8 %
max_iters = 300
