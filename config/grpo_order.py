# In which order should a masked GPT think? It knows where the ball is after a swap if it sees where
# the ball was before, and it decides by itself which thoughts it fills in a pass. Only the last one
# is rewarded, and the policy learns to fill from left to right. A fixed order from the left is
# right from the start (the second command); the point is that nobody told the policy.
#
#     python train_grpo.py config/grpo_order.py
#     python train_grpo.py config/grpo_order.py --fill_order=left --n_fill_steps=8
#
# verify 26.7 to 34.5 -> 98.9 to 99.8 %, +65.3 to +72.3 above its line
# (3 runs, generators 1, 2, 3, float32)
# Other orders are --fill_order=confident and random.

include('plugins/passes.py')
include('plugins/watch.py')

dataset = 'thoughts'
blank_kind = 'answer'
rewards = {'verify': 1.0}

generator = 'config/networks/generator_thoughts.py'

n_fill_steps = 12
fill_order = 'learned'
group_size = 16
batch_size = 128

adv_norm = 'batch'
kl_beta = 0.0
entropy_coef = 0.0
optimizer = 'adamw'
learning_rate = 7e-4        # for the order 16 times as much: ORDER_SPEED in plugins/order.py
warmup_iters = 2
max_iters = 80

out_dir = 'out-order'
log_interval = 10
eval_interval = 10
eval_prompts = 256
