# Nobody knows the right answers, but a function can check them. Three letters become a name that is
# new, has the letters in this order, and can be pronounced. The generator has read real words only,
# and a real word is never new. To use a checker of yours, write --dataset=FILE.py with texts() and
# verify(), and try it first with python -m extras.check FILE.py.
#
#     python train_grpo.py config/grpo_checker.py
#
# verify 15.7 to 20.8 -> 92.2 to 94.7 %, +38.9 to +48.0 above its line
# (6 runs, generators 1, 2, 3, float32)

include('plugins/causal.py')

dataset = 'names'           # or FILE.py
rewards = {'verify': 1.0}   # start with one reward: a common one would drown a rare one

generator = 'config/networks/generator_checker.py'

group_size = 16             # if 3 % of all samples are right, 4 of 10 groups have one
batch_size = 32

kl_beta = 0.0
entropy_coef = 0.0
learning_rate = 1e-3
max_iters = 300

out_dir = 'out-checker'
eval_interval = 50
