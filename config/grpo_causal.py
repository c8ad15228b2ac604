# The GRPO that most people know: 12+35= becomes 12+35=047, from left to right, and the reward is 1
# if the sum is right. There is no judge and no KL, and still the policy becomes nearly perfect.
# Look at `verify` first, then at `dead_groups`: once all completions of most groups are right,
# there is little left to learn.
#
#     python train_grpo.py config/grpo_causal.py
#
# verify 43.3 to 53.6 -> 99.8 to 100.0 %, +22.4 to +35.2 above its line
# (6 runs, generators 1, 2, 3, float32)

include('plugins/causal.py')

rewards = {'verify': 1.0}

generator = 'config/networks/generator_equations.py'

group_size = 8
batch_size = 256

kl_beta = 0.0               # nothing can fool an exact verifier, so nothing needs a KL
entropy_coef = 0.0
learning_rate = 2e-3
max_iters = 300

out_dir = 'out-causal'
eval_interval = 30
