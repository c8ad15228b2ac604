# countdown: three digits make a number in six attempts, and the world says too small or too large
# python train_grpo.py config/grpo_countdown.py
# verify: start and line to beat 45.9 % (greedy 37.1, pass@4 86.7), policy 91.7, 88.3, 87.1 %; seeds
# 1, 2, 3, bfloat16, one thread, 140 s

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
