# Countdown: make 21 of 3, 5 and 6. The policy has six attempts, and after each one the world says
# too small or too large. It has only read random attempts, so it has to find out by itself that an
# answer of the world is worth something.
#
#     python train_grpo.py config/grpo_countdown.py       # 140 s
#
# verify 43.3 -> 91.9, 93.5, 90.9 %, +48.6, +50.3, +47.7 above its line (seeds 1, 2, 3, float32)

include('plugins/causal.py')

dataset = 'countdown'
rewards = {'verify': 1.0}

generator = 'config/networks/generator_game.py'

group_size = 16
batch_size = 64

kl_beta = 0.0
entropy_coef = 0.0
learning_rate = 4e-3
max_iters = 200

out_dir = 'out-countdown'
log_interval = 20
eval_interval = 20
