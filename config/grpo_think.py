# A GPT learns to think before it answers. A ball lies under one of five cups, cups are swapped, and
# the reward is 1 if the last letter names the right cup. The network is too small to follow eight
# swaps at once. One in ten of its texts thinks first, and this is enough: look at `mean_tokens`,
# the length of a completion, which rises from 3 to 10 while `verify` doubles.
#
#     python train_grpo.py config/grpo_think.py
#
# verify 48.3 to 52.5 -> 98.9 to 99.4 %, +46.7 to +51.0 above its line
# (6 runs, generators 1, 2, 3, float32)

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
