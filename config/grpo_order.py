# a masked GPT learns in which order to think: it knows where the ball is after a swap if it sees
# where the ball was before, and decides itself which thoughts it fills now
# python train_grpo.py config/grpo_order.py
# verify: start 26.9 to 34.8 %, line to beat 26.9 to 34.8 %,
# policy 92.1 to 99.8 % (docs/results.md: three generators, two precisions, two seeds)
# other orders: --fill_order=left | confident | random, with --n_fill_steps=8

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
learning_rate = 7e-4        # the order learns 16 times as fast: ORDER_SPEED of plugins/order.py
warmup_iters = 2
max_iters = 80

out_dir = 'out-order'
log_interval = 10
eval_interval = 10
eval_prompts = 256
